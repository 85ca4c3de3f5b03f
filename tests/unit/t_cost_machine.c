/* Tables: exact at their points, never less time for more work; the machine file: written and read
 * again as it was, and refused with the name of what is wrong. */
#include "ek_test.h"
#include "machine_fixture.h"

#include <sys/stat.h>

/* --- tables ----------------------------------------------------------------------------------- */

static void exact_at_points(void)
{
    const double x[] = {1, 7, 7.5, 4096, 1e7}, y[] = {3e-6, 3e-6, 0.1, 0.11, 77};
    ek_cost_table t = table_of(5, x, y);

    for (int i = 0; i < 5; i++) {
        CHECK(ek_cost_time_at(&t, x[i]) == y[i]);
        CHECK(ek_cost_rate_at(&t, x[i]) == y[i]);
    }
}

static void between_and_outside(void)
{
    const double x[] = {1, 100}, y[] = {1e-6, 1e-2};
    ek_cost_table t = table_of(2, x, y), none = {0};

    CHECK(fabs(ek_cost_time_at(&t, 10) / 1e-4 - 1) < 1e-12); /* half way in both logarithms */
    CHECK(ek_cost_time_at(&t, 0) == 1e-6);
    CHECK(ek_cost_time_at(&t, 0.5) == 1e-6);
    CHECK(fabs(ek_cost_time_at(&t, 300) / 3e-2 - 1) < 1e-12);
    CHECK(fabs(ek_cost_rate_at(&t, 0.5) / 0.5e-6 - 1) < 1e-12);
    CHECK(ek_cost_rate_at(&t, 300) == 1e-2);
    CHECK(ek_cost_time_at(&none, 5) == 0 && ek_cost_rate_at(&none, 5) == 0);
}

/* Noise on top of a plausible curve, smoothed. */
static ek_cost_table noisy(int rates, int seed)
{
    ek_cost_table t = {.n = 7};

    for (int i = 0; i < t.n; i++) {
        double noise = 1 + 0.9 * sin(12.9898 * (i + 1) * (seed + 3));

        t.x[i] = pow(4, i);
        t.y[i] = rates ? noise * 1e9 * fmin(t.x[i], 64) : noise * (1e-5 + 1e-9 * t.x[i]);
    }
    (rates ? ek_cost_smooth_rates : ek_cost_smooth_times)(&t);
    return t;
}

static void more_work_takes_no_less_time(void)
{
    for (int seed = 0; seed < 20; seed++) {
        ek_cost_table times = noisy(0, seed), rates = noisy(1, seed);
        double time = 0, work = 0;

        for (double x = 0.25; x < 1e5; x *= 1.01) {
            double t = ek_cost_time_at(&times, x), w = x / ek_cost_rate_at(&rates, x);

            CHECK(t >= time);
            CHECK(w >= work * (1 - 1e-12));
            time = t;
            work = w;
        }
    }
}

/* What noise made slow is as quick as what is larger; nothing else changes. */
static void smoothing(void)
{
    const double x[] = {1, 2, 4, 8}, y[] = {5, 3, 4, 9}, rate[] = {1, 1, 4, 4};
    ek_cost_table t = table_of(4, x, y), r = table_of(4, x, rate);

    ek_cost_smooth_times(&t);
    CHECK(t.y[0] == 3 && t.y[1] == 3 && t.y[2] == 4 && t.y[3] == 9);
    ek_cost_smooth_rates(&r); /* 4 units at rate 4 take 1, so 2 units do not take 2 */
    CHECK(r.y[0] == 1 && r.y[1] == 2 && r.y[2] == 4 && r.y[3] == 4);
}

/* --- the file --------------------------------------------------------------------------------- */

static void same_after(const ek_machine *m)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_machine back;

    CHECK(ek_machine_text(m, &text, &bytes) == EK_OK);
    CHECK(text != NULL && strlen(text) == bytes);
    CHECK(ek_machine_parse(text, bytes, "text", &back) == EK_OK);
    CHECK(memcmp(m, &back, sizeof(back)) == 0);
    free(text);
}

static void round_trip(void)
{
    ek_machine m = by_hand();

    same_after(&m);
    snprintf(m.name, sizeof(m.name), "a \"name\"\\ with\nall \xc3\xa9 that hurts");
    snprintf(m.key, sizeof(m.key), "key; with 100 %%");
    snprintf(m.dtype, sizeof(m.dtype), "fp32");
    m.took_s = 0.1 + 0.2; /* takes 17 digits */
    m.rate[0].y[1] = 1e12 / 3;
    m.rate[0].y[0] = 1e12 / 7;
    memset(&m.link[EK_LINK_NET], 0, sizeof(m.link[0])); /* one node */
    same_after(&m);
    memset(&m.link[EK_LINK_NODE], 0, sizeof(m.link[0])); /* one rank */
    same_after(&m);
    m.rate[1].n = 1;
    m.rate[1].x[1] = m.rate[1].y[1] = 0;
    same_after(&m);
}

static void kernels_round_trip(void)
{
    ek_machine m = by_hand_with_kernels();

    same_after(&m);
    m.op_s = 1e-7 / 3;
    m.polling = 0.1 / 3;
    m.rank_alone = 5.0 / 3;
    m.node_alone = 1;
    m.link[EK_LINK_NET].seconds_a_byte_beside = 1e-9 / 3;
    m.link[EK_LINK_NODE].arrival_skew_s = 1e-3 / 3;
    m.link[EK_LINK_NET].burst = 1e5 / 3;
    m.kernels.n = 1;
    memset(&m.kernels.cost[1], 0, (EK_KERNEL_COSTS_MAX - 1) * sizeof(m.kernels.cost[0]));
    same_after(&m);
}

static ek_machine by_hand_in_training(void)
{
    ek_machine m = by_hand();

    m.training = (ek_training_rates){
        .rows = 1024, .seq = 256, .flops_per_s = 3e12, .adamw = 7e9, .attention_s = 1e-6};
    return m;
}

static void training_round_trips(void)
{
    ek_machine m = by_hand_in_training();

    same_after(&m);
}

/* Rates of training replace those of planners; where there are none only messages change. */
static void in_training(void)
{
    ek_machine m = by_hand_in_training(), out;
    const double few[] = {1e3}, at_few[] = {50e-6};

    m.link[EK_LINK_NET].message = table_of(1, few, at_few);
    ek_machine_in_training(&m, &out);
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        CHECK(ek_cost_rate_at(&out.rate[p], 1024) == 3e12);
        CHECK(ek_cost_rate_at(&out.rate[p], 4096) == 3e12);
    }
    CHECK(out.copy == 7e9);
    CHECK_INT(out.link[EK_LINK_NET].message.n, 3);
    CHECK(ek_cost_time_at(&out.link[EK_LINK_NET].message, 1e3) == 50e-6);
    CHECK(ek_cost_time_at(&out.link[EK_LINK_NET].message, 1e6) == 2 * 10e-3);
    CHECK(ek_machine_check(&out, "in training") == EK_OK);
    CHECK_INT(out.link[EK_LINK_NODE].message.n, 2);
    m = by_hand();
    ek_machine_in_training(&m, &out);
    CHECK(memcmp(&m, &out, sizeof(m)) == 0);
}

static void a_file_of_version_1_is_read_as_without_kernels(void)
{
    static const char tail[] = ",\n  \"kernels\": []\n}\n", op[] = "  \"op_s\": 0,\n";
    ek_machine m = by_hand(), back;
    char *text = NULL, *at;
    size_t bytes = 0;

    CHECK(ek_machine_text(&m, &text, &bytes) == EK_OK);
    at = strstr(text, "\"evenkeel_machine\": 2");
    CHECK(at != NULL && bytes > sizeof(tail) &&
          strcmp(text + bytes - (sizeof(tail) - 1), tail) == 0);
    at[strlen("\"evenkeel_machine\": ")] = '1';
    CHECK_INT(ek_machine_parse(text, bytes, "m.json", &back), EK_EFORMAT); /* has keys of 2 */
    snprintf(text + bytes - (sizeof(tail) - 1), sizeof(tail), "\n}\n");
    at = strstr(text, op);
    CHECK(at != NULL);
    memmove(at, at + strlen(op), strlen(at + strlen(op)) + 1);
    CHECK_INT(ek_machine_parse(text, strlen(text), "m.json", &back), EK_OK);
    CHECK(memcmp(&m, &back, sizeof(m)) == 0);
    free(text);
}

static void on_disk(void)
{
    char folder[] = "/tmp/ek_machine_XXXXXX", path[64];
    ek_machine m = by_hand(), back;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/m.json", folder);
    CHECK(ek_machine_read(path, &back) == EK_ENOENT);
    CHECK(strstr(ek_err_message(), path) != NULL);
    CHECK(ek_machine_write(&m, path) == EK_OK);
    CHECK(ek_machine_read(path, &back) == EK_OK);
    CHECK(memcmp(&m, &back, sizeof(m)) == 0);
    m.copy = -1; /* is never written */
    CHECK(ek_machine_write(&m, path) == EK_EFORMAT);
    CHECK(ek_machine_read(path, &back) == EK_OK && back.copy == 20e9);
    unlink(path);
    rmdir(folder);
}

/* The text of a machine with its first `from` made `to`. */
static char *edited(const char *from, const char *to)
{
    ek_machine m = by_hand_with_kernels();
    char *text = NULL, *out, *at;
    size_t bytes = 0, room;

    CHECK(ek_machine_text(&m, &text, &bytes) == EK_OK);
    room = bytes + strlen(to) + 1;
    out = calloc(room, 1);
    at = strstr(text, from);
    if (at == NULL)
        EK_T_FAIL("there is no %s in the file", from);
    else
        snprintf(out, room, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

static void refused(const char *from, const char *to, const char *message)
{
    char *text = edited(from, to);
    ek_machine m;

    memset(&m, 1, sizeof(m));
    CHECK_INT(ek_machine_parse(text, strlen(text), "m.json", &m), EK_EFORMAT);
    if (strstr(ek_err_message(), message) == NULL || strncmp(ek_err_message(), "m.json: ", 8) != 0)
        EK_T_FAIL("%s -> %s: \"%s\", expected \"%s\"", from, to, ek_err_message(), message);
    CHECK(m.ranks == 0 && m.rate[0].n == 0); /* nothing is left of it */
    free(text);
}

static void malformed(void)
{
    refused("{", "[", "not valid JSON");
    refused("\"evenkeel_machine\": 2", "\"evenkeel_machine\": 3", "version 3; this program reads");
    refused("\"evenkeel_machine\": 2,", "",
            "not a machine file, as key `evenkeel_machine` is missing");
    refused("\"evenkeel_machine\": 2", "\"evenkeel_machine\": 1", "key `op_s` is unknown");
    refused("\"threads\": 1", "\"treads\": 1", "key `treads` is unknown");
    refused("\"threads\": 1,", "", "key `threads` is missing");
    refused("\"threads\": 1", "\"threads\": 0", "key `threads`: 0 is not between");
    refused("\"threads\": 1", "\"threads\": 1.5", "key `threads`: expected an integer");
    refused("bf16", "fp8", "\"fp8\" is none of bf16, fp32 and fp64");
    refused("bf16", "a long name of a type", "key `dtype`: longer than 7 bytes");
    refused("\"made up\"", "7", "key `name`: expected a string");
    refused("1.25", "-1", "key `measured_in_s`: -1 is not a valid time");
    refused("\"copy_bytes_per_s\": 2e+10", "\"copy_bytes_per_s\": 0",
            "key `copy_bytes_per_s`: 0 is not above 0");
    refused("[4, 16]", "[16, 4]", "key `forward`: sizes must ascend, but 4 follows 16");
    refused("[4, 16]", "[4, 4]", "key `forward`: sizes must ascend");
    refused("[4, 16]", "[0, 16]", "key `forward`: size 0 of point 1");
    refused("[4, 16]", "[4]", "key `forward`: 1 of `rows_an_expert`, but 2 of `flops_per_s`");
    refused("[4, 16]", "[]", "key `forward.rows_an_expert`: 0 points");
    refused("[4, 16]", "[4, \"16\"]", "key `forward.rows_an_expert`: expected a number");
    refused("[4, 16]", "7", "key `forward.rows_an_expert`: expected an array");
    refused("[5e+11, 1e+12]", "[1e11, 1e12]",
            "key `forward`: at these rates 16 rows take less time than 4");
    refused("[5e+11, 1e+12]", "[5e+11, -1]", "key `forward`: value -1 of point 2");
    refused("\"forward\": {", "\"forward\": 1, \"x\": {", "key `x` is unknown");
    refused("\"flops_per_s\"", "\"gflops_per_s\"", "key `gflops_per_s` is unknown");
    refused("\"expert\": {", "\"expert\": 3, \"node\": {", "not valid JSON");
    refused("\"ranks_a_node\": 2", "\"ranks_a_node\": 0", "key `ranks_a_node`: 0 is not between");
    refused("[1e-05, 0.001]", "[1e-3, 1e-5]", "key `node.all_to_all`: 1e+06 takes less time");
    refused("\"multicast\"", "\"broadcast\"", "key `broadcast` is unknown");
}

static void malformed_training(void)
{
    static const struct {
        const char *from, *to, *message;
    } edits[] = {
        {"\"rows_an_expert\": 1024", "\"rows_an_expert\": 0", "`rows_an_expert`: 0 is not between"},
        {"\"flops_per_s\": 3e+12", "\"flops_per_s\": 0",
         "key `training.flops_per_s`: 0 is not above 0"},
        {"\"tokens_a_sequence\": 256,", "", "key `tokens_a_sequence` is missing"},
        {"\"adamw_bytes_per_s\"", "\"adam_bytes_per_s\"", "key `adam_bytes_per_s` is unknown"}};
    ek_machine m = by_hand_in_training(), back;

    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char *text = NULL, *at;
        size_t bytes = 0, from = strlen(edits[i].from), to = strlen(edits[i].to);

        CHECK(ek_machine_text(&m, &text, &bytes) == EK_OK);
        at = strstr(text, edits[i].from);
        CHECK(at != NULL && to <= from);
        memmove(at + to, at + from, strlen(at + from) + 1);
        memcpy(at, edits[i].to, to);
        CHECK_INT(ek_machine_parse(text, strlen(text), "m.json", &back), EK_EFORMAT);
        CHECK(strstr(ek_err_message(), edits[i].message) != NULL);
        free(text);
    }
}

static void malformed_kernels(void)
{
    refused("\"op_s\": 1e-06,", "", "key `op_s` is missing");
    refused("\"op_s\": 1e-06", "\"op_s\": -1", "key `op_s`: -1 is not a time of an op");
    refused("\"op_s\": 1e-06", "\"op_s\": 1e-06, \"polling\": -1",
            "key `polling`: -1 is not a share");
    refused("\"op_s\": 1e-06", "\"op_s\": 1e-06, \"rank_alone\": 0.5",
            "key `rank_alone`: 0.5 is not between 1 and 1000");
    refused("\"op_s\": 1e-06", "\"op_s\": 1e-06, \"node_alone\": -1",
            "key `node_alone`: -1 is not between 1 and 1000");
    refused("\"ranks_a_node\": 2", "\"seconds_a_byte_beside\": 2, \"ranks_a_node\": 2",
            "key `node.seconds_a_byte_beside`: 2 is not a time of a byte");
    refused("\"ranks_a_node\": 2", "\"seconds_of_arrival_skew\": -1, \"ranks_a_node\": 2",
            "key `node.seconds_of_arrival_skew`: -1 is no time");
    refused("\"ranks_a_node\": 2", "\"burst_bytes\": -1, \"ranks_a_node\": 2",
            "key `node.burst_bytes`: -1 is no number of bytes");
    refused("\"kernels\": [", "\"kernels\": 7, \"x\": [", "key `x` is unknown");
    refused("\"kernel\": \"norm\"", "\"kernel\": \"form\"", "\"form\" is not a kernel");
    refused("\"kernel\": \"norm\",", "", "key `kernel` is missing");
    refused("\"kernel\": \"norm\",", "\"kernel\": \"norm\", \"out\": 1,", "key `out` is unknown");
    refused("\"kernel\": \"pack\"", "\"kernel\": \"norm\"", "norm: the same sizes twice");
    refused("\"out\": 200,", "", "key `out` is missing");
    refused("\"out\": 200", "\"out\": 0", "key `out`: 0 is not between");
    refused("\"rows_a_group\": [4, 16]", "\"rows_a_group\": [4]",
            "key `product forward`: 1 of `rows_a_group`, but 2 of `flops_per_s`");
    refused("[1.5e+12, 3e+12]", "[1e11, 3e12]", "key `product forward`: at these rates 16 rows");
}

/* More points than a table holds. */
static void too_many_points(void)
{
    char list[512] = "[1";

    for (int i = 2; i <= EK_COST_POINTS + 1; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), ", %d", i);
    strcat(list, "]");
    refused("[4, 16]", list, "key `forward.rows_an_expert`: 25 points; 1 to 24 are allowed");
}

static const ek_case cases[] = {
    EK_CASE(exact_at_points),
    EK_CASE(between_and_outside),
    EK_CASE(more_work_takes_no_less_time),
    EK_CASE(smoothing),
    EK_CASE(round_trip),
    EK_CASE(on_disk),
    EK_CASE(malformed),
    EK_CASE(too_many_points),
    EK_CASE(kernels_round_trip),
    EK_CASE(training_round_trips),
    EK_CASE(in_training),
    EK_CASE(malformed_training),
    EK_CASE(malformed_kernels),
    EK_CASE(a_file_of_version_1_is_read_as_without_kernels),
};
EK_TEST_MAIN(cases)
