/* Token streams: token files, checking ids, reading. */
#include "data/tokens.h"

#include "data/tokens_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read as they are");

enum { READ_IDS = 4096 }; /* per read */

/* Reads up to n <= READ_IDS ids of a file and returns their number. errno 0: end of file. */
static int64_t read_file(const ek_segment *s, int64_t at, int64_t n, int32_t *out)
{
    unsigned char raw[READ_IDS * 4];
    size_t size = (size_t)s->token_bytes, want = (size_t)n * size, got = 0;

    while (got < want) {
        ssize_t r;

        errno = 0;
        r = pread(s->fd, raw + got, want - got, at * (int64_t)size + (int64_t)got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        got += (size_t)r;
    }
    n = (int64_t)(got / size);
    for (int64_t i = 0; i < n; i++) {
        uint16_t narrow;

        if (size == 4) {
            memcpy(&out[i], raw + 4 * i, 4);
            continue;
        }
        memcpy(&narrow, raw + 2 * i, 2);
        out[i] = narrow;
    }
    return n;
}

static int64_t read_memory(const ek_segment *s, int64_t at, int64_t n, int32_t *out)
{
    if (s->token_bytes == 4)
        memcpy(out, (const char *)s->ids + 4 * at, (size_t)n * 4);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const uint16_t *)s->ids)[at + i];
    return n;
}

/* Reads up to n <= READ_IDS ids and returns the number of valid ids before the end or the first one
 * beyond the vocabulary. */
static int64_t read_ids(const ek_segment *s, int64_t at, int64_t n, int32_t *out)
{
    int64_t got = s->ids != NULL ? read_memory(s, at, n, out) : read_file(s, at, n, out);

    for (int64_t i = 0; i < got; i++)
        if ((int64_t)(uint32_t)out[i] >= s->vocab)
            return i;
    return got;
}

/* Position of the first id that is missing or beyond the vocabulary; n if there is none. */
static int64_t first_bad(const ek_segment *s)
{
    int64_t first = s->n;

#pragma omp parallel for reduction(min : first) schedule(static)
    for (int64_t at = 0; at < s->n; at += READ_IDS) {
        int32_t ids[READ_IDS];
        int64_t n = s->n - at < READ_IDS ? s->n - at : READ_IDS, good = read_ids(s, at, n, ids);

        if (good < n && at + good < first)
            first = at + good;
    }
    return first;
}

/* Fails with the defect of the id at a position. in_use: it was valid when the stream was
 * opened. */
static ek_status fail_at(const ek_segment *s, int64_t at, int in_use)
{
    int32_t id;
    char reason[128];
    int64_t got = s->ids != NULL ? read_memory(s, at, 1, &id) : read_file(s, at, 1, &id);

    if (got == 0 && errno != 0)
        return EK_FAIL(EK_EIO, "cannot read %s: %s", s->name,
                       strerror_r(errno, reason, sizeof(reason)));
    if (got == 0) {
        struct stat file;

        if (fstat(s->fd, &file) == 0 && file.st_size / s->token_bytes < at)
            at = file.st_size / s->token_bytes;
        return EK_FAIL(EK_EFORMAT,
                       "%s ends at token %lld of %lld: it was cut short while it was in use; put "
                       "it back as it was",
                       s->name, (long long)at, (long long)s->n);
    }
    EK_REQUIRE(!in_use, EK_EFORMAT,
               "%s: token %lld is %lld now, beyond the vocabulary of %lld: it was changed while it "
               "was in use; put it back as it was",
               s->name, (long long)at, (long long)(uint32_t)id, (long long)s->vocab);
    return EK_FAIL(EK_EFORMAT,
                   "%s: token %lld is %lld, beyond the vocabulary of %lld; check --token-bytes "
                   "(%d) and the model's vocab_size",
                   s->name, (long long)at, (long long)(uint32_t)id, (long long)s->vocab,
                   s->token_bytes);
}

ek_status ek_tokens_append(ek_tokens *t, int fd, const void *ids, int64_t bytes, int token_bytes,
                           int64_t vocab, const char *name)
{
    ek_segment s = {.fd = fd,
                    .ids = ids,
                    .token_bytes = token_bytes,
                    .first = t->info.n_tokens,
                    .vocab = vocab};
    ek_segment *grown;
    int64_t bad;
    ek_status st = EK_OK;

    EK_REQUIRE(vocab > 0 && vocab <= INT32_MAX, EK_EINVAL,
               "a vocabulary of %lld tokens is not supported", (long long)vocab);
    EK_REQUIRE(token_bytes == 2 || token_bytes == 4, EK_EINVAL,
               "--token-bytes is %d; token files hold 2 or 4 bytes a token", token_bytes);
    EK_REQUIRE(bytes > 0, EK_EFORMAT, "%s: the token file is empty", name);
    EK_REQUIRE(bytes % token_bytes == 0, EK_EFORMAT,
               "%s: %lld bytes are not a multiple of the %d bytes of a token (--token-bytes); it "
               "is cut short or of another type",
               name, (long long)bytes, token_bytes);
    s.n = bytes / token_bytes;
    s.name = strdup(name);
    EK_REQUIRE(s.name != NULL, EK_ENOMEM, "no memory for a path");
    bad = first_bad(&s);
    if (bad < s.n)
        EK_TRY_OUT(fail_at(&s, bad, 0));
    grown = realloc(t->segments, (size_t)(t->n_segments + 1) * sizeof(*grown));
    EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "no memory for %lld token files",
                   (long long)t->n_segments + 1);
    t->segments = grown;
    t->segments[t->n_segments++] = s;
    t->info.n_tokens += s.n;
    return EK_OK;
out:
    free(s.name);
    return st;
}

static ek_status append_file(ek_tokens *t, const ek_tokens_config *c, const char *path)
{
    int64_t bytes;
    int fd;
    ek_status st;

    EK_TRY(ek_file_open(path, &fd, &bytes));
    EK_TRY_OUT(ek_tokens_append(t, fd, NULL, bytes, c->token_bytes, c->vocab, path));
    return EK_OK;
out:
    close(fd);
    return st;
}

int ek_tokens_is_file(const char *path)
{
    size_t n = strlen(path);

    return n >= 4 && strcmp(path + n - 4, ".bin") == 0 && ek_file_kind_of(path) != EK_FILE_FOLDER;
}

ek_status ek_tokens_count_files(const char *const *paths, int64_t n, int64_t *files)
{
    *files = 0;
    for (int64_t i = 0; i < n; i++)
        *files += ek_tokens_is_file(paths[i]);
    EK_REQUIRE(*files == 0 || *files == n, EK_EINVAL,
               "--data mixes %lld token files (.bin) with %lld texts; give one kind",
               (long long)*files, (long long)(n - *files));
    return EK_OK;
}

ek_status ek_tokens_open(const ek_tokens_config *config, ek_tokens **out)
{
    ek_tokens *t;
    int64_t files;
    ek_status st = EK_OK;

    EK_REQUIRE(config->n_paths > 0, EK_EINVAL, "no data: give files or folders with --data");
    EK_TRY(ek_tokens_count_files(config->paths, config->n_paths, &files));
    t = calloc(1, sizeof(*t));
    EK_REQUIRE(t != NULL, EK_ENOMEM, "no memory for a token stream");
    for (int64_t i = 0; i < files; i++)
        EK_TRY_OUT(append_file(t, config, config->paths[i]));
    if (files == 0)
        EK_TRY_OUT(ek_tokens_from_texts(t, config));
    *out = t;
    t = NULL;
out:
    ek_tokens_close(&t);
    return st;
}

ek_status ek_tokens_wrap(const void *data, size_t bytes, int token_bytes, int64_t vocab,
                         const char *name, ek_tokens **out)
{
    ek_tokens *t = calloc(1, sizeof(*t));
    ek_status st;

    EK_REQUIRE(t != NULL, EK_ENOMEM, "no memory for a token stream");
    EK_TRY_OUT(ek_tokens_append(t, -1, data, (int64_t)bytes, token_bytes, vocab, name));
    *out = t;
    t = NULL;
out:
    ek_tokens_close(&t);
    return st;
}

void ek_tokens_close(ek_tokens **t)
{
    if (*t == NULL)
        return;
    for (int64_t i = 0; i < (*t)->n_segments; i++) {
        if ((*t)->segments[i].fd >= 0)
            close((*t)->segments[i].fd);
        free((*t)->segments[i].name);
    }
    free((*t)->segments);
    free(*t);
    *t = NULL;
}

ek_tokens_info ek_tokens_get_info(const ek_tokens *t)
{
    return t->info;
}

ek_status ek_tokens_read(const ek_tokens *t, int64_t at, int64_t n, int32_t *out)
{
    const ek_segment *s = t->segments;

    while (n > 0) {
        int64_t here, from, good;

        while (at >= s->first + s->n)
            s++;
        from = at - s->first;
        here = s->n - from < n ? s->n - from : n;
        here = here < READ_IDS ? here : READ_IDS;
        good = read_ids(s, from, here, out);
        if (good < here)
            return fail_at(s, from + good, 1);
        at += here;
        out += here;
        n -= here;
    }
    return EK_OK;
}
