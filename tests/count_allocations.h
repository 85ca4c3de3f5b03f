/* count_allocations.h - replaces the allocator of the program that includes it by one that counts
 * every call of ours while `counting` is set, on any thread.  Libraries that are linked at run time
 * are not counted: the OpenMP runtime makes a record of every parallel region. */
#ifndef COUNT_ALLOCATIONS_H
#define COUNT_ALLOCATIONS_H

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int counting, allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTED 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static void count(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count();
    return __libc_memalign(align, n);
}

void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n)
{
    count();
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    count();
    *out = __libc_memalign(align, n);
    return *out != NULL ? 0 : ENOMEM;
}

void free(void *p)
{
    if (p != NULL) /* what is freed in a step was allocated in one */
        count();
    __libc_free(p);
}
#else
#define COUNTED 0
#endif

#endif
