/* A buffer filled from the stream, from whose front blocks are taken. */
#include "data/text_reader.h"

#include "data/byte_stream.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    SNIFF_BYTES = 8192,
    TEXT_BYTES = 1 << 20,  /* of a block of a text */
    LINES_BYTES = 1 << 18, /* of a block of lines */
    LINE_BYTES_MAX = 64 << 20,
    TEXT_BYTES_MAX = 1 << 30 /* of a text without a place to cut */
};

struct ek_text_reader {
    const ek_tokenizer *tokenizer;
    const char *path;
    ek_byte_stream *stream;
    char *buf;
    size_t n, cap;
    int lines, begun,
        ended; /* begun: a block of this file was returned; ended: the rest of the file is in buf */
    int64_t line; /* number of the first line in buf */
};

void ek_text_block_free(ek_text_block *p)
{
    free(p->text);
    *p = (ek_text_block){.text = NULL};
}

static int has_suffix(const char *path, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);

    return n > m && path[n - m - 1] == '.' && strncasecmp(path + n - m, suffix, m) == 0;
}

/* Whether a path names a JSON Lines file, compressed or not. */
static int is_json_lines(const char *path)
{
    size_t n = ek_byte_stream_stem(path);

    return has_suffix(path, n, "jsonl") || has_suffix(path, n, "ndjson");
}

ek_status ek_text_check_name(const char *path)
{
    static const struct {
        const char *suffix, *format;
    } known[] = {
        {"parquet", "a Parquet table"},
        {"arrow", "an Arrow table"},
        {"feather", "an Arrow table"},
        {"orc", "an ORC table"},
        {"avro", "an Avro file"},
        {"pdf", "a PDF document"},
        {"doc", "a Word document"},
        {"docx", "a Word document"},
        {"odt", "an OpenDocument text"},
        {"rtf", "an RTF document"},
        {"epub", "an EPUB book"},
        {"tar", "an archive"},
        {"tgz", "an archive"},
        {"zip", "an archive"},
        {"7z", "an archive"},
        {"rar", "an archive"},
        {"xz", "compressed by xz"},
        {"bz2", "compressed by bzip2"},
        {"lz4", "compressed by lz4"},
    };
    size_t n = strlen(path), stem = ek_byte_stream_stem(path);

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        EK_REQUIRE(!has_suffix(path, n, known[i].suffix) &&
                       !has_suffix(path, stem, known[i].suffix),
                   EK_EFORMAT,
                   "%s: %s is not read; data are texts, .jsonl, .ndjson (each also as .gz or .zst) "
                   "and .bin token files: convert it, or leave it out",
                   path, known[i].format);
    return EK_OK;
}

ek_status ek_text_reader_create(const ek_tokenizer *tokenizer, ek_text_reader **out)
{
    ek_text_reader *r = calloc(1, sizeof(*r));

    EK_REQUIRE(r != NULL, EK_ENOMEM, "no memory to read texts");
    r->tokenizer = tokenizer;
    *out = r;
    return EK_OK;
}

void ek_text_reader_destroy(ek_text_reader **pr)
{
    if (*pr == NULL)
        return;
    ek_byte_stream_close(&(*pr)->stream);
    free((*pr)->buf);
    free(*pr);
    *pr = NULL;
}

ek_status ek_text_reader_open(ek_text_reader *r, const char *path)
{
    ek_byte_stream_close(&r->stream);
    r->path = path;
    r->n = 0;
    r->begun = r->ended = 0;
    r->lines = is_json_lines(path);
    r->line = 1;
    return ek_byte_stream_open(path, &r->stream);
}

int64_t ek_text_reader_position(const ek_text_reader *r)
{
    return r->stream != NULL ? ek_byte_stream_position(r->stream) : 0;
}

/* Fills the buffer to `want` bytes, or to the end of the file. */
static ek_status fill_buffer(ek_text_reader *r, size_t want)
{
    size_t got;

    if (r->cap < want) {
        char *grown = realloc(r->buf, want);

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %zu bytes of %s", want, r->path);
        r->buf = grown;
        r->cap = want;
    }
    if (r->ended || r->n >= want)
        return EK_OK;
    EK_TRY(ek_byte_stream_read(r->stream, r->buf + r->n, want - r->n, &got));
    r->n += got;
    r->ended = r->n < want;
    return EK_OK;
}

/* Moves the front of the buffer to a block. */
static ek_status take_block(ek_text_reader *r, size_t n, ek_text_block *out)
{
    out->text = malloc(n + 1);
    EK_REQUIRE(out->text != NULL, EK_ENOMEM, "no memory for %zu bytes of %s", n, r->path);
    if (n > 0)
        memcpy(out->text, r->buf, n);
    out->n = n;
    out->last = r->ended && n == r->n;
    r->n -= n;
    memmove(r->buf, r->buf + n, r->n);
    if (r->n == 0 && r->cap > 4 * TEXT_BYTES) { /* end of a long text */
        free(r->buf);
        r->buf = NULL;
        r->cap = 0;
    }
    return EK_OK;
}

/* Detects the kind of file at its beginning; the rest of a binary one is not read. */
static void detect_kind(ek_text_reader *r, ek_text_block *out)
{
    size_t n = r->n < SNIFF_BYTES ? r->n : SNIFF_BYTES;

    if (r->n == 0)
        out->kind = EK_TEXT_BLOCK_EMPTY;
    else if (memchr(r->buf, '\0', n) != NULL)
        out->kind = EK_TEXT_BLOCK_BINARY;
    if (r->lines && r->n >= 3 && memcmp(r->buf, "\xef\xbb\xbf", 3) == 0) {
        r->n -= 3; /* skip the byte order mark */
        memmove(r->buf, r->buf + 3, r->n);
    }
    if (out->kind != EK_TEXT_BLOCK_UTF8) {
        r->n = 0;
        r->ended = 1;
    }
}

static ek_status cut_lines(ek_text_reader *r, ek_text_block *out)
{
    const char *newline = memrchr(r->buf, '\n', r->n);

    while (newline == NULL && !r->ended) {
        EK_REQUIRE(r->n < LINE_BYTES_MAX, EK_EFORMAT, "%s:%lld: a line of more than %d MiB",
                   r->path, (long long)r->line, LINE_BYTES_MAX >> 20);
        EK_TRY(fill_buffer(r, 2 * r->n));
        newline = memrchr(r->buf, '\n', r->n);
    }
    out->line = r->line;
    EK_TRY(take_block(r, newline == NULL || r->ended ? r->n : (size_t)(newline - r->buf) + 1, out));
    for (size_t i = 0; i < out->n; i++)
        r->line += out->text[i] == '\n';
    return EK_OK;
}

static ek_status cut_text(ek_text_reader *r, ek_text_block *out)
{
    size_t at = r->n;

    if (r->n > 2 * TEXT_BYTES)
        at = ek_tokenizer_cut(r->tokenizer, r->buf, r->n, TEXT_BYTES);
    while (at == r->n && !r->ended) {
        size_t searched = r->n;

        EK_REQUIRE(r->n < TEXT_BYTES_MAX, EK_EFORMAT,
                   "%s: more than %d GiB without a line break where the tokenizer may cut", r->path,
                   TEXT_BYTES_MAX >> 30);
        EK_TRY(fill_buffer(r, 2 * r->n));
        at = ek_tokenizer_cut(r->tokenizer, r->buf, r->n, searched - 1);
    }
    return take_block(r, at, out);
}

ek_status ek_text_reader_next(ek_text_reader *r, ek_text_block *out)
{
    *out = (ek_text_block){.path = r->path, .lines = r->lines, .kind = EK_TEXT_BLOCK_UTF8};
    EK_TRY(fill_buffer(r, r->lines ? LINES_BYTES : 2 * TEXT_BYTES + 1));
    out->first = !r->begun;
    if (out->first)
        detect_kind(r, out);
    r->begun = 1;
    if (out->kind != EK_TEXT_BLOCK_UTF8)
        return take_block(r, 0, out);
    return r->lines ? cut_lines(r, out) : cut_text(r, out);
}
