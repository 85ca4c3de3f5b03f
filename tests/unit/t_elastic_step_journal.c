/* The step journal: steps with it equal steps without it; a step killed anywhere is finished with
 * the same bits; invalid journals are refused; and the recovery decision. */
#include "elastic/recovery_decision.h"
#include "journal_fixture.h"

#include <setjmp.h>

/* How often an update pauses; it dies at pause number `at`. */
static struct {
    int64_t calls, at;
    jmp_buf out;
} death;

static void die_in_time(void)
{
    if (death.calls++ == death.at)
        longjmp(death.out, 1);
}

static const ek_journal_rule rule = {toy_update, NULL};

static void *new_rank(int64_t steps_done, ek_journal *l)
{
    size_t bytes = (toy_bytes() + 63) / 64 * 64;
    void *memory = memset(aligned_alloc(64, bytes), 0, bytes);
    ek_journal_extent runs[EXTENTS];

    toy_runs(runs);
    CHECK_INT(
        ek_journal_create(memory, toy_bytes(), runs, EXTENTS, LANES, sizeof(float), steps_done, l),
        EK_OK);
    return memory;
}

/* Up to the update. */
static void begin_step(ek_journal *l, int64_t step)
{
    toy_record by = toy_record_of(step);

    toy_backward(l, 0, step);
    ek_journal_reduced(l, step);
    ek_journal_record(l, step, &by, sizeof(by));
}

static void steps_without_failures(void)
{
    ek_journal l;
    void *memory = new_rank(0, &l);
    toy_truth truth;

    toy_truth_init(&truth, 0);
    for (int64_t step = 0; step < 5; step++) {
        ek_journal_state s = ek_journal_look(&l);

        CHECK(s.steps_done == step && !s.begun && s.recorded == step - 1);
        begin_step(&l, step);
        s = ek_journal_look(&l);
        CHECK(s.steps_done == step && s.reduced == step && s.recorded == step && !s.begun);
        ek_journal_update(&l, &rule, 0, 2);
        s = ek_journal_look(&l);
        CHECK(s.steps_done == step && s.begun);
        ek_journal_update(&l, &rule, 2, EXTENTS);
        toy_truth_step(&truth);
        CHECK(toy_is(&l, &truth));
    }
    toy_truth_fini(&truth);
    free(memory);
}

/* Executes an update, or the rest of one, that dies at a pause. */
static void die_at(int64_t pause, ek_journal *l, int finishes, const toy_record *by)
{
    death.calls = 0;
    death.at = pause;
    toy_tick = die_in_time;
    if (setjmp(death.out) == 0) {
        if (finishes)
            CHECK_INT(ek_journal_finish(l, &rule, 7, by), EK_OK);
        else
            ek_journal_update(l, &rule, 0, EXTENTS);
    }
    toy_tick = NULL;
}

/* A step killed in its update is finished by another process, after some that are killed while
 * finishing: `pause` lists when each dies. */
static void die_and_finish(const int64_t *pause, int deaths)
{
    ek_journal l, found;
    void *memory = new_rank(7, &l);
    toy_truth truth;
    ek_journal_state s;
    toy_record by = toy_record_of(7);

    toy_truth_init(&truth, 0);
    truth.steps_done = 7;
    toy_truth_step(&truth);
    begin_step(&l, 7);
    die_at(pause[0], &l, 0, &by);
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_OK);
    for (int i = 1; i < deaths; i++) {
        s = ek_journal_look(&found);
        CHECK(s.steps_done == 7 && s.begun && s.reduced == 7 && s.recorded == 7);
        die_at(pause[i], &found, 1, &by);
    }
    CHECK(ek_journal_look(&found).begun);
    CHECK_INT(ek_journal_finish(&found, &rule, 7, &by), EK_OK);
    s = ek_journal_look(&found);
    CHECK(s.steps_done == 8 && !s.begun);
    CHECK(toy_is(&found, &truth));
    begin_step(&found, 8); /* and goes on */
    ek_journal_update(&found, &rule, 0, EXTENTS);
    toy_truth_step(&truth);
    CHECK(toy_is(&found, &truth));
    toy_truth_fini(&truth);
    free(memory);
}

/* Pauses of extents 0 to end. */
static int64_t pauses(int end)
{
    ek_journal l;
    void *memory = new_rank(7, &l);

    begin_step(&l, 7);
    death.calls = 0;
    death.at = -1;
    toy_tick = die_in_time;
    ek_journal_update(&l, &rule, 0, end);
    toy_tick = NULL;
    free(memory);
    return death.calls;
}

/* Around the beginning and the end of each extent, and at random. */
static void death_at_any_pause(void)
{
    int64_t all = pauses(EXTENTS);

    for (int extent = 0; extent <= EXTENTS; extent++)
        for (int64_t at = pauses(extent) - 30; at < pauses(extent) + 30; at++)
            if (at >= 0 && at < all)
                die_and_finish(&at, 1);
    for (uint64_t i = 0; i < 60; i++) {
        int64_t at = (int64_t)(ek_random_bits(1, 0, i) % (uint64_t)all);

        die_and_finish(&at, 1);
    }
}

static void death_while_finishing(void)
{
    enum { DEATHS = 6 };

    for (uint64_t i = 0; i < 60; i++) {
        int64_t at[DEATHS];

        for (uint64_t j = 0; j < DEATHS; j++) /* at once, or after a while */
            at[j] = (int64_t)(ek_random_bits(2, i, j) % (j % 2 == 0 || i % 2 == 0 ? 12 : 9000));
        die_and_finish(at, DEATHS);
    }
}

/* Counters have to be consistent, and undo logs have to match the current extent. */
static void counters_and_undo_logs_that_lie(void)
{
    ek_journal l;
    void *memory = new_rank(7, &l);
    toy_record by = toy_record_of(7);
    int64_t *counter; /* the journal's counters of extents updated and begun */

    begin_step(&l, 7);
    die_at(20, &l, 0, &by);
    CHECK_INT(ek_journal_check(&l), EK_OK);
    for (int64_t i = 0; i < 3; i++) {
        ek_undo_mark(&l.undo_logs[1], (int64_t[]){MUCH, -1, 5}[i]);
        CHECK_INT(ek_journal_check(&l), EK_ECORRUPT);
        CHECK_INT(ek_journal_finish(&l, &rule, 7, &by), EK_ECORRUPT);
    }
    ek_undo_mark(&l.undo_logs[1], 0);
    CHECK_INT(ek_journal_check(&l), EK_OK);
    counter = (int64_t *)(void *)(l.memory + 48);
    CHECK(counter[0] == 0 && counter[1] == 1);
    for (int i = 0; i < 3; i++) {
        counter[0] = (int64_t[]){1, -1, 0}[i];
        counter[1] = (int64_t[]){0, 0, 2}[i];
        CHECK_INT(ek_journal_check(&l), EK_ECORRUPT);
    }
    free(memory);
}

/* The update has not begun here; finishes with another rank's record. */
static void finishing_by_another_ones_record(void)
{
    ek_journal l;
    void *memory = new_rank(0, &l);
    toy_truth truth;
    toy_record by = toy_record_of(0);

    toy_truth_init(&truth, 0);
    toy_truth_step(&truth);
    toy_backward(&l, 0, 0);
    CHECK_INT(ek_journal_finish(&l, &rule, 0, &by), EK_ESTATE); /* gradients may not be reduced */
    ek_journal_reduced(&l, 0);
    CHECK_INT(ek_journal_finish(&l, &rule, 1, &by), EK_ESTATE);
    CHECK_INT(ek_journal_look(&l).recorded, -1);
    CHECK_INT(ek_journal_finish(&l, &rule, 0, &by), EK_OK);
    CHECK_INT(ek_journal_look(&l).steps_done, 1);
    CHECK(toy_is(&l, &truth));
    toy_truth_fini(&truth);
    free(memory);
}

static void what_is_no_journal(void)
{
    ek_journal l, found;
    unsigned char *memory = new_rank(0, &l);
    ek_journal_extent kept = l.extent[1];

    CHECK_INT(ek_journal_open(memory, 100, &found), EK_ECORRUPT);
    CHECK_INT(ek_journal_open(memory, toy_bytes() - 64, &found), EK_ECORRUPT);
    l.extent[1].at[2] = (int64_t)toy_bytes() - 8;
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_ECORRUPT);
    l.extent[1] = kept;
    l.extent[1].at[0] = 0; /* overlaps the journal itself */
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_ECORRUPT);
    l.extent[1] = kept;
    l.extent[1].n = INT64_MAX / 4;
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_ECORRUPT);
    l.extent[1] = kept;
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_OK);
    memory[0] ^= 1;
    CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_ECORRUPT);
    free(memory);
}

/* --- recovery decisions ----------------------------------------------------------------------- */

static ek_survivor survivor(int32_t generation, ek_segment_phase phase, int64_t done,
                            int64_t reduced, int64_t recorded, int begun)
{
    return (ek_survivor){generation, 0, (int32_t)phase, {done, reduced, recorded, begun}};
}

static void nothing_is_left(void)
{
    ek_survivor s[] = {survivor(0, EK_SEGMENT_FILLED, 4, 3, 3, 0)};
    ek_survivor_role role[1];

    CHECK_INT(ek_recovery_decide(NULL, 0, NULL).generation, -1);
    CHECK_INT(ek_recovery_decide(s, 1, role).generation, -1);
    CHECK_INT(role[0], EK_SURVIVOR_STALE);
}

static void nobody_has_begun(void)
{
    ek_survivor s[] = {survivor(2, EK_SEGMENT_READY, 5, 5, 4, 0),
                       survivor(2, EK_SEGMENT_READY, 5, 5, 5, 0),
                       survivor(2, EK_SEGMENT_READY, 5, 4, 4, 0)};
    ek_survivor_role role[3];
    ek_recovery_decision v = ek_recovery_decide(s, 3, role);

    CHECK(v.generation == 2 && v.steps_done == 5 && v.record == 0);
    for (int i = 0; i < 3; i++)
        CHECK_INT(role[i], EK_SURVIVOR_CURRENT);
}

static void one_has_begun(void)
{
    ek_survivor s[] = {survivor(0, EK_SEGMENT_READY, 5, 5, 4, 0),  /* waits for the norm */
                       survivor(0, EK_SEGMENT_READY, 5, 5, 5, 1),  /* updates */
                       survivor(0, EK_SEGMENT_READY, 6, 6, 5, 0),  /* is ahead already */
                       survivor(0, EK_SEGMENT_FILLED, 5, 5, 5, 0), /* was killed before the mark */
                       survivor(0, EK_SEGMENT_READY, 5, 4, 4, 0),  /* must not be */
                       survivor(0, EK_SEGMENT_BUILDING, 0, -1, -1, 0)};
    const ek_survivor_role want[] = {EK_SURVIVOR_FINISH, EK_SURVIVOR_FINISH,   EK_SURVIVOR_CURRENT,
                                     EK_SURVIVOR_FINISH, EK_SURVIVOR_UNUSABLE, EK_SURVIVOR_STALE};
    ek_survivor_role role[6];
    ek_recovery_decision v = ek_recovery_decide(s, 6, role);

    CHECK(v.generation == 0 && v.steps_done == 6 && v.record == 1);
    for (int i = 0; i < 6; i++)
        CHECK_INT(role[i], want[i]);
}

static void a_generation_was_coming(void)
{
    ek_survivor s[] = {survivor(3, EK_SEGMENT_READY, 9, 9, 9, 1),
                       survivor(4, EK_SEGMENT_FILLED, 10, -1, -1, 0),
                       survivor(4, EK_SEGMENT_BUILDING, 0, -1, -1, 0)};
    ek_survivor_role role[3];
    ek_recovery_decision v = ek_recovery_decide(s, 3, role);

    CHECK(v.generation == 3 && v.steps_done == 10 && v.record == 0);
    CHECK(role[0] == EK_SURVIVOR_FINISH && role[1] == EK_SURVIVOR_STALE &&
          role[2] == EK_SURVIVOR_STALE);
    s[2].phase = EK_SEGMENT_READY; /* and one of it had passed */
    s[2].state.steps_done = 10;
    v = ek_recovery_decide(s, 3, role);
    CHECK(v.generation == 4 && v.steps_done == 10 && v.record == -1);
    CHECK(role[0] == EK_SURVIVOR_STALE && role[1] == EK_SURVIVOR_CURRENT &&
          role[2] == EK_SURVIVOR_CURRENT);
}

/* The last complete one, even if a later one was begun. */
static void notes(void)
{
    ek_journal l;
    void *memory = new_rank(0, &l);
    size_t bytes = 1;

    ek_journal_warm_state(&l, &bytes);
    CHECK_INT(bytes, 0);
    memset(ek_journal_begin_warm_state(&l), 1, EK_JOURNAL_WARM_STATE);
    ek_journal_warm_state(&l, &bytes);
    CHECK_INT(bytes, 0);
    for (int i = 2; i < 9; i++) {
        ek_journal found;
        const unsigned char *noted;

        memset(ek_journal_begin_warm_state(&l), i, EK_JOURNAL_WARM_STATE);
        ek_journal_end_warm_state(&l, (size_t)(EK_JOURNAL_WARM_STATE >> (i % 3)));
        memset(ek_journal_begin_warm_state(&l), 99, EK_JOURNAL_WARM_STATE);
        CHECK_INT(ek_journal_open(memory, toy_bytes(), &found), EK_OK);
        noted = ek_journal_warm_state(&found, &bytes);
        CHECK_INT(bytes, (size_t)EK_JOURNAL_WARM_STATE >> (i % 3));
        CHECK(noted[0] == i && noted[bytes - 1] == i);
    }
    free(memory);
}

static const ek_case cases[] = {
    EK_CASE(notes),
    EK_CASE(steps_without_failures),
    EK_CASE(death_at_any_pause),
    EK_CASE(death_while_finishing),
    EK_CASE(counters_and_undo_logs_that_lie),
    EK_CASE(finishing_by_another_ones_record),
    EK_CASE(what_is_no_journal),
    EK_CASE(nothing_is_left),
    EK_CASE(nobody_has_begun),
    EK_CASE(one_has_begun),
    EK_CASE(a_generation_was_coming),
};

EK_TEST_MAIN(cases)
