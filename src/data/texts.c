/* Texts to tokens: the list of files, parallel encoding, the cache file.
 *
 * Files are read in blocks (data/text_reader.h); a batch of blocks is encoded by the OpenMP team
 * and written in order.  So memory is bounded by a batch, and the stream does not depend on the
 * number of threads. */
#include "base/c_locale.h"
#include "base/log.h"
#include "base/team.h"
#include "data/jsonl.h"
#include "data/text_reader.h"
#include "data/tokens_priv.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { BATCH_BYTES = 32 << 20, BATCH_BLOCKS = 4096, HASH_BYTES = 1 << 20 };

typedef struct {
    char *path;
    int named; /* named by itself, not found in a folder */
    int64_t bytes;
} text_file;

typedef struct {
    text_file *files;
    int64_t n, cap;
} text_list;

/* A block of a file, and its ids. */
typedef struct {
    ek_text_block block;
    const text_file *file;
    ek_ids ids;
    int64_t documents, empty, text_bytes; /* of the lines of a JSON Lines file */
} encoded_block;

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

    EK_TRY(ek_text_check_name(path));
    if (stat(path, &s) != 0)
        return ek_fail_errno(errno, "read", path);
    EK_REQUIRE(S_ISREG(s.st_mode), EK_EFORMAT, "%s: neither a file nor a folder", path);
    if (l->n == l->cap) {
        int64_t cap = 2 * l->cap + 64;
        text_file *grown = realloc(l->files, (size_t)cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a list of %lld files", (long long)cap);
        l->files = grown;
        l->cap = cap;
    }
    f = (text_file){.path = strdup(path), .named = named, .bytes = s.st_size};
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

static const char *field_name(const ek_tokens_config *c)
{
    return c->text_field != NULL ? c->text_field : "text";
}

/* Hash of everything that determines the tokens except the contents of the files: names the cache
 * file, so that changed texts replace it. */
static uint64_t cache_key(const text_list *l, const ek_tokens_config *c)
{
    const ek_tokenizer *t = c->tokenizer;
    size_t json_bytes;
    const char *json = ek_tokenizer_json(t, &json_bytes);
    int64_t end = ek_tokenizer_end(t), version = EK_CACHE_VERSION;
    uint64_t h = XXH3_64bits(json, json_bytes);

    h = XXH3_64bits_withSeed(&end, sizeof(end), h);
    h = XXH3_64bits_withSeed(&version, sizeof(version), h);
    h = XXH3_64bits_withSeed(field_name(c), strlen(field_name(c)) + 1, h);
    for (int64_t i = 0; i < l->n; i++) {
        const char *path = l->files[i].path;

        h = XXH3_64bits_withSeed(path, strlen(path) + 1, h);
    }
    return h;
}

/* Encodes each line's document and the end token after it. */
static ek_status encode_lines(const ek_tokens_config *c, ek_encoder *e, encoded_block *p,
                              char *text)
{
    const char *line = p->block.text, *end = line + p->block.n;
    int64_t last = ek_tokenizer_end(c->tokenizer), number = p->block.line;

    for (; line < end; number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((newline != NULL ? newline : end) - line), bytes;
        ek_jsonl_fault fault;

        if (!ek_jsonl_is_blank(line, n)) {
            EK_REQUIRE(ek_jsonl_text(line, n, field_name(c), text, &bytes, &fault), EK_EFORMAT,
                       "%s:%lld:%zu: %s; every line is a JSON object with a string `%s` "
                       "(--text-field)",
                       p->block.path, (long long)number, fault.column, fault.what, field_name(c));
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

static ek_status encode_block(const ek_tokens_config *c, ek_encoder *e, encoded_block *p)
{
    char *text;
    ek_status st;

    if (p->block.kind != EK_TEXT_BLOCK_UTF8 || p->block.n == 0)
        return EK_OK;
    if (!p->block.lines) {
        st = p->block.first ? ek_encode(e, p->block.text, p->block.n, &p->ids)
                            : ek_encode_rest(e, p->block.text, p->block.n, &p->ids);
        if (st < 0) {
            char said[512];

            (void)snprintf(said, sizeof(said), "%s", ek_err_message());
            return EK_FAIL(st, "%s: %s", p->block.path, said);
        }
        return EK_OK;
    }
    text = malloc(p->block.n);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for %zu bytes of %s", p->block.n, p->block.path);
    st = encode_lines(c, e, p, text);
    free(text);
    return st;
}

static int stop_requested(const ek_tokens_config *c)
{
    return c->stop != NULL && c->stop(c->context);
}

/* XXH3 of a file's contents; stops early once *stopped.  Thread 0 of the team polls the stop
 * callback. */
static ek_status hash_file(const char *path, const ek_tokens_config *c, int *stopped, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(HASH_BYTES);
    int64_t bytes;
    int fd = -1, stop = 0;
    ssize_t n = 1;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(state != NULL && buffer != NULL, EK_ENOMEM, "no memory for a checksum");
    XXH3_64bits_reset(state);
    EK_TRY_OUT(ek_file_open(path, &fd, &bytes));
    while (!stop && n > 0) {
        n = read(fd, buffer, HASH_BYTES);
        EK_REQUIRE_OUT(n >= 0 || errno == EINTR, EK_EIO, "cannot read %s: %s", path,
                       strerror(errno));
        if (n > 0)
            XXH3_64bits_update(state, buffer, (size_t)n);
        n = n < 0 ? 1 : n; /* interrupted */
        if (omp_get_thread_num() == 0 && stop_requested(c)) {
#pragma omp atomic write
            *stopped = 1;
        }
#pragma omp atomic read
        stop = *stopped;
    }
    *out = XXH3_64bits_digest(state);
out:
    if (fd >= 0)
        close(fd);
    free(buffer);
    XXH3_freeState(state);
    return st;
}

/* Hash of the files' current contents.  Sizes and times are not reliable: cp -p and rsync preserve
 * them. */
static ek_status hash_content(const text_list *l, const ek_tokens_config *c, uint64_t *out)
{
    uint64_t *hashes = calloc((size_t)l->n + 1, sizeof(*hashes));
    ek_team_failure first = {.index = -1};
    int stopped = 0;

    EK_REQUIRE(hashes != NULL, EK_ENOMEM, "no memory for checksums of %lld files", (long long)l->n);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < l->n; i++) {
        ek_status st = hash_file(l->files[i].path, c, &stopped, &hashes[i]);

        if (st < 0)
            ek_team_record(&first, i, st);
    }
    *out = XXH3_64bits(hashes, (size_t)l->n * sizeof(*hashes));
    free(hashes);
    EK_TRY(ek_team_result(&first));
    EK_REQUIRE(!stopped, EK_ECANCELED, "interrupted while the texts were read");
    return EK_OK;
}

/* Each thread uses one encoder for the batch. */
static ek_status encode_batch(const ek_tokens_config *c, encoded_block *batch, int64_t n)
{
    ek_team_failure first = {.index = -1};

#pragma omp parallel
    {
        EK_C_LOCALE;
        ek_encoder *e = NULL;
        ek_status st = ek_encoder_create(c->tokenizer, &e);

        if (st < 0)
            ek_team_record(&first, 0, st);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            ek_status one = e == NULL ? EK_OK : encode_block(c, e, &batch[i]);

            if (one < 0)
                ek_team_record(&first, i, one);
        }
        ek_encoder_destroy(&e);
    }
    return ek_team_result(&first);
}

/* Output of the ids: a file, and the record at its end. */
typedef struct {
    ek_file_out file;
    ek_cache_record record;
    XXH3_state_t *hash;
    uint16_t *narrow; /* ids of one block, if token_bytes is 2 */
    int64_t narrow_cap;
} cache_writer;

static ek_status write_ids(cache_writer *w, const ek_ids *ids)
{
    const void *data = ids->ids;
    size_t bytes = (size_t)ids->n * w->record.token_bytes;

    if (w->record.token_bytes == 2) {
        if (w->narrow_cap < ids->n) {
            free(w->narrow);
            w->narrow_cap = 0;
            w->narrow = malloc((size_t)ids->n * sizeof(*w->narrow));
            EK_REQUIRE(w->narrow != NULL, EK_ENOMEM, "no memory for %lld tokens",
                       (long long)ids->n);
            w->narrow_cap = ids->n;
        }
        for (int64_t i = 0; i < ids->n; i++)
            w->narrow[i] = (uint16_t)ids->ids[i];
        data = w->narrow;
    }
    XXH3_64bits_update(w->hash, data, bytes);
    w->record.n_tokens += ids->n;
    return ek_file_out_write(&w->file, data, bytes);
}

static ek_status write_batch(cache_writer *w, encoded_block *batch, int64_t n, int64_t end)
{
    for (int64_t i = 0; i < n; i++) {
        encoded_block *p = &batch[i];

        w->record.skipped_binary += p->block.kind == EK_TEXT_BLOCK_BINARY;
        w->record.skipped_empty += p->empty + (p->block.kind == EK_TEXT_BLOCK_EMPTY);
        w->record.documents += p->documents;
        w->record.text_bytes += p->text_bytes;
        if (p->block.kind != EK_TEXT_BLOCK_UTF8)
            continue;
        if (!p->block.lines) {
            w->record.text_bytes += (int64_t)p->block.n;
            if (p->block.last) {
                EK_TRY(ek_ids_push(&p->ids, (uint32_t)end));
                w->record.documents++;
            }
        }
        if (p->ids.n > 0)
            EK_TRY(write_ids(w, &p->ids));
    }
    return EK_OK;
}

static void free_batch(encoded_block *batch)
{
    for (int64_t i = 0; i < BATCH_BLOCKS; i++) {
        ek_text_block_free(&batch[i].block);
        free(batch[i].ids.ids);
    }
    memset(batch, 0, BATCH_BLOCKS * sizeof(*batch));
}

/* Position in a list of files. */
typedef struct {
    const text_list *list;
    ek_text_reader *reader;
    int64_t file; /* the current file */
    int64_t done; /* bytes of the files before it */
    int open;
} file_cursor;

/* Binary files found in a folder are skipped; one that was named is an error. */
static ek_status check_first_block(const text_file *f, const ek_text_block *p)
{
    EK_REQUIRE(p->kind != EK_TEXT_BLOCK_BINARY || !(f->named || p->lines), EK_EFORMAT,
               "%s: the file holds NUL bytes: it is binary, or a text in UTF-16; data are texts in "
               "UTF-8, .jsonl, .ndjson (each also as .gz or .zst) and .bin token files",
               f->path);
    EK_REQUIRE(p->kind != EK_TEXT_BLOCK_UTF8 || p->n < 5 || memcmp(p->text, "%PDF-", 5) != 0,
               EK_EFORMAT, "%s: a PDF document is not read; convert it to text, or leave it out",
               f->path);
    return EK_OK;
}

/* Reads blocks until a batch is full or all files are read. */
static ek_status read_batch(file_cursor *c, encoded_block *batch, int64_t *n)
{
    size_t bytes = 0;

    for (*n = 0; c->file < c->list->n && *n < BATCH_BLOCKS && bytes < BATCH_BYTES; ++*n) {
        const text_file *f = &c->list->files[c->file];
        encoded_block *p = &batch[*n];
        int first = !c->open;

        p->file = f;
        if (first)
            EK_TRY(ek_text_reader_open(c->reader, f->path));
        c->open = 1;
        EK_TRY(ek_text_reader_next(c->reader, &p->block));
        if (first)
            EK_TRY(check_first_block(f, &p->block));
        bytes += p->block.n;
        if (p->block.last) {
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
    encoded_block *batch = calloc(BATCH_BLOCKS, sizeof(*batch));
    file_cursor files = {.list = l};
    ek_status st = EK_OK;

    EK_REQUIRE(batch != NULL, EK_ENOMEM, "no memory for a batch of texts");
    EK_TRY_OUT(ek_text_reader_create(c->tokenizer, &files.reader));
    for (int64_t i = 0; i < l->n; i++)
        total += l->files[i].bytes;
    while (files.file < l->n) {
        EK_TRY_OUT(read_batch(&files, batch, &n));
        EK_TRY_OUT(encode_batch(c, batch, n));
        EK_TRY_OUT(write_batch(w, batch, n, end));
        free_batch(batch);
        if (c->progress != NULL)
            c->progress(c->context,
                        files.done + (files.open ? ek_text_reader_position(files.reader) : 0),
                        total);
        EK_REQUIRE_OUT(!stop_requested(c), EK_ECANCELED,
                       "interrupted while the texts were tokenised; the partial result is removed");
    }
    EK_REQUIRE_OUT(w->record.documents > 0, EK_EFORMAT,
                   "the data holds no text: of %lld files %lld are binary and %lld empty",
                   (long long)l->n, (long long)w->record.skipped_binary,
                   (long long)w->record.skipped_empty);
out:
    ek_text_reader_destroy(&files.reader);
    free_batch(batch);
    free(batch);
    return st;
}

static ek_status writer_init(cache_writer *w, const ek_tokens_config *c)
{
    *w = (cache_writer){.hash = XXH3_createState()};
    w->file.fd = -1;
    EK_REQUIRE(w->hash != NULL, EK_ENOMEM, "no memory for a checksum");
    XXH3_64bits_reset(w->hash);
    w->record.token_bytes = ek_tokenizer_vocab(c->tokenizer) <= UINT16_MAX + 1 ? 2 : 4;
    return EK_OK;
}

static void writer_fini(cache_writer *w)
{
    free(w->narrow);
    XXH3_freeState(w->hash);
}

/* Writes the cache file of texts with hash *content.  If they have changed since, the file gets a
 * hash that no texts have, so that only this run uses it. */
static ek_status write_cache(const char *path, uint64_t key, const text_list *l,
                             const ek_tokens_config *c, uint64_t *content)
{
    cache_writer w;
    uint64_t after;
    ek_status st;

    EK_TRY_OUT(writer_init(&w, c));
    EK_TRY_OUT(ek_file_out_open(NULL, path, EK_WRITE_REPLACE, &w.file));
    EK_REQUIRE_OUT(fchmod(w.file.fd, 0600) == 0, EK_EIO, "%s: %s", path, strerror(errno));
    EK_TRY_OUT(write_texts(&w, l, c));
    EK_TRY_OUT(hash_content(l, c, &after));
    if (after != *content)
        *content = ~*content;
    memcpy(w.record.magic, "EKTOKENS", sizeof(w.record.magic));
    w.record.version = EK_CACHE_VERSION;
    w.record.key = key;
    w.record.content = *content;
    w.record.payload_hash = XXH3_64bits_digest(w.hash);
    w.record.record_hash = ek_cache_record_hash(&w.record);
    EK_TRY_OUT(ek_file_out_write(&w.file, &w.record, sizeof(w.record)));
    EK_TRY_OUT(ek_file_out_close(&w.file));
out:
    if (st < 0 && w.file.io != NULL)
        ek_file_out_discard(&w.file);
    writer_fini(&w);
    return st;
}

static void copy_counts(ek_tokens *t, const ek_cache_record *h)
{
    t->info.documents = h->documents;
    t->info.skipped_binary = h->skipped_binary;
    t->info.skipped_empty = h->skipped_empty;
    t->info.text_bytes = h->text_bytes;
}

/* Opens the cache file if it exists, is private to this user, and is valid; *found: it was
 * opened. */
static ek_status open_cache(ek_tokens *t, const char *path, uint64_t key, uint64_t content,
                            const ek_tokens_config *c, int *found)
{
    ek_cache_record h;
    int64_t bytes;
    int fd;
    ek_status st;

    *found = 0;
    if (ek_file_open_private(path, &fd, &bytes) < 0)
        return EK_OK;
    if (!ek_cache_valid(fd, bytes, key, content, &h)) {
        close(fd);
        return EK_OK;
    }
    EK_TRY_OUT(ek_tokens_append(t, fd, NULL, bytes - (int64_t)sizeof(h), (int)h.token_bytes,
                                c->vocab, path));
    (void)futimens(fd, NULL); /* marks it as used */
    copy_counts(t, &h);
    *found = 1;
    return EK_OK;
out:
    close(fd);
    return st;
}

/* Removes an entry with the name of a cache file that is not private to this user, so that it is
 * neither read nor, as a link, written through. */
static ek_status remove_foreign(const char *path)
{
    int64_t bytes;
    int fd;

    if (!ek_file_exists(path))
        return EK_OK;
    if (ek_file_open_private(path, &fd, &bytes) < 0)
        return ek_file_remove(NULL, path);
    close(fd);
    return EK_OK;
}

/* Opens the tokens in the cache. */
static ek_status open_cached(ek_tokens *t, const text_list *l, const ek_tokens_config *c)
{
    uint64_t key = cache_key(l, c), content;
    ek_path path;
    int found;

    EK_TRY(ek_folder_make_private(c->cache_dir));
    EK_TRY(ek_path_set(&path, "%s/tokens-%016llx.ekt", c->cache_dir, (unsigned long long)key));
    EK_TRY(hash_content(l, c, &content));
    EK_TRY(open_cache(t, path.s, key, content, c, &found));
    t->info.from_cache = found;
    if (found)
        return EK_OK;
    EK_TRY(remove_foreign(path.s));
    EK_TRY(write_cache(path.s, key, l, c, &content));
    ek_cache_clean(c->cache_dir, path.s);
    EK_TRY(open_cache(t, path.s, key, content, c, &found));
    EK_REQUIRE(found, EK_EIO, "%s: the cache file cannot be read back", path.s);
    return EK_OK;
}

/* Opens the tokens in an unnamed file. */
static ek_status open_uncached(ek_tokens *t, const text_list *l, const ek_tokens_config *c)
{
    cache_writer w;
    ek_status st;

    EK_TRY_OUT(writer_init(&w, c));
    w.file.io = &ek_io_system;
    EK_TRY_OUT(ek_path_set(&w.file.path, "%s", c->scratch_dir));
    EK_TRY_OUT(ek_file_open_unnamed(c->scratch_dir, &w.file.fd));
    EK_TRY_OUT(write_texts(&w, l, c));
    EK_TRY_OUT(ek_tokens_append(t, w.file.fd, NULL, w.file.bytes, (int)w.record.token_bytes,
                                c->vocab, "the file of tokenised texts"));
    w.file.fd = -1;
    copy_counts(t, &w.record);
out:
    if (w.file.fd >= 0)
        close(w.file.fd);
    writer_fini(&w);
    return st;
}

static ek_status check_config(const ek_tokens_config *c)
{
    EK_REQUIRE(c->tokenizer != NULL && (c->cache_dir != NULL || c->scratch_dir != NULL), EK_EINVAL,
               "texts need a tokenizer and a folder for their tokens");
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
    ek_status st;

    EK_TRY(check_config(config));
    for (int64_t i = 0; i < config->n_paths; i++) {
        if (ek_file_kind_of(config->paths[i]) == EK_FILE_FOLDER)
            EK_TRY_OUT(list_folder(&list, config->paths[i]));
        else
            EK_TRY_OUT(list_add(&list, config->paths[i], 1));
    }
    EK_REQUIRE_OUT(list.n > 0, EK_EFORMAT, "%s: the folder holds no files", config->paths[0]);
    if (config->cache_dir != NULL)
        EK_TRY_OUT(open_cached(t, &list, config));
    else
        EK_TRY_OUT(open_uncached(t, &list, config));
    if (t->info.skipped_binary + t->info.skipped_empty > 0)
        ek_log("data", EK_LOG_WARN, "skipped %lld binary files and %lld empty texts, of %lld files",
               (long long)t->info.skipped_binary, (long long)t->info.skipped_empty,
               (long long)list.n);
out:
    list_free(&list);
    return st;
}
