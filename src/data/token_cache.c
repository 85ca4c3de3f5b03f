/* Cache files of tokens: validation and cleaning. */
#include "data/tokens_priv.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static_assert(sizeof(ek_cache_record) == 88, "the cache record is a file format");

enum {
    READ_BYTES = 1 << 20,
    DAY_S = 24 * 60 * 60,
    UNUSED_DAYS = 30, /* age at which a file is removed */
    TOTAL_GIB = 64    /* of all files together */
};

uint64_t ek_cache_record_hash(const ek_cache_record *h)
{
    return XXH3_64bits(h, offsetof(ek_cache_record, record_hash));
}

/* Reads exactly n bytes; false: end of file or error. */
static int read_all(int fd, void *data, size_t n, int64_t at)
{
    char *p = data;

    while (n > 0) {
        ssize_t got = pread(fd, p, n, at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        p += got;
        at += got;
        n -= (size_t)got;
    }
    return 1;
}

/* XXH3 of the first n bytes; false: end of file, error, or no memory. */
static int hash_payload(int fd, int64_t n, uint64_t *hash)
{
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(READ_BYTES);
    int good = state != NULL && buffer != NULL;

    if (good)
        XXH3_64bits_reset(state);
    for (int64_t at = 0; good && at < n; at += READ_BYTES) {
        size_t here = n - at < READ_BYTES ? (size_t)(n - at) : READ_BYTES;

        good = read_all(fd, buffer, here, at);
        if (good)
            XXH3_64bits_update(state, buffer, here);
    }
    if (good)
        *hash = XXH3_64bits_digest(state);
    free(buffer);
    XXH3_freeState(state);
    return good;
}

int ek_cache_valid(int fd, int64_t bytes, uint64_t key, uint64_t content, ek_cache_record *out)
{
    ek_cache_record h;
    int64_t payload = bytes - (int64_t)sizeof(h);
    uint64_t hash;

    if (payload < 0 || !read_all(fd, &h, sizeof(h), payload))
        return 0;
    if (memcmp(h.magic, "EKTOKENS", 8) != 0 || h.version != EK_CACHE_VERSION || h.key != key ||
        h.content != content || h.record_hash != ek_cache_record_hash(&h) ||
        (h.token_bytes != 2 && h.token_bytes != 4))
        return 0;
    if (h.n_tokens <= 0 || h.n_tokens != payload / h.token_bytes || payload % h.token_bytes != 0)
        return 0;
    if (!hash_payload(fd, payload, &hash) || hash != h.payload_hash)
        return 0;
    *out = h;
    return 1;
}

/* --- cleaning --------------------------------------------------------------------------------- */

typedef struct {
    ek_path path;
    int64_t bytes, used_s;
} entry;

static int compare_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;

    return x->used_s < y->used_s ? 1 : x->used_s > y->used_s ? -1 : strcmp(x->path.s, y->path.s);
}

static int is_cache_name(const char *name)
{
    size_t n = strlen(name);

    return n > 11 && strncmp(name, "tokens-", 7) == 0 && strcmp(name + n - 4, ".ekt") == 0;
}

/* The cache files of a folder, most recently used first. */
static int64_t list_entries(const char *folder, const ek_names *names, entry *entries)
{
    int64_t n = 0;

    for (int64_t i = 0; i < names->n; i++) {
        entry *e = &entries[n];
        struct stat s;

        if (!is_cache_name(names->names[i]) ||
            ek_path_set(&e->path, "%s/%s", folder, names->names[i]) < 0 ||
            lstat(e->path.s, &s) != 0 || !S_ISREG(s.st_mode))
            continue;
        e->bytes = s.st_size;
        e->used_s = s.st_mtim.tv_sec;
        n++;
    }
    if (n > 1)
        qsort(entries, (size_t)n, sizeof(*entries), compare_use);
    return n;
}

void ek_cache_clean(const char *folder, const char *used)
{
    int64_t now = (int64_t)time(NULL), total = 0, n = 0;
    ek_names names = {0};
    entry *entries = NULL;

    ek_folder_clear_temporaries(folder, "tokens-*.ekt", DAY_S);
    if (ek_folder_entries(folder, &names) == EK_OK)
        entries = calloc((size_t)names.n + 1, sizeof(*entries));
    if (entries != NULL)
        n = list_entries(folder, &names, entries);
    for (int64_t i = 0; i < n; i++) {
        const entry *e = &entries[i];

        total += e->bytes;
        if (strcmp(e->path.s, used) != 0 &&
            (now - e->used_s > (int64_t)UNUSED_DAYS * DAY_S || total > (int64_t)TOTAL_GIB << 30)) {
            unlink(e->path.s);
            total -= e->bytes;
        }
    }
    free(entries);
    ek_names_free(&names);
}
