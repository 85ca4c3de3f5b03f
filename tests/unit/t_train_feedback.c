/* A step of a model with router biases that is killed at chosen points of its update: another
 * process finishes or repeats it, and all weights, moments and biases have the bits of a run that
 * was not killed.  Each start is a process. */
#include "base/random.h"
#include "ek_test.h"
#include "model/hf/init.h"
#include "model/param_buckets.h"
#include "recover/recover.h"
#include "small_spec.h"
#include "tensor/select/select.h"
#include "train/trainer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { STEPS = 6, KILLED_STEP = 3, BATCH = 2, SEQ = 8, NUMBERS_MAX = 1 << 14 };

typedef enum {
    NOWHERE,
    BEFORE_UPDATE, /* the step is repeated */
    AMID_WEIGHTS,  /* after half of the weights */
    BETWEEN,       /* after all weights, before the first bias */
    AT_FIRST_BIAS, /* its update has begun */
    AT_SECOND_BIAS /* that of the first layer is updated */
} point;

/* What the processes tell the test. */
typedef struct {
    double loss[STEPS];
    double numbers[3][NUMBERS_MAX]; /* weights and moments after the last step */
    int64_t n;
    double biases[2][7];
    int64_t done_before; /* steps done when the process started, after finishing one */
    int64_t finished;    /* ranks that had to finish a step, */
    int64_t by_adamw;    /* and extents for which AdamW was called then */
} report;

static report *told;

/* The start that runs in this process. */
static struct {
    ek_kernels *k;
    ek_recovery found;
    ek_rank_state state;
    ek_model *m;
    ek_trainer *tr;
    void (*adamw)(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v, int lanes,
                  struct ek_undo_log *undo_logs);
    void (*sum_squares)(const ek_kernels *k, int64_t count, const int64_t *n, const void *const *g,
                        double *sums);
    point at;      /* the point of the step under way at which it dies */
    int64_t calls; /* of AdamW in the step */
} now;

static void die(int signal)
{
    (void)signal;
    kill(getpid(), SIGKILL);
}

/* A write to these bytes ends the process, as a kill at this instant does. */
static void forbid(const void *first, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)first / page * page, end = (uintptr_t)first + bytes;

    if (mprotect((void *)from, (end - from + page - 1) / page * page, PROT_READ) != 0)
        _exit(2);
}

static ek_weight *bias_of(int layer)
{
    return &now.m->layers[layer].experts.bias;
}

static void adamw(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v, int lanes,
                  struct ek_undo_log *undo_logs)
{
    int64_t all = now.m != NULL ? now.state.extents_of[now.m->buckets->n] : 0;

    now.adamw(h, n, p, g, m, v, lanes, undo_logs);
    now.calls++;
    if (now.at == AMID_WEIGHTS && now.calls == all / 2)
        die(0);
    if (now.at == BETWEEN && now.calls == all)
        forbid(now.state.journal.undo_logs, sizeof(*undo_logs)); /* the next extent begins there */
    if ((now.at == AT_FIRST_BIAS || now.at == AT_SECOND_BIAS) && now.calls == all)
        forbid(bias_of(now.at == AT_SECOND_BIAS)->p, 7 * sizeof(double));
}

static void sum_squares(const ek_kernels *k, int64_t count, const int64_t *n, const void *const *g,
                        double *sums)
{
    if (now.at == BEFORE_UPDATE)
        die(0);
    now.sum_squares(k, count, n, g, sums);
}

static ek_status open_kernels(void)
{
    EK_TRY(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &now.k));
    now.adamw = now.k->adamw_resumable;
    now.sum_squares = now.k->sum_squares_each;
    now.k->adamw_resumable = adamw;
    now.k->sum_squares_each = sum_squares;
    return EK_OK;
}

/* Finds the state of the start before, if there is one, or begins anew. */
static ek_status begin(uint64_t run)
{
    ek_model_spec spec = small_spec();
    ek_model_config mc = {.trained = 1};
    int32_t missing = -1;
    ek_segment_id id;

    spec.gate.kind = EK_GATE_SIGMOID_BIAS;
    spec.gate.bias_rate = 0.01;
    EK_TRY(open_kernels());
    EK_TRY(ek_recover_find(&now.found, NULL, run, 0, 0,
                           &(ek_recover_update){.rule = ek_optimizer_rule(now.k),
                                                .record_bytes = sizeof(ek_step_record),
                                                .real_bytes = sizeof(double)}));
    told->finished = now.found.finished;
    told->by_adamw = now.calls;
    told->done_before = now.found.decision.steps_done;
    id = (ek_segment_id){run, now.found.generation, 0};
    ek_state_reserve(&now.state, &id, 1, 7, 0, "/t_train_feedback");
    mc.state = &now.state.memory;
    EK_TRY(ek_model_create(&spec, now.k, &mc, &now.m));
    EK_TRY(ek_state_start(&now.state, now.m, told->done_before));
    if (now.found.decision.generation >= 0) {
        EK_TRY(ek_recover_read_tables(&now.found));
        return ek_recover_load(&now.found, &now.state, &missing);
    }
    EK_TRY(ek_state_create_blocks(&now.state));
    return ek_model_init(now.m, 1);
}

static ek_status take_steps(point at)
{
    ek_trainer_config cfg = {
        .batch = BATCH,
        .seq = SEQ,
        .micro_batch = 1,
        .optimizer = {
            .lr = 0.01, .steps = STEPS, .decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
    ek_step_result r;

    EK_TRY(ek_model_pack(now.m));
    EK_TRY(ek_trainer_create(now.m, &cfg, &now.tr));
    ek_trainer_resume(now.tr, told->done_before);
    ek_trainer_set_journal(now.tr, &now.state.journal, now.state.extents_of);
    EK_TRY(ek_recover_commit(&now.found, (ek_rank_state *[]){&now.state}, 1));
    for (int64_t step = told->done_before; step < STEPS; step++) {
        for (uint64_t i = 0; i < BATCH * SEQ; i++) {
            ek_trainer_inputs(now.tr)[i] = (int32_t)(ek_random_bits((uint64_t)step, 1, i) % 16);
            ek_trainer_targets(now.tr)[i] = (int32_t)(ek_random_bits((uint64_t)step, 2, i) % 16);
        }
        now.at = step == KILLED_STEP ? at : NOWHERE;
        now.calls = 0;
        EK_TRY(ek_trainer_step(now.tr, &r));
        told->loss[step] = r.losses.loss;
    }
    return EK_OK;
}

static void tell_numbers(void)
{
    told->n = 0;
    for (int64_t i = 0; i < now.m->n_params; i++) {
        const ek_weight *w = now.m->params[i].w;
        const void *arrays[] = {w->p_kept, w->m, w->v};

        for (int j = 0; j < 3; j++)
            memcpy(&told->numbers[j][told->n], arrays[j], (size_t)w->kept * sizeof(double));
        told->n += w->kept;
    }
    for (int l = 0; l < 2; l++)
        memcpy(told->biases[l], bias_of(l)->p, sizeof(told->biases[l]));
}

static void close_all(void)
{
    ek_segment_id id = now.state.id;

    ek_trainer_destroy(&now.tr);
    ek_recover_close(&now.found);
    ek_state_close(&now.state);
    ek_model_destroy(&now.m);
    ek_kernels_destroy(&now.k);
    if (ek_segment_remove(&id) < 0)
        _exit(3);
}

/* One start, in a process of its own; whether it was killed. */
static int start(uint64_t run, point at)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGSEGV, die);
        if (begin(run) < 0 || take_steps(at) < 0) {
            fprintf(stderr, "%s\n", ek_err_text());
            _exit(1);
        }
        tell_numbers();
        close_all();
        exit(0);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static report *shared_report(void)
{
    void *p = mmap(NULL, sizeof(report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

static void biases_moved(const report *whole)
{
    for (int l = 0; l < 2; l++) {
        int moved = 0;

        for (int e = 0; e < 7; e++)
            moved += fabs(whole->biases[l][e]) > 0.005;
        CHECK(moved > 0);
    }
}

/* Kills a run at a point and starts it again.  finishes: the second start has to finish the step,
 * with so many extents left for AdamW (-1: some). */
static void kill_at(uint64_t run, point at, const report *whole, int finishes, int64_t by_adamw)
{
    memset(told, 0, sizeof(*told));
    CHECK_INT(start(run, at), 1);
    CHECK_INT(start(run, NOWHERE), 0);
    CHECK_INT(told->finished, finishes);
    CHECK_INT(told->done_before, KILLED_STEP + finishes);
    if (by_adamw >= 0)
        CHECK_INT(told->by_adamw, by_adamw);
    else
        CHECK(told->by_adamw > 0);
    for (int64_t i = finishes ? KILLED_STEP + 1 : KILLED_STEP; i < STEPS; i++)
        CHECK(memcmp(&told->loss[i], &whole->loss[i], sizeof(double)) == 0);
    CHECK_INT(told->n, whole->n);
    CHECK(memcmp(told->numbers, whole->numbers, sizeof(told->numbers)) == 0);
    CHECK(memcmp(told->biases, whole->biases, sizeof(told->biases)) == 0);
}

static void killed_at_any_point_of_the_update(void)
{
    char out[64];
    report *whole;
    uint64_t run;

    snprintf(out, sizeof(out), "/t_train_feedback/%d", (int)getpid());
    run = ek_run_id(out);
    whole = told = shared_report();
    CHECK_INT(start(run, NOWHERE), 0);
    CHECK_INT(whole->finished, 0);
    CHECK(whole->n > 0 && whole->n <= NUMBERS_MAX);
    biases_moved(whole);
    told = shared_report();
    kill_at(run, BEFORE_UPDATE, whole, 0, 0);
    kill_at(run, AMID_WEIGHTS, whole, 1, -1);
    kill_at(run, BETWEEN, whole, 1, 0);
    kill_at(run, AT_FIRST_BIAS, whole, 1, 0);
    kill_at(run, AT_SECOND_BIAS, whole, 1, 0);
    munmap(told, sizeof(*told));
    munmap(whole, sizeof(*whole));
}

/* --- the rule alone --------------------------------------------------------------------------- */

enum { MANY = 170, LANES = 3 };

/* Writes number i, of the kernels' type. */
static void set(const ek_kernels *k, void *array, int64_t i, double to)
{
    if (k->real == EK_F64)
        ((double *)array)[i] = to;
    else
        ((float *)array)[i] = (float)to;
}

/* The four arrays before the update, or after it. */
static void fill(const ek_kernels *k, double a[EK_JOURNAL_ARRAYS][MANY], int after)
{
    for (int64_t i = 0; i < MANY; i++) {
        double p = ek_random_uniform(1, 0, (uint64_t)i), g = 0.01 * (double)(i % 3 - 1);

        set(k, a[0], i, p);
        if (after && k->real == EK_F64)
            a[0][i] += g;
        else if (after)
            ((float *)a[0])[i] += (float)g;
        set(k, a[1], i, after ? 0 : g);
        set(k, a[2], i, 0.5);
        set(k, a[3], i, 0.25);
    }
}

/* A lane that was killed after `done` numbers: the next block is logged, and partly written. */
static void break_off(size_t real, ek_undo_log *log, char *const a[EK_JOURNAL_ARRAYS], int64_t own,
                      int64_t done, char *const after[EK_JOURNAL_ARRAYS])
{
    size_t n = (size_t)(own - done < EK_UNDO_BLOCK ? own - done : EK_UNDO_BLOCK) * real;

    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++) {
        memcpy(a[j], after[j], (size_t)done * real);
        memcpy(ek_undo_copy(log, done, j), a[j] + (size_t)done * real, n);
        memset(a[j] + (size_t)done * real, 0x55, n / 2);
    }
    ek_undo_mark(log, done + (int64_t)(n / real));
}

static void feedback_continues_in(ek_mode mode)
{
    static double a[EK_JOURNAL_ARRAYS][MANY], want[EK_JOURNAL_ARRAYS][MANY];
    static ek_undo_log logs[LANES];
    const ek_journal_extent extent = {.n = MANY, .kind = EK_EXTENT_FEEDBACK};
    ek_kernels *k = NULL;
    ek_journal_rule rule;
    size_t real;

    CHECK_INT(ek_kernels_create(mode, EK_ISA_REF, 1, &k), EK_OK);
    rule = ek_optimizer_rule(k);
    real = ek_dtype_size(k->real);
    for (int64_t blocks = -1; blocks < 2; blocks++) { /* -1: nothing had begun */
        memset(a, 0, sizeof(a));
        memset(want, 0, sizeof(want));
        memset(logs, 0, sizeof(logs));
        fill(k, a, 0);
        fill(k, want, 1);
        for (int lane = 0; lane < LANES && blocks >= 0; lane++) {
            int64_t at = ek_undo_lane_first(MANY, LANES, lane);
            int64_t own = ek_undo_lane_first(MANY, LANES, lane + 1) - at;
            char *is[EK_JOURNAL_ARRAYS], *then[EK_JOURNAL_ARRAYS];

            for (int j = 0; j < EK_JOURNAL_ARRAYS; j++) {
                is[j] = (char *)a[j] + (size_t)at * real;
                then[j] = (char *)want[j] + (size_t)at * real;
            }
            CHECK(own > blocks * EK_UNDO_BLOCK);
            break_off(real, &logs[lane], is, own, blocks * EK_UNDO_BLOCK, then);
        }
        rule.fn(rule.context, NULL, &extent, (void *const[]){a[0], a[1], a[2], a[3]}, LANES, logs);
        CHECK(memcmp(a, want, sizeof(a)) == 0);
    }
    ek_kernels_destroy(&k);
}

static void feedback_continues_where_it_was_killed(void)
{
    feedback_continues_in(EK_MODE_FP64);
    feedback_continues_in(EK_MODE_FP32);
}

static const ek_case cases[] = {EK_CASE(killed_at_any_point_of_the_update),
                                EK_CASE(feedback_continues_where_it_was_killed)};

EK_TEST_MAIN(cases)
