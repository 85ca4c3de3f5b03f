/* The bump allocator over one anonymous mapping; large mappings request huge pages. */
#include "base/arena.h"

#include <string.h>
#include <sys/mman.h>

/* Unused parts of worst-case allocations below RESERVE_MIN bytes are counted as used. */
enum { HUGE_PAGE = 2 << 20, PAGE = 4096, RESERVE_MIN = 64 << 10 };

void ek_arena_measure(ek_arena *a)
{
    ek_arena_measure_from(a, NULL, NULL);
}

void ek_arena_measure_from(ek_arena *a, const ek_memory *from, ek_arena *host)
{
    memset(a, 0, sizeof(*a));
    a->from = from;
    if (from == NULL || host == NULL)
        return;
    ek_arena_measure(host);
    a->host = host;
}

static ek_status map_memory(ek_arena *a, size_t bytes, int flags, const char *what)
{
    void *p;

    if (bytes == 0)
        bytes = EK_ARENA_ALIGN;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    EK_REQUIRE(p != MAP_FAILED, EK_ENOMEM, "cannot reserve %zu bytes for %s", bytes, what);
    if (bytes >= 2 * HUGE_PAGE && !a->never_touched)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice only */
    *a = (ek_arena){.base = p, .bytes = bytes};
    return EK_OK;
}

ek_status ek_arena_init(ek_arena *a, size_t bytes, const char *what)
{
    memset(a, 0, sizeof(*a));
    return map_memory(a, bytes, 0, what);
}

ek_status ek_arena_reserve(ek_arena *a, const char *what)
{
    size_t bytes = a->used > 0 ? a->used : EK_ARENA_ALIGN, likely = bytes - a->unused;
    void *p;

    if (a->from == NULL || a->never_touched)
        return map_memory(a, a->used, a->unused > 0 || a->never_touched ? MAP_NORESERVE : 0, what);
    EK_TRY(a->from->alloc(a->from, bytes, likely, what, &p));
    if (a->host != NULL && ek_arena_reserve(a->host, what) < 0) {
        a->from->free(a->from, p, likely);
        return EK_ENOMEM;
    }
    *a = (ek_arena){.base = p, .bytes = bytes, .likely = likely, .from = a->from, .host = a->host};
    return EK_OK;
}

ek_arena *ek_arena_host(ek_arena *a)
{
    return a->host != NULL ? a->host : a;
}

void ek_arena_over(ek_arena *a, void *memory, size_t bytes)
{
    *a = (ek_arena){.base = memory, .bytes = bytes, .borrowed = 1};
}

void ek_arena_fini(ek_arena *a)
{
    if (a->host != NULL)
        ek_arena_fini(a->host);
    if (a->base != NULL && a->from != NULL)
        a->from->free(a->from, a->base, a->likely);
    else if (a->base != NULL && !a->borrowed)
        munmap(a->base, a->bytes);
    memset(a, 0, sizeof(*a));
}

static void *bump_alloc(ek_arena *a, int64_t n, size_t size)
{
    size_t bytes, end;

    if (n < 0 || __builtin_mul_overflow((size_t)n, size, &bytes) ||
        __builtin_add_overflow(a->used, bytes, &end) || end > SIZE_MAX - EK_ARENA_ALIGN) {
        a->overflow = 1;
        return NULL;
    }
    end = (end + EK_ARENA_ALIGN - 1) / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
    if (a->base != NULL && end > a->bytes) {
        a->overflow = 1;
        return NULL;
    }
    bytes = a->used;
    a->used = end;
    return a->base == NULL ? NULL : a->base + bytes;
}

/* Memory of the system is zero already; memory of an ek_memory is zeroed here, [0, n) only. */
static void *clear_memory(const ek_arena *a, void *p, int64_t n, size_t size)
{
    if (p != NULL && a->from != NULL && n > 0 && size > 0)
        a->from->clear(a->from, p, (size_t)n * size);
    return p;
}

void *ek_arena_alloc(ek_arena *a, int64_t n, size_t size)
{
    return clear_memory(a, bump_alloc(a, n, size), n, size);
}

void *ek_arena_alloc_expected(ek_arena *a, int64_t n, int64_t expected, size_t size)
{
    char *p = clear_memory(a, bump_alloc(a, n, size), expected, size);
    size_t bytes = (size_t)n * size, likely = (size_t)expected * size;
    uintptr_t from = ((uintptr_t)p + likely + PAGE - 1) / PAGE * PAGE;
    uintptr_t to = ((uintptr_t)p + bytes) / PAGE * PAGE;

    if (a->overflow)
        return NULL;
    if (bytes - likely < RESERVE_MIN)
        return p;
    a->unused += bytes - likely;
    /* A huge page at the end of the likely part would back memory that is never used. */
    if (p != NULL && a->from == NULL && a->bytes >= 2 * HUGE_PAGE)
        (void)madvise((void *)from, to - from, MADV_NOHUGEPAGE);
    return p;
}

size_t ek_arena_expected(const ek_arena *a)
{
    return a->used - a->unused;
}

ek_status ek_arena_check(const ek_arena *a, const char *what)
{
    EK_REQUIRE(!a->overflow, EK_EOVERFLOW, "%s does not fit: %zu of %zu bytes were used", what,
               a->used, a->bytes);
    return a->host != NULL ? ek_arena_check(a->host, what) : EK_OK;
}

void ek_arena_round(ek_arena *a, size_t to)
{
    if (a->used > SIZE_MAX - to)
        a->overflow = 1;
    else
        a->used = (a->used + to - 1) / to * to;
}
