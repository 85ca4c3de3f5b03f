/* Reads and writes routing traces. */
#include "balance/trace.h"

#include "base/memory_limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sums over a layer of numbers up to count_max cannot overflow. */
enum { AXES_MAX = 4, HEAD_MAX = 4096, LAYER_MAX = 1 << 22 };

/* Larger numbers are taken for a corrupt file. */
static const uint64_t count_max = (uint64_t)1 << 40;

/* --- the header ------------------------------------------------------------------------------- */

/* Finds the header text, a Python dictionary. */
static ek_status find_head(const char *path, const ek_file_map *m, size_t *at, size_t *n)
{
    const unsigned char *p = m->data;

    EK_REQUIRE(m->bytes > 12 && memcmp(p, "\x93NUMPY", 6) == 0 && p[6] >= 1 && p[6] <= 3,
               EK_EFORMAT, "%s: not an .npy file", path);
    *at = p[6] == 1 ? 10 : 12;
    *n = (size_t)p[8] | (size_t)p[9] << 8;
    if (p[6] > 1)
        *n |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    EK_REQUIRE(*n < HEAD_MAX && *at + *n <= m->bytes, EK_EFORMAT,
               "%s: an .npy header of %zu bytes in a file of %zu", path, *n, m->bytes);
    return EK_OK;
}

/* The value of a key; NULL: none. */
static const char *value_of(const char *head, const char *key)
{
    const char *at = strstr(head, key);

    if (at == NULL)
        return NULL;
    at += strlen(key);
    return at + strspn(at, " :");
}

static ek_status read_shape(const char *path, const char *at, int64_t *shape, int *axes)
{
    *axes = 0;
    EK_REQUIRE(at != NULL && *at == '(', EK_EFORMAT, "%s: an .npy header without a shape", path);
    for (at++; *at != ')' && *at != '\0';) {
        char *end;
        long long n = strtoll(at, &end, 10);

        EK_REQUIRE(*at >= '0' && *at <= '9' && n > 0 && n <= INT32_MAX && *axes < AXES_MAX,
                   EK_EFORMAT, "%s: a trace has 2 to 4 axes, none of them empty", path);
        shape[(*axes)++] = n;
        at = end + strspn(end, " ");
        EK_REQUIRE(*at == ',' || *at == ')', EK_EFORMAT, "%s: malformed shape in the .npy header",
                   path);
        at += *at == ',';
        at += strspn(at, " ");
    }
    EK_REQUIRE(*at == ')' && *axes >= 2, EK_EFORMAT,
               "%s: a trace has 2 to 4 axes, none of them empty", path);
    return EK_OK;
}

static ek_status read_head(const char *path, const char *head, ek_trace *t)
{
    const char *type = value_of(head, "'descr'"), *order = value_of(head, "'fortran_order'");
    int64_t shape[AXES_MAX] = {0};
    int axes = 0;

    EK_REQUIRE(type != NULL && type[0] == '\'' && (type[1] == '<' || type[1] == '|') &&
                   type[2] == 'u' && strchr("1248", type[3]) != NULL && type[3] != '\0' &&
                   type[4] == '\'',
               EK_EFORMAT, "%s: a trace holds unsigned integers, little-endian", path);
    t->width = type[3] - '0';
    EK_REQUIRE(order != NULL && strncmp(order, "False", 5) == 0, EK_EFORMAT,
               "%s: a trace is in C order", path);
    EK_TRY(read_shape(path, value_of(head, "'shape'"), shape, &axes));
    t->iterations = axes > 2 ? shape[0] : 1;
    t->layers = shape[axes > 2];
    t->sources = axes == 4 ? shape[2] : 1;
    t->experts = shape[axes - 1];
    EK_REQUIRE(t->sources * t->experts <= LAYER_MAX, EK_EFORMAT,
               "%s: %lld sources of %lld experts are too many", path, (long long)t->sources,
               (long long)t->experts);
    return EK_OK;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static uint64_t number_at(const ek_trace *t, int64_t i)
{
    const unsigned char *p = t->data + i * t->width;
    uint64_t x = 0;

    for (int b = t->width; b-- > 0;)
        x = x << 8 | p[b];
    return x;
}

int64_t ek_trace_number(const ek_trace *t, int64_t i)
{
    return (int64_t)number_at(t, i);
}

static ek_status check_numbers(const char *path, const ek_trace *t, int64_t n)
{
    for (int64_t i = 0; t->width == 8 && i < n; i++)
        EK_REQUIRE(number_at(t, i) <= count_max, EK_EFORMAT, "%s: number %lld is %llu, too many",
                   path, (long long)i, (unsigned long long)number_at(t, i));
    return EK_OK;
}

static ek_status read_trace(const char *path, ek_trace *t)
{
    char head[HEAD_MAX];
    size_t at = 0, bytes = 0;
    int64_t n;

    EK_TRY(find_head(path, &t->map, &at, &bytes));
    memcpy(head, (const char *)t->map.data + at, bytes);
    head[bytes] = '\0';
    EK_TRY(read_head(path, head, t));
    EK_REQUIRE(!__builtin_mul_overflow(t->iterations * t->layers, t->sources * t->experts, &n) &&
                   n <= INT64_MAX / 8 &&
                   (uint64_t)n * (uint64_t)t->width == t->map.bytes - at - bytes,
               EK_EFORMAT, "%s: %zu bytes of numbers do not match the shape in its header", path,
               t->map.bytes - at - bytes);
    t->data = (const unsigned char *)t->map.data + at + bytes;
    return check_numbers(path, t, n);
}

ek_status ek_trace_open(const char *path, ek_trace *t)
{
    ek_status st;

    memset(t, 0, sizeof(*t));
    EK_TRY(ek_file_map_open(path, &t->map));
    st = read_trace(path, t);
    if (st < 0)
        ek_trace_close(t);
    return st;
}

ek_status ek_trace_read(const char *path, ek_trace *t)
{
    size_t bytes;
    int64_t have = ek_memory_available();

    EK_TRY(ek_trace_open(path, t));
    bytes = (size_t)ek_trace_numbers(t) * (size_t)t->width;
    t->own = have == 0 || bytes <= (size_t)have ? malloc(bytes) : NULL;
    if (t->own == NULL) {
        ek_trace_close(t);
        return EK_FAIL(EK_ENOMEM, "%s: no memory for its %zu bytes", path, bytes);
    }
    memcpy(t->own, t->data, bytes);
    ek_file_map_close(&t->map);
    memset(&t->map, 0, sizeof(t->map));
    t->data = t->own;
    return EK_OK;
}

void ek_trace_close(ek_trace *t)
{
    if (t->map.data != NULL)
        ek_file_map_close(&t->map);
    free(t->own);
    memset(t, 0, sizeof(*t));
}

void ek_trace_counts(const ek_trace *t, int64_t iteration, int64_t layer, int32_t ranks,
                     int64_t *counts)
{
    int64_t first = (iteration * t->layers + layer) * t->sources * t->experts;

    for (int64_t e = 0; e < t->experts; e++) {
        int64_t low = 0, sum = 0; /* of whole sources */

        for (int64_t r = 0, s = 0; r < ranks; r++) {
            int64_t rest = (r + 1) * t->sources % ranks, high;

            for (; s < (r + 1) * t->sources / ranks; s++)
                sum += (int64_t)number_at(t, first + s * t->experts + e);
            high = sum;
            if (rest > 0)
                high += (int64_t)number_at(t, first + s * t->experts + e) * rest / ranks;
            counts[r * t->experts + e] = high - low;
            low = high;
        }
    }
}

void ek_trace_scale(const ek_apportion_scratch *scratch, int32_t ranks, int64_t experts,
                    int64_t tokens, int64_t top_k, int64_t *weight, int64_t *counts)
{
    int64_t *all = weight + experts;
    size_t bytes = (size_t)experts * sizeof(*weight);

    memset(all, 0, bytes);
    for (int64_t i = 0; i < ranks * experts; i++)
        all[i % experts] += counts[i];
    for (int32_t r = 0; r < ranks; r++) {
        int64_t *of = counts + r * experts, sum = 0;

        for (int64_t e = 0; e < experts; e++)
            sum += of[e];
        memcpy(weight, sum > 0 ? of : all, bytes);
        ek_apportion(scratch, weight, (int32_t)experts, tokens * top_k, tokens, of);
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Format version 1.0: magic, length of the header, the header padded to 64 bytes, the numbers. */
ek_status ek_trace_out_open(const char *path, const int64_t *shape, ek_file_out *out)
{
    enum { PREFIX = 10, HEADER = 118 };
    char head[PREFIX + HEADER + 1];
    ek_status st;
    int n;

    for (int i = 0; i < AXES_MAX; i++)
        EK_REQUIRE(shape[i] > 0 && shape[i] <= INT32_MAX, EK_EINVAL,
                   "%s: an axis of %lld in a trace", path, (long long)shape[i]);
    EK_REQUIRE(shape[2] * shape[3] <= LAYER_MAX, EK_EINVAL,
               "%s: %lld sources of %lld experts are too many", path, (long long)shape[2],
               (long long)shape[3]);
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = HEADER;
    head[9] = 0;
    n = snprintf(head + PREFIX, HEADER,
                 "{'descr': '<u4', 'fortran_order': False, 'shape': (%lld, %lld, %lld, %lld), }",
                 (long long)shape[0], (long long)shape[1], (long long)shape[2],
                 (long long)shape[3]);
    memset(head + PREFIX + n, ' ', (size_t)(HEADER - n));
    head[PREFIX + HEADER - 1] = '\n';
    EK_TRY(ek_file_out_open(NULL, path, EK_WRITE_REPLACE, out));
    st = ek_file_out_write(out, head, PREFIX + HEADER);
    if (st < 0)
        ek_file_out_discard(out);
    return st;
}
