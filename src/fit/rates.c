/* Rates of this machine: memory, matrix products, the disk of the model's files. */
#include "base/arena.h"
#include "base/clock.h"
#include "fit/fit.h"
#include "store/safetensors.h"
#include "tensor/cpu/ceiling.h"

#include <fcntl.h>
#include <unistd.h>

enum { READERS = 4, BLOCK = 4 << 20 };

static const double seconds_each = 0.2;

/* One reader's blocks of a file, past the page cache; returns bytes until the time is over. */
static int64_t read_blocks(int fd, int64_t at, int64_t end, int64_t stop_ns, void *block)
{
    int64_t bytes = 0;

    while (at + BLOCK <= end && ek_clock_ns() < stop_ns) {
        ssize_t got = pread(fd, block, BLOCK, at);

        if (got <= 0)
            break;
        at += got;
        bytes += got;
    }
    return bytes;
}

/* Bytes per second of a few readers of a file; 0 if it is small or cannot be read so. */
static double disk_rate(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    int64_t start = ek_clock_ns(), bytes = 0, size, part;
    ek_arena blocks = {0};
    double seconds;

    if (fd < 0 || ek_arena_init(&blocks, READERS * BLOCK, "blocks of a file") < 0) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    size = lseek(fd, 0, SEEK_END);
    part = size / READERS / BLOCK * BLOCK;
#pragma omp parallel for num_threads(READERS) reduction(+ : bytes)
    for (int i = 0; i < READERS; i++)
        bytes += read_blocks(fd, i * part, (i + 1) * part, start + (int64_t)(seconds_each * 1e9),
                             blocks.base + (size_t)i * BLOCK);
    seconds = (double)(ek_clock_ns() - start) / 1e9;
    close(fd);
    ek_arena_fini(&blocks);
    return (double)bytes / seconds;
}

ek_status ek_fit_measure_rates(const char *folder, const char *offload_dir, ek_fit_rates *out)
{
    ek_safetensors *files = NULL;

    *out = (ek_fit_rates){0};
    EK_TRY(ek_read_bandwidth(seconds_each, &out->memory_read));
    EK_TRY(ek_gemm_ceiling(EK_MODE_BF16, seconds_each, &out->bf16));
    EK_TRY(ek_gemm_ceiling(EK_MODE_FP32, seconds_each, &out->fp32));
    if (offload_dir != NULL)
        EK_TRY(ek_measure_scratch_rates(offload_dir, &out->scratch));
    else
        (void)!ek_measure_scratch_rates(".", &out->scratch); /* not measured, if it cannot be */
    if (folder[0] == '\0')
        return EK_OK;
    EK_TRY(ek_safetensors_open(folder, &files));
    if (ek_safetensors_count(files) > 0)
        out->disk_read = disk_rate(ek_safetensors_get(files, 0)->file);
    ek_safetensors_close(&files);
    return EK_OK;
}
