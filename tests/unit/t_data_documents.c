/* Sources of documents: JSON Lines, compressed files, files that are refused. */
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "data/byte_stream.h"
#include "data/jsonl.h"
#include "data/tokens.h"
#include "ek_test.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char room[64];
static ek_tokenizer *bytes_tokenizer;

static void enter(void)
{
    snprintf(room, sizeof(room), "%s/ek-documents-XXXXXX", P_tmpdir);
    CHECK(mkdtemp(room) != NULL);
    CHECK(ek_tokenizer_open("bytes", &bytes_tokenizer) == EK_OK);
}

static void leave(void)
{
    ek_tokenizer_destroy(&bytes_tokenizer);
    CHECK(ek_folder_remove(NULL, room) == EK_OK);
}

/* Writes a file; its path is valid for the next three calls. */
static const char *put(const char *name, const void *data, size_t bytes)
{
    static ek_path paths[4];
    static int next;
    ek_path *p = &paths[next++ % 4];

    CHECK(ek_path_set(p, "%s/%s", room, name) == EK_OK);
    CHECK(ek_file_replace(NULL, p->s, data, bytes) == EK_OK);
    return p->s;
}

static size_t gzip(const void *data, size_t n, unsigned char *out, size_t cap)
{
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)data,
                  .avail_in = (uInt)n,
                  .next_out = out,
                  .avail_out = (uInt)cap};

    CHECK(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return cap - z.avail_out;
}

static size_t zstd(const void *data, size_t n, unsigned char *out, size_t cap)
{
    size_t got = 0;
    ZSTD_CCtx *c = ZSTD_createCCtx();

    CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1)));
    got = ZSTD_compress2(c, out, cap, data, n);
    CHECK(!ZSTD_isError(got));
    ZSTD_freeCCtx(c);
    return got;
}

static ek_status open_paths(const char *const *paths, int64_t n, const char *field, ek_tokens **out)
{
    ek_path cache;
    ek_tokens_config c = {.paths = paths,
                          .n_paths = n,
                          .vocab = 257,
                          .tokenizer = bytes_tokenizer,
                          .text_field = field};

    CHECK(ek_path_set(&cache, "%s/.cache", room) == EK_OK);
    c.cache_dir = cache.s;
    return ek_tokens_open(&c, out);
}

/* Whether the files give these bytes, '$' standing for the end token. */
static void expect(int line, const char *const *paths, int64_t n, const char *field,
                   const char *want)
{
    ek_tokens *t = NULL;
    char got[256] = "";
    int64_t tokens;
    int32_t id;

    if (open_paths(paths, n, field, &t) < 0) {
        EK_T_FAIL("line %d: %s", line, ek_err_message());
        return;
    }
    tokens = ek_tokens_get_info(t).n_tokens;
    for (int64_t i = 0; i < tokens && i < (int64_t)sizeof(got) - 1; i++) {
        CHECK_INT(ek_tokens_read(t, i, 1, &id), EK_OK);
        got[i] = id == 256 ? '$' : (char)id;
    }
    if (strcmp(got, want) != 0)
        EK_T_FAIL("line %d: \"%s\", expected \"%s\"", line, got, want);
    ek_tokens_close(&t);
}

#define EXPECT(path, field, want) expect(__LINE__, &(const char *){path}, 1, field, want)

static void refused(int line, const char *path, const char *words)
{
    ek_tokens *t = NULL;
    ek_status st = open_paths(&path, 1, NULL, &t);

    if (st != EK_EFORMAT || t != NULL || strstr(ek_err_message(), words) == NULL)
        EK_T_FAIL("line %d: status %d, \"%s\"; expected \"%s\"", line, st,
                  st < 0 ? ek_err_message() : "", words);
    if (st < 0 && strstr(ek_err_message(), path) == NULL)
        EK_T_FAIL("line %d: \"%s\" does not name the file", line, ek_err_message());
    ek_tokens_close(&t);
}

#define REFUSED(path, words) refused(__LINE__, path, words)

/* --- lines of JSON ---------------------------------------------------------------------------- */

static void every_line_is_a_document(void)
{
    static const char lines[] =
        "{\"text\": \"one\", \"id\": [1, {\"text\": \"no\"}]}\r\n"
        "\n"
        "  {\"id\":-1.5e+3,\"x\":{},\"y\":[],\"z\":[[]],\"text\":\"t\\u0077o\\n\"}\n"
        "{\"text\":\"\"}\n"
        "{\"text\":\"\\ud83d\\ude00 \\\" \\\\ \\/\",\"body\":\"b\"}";
    static const char other[] =
        "\xef\xbb\xbf{\"body\":\"x\"}\n{\"b\\u006fdy\":\"y\",\"body\":\"z\"}\n";
    const char *a, *b;

    enter();
    a = put("a.jsonl", lines, sizeof(lines) - 1);
    EXPECT(a, NULL, "one$two\n$\xf0\x9f\x98\x80 \" \\ /$");
    b = put("b.NDJSON", other, sizeof(other) - 1);
    EXPECT(b, "body", "x$z$");
    EXPECT(put("json.txt", "{\"text\": 1}", 11), NULL, "{\"text\": 1}$"); /* a text, by its name */
    EXPECT(put("c.jsonl", "{\"a\":\"x\",\"text\":\"y\"}", 20), NULL, "y$");
    EXPECT(put("c.jsonl", "{\"a\":\"x\",\"text\":\"y\"}", 20), "a", "x$");   /* tokenised anew */
    EXPECT(put("c.jsonl", "{\"text\":[1],\"text\":\"z\"}", 23), NULL, "z$"); /* the last */

    leave();
}

static void a_line_that_is_none_is_refused_with_its_place(void)
{
    static const struct {
        const char *line, *words;
    } wrong[] = {
        {"no json", "a.jsonl:3:1: not a JSON object"},
        {"[1]", ":3:1: not a JSON object"},
        {"{\"text\":\"a\"", ":3:12: neither a comma nor a closing bracket"},
        {"{\"text\":\"a\"} x", ":3:14: data after"},
        {"{\"text\":\"a}", ":3:12: a string without its closing quote"},
        {"{\"text\":5}", ":3:9: the field is not a string"},
        {"{\"text\":null}", "the field is not a string"},
        {"{\"text\":\"a\",\"text\": 1}", ":3:21: the field is not a string"},
        {"{\"txt\":\"a\"}", ":3:0: the field is missing; every line is a JSON object with a string "
                            "`text` (--text-field)"},
        {"{}", "the field is missing"},
        {"{\"a\":{\"text\":\"a\"}}", "the field is missing"},
        {"{\"text\":\"\\x\"}", "an unknown escape"},
        {"{\"text\":\"\\u12g4\"}", "an escape \\u without"},
        {"{\"text\":\"a\tb\"}", "a control character"},
        {"{\"text\":\"a\",}", "no key"},
        {"{\"text\":\"a\",\"b\":01}", "neither a comma"},
        {"{\"text\":\"a\",\"b\":+1}", "a value that JSON does not have"},
        {"{\"text\":\"a\",\"b\":1.}", "a number without digits"},
        {"{\"text\":\"a\",\"b\":nul}", "a value that JSON does not have"},
        {"{\"text\":\"a\",\"b\":[1,]}", "a value that JSON does not have"},
        {"{\"text\":\"a\",\"b\":[1}", "neither a comma"},
        {"{\"text\":\"a\",\"b\"}", "no colon"},
        {"{\"text\":\"a\" \"b\":1}", "neither a comma"},
    };
    char text[256];

    enter();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(text, sizeof(text), "{\"text\":\"fine\"}\n\n%s\n{\"text\":\"fine\"}\n",
                 wrong[i].line);
        REFUSED(put("a.jsonl", text, strlen(text)), wrong[i].words);
    }
    leave();
}

static void a_line_costs_no_more_memory_than_itself(void)
{
    static char line[1 << 20];
    char text[sizeof(line)];
    ek_jsonl_fault fault;
    size_t n = 0, bytes = 0;

    n += (size_t)snprintf(line, sizeof(line), "{\"text\":\"x\",\"bomb\":[");
    while (n + 8 < sizeof(line))
        n += (size_t)snprintf(line + n, sizeof(line) - n, "{},");
    n += (size_t)snprintf(line + n, sizeof(line) - n, "0]}");
    CHECK(ek_jsonl_text(line, n, "text", text, &bytes, &fault) && bytes == 1);
    memset(line, '[', sizeof(line));
    memcpy(line, "{\"a\":", 5);
    CHECK(!ek_jsonl_text(line, sizeof(line), "text", text, &bytes, &fault));
    CHECK(strstr(fault.what, "nested more than 64 deep") != NULL && fault.column == 5 + 64 + 2);
}

/* Accepts exactly what jansson accepts, with the same text, except numbers that jansson cannot
 * represent. */
static void lines_are_read_as_a_json_library_reads_them(void)
{
    static const char *const parts[] = {
        "{",     "}",  "[",          "]",    ",",    ":", "\"text\"",
        "\"a\"", "1",  "-0.5e1",     "true", "null", " ", "\"x\\u00e9\\ty\"",
        "\"",    "\\", "{\"text\":", "}}",   "\"\""};
    int both = 0, neither = 0;

    for (uint64_t i = 0; i < 200000; i++) {
        char line[256] = "", text[256];
        size_t n, bytes = 0, count = 1 + ek_random_bits(1, i, 0) % 9;
        ek_jsonl_fault fault;
        const char *want;
        json_t *json;

        if (i % 4 != 0)
            strcat(line, "{\"text\":");
        for (size_t j = 0; j < count; j++)
            strcat(line, parts[ek_random_bits(2, i, j) % (sizeof(parts) / sizeof(parts[0]))]);
        if (i % 3 == 0)
            strcat(line, "}");
        n = strlen(line);
        json = json_loadb(line, n, 0, NULL);
        want = json_string_value(json_object_get(json, "text"));
        if (ek_jsonl_text(line, n, "text", text, &bytes, &fault) != (want != NULL) ||
            (want != NULL && (strlen(want) != bytes || memcmp(want, text, bytes) != 0)))
            EK_T_FAIL("%s: jansson reads %s", line, want != NULL ? want : "nothing");
        both += want != NULL;
        neither += want == NULL;
        json_decref(json);
    }
    CHECK(both > 500 && neither > 500);
}

/* --- compression ------------------------------------------------------------------------------ */

static void compressed_files_are_read_through(void)
{
    unsigned char z[512];
    size_t n;

    enter();
    n = gzip("one ", 4, z, sizeof(z));
    n += gzip("two", 3, z + n, sizeof(z) - n);
    EXPECT(put("a.txt.gz", z, n), NULL, "one two$");
    memset(z + n, 0, 7); /* a last block filled with zeros */
    EXPECT(put("b.gz", z, n + 7), NULL, "one two$");
    n = gzip("{\"text\":\"one\"}\n", 15, z, sizeof(z));
    EXPECT(put("c.jsonl.gz", z, n), NULL, "one$");
    n = zstd("one ", 4, z, sizeof(z));
    n += zstd("", 0, z + n, sizeof(z) - n);
    n += zstd("two", 3, z + n, sizeof(z) - n);
    EXPECT(put("d.zst", z, n), NULL, "one two$");
    n = zstd("{\"text\":\"one\"}", 14, z, sizeof(z));
    EXPECT(put("e.ndjson.zst", z, n), NULL, "one$");
    leave();
}

/* Each truncation and each changed byte of a stream is refused with its position, or harmless; it
 * never gives other text. */
static void damaged_streams_are_refused(void)
{
    static const char text[] = "some words that compress, some words that compress";
    unsigned char z[256], bad[256];
    char got[256];
    size_t n, bytes;

    enter();
    for (int kind = 0; kind < 2; kind++) {
        const char *name = kind == 0 ? "a.gz" : "a.zst";
        int found = 0;

        n = kind == 0 ? gzip(text, strlen(text), z, sizeof(z))
                      : zstd(text, strlen(text), z, sizeof(z));
        for (size_t cut = 0; cut < n; cut++)
            REFUSED(put(name, z, cut), "ends early, after byte");
        for (size_t i = 0; i < n; i++) {
            ek_byte_stream *s = NULL;

            memcpy(bad, z, n);
            bad[i] ^= 0x41;
            CHECK(ek_byte_stream_open(put(name, bad, n), &s) == EK_OK);
            if (ek_byte_stream_read(s, got, sizeof(got), &bytes) < 0)
                found += strstr(ek_err_message(), ": byte ") != NULL ||
                         strstr(ek_err_message(), "ends early, after byte ") != NULL;
            else
                CHECK(bytes == strlen(text) && memcmp(got, text, bytes) == 0);
            ek_byte_stream_close(&s);
        }
        CHECK(found > (int)n - 12);
        memcpy(z + n, "junk", 4);
        REFUSED(put(name, z, n + 4),
                kind == 0 ? "the gzip stream is followed by other data" : "zstd stream is damaged");
    }
    REFUSED(put("plain.gz", "not compressed", 14), "gzip stream is damaged");
    REFUSED(put("plain.zst", "not compressed", 14), "zstd stream is damaged");
    leave();
}

static void a_long_text_is_the_same_compressed(void)
{
    enum { BYTES = 5 << 20 };
    char *text = malloc(BYTES);
    unsigned char *z = malloc(BYTES);
    const char *paths[2];
    ek_tokens *t[2] = {NULL, NULL};
    static int32_t a[4096], b[4096];

    enter();
    for (size_t i = 0; i < BYTES; i++)
        text[i] =
            ek_random_bits(3, i, 0) % 40 == 0 ? '\n' : (char)('a' + ek_random_bits(3, i, 1) % 26);
    paths[0] = put("a", text, BYTES);
    paths[1] = put("a.zst", z, zstd(text, BYTES, z, BYTES));
    for (int i = 0; i < 2; i++)
        CHECK(open_paths(&paths[i], 1, NULL, &t[i]) == EK_OK);
    for (int i = 0; i < 2; i++)
        CHECK_INT(ek_tokens_get_info(t[i]).n_tokens, BYTES + 1);
    for (int64_t at = 0; at < BYTES; at += 4096) {
        CHECK_INT(ek_tokens_read(t[0], at, 4096, a), EK_OK);
        CHECK_INT(ek_tokens_read(t[1], at, 4096, b), EK_OK);
        CHECK(memcmp(a, b, sizeof(a)) == 0 && a[17] == text[at + 17]);
    }
    for (int i = 0; i < 2; i++)
        ek_tokens_close(&t[i]);
    free(text);
    free(z);
    leave();
}

/* --- other files ------------------------------------------------------------------------------ */

static void other_formats_are_refused_by_name(void)
{
    char folder[64];

    enter();
    REFUSED(put("a.parquet", "PAR1", 4), "a Parquet table is not read");
    REFUSED(put("a.PDF", "x", 1), "a PDF document");
    REFUSED(put("a.docx", "x", 1), "a Word document");
    REFUSED(put("a.tar.gz", "x", 1), "an archive");
    REFUSED(put("a.txt.xz", "x", 1), "compressed by xz");
    REFUSED(put("a.txt", "%PDF-1.4", 8), "a PDF document");
    REFUSED(put("b.txt", "a\0b", 3), "NUL bytes");
    REFUSED(put("c.jsonl", "{\0\"", 3), "NUL bytes");
    CHECK(snprintf(folder, sizeof(folder), "%s/d", room) > 0 && mkdir(folder, 0700) == 0);
    (void)put("d/a.txt", "text", 4);
    (void)put("d/b", "a\0b", 3); /* in a folder: skipped */
    EXPECT(folder, NULL, "text$");
    (void)put("d/b.jsonl", "{\"text\":\"line\"}", 15);
    EXPECT(folder, NULL, "text$line$");
    (void)put("d/c.parquet", "PAR1", 4);
    {
        const char *paths[] = {folder};
        ek_tokens *t = NULL;

        CHECK(open_paths(paths, 1, NULL, &t) == EK_EFORMAT);
        CHECK(strstr(ek_err_message(), "d/c.parquet: a Parquet table") != NULL);
    }
    leave();
}

static const ek_case cases[] = {
    EK_CASE(every_line_is_a_document),
    EK_CASE(a_line_that_is_none_is_refused_with_its_place),
    EK_CASE(a_line_costs_no_more_memory_than_itself),
    EK_CASE(lines_are_read_as_a_json_library_reads_them),
    EK_CASE(compressed_files_are_read_through),
    EK_CASE(damaged_streams_are_refused),
    EK_CASE(a_long_text_is_the_same_compressed),
    EK_CASE(other_formats_are_refused_by_name),
};

EK_TEST_MAIN(cases)
