/* The back end of io_uring: a piece's call is an entry of the ring.  Without liburing (EK_URING is
 * not defined) there is none. */
#include "base/log.h"
#include "store/disk_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef EK_URING
#include <liburing.h>

enum {
    REGIONS_MAX = 1024,
    REGION_BYTES = 1 << 30, /* largest buffer that can be registered */
    REFUSED_MAX = 100       /* the ring is given up after so many submissions failed in a row */
};

typedef struct {
    struct io_uring ring;
    struct iovec regions[REGIONS_MAX]; /* registered */
    int n_regions;
    ek_disk_piece **queued; /* [depth] in the ring, not submitted */
    int n_queued;
    int refused; /* submissions that failed in a row */
    int broken;  /* error number that every call ends with; 0: none */
} uring;

int ek_disk_ring_init(unsigned entries, struct io_uring *ring)
{
    return io_uring_queue_init(entries, ring, 0);
}

int ek_disk_ring_submit(struct io_uring *ring)
{
    return io_uring_submit(ring);
}

/* Cuts memory into regions that can be registered; returns how many, 0 if there are too many. */
static int cut_regions(const ek_disk_config *c, struct iovec *regions)
{
    int n = 0;

    for (int i = 0; i < c->n_memory; i++)
        for (size_t at = 0; at < c->memory[i].bytes; at += REGION_BYTES) {
            size_t left = c->memory[i].bytes - at;

            if (n == REGIONS_MAX)
                return 0;
            regions[n++] = (struct iovec){(unsigned char *)c->memory[i].start + at,
                                          left < REGION_BYTES ? left : REGION_BYTES};
        }
    return n;
}

static void register_memory(uring *b, const ek_disk_config *c)
{
    int n = cut_regions(c, b->regions), error;

    if (n == 0)
        return;
    error = io_uring_register_buffers(&b->ring, b->regions, (unsigned)n);
    if (error == 0)
        b->n_regions = n;
    else
        ek_log("store", EK_LOG_DEBUG, "io_uring registers no buffers: error %d", -error);
}

/* Whether the kernel's io_uring has what this file uses: reads and writes without vectors (Linux
 * 5.6), and waiting with a limit that leaves the submission queue alone (5.11). */
static int is_complete(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    int can = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
              io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
              (ring->features & IORING_FEAT_EXT_ARG) != 0;

    io_uring_free_probe(probe);
    return can;
}

static void free_uring(ek_disk *d)
{
    uring *b = d->backend;

    free(b->queued);
    free(b);
    d->backend = NULL;
}

static ek_status create_uring(ek_disk *d)
{
    uring *b = calloc(1, sizeof(*b));
    char reason[128];
    int error;

    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a disk queue");
    d->backend = b;
    b->queued = calloc((size_t)d->config.depth, sizeof(*b->queued));
    if (b->queued == NULL) {
        free_uring(d);
        return EK_FAIL(EK_ENOMEM, "no memory for a disk queue");
    }
    error = -d->io->ring_init((unsigned)d->config.depth, &b->ring);
    if (error == 0 && !is_complete(&b->ring)) {
        io_uring_queue_exit(&b->ring);
        error = ENOSYS;
    }
    if (error != 0) {
        free_uring(d);
        return EK_FAIL(EK_EUNSUPPORTED, "this system has no io_uring (%s)",
                       strerror_r(error, reason, sizeof(reason)));
    }
    register_memory(b, &d->config);
    return EK_OK;
}

static void destroy_uring(ek_disk *d)
{
    io_uring_queue_exit(&((uring *)d->backend)->ring);
    free_uring(d);
}

/* The registered region that holds the range; -1: none. */
static int region_of(const uring *b, const unsigned char *data, size_t bytes)
{
    for (int i = 0; i < b->n_regions; i++) {
        uintptr_t from = (uintptr_t)b->regions[i].iov_base, at = (uintptr_t)data;

        if (at >= from && at - from < b->regions[i].iov_len &&
            b->regions[i].iov_len - (at - from) >= bytes)
            return i;
    }
    return -1;
}

/* Writes a piece's call into an entry of the ring. */
static void fill_entry(const uring *b, struct io_uring_sqe *e, ek_disk_piece *p)
{
    const ek_disk_request *r = p->request;
    unsigned char *data = p->data + p->from;
    unsigned bytes = (unsigned)(p->bytes - p->from);
    uint64_t offset = (uint64_t)p->offset + p->from;
    int region = region_of(b, data, bytes);

    if (region >= 0 && r->write)
        io_uring_prep_write_fixed(e, r->file->fd, data, bytes, offset, region);
    else if (region >= 0)
        io_uring_prep_read_fixed(e, r->file->fd, data, bytes, offset, region);
    else if (r->write)
        io_uring_prep_write(e, r->file->fd, data, bytes, offset);
    else
        io_uring_prep_read(e, r->file->fd, data, bytes, offset);
    io_uring_sqe_set_data(e, p);
}

static void queue_piece(ek_disk *d, ek_disk_piece *p)
{
    uring *b = d->backend;
    struct io_uring_sqe *e = b->broken ? NULL : io_uring_get_sqe(&b->ring);

    b->queued[b->n_queued++] = p;
    if (e != NULL)
        fill_entry(b, e, p);
    else if (!b->broken)
        b->broken = EIO; /* the ring has an entry for every piece */
}

/* Fails the pieces that the ring did not take. */
static void fail_queued(ek_disk *d, uring *b)
{
    int n = b->n_queued;

    b->n_queued = 0;
    for (int i = 0; i < n; i++)
        ek_disk_piece_done(d, b->queued[i], -b->broken);
}

static void submit_queued(ek_disk *d)
{
    uring *b = d->backend;
    int taken;

    if (b->n_queued == 0)
        return;
    taken = b->broken ? 0 : d->io->ring_submit(&b->ring);
    if (taken > 0) {
        b->n_queued -= taken;
        memmove(b->queued, b->queued + taken, (size_t)b->n_queued * sizeof(b->queued[0]));
        b->refused = 0;
    } else if (taken < 0 && !ek_disk_is_passing(-taken)) {
        b->broken = -taken;
    } else if (taken < 0 && ++b->refused > REFUSED_MAX) {
        b->broken = EIO;
    }
    if (b->broken)
        fail_queued(d, b);
}

static void reap_ended(ek_disk *d)
{
    uring *b = d->backend;
    struct io_uring_cqe *e;

    while (io_uring_peek_cqe(&b->ring, &e) == 0) {
        ek_disk_piece *p = io_uring_cqe_get_data(e);
        int result =
            d->io->ring_result(p->request->write, p->data + p->from, p->bytes - p->from, e->res);

        io_uring_cqe_seen(&b->ring, e);
        ek_disk_piece_done(d, p, result);
    }
}

static void wait_ended(ek_disk *d, int64_t most_ns)
{
    uring *b = d->backend;
    struct __kernel_timespec most = {.tv_nsec = most_ns};
    struct io_uring_cqe *e;

    io_uring_wait_cqe_timeout(&b->ring, &e, &most);
}

static size_t registered_bytes(const ek_disk *d)
{
    const uring *b = d->backend;
    size_t sum = 0;

    for (int i = 0; i < b->n_regions; i++)
        sum += b->regions[i].iov_len;
    return sum;
}

const ek_disk_backend_table ek_disk_uring = {.name = "io_uring",
                                             .create = create_uring,
                                             .destroy = destroy_uring,
                                             .queue = queue_piece,
                                             .flush = submit_queued,
                                             .reap = reap_ended,
                                             .wait = wait_ended,
                                             .registered = registered_bytes};

#else

int ek_disk_ring_init(unsigned entries, struct io_uring *ring)
{
    (void)entries;
    (void)ring;
    return -ENOSYS;
}

int ek_disk_ring_submit(struct io_uring *ring)
{
    (void)ring;
    return -ENOSYS;
}

static ek_status create_nothing(ek_disk *d)
{
    (void)d;
    return EK_FAIL(EK_EUNSUPPORTED, "evenkeel was built without liburing");
}

const ek_disk_backend_table ek_disk_uring = {.name = "io_uring", .create = create_nothing};

#endif
