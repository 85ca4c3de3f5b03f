/* Block sizes are listed in the order in which they first occur. */
#include "elastic/prealloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZES = 32, MAX_BLOCKS = 1 << 20 };
static const uint64_t max_block_bytes = (uint64_t)1 << 42; /* the sum of all fits 64 bits */

typedef struct {
    uint64_t bytes;
    int64_t count;
} size_count;

void ek_prealloc_describe(const ek_segment *s, char *text, size_t cap)
{
    size_count of[MAX_SIZES];
    size_t at = 0;
    int n = 0;

    text[0] = '\0';
    for (int64_t k = 0; k < s->head->blocks; k++) {
        uint64_t bytes = ek_segment_block_bytes(s, k);
        int i = 0;

        while (i < n && of[i].bytes != bytes)
            i++;
        if (i == MAX_SIZES)
            return;
        if (i == n)
            of[n++] = (size_count){bytes, 0};
        of[i].count++;
    }
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%" PRIu64 "x%" PRId64, i > 0 ? "," : "",
                               of[i].bytes, of[i].count);
    if (at >= cap)
        text[0] = '\0';
}

/* Takes a number of digits, without leading zeros, from 1 to most, and the character behind it; 0:
 * there is none. */
static uint64_t take_number(const char **at, uint64_t most, char *behind)
{
    uint64_t x = 0;

    for (; **at >= '0' && **at <= '9'; ++*at) {
        unsigned digit = (unsigned)(**at - '0');

        if ((x == 0 && digit == 0) || digit > most || x > (most - digit) / 10)
            return 0;
        x = 10 * x + digit;
    }
    *behind = **at;
    *at += *behind != '\0';
    return x;
}

/* Block sizes, "BYTESxCOUNT,..."; the caller frees *bytes. */
static ek_status read_sizes(const char *text, size_t **bytes, int64_t *n)
{
    const char *at = text;
    char behind = ',';
    ek_status st = EK_OK;

    *bytes = NULL;
    *n = 0;
    while (behind == ',') {
        uint64_t size = take_number(&at, max_block_bytes, &behind), count = 0;
        size_t *grown;

        if (size > 0 && behind == 'x')
            count = take_number(&at, (uint64_t)(MAX_BLOCKS - 1 - *n), &behind);
        EK_REQUIRE_OUT(size % EK_SEGMENT_ALIGN == 0 && count > 0 &&
                           (behind == ',' || behind == '\0'),
                       EK_EINVAL, "\"%s\" is not a list of block sizes", text);
        grown = realloc(*bytes, (size_t)(*n + (int64_t)count) * sizeof(**bytes));
        EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "no memory for %" PRId64 " block sizes",
                       *n + (int64_t)count);
        *bytes = grown;
        for (uint64_t i = 0; i < count; i++)
            grown[(*n)++] = size;
    }
    return EK_OK;
out:
    free(*bytes);
    *bytes = NULL;
    return st;
}

ek_status ek_prealloc_bytes(const char *text, size_t *bytes)
{
    size_t *of = NULL;
    int64_t n = 0;

    EK_TRY(read_sizes(text, &of, &n));
    *bytes = 0;
    for (int64_t k = 0; k < n; k++)
        *bytes += of[k];
    free(of);
    return EK_OK;
}

ek_status ek_prealloc_create(const ek_segment_id *id, uint64_t supervisor_id, const char *out,
                             const char *text)
{
    ek_segment s = {0};
    size_t *bytes = NULL;
    int64_t n = 0;
    ek_status st = EK_OK;

    EK_TRY(read_sizes(text, &bytes, &n));
    (void)ek_segment_kill_holder(id, supervisor_id);
    EK_TRY_OUT(ek_segment_create(id, 0, 0, out, 1, bytes, n, &s));
    s.head->supervisor_id = supervisor_id;
    for (int64_t k = 0; k < n && st == EK_OK; k++)
        st = ek_segment_create_block(&s, k);
    if (st < 0)
        (void)!ek_segment_remove(id);
out:
    ek_segment_close(&s);
    free(bytes);
    return st;
}

/* A missing block of this size; -1: none. */
static int64_t find_missing_block(const ek_segment *s, const unsigned char *missing, size_t bytes)
{
    for (int64_t k = 0; k < s->head->blocks; k++)
        if (missing[k] && ek_segment_block_bytes(s, k) == bytes)
            return k;
    return -1;
}

ek_status ek_prealloc_move(const ek_segment *prealloc, ek_segment *s, unsigned char *missing,
                           int64_t *bytes)
{
    for (int64_t j = 0; j < prealloc->head->blocks; j++) {
        size_t size = ek_segment_block_bytes(prealloc, j);
        int64_t k = find_missing_block(s, missing, size);
        ek_status st = k >= 0 ? ek_segment_move_block(s, k, prealloc, j) : EK_ENOENT;

        if (st == EK_ENOENT)
            continue; /* not needed, or its creator was killed before it completed the block */
        EK_TRY(st);
        missing[k] = 0;
        *bytes += (int64_t)size;
    }
    return EK_OK;
}

/* Removes the segments that exist now; *killed: whether the creator of one was killed. */
static ek_status remove_listed(uint64_t run, uint64_t supervisor_id, int *killed)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0;
    ek_status st = EK_OK;

    *killed = 0;
    EK_TRY(ek_segment_list(run, &ids, &n));
    for (int64_t i = 0; i < n; i++) {
        if (!ek_prealloc_is(&ids[i]))
            continue;
        *killed |= ek_segment_kill_holder(&ids[i], supervisor_id) > 0;
        EK_TRY_OUT(ek_segment_remove(&ids[i]));
    }
out:
    free(ids);
    return st;
}

ek_status ek_prealloc_remove(uint64_t run, uint64_t supervisor_id)
{
    int killed = 1;

    while (killed) /* the killed process may have created another block meanwhile */
        EK_TRY(remove_listed(run, supervisor_id, &killed));
    return EK_OK;
}
