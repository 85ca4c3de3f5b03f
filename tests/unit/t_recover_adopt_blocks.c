/* A start from memory adopts blocks in place: nothing is copied, the earlier generation is
 * unchanged until it is removed, and gradients are zero afterwards. */
#include "base/random.h"
#include "ek_test.h"
#include "model/hf/weights.h"
#include "model/param_buckets.h"
#include "recover/recover.h"
#include "small_spec.h"
#include "tensor/select/select.h"

enum { STEPS = 5 };

/* No update is under way in these tests. */
static const ek_recover_update no_update = {.real_bytes = sizeof(double)};

/* A start of one rank, up to the filled state. */
typedef struct {
    ek_kernels *k;
    ek_recovery found;
    ek_rank_state state;
    ek_model *m;
} start;

static uint64_t run_of_test(void)
{
    char out[64];

    snprintf(out, sizeof(out), "/t_recover_adopt_blocks/%d", (int)getpid());
    return ek_run_id(out);
}

static int32_t first_generation; /* for begin() */

static ek_status begin(start *s, int32_t spare_slots, int64_t *missing)
{
    ek_model_spec spec = small_spec();
    ek_model_config mc = {
        .trained = 1, .spare_slots = spare_slots, .persistent_slots = 1, .migrates = 1};
    int32_t lacks = -1;
    ek_segment_id id;

    *s = (start){0};
    EK_TRY(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &s->k));
    EK_TRY(ek_recover_find(&s->found, NULL, run_of_test(), 0, first_generation, &no_update));
    id = (ek_segment_id){run_of_test(), s->found.generation, 0};
    ek_state_reserve(&s->state, &id, 1, 7, 0, "/t_recover_adopt_blocks");
    mc.state = &s->state.memory;
    EK_TRY(ek_model_create(&spec, s->k, &mc, &s->m));
    EK_TRY(ek_state_start(&s->state, s->m, STEPS));
    if (s->found.decision.generation < 0)
        return ek_state_create_blocks(&s->state);
    EK_TRY(ek_recover_read_tables(&s->found));
    EK_TRY(ek_recover_load(&s->found, &s->state, &lacks));
    *missing = lacks;
    return EK_OK;
}

/* Leaves the segment as a killed process does. */
static void end(start *s)
{
    ek_state_close(&s->state);
    ek_recover_close(&s->found);
    ek_model_destroy(&s->m);
    ek_kernels_destroy(&s->k);
}

static double number_of(const ek_hf_tensor *t, int array, int64_t i)
{
    return 1 + ek_random_uniform((uint64_t)array, ek_random_stream(t->name), (uint64_t)i);
}

/* Fills masters, moments and gradients, or counts wrong numbers; gradients are as filled, or zero.
 */
static int64_t each_number(const start *s, int fill, int gradients)
{
    int64_t wrong = 0;

    for (int64_t n = 0; n < ek_hf_count(&s->m->spec); n++) {
        ek_hf_tensor t;
        ek_span a;

        ek_hf_tensor_at(&s->m->spec, n, &t);
        if (!ek_model_span(s->m, &t, &a))
            continue;
        for (int64_t i = 0; i < a.rows * a.cols; i++) {
            int64_t at = a.first + i / a.cols * a.ld + i % a.cols;
            double *arrays[] = {a.w->p_kept, a.w->m, a.w->v, a.w->g};

            for (int j = 0; j < 4; j++) {
                double want = j < 3 || gradients ? number_of(&t, j, i) : 0;

                if (fill)
                    arrays[j][at] = want;
                wrong += arrays[j][at] < want || arrays[j][at] > want;
            }
        }
    }
    return wrong;
}

static void fill_first(void)
{
    start s;
    int64_t missing = -1;

    CHECK_INT(begin(&s, 1, &missing), EK_OK);
    CHECK_INT(s.found.decision.generation, -1);
    CHECK_INT(ek_recover_commit(&s.found, (ek_rank_state *[]){&s.state}, 1), EK_OK);
    CHECK_INT(each_number(&s, 1, 1), 0);
    ek_journal_reduced(&s.state.journal, STEPS); /* gradients are reduced */
    end(&s);
}

/* A start that is killed before its commit. */
static void leave_uncommitted(int32_t generation)
{
    start s;
    int64_t missing = -1;

    CHECK_INT(begin(&s, 1, &missing), EK_OK);
    CHECK_INT(s.found.decision.generation, 0);
    CHECK_INT(s.found.generation, generation);
    CHECK_INT(missing, -1);
    CHECK_INT(each_number(&s, 0, 1),
              0); /* the next generation may have to finish the step with them */
    ek_segment_set_phase(&s.state.segment,
                         generation == 1 ? EK_SEGMENT_BUILDING : EK_SEGMENT_FILLED);
    end(&s);
}

static void go_on(int32_t spare_slots)
{
    start s;
    ek_segment_id *ids = NULL;
    int64_t missing = -1, n = 0;

    CHECK_INT(begin(&s, spare_slots, &missing), EK_OK);
    CHECK_INT(s.found.decision.steps_done, STEPS);
    CHECK_INT(missing, -1);
    CHECK(s.found.bytes.adopted > 0);
    CHECK_INT(s.found.bytes.copied, 0);
    CHECK_INT(s.found.bytes.received, 0);
    CHECK_INT(ek_recover_commit(&s.found, (ek_rank_state *[]){&s.state}, 1), EK_OK);
    CHECK_INT(each_number(&s, 0, 0), 0);
    CHECK_INT(ek_segment_list(run_of_test(), &ids, &n), EK_OK);
    CHECK_INT(n, 1);
    free(ids);
    end(&s);
}

static void starts_after_one_another(void)
{
    start s;
    int64_t missing;

    fill_first();
    leave_uncommitted(1);
    leave_uncommitted(2);
    go_on(1);
    go_on(3); /* more slots: another total size, the same block sizes */
    go_on(0);
    CHECK_INT(begin(&s, 1, &missing), EK_OK);
    CHECK_INT(ek_recover_commit(&s.found, (ek_rank_state *[]){&s.state}, 1), EK_OK);
    CHECK_INT(ek_segment_remove(&s.state.id), EK_OK);
    end(&s);
}

static void number_is_above_those_found_and_at_least_the_first(void)
{
    static const struct {
        int32_t first, number;
    } starts[] = {{5, 5}, {5, 6}, {9, 9}, {0, 10}};
    int64_t missing;
    start s;

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        first_generation = starts[i].first;
        CHECK_INT(begin(&s, 1, &missing), EK_OK);
        CHECK_INT(s.found.generation, starts[i].number);
        CHECK_INT(ek_recover_commit(&s.found, (ek_rank_state *[]){&s.state}, 1), EK_OK);
        end(&s);
    }
    CHECK_INT(ek_segment_remove(&s.state.id), EK_OK);
    first_generation = 0;
}

static const ek_case cases[] = {
    EK_CASE(starts_after_one_another),
    EK_CASE(number_is_above_those_found_and_at_least_the_first),
};

EK_TEST_MAIN(cases)
