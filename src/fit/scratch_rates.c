/* Rates of a disk for a scratch file: reads, writes, and both at once. */
#include "fit/scratch_rates.h"

#include "base/arena.h"
#include "base/clock.h"
#include "store/disk.h"

enum { REQUESTS = 8, BLOCK = 4 << 20, FILE_BLOCKS = 128, PARTS = 2 };

static const double seconds_each = 0.2;

/* The ranges that are read [0] and written [1], in blocks of the file, one block after another. */
typedef struct {
    ek_disk *disk;
    ek_disk_file *file;
    ek_arena memory;
    int64_t first[PARTS], blocks[PARTS], next[PARTS];
    ek_disk_request request[REQUESTS];
} scratch;

static ek_status start_block(scratch *s, ek_disk_request *q, int write)
{
    int64_t block = s->first[write] + s->next[write]++ % s->blocks[write];

    *q = (ek_disk_request){.file = s->file,
                           .write = write,
                           .offset = block * BLOCK,
                           .bytes = BLOCK,
                           .buffer = s->memory.base + (q - s->request) * BLOCK,
                           .room = BLOCK};
    return ek_disk_start(s->disk, q);
}

/* Reads and writes, those that have blocks, until the time is over; *rate: bytes/s. */
static ek_status move_blocks(scratch *s, double *rate)
{
    int64_t begin = ek_clock_ns(), stop = begin + (int64_t)(seconds_each * 1e9), ended = 0;

    s->next[0] = s->next[1] = 0;
    for (int i = 0; i < REQUESTS; i++)
        EK_TRY(
            start_block(s, &s->request[i], s->blocks[0] == 0 || (s->blocks[1] > 0 && i % 2 == 1)));
    for (ek_disk_request *q; (q = ek_disk_wait_any(s->disk)) != NULL; ended++) {
        EK_TRY(ek_disk_result(q));
        if (ek_clock_ns() < stop)
            EK_TRY(start_block(s, q, q->write));
    }
    *rate = (double)ended * BLOCK / ((double)(ek_clock_ns() - begin) / 1e9);
    return EK_OK;
}

static ek_status measure(scratch *s, const char *folder, ek_scratch_rates *out)
{
    int64_t written;

    EK_TRY(ek_arena_init(&s->memory, (size_t)REQUESTS * BLOCK, "blocks of a file"));
    EK_TRY(ek_disk_create(NULL, &s->disk));
    EK_TRY(ek_disk_open_scratch(s->disk, folder, (int64_t)FILE_BLOCKS * BLOCK, &s->file));
    if (!ek_disk_is_direct(s->file))
        return EK_OK;
    s->blocks[1] = FILE_BLOCKS;
    EK_TRY(move_blocks(s, &out->write));
    written = s->next[1] < FILE_BLOCKS ? s->next[1] : FILE_BLOCKS;
    s->blocks[0] = written; /* what was not written would be read without the disk */
    s->blocks[1] = 0;
    EK_TRY(move_blocks(s, &out->read));
    s->blocks[0] = (written + 1) / 2;
    s->first[1] = s->blocks[0];
    s->blocks[1] = FILE_BLOCKS - s->blocks[0];
    return move_blocks(s, &out->both);
}

ek_status ek_measure_scratch_rates(const char *folder, ek_scratch_rates *out)
{
    scratch s = {0};
    ek_status st;

    *out = (ek_scratch_rates){0};
    st = measure(&s, folder, out);
    ek_disk_destroy(&s.disk);
    ek_arena_fini(&s.memory);
    return st;
}
