/* tensor/cpu/ceiling.c - measures the best matrix rate of oneDNN, and memory bandwidth. */
#include "tensor/cpu/ceiling.h"

#include "base/clock.h"
#include "tensor/cpu/dnnl_shim.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_BYTES = 256 << 20 }; /* per array; two of them exceed any last-level cache */

static double seconds_since(int64_t start)
{
    return (double)(ek_clock_ns() - start) * 1e-9;
}

/* Seconds of the fastest of some products, after one warm-up. */
static ek_status shape_best(ek_dnnl_matmul *p, double seconds, double *best)
{
    int64_t start;

    EK_TRY(ek_dnnl_matmul_run(p));
    start = ek_clock_ns();
    do {
        int64_t one = ek_clock_ns();
        double t;

        EK_TRY(ek_dnnl_matmul_run(p));
        t = seconds_since(one);
        *best = t < *best ? t : *best;
    } while (seconds_since(start) < seconds);
    return EK_OK;
}

int ek_gemm_ceiling_is_known(ek_mode mode)
{
    ek_dnnl_matmul *p = NULL;
    ek_status st = ek_dnnl_matmul_create(mode, 64, 64, 64, &p);

    ek_dnnl_matmul_destroy(&p);
    return st == EK_OK;
}

ek_status ek_gemm_ceiling(ek_mode mode, double seconds, double *flops_per_s)
{
    static const int64_t shapes[][3] = {{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 2048, 1024}};
    enum { N = sizeof(shapes) / sizeof(shapes[0]) };
    int64_t start = ek_clock_ns();
    double rate = 0;

    if (!ek_gemm_ceiling_is_known(mode))
        mode = EK_MODE_FP32;
    for (int i = 0; i < N && (i == 0 || seconds_since(start) < 2 * seconds); i++) {
        const int64_t *s = shapes[i];
        double flops = 2.0 * (double)s[0] * (double)s[1] * (double)s[2], best = 1e30;
        ek_dnnl_matmul *p = NULL;
        ek_status st;

        EK_TRY(ek_dnnl_matmul_create(mode, s[0], s[1], s[2], &p));
        st = shape_best(p, seconds / N, &best);
        ek_dnnl_matmul_destroy(&p);
        EK_TRY(st);
        rate = flops / best > rate ? flops / best : rate;
    }
    *flops_per_s = rate;
    return EK_OK;
}

/* The calling thread's range of an array, in bytes. */
static void own_range(size_t bytes, size_t *first, size_t *last)
{
    size_t n = (size_t)omp_get_num_threads(), i = (size_t)omp_get_thread_num();

    *first = bytes / n * i;
    *last = i + 1 == n ? bytes : bytes / n * (i + 1);
}

static void copy_all(char *dst, char *src, size_t bytes)
{
#pragma omp parallel
    {
        size_t first, last;

        own_range(bytes, &first, &last);
        memcpy(dst + first, src + first, last - first);
    }
}

/* Sums src as words; stores the sum to dst, so that the compiler cannot omit it. */
static void read_all(char *dst, char *src, size_t bytes)
{
    uint64_t all = 0;

#pragma omp parallel reduction(+ : all)
    {
        size_t first, last;

        own_range(bytes, &first, &last);
        for (size_t i = first / sizeof(uint64_t); i < last / sizeof(uint64_t); i++)
            all += ((const uint64_t *)(const void *)src)[i];
    }
    memcpy(dst, &all, sizeof(all));
}

/* Best bandwidth of one of the above over arrays of `bytes`; a pass moves `times` * `bytes`. */
static ek_status best_rate(void (*pass)(char *dst, char *src, size_t bytes), size_t bytes,
                           double times, double seconds, double *bytes_per_s)
{
    char *src = malloc(bytes), *dst = malloc(bytes);
    ek_status st = EK_OK;
    double best = 1e30;
    int64_t start;

    EK_REQUIRE_OUT(src != NULL && dst != NULL, EK_ENOMEM,
                   "no memory for two arrays of %zu bytes to measure bandwidth", bytes);
    memset(src, 1, bytes);
    pass(dst, src, bytes);
    start = ek_clock_ns();
    do {
        int64_t one = ek_clock_ns();
        double t;

        pass(dst, src, bytes);
        t = seconds_since(one);
        best = t < best ? t : best;
    } while (seconds_since(start) < seconds);
    *bytes_per_s = times * (double)bytes / best;
out:
    free(src);
    free(dst);
    return st;
}

ek_status ek_copy_bandwidth(double seconds, double *bytes_per_s)
{
    return best_rate(copy_all, COPY_BYTES, 2, seconds, bytes_per_s);
}

ek_status ek_copy_bandwidth_of(size_t bytes, double seconds, double *bytes_per_s)
{
    return best_rate(copy_all, bytes, 2, seconds, bytes_per_s);
}

ek_status ek_read_bandwidth(double seconds, double *bytes_per_s)
{
    return best_rate(read_all, COPY_BYTES, 1, seconds, bytes_per_s);
}
