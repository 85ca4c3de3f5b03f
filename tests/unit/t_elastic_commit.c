/* Ranks are processes with their state in segments.  All are killed at random instants, as by
 * mpiexec; recovery continues from the surviving state, bit for bit as without the kill.  A host
 * may be lost as well, and a process that finishes a step may be killed, too. */
#include "base/clock.h"
#include "elastic/recovery_decision.h"
#include "journal_fixture.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { RANKS = 3, KILLS = 120, KILLS_MOST = 3000 };

/* State shared by the ranks of a generation and lost with it, like a network. */
typedef struct {
    _Atomic int64_t arrived;
    _Atomic int64_t done[RANKS]; /* steps, by rank */
} together;

static together *with;

/* A barrier; blocks forever if a rank is gone. */
static void barrier(void)
{
    int64_t ticket = atomic_fetch_add(&with->arrived, 1) / RANKS;

    while (atomic_load(&with->arrived) < (ticket + 1) * RANKS)
        sched_yield();
}

static const ek_journal_rule rule = {toy_update, NULL};

static void train(ek_segment *s, int rank)
{
    ek_journal l;

    if (ek_journal_open(s->body, s->body_bytes, &l) < 0)
        _exit(1);
    for (int64_t step = ek_journal_look(&l).steps_done;; step++) {
        toy_record by = toy_record_of(step);

        toy_backward(&l, rank, step);
        ek_journal_reduced(&l, step);
        barrier();
        ek_journal_record(&l, step, &by, sizeof(by));
        ek_journal_update(&l, &rule, 0, EXTENTS);
        atomic_store(&with->done[rank], step + 1);
    }
}

/* Kills processes one after the other after some microseconds. */
static void run_and_kill(const pid_t *child, int n, int64_t us, int first)
{
    struct timespec t = {0, us * 1000};

    nanosleep(&t, NULL);
    for (int i = 0; i < n; i++)
        kill(child[(first + i) % n], SIGKILL);
    for (int i = 0; i < n; i++)
        CHECK_INT(waitpid(child[i], NULL, 0), child[i]);
}

static void start_ranks(ek_segment *s, pid_t *child)
{
    atomic_store(&with->arrived, 0);
    for (int r = 0; r < RANKS; r++) {
        child[r] = fork();
        if (child[r] == 0)
            train(&s[r], r);
        CHECK(child[r] > 0);
    }
}

/* A new generation's segments, with the state of `truth`. */
static void make_generation(uint64_t extent, int32_t generation, toy_truth *truth, ek_segment *s)
{
    ek_journal_extent runs[EXTENTS];
    ek_journal l;

    for (int r = 0; r < RANKS; r++) {
        ek_segment_id id = {extent, generation, r};

        CHECK_INT(
            ek_segment_create(&id, RANKS, 0, "/t_elastic_commit", toy_bytes(), NULL, 0, &s[r]),
            EK_OK);
        toy_runs(runs);
        CHECK_INT(ek_journal_create(s[r].body, s[r].body_bytes, runs, EXTENTS, LANES, sizeof(float),
                                    truth[r].steps_done, &l),
                  EK_OK);
        for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
            for (int i = 0; i < EXTENTS && j != 1; i++)
                memcpy(toy_array(&l, i, j), truth[r].at[j][i],
                       (size_t)numbers_of[i] * sizeof(float));
        ek_segment_set_phase(&s[r], EK_SEGMENT_FILLED);
    }
    for (int r = 0; r < RANKS; r++)
        ek_segment_set_phase(&s[r], EK_SEGMENT_READY);
}

static void remove_segments(uint64_t extent)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0;

    CHECK_INT(ek_segment_list(extent, &ids, &n), EK_OK);
    for (int64_t i = 0; i < n; i++)
        CHECK_INT(ek_segment_remove(&ids[i]), EK_OK);
    free(ids);
}

/* Statistics of the failures. */
static struct {
    int finished, undone, redone, interrupted;
} seen;

/* Finishes a step in a process that is killed after some microseconds; 0: not killed. */
static void finish(ek_segment *s, int64_t step, const void *record, int64_t us)
{
    ek_journal l;
    pid_t child = fork();

    if (child == 0)
        _exit(ek_journal_open(s->body, s->body_bytes, &l) < 0 ||
              ek_journal_finish(&l, &rule, step, record) < 0);
    if (us > 0)
        run_and_kill(&child, 1, us, 0);
    else
        CHECK(waitpid(child, NULL, 0) == child);
}

static void finish_all(ek_segment *s, const int *rank, const ek_recovery_decision *v,
                       const ek_survivor_role *role, uint64_t seed)
{
    int64_t step = v->steps_done - 1;
    ek_journal l;

    for (int i = 0; i < RANKS - 1; i++) {
        toy_record by;

        if (role[i] != EK_SURVIVOR_FINISH)
            continue;
        CHECK_INT(ek_journal_open(s[rank[v->record]].body, s->body_bytes, &l), EK_OK);
        memcpy(&by, ek_journal_recorded(&l), sizeof(by));
        finish(&s[rank[i]], step, &by, 1 + (int64_t)(ek_random_bits(seed, 3, (uint64_t)i) % 400));
        CHECK_INT(ek_journal_open(s[rank[i]].body, s->body_bytes, &l), EK_OK);
        seen.finished++;
        if (ek_journal_look(&l).steps_done > step)
            continue;
        seen.interrupted++;
        seen.undone += ek_journal_look(&l).begun;
        finish(&s[rank[i]], step, &by, 0);
    }
}

static int64_t done_by_all(void)
{
    int64_t least = INT64_MAX;

    for (int r = 0; r < RANKS; r++) {
        int64_t done = atomic_load(&with->done[r]);

        least = done < least ? done : least;
    }
    return least;
}

/* Kills a generation, removes one rank's segment as if its host was lost, and recovers the others.
 */
static int64_t fail(ek_segment *s, uint64_t seed, int *gone)
{
    ek_survivor left[RANKS - 1];
    ek_survivor_role role[RANKS - 1];
    pid_t child[RANKS];
    int lost = (int)(ek_random_bits(seed, 0, 0) % RANKS), rank[RANKS - 1], n = 0;
    ek_recovery_decision v;
    ek_journal l;

    start_ranks(s, child);
    run_and_kill(child, RANKS, 1 + (int64_t)(ek_random_bits(seed, 1, 0) % 9000),
                 (int)(ek_random_bits(seed, 2, 0) % RANKS));
    for (int r = 0; r < RANKS; r++) {
        if (r == lost)
            continue;
        CHECK_INT(ek_journal_open(s[r].body, s[r].body_bytes, &l), EK_OK);
        left[n] = (ek_survivor){s[r].head->id.generation, r, ek_segment_phase_of(&s[r]),
                                ek_journal_look(&l)};
        rank[n++] = r;
    }
    v = ek_recovery_decide(left, n, role);
    CHECK_INT(v.generation, s[0].head->id.generation);
    CHECK(v.steps_done >= done_by_all()); /* or it would be lost */
    for (int i = 0; i < n; i++)
        CHECK(role[i] == EK_SURVIVOR_CURRENT || role[i] == EK_SURVIVOR_FINISH);
    seen.redone += role[0] == EK_SURVIVOR_CURRENT && role[1] == EK_SURVIVOR_CURRENT;
    finish_all(s, rank, &v, role, seed);
    *gone = lost;
    return v.steps_done;
}

/* Whether kills hit every phase, which takes more of them on a busy machine. */
static int all_seen(int64_t steps)
{
    return steps > KILLS / 4 && seen.finished > 0 && seen.undone > 0 && seen.redone > 0;
}

static void killed_at_any_instant(void)
{
    uint64_t extent = ek_run_id("/t_elastic_commit") + (uint64_t)getpid();
    ek_segment s[RANKS] = {{0}};
    toy_truth truth[RANKS];
    int64_t steps = 0;
    int32_t kills = 0;

    with = mmap(NULL, sizeof(*with), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(with != MAP_FAILED);
    for (int r = 0; r < RANKS; r++)
        toy_truth_init(&truth[r], r);
    for (; (kills < KILLS || (kills < KILLS_MOST && !all_seen(steps))) && ek_t.failed == 0;
         kills++) {
        int64_t done;
        int gone = -1;
        ek_journal l;

        make_generation(extent, kills, truth, s);
        done = fail(s, (uint64_t)kills, &gone);
        for (int r = 0; r < RANKS; r++) {
            while (truth[r].steps_done < done)
                toy_truth_step(&truth[r]);
            CHECK_INT(ek_journal_open(s[r].body, s[r].body_bytes, &l), EK_OK);
            CHECK(r == gone || (ek_journal_look(&l).steps_done == done && toy_is(&l, &truth[r])));
            ek_segment_close(&s[r]);
        }
        remove_segments(extent);
        steps = done;
    }
    printf("%d kills, %lld steps: %d times a rank finished a step, %d of these were killed, %d in "
           "the middle; %d times a step was taken again\n",
           kills, (long long)steps, seen.finished, seen.interrupted, seen.undone, seen.redone);
    CHECK(all_seen(steps));
    for (int r = 0; r < RANKS; r++)
        toy_truth_fini(&truth[r]);
    munmap(with, sizeof(*with));
}

static const ek_case cases[] = {EK_CASE(killed_at_any_instant)};

EK_TEST_MAIN(cases)
