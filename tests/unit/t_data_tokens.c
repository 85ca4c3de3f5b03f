/* Token streams: token files and their errors, texts and folders, the cache of their tokens. */
#include "base/file.h"
#include "base/log.h"
#include "data/tokens.h"
#include "data/tokens_priv.h"
#include "ek_test.h"

#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char room[64]; /* a folder for the case */
static ek_tokenizer *bytes_tokenizer;

static void enter(void)
{
    strcpy(room, "/tmp/ek_tokens_XXXXXX");
    if (mkdtemp(room) == NULL || ek_tokenizer_open("bytes", &bytes_tokenizer) != EK_OK)
        exit(1);
}

static void leave(void)
{
    ek_tokenizer_destroy(&bytes_tokenizer);
    ek_folder_discard(NULL, room);
}

/* Writes without the syncs of ek_file_write, which take most of a test's time. */
static void overwrite(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        EK_T_FAIL("%s cannot be written", path);
        exit(1);
    }
}

static const char *put(const char *name, const void *data, size_t n)
{
    static ek_path p[8];
    static int next;
    ek_path *path = &p[next++ % 8], folder;

    if (ek_path_set(path, "%s/%s", room, name) != EK_OK ||
        ek_path_parent(path->s, &folder) != EK_OK || ek_folder_make(NULL, folder.s) != EK_OK) {
        EK_T_FAIL("%s", ek_err_text());
        exit(1);
    }
    overwrite(path->s, data, n);
    return path->s;
}

static ek_status open_bin(const char *path, int token_bytes, int64_t vocab, ek_tokens **out)
{
    ek_tokens_config c = {.paths = &path, .n_paths = 1, .token_bytes = token_bytes, .vocab = vocab};

    return ek_tokens_open(&c, out);
}

static ek_tokens_config text_config(const char *const *paths, int64_t n)
{
    static ek_path cache;

    if (ek_path_set(&cache, "%s/out", room) != EK_OK)
        exit(1);
    return (ek_tokens_config){.paths = paths,
                              .n_paths = n,
                              .vocab = 257,
                              .tokenizer = bytes_tokenizer,
                              .cache_dir = cache.s};
}

/* Whether the stream holds these bytes, '$' standing for the end token. */
static int holds(const ek_tokens *t, const char *want)
{
    int64_t n = ek_tokens_get_info(t).n_tokens;
    int32_t id;

    if (n != (int64_t)strlen(want))
        return 0;
    for (int64_t i = 0; i < n; i++) {
        CHECK_INT(ek_tokens_read(t, i, 1, &id), EK_OK);
        if (id != (want[i] == '$' ? 256 : (unsigned char)want[i]))
            return 0;
    }
    return 1;
}

static int says(const char *part)
{
    if (strstr(ek_err_message(), part) != NULL)
        return 1;
    fprintf(stderr, "got \"%s\", expected \"%s\"\n", ek_err_message(), part);
    return 0;
}

static void token_files_are_read_as_they_are(void)
{
    static const uint16_t narrow[] = {1, 2, 65535, 0};
    static const uint32_t wide[] = {7, 70000, 8};
    const char *paths[2];
    ek_tokens_config c = {.paths = paths, .n_paths = 2, .token_bytes = 2, .vocab = 70001};
    ek_tokens *t = NULL;
    int32_t ids[8] = {0};

    enter();
    CHECK_INT(open_bin(put("a.bin", wide, sizeof(wide)), 4, 70001, &t), EK_OK);
    CHECK_INT(ek_tokens_get_info(t).n_tokens, 3);
    CHECK_INT(ek_tokens_read(t, 0, 3, ids), EK_OK);
    CHECK(ids[0] == 7 && ids[1] == 70000 && ids[2] == 8);
    ek_tokens_close(&t);

    paths[0] = put("b.bin", narrow, sizeof(narrow));
    paths[1] = put("c.bin", narrow, 4);
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    CHECK_INT(ek_tokens_get_info(t).n_tokens, 6);
    CHECK_INT(ek_tokens_read(t, 1, 5, ids), EK_OK); /* across the border of two files */
    CHECK(ids[0] == 2 && ids[1] == 65535 && ids[2] == 0 && ids[3] == 1 && ids[4] == 2);
    ek_tokens_close(&t);
    CHECK(t == NULL);
    leave();
}

static void bad_token_files_are_refused(void)
{
    static const uint16_t narrow[] = {1, 2, 300, 5, 400};
    static const uint32_t wide[] = {1, 0xFFFFFFFFu};
    const char *mixed[2], *path;
    ek_tokens_config c = {.paths = mixed, .n_paths = 2, .token_bytes = 2, .vocab = 257};
    ek_tokens *t = NULL;

    enter();
    path = put("a.bin", narrow, sizeof(narrow));
    CHECK_INT(open_bin(path, 2, 257, &t), EK_EFORMAT);
    CHECK(says(path) && says("token 2 is 300, beyond the vocabulary of 257"));
    CHECK_INT(open_bin(path, 2, 400, &t), EK_EFORMAT); /* the largest id is vocab - 1 */
    CHECK(says("token 4 is 400, beyond the vocabulary of 400"));
    CHECK_INT(open_bin(path, 2, 401, &t), EK_OK);
    ek_tokens_close(&t);
    CHECK_INT(open_bin(put("w.bin", wide, sizeof(wide)), 4, 257, &t), EK_EFORMAT);
    CHECK(says("token 1 is 4294967295"));
    CHECK_INT(open_bin(put("odd.bin", narrow, 7), 2, 257, &t), EK_EFORMAT);
    CHECK(says("odd.bin: 7 bytes are not a multiple of the 2"));
    CHECK_INT(open_bin(path, 4, 257, &t), EK_EFORMAT);
    CHECK(says("10 bytes are not a multiple of the 4"));
    CHECK_INT(open_bin(put("empty.bin", "", 0), 2, 257, &t), EK_EFORMAT);
    CHECK(says("empty.bin: the token file is empty"));
    CHECK_INT(open_bin(path, 3, 257, &t), EK_EINVAL);
    CHECK(says("--token-bytes is 3"));
    CHECK_INT(open_bin(path, 2, 0, &t), EK_EINVAL);
    CHECK_INT(open_bin("/nowhere/x.bin", 2, 257, &t), EK_ENOENT);
    mixed[0] = path;
    mixed[1] = put("text.txt", "hi", 2);
    CHECK_INT(ek_tokens_open(&c, &t), EK_EINVAL);
    CHECK(says("mixes 1 token files"));
    c.n_paths = 0;
    CHECK_INT(ek_tokens_open(&c, &t), EK_EINVAL);
    CHECK(t == NULL);
    leave();
}

static void count_progress(void *context, int64_t done, int64_t total)
{
    int64_t *last = context;

    CHECK(done > *last && done <= total);
    *last = done;
}

static int warnings;

static void count_warning(void *context, ek_log_level level, const char *component,
                          const char *message)
{
    (void)context;
    (void)level;
    (void)component;
    warnings += strstr(message, "1 binary files and 1 empty texts, of 5 files") != NULL;
}

static void folders_are_read_in_order(void)
{
    const char *paths[2];
    char folder[64];
    ek_tokens_config c;
    ek_tokens *t = NULL;
    ek_tokens_info info;
    int64_t progress = 0;

    enter();
    (void)put("data/b.txt", "bee", 3);
    (void)put("data/a/z.txt", "zed", 3);
    (void)put("data/.git/config", "hidden", 6);
    (void)put("data/c.o",
              "\x7f"
              "ELF\0\0",
              6);
    (void)put("data/d.txt", "", 0);
    paths[0] = put("single.txt", "one", 3);
    paths[1] = strcat(strcpy(folder, room), "/data");
    c = text_config(paths, 2);
    c.progress = count_progress;
    c.context = &progress;
    ek_log_set_sink(count_warning, NULL, EK_LOG_WARN);
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    ek_log_set_sink(NULL, NULL, EK_LOG_WARN);
    CHECK(holds(t, "one$zed$bee$"));
    info = ek_tokens_get_info(t);
    CHECK_INT(info.documents, 3);
    CHECK_INT(info.skipped_binary, 1);
    CHECK_INT(info.skipped_empty, 1);
    CHECK_INT(info.text_bytes, 9);
    CHECK_INT(info.from_cache, 0);
    CHECK_INT(warnings, 1);
    CHECK_INT(progress, 15);
    ek_tokens_close(&t);
    leave();
}

static int64_t cache_files(const ek_tokens_config *c)
{
    ek_names names = {0};
    int64_t n;

    CHECK_INT(ek_folder_entries(c->cache_dir, &names), EK_OK);
    n = names.n;
    ek_names_free(&names);
    return n;
}

/* The only file of the cache. */
static ek_path cache_file(const ek_tokens_config *c)
{
    ek_names names = {0};
    ek_path path = {""};

    CHECK_INT(ek_folder_entries(c->cache_dir, &names), EK_OK);
    CHECK_INT(names.n, 1);
    if (names.n > 0)
        CHECK_INT(ek_path_set(&path, "%s/%s", c->cache_dir, names.names[0]), EK_OK);
    ek_names_free(&names);
    return path;
}

static void the_cache_is_used_again_and_renewed(void)
{
    const char *path;
    ek_tokens_config c;
    ek_tokens *t = NULL;
    ek_names names = {0};
    ek_path file;
    char *data;
    size_t n;

    enter();
    path = put("a.txt", "first", 5);
    c = text_config(&path, 1);
    for (int again = 0; again < 2; again++) {
        CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
        CHECK_INT(ek_tokens_get_info(t).from_cache, again);
        CHECK(holds(t, "first$"));
        ek_tokens_close(&t);
    }
    CHECK_INT(ek_folder_entries(c.cache_dir, &names), EK_OK);
    CHECK_INT(names.n, 1); /* and no temporary file */
    CHECK_INT(ek_path_set(&file, "%s/%s", c.cache_dir, names.names[0]), EK_OK);

    /* a corrupt byte in the ids or any field of the record, or a wrong length: written again */
    CHECK_INT(ek_file_read(file.s, 1 << 20, &data, &n), EK_OK);
    CHECK_INT(n, 6 * 2 + 88);
    for (size_t i = 0; i <= n; i += 4) {
        if (i < n)
            data[i] ^= 1;
        overwrite(file.s, data, i < n ? n : n - 1);
        if (i < n)
            data[i] ^= 1;
        CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
        CHECK_INT(ek_tokens_get_info(t).from_cache, 0);
        CHECK(holds(t, "first$"));
        ek_tokens_close(&t);
    }
    free(data);

    /* other content replaces the file; another end token has another */
    (void)put("a.txt", "second", 6);
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    CHECK(ek_tokens_get_info(t).from_cache == 0 && holds(t, "second$"));
    ek_tokens_close(&t);
    CHECK_INT(cache_files(&c), 1);
    CHECK_INT(ek_tokenizer_set_end(bytes_tokenizer, '!'), EK_OK);
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    CHECK(ek_tokens_get_info(t).from_cache == 0 && holds(t, "second!"));
    ek_tokens_close(&t);
    CHECK_INT(cache_files(&c), 2);
    ek_names_free(&names);
    leave();
}

static void set_time(const char *path, int64_t seconds_ago)
{
    struct timespec t[2] = {{time(NULL) - seconds_ago, 0}, {time(NULL) - seconds_ago, 0}};

    CHECK(utimensat(AT_FDCWD, path, t, 0) == 0);
}

/* Whether the cache serves this text. */
static int from_cache(const ek_tokens_config *c, const char *want)
{
    ek_tokens *t = NULL;
    int used = 0;

    CHECK_INT(ek_tokens_open(c, &t), EK_OK);
    if (t != NULL) {
        CHECK(holds(t, want));
        used = ek_tokens_get_info(t).from_cache;
    }
    ek_tokens_close(&t);
    return used;
}

/* Contents decide, not size and time, which cp -p and rsync preserve. */
static void equal_size_and_time_are_not_enough(void)
{
    const char *path;
    ek_tokens_config c;

    enter();
    path = put("a.txt", "first", 5);
    set_time(path, 1000);
    c = text_config(&path, 1);
    CHECK(!from_cache(&c, "first$"));
    overwrite(path, "other", 5);
    set_time(path, 1000);
    CHECK(!from_cache(&c, "other$"));
    set_time(path, 500); /* the same again, at another time */
    CHECK(from_cache(&c, "other$"));
    CHECK_INT(cache_files(&c), 1);
    leave();
}

/* The cache is private, and foreign files in it are not read. */
static void the_cache_is_private(void)
{
    const char *path;
    ek_tokens_config c;
    ek_tokens *t = NULL;
    struct stat s;
    ek_path file;

    enter();
    path = put("a.txt", "first", 5);
    c = text_config(&path, 1);
    CHECK(!from_cache(&c, "first$"));
    file = cache_file(&c);
    CHECK(stat(file.s, &s) == 0 && (s.st_mode & 07777) == 0600);
    CHECK(stat(c.cache_dir, &s) == 0 && (s.st_mode & 07777) == 0700);
    CHECK(chmod(file.s, 0622) == 0 && !from_cache(&c, "first$"));
    CHECK(from_cache(&c, "first$"));
    CHECK(rename(file.s, put("elsewhere", "", 0)) == 0);
    CHECK(symlink("../elsewhere", file.s) == 0 && !from_cache(&c, "first$"));
    if (geteuid() == 0) {
        file = cache_file(&c);
        CHECK(chown(file.s, 12345, 12345) == 0 && !from_cache(&c, "first$"));
        CHECK(stat(file.s, &s) == 0 && s.st_uid == 0);
        CHECK(chown(c.cache_dir, 12345, 12345) == 0);
        CHECK_INT(ek_tokens_open(&c, &t), EK_EINVAL);
        CHECK(says(c.cache_dir) && says("belongs to user 12345"));
        CHECK(chown(c.cache_dir, 0, 0) == 0);
    }
    CHECK(chmod(c.cache_dir, 0730) == 0);
    CHECK_INT(ek_tokens_open(&c, &t), EK_EINVAL);
    CHECK(says(c.cache_dir) && says("is writable by others"));
    leave();
}

static const char *put_entry(const char *name, int64_t bytes, int64_t days_ago)
{
    const char *path = put(name, "", 0);

    CHECK(truncate(path, bytes) == 0); /* sparse */
    set_time(path, days_ago * 24 * 3600);
    return path;
}

/* Removes old files, then those that make the cache too large. */
static void the_cache_is_bounded(void)
{
    static const int64_t gib = 1 << 30;
    const char *path, *old, *month, *large, *mine, *left, *writing;
    ek_tokens_config c;
    ek_path text;

    enter();
    CHECK_INT(ek_path_set(&text, "%s", put("a.txt", "first", 5)), EK_OK);
    path = text.s;
    c = text_config(&path, 1);
    CHECK(ek_folder_make_private(c.cache_dir) == EK_OK);
    old = put_entry("out/tokens-0000000000000001.ekt", 100, 31);
    month = put_entry("out/tokens-0000000000000002.ekt", 100, 29);
    mine = put_entry("out/notes.txt", 100, 1000);
    left = put_entry("out/tokens-0000000000000001.ekt.abcdefgh.tmp", 100, 2);
    writing = put_entry("out/tokens-0000000000000001.ekt.abcdefgi.tmp", 100, 0);
    CHECK(!from_cache(&c, "first$"));
    CHECK(!ek_file_exists(old) && ek_file_exists(month) && ek_file_exists(mine));
    CHECK(!ek_file_exists(left) && ek_file_exists(writing));
    old = put_entry("out/tokens-0000000000000003.ekt", 40 * gib, 3);
    large = put_entry("out/tokens-0000000000000004.ekt", 40 * gib, 1);
    overwrite(path, "other", 5);
    CHECK(!from_cache(&c, "other$"));
    CHECK(!ek_file_exists(old) && ek_file_exists(large) && ek_file_exists(month));
    large = put_entry("out/tokens-0000000000000005.ekt", 70 * gib, 1);
    overwrite(path, "third", 5);
    CHECK(!from_cache(&c, "third$")); /* the one in use stays */
    CHECK(!ek_file_exists(large));
    CHECK(from_cache(&c, "third$"));
    large = put_entry("out/tokens-0000000000000006.ekt", 60 * gib, -1); /* by another clock */
    old = put_entry("out/tokens-0000000000000007.ekt", 60 * gib, -2);
    overwrite(path, "forth", 5);
    CHECK(!from_cache(&c, "forth$"));
    CHECK(ek_file_exists(old) && !ek_file_exists(large));
    CHECK(truncate(old, 64 * gib) == 0);
    set_time(old, -2 * 24 * 3600);
    overwrite(path, "fifth", 5);
    CHECK(!from_cache(&c, "fifth$"));
    CHECK(ek_file_exists(old) && from_cache(&c, "fifth$")); /* although over the limit */
    leave();
}

/* Without a cache folder nothing is kept. */
static void texts_without_a_cache(void)
{
    const char *path;
    ek_path scratch;
    ek_tokens_config c;

    enter();
    path = put("a.txt", "first", 5);
    c = text_config(&path, 1);
    c.cache_dir = NULL;
    CHECK(ek_path_set(&scratch, "%s/scratch", room) == EK_OK);
    CHECK(ek_folder_make(NULL, scratch.s) == EK_OK);
    c.scratch_dir = scratch.s;
    CHECK(!from_cache(&c, "first$"));
    CHECK(!from_cache(&c, "first$"));
    c.cache_dir = scratch.s;
    CHECK_INT(cache_files(&c), 0);
    leave();
}

/* A file that is truncated or changed while it is open fails the read. */
static void files_that_change_while_they_are_open(void)
{
    static uint16_t ids[10000];
    static int32_t got[10000];
    const char *path, *text;
    ek_tokens_config c;
    ek_tokens *t = NULL;
    ek_path file;

    enter();
    path = put("a.bin", ids, sizeof(ids));
    CHECK_INT(open_bin(path, 2, 257, &t), EK_OK);
    CHECK_INT(ek_tokens_read(t, 0, 10000, got), EK_OK);
    CHECK(truncate(path, 7001) == 0);
    CHECK_INT(ek_tokens_read(t, 0, 3500, got), EK_OK);
    CHECK_INT(ek_tokens_read(t, 0, 10000, got), EK_EFORMAT);
    CHECK(says(path) && says("ends at token 3500 of 10000: it was cut short while it was in use"));
    CHECK_INT(ek_tokens_read(t, 9999, 1, got), EK_EFORMAT);
    CHECK(says("ends at token 3500 of 10000"));
    CHECK(truncate(path, 20000) == 0);
    CHECK_INT(ek_tokens_read(t, 0, 10000, got), EK_OK);
    ids[5000] = 257;
    overwrite(path, ids, sizeof(ids));
    CHECK_INT(ek_tokens_read(t, 0, 10000, got), EK_EFORMAT);
    CHECK(says("token 5000 is 257 now"));
    ek_tokens_close(&t);

    text = put("a.txt", "first", 5);
    c = text_config(&text, 1);
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    file = cache_file(&c);
    CHECK(truncate(file.s, 4) == 0);
    CHECK_INT(ek_tokens_read(t, 0, 6, got), EK_EFORMAT);
    CHECK(says(file.s) && says("token 2 of 6"));
    ek_tokens_close(&t);
    CHECK(!from_cache(&c, "first$"));
    leave();
}

static void bad_texts_are_refused(void)
{
    const char *path;
    ek_tokens_config c;
    ek_tokens *t = NULL;
    ek_names names = {0};

    enter();
    path = put("a.dat", "", 0);
    c = text_config(&path, 1);
    CHECK_INT(ek_tokens_open(&c, &t), EK_EFORMAT);
    CHECK(says("holds no text: of 1 files 0 are binary and 1 empty"));
    CHECK_INT(ek_folder_entries(c.cache_dir, &names), EK_OK);
    CHECK_INT(names.n, 0); /* nothing half-written */
    ek_names_free(&names);
    path = c.cache_dir;
    CHECK_INT(ek_tokens_open(&c, &t), EK_EFORMAT);
    CHECK(says("the folder holds no files"));
    path = "/nowhere/at/all";
    CHECK_INT(ek_tokens_open(&c, &t), EK_ENOENT);
    CHECK(says("/nowhere/at/all"));
    path = "/dev/null";
    CHECK_INT(ek_tokens_open(&c, &t), EK_EFORMAT);
    path = put("ok.txt", "ok", 2);
    c.vocab = 256;
    CHECK_INT(ek_tokens_open(&c, &t), EK_EFORMAT);
    CHECK(says("ids up to 256, the model a vocabulary of 256"));
    c.vocab = 257;
    c.cache_dir = "/proc/nowhere";
    CHECK(ek_tokens_open(&c, &t) < 0);
    c.tokenizer = NULL;
    CHECK_INT(ek_tokens_open(&c, &t), EK_EINVAL);
    CHECK(t == NULL);
    leave();
}

static int stop_at_once(void *context)
{
    ++*(int64_t *)context;
    return 1;
}

/* The caller can stop the encoding; no file remains. */
static void encoding_can_be_stopped(void)
{
    const char *path;
    int64_t asked = 0;
    ek_names left = {0};
    ek_tokens_config c;
    ek_tokens *t = NULL;

    enter();
    path = put("a.txt", "text", 4);
    c = text_config(&path, 1);
    c.stop = stop_at_once;
    c.context = &asked;
    CHECK_INT(ek_tokens_open(&c, &t), EK_ECANCELED);
    CHECK(t == NULL);
    CHECK_INT(asked, 1);
    CHECK_INT(ek_folder_entries(c.cache_dir, &left), EK_OK);
    CHECK_INT(left.n, 0);
    ek_names_free(&left);
    leave();
}

/* One large document, read in blocks: the ids of the whole, with progress reports. */
static void a_large_document_stays_whole(void)
{
    enum { BYTES = 35 << 20 };
    char *text = malloc(BYTES);
    const char *path;
    int64_t progress = 0;
    ek_tokens_config c;
    ek_tokens *t = NULL;
    int32_t *ids = malloc((BYTES + 1) * sizeof(*ids));
    int64_t differ = 0;

    enter();
    for (int i = 0; i < BYTES; i++)
        text[i] = (char)(i % 61 == 0 ? '\n' : 'a' + i % 23);
    path = put("large.txt", text, BYTES);
    c = text_config(&path, 1);
    c.progress = count_progress;
    c.context = &progress;
    CHECK_INT(ek_tokens_open(&c, &t), EK_OK);
    CHECK_INT(ek_tokens_get_info(t).n_tokens, BYTES + 1);
    CHECK_INT(ek_tokens_get_info(t).documents, 1);
    CHECK_INT(ek_tokens_get_info(t).text_bytes, BYTES);
    CHECK_INT(progress, BYTES);
    CHECK_INT(ek_tokens_read(t, 0, BYTES + 1, ids), EK_OK);
    for (int i = 0; i < BYTES; i++)
        differ += ids[i] != text[i];
    CHECK_INT(differ, 0);
    CHECK_INT(ids[BYTES], 256);
    ek_tokens_close(&t);
    free(text);
    free(ids);
    leave();
}

/* Many documents of a real tokenizer, on one thread and on four: the same cache file, bit for
 * bit, and the documents in order. */
static void threads_do_not_change_the_stream(void)
{
    ek_tokenizer *t = NULL;
    ek_tokens *tokens = NULL;
    const char *paths[1];
    char *data[2] = {NULL, NULL}, folder[64];
    size_t n[2] = {0, 0};
    ek_tokens_config c;

    enter();
    CHECK_INT(ek_tokenizer_open(EK_TEST_DATA "/golden/tokenizers/llama3.json", &t), EK_OK);
    for (int i = 0; i < 300; i++) {
        char name[32], text[2000];
        int len = 0;

        for (int k = 0; k < i % 40 + 1; k++)
            len += snprintf(text + len, sizeof(text) - (size_t)len, "document %d, line %d\n", i, k);
        (void)snprintf(name, sizeof(name), "data/%03d.txt", i);
        (void)put(name, text, (size_t)len);
    }
    paths[0] = strcat(strcpy(folder, room), "/data");
    for (int k = 0; k < 2; k++) {
        ek_names names = {0};
        ek_path cache;

        c = text_config(paths, 1);
        c.vocab = 1000;
        c.tokenizer = t;
        omp_set_num_threads(k == 0 ? 1 : 4);
        CHECK_INT(ek_tokens_open(&c, &tokens), EK_OK);
        CHECK_INT(ek_tokens_get_info(tokens).documents, 300);
        ek_tokens_close(&tokens);
        CHECK_INT(ek_folder_entries(c.cache_dir, &names), EK_OK);
        CHECK_INT(ek_path_set(&cache, "%s/%s", c.cache_dir, names.names[0]), EK_OK);
        CHECK_INT(ek_file_read(cache.s, 1 << 24, &data[k], &n[k]), EK_OK);
        CHECK_INT(ek_folder_remove(NULL, c.cache_dir), EK_OK);
        ek_names_free(&names);
    }
    CHECK(n[0] == n[1] && memcmp(data[0], data[1], n[0]) == 0);
    free(data[0]);
    free(data[1]);
    ek_tokenizer_destroy(&t);
    leave();
}

static const ek_case cases[] = {
    EK_CASE(token_files_are_read_as_they_are),
    EK_CASE(bad_token_files_are_refused),
    EK_CASE(folders_are_read_in_order),
    EK_CASE(the_cache_is_used_again_and_renewed),
    EK_CASE(equal_size_and_time_are_not_enough),
    EK_CASE(the_cache_is_private),
    EK_CASE(the_cache_is_bounded),
    EK_CASE(texts_without_a_cache),
    EK_CASE(files_that_change_while_they_are_open),
    EK_CASE(bad_texts_are_refused),
    EK_CASE(encoding_can_be_stopped),
    EK_CASE(threads_do_not_change_the_stream),
    EK_CASE(a_large_document_stays_whole),
};

EK_TEST_MAIN(cases)
