/* Texts to tokens: which files are documents, their encoding in parallel, the cache file.
 *
 * Files are taken in pieces, the large ones cut where the tokenizer allows it; a batch of pieces is
 * encoded on the team and written in order.  So memory stays bounded by a batch, and the stream is
 * the same for any number of threads. */
#include "base/log.h"
#include "data/tokens_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static_assert(sizeof(ek_cache_record) == 80, "the cache record is a file format");

enum { SNIFF_BYTES = 8192, PIECE_BYTES = 1 << 20, BATCH_BYTES = 32 << 20, BATCH_PIECES = 4096 };

typedef struct {
    char *path;
    int64_t bytes;
    int64_t time_s, time_ns; /* last change */
} text_file;

typedef struct {
    text_file *files;
    int64_t n, room;
} text_list;

/* A stretch of one file, and what became of it. */
typedef struct {
    const text_file *file;
    size_t from, to;
    int last; /* the document ends with it */
    enum { DOCUMENT, BINARY, EMPTY } kind;
    ek_ids ids;
} piece;

/* A failure of one of the threads, kept for the one that opened. */
typedef struct {
    int64_t piece; /* the first that failed; -1: none */
    ek_status st;
    char text[1024];
} failure;

static void list_free(text_list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->files[i].path);
    free(l->files);
}

static ek_status list_add(text_list *l, const char *path)
{
    struct stat s;
    text_file f;

    EK_REQUIRE(stat(path, &s) == 0, errno == ENOENT || errno == ENOTDIR ? EK_ENOENT : EK_EIO,
               "%s: %s", path, strerror(errno));
    EK_REQUIRE(S_ISREG(s.st_mode), EK_EFORMAT, "%s: neither a file nor a folder", path);
    if (l->n == l->room) {
        int64_t room = 2 * l->room + 64;
        text_file *grown = realloc(l->files, (size_t)room * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a list of %lld files", (long long)room);
        l->files = grown;
        l->room = room;
    }
    f = (text_file){.path = strdup(path),
                    .bytes = s.st_size,
                    .time_s = s.st_mtim.tv_sec,
                    .time_ns = s.st_mtim.tv_nsec};
    EK_REQUIRE(f.path != NULL, EK_ENOMEM, "no memory for a path");
    l->files[l->n++] = f;
    return EK_OK;
}

static ek_status list_folder(text_list *l, const char *folder)
{
    ek_names names = {0};
    ek_path path;
    ek_status st;

    EK_TRY_OUT(ek_folder_files(folder, &names));
    for (int64_t i = 0; i < names.n; i++) {
        EK_TRY_OUT(ek_path_set(&path, "%s/%s", folder, names.names[i]));
        EK_TRY_OUT(list_add(l, path.s));
    }
out:
    ek_names_free(&names);
    return st;
}

/* Hash of all that the tokens follow from. */
static uint64_t cache_key(const text_list *l, const ek_tokenizer *t)
{
    size_t json_bytes;
    const char *json = ek_tokenizer_json(t, &json_bytes);
    int64_t end = ek_tokenizer_end(t), version = EK_CACHE_VERSION;
    uint64_t h = XXH3_64bits(json, json_bytes);

    h = XXH3_64bits_withSeed(&end, sizeof(end), h);
    h = XXH3_64bits_withSeed(&version, sizeof(version), h);
    for (int64_t i = 0; i < l->n; i++) {
        const text_file *f = &l->files[i];
        int64_t facts[3] = {f->bytes, f->time_s, f->time_ns};

        h = XXH3_64bits_withSeed(f->path, strlen(f->path) + 1, h);
        h = XXH3_64bits_withSeed(facts, sizeof(facts), h);
    }
    return h;
}

static uint64_t record_hash(const ek_cache_record *h)
{
    return XXH3_64bits(h, offsetof(ek_cache_record, record_hash));
}

int ek_cache_valid(const void *data, size_t bytes, uint64_t key, ek_cache_record *out)
{
    ek_cache_record h;
    size_t payload;

    if (bytes < sizeof(h))
        return 0;
    payload = bytes - sizeof(h);
    memcpy(&h, (const char *)data + payload, sizeof(h));
    if (memcmp(h.magic, "EKTOKENS", 8) != 0 || h.version != EK_CACHE_VERSION || h.key != key ||
        h.record_hash != record_hash(&h) || (h.token_bytes != 2 && h.token_bytes != 4))
        return 0;
    if (h.n_tokens <= 0 || (uint64_t)h.n_tokens != payload / h.token_bytes ||
        payload % h.token_bytes != 0)
        return 0;
    if (XXH3_64bits(data, payload) != h.payload_hash)
        return 0;
    *out = h;
    return 1;
}

/* Cuts the next piece off the file that stands at *file, *offset, and moves on. */
static ek_status next_piece(const ek_tokenizer *t, const text_list *l, int64_t *file,
                            size_t *offset, piece *out)
{
    const text_file *f = &l->files[*file];
    ek_file_map map;

    *out = (piece){.file = f, .from = *offset, .to = SIZE_MAX, .last = 1};
    if (f->bytes - (int64_t)*offset > 2 * PIECE_BYTES) {
        EK_TRY(ek_file_map_open(f->path, &map));
        if (map.bytes > *offset) {
            out->to = ek_tokenizer_cut(t, map.data, map.bytes, *offset + PIECE_BYTES);
            out->last = out->to == map.bytes;
        }
        ek_file_map_close(&map);
    }
    *file += out->last;
    *offset = out->last ? 0 : out->to;
    return EK_OK;
}

/* Bytes of a piece, for progress. */
static int64_t piece_bytes(const piece *p)
{
    return (p->last ? p->file->bytes : (int64_t)p->to) - (int64_t)p->from;
}

static ek_status encode_piece(ek_encoder *e, piece *p)
{
    ek_file_map map;
    size_t sniff, to;
    ek_status st = EK_OK;

    EK_TRY(ek_file_map_open(p->file->path, &map));
    sniff = map.bytes < SNIFF_BYTES ? map.bytes : SNIFF_BYTES;
    to = p->to < map.bytes ? p->to : map.bytes;
    p->kind = map.bytes == 0 ? EMPTY : memchr(map.data, 0, sniff) != NULL ? BINARY : DOCUMENT;
    if (p->kind == DOCUMENT && p->from < to)
        EK_TRY_OUT(ek_encode(e, (const char *)map.data + p->from, to - p->from, &p->ids));
out:
    ek_file_map_close(&map);
    return st;
}

static void keep_failure(failure *first, int64_t at, ek_status st)
{
#pragma omp critical(ek_texts)
    if (first->piece < 0 || at < first->piece) {
        first->piece = at;
        first->st = st;
        (void)snprintf(first->text, sizeof(first->text), "%s", ek_err_message());
    }
}

/* Each thread keeps one encoder for the batch. */
static ek_status encode_batch(const ek_tokenizer *t, piece *batch, int64_t n)
{
    failure first = {.piece = -1};

#pragma omp parallel
    {
        ek_encoder *e = NULL;
        ek_status st = ek_encoder_create(t, &e);

        if (st < 0)
            keep_failure(&first, 0, st);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            ek_status one = e == NULL ? EK_OK : encode_piece(e, &batch[i]);

            if (one < 0)
                keep_failure(&first, i, one);
        }
        ek_encoder_destroy(&e);
    }
    EK_REQUIRE(first.piece < 0, first.st, "%s: %s", batch[first.piece].file->path, first.text);
    return EK_OK;
}

/* Where the ids of texts go: the temporary cache file and the record that will end it. */
typedef struct {
    ek_file_out file;
    ek_cache_record record;
    XXH3_state_t *hash;
    uint16_t *narrow; /* ids of one piece, if token_bytes is 2 */
    int64_t narrow_room;
} cache_writer;

static ek_status write_ids(cache_writer *w, const ek_ids *ids)
{
    const void *data = ids->ids;
    size_t bytes = (size_t)ids->n * w->record.token_bytes;

    if (w->record.token_bytes == 2) {
        if (w->narrow_room < ids->n) {
            free(w->narrow);
            w->narrow_room = 0;
            w->narrow = malloc((size_t)ids->n * sizeof(*w->narrow));
            EK_REQUIRE(w->narrow != NULL, EK_ENOMEM, "no memory for %lld tokens",
                       (long long)ids->n);
            w->narrow_room = ids->n;
        }
        for (int64_t i = 0; i < ids->n; i++)
            w->narrow[i] = (uint16_t)ids->ids[i];
        data = w->narrow;
    }
    XXH3_64bits_update(w->hash, data, bytes);
    w->record.n_tokens += ids->n;
    return ek_file_out_write(&w->file, data, bytes);
}

static ek_status write_batch(cache_writer *w, piece *batch, int64_t n, int64_t end)
{
    for (int64_t i = 0; i < n; i++) {
        piece *p = &batch[i];

        w->record.skipped_binary += p->last && p->kind == BINARY;
        w->record.skipped_empty += p->last && p->kind == EMPTY;
        if (p->kind != DOCUMENT)
            continue;
        if (p->last) {
            EK_TRY(ek_ids_push(&p->ids, (uint32_t)end));
            w->record.documents++;
            w->record.text_bytes += p->file->bytes;
        }
        if (p->ids.n > 0)
            EK_TRY(write_ids(w, &p->ids));
    }
    return EK_OK;
}

static void free_batch(piece *batch)
{
    for (int64_t i = 0; i < BATCH_PIECES; i++)
        free(batch[i].ids.ids);
    memset(batch, 0, BATCH_PIECES * sizeof(*batch));
}

static ek_status write_texts(cache_writer *w, const text_list *l, const ek_tokens_config *c)
{
    int64_t end = ek_tokenizer_end(c->tokenizer), total = 0, done = 0, file = 0;
    piece *batch = calloc(BATCH_PIECES, sizeof(*batch));
    size_t offset = 0;
    ek_status st = EK_OK;

    EK_REQUIRE(batch != NULL, EK_ENOMEM, "no memory for a batch of texts");
    for (int64_t i = 0; i < l->n; i++)
        total += l->files[i].bytes;
    while (file < l->n) {
        int64_t n = 0, bytes = 0;

        for (; file < l->n && n < BATCH_PIECES && bytes < BATCH_BYTES; n++) {
            EK_TRY_OUT(next_piece(c->tokenizer, l, &file, &offset, &batch[n]));
            bytes += piece_bytes(&batch[n]);
        }
        EK_TRY_OUT(encode_batch(c->tokenizer, batch, n));
        EK_TRY_OUT(write_batch(w, batch, n, end));
        free_batch(batch);
        done += bytes;
        if (c->progress != NULL)
            c->progress(c->context, done, total);
        EK_REQUIRE_OUT(c->stop == NULL || !c->stop(c->context), EK_ECANCELED,
                       "interrupted while the texts were tokenised; nothing is kept of it");
    }
    EK_REQUIRE_OUT(w->record.documents > 0, EK_EFORMAT,
                   "the data holds no text: of %lld files %lld are binary and %lld empty",
                   (long long)l->n, (long long)w->record.skipped_binary,
                   (long long)w->record.skipped_empty);
out:
    free_batch(batch);
    free(batch);
    return st;
}

static ek_status write_cache(const char *path, uint64_t key, const text_list *l,
                             const ek_tokens_config *c)
{
    cache_writer w = {.hash = XXH3_createState(),
                      .record = {.magic = "EKTOKENS", .version = EK_CACHE_VERSION, .key = key}};
    int begun = 0;
    ek_path temporary;
    ek_status st;

    EK_REQUIRE_OUT(w.hash != NULL, EK_ENOMEM, "no memory for a checksum");
    XXH3_64bits_reset(w.hash);
    w.record.token_bytes = ek_tokenizer_vocab(c->tokenizer) <= UINT16_MAX + 1 ? 2 : 4;
    EK_TRY_OUT(ek_path_set(&temporary, "%s.%ld.tmp", path, (long)getpid()));
    EK_TRY_OUT(ek_file_out_open(NULL, temporary.s, &w.file));
    begun = 1;
    EK_TRY_OUT(write_texts(&w, l, c));
    w.record.payload_hash = XXH3_64bits_digest(w.hash);
    w.record.record_hash = record_hash(&w.record);
    EK_TRY_OUT(ek_file_out_write(&w.file, &w.record, sizeof(w.record)));
    EK_TRY_OUT(ek_file_out_close(&w.file));
    EK_TRY_OUT(ek_file_rename(NULL, temporary.s, path));
out:
    if (st < 0 && begun)
        ek_file_out_discard(&w.file);
    free(w.narrow);
    XXH3_freeState(w.hash);
    return st;
}

/* Opens the cache file if it is there and whole; *found tells. */
static ek_status open_cache(ek_tokens *t, const char *path, uint64_t key, const ek_tokens_config *c,
                            int *found)
{
    ek_cache_record h;
    ek_file_map map;
    ek_status st;

    *found = 0;
    if (ek_file_kind_of(path) != EK_FILE_REGULAR)
        return EK_OK;
    EK_TRY(ek_file_map_open(path, &map));
    if (!ek_cache_valid(map.data, map.bytes, key, &h)) {
        ek_file_map_close(&map);
        return EK_OK;
    }
    EK_TRY_OUT(ek_tokens_append(t, map, map.data, map.bytes - sizeof(h), (int)h.token_bytes,
                                c->vocab, path));
    t->info.documents = h.documents;
    t->info.skipped_binary = h.skipped_binary;
    t->info.skipped_empty = h.skipped_empty;
    t->info.text_bytes = h.text_bytes;
    *found = 1;
    return EK_OK;
out:
    ek_file_map_close(&map);
    return st;
}

static ek_status check_config(const ek_tokens_config *c)
{
    EK_REQUIRE(c->tokenizer != NULL && c->cache_dir != NULL, EK_EINVAL,
               "texts need a tokenizer and a folder for the cache of their tokens");
    EK_REQUIRE(ek_tokenizer_end(c->tokenizer) >= 0, EK_EFORMAT,
               "the tokenizer has no token that ends a document, and the model's config gives no "
               "eos_token_id");
    EK_REQUIRE(ek_tokenizer_vocab(c->tokenizer) <= c->vocab, EK_EFORMAT,
               "the tokenizer has ids up to %lld, the model a vocabulary of %lld (vocab_size)",
               (long long)ek_tokenizer_vocab(c->tokenizer) - 1, (long long)c->vocab);
    return EK_OK;
}

ek_status ek_tokens_from_texts(ek_tokens *t, const ek_tokens_config *config)
{
    text_list list = {0};
    ek_path path;
    uint64_t key;
    ek_status st;
    int found;

    EK_TRY(check_config(config));
    for (int64_t i = 0; i < config->n_paths; i++) {
        if (ek_file_kind_of(config->paths[i]) == EK_FILE_FOLDER)
            EK_TRY_OUT(list_folder(&list, config->paths[i]));
        else
            EK_TRY_OUT(list_add(&list, config->paths[i]));
    }
    EK_REQUIRE_OUT(list.n > 0, EK_EFORMAT, "%s: the folder holds no files", config->paths[0]);
    key = cache_key(&list, config->tokenizer);
    EK_TRY_OUT(
        ek_path_set(&path, "%s/tokens-%016llx.ekt", config->cache_dir, (unsigned long long)key));
    EK_TRY_OUT(open_cache(t, path.s, key, config, &found));
    if (found) {
        t->info.from_cache = 1;
    } else {
        EK_TRY_OUT(ek_folder_make(NULL, config->cache_dir));
        EK_TRY_OUT(write_cache(path.s, key, &list, config));
        EK_TRY_OUT(open_cache(t, path.s, key, config, &found));
        EK_REQUIRE_OUT(found, EK_EIO, "%s: what was written cannot be read back", path.s);
    }
    if (t->info.skipped_binary + t->info.skipped_empty > 0)
        ek_log("data", EK_LOG_WARN, "passed over %lld binary and %lld empty files of %lld",
               (long long)t->info.skipped_binary, (long long)t->info.skipped_empty,
               (long long)list.n);
out:
    list_free(&list);
    return st;
}
