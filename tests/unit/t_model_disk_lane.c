/* The disk lane: ops that read a file through a queue, several in flight, while compute ops run. */
#include "base/clock.h"
#include "base/progress_hook.h"
#include "disk_fixture.h"
#include "exec/exec.h"

#include <stdatomic.h>

enum { READS = 12, BYTES = 256 * 1024, SKIP_BYTES = 1000, SIZE = READS * BYTES + SKIP_BYTES };

static const ek_exec_config modes[] = {{.inline_async = 0}, {.inline_async = 1}};

/* What the ops of a graph share. */
typedef struct {
    ek_disk *disk;
    ek_disk_file *file;
    ek_disk_request requests[READS];
    atomic_int started, ended;
    int ahead; /* how many later reads a compute op waits for */
    uint64_t sums[READS];
} reading;

/* Reads part op->part: the way in which an op uses a queue. */
static ek_status fetch_part(void *self, const ek_op *op)
{
    reading *s = self;
    ek_disk_request *r = *op->state;
    ek_status st;

    if (r == NULL) {
        r = &s->requests[op->part];
        EK_TRY(ek_disk_start(s->disk, r));
        *op->state = r;
        atomic_fetch_add(&s->started, 1);
    }
    st = ek_disk_test(s->disk, r);
    if (st == EK_OK)
        atomic_fetch_add(&s->ended, 1);
    return st;
}

/* Adds up a part that was read, and goes on computing until `ahead` more have arrived: it ends only
 * if reads go on meanwhile. */
static ek_status add_part(void *self, const ek_op *op)
{
    reading *s = self;
    const ek_disk_request *r = &s->requests[op->part];
    int want = op->part + 1 + s->ahead < READS ? op->part + 1 + s->ahead : READS;

    do {
        s->sums[op->part] = 0;
        for (size_t i = 0; i < r->bytes; i++)
            s->sums[op->part] += r->data[i] * (i % 251 + 1);
        ek_progress();
    } while (atomic_load(&s->ended) < want);
    return EK_OK;
}

static uint64_t sum_of(const unsigned char *data)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < BYTES; i++)
        sum += data[i] * (i % 251 + 1);
    return sum;
}

static void add_ops(ek_graph *g, reading *s)
{
    for (int i = 0; i < READS; i++) {
        ek_op op = {.kind = EK_OP_GATHER_WEIGHTS,
                    .run = fetch_part,
                    .self = s,
                    .lane = EK_LANE_DISK,
                    .layer = i,
                    .micro = -1,
                    .part = i,
                    .bytes = BYTES};
        int32_t read = ek_graph_after(g, &op, -1);

        op.kind = EK_OP_EXPERT_UP;
        op.run = add_part;
        op.lane = EK_LANE_COMPUTE;
        ek_graph_after(g, &op, read);
    }
}

static int open_reading(reading *s, ek_disk_backend backend, const disk_file *file)
{
    ek_disk_config c = {.depth = 4, .piece_bytes = 16 * EK_DISK_ALIGN};

    memset(s, 0, sizeof(*s));
    s->disk = open_disk(&c, backend);
    if (s->disk == NULL)
        return 0;
    CHECK(ek_disk_open(s->disk, file->path, EK_DISK_READ, &s->file) == EK_OK);
    for (size_t i = 0; i < READS; i++)
        s->requests[i] =
            read_of(s->file, SKIP_BYTES + i * BYTES, BYTES, aligned_buffer(ek_disk_room(BYTES)));
    return 1;
}

static void close_reading(reading *s)
{
    ek_disk_destroy(&s->disk); /* before the buffers: after a failure reads may be in flight */
    for (int i = 0; i < READS; i++)
        free(s->requests[i].buffer);
}

/* Whether reads and compute ops were in progress at the same time, and so were several reads. */
static int they_overlap(const ek_event *events, int64_t n)
{
    ek_exec_times t;
    int32_t tracks = 0;

    for (int64_t i = 0; i < n; i++)
        if (events[i].lane == EK_LANE_DISK && events[i].track >= tracks)
            tracks = events[i].track + 1;
    ek_exec_sum(events, n, &t);
    CHECK_INT(n, 2 * READS);
    CHECK(t.disk_s > 0 && t.net_s == 0);
    return tracks > 1 && t.disk_exposed_s < t.disk_s && t.wall_s < t.disk_s + t.compute_s;
}

/* Runs the ops once; whether they overlapped. */
static int read_and_add(reading *s, const ek_exec_config *mode, const disk_file *file)
{
    ek_exec *ex = NULL;
    const ek_event *events;
    int64_t n;
    int overlap;
    ek_graph g;

    CHECK(ek_exec_create(mode, &ex) == EK_OK);
    ek_exec_record(ex, 1);
    ek_graph_init(&g);
    add_ops(&g, s);
    s->ahead = 1;
    CHECK(ek_exec_run(ex, &g) == EK_OK);
    CHECK_INT(atomic_load(&s->started), READS);
    for (size_t i = 0; i < READS; i++)
        CHECK(s->sums[i] == sum_of(file->bytes + SKIP_BYTES + i * BYTES));
    events = ek_exec_events(ex, &n);
    overlap = they_overlap(events, n);
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
    return overlap;
}

/* On a busy machine reads may end while no compute op has its processor, so a few tries count. */
static void reads_overlap_computation(void)
{
    enum { TRIES = 50 };
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            int overlap = 0, can = 1;
            reading s;

            for (int i = 0; i < TRIES && can && !overlap; i++) {
                can = open_reading(&s, backends[b], &file);
                if (can) {
                    overlap = read_and_add(&s, &modes[m], &file);
                    close_reading(&s);
                }
            }
            CHECK(overlap || !can);
        }
    remove_disk_file(&file);
}

/* The run fails with the sentence of the request, behind the name of the op. */
static void a_failed_read_ends_the_run(void)
{
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            ek_exec *ex = NULL;
            disk_file file;
            reading s;
            ek_graph g;

            CHECK(make_disk_file(&file, SIZE));
            if (open_reading(&s, backends[b], &file)) {
                CHECK(truncate(file.path, SIZE - 1) == 0);
                CHECK(ek_exec_create(&modes[m], &ex) == EK_OK);
                ek_graph_init(&g);
                add_ops(&g, &s);
                CHECK(ek_exec_run(ex, &g) == EK_EFORMAT);
                CHECK(strstr(ek_err_message(), "gather weights of layer 11: ") == ek_err_message());
                CHECK(strstr(ek_err_message(), file.path) != NULL);
                ek_graph_fini(&g);
                ek_exec_destroy(&ex);
                close_reading(&s);
            }
            remove_disk_file(&file);
        }
}

static const ek_case cases[] = {
    EK_CASE(reads_overlap_computation),
    EK_CASE(a_failed_read_ends_the_run),
};

EK_TEST_MAIN(cases)
