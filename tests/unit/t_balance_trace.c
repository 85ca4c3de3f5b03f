/* Routing traces: reading .npy files, rejected files, mapping sources to any number of ranks; and
 * the replay of a trace computed by hand. */
#include "balance/replay.h"
#include "base/random.h"
#include "ek_test.h"

enum { NUMBERS = 2 * 3 * 9 * 5, FILE_MAX = 16384, SIDE = 9 };

/* Exact products of assignment counts. */
__extension__ typedef __int128 wide;

static ek_path room; /* the directory of the case */

static void enter(void)
{
    if (ek_path_set(&room, "/tmp/ek_trace_XXXXXX") != EK_OK || mkdtemp(room.s) == NULL)
        exit(1);
}

static void leave(void)
{
    CHECK(ek_folder_remove(NULL, room.s) == EK_OK);
}

/* Without the syncs of ek_file_write, which take most of a test's time. */
static const char *write_case(const void *data, size_t n)
{
    static ek_path path;
    FILE *f;

    if (ek_path_set(&path, "%s/trace.npy", room.s) != EK_OK)
        exit(1);
    f = fopen(path.s, "wb");
    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        EK_T_FAIL("%s cannot be written", path.s);
        exit(1);
    }
    return path.s;
}

/* An .npy file in memory. */
typedef struct {
    unsigned char bytes[FILE_MAX];
    size_t n;
} file;

static void start_file(file *f, int version, const char *head)
{
    size_t n = strlen(head);

    memcpy(f->bytes, "\x93NUMPY", 6);
    f->bytes[6] = (unsigned char)version;
    f->bytes[7] = 0;
    for (int i = 0; i < 4; i++)
        f->bytes[8 + i] = (unsigned char)(n >> 8 * i);
    f->n = version == 1 ? 10 : 12;
    CHECK(f->n + n <= FILE_MAX);
    memcpy(f->bytes + f->n, head, n);
    f->n += n;
}

static void add_number(file *f, int width, uint64_t x)
{
    CHECK(f->n + (size_t)width <= FILE_MAX);
    for (int i = 0; i < width; i++)
        f->bytes[f->n++] = (unsigned char)(x >> 8 * i);
}

/* The header as NumPy writes it. */
static void start_trace(file *f, int version, int width, const char *shape)
{
    char head[256];

    snprintf(head, sizeof(head), "{'descr': '%cu%d', 'fortran_order': False, 'shape': %s, }\n",
             width == 1 ? '|' : '<', width, shape);
    start_file(f, version, head);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Test number i, as large as the width and a trace allow. */
static int64_t number(int width, int64_t i)
{
    int bits = width < 8 ? 8 * width : 40;

    return (int64_t)(ek_random_bits(5, (uint64_t)width, (uint64_t)i) >> (64 - bits));
}

/* With one rank per source, counts are the numbers in the file. */
static void check_numbers(const ek_trace *t)
{
    int64_t counts[NUMBERS], i = 0;

    for (int64_t k = 0; k < t->iterations; k++)
        for (int64_t l = 0; l < t->layers; l++) {
            ek_trace_counts(t, k, l, (int32_t)t->sources, counts);
            for (int64_t n = 0; n < t->sources * t->experts; n++, i++)
                if (counts[n] != number(t->width, i))
                    EK_T_FAIL("number %lld of width %d is %lld, expected %lld", (long long)i,
                              t->width, (long long)counts[n], (long long)number(t->width, i));
        }
}

static void read_back(int version, int width, const char *shape, const int64_t *axes)
{
    ek_trace t;
    file f;

    start_trace(&f, version, width, shape);
    for (int64_t i = 0; i < axes[0] * axes[1] * axes[2] * axes[3]; i++)
        add_number(&f, width, (uint64_t)number(width, i));
    if (ek_trace_open(write_case(f.bytes, f.n), &t) < 0) {
        EK_T_FAIL("%s", ek_err_text());
        return;
    }
    CHECK_INT(t.width, width);
    CHECK_INT(t.iterations, axes[0]);
    CHECK_INT(t.layers, axes[1]);
    CHECK_INT(t.sources, axes[2]);
    CHECK_INT(t.experts, axes[3]);
    check_numbers(&t);
    ek_trace_close(&t);
    CHECK(t.data == NULL && t.map.data == NULL);
    ek_trace_close(&t); /* nothing to close */
}

static void reads_all_widths_axes_and_versions(void)
{
    static const struct {
        const char *shape;
        int64_t axes[4]; /* iterations, layers, sources, experts */
    } cases[] = {
        {"(3, 5)", {1, 3, 1, 5}},       {"(2, 3, 5)", {2, 3, 1, 5}},
        {"(2, 3, 9, 5)", {2, 3, 9, 5}}, {"(1, 1, 1, 1)", {1, 1, 1, 1}},
        {"(2,3,2,5,)", {2, 3, 2, 5}},
    };

    enter();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int width = 1; width <= 8; width *= 2)
            for (int version = 1; version <= 3; version++)
                read_back(version, width, cases[i].shape, cases[i].axes);
    leave();
}

/* Keys in any order, and spaces that NumPy adds for alignment. */
static void heads_may_be_written_otherwise(void)
{
    int64_t counts[2];
    ek_trace t;
    file f;

    enter();
    start_file(&f, 2, "{'shape':(1,2),'descr':'<u2'  ,'fortran_order' :  False}          \n");
    add_number(&f, 2, 258);
    add_number(&f, 2, 65535);
    CHECK(ek_trace_open(write_case(f.bytes, f.n), &t) == EK_OK);
    ek_trace_counts(&t, 0, 0, 1, counts);
    CHECK_INT(counts[0], 258);
    CHECK_INT(counts[1], 65535);
    ek_trace_close(&t);
    leave();
}

/* --- rejected files ------------------------------------------------------------------------- */

static void refused(const char *path, const char *word)
{
    ek_trace t;

    memset(&t, 0x5a, sizeof(t));
    CHECK_INT(ek_trace_open(path, &t), EK_EFORMAT);
    CHECK(strncmp(ek_err_message(), path, strlen(path)) == 0);
    if (strstr(ek_err_message(), word) == NULL)
        EK_T_FAIL("`%s` does not say `%s`", ek_err_message(), word);
    CHECK(t.data == NULL && t.map.data == NULL);
    ek_trace_close(&t);
}

/* Of 8 choices of 4 tokens, none may be above 4. */
static void scaled_to_the_tokens_of_a_rank(void)
{
    int64_t counts[2][3] = {{1000, 2000, 3000}, {0}}, weight[6];
    const int64_t wanted[3] = {1, 3, 4};
    int64_t remainder[3];
    int32_t open[3];
    ek_apportion_scratch scratch = {remainder, open};

    ek_trace_scale(&scratch, 2, 3, 4, 2, weight, counts[0]);
    for (int r = 0; r < 2; r++) /* the second rank has none, and gets the loads of all */
        for (int e = 0; e < 3; e++)
            CHECK_INT(counts[r][e], wanted[e]);
}

#define HEAD(type, order, shape)                                                                   \
    "{'descr': '" type "', 'fortran_order': " order ", 'shape': " shape ", }\n"

/* Each with the data of eight one-byte numbers, which would fit. */
static void bad_heads(void)
{
    static const char kind[] = "unsigned integers, little-endian", order[] = "C order";
    static const char axes[] = "2 to 4 axes", size[] = "8 bytes of numbers";
    static const char *const cases[][2] = {
        {HEAD("|i1", "False", "(2, 4)"), kind},
        {HEAD("<i2", "False", "(2, 2)"), kind},
        {HEAD(">u2", "False", "(2, 2)"), kind},
        {HEAD("=u2", "False", "(2, 2)"), kind},
        {HEAD("<f4", "False", "(2, 1)"), kind},
        {HEAD("|b1", "False", "(2, 4)"), kind},
        {HEAD("<u3", "False", "(2, 1)"), kind},
        {HEAD("<u16", "False", "(2, 4)"), kind},
        {HEAD("<u", "False", "(2, 4)"), kind},
        {HEAD("", "False", "(2, 4)"), kind},
        {"{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (2, 4), }\n", kind},
        {"{'fortran_order': False, 'shape': (2, 4), }\n", kind},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 4), }\n", order},
        {"{'descr': '|u1', 'shape': (2, 4), }\n", order},
        {"{'descr': '|u1', 'fortran_order': False, }\n", "without a shape"},
        {HEAD("|u1", "False", "[2, 4]"), "without a shape"},
        {HEAD("|u1", "False", "8"), "without a shape"},
        {HEAD("|u1", "False", "()"), axes},
        {HEAD("|u1", "False", "(8,)"), axes},
        {HEAD("|u1", "False", "(1, 1, 1, 2, 4)"), axes},
        {HEAD("|u1", "False", "(2, 0, 4)"), axes},
        {HEAD("|u1", "False", "(2, 4, 0)"), axes},
        {HEAD("|u1", "False", "(0, 8)"), axes},
        {HEAD("|u1", "False", "(-2, -4)"), axes},
        {HEAD("|u1", "False", "(two, 4)"), axes},
        {HEAD("|u1", "False", "(2147483648, 4)"), axes},
        {HEAD("|u1", "False", "(18446744073709551618, 4)"), axes}, /* 2 in 64 bits */
        {HEAD("|u1", "False", "(2, 3)"), size},
        {HEAD("|u1", "False", "(3, 3)"), size},
        {HEAD("<u2", "False", "(2, 4)"), size},
        {HEAD("<u8", "False", "(2, 4)"), size},
        {"", kind},
        {"{", kind},
    };
    file f;

    enter();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start_file(&f, 1 + (int)(i % 3), cases[i][0]);
        for (int k = 0; k < 8; k++)
            add_number(&f, 1, 1);
        refused(write_case(f.bytes, f.n), cases[i][1]);
    }
    leave();
}

/* Sizes that are 0 in 64 bits, without any data. */
static void sizes_that_wrap(void)
{
    static const char *const heads[] = {
        HEAD("<u8", "False", "(1073741824, 1073741824, 2)"),    /* 2^61 numbers of 2^3 bytes */
        HEAD("<u4", "False", "(1073741824, 1073741824, 4)"),    /* 2^62 of 2^2 */
        HEAD("|u1", "False", "(1073741824, 1073741824, 4, 4)"), /* 2^64 of a byte */
        HEAD("<u8", "False", "(1073741824, 1073741824, 4, 4)"),
    };
    file f;

    enter();
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        start_file(&f, 1, heads[i]);
        refused(write_case(f.bytes, f.n), "0 bytes of numbers");
    }
    start_file(&f, 1, HEAD("|u1", "False", "(1, 1, 65536, 65536)")); /* sums might overflow */
    refused(write_case(f.bytes, f.n), "65536 sources of 65536 experts are too many");
    leave();
}

static void bad_starts(void)
{
    file f, g;

    enter();
    start_trace(&f, 1, 1, "(2, 2)");
    add_number(&f, 4, 0);
    for (size_t i = 0; i < 6; i++) {
        g = f;
        g.bytes[i] ^= 1;
        refused(write_case(g.bytes, g.n), "not an .npy file");
    }
    g = f;
    g.bytes[6] = 0;
    refused(write_case(g.bytes, g.n), "not an .npy file");
    g.bytes[6] = 4;
    refused(write_case(g.bytes, g.n), "not an .npy file");
    g = f;
    g.bytes[9] = 0x0f; /* a header of nearly 4 KiB */
    refused(write_case(g.bytes, g.n), "an .npy header of");
    start_trace(&g, 2, 1, "(2, 2)");
    add_number(&g, 4, 0);
    g.bytes[11] = 0xff; /* of 4 GiB, in the longer field */
    refused(write_case(g.bytes, g.n), "an .npy header of");
    leave();
}

/* A header of 4095 bytes is read, one of 4096 is not: the limit of the copy. */
static void long_heads(void)
{
    static char head[4097];
    ek_trace t;
    file f;

    enter();
    memset(head, ' ', sizeof(head) - 1);
    memcpy(head, HEAD("|u1", "False", "(2, 2)"), strlen(HEAD("|u1", "False", "(2, 2)")));
    start_file(&f, 1, head);
    add_number(&f, 4, 0);
    refused(write_case(f.bytes, f.n), "an .npy header of 4096 bytes");
    head[4095] = '\0';
    start_file(&f, 1, head);
    add_number(&f, 4, 0);
    CHECK(ek_trace_open(write_case(f.bytes, f.n), &t) == EK_OK);
    ek_trace_close(&t);
    leave();
}

/* Truncated at any length, and with trailing bytes. */
static void truncated_and_too_long(void)
{
    ek_trace t;
    file f;

    enter();
    for (int version = 1; version <= 2; version++) {
        start_trace(&f, version, 4, "(2, 3)");
        for (int i = 0; i < 6; i++)
            add_number(&f, 4, 7);
        for (size_t n = 0; n < f.n; n++)
            refused(write_case(f.bytes, n), n > 12 ? "" : "not an .npy file");
        CHECK(ek_trace_open(write_case(f.bytes, f.n), &t) == EK_OK);
        ek_trace_close(&t);
        add_number(&f, 1, 0);
        refused(write_case(f.bytes, f.n), "25 bytes of numbers");
    }
    leave();
}

static void too_many_assignments(void)
{
    const uint64_t most = (uint64_t)1 << 40, beyond[] = {most + 1, UINT64_MAX, most << 20};
    int64_t counts[2];
    ek_trace t;
    file f;

    enter();
    start_trace(&f, 1, 8, "(1, 2)");
    add_number(&f, 8, 1);
    add_number(&f, 8, most);
    CHECK(ek_trace_open(write_case(f.bytes, f.n), &t) == EK_OK);
    ek_trace_counts(&t, 0, 0, 1, counts);
    CHECK_INT(counts[1], most);
    ek_trace_close(&t);
    for (int i = 0; i < 3; i++) {
        f.n -= 8;
        add_number(&f, 8, beyond[i]);
        refused(write_case(f.bytes, f.n), "number 1 is");
    }
    leave();
}

static void no_file(void)
{
    ek_path path;
    ek_trace t;

    enter();
    CHECK(ek_path_set(&path, "%s/none.npy", room.s) == EK_OK);
    CHECK_INT(ek_trace_open(path.s, &t), EK_ENOENT);
    ek_trace_close(&t);
    CHECK_INT(ek_trace_open(room.s, &t), EK_EFORMAT); /* a directory */
    leave();
}

/* --- sources and ranks ------------------------------------------------------------------------ */

static int64_t overlap(int64_t a, int64_t a_end, int64_t b, int64_t b_end)
{
    int64_t low = a > b ? a : b, high = a_end < b_end ? a_end : b_end;

    return high > low ? high - low : 0;
}

/* Source s covers [s ranks, (s + 1) ranks), rank r covers [r sources, (r + 1) sources): a rank gets
 * the overlap, within one assignment, and exactly where all parts are integers. */
static void check_rank(int32_t sources, int32_t ranks, int32_t rank, const int64_t *numbers,
                       int64_t got)
{
    wide want = 0, off;
    int whole = 1;

    for (int32_t s = 0; s < sources; s++) {
        int64_t part = overlap((int64_t)s * ranks, (int64_t)(s + 1) * ranks,
                               (int64_t)rank * sources, (int64_t)(rank + 1) * sources);

        want += (wide)numbers[s] * part;
        whole &= part == 0 || part == ranks;
    }
    off = (wide)got * ranks - want;
    CHECK(got >= 0);
    CHECK(whole ? off == 0 : off < ranks && off > -ranks);
}

static void fold(int32_t sources, int32_t ranks, const ek_trace *t, const int64_t *numbers)
{
    int64_t counts[SIDE * 2];

    ek_trace_counts(t, 0, 0, ranks, counts);
    for (int32_t e = 0; e < 2; e++) {
        int64_t sum = 0, want = 0, of[SIDE];

        for (int32_t s = 0; s < sources; s++)
            want += of[s] = numbers[s * 2 + e];
        for (int32_t r = 0; r < ranks; r++) {
            sum += counts[r * 2 + e];
            check_rank(sources, ranks, r, of, counts[r * 2 + e]);
        }
        CHECK_INT(sum, want);
    }
}

static void sources_fold_onto_any_ranks(void)
{
    enter();
    for (int32_t sources = 1; sources <= SIDE; sources++)
        for (int small = 0; small < 2; small++) {
            int64_t numbers[SIDE * 2];
            char shape[64];
            ek_trace t;
            file f;

            snprintf(shape, sizeof(shape), "(1, 1, %d, 2)", (int)sources);
            start_trace(&f, 1, 8, shape);
            for (int i = 0; i < sources * 2; i++) {
                numbers[i] = number(8, i) >> (small ? 36 : 0); /* fewer than ranks */
                add_number(&f, 8, (uint64_t)numbers[i]);
            }
            CHECK(ek_trace_open(write_case(f.bytes, f.n), &t) == EK_OK);
            for (int32_t ranks = 1; ranks <= SIDE; ranks++)
                fold(sources, ranks, &t, numbers);
            ek_trace_close(&t);
        }
    leave();
}

/* --- replay ----------------------------------------------------------------------------------- */

/* [iteration 2][layer 2][source 2][expert 4].  Layer 0 has totals 10 2 2 2, then 2 2 10 2, which
 * are loads of 12 and 4, and 4 and 12; layer 1 is even, with 8 each. */
static const unsigned char by_hand[] = {6, 2, 1, 1, 4, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2,
                                        1, 1, 5, 1, 1, 1, 5, 1, 0, 0, 4, 4, 4, 4, 0, 0};

typedef struct {
    int calls, ends_at; /* a failure at this call; 0: none */
    int64_t first;
    int32_t ranks, slots;
    int64_t quota[2][16]; /* the last of each layer */
} watch;

/* Checks that calls come in order, with the trace's counts and a plan that serves them. */
static ek_status see(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                     const ek_plan *served, const ek_replay_replicas *replicas)
{
    watch *w = context;
    ek_plan_limits l = {.experts = 4, .ranks = w->ranks, .slots = w->slots};
    int64_t total[4];

    CHECK(replicas->ahead == 0 && replicas->sent == NULL);
    CHECK_INT(iteration, w->first + w->calls / 2);
    CHECK_INT(layer, w->calls % 2);
    CHECK(ek_plan_check(&l, counts, served) == EK_OK);
    ek_plan_totals(&l, counts, total);
    for (int e = 0; e < 4; e++) {
        const unsigned char *p = by_hand + (iteration * 2 + layer) * 8 + e;

        CHECK_INT(total[e], p[0] + p[4]);
    }
    memcpy(w->quota[layer], served->quota, (size_t)(w->ranks * w->slots) * sizeof(int64_t));
    w->calls++;
    return w->calls == w->ends_at ? EK_FAIL(EK_ECANCELED, "enough") : EK_OK;
}

static void open_by_hand(ek_trace *t)
{
    file f;

    enter();
    start_trace(&f, 1, 1, "(2, 2, 2, 4)");
    for (size_t i = 0; i < sizeof(by_hand); i++)
        add_number(&f, 1, by_hand[i]);
    CHECK(ek_trace_open(write_case(f.bytes, f.n), t) == EK_OK);
}

static void close_by_hand(ek_trace *t)
{
    ek_trace_close(t);
    leave();
}

static ek_replay_config config(const ek_planner *planner, int32_t ranks, int32_t slots, watch *w)
{
    ek_replay_config c = {.planner = planner,
                          .limits = {.experts = 4, .ranks = ranks, .slots = slots},
                          .each = see,
                          .context = w};

    *w = (watch){.ranks = ranks, .slots = slots};
    c.limits.costs =
        (ek_plan_costs){.compute_s_per_row = 1, .replica_bytes = 100, .state_bytes = 1000};
    return c;
}

static void off_changes_nothing(void)
{
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_off, 2, 3, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK_INT(r.plans, 4);
    CHECK_INT(w.calls, 4);
    CHECK(r.before == 1.25 && r.mean == 1.25 && r.worst == 1.5);
    CHECK(r.bytes == 0 && r.speedup == 1 && r.rb_median == 1);
    CHECK(r.us_median >= 0 && r.us_p99 >= r.us_median);
    CHECK_INT(w.quota[0][3], 10);
    c.each = NULL;
    c.limits.slots = 2;
    CHECK(ek_replay(&t, &c, &r) == EK_OK && r.mean == 1.25);
    close_by_hand(&t);
}

static void exact_balances(void)
{
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_exact, 2, 3, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK_INT(w.calls, 4);
    CHECK(r.before == 1.25 && r.mean == 1 && r.worst == 1);
    CHECK(r.bytes == 50);          /* one replica in every other plan */
    CHECK(r.speedup == 40.0 / 32); /* 12 + 8 + 12 + 8 over 8 each */
    CHECK(r.rb_median == 8);       /* of 1 1 8 8; 4 over the rounding threshold */
    c.limits.slots = w.slots = 2;  /* no vacant slot */
    w.calls = 0;
    CHECK(ek_replay(&t, &c, &r) == EK_OK && r.mean == 1.25 && r.bytes == 0);
    close_by_hand(&t);
}

/* More ranks than sources, which divide neither them nor the experts: 16 on 3 ranks. */
static void exact_balances_three_ranks(void)
{
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_exact, 3, 4, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK_INT(w.calls, 4);
    /* Primary copies only: 12 2 2, 4 10 2 and 8 4 4 twice. */
    CHECK(fabs(r.before - (12 + 10 + 8 + 8) * 3.0 / 16 / 4) < 1e-12);
    CHECK(fabs(r.mean - 6 * 3.0 / 16) < 1e-12 && fabs(r.worst - r.mean) < 1e-12);
    close_by_hand(&t);
}

/* Iteration 0 plans a replica of expert 0 that serves 4 of its 10; of the 2 in iteration 1 it
 * serves one, and the loads are 3 and 13. */
static void lag_plans_from_earlier_counts(void)
{
    const int64_t want[] = {1, 2, 0, 10, 2, 1};
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_exact, 2, 3, &w);
    c.lag = 1;
    w.first = 1;
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK_INT(r.plans, 2);
    CHECK_INT(w.calls, 2);
    CHECK(r.before == 1.25 && r.mean == (1.625 + 1) / 2 && r.worst == 1.625);
    CHECK(memcmp(w.quota[0], want, sizeof(want)) == 0);
    close_by_hand(&t);
}

static void misfits_are_refused(void)
{
    static const int64_t lags[] = {-1, 2, 3, INT64_MAX, INT64_MIN};
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_off, 2, 3, &w);
    for (int i = 0; i < 5; i++) {
        c.lag = lags[i];
        CHECK_INT(ek_replay(&t, &c, &r), EK_EINVAL);
        CHECK(strstr(ek_err_message(), "lag") != NULL && r.plans == 0);
    }
    c.lag = 0;
    for (c.limits.experts = 3; c.limits.experts <= 5; c.limits.experts += 2) {
        CHECK_INT(ek_replay(&t, &c, &r), EK_EINVAL);
        CHECK(strstr(ek_err_message(), "the trace has 4 experts") != NULL);
    }
    CHECK_INT(w.calls, 0);
    close_by_hand(&t);
}

static void a_failure_ends_the_replay(void)
{
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&ek_planner_off, 2, 3, &w);
    w.ends_at = 3;
    CHECK_INT(ek_replay(&t, &c, &r), EK_ECANCELED);
    CHECK_INT(w.calls, 3);
    close_by_hand(&t);
}

/* --- inputs of a planner -------------------------------------------------------------------- */

static void *reserve_totals(ek_arena *a, const ek_plan_limits *l)
{
    return ek_arena_alloc(a, l->experts, sizeof(int64_t));
}

/* Swaps experts 0 and 3 unless already done; expert 1 gets a transient replica. */
static ek_status swap(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    p->placement.expert_of[5] = 1;
    p->placement.expert_of[0] = 3;
    p->placement.expert_of[4] = 0;
    p->placement.primary[3] = 0;
    p->placement.primary[0] = 4;
    ek_plan_totals(l, counts, memory);
    ek_plan_primaries_only(l, memory, p);
    return EK_OK;
}

/* The same, from a placement without the previous transient replica. */
static ek_status swap_anew(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    CHECK(p->placement.primary[0] == 0 && p->placement.primary[3] == 4);
    CHECK(p->placement.expert_of[5] == -1);
    return swap(memory, l, counts, p);
}

static void *reserve_totals_and_calls(ek_arena *a, const ek_plan_limits *l)
{
    return ek_arena_alloc(a, l->experts + 1, sizeof(int64_t));
}

/* A replica in the first iteration that is still there in the second: in each of two layers. */
static ek_status add_once(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    int64_t *calls = (int64_t *)memory + l->experts;

    CHECK_INT(p->placement.expert_of[5], (*calls)++ < 2 ? -1 : 1);
    p->placement.expert_of[5] = 1;
    ek_plan_totals(l, counts, memory);
    ek_plan_primaries_only(l, memory, p);
    return EK_OK;
}

static ek_status lose_one(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_plan_totals(l, counts, memory);
    ek_plan_primaries_only(l, memory, p);
    p->quota[0]--;
    return EK_OK;
}

static ek_status give_up(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    (void)memory;
    (void)l;
    (void)counts;
    (void)p;
    return EK_FAIL(EK_EUNSUPPORTED, "not today");
}

/* The moves of a persistent placement are counted once, transient replicas each time. */
static void bytes_of_moves_and_replicas(void)
{
    ek_planner persistent = {.name = "swap", .reserve = reserve_totals, .plan_persistent = swap};
    ek_planner fleeting = {.name = "swap", .reserve = reserve_totals, .plan_transient = swap_anew};
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&persistent, 2, 3, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK(r.bytes == 100 + 3 * 1000 / 2); /* three experts in the first of two iterations */
    CHECK_INT(w.quota[0][4], 2);          /* expert 0 on its new primary rank */
    c = config(&fleeting, 2, 3, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK(r.bytes == 100);
    close_by_hand(&t);
}

static void layers_have_placements_of_their_own(void)
{
    ek_planner planner = {
        .name = "add", .reserve = reserve_totals_and_calls, .plan_persistent = add_once};
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&planner, 2, 3, &w);
    CHECK(ek_replay(&t, &c, &r) == EK_OK);
    CHECK(r.bytes == 100 + 1000 / 2);
    close_by_hand(&t);
}

static void bad_plans_end_the_replay(void)
{
    ek_planner planner = {.name = "bad", .reserve = reserve_totals, .plan_transient = lose_one};
    ek_replay_result r;
    ek_replay_config c;
    ek_trace t;
    watch w;

    open_by_hand(&t);
    c = config(&planner, 2, 3, &w);
    CHECK_INT(ek_replay(&t, &c, &r), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "its slots serve 9") != NULL);
    planner.plan_transient = give_up;
    CHECK_INT(ek_replay(&t, &c, &r), EK_EUNSUPPORTED);
    CHECK_INT(w.calls, 0);
    close_by_hand(&t);
}

static const ek_case cases[] = {
    EK_CASE(reads_all_widths_axes_and_versions),
    EK_CASE(heads_may_be_written_otherwise),
    EK_CASE(scaled_to_the_tokens_of_a_rank),
    EK_CASE(bad_heads),
    EK_CASE(sizes_that_wrap),
    EK_CASE(bad_starts),
    EK_CASE(long_heads),
    EK_CASE(truncated_and_too_long),
    EK_CASE(too_many_assignments),
    EK_CASE(no_file),
    EK_CASE(sources_fold_onto_any_ranks),
    EK_CASE(off_changes_nothing),
    EK_CASE(exact_balances),
    EK_CASE(exact_balances_three_ranks),
    EK_CASE(lag_plans_from_earlier_counts),
    EK_CASE(misfits_are_refused),
    EK_CASE(a_failure_ends_the_replay),
    EK_CASE(bytes_of_moves_and_replicas),
    EK_CASE(layers_have_placements_of_their_own),
    EK_CASE(bad_plans_end_the_replay),
};
EK_TEST_MAIN(cases)
