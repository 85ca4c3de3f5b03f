/* Texts to tokens: which files are documents, their encoding in parallel, the cache file.
 *
 * Files are read in pieces (data/pieces.h); a batch of pieces is encoded on the team and written in
 * order.  So memory stays bounded by a batch, and the stream is the same for any number of
 * threads. */
#include "base/c_locale.h"
#include "base/log.h"
#include "data/jsonl.h"
#include "data/pieces.h"
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

enum { BATCH_BYTES = 32 << 20, BATCH_PIECES = 4096 };

typedef struct {
    char *path;
    int named; /* itself, not as part of a folder */
    int64_t bytes;
    int64_t time_s, time_ns; /* last change */
} text_file;

typedef struct {
    text_file *files;
    int64_t n, room;
} text_list;

/* A piece of a file, and what became of it. */
typedef struct {
    ek_piece piece;
    const text_file *file;
    ek_ids ids;
    int64_t documents, empty, text_bytes; /* of the lines of a JSON Lines file */
} encoded;

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

static ek_status list_add(text_list *l, const char *path, int named)
{
    struct stat s;
    text_file f;

    EK_TRY(ek_pieces_check_name(path));
    if (stat(path, &s) != 0)
        return ek_fail_errno(errno, "read", path);
    EK_REQUIRE(S_ISREG(s.st_mode), EK_EFORMAT, "%s: neither a file nor a folder", path);
    if (l->n == l->room) {
        int64_t room = 2 * l->room + 64;
        text_file *grown = realloc(l->files, (size_t)room * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a list of %lld files", (long long)room);
        l->files = grown;
        l->room = room;
    }
    f = (text_file){.path = strdup(path),
                    .named = named,
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
        EK_TRY_OUT(list_add(l, path.s, 0));
    }
out:
    ek_names_free(&names);
    return st;
}

static const char *text_field(const ek_tokens_config *c)
{
    return c->text_field != NULL ? c->text_field : "text";
}

/* Hash of all that the tokens follow from. */
static uint64_t cache_key(const text_list *l, const ek_tokens_config *c)
{
    const ek_tokenizer *t = c->tokenizer;
    size_t json_bytes;
    const char *json = ek_tokenizer_json(t, &json_bytes);
    int64_t end = ek_tokenizer_end(t), version = EK_CACHE_VERSION;
    uint64_t h = XXH3_64bits(json, json_bytes);

    h = XXH3_64bits_withSeed(&end, sizeof(end), h);
    h = XXH3_64bits_withSeed(&version, sizeof(version), h);
    h = XXH3_64bits_withSeed(text_field(c), strlen(text_field(c)) + 1, h);
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

/* Encodes each line's document and the end token behind it. */
static ek_status encode_lines(const ek_tokens_config *c, ek_encoder *e, encoded *p, char *text)
{
    const char *line = p->piece.text, *end = line + p->piece.n;
    int64_t last = ek_tokenizer_end(c->tokenizer), number = p->piece.line;

    for (; line < end; number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((newline != NULL ? newline : end) - line), bytes;
        ek_jsonl_fault fault;

        if (!ek_jsonl_is_blank(line, n)) {
            EK_REQUIRE(ek_jsonl_text(line, n, text_field(c), text, &bytes, &fault), EK_EFORMAT,
                       "%s:%lld:%zu: %s; every line is a JSON object with a string `%s` "
                       "(--text-field)",
                       p->piece.path, (long long)number, fault.column, fault.what, text_field(c));
            if (bytes == 0) {
                p->empty++;
            } else {
                EK_TRY(ek_encode(e, text, bytes, &p->ids));
                EK_TRY(ek_ids_push(&p->ids, (uint32_t)last));
                p->documents++;
                p->text_bytes += (int64_t)bytes;
            }
        }
        line += n + 1;
    }
    return EK_OK;
}

static ek_status encode_piece(const ek_tokens_config *c, ek_encoder *e, encoded *p)
{
    char *text;
    ek_status st;

    if (p->piece.kind != EK_PIECE_TEXT || p->piece.n == 0)
        return EK_OK;
    if (!p->piece.lines) {
        st = p->piece.first ? ek_encode(e, p->piece.text, p->piece.n, &p->ids)
                            : ek_encode_rest(e, p->piece.text, p->piece.n, &p->ids);
        if (st < 0) {
            char said[512];

            (void)snprintf(said, sizeof(said), "%s", ek_err_message());
            return EK_FAIL(st, "%s: %s", p->piece.path, said);
        }
        return EK_OK;
    }
    text = malloc(p->piece.n);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for %zu bytes of %s", p->piece.n, p->piece.path);
    st = encode_lines(c, e, p, text);
    free(text);
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
static ek_status encode_batch(const ek_tokens_config *c, encoded *batch, int64_t n)
{
    failure first = {.piece = -1};

#pragma omp parallel
    {
        EK_C_LOCALE;
        ek_encoder *e = NULL;
        ek_status st = ek_encoder_create(c->tokenizer, &e);

        if (st < 0)
            keep_failure(&first, 0, st);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            ek_status one = e == NULL ? EK_OK : encode_piece(c, e, &batch[i]);

            if (one < 0)
                keep_failure(&first, i, one);
        }
        ek_encoder_destroy(&e);
    }
    EK_REQUIRE(first.piece < 0, first.st, "%s", first.text);
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

static ek_status write_batch(cache_writer *w, encoded *batch, int64_t n, int64_t end)
{
    for (int64_t i = 0; i < n; i++) {
        encoded *p = &batch[i];

        w->record.skipped_binary += p->piece.kind == EK_PIECE_BINARY;
        w->record.skipped_empty += p->empty + (p->piece.kind == EK_PIECE_EMPTY);
        w->record.documents += p->documents;
        w->record.text_bytes += p->text_bytes;
        if (p->piece.kind != EK_PIECE_TEXT)
            continue;
        if (!p->piece.lines) {
            w->record.text_bytes += (int64_t)p->piece.n;
            if (p->piece.last) {
                EK_TRY(ek_ids_push(&p->ids, (uint32_t)end));
                w->record.documents++;
            }
        }
        if (p->ids.n > 0)
            EK_TRY(write_ids(w, &p->ids));
    }
    return EK_OK;
}

static void free_batch(encoded *batch)
{
    for (int64_t i = 0; i < BATCH_PIECES; i++) {
        ek_piece_free(&batch[i].piece);
        free(batch[i].ids.ids);
    }
    memset(batch, 0, BATCH_PIECES * sizeof(*batch));
}

/* The files of a list, one after the other. */
typedef struct {
    const text_list *list;
    ek_piece_reader *reader;
    int64_t file; /* that is read */
    int64_t done; /* bytes of those before it */
    int open;
} file_cursor;

/* Binary files that lie in a folder are passed over; one that was named is a mistake. */
static ek_status check_piece(const text_file *f, const ek_piece *p)
{
    EK_REQUIRE(p->kind != EK_PIECE_BINARY || !(f->named || p->lines), EK_EFORMAT,
               "%s: the file holds NUL bytes: it is binary, or a text in UTF-16; data are texts in "
               "UTF-8, .jsonl, .ndjson (each also as .gz or .zst) and .bin token files",
               f->path);
    EK_REQUIRE(p->kind != EK_PIECE_TEXT || p->n < 5 || memcmp(p->text, "%PDF-", 5) != 0, EK_EFORMAT,
               "%s: a PDF document is not read; convert it to text, or leave it out", f->path);
    return EK_OK;
}

/* Reads pieces until a batch is full or the files are over. */
static ek_status read_batch(file_cursor *c, encoded *batch, int64_t *n)
{
    size_t bytes = 0;

    for (*n = 0; c->file < c->list->n && *n < BATCH_PIECES && bytes < BATCH_BYTES; ++*n) {
        const text_file *f = &c->list->files[c->file];
        encoded *p = &batch[*n];
        int first = !c->open;

        p->file = f;
        if (first)
            EK_TRY(ek_piece_reader_open(c->reader, f->path));
        c->open = 1;
        EK_TRY(ek_piece_reader_next(c->reader, &p->piece));
        if (first)
            EK_TRY(check_piece(f, &p->piece));
        bytes += p->piece.n;
        if (p->piece.last) {
            c->open = 0;
            c->done += f->bytes;
            c->file++;
        }
    }
    return EK_OK;
}

static ek_status write_texts(cache_writer *w, const text_list *l, const ek_tokens_config *c)
{
    int64_t end = ek_tokenizer_end(c->tokenizer), total = 0, n;
    encoded *batch = calloc(BATCH_PIECES, sizeof(*batch));
    file_cursor files = {.list = l};
    ek_status st = EK_OK;

    EK_REQUIRE(batch != NULL, EK_ENOMEM, "no memory for a batch of texts");
    EK_TRY_OUT(ek_piece_reader_create(c->tokenizer, &files.reader));
    for (int64_t i = 0; i < l->n; i++)
        total += l->files[i].bytes;
    while (files.file < l->n) {
        EK_TRY_OUT(read_batch(&files, batch, &n));
        EK_TRY_OUT(encode_batch(c, batch, n));
        EK_TRY_OUT(write_batch(w, batch, n, end));
        free_batch(batch);
        if (c->progress != NULL)
            c->progress(c->context,
                        files.done + (files.open ? ek_piece_reader_position(files.reader) : 0),
                        total);
        EK_REQUIRE_OUT(c->stop == NULL || !c->stop(c->context), EK_ECANCELED,
                       "interrupted while the texts were tokenised; nothing is kept of it");
    }
    EK_REQUIRE_OUT(w->record.documents > 0, EK_EFORMAT,
                   "the data holds no text: of %lld files %lld are binary and %lld empty",
                   (long long)l->n, (long long)w->record.skipped_binary,
                   (long long)w->record.skipped_empty);
out:
    ek_piece_reader_destroy(&files.reader);
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
    ek_status st;

    EK_REQUIRE_OUT(w.hash != NULL, EK_ENOMEM, "no memory for a checksum");
    XXH3_64bits_reset(w.hash);
    w.record.token_bytes = ek_tokenizer_vocab(c->tokenizer) <= UINT16_MAX + 1 ? 2 : 4;
    EK_TRY_OUT(ek_file_out_open(NULL, path, EK_WRITE_REPLACE, &w.file));
    begun = 1;
    EK_TRY_OUT(write_texts(&w, l, c));
    w.record.payload_hash = XXH3_64bits_digest(w.hash);
    w.record.record_hash = record_hash(&w.record);
    EK_TRY_OUT(ek_file_out_write(&w.file, &w.record, sizeof(w.record)));
    EK_TRY_OUT(ek_file_out_close(&w.file));
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
            EK_TRY_OUT(list_add(&list, config->paths[i], 1));
    }
    EK_REQUIRE_OUT(list.n > 0, EK_EFORMAT, "%s: the folder holds no files", config->paths[0]);
    key = cache_key(&list, config);
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
        ek_log("data", EK_LOG_WARN,
               "passed over %lld binary files and %lld empty texts, of %lld files",
               (long long)t->info.skipped_binary, (long long)t->info.skipped_empty,
               (long long)list.n);
out:
    list_free(&list);
    return st;
}
