/* Tuning of pipeline degree and all-to-all on simulated steps: the quality of the result, the
 * length of the search, and retuning when step times change. */
#include "base/random.h"
#include "ek_test.h"
#include "train/tune/tune.h"

enum { ALL = 12, WITH_R = 25, LIMIT = 200, SEEDS = 40 };

/* Seconds of a step on a simulated cluster: compute, exchange, what a chunk costs more. */
typedef struct {
    double compute, exchange, chunk; /* chunk: of every exchange, and of cutting products */
    double message;                  /* a message between nodes */
    int linear, pairwise, nodes;     /* messages in a row, by all-to-all */
    double copies;                   /* of 2dh */
    double weights;                  /* bringing half of a layer's experts */
} cluster;

static const cluster clusters[] = {
    {1.0, 0.8, 0.01, 0.0001, 40, 60, 10, 0.20, 2},   /* exchange beside products: a high degree */
    {1.0, 0.1, 0.05, 0.0001, 40, 60, 10, 0.20, 1},   /* little to hide: degree 1 */
    {0.6, 0.6, 0.02, 0.004, 40, 60, 8, 0.05, 0.15},  /* long latency: by nodes */
    {0.5, 1.5, 0.005, 0.0002, 100, 20, 60, 0.3, .1}, /* congestion: in pairs */
};
enum { CLUSTERS = sizeof(clusters) / sizeof(clusters[0]) };

static double seconds_of(const cluster *c, ek_moe_traffic t)
{
    int d = t.degree;
    int messages = t.a2a == EK_A2A_LINEAR     ? c->linear
                   : t.a2a == EK_A2A_PAIRWISE ? c->pairwise
                                              : c->nodes;
    double rows = t.gather == EK_GATHER_ALL ? 0 : 1.0 / t.gather;
    double net = rows * (c->exchange * (t.a2a == EK_A2A_2DH ? 1 + c->copies : 1) / d +
                         messages * c->message) +
                 c->weights * (t.gather == EK_GATHER_ALL ? 3 : (t.gather - 1) * 0.5) / d;
    double compute = c->compute / d + c->chunk, longer = net > compute ? net : compute;

    return net + compute + (d - 1) * longer;
}

static int all_settings(ek_moe_traffic *s)
{
    int n = 0;

    for (int g = 1; g <= 2; g++)
        for (int a = EK_A2A_LINEAR; a <= EK_A2A_2DH; a++)
            for (int d = 1; d <= 8; d *= 2)
                s[n++] = (ek_moe_traffic){d, (ek_a2a)a, g};
    s[n++] = (ek_moe_traffic){1, EK_A2A_LINEAR, EK_GATHER_ALL};
    return n;
}

static double uniform(uint64_t seed, uint64_t step, uint64_t what)
{
    return (double)(ek_random_bits(seed, step, what) >> 11) / (double)(UINT64_C(1) << 53);
}

/* A factor around 1: always some, and now and then a step that takes twice as long. */
static double noise(uint64_t seed, uint64_t step, double width)
{
    double sum = 0;

    for (uint64_t i = 0; i < 4; i++)
        sum += uniform(seed, step, i) - 0.5;
    return (1 + width * sum * 1.732) * (width > 0 && uniform(seed, step, 9) < 0.04 ? 2 : 1);
}

/* A sequence of steps whose times arrive one step late. */
typedef struct {
    ek_tune t;
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    ek_tune_choice before;
    double before_s, total;
    int64_t steps;
    ek_tune_result found;
    int found_n;
} sim;

static void sim_init(sim *s, int n)
{
    memset(s, 0, sizeof(*s));
    all_settings(s->settings);
    ek_tune_init(&s->t, s->settings, n);
}

static ek_moe_traffic sim_step(sim *s, int64_t bucket, const cluster *c, double factor)
{
    ek_tune_choice now = ek_tune_next(&s->t, bucket);

    if (s->steps++ > 0)
        s->found_n += ek_tune_add(&s->t, &s->before, s->before_s, &s->found);
    s->before = now;
    s->before_s = seconds_of(c, now.traffic) * factor;
    s->total += s->before_s;
    return now.traffic;
}

static double best_of(const cluster *c, const ek_moe_traffic *s, int n)
{
    double best = INFINITY;

    for (int i = 0; i < n; i++)
        best = fmin(best, seconds_of(c, s[i]));
    return best;
}

/* Steps until the first search of a bucket has ended, and the time of what it found over the best;
 * grows: by how much steps get longer. */
static int search(const cluster *c, int n, uint64_t seed, double width, double grows, double *over)
{
    static sim s;
    int steps = 0;

    sim_init(&s, n);
    while (s.found_n == 0 && steps < 10 * LIMIT) {
        sim_step(&s, 0, c, noise(seed, (uint64_t)steps, width) * (1 + grows * steps));
        steps++;
    }
    *over = seconds_of(c, s.found.best) / best_of(c, s.settings, n);
    return steps;
}

static void finds_the_best_of_three_clusters(void)
{
    for (int i = 0; i < CLUSTERS; i++) {
        double over;

        CHECK(search(&clusters[i], ALL, 1, 0, 0, &over) < 180);
        CHECK(over == 1);
    }
}

/* Of searches among n settings, those that end more than 5 % from the best. */
static int count_worse(int n)
{
    int worse = 0;

    for (int i = 0; i < CLUSTERS; i++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            double over;

            CHECK(search(&clusters[i], n, seed, 0.05, 0, &over) < LIMIT);
            worse += over > 1.05;
        }
    return worse;
}

static void noise_costs_little(void)
{
    CHECK_INT(count_worse(ALL), 0);
    CHECK(count_worse(WITH_R) <= CLUSTERS * SEEDS / 50);
}

/* Each cluster has another best r. */
static void r_is_found_with_the_others(void)
{
    int seen = 0;

    for (int i = 0; i < CLUSTERS; i++) {
        static sim s;
        double best;

        sim_init(&s, WITH_R);
        best = best_of(&clusters[i], s.settings, WITH_R);
        for (int step = 0; s.found_n == 0 && step < LIMIT; step++)
            sim_step(&s, 0, &clusters[i], 1);
        CHECK_INT(s.found_n, 1);
        CHECK(seconds_of(&clusters[i], s.found.best) == best);
        seen |= 1 << (s.found.best.gather + 1);
    }
    CHECK_INT(seen, 1 << 0 | 1 << 2 | 1 << 3);
}

/* Steps that get longer while they are measured: by half in 200 steps. */
static void drift_fools_nobody(void)
{
    for (int i = 0; i < CLUSTERS; i++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            double over;

            CHECK(search(&clusters[i], ALL, seed, 0.02, 0.5 / LIMIT, &over) < LIMIT);
            CHECK(over <= 1.05);
            CHECK(search(&clusters[i], ALL, seed, 0.02, -0.4 / LIMIT, &over) < LIMIT);
            CHECK(over <= 1.05);
        }
}

/* Loads that come and go hit the settings of a round alike. */
static void bursts_fool_nobody(void)
{
    static sim s;

    for (int i = 0; i < CLUSTERS; i++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            sim_init(&s, ALL);
            for (uint64_t step = 0; s.found_n == 0 && step < LIMIT; step++)
                sim_step(&s, 0, &clusters[i],
                         noise(seed, step, 0.02) * (uniform(seed, step / 40, 7) < 0.5 ? 1 : 1.7));
            CHECK_INT(s.found_n, 1);
            CHECK(seconds_of(&clusters[i], s.found.best) <=
                  1.05 * best_of(&clusters[i], s.settings, ALL));
        }
}

/* Most steps of a search are not much longer than the best one. */
static void search_is_cheap(void)
{
    static sim s;

    for (int i = 0; i < CLUSTERS; i++) {
        double best;

        sim_init(&s, ALL);
        best = best_of(&clusters[i], s.settings, ALL);
        for (int step = 0; step < LIMIT; step++)
            sim_step(&s, 0, &clusters[i], 1);
        CHECK(s.total < 1.2 * LIMIT * best);
        CHECK_INT(s.found_n, 1);
        CHECK(fabs(s.found.best_s - best) < 1e-12);
        CHECK(fabs(s.found.gain - seconds_of(&clusters[i], s.settings[0]) / best) < 1e-12);
    }
}

static void ties_go_to_the_simplest(void)
{
    static const cluster flat = {.compute = 0, .exchange = 0};
    double over;
    static sim s;

    CHECK(search(&flat, ALL, 0, 0, 0, &over) < LIMIT);
    sim_init(&s, ALL);
    for (int step = 0; step < LIMIT; step++)
        sim_step(&s, 0, &flat, 1);
    CHECK_INT(s.found.best.degree, 1);
    CHECK_INT(s.found.best.a2a, EK_A2A_LINEAR);
}

static void one_setting_is_not_searched(void)
{
    static sim s;

    sim_init(&s, 1);
    for (int step = 0; step < 2 * LIMIT; step++)
        CHECK_INT(sim_step(&s, step / LIMIT, &clusters[0], 1 + step / 50).degree, 1);
    CHECK_INT(s.found_n, 0);
}

/* Two tuners that get the same times choose the same settings. */
static void all_ranks_choose_alike(void)
{
    static sim a, b;

    sim_init(&a, ALL);
    sim_init(&b, ALL);
    for (int step = 0; step < 1000; step++) {
        int64_t bucket = (int64_t)(ek_random_bits(5, (uint64_t)step / 60, 0) % 20);
        double factor = noise(3, (uint64_t)step, 0.3) * (step > 600 ? 2 : 1);
        ek_moe_traffic x = sim_step(&a, bucket, &clusters[0], factor);
        ek_moe_traffic y = sim_step(&b, bucket, &clusters[0], factor);

        CHECK(x.degree == y.degree && x.a2a == y.a2a && x.gather == y.gather);
    }
    CHECK_INT(a.found_n, b.found_n);
}

/* Each capacity has its own result, which is remembered. */
static void buckets_are_apart(void)
{
    static sim s;
    ek_moe_traffic x, y;

    sim_init(&s, ALL);
    for (int step = 0; step < 2 * LIMIT; step++)
        sim_step(&s, step % 2, &clusters[step % 2], 1);
    CHECK_INT(s.found_n, 2);
    x = sim_step(&s, 0, &clusters[0], 1);
    y = sim_step(&s, 1, &clusters[1], 1);
    CHECK(seconds_of(&clusters[0], x) == best_of(&clusters[0], s.settings, ALL));
    CHECK(seconds_of(&clusters[1], y) == best_of(&clusters[1], s.settings, ALL));
    for (int64_t bucket = 2; bucket <= EK_TUNE_BUCKETS; bucket++) { /* one more than there are */
        sim_step(&s, bucket, &clusters[0], 1);
        sim_step(&s, 0, &clusters[0], 1);
    }
    for (int step = 0; step < LIMIT; step++)
        sim_step(&s, 0, &clusters[0], 1);
    CHECK_INT(s.found_n, 2); /* this one is in use, */
    for (int step = 0; step < LIMIT; step++)
        sim_step(&s, 1, &clusters[1], 1);
    CHECK_INT(s.found_n, 3); /* and that was forgotten */
}

/* Step times change: another setting is the best. */
static void searches_again_when_times_change(void)
{
    static sim s;
    ek_moe_traffic x = {0};

    sim_init(&s, ALL);
    for (int step = 0; step < 300; step++)
        x = sim_step(&s, 0, &clusters[1], noise(1, (uint64_t)step, 0.05));
    CHECK_INT(s.found_n, 1);
    CHECK(seconds_of(&clusters[1], x) <= 1.05 * best_of(&clusters[1], s.settings, ALL));
    for (int step = 0; step < 300; step++)
        x = sim_step(&s, 0, &clusters[3], noise(2, (uint64_t)step, 0.05));
    CHECK_INT(s.found_n, 2);
    CHECK(seconds_of(&clusters[3], x) <= 1.05 * best_of(&clusters[3], s.settings, ALL));
}

/* The same setting is always the best: searches become rarer. */
static void backoff_grows(void)
{
    static sim s;

    sim_init(&s, ALL);
    for (int step = 0; step < 12800; step++)
        sim_step(&s, 0, &clusters[0], step / 100 % 2 ? 1 : 1.6);
    CHECK(s.found_n >= 3 && s.found_n <= 9);
}

static void nonsense_is_survived(void)
{
    static sim s;

    sim_init(&s, ALL);
    for (int step = 0; step < 500; step++)
        sim_step(&s, 0, &clusters[0], step % 3 == 0 ? NAN : step % 3 == 1 ? 0 : INFINITY);
    CHECK(s.found_n >= 1);
    sim_init(&s, ALL);
    while (s.found_n == 0 && s.steps < LIMIT) /* of the best, no number */
        if (sim_step(&s, 0, &clusters[1], 1).degree == 1)
            s.before_s = NAN;
    CHECK_INT(s.found.best.degree, 2);
}

/* --- warm state ------------------------------------------------------------------------------- */

static unsigned char note[1 << 19];

/* Another process continues without the time of the last step. */
static void die(sim *s, size_t room, int others)
{
    size_t bytes = ek_tune_pack(&s->t, note, room);

    CHECK(bytes > 0 && bytes <= room);
    ek_tune_init(&s->t, s->settings, s->t.n);
    CHECK(ek_tune_unpack(&s->t, note, bytes, others));
    s->steps = 0;
}

/* Searches that are cut short every few steps end all the same, with the best, and once. */
static void others_go_on(void)
{
    static sim s;

    for (int every = 2; every < 40; every += 6)
        for (int i = 0; i < CLUSTERS; i++) {
            int steps = 0, again = 0;

            sim_init(&s, ALL);
            for (; s.found_n == 0 && steps < 2 * LIMIT; steps++) {
                if (steps % every == every - 1) {
                    die(&s, sizeof(note), 0);
                    again++;
                }
                sim_step(&s, 0, &clusters[i], noise(1, (uint64_t)steps, 0.05));
            }
            CHECK(steps <= LIMIT + 2 * again);
            CHECK(seconds_of(&clusters[i], s.found.best) <=
                  1.05 * best_of(&clusters[i], s.settings, ALL));
            for (steps = 0; steps < 90; steps++) {
                ek_moe_traffic now;

                if (steps % every == 0)
                    die(&s, sizeof(note), 0);
                now = sim_step(&s, 0, &clusters[i], 1);
                CHECK(memcmp(&now, &s.found.best, sizeof(now)) == 0);
            }
            CHECK_INT(s.found_n, 1);
        }
}

/* Steps that take longer because there are fewer ranks start no search; later changes do. */
static void others_are_fewer(void)
{
    static sim s;

    sim_init(&s, ALL);
    for (int step = 0; step < LIMIT; step++)
        sim_step(&s, 0, &clusters[0], 1);
    CHECK_INT(s.found_n, 1);
    die(&s, sizeof(note), 1);
    for (int step = 0; step < 2 * LIMIT; step++)
        sim_step(&s, 0, &clusters[0], 1.6);
    CHECK_INT(s.found_n, 1);
    for (int step = 0; step < 2 * LIMIT; step++)
        sim_step(&s, 0, &clusters[0], 1);
    CHECK_INT(s.found_n, 2);
}

/* If not all buckets fit, the most recently used ones are kept. */
static void the_last_ones_are_kept(void)
{
    static sim s;
    size_t one;

    sim_init(&s, ALL);
    CHECK_INT(ek_tune_pack(&s.t, note, 16), 0);
    one = ek_tune_pack(&s.t, note, sizeof(note)) + sizeof(ek_tune_bucket);
    for (int step = 0; step < 3 * LIMIT; step++)
        sim_step(&s, step % 3, &clusters[0], 1);
    CHECK_INT(s.found_n, 3);
    die(&s, one + sizeof(ek_tune_bucket), 0); /* of the last two steps */
    for (int step = 0; step < 2 * LIMIT; step++)
        sim_step(&s, 1 + step % 2, &clusters[0], 1);
    CHECK_INT(s.found_n, 3);
    for (int step = 0; step < LIMIT; step++)
        sim_step(&s, 0, &clusters[0], 1);
    CHECK_INT(s.found_n, 4);
}

/* Other settings, a truncated warm state, and ones with changed bytes. */
static void notes_of_no_use(void)
{
    static sim s;
    static unsigned char broken[sizeof(note)];
    size_t bytes;

    sim_init(&s, ALL);
    for (int step = 0; step < 50; step++)
        sim_step(&s, step % 2, &clusters[0], 1);
    bytes = ek_tune_pack(&s.t, note, sizeof(note));
    sim_init(&s, ALL - 1);
    CHECK(!ek_tune_unpack(&s.t, note, bytes, 0));
    sim_init(&s, ALL);
    s.t.settings[3].degree = 16;
    CHECK(!ek_tune_unpack(&s.t, note, bytes, 0));
    for (size_t n = 0; n < bytes; n = n * 2 + 1) {
        sim_init(&s, ALL);
        CHECK(!ek_tune_unpack(&s.t, note, n, 0));
    }
    for (uint64_t seed = 0; seed < 3000; seed++) {
        memcpy(broken, note, bytes);
        for (uint64_t i = 0; i < 1 + seed % 7; i++) {
            uint64_t x = ek_random_bits(seed, i, 1);

            broken[seed % 2 ? x % bytes : x % 1024] = (unsigned char)(x >> 40);
        }
        sim_init(&s, ALL);
        (void)!ek_tune_unpack(&s.t, broken, bytes, 0);
        for (int step = 0; step < LIMIT; step++)
            sim_step(&s, step % 3, &clusters[0], 1);
    }
}

/* --- settings to choose from ------------------------------------------------------------------ */

static void open_mesh(int ranks, int ep, int etp, const int *node_of, ek_mesh *mesh,
                      ek_comm **world)
{
    CHECK(ek_comm_open_threads(ranks, world) == EK_OK);
    for (int i = 0; i < ranks; i++)
        ek_comm_set_nodes(world[i], node_of);
    *mesh = (ek_mesh){.size = ranks, .ep = ep, .etp = etp, .world = world[0]};
}

static void close_mesh(int ranks, ek_comm **world)
{
    for (int i = 0; i < ranks; i++)
        ek_comm_close(&world[i]);
}

static int count_given(int ranks, int ep, int etp, const int *node_of, ek_tune_fixed given,
                       ek_moe_traffic *out)
{
    ek_comm *world[8];
    ek_mesh mesh;
    int n;

    open_mesh(ranks, ep, etp, node_of, &mesh, world);
    n = ek_tune_settings(&mesh, &given, out);
    close_mesh(ranks, world);
    return n;
}

static ek_a2a by_topology(int ranks, int ep, const int *node_of, double bytes)
{
    ek_comm *world[8];
    ek_mesh mesh;
    ek_a2a a2a;

    open_mesh(ranks, ep, 1, node_of, &mesh, world);
    a2a = ek_tune_a2a_by_topology(&mesh, bytes);
    close_mesh(ranks, world);
    return a2a;
}

static int count(int ranks, int ep, int etp, const int *node_of, int degree, int a2a,
                 ek_moe_traffic *out)
{
    return count_given(ranks, ep, etp, node_of, (ek_tune_fixed){degree, a2a, 1, 0, EK_A2A_LINEAR},
                       out);
}

/* Slices of 6 shards that may be gathered; how many settings. */
static int count_r(int gather, int all, ek_moe_traffic *out)
{
    static const int apart[6] = {0, 1, 2, 3, 4, 5};

    return count_given(6, 1, 6, apart,
                       (ek_tune_fixed){1, EK_A2A_LINEAR, gather, all, EK_A2A_LINEAR}, out);
}

static void settings_fit_the_mesh(void)
{
    static const int together[8] = {0}, apart[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int twos[8] = {0, 0, 1, 1, 2, 2, 3, 3};
    ek_moe_traffic s[EK_TUNE_SETTINGS];
    static const int gathers[] = {1, 6, 2, 3, EK_GATHER_ALL};

    CHECK_INT(count(8, 8, 1, twos, 0, -1, s), 12);
    CHECK(s[0].degree == 1 && s[0].a2a == EK_A2A_LINEAR);
    CHECK(s[11].degree == 8 && s[11].a2a == EK_A2A_2DH);
    CHECK_INT(count(8, 8, 1, together, 0, -1, s), 8);
    CHECK_INT(count(8, 4, 2, apart, 0, -1, s), 8);
    CHECK_INT(count(8, 2, 1, twos, 0, -1, s), 4); /* two ranks of a node exchange */
    CHECK_INT(count(8, 2, 2, twos, 0, -1, s), 12);
    CHECK_INT(count(8, 1, 1, twos, 0, -1, s), 1);
    CHECK_INT(count(8, 8, 1, twos, 3, -1, s), 3);
    CHECK(s[0].degree == 3 && s[2].degree == 3 && s[2].a2a == EK_A2A_2DH);
    CHECK_INT(count(8, 8, 1, together, 0, EK_A2A_2DH, s), 4);
    CHECK(s[3].degree == 8 && s[3].a2a == EK_A2A_2DH);
    CHECK_INT(count_r(0, 1, s), 5);
    for (int i = 0; i < 5; i++)
        CHECK_INT(s[i].gather, gathers[i]);
    CHECK_INT(count_r(0, 0, s), 4);
    CHECK_INT(count_r(3, 1, s), 1);
    CHECK_INT(s[0].gather, 3);
    CHECK_INT(count_r(EK_GATHER_ALL, 1, s), 1);
    CHECK_INT(s[0].gather, EK_GATHER_ALL);
    CHECK_INT(count(8, 8, 1, twos, 2, EK_A2A_PAIRWISE, s), 1);
    CHECK(s[0].degree == 2 && s[0].a2a == EK_A2A_PAIRWISE);
}

/* Short messages between nodes with several ranks each go by node, and those settings come first.
 */
static void the_topology_gives_the_first(void)
{
    static const int together[8] = {0}, apart[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int twos[8] = {0, 0, 1, 1, 2, 2, 3, 3};
    ek_moe_traffic s[EK_TUNE_SETTINGS];
    ek_tune_fixed given = {.a2a = -1, .gather = 1, .first = EK_A2A_2DH};

    CHECK(by_topology(8, 8, twos, 1024) == EK_A2A_2DH);
    CHECK(by_topology(8, 8, twos, 65536) == EK_A2A_LINEAR);
    CHECK(by_topology(8, 8, together, 1024) == EK_A2A_LINEAR);
    CHECK(by_topology(8, 8, apart, 1024) == EK_A2A_LINEAR);
    CHECK(by_topology(8, 2, twos, 1024) == EK_A2A_LINEAR); /* groups inside nodes */
    CHECK_INT(count_given(8, 8, 1, twos, given, s), 12);
    CHECK(s[0].degree == 1 && s[0].a2a == EK_A2A_2DH && s[3].a2a == EK_A2A_2DH);
    CHECK(s[4].a2a == EK_A2A_LINEAR && s[8].a2a == EK_A2A_PAIRWISE && s[11].degree == 8);
    CHECK_INT(count_given(8, 8, 1, apart, given, s), 8); /* not worth trying */
    CHECK(s[0].a2a == EK_A2A_LINEAR && s[7].a2a == EK_A2A_PAIRWISE);
}

static void buckets_by_capacity(void)
{
    CHECK_INT(ek_tune_bucket_of(1024, 2, 8, 0), 2);
    CHECK_INT(ek_tune_bucket_of(1024, 1, 8, 0), 1);
    CHECK_INT(ek_tune_bucket_of(1024, 1, 8, 0.5), 0);
    CHECK_INT(ek_tune_bucket_of(1024, 2, 8, -1.5), 3);
}

static const ek_case cases[] = {
    EK_CASE(finds_the_best_of_three_clusters),
    EK_CASE(noise_costs_little),
    EK_CASE(r_is_found_with_the_others),
    EK_CASE(drift_fools_nobody),
    EK_CASE(bursts_fool_nobody),
    EK_CASE(search_is_cheap),
    EK_CASE(ties_go_to_the_simplest),
    EK_CASE(one_setting_is_not_searched),
    EK_CASE(all_ranks_choose_alike),
    EK_CASE(buckets_are_apart),
    EK_CASE(searches_again_when_times_change),
    EK_CASE(backoff_grows),
    EK_CASE(nonsense_is_survived),
    EK_CASE(others_go_on),
    EK_CASE(others_are_fewer),
    EK_CASE(the_last_ones_are_kept),
    EK_CASE(notes_of_no_use),
    EK_CASE(settings_fit_the_mesh),
    EK_CASE(the_topology_gives_the_first),
    EK_CASE(buckets_by_capacity),
};
EK_TEST_MAIN(cases)
