/* Token streams: token files, the check of their ids, reading. */
#include "data/tokens.h"

#include "data/tokens_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read as they are");

/* Place of the first id that is not below the vocabulary; n if there is none. */
static int64_t first_beyond(const void *ids, int64_t n, int token_bytes, int64_t vocab)
{
    const uint16_t *narrow = ids;
    const uint32_t *wide = ids;
    int64_t first = n;

    if (token_bytes == 2 && vocab > UINT16_MAX)
        return n;
#pragma omp parallel for reduction(min : first) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t id = token_bytes == 2 ? narrow[i] : wide[i];

        if (id >= vocab && i < first)
            first = i;
    }
    return first;
}

static int64_t id_at(const ek_segment *s, int64_t i)
{
    if (s->token_bytes == 2)
        return ((const uint16_t *)s->ids)[i];
    return ((const uint32_t *)s->ids)[i];
}

ek_status ek_tokens_append(ek_tokens *t, ek_file_map map, const void *ids, size_t bytes,
                           int token_bytes, int64_t vocab, const char *name)
{
    ek_segment s = {.map = map, .ids = ids, .token_bytes = token_bytes, .first = t->info.n_tokens};
    ek_segment *grown;
    int64_t bad;

    EK_REQUIRE(vocab > 0 && vocab <= INT32_MAX, EK_EINVAL,
               "a vocabulary of %lld tokens is not supported", (long long)vocab);
    EK_REQUIRE(token_bytes == 2 || token_bytes == 4, EK_EINVAL,
               "--token-bytes is %d; token files hold 2 or 4 bytes a token", token_bytes);
    EK_REQUIRE(bytes > 0, EK_EFORMAT, "%s: the token file is empty", name);
    EK_REQUIRE(bytes % (size_t)token_bytes == 0, EK_EFORMAT,
               "%s: %zu bytes are not a multiple of the %d bytes of a token (--token-bytes); it is "
               "cut short or of another type",
               name, bytes, token_bytes);
    s.n = (int64_t)(bytes / (size_t)token_bytes);
    bad = first_beyond(ids, s.n, token_bytes, vocab);
    EK_REQUIRE(
        bad == s.n, EK_EFORMAT,
        "%s: token %lld is %lld, beyond the vocabulary of %lld; check --token-bytes (%d) and "
        "the model's vocab_size",
        name, (long long)bad, (long long)id_at(&s, bad), (long long)vocab, token_bytes);
    grown = realloc(t->segments, (size_t)(t->n_segments + 1) * sizeof(*grown));
    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %lld token files",
               (long long)t->n_segments + 1);
    t->segments = grown;
    t->segments[t->n_segments++] = s;
    t->info.n_tokens += s.n;
    return EK_OK;
}

static ek_status append_file(ek_tokens *t, const ek_tokens_config *c, const char *path)
{
    ek_file_map map;
    ek_status st;

    EK_TRY(ek_file_map_open(path, &map));
    EK_TRY_OUT(ek_tokens_append(t, map, map.data, map.bytes, c->token_bytes, c->vocab, path));
    return EK_OK;
out:
    ek_file_map_close(&map);
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
    ek_file_map none = {0};
    ek_status st;

    EK_REQUIRE(t != NULL, EK_ENOMEM, "no memory for a token stream");
    EK_TRY_OUT(ek_tokens_append(t, none, data, bytes, token_bytes, vocab, name));
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
    for (int64_t i = 0; i < (*t)->n_segments; i++)
        if ((*t)->segments[i].map.data != NULL)
            ek_file_map_close(&(*t)->segments[i].map);
    free((*t)->segments);
    free(*t);
    *t = NULL;
}

ek_tokens_info ek_tokens_get_info(const ek_tokens *t)
{
    return t->info;
}

void ek_tokens_read(const ek_tokens *t, int64_t at, int64_t n, int32_t *out)
{
    const ek_segment *s = t->segments;

    while (n > 0) {
        int64_t here;

        while (at >= s->first + s->n)
            s++;
        here = s->first + s->n - at < n ? s->first + s->n - at : n;
        for (int64_t i = 0; i < here; i++)
            out[i] = (int32_t)id_at(s, at - s->first + i);
        at += here;
        out += here;
        n -= here;
    }
}
