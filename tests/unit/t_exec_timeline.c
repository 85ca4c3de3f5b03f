/* Recorded events: the timeline file, and the sums of compute, network and exposed time. */
#include "base/random.h"
#include "ek_test.h"
#include "exec/exec.h"

#include <jansson.h>

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s != NULL ? s : "";
}

/* Writes the file, reads it back and removes it. */
static json_t *written(const ek_event *events, int64_t n, const ek_timeline_rank *who)
{
    char path[] = "/tmp/ek-timeline-XXXXXX";
    int fd = mkstemp(path);
    json_t *root;

    CHECK(fd >= 0);
    CHECK(ek_timeline_write(events, n, who, path) == EK_OK);
    root = json_load_file(path, 0, NULL);
    CHECK(json_is_array(json_object_get(root, "traceEvents")));
    close(fd);
    unlink(path);
    return root;
}

/* Finds the event of this phase and name. */
static const json_t *event(const json_t *root, const char *phase, const char *name)
{
    size_t at;
    const json_t *e, *found = NULL;

    json_array_foreach(json_object_get(root, "traceEvents"), at, e)
    {
        if (strcmp(text(e, "ph"), phase) == 0 && strcmp(text(e, "name"), name) == 0)
            found = e;
    }
    CHECK(found != NULL);
    return found;
}

static const json_t *slice(const json_t *root, const char *name)
{
    return event(root, "X", name);
}

/* The name of the track that a slice is on: the last "M" event of this kind and track. */
static const char *track_name(const json_t *root, const json_t *of)
{
    size_t at;
    const json_t *e;
    const char *name = "";

    json_array_foreach(json_object_get(root, "traceEvents"), at, e)
    {
        if (strcmp(text(e, "name"), "thread_name") == 0 && number(e, "pid") == number(of, "pid") &&
            number(e, "tid") == number(of, "tid"))
            name = text(json_object_get(e, "args"), "name");
    }
    return name;
}

static void the_timeline_is_json(void)
{
    const ek_work send = {.kind = EK_WORK_NET,
                          .net = {.collective = EK_COLLECTIVE_SEND,
                                  .group = {.first = 3, .stride = 8, .n = 4},
                                  .span = 4,
                                  .peer = 2,
                                  .element = 1,
                                  .bytes = 128}};
    const ek_event events[] = {
        {EK_OP_QKV, EK_LANE_COMPUTE, 1, 2, 3, 0, 5000000, 7500000, 5e6, 64, 0, {0}},
        {EK_OP_SEND, EK_LANE_NET, -1, -1, -1, 0, 1000000, 9000000, 0, 128, 0, send},
    };
    json_t *root = written(events, 2, NULL);
    const json_t *late = slice(root, "qkv"), *early = slice(root, "send");

    CHECK(number(late, "ts") == 4000 && number(late, "dur") == 2500);
    CHECK(number(late, "tid") == EK_LANE_COMPUTE && number(late, "pid") == 0);
    CHECK(number(json_object_get(late, "args"), "layer") == 1);
    CHECK(number(json_object_get(late, "args"), "gflops_per_s") == 2);
    CHECK(strcmp(track_name(root, late), "compute") == 0);
    CHECK(number(early, "ts") == 0 && number(early, "dur") == 8000);
    CHECK(strcmp(track_name(root, early), "net") == 0);
    CHECK(strcmp(text(json_object_get(early, "args"), "collective"), "send") == 0);
    CHECK(number(json_object_get(early, "args"), "ranks") == 4);
    CHECK(number(json_object_get(early, "args"), "peer") == 19);
    CHECK(json_object_get(json_object_get(late, "args"), "collective") == NULL);
    json_decref(root);
    root = written(events, 0, NULL);
    json_decref(root);
    CHECK_INT(ek_timeline_write(events, 2, NULL, "/nowhere/timeline.json"), EK_ENOENT);
    CHECK(strstr(ek_err_message(), "/nowhere/timeline.json") != NULL);
}

static void ranks_and_tracks_are_told_apart(void)
{
    const ek_event events[] = {
        {EK_OP_GATHER_WEIGHTS, EK_LANE_NET, 0, 0, 0, 0, 4000000, 6000000, 0, 64, 1, {0}},
        {EK_OP_REDUCE_GRADIENTS, EK_LANE_NET, 0, 0, 0, 0, 3000000, 9000000, 0, 64, 0, {0}},
        {EK_OP_SEND, EK_LANE_SUMS, 0, 0, 0, 0, 3000000, 9000000, 0, 64, 0, {0}},
    };
    static const int64_t begun[] = {2500000, 7000000};
    static const char *const names[] = {"exact", "off"};
    const ek_timeline_rank who = {.rank = 5,
                                  .ranks = 8,
                                  .origin_ns = 1000000,
                                  .step_ns = begun,
                                  .step_names = names,
                                  .first_step = 41,
                                  .n_steps = 2};
    json_t *root = written(events, 3, &who);
    const json_t *gather = slice(root, "gather weights"), *reduce = slice(root, "reduce gradients");

    CHECK(number(gather, "ts") == 3000 && number(reduce, "ts") == 2000);
    CHECK(number(gather, "pid") == 5 && number(reduce, "pid") == 5);
    CHECK(number(event(root, "i", "step 41"), "ts") == 1500 &&
          number(event(root, "i", "step 42"), "ts") == 6000);
    CHECK(number(json_object_get(event(root, "i", "step 42"), "args"), "step") == 42);
    CHECK(strcmp(text(json_object_get(event(root, "i", "step 42"), "args"), "name"), "off") == 0);
    CHECK(strcmp(track_name(root, gather), "net 1") == 0);
    CHECK(strcmp(track_name(root, reduce), "net 0") == 0);
    CHECK(strcmp(track_name(root, slice(root, "send")), "sums") == 0);
    CHECK(strcmp(
              text(json_object_get(json_array_get(json_object_get(root, "traceEvents"), 0), "args"),
                   "name"),
              "evenkeel rank 5 of 8") == 0);
    json_decref(root);
}

enum { TIME = 400, EVENTS = 50 };

static int by_end(const void *a, const void *b)
{
    const ek_event *x = a, *y = b;

    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* Random events of one run from time `from` on, lanes one after the other: compute ops that do not
 * overlap, and ops of the asynchronous lanes, which may.  Returns their number. */
static int64_t random_run(uint64_t seed, int64_t from, ek_event *e)
{
    const ek_lane lanes[] = {EK_LANE_SUMS, EK_LANE_NET, EK_LANE_DISK};
    int64_t n = 0, t = from, first;

    while ((t += (int64_t)(ek_random_bits(seed, 1, (uint64_t)n) % 20)) < from + TIME / 2 - 20) {
        int64_t len = (int64_t)(ek_random_bits(seed, 2, (uint64_t)n) % 20);

        e[n++] = (ek_event){.lane = EK_LANE_COMPUTE, .start_ns = t, .end_ns = t + len};
        t += len;
    }
    first = n;
    for (uint64_t i = 0; i < ek_random_bits(seed, 3, 0) % 12; i++) {
        int64_t start = from + (int64_t)(ek_random_bits(seed, 4, i) % (TIME / 2 - 40));
        int64_t len = (int64_t)(ek_random_bits(seed, 5, i) % 40);

        e[n++] = (ek_event){.lane = lanes[ek_random_bits(seed, 6, i) % 3],
                            .start_ns = start,
                            .end_ns = start + len};
    }
    qsort(e + first, (size_t)(n - first), sizeof(*e), by_end);
    e[n++] = (ek_event){.lane = EK_LANE_COPY, .start_ns = from, .end_ns = from + TIME / 2};
    return n;
}

static void sums_count_every_moment_once(void)
{
    static ek_event e[2 * EVENTS];

    for (uint64_t seed = 0; seed < 300; seed++) {
        int64_t n = random_run(seed, 0, e), compute = 0, net = 0, exposed = 0;
        int64_t disk = 0, disk_exposed = 0;
        ek_exec_times t;

        n += random_run(seed + 1000, TIME / 2, e + n);
        for (int64_t at = 0; at < TIME; at++) { /* brute force, for each time unit */
            int computes = 0, talks = 0, reads = 0;

            for (int64_t i = 0; i < n; i++)
                if (e[i].start_ns <= at && at < e[i].end_ns) {
                    computes |= e[i].lane == EK_LANE_COMPUTE;
                    talks |= e[i].lane == EK_LANE_NET || e[i].lane == EK_LANE_SUMS;
                    reads |= e[i].lane == EK_LANE_DISK;
                }
            compute += computes;
            net += talks;
            exposed += talks && !computes;
            disk += reads;
            disk_exposed += reads && !computes;
        }
        ek_exec_sum(e, n, &t);
        CHECK_INT((int64_t)(t.wall_s * 1e9 + 0.5), TIME);
        CHECK_INT((int64_t)(t.compute_s * 1e9 + 0.5), compute);
        CHECK_INT((int64_t)(t.net_s * 1e9 + 0.5), net);
        CHECK_INT((int64_t)(t.exposed_s * 1e9 + 0.5), exposed);
        CHECK_INT((int64_t)(t.disk_s * 1e9 + 0.5), disk);
        CHECK_INT((int64_t)(t.disk_exposed_s * 1e9 + 0.5), disk_exposed);
    }
    {
        ek_exec_times none;

        ek_exec_sum(e, 0, &none);
        CHECK(none.wall_s == 0 && none.compute_s == 0 && none.net_s == 0 && none.exposed_s == 0);
    }
}

static const ek_case cases[] = {
    EK_CASE(the_timeline_is_json),
    EK_CASE(ranks_and_tracks_are_told_apart),
    EK_CASE(sums_count_every_moment_once),
};
EK_TEST_MAIN(cases)
