/* A planner of one's own: plans alone, and then, if OUT and DATA are given, in the training of a
 * small model, whose experts are distributed over the processes that mpiexec starts.
 *
 *   cc examples/planner.c -o planner $(pkg-config --cflags --libs evenkeel)
 *   ./planner
 *   mpiexec -n 2 ./planner OUT DATA... */
#include <evenkeel/balance.h>
#include <evenkeel/job.h>
#include <evenkeel/planner.h>
#include <evenkeel/train.h>
#include <stdio.h>

/* --- the planner: replicas for the busiest rank, while that gains a sixteenth ----------------- */

static int64_t plans; /* how many this process has made */

static size_t memory_bytes(void *context, const ek_planner_setup *s)
{
    (void)context;
    return (size_t)s->ranks * sizeof(int64_t); /* the load of each rank */
}

/* The slot of a rank for an expert: one that holds it, else an empty one; -1: none. */
static int32_t slot_for(const ek_planner_setup *s, const ek_planner_output *out, int32_t rank,
                        int32_t expert)
{
    int32_t empty = -1;

    for (int32_t i = (rank + 1) * s->slots - 1; i >= rank * s->slots; i--) {
        if (out->expert_of[i] == expert)
            return i;
        empty = out->expert_of[i] < 0 ? i : empty;
    }
    return empty;
}

/* Moves assignments of the busiest rank's largest slot to the least busy rank.  0: nothing gained.
 */
static int move_rows(const ek_planner_setup *s, int64_t *load, ek_planner_output *out)
{
    int32_t busiest = 0, least = -1, from, to;
    int64_t rows;

    for (int32_t r = 1; r < s->ranks; r++)
        busiest = load[r] > load[busiest] ? r : busiest;
    from = busiest * s->slots;
    for (int32_t i = from; i < (busiest + 1) * s->slots; i++)
        from = out->quota[i] > out->quota[from] ? i : from;
    for (int32_t r = 0; r < s->ranks; r++)
        if (r != busiest && (least < 0 || load[r] < load[least]) &&
            slot_for(s, out, r, out->expert_of[from]) >= 0)
            least = r;
    if (least < 0)
        return 0;
    rows = (load[busiest] - load[least]) / 2;
    rows = rows < out->quota[from] ? rows : out->quota[from];
    if (rows * 16 <= load[busiest])
        return 0;
    to = slot_for(s, out, least, out->expert_of[from]);
    out->expert_of[to] = out->expert_of[from];
    out->quota[from] -= rows;
    out->quota[to] += rows;
    load[busiest] -= rows;
    load[least] += rows;
    return 1;
}

static double layer_s(const ek_planner_setup *s, const int64_t *load)
{
    int64_t most = 0;

    for (int32_t r = 0; r < s->ranks; r++)
        most = load[r] > most ? load[r] : most;
    return (double)most * (s->costs.compute_s_per_row + s->costs.comm_s_per_row);
}

static ek_status plan_greedy(void *context, void *memory, const ek_planner_input *in,
                             ek_planner_output *out)
{
    const ek_planner_setup *s = in->setup;
    int64_t *load = memory;
    int moves = 0;

    (void)context;
    for (int32_t r = 0; r < s->ranks; r++) {
        load[r] = 0;
        for (int32_t i = r * s->slots; i < (r + 1) * s->slots; i++)
            load[r] += out->quota[i];
    }
    out->before_s = layer_s(s, load);
    while (move_rows(s, load, out))
        moves++;
    out->after_s = layer_s(s, load);
    if (in->explain)
        snprintf(out->reason, EK_PLANNER_REASON, "greedy: assignments moved %d times", moves);
    plans++;
    return EK_OK;
}

/* --- its use ---------------------------------------------------------------------------------- */

static ek_status plan_alone(void)
{
    static const int64_t counts[2][4] = {{70, 10, 10, 10}, {60, 20, 10, 10}};
    ek_balance_config cfg = {
        .size = sizeof(cfg), .policy = "greedy", .experts = 4, .ranks = 2, .spare_slots = 1};
    ek_balance_plan_result p;
    ek_balance *b = NULL;
    ek_status st = ek_balance_create(&cfg, &b);

    if (st == EK_OK)
        st = ek_balance_plan(b, counts[0], &p);
    if (st == EK_OK)
        printf("%s\n", p.reason);
    for (int s = 0; st == EK_OK && s < 2 * p.slots; s++)
        printf("rank %d slot %d: expert %d serves %lld\n", s / p.slots, s % p.slots,
               (int)p.expert_of[s], (long long)p.quota[s]);
    ek_balance_destroy(&b);
    return st;
}

static void warning(void *context, const char *message)
{
    (void)context;
    fprintf(stderr, "warning: %s\n", message); /* such as the fault of an invalid plan */
}

static ek_status train(const char *out, const char *const *data, int n_data)
{
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    const ek_train_hooks hooks = {.warning = warning};
    static ek_train_summary summary;
    ek_comm *world = NULL;
    ek_status st = ek_job_join(&world);

    if (st < 0)
        return st;
    cfg.world = world;
    cfg.ep = ek_job_size(world);
    cfg.balance = "greedy";
    cfg.spare_slots = 1;
    cfg.record_plans = cfg.ep > 1;
    cfg.model = "tiny";
    cfg.out = out;
    cfg.data = data;
    cfg.n_data = n_data;
    cfg.batch = 4;
    cfg.seq = 64;
    cfg.steps = 10;
    plans = 0;
    st = ek_train(&cfg, &hooks, &summary);
    if (st == EK_OK && ek_job_rank(world) == 0 && summary.balance.policy != NULL)
        printf("%s: %lld plans, %.1f replicas a step, busiest rank %.2f x the mean, %.2f without\n",
               summary.balance.policy, (long long)plans, summary.balance.replicas,
               summary.balance.after, summary.balance.before);
    else if (st == EK_OK && cfg.ep == 1)
        printf("one rank has nothing to balance: start with mpiexec -n 2\n");
    ek_job_leave(&world);
    return st;
}

int main(int argc, char **argv)
{
    const ek_planner_functions greedy = {.size = sizeof(greedy),
                                         .summary = "replicas for the busiest rank",
                                         .memory_bytes = memory_bytes,
                                         .plan_transient = plan_greedy};
    ek_status st = ek_planner_register("greedy", &greedy);

    if (st == EK_OK)
        st = argc < 3 ? plan_alone() : train(argv[1], (const char *const *)argv + 2, argc - 2);
    if (st < 0)
        fprintf(stderr, "%s\n", ek_err_message());
    return st < 0;
}
