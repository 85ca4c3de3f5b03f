/* Any bytes as a routing trace: refused with a message that names the file, or numbers that lie
 * inside the input and whose totals stay what they are, on however many ranks. */
#include "balance/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int cond)
{
    if (!cond)
        abort();
}

/* Sum of an expert's numbers in one layer, read in its own way. */
static uint64_t plain_sum(const ek_trace *t, int64_t layer, int64_t expert)
{
    uint64_t sum = 0;

    for (int64_t s = 0; s < t->sources; s++) {
        const unsigned char *p =
            t->data + ((layer * t->sources + s) * t->experts + expert) * t->width;

        for (int b = 0; b < t->width; b++)
            sum += (uint64_t)p[b] << 8 * b;
    }
    return sum;
}

/* layer: of all iterations together. */
static void read_layer(const ek_trace *t, int64_t layer, int32_t ranks, int64_t *counts)
{
    ek_trace_counts(t, layer / t->layers, layer % t->layers, ranks, counts);
    for (int64_t e = 0; e < t->experts; e++) {
        uint64_t sum = 0;

        for (int32_t r = 0; r < ranks; r++) {
            require(counts[r * t->experts + e] >= 0);
            sum += (uint64_t)counts[r * t->experts + e];
        }
        require(sum == plain_sum(t, layer, e));
    }
}

/* Counts on a few numbers of ranks; the last layer's end is the end of the input. */
static void read_all(const ek_trace *t)
{
    int64_t layers = t->iterations * t->layers;
    int64_t *counts = malloc((size_t)t->experts * 5 * sizeof(*counts));

    require(counts != NULL);
    for (int32_t ranks = 1; ranks <= 5; ranks += 2) {
        for (int64_t i = 0; i < layers && i < 16; i++)
            read_layer(t, i, ranks, counts);
        read_layer(t, layers - 1, ranks, counts);
    }
    free(counts);
}

static void check_shape(const ek_trace *t, size_t size)
{
    size_t at = (size_t)(t->data - (const unsigned char *)t->map.data), n = size;

    require(t->width == 1 || t->width == 2 || t->width == 4 || t->width == 8);
    require(t->iterations > 0 && t->layers > 0 && t->sources > 0 && t->experts > 0);
    require(t->map.bytes == size && at > 10 && at < size);
    /* By divisions, which cannot overflow. */
    n = (n - at) / (size_t)t->width / (size_t)t->iterations / (size_t)t->layers;
    require(n / (size_t)t->sources == (size_t)t->experts);
}

/* The reader maps a file; this one is in memory and has a path all the same. */
static int open_in_memory(const uint8_t *data, size_t size, char *path, size_t room)
{
    int fd = memfd_create("fuzz_trace", MFD_CLOEXEC);

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, room, "/proc/self/fd/%d", fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    ek_trace t;
    int fd = open_in_memory(data, size, path, sizeof(path));
    ek_status st = ek_trace_open(path, &t);

    close(fd);
    if (st == EK_OK) {
        check_shape(&t, size);
        read_all(&t);
    } else {
        require(st == EK_EFORMAT && strncmp(ek_err_message(), path, strlen(path)) == 0);
        require(t.data == NULL && t.map.data == NULL);
    }
    ek_trace_close(&t);
    return 0;
}
