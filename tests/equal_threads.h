/* equal_threads.h - trains a layout on ranks that are threads, and compares it with one rank. */
#ifndef EQUAL_THREADS_H
#define EQUAL_THREADS_H

#include "equal_cases.h"

typedef struct {
    ek_comm *world;
    const equal_layout *layout;
    const equal_leg *leg;
    equal_result *result;
    ek_status status;
    char text[512];
    pthread_t thread;
} equal_rank;

static inline void *equal_rank_main(void *arg)
{
    equal_rank *r = arg;

    r->status = equal_train(r->world, r->layout, r->leg, r->result);
    if (r->status < 0)
        snprintf(r->text, sizeof(r->text), "%s", ek_err_text());
    return NULL;
}

/* Takes the steps of a leg.  result [ranks]. */
static inline void equal_run_leg(const equal_layout *l, const equal_leg *leg, equal_result *result)
{
    equal_rank r[EQUAL_RANKS_MAX];
    ek_comm *world[EQUAL_RANKS_MAX];

    CHECK(ek_comm_open_threads(l->ranks, world) == EK_OK);
    for (int i = 0; i < l->ranks; i++) {
        equal_set_nodes(world[i], l);
        r[i] = (equal_rank){.world = world[i], .layout = l, .leg = leg, .result = &result[i]};
        CHECK(pthread_create(&r[i].thread, NULL, equal_rank_main, &r[i]) == 0);
    }
    for (int i = 0; i < l->ranks; i++)
        CHECK(pthread_join(r[i].thread, NULL) == 0);
    for (int i = 0; i < l->ranks; i++) {
        if (r[i].status < 0)
            EK_T_FAIL("%s: rank %d: %s", equal_text(l), i, r[i].text);
        ek_comm_close(&world[i]);
    }
}

/* The same, and compares every rank's losses with those of one rank alone. */
static inline void equal_compare_leg_into(const equal_layout *l, const equal_leg *leg,
                                          equal_result *result)
{
    equal_alone(l);
    equal_run_leg(l, leg, result);
    for (int i = 0; i < l->ranks; i++)
        if (result[i].done)
            equal_compare(l, leg, &result[i]);
}

/* The same, and what they hold and send together. */
static inline void equal_check_leg_into(const equal_layout *l, const equal_leg *leg,
                                        equal_result *result)
{
    int before = ek_t.failed;

    equal_compare_leg_into(l, leg, result);
    if (ek_t.failed == before)
        equal_shares(l, result);
}

static inline void equal_check_leg(const equal_layout *l, const equal_leg *leg)
{
    static equal_result result[EQUAL_RANKS_MAX];

    equal_check_leg_into(l, leg, result);
}

static inline void equal_check_into(const equal_layout *l, equal_result *result)
{
    equal_leg leg = equal_whole(l);

    equal_check_leg_into(l, &leg, result);
}

static inline void equal_check(const equal_layout *l)
{
    equal_leg leg = equal_whole(l);

    equal_check_leg(l, &leg);
}

/* A number from the environment. */
static inline int equal_number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}

/* Layouts are slow, those with sanitizers more so: a build takes a fifth of what is drawn, one
 * with sanitizers a seventh, others; EK_TEST_ALL takes all.  Neither number has a divisor in common
 * with the number of models, so that every model has its turn. */
static inline int equal_takes(int ranks, int i)
{
    int turn = i + ranks / 2; /* models have turns as well */

    if (equal_number("EK_TEST_ALL", 0))
        return 1;
    return EK_T_SLOW ? turn % 7 == 1 : turn % 5 == 0;
}

/* Checks `count` layouts of `ranks` ranks, drawn by EK_TEST_SEED (1) and changed by `change`, which
 * may be NULL; with EK_TEST_ONLY=i the i-th alone, which is printed. */
static inline void equal_check_drawn(int ranks, int count,
                                     equal_layout (*change)(equal_layout l, int i))
{
    uint64_t seed = (uint64_t)equal_number("EK_TEST_SEED", 1);
    int only = equal_number("EK_TEST_ONLY", -1);

    for (int i = 0; i < count; i++)
        if (only < 0 ? equal_takes(ranks, i) : only == i) {
            equal_layout l = equal_draw(seed, ranks, i);

            if (change != NULL)
                l = change(l, i);
            if (only == i)
                fprintf(stderr, "%s\n", equal_text(&l));
            equal_check(&l);
        }
}

/* `a` saves before step `at`, in the background of a few more steps; `b`, of the same model, shape
 * and mode, loads the checkpoint and takes the remaining steps. */
static inline void equal_check_pair(const equal_layout *a, const equal_layout *b, int at)
{
    char dir[] = "/tmp/ek_t_equal_XXXXXX";
    int last = equal_steps_of(a->mode), before = ek_t.failed;
    equal_leg first = {.to = at + 3 < last ? at + 3 : last, .save_at = at, .background = at % 2};
    equal_leg second = {.from = at, .to = last, .save_at = -1};
    ek_model_spec spec;
    kept_record record;

    equal_spec(a->model, &spec);
    kept_open(&record, &spec);
    CHECK(mkdtemp(dir) != NULL);
    first.dir = second.dir = dir;
    first.record = second.record = &record;
    equal_check_leg(a, &first);
    if (record.differ > 0 || kept_missing(&record) > 0)
        EK_T_FAIL("%s: ranks differ in %lld numbers (%s), and keep none of %lld", equal_text(a),
                  (long long)record.differ, record.where, (long long)kept_missing(&record));
    if (ek_t.failed == before) {
        kept_turn(&record);
        equal_check_leg(b, &second);
        if (record.differ > 0 || kept_missing(&record) > 0)
            EK_T_FAIL("%s: %lld numbers were not loaded as saved (%s), and none of %lld",
                      equal_text(b), (long long)record.differ, record.where,
                      (long long)kept_missing(&record));
    }
    if (ek_t.failed > before)
        fprintf(stderr, "  saved before step %d by %s\n", at, equal_text(a));
    CHECK(ek_folder_remove(NULL, dir) == EK_OK);
    kept_close(&record);
}

/* Two layouts of the same model, shape and mode. */
static inline void equal_check_drawn_pair(uint64_t seed, int ranks, int other, int i)
{
    equal_layout a = equal_draw(seed, ranks, i), b;

    for (int j = i;; j += 1000) {
        b = equal_draw(seed + 1, other, j);
        b.model = a.model;
        b.shape = a.shape;
        b.mode = a.mode;
        if (equal_legal(&b))
            break;
    }
    equal_check_pair(&a, &b,
                     1 + (int)(ek_random_bits(seed, 3, (uint64_t)i) %
                               (uint64_t)(equal_steps_of(a.mode) * 4 / 5)));
}

#endif
