/* The resumable optimizer update: the same bits as the plain one for any number of lanes, from any
 * state that base/undo_log.h allows, and in processes that are killed. */
#include "base/random.h"
#include "base/undo_log.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { ARRAYS = EK_UNDO_ARRAYS, BLOCK = EK_UNDO_BLOCK, LANES = 7, LARGE = 1 << 20 };
/* At least so many rounds, and more where the processes end before they are killed, as on a busy
 * machine: until so many were killed during the update. */
enum { ROUNDS = 60, ROUNDS_MAX = 40 * ROUNDS, HITS = 10 };

static const ek_adamw by = {0.1, 0.2, 0.9, 0.95, 1e-8, 0.4, 0.2, 0.7};

/* Master weights, gradients and moments, n elements each. */
static void fill(const ek_kernels *k, int64_t n, void *const a[ARRAYS])
{
    for (int j = 0; j < ARRAYS; j++)
        for (int64_t i = 0; i < n; i++) {
            double x = ek_random_uniform(1, (uint64_t)j, (uint64_t)i) - (j == 3 ? 0 : 0.5);

            if (k->real == EK_F64)
                ((double *)a[j])[i] = x;
            else
                ((float *)a[j])[i] = (float)x;
        }
}

static void *memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

static void alloc_array(void *a[ARRAYS], int64_t n)
{
    for (int j = 0; j < ARRAYS; j++)
        a[j] = memory((size_t)n * sizeof(double));
}

static void free_array(void *a[ARRAYS], int64_t n)
{
    for (int j = 0; j < ARRAYS; j++)
        munmap(a[j], (size_t)n * sizeof(double));
}

static int same(const ek_kernels *k, int64_t n, void *const a[ARRAYS], void *const b[ARRAYS])
{
    int is = 1;

    for (int j = 0; j < ARRAYS; j++)
        is &= memcmp(a[j], b[j], (size_t)n * ek_dtype_size(k->real)) == 0;
    return is;
}

/* Creates a state of an interrupted lane: `done` elements are updated, the next block's copy in the
 * undo log is complete, and the block is partly written. */
static void break_off(const ek_kernels *k, ek_undo_log *t, int64_t done, int64_t own,
                      void *const from[ARRAYS], void *const a[ARRAYS])
{
    size_t real = ek_dtype_size(k->real), n = (size_t)(own - done < BLOCK ? own - done : BLOCK);

    k->adamw(&by, done, a[0], a[1], a[2], a[3]);
    memset(t->kept, 0x7f, sizeof(t->kept));
    ek_undo_mark(t, done + (int64_t)n);
    for (int j = 0; j < ARRAYS; j++) {
        memcpy(ek_undo_copy(t, done, j), (char *)from[j] + (size_t)done * real, n * real);
        memset((char *)a[j] + (size_t)done * real, 0x55, n * real);
    }
}

/* The undo log of a finished lane holds the last block's old values. */
static void check_undo_log(const ek_kernels *k, ek_undo_log *t, int64_t at, int64_t end,
                           void *const first[ARRAYS])
{
    size_t real = ek_dtype_size(k->real);
    int64_t last = end > at ? (end - at - 1) / BLOCK * BLOCK : 0;

    CHECK_INT(t->at, end - at);
    for (int j = 0; j < ARRAYS; j++)
        CHECK(memcmp(ek_undo_copy(t, last, j), (char *)first[j] + (size_t)(at + last) * real,
                     (size_t)(end - at - last) * real) == 0);
}

/* Lanes interrupted after a random number of elements each, drawn by seed. */
static void from_anywhere(const ek_kernels *k, int64_t n, int lanes, uint64_t seed,
                          void *const first[ARRAYS], void *const want[ARRAYS],
                          void *const a[ARRAYS])
{
    size_t real = ek_dtype_size(k->real);
    ek_undo_log undo_logs[LANES];

    memset(undo_logs, 0, sizeof(undo_logs));
    for (int j = 0; j < ARRAYS; j++)
        memcpy(a[j], first[j], (size_t)n * real);
    for (int lane = 0; lane < lanes && seed > 0; lane++) {
        int64_t at = ek_undo_lane_first(n, lanes, lane),
                own = ek_undo_lane_first(n, lanes, lane + 1) - at;
        int64_t blocks = (own + BLOCK - 1) / BLOCK;
        int64_t now = (int64_t)(ek_random_bits(seed, 0, (uint64_t)lane) % (uint64_t)(blocks + 1));
        void *was[ARRAYS], *is[ARRAYS];

        for (int j = 0; j < ARRAYS; j++) {
            was[j] = (char *)first[j] + (size_t)at * real;
            is[j] = (char *)a[j] + (size_t)at * real;
        }
        if (now > 0)
            break_off(k, &undo_logs[lane], (now - 1) * BLOCK, own, was, is);
    }
    k->adamw_resumable(&by, n, a[0], a[1], a[2], a[3], lanes, undo_logs);
    CHECK(same(k, n, a, want));
    for (int lane = 0; lane < lanes; lane++)
        check_undo_log(k, &undo_logs[lane], ek_undo_lane_first(n, lanes, lane),
                       ek_undo_lane_first(n, lanes, lane + 1), first);
}

static void each_size(const ek_kernels *k)
{
    static const int64_t sizes[] = {1, 31, 32, 33, 100, 777, 5000, 40001};
    void *first[ARRAYS], *want[ARRAYS], *a[ARRAYS];

    alloc_array(first, LARGE);
    alloc_array(want, LARGE);
    alloc_array(a, LARGE);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        fill(k, sizes[i], first);
        fill(k, sizes[i], want);
        k->adamw(&by, sizes[i], want[0], want[1], want[2], want[3]);
        CHECK(!same(k, sizes[i], first, want));
        for (int lanes = 1; lanes <= LANES; lanes++)
            for (uint64_t seed = 0; seed < 12; seed++)
                from_anywhere(k, sizes[i], lanes, seed, first, want, a);
    }
    free_array(first, LARGE);
    free_array(want, LARGE);
    free_array(a, LARGE);
}

/* Each kernel table of this CPU. */
static void each_table(void (*check)(const ek_kernels *k), int threads)
{
    char before[64] = "";

    for (int mode = EK_MODE_FP64; mode <= EK_MODE_FP32; mode++)
        for (int isa = EK_ISA_REF; isa <= (int)(mode == EK_MODE_FP64 ? EK_ISA_REF : ek_cpu_isa());
             isa++) {
            ek_kernels *k = NULL;

            CHECK_INT(ek_kernels_create((ek_mode)mode, (ek_isa)isa, threads, &k), EK_OK);
            if (k != NULL && strcmp(k->name, before) != 0) { /* some differ in products alone */
                snprintf(before, sizeof(before), "%s", k->name);
                check(k);
            }
            ek_kernels_destroy(&k);
        }
}

/* --- killed: all kernels run in child processes, as a team does not survive fork -------------- */

/* Creating a table with several threads starts the team, so each child creates its own. */
static void enter_own(const ek_kernels *like)
{
    ek_kernels *own = NULL;

    for (int mode = EK_MODE_FP64; mode <= EK_MODE_FP32; mode++)
        for (int isa = EK_ISA_REF; isa <= (int)ek_cpu_isa(); isa++) {
            if (ek_kernels_create((ek_mode)mode, (ek_isa)isa, 2, &own) < 0)
                _exit(1);
            if (strcmp(own->name, like->name) == 0) {
                ek_kernels_enter(own);
                return;
            }
            ek_kernels_destroy(&own);
        }
    _exit(1);
}

typedef struct {
    const ek_kernels *k;
    int lanes;
    ek_undo_log *undo_logs;
    void *a[ARRAYS];
} work;

static pid_t start(const work *w, int plain)
{
    pid_t child = fork();

    if (child == 0) {
        nice(5); /* so that the parent sees it under way */
        enter_own(w->k);
        if (plain)
            w->k->adamw(&by, LARGE, w->a[0], w->a[1], w->a[2], w->a[3]);
        else
            w->k->adamw_resumable(&by, LARGE, w->a[0], w->a[1], w->a[2], w->a[3], w->lanes,
                                  w->undo_logs);
        _exit(0);
    }
    CHECK(child > 0);
    return child;
}

static void end(pid_t child)
{
    int status = -1;

    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

/* Kills a child once a lane has updated so many elements, or lets it finish. */
static void kill_at(pid_t child, const work *w, int lane, int64_t at)
{
    while (w->undo_logs[lane].at < at) {
        if (waitpid(child, NULL, WNOHANG) == child)
            return;
        sched_yield();
    }
    kill(child, SIGKILL);
    CHECK_INT(waitpid(child, NULL, 0), child);
}

/* Whether a lane is neither at its beginning nor at its end. */
static int is_under_way(const work *w)
{
    int is = 0;

    for (int lane = 0; lane < w->lanes; lane++) {
        int64_t own = ek_undo_lane_first(LARGE, w->lanes, lane + 1) -
                      ek_undo_lane_first(LARGE, w->lanes, lane);

        is |= w->undo_logs[lane].at > 0 && w->undo_logs[lane].at < own;
    }
    return is;
}

static void copy(const ek_kernels *k, void *const to[ARRAYS], void *const from[ARRAYS])
{
    for (int j = 0; j < ARRAYS; j++)
        memcpy(to[j], from[j], LARGE * ek_dtype_size(k->real));
}

static void kill_and_resume(const ek_kernels *k)
{
    work w = {.k = k, .lanes = 2, .undo_logs = memory(2 * sizeof(ek_undo_log))}, truth = {.k = k};
    void *first[ARRAYS];
    int rounds = 0, hits = 0;

    alloc_array(w.a, LARGE);
    alloc_array(truth.a, LARGE);
    alloc_array(first, LARGE);
    fill(k, LARGE, first);
    copy(k, truth.a, first);
    end(start(&truth, 1));
    for (; rounds < ROUNDS || (hits < HITS && rounds < ROUNDS_MAX); rounds++) {
        copy(k, w.a, first);
        memset(w.undo_logs, 0, 2 * sizeof(ek_undo_log));
        for (uint64_t again = 0; again < 2; again++)
            kill_at(start(&w, 0), &w, (int)again,
                    (int64_t)(ek_random_bits(9, again, (uint64_t)rounds) % (LARGE / 2)) + 1);
        hits += is_under_way(&w);
        end(start(&w, 0));
        CHECK(same(k, LARGE, w.a, truth.a));
    }
    printf("%s: %d of %d were under way\n", k->name, hits, rounds);
    CHECK(hits >= HITS);
    free_array(w.a, LARGE);
    free_array(truth.a, LARGE);
    free_array(first, LARGE);
    munmap(w.undo_logs, 2 * sizeof(ek_undo_log));
}

static void killed_at_any_instant(void)
{
    each_table(kill_and_resume, 1);
}

static void same_bits_from_anywhere(void)
{
    each_table(each_size, 2);
}

static const ek_case cases[] = {EK_CASE(killed_at_any_instant), EK_CASE(same_bits_from_anywhere)};

EK_TEST_MAIN(cases)
