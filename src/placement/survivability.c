/* Replica sets as bit masks, and the sets of lost domains that include one. */
#include "placement/survivability.h"

#include "placement/subsets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TRIED = 1 << 26, DRAWN = 1 << 16, DRAWN_LEAST = 1 << 10 };

static const double doubt = 0.05; /* probability that an estimate is off by more than its error */
static const uint64_t seed = UINT64_C(0x7375727669766521); /* of the drawn sets */

void ek_replica_sets_reserve(ek_replica_sets *h, ek_arena *a, int32_t domains, int64_t capacity)
{
    memset(h, 0, sizeof(*h));
    h->domains = domains;
    h->words = (domains + 63) / 64;
    h->capacity = capacity;
    h->mask = ek_arena_alloc(a, (2 * capacity + 1) * h->words, sizeof(*h->mask));
    h->lost = ek_arena_alloc(a, domains, sizeof(*h->lost));
}

void ek_replica_sets_clear(ek_replica_sets *h)
{
    h->n = 0;
}

static int is_subset(const uint64_t *a, const uint64_t *b, int32_t words)
{
    for (int32_t i = 0; i < words; i++)
        if ((a[i] & ~b[i]) != 0)
            return 0;
    return 1;
}

static uint64_t *mask_at(const ek_replica_sets *h, int64_t i)
{
    return h->mask + i * h->words;
}

int ek_replica_sets_cover(const ek_replica_sets *h, const uint64_t *mask)
{
    for (int64_t i = 0; i < h->n; i++)
        if (is_subset(mask_at(h, i), mask, h->words))
            return 1;
    return 0;
}

void ek_replica_sets_add(ek_replica_sets *h, const uint64_t *mask)
{
    size_t bytes = (size_t)h->words * sizeof(*mask);
    int64_t kept = 0;

    if (ek_replica_sets_cover(h, mask))
        return;
    for (int64_t i = 0; i < h->n; i++)
        if (!is_subset(mask, mask_at(h, i), h->words)) {
            memmove(mask_at(h, kept), mask_at(h, i), bytes);
            kept++;
        }
    memcpy(mask_at(h, kept), mask, bytes);
    h->n = kept + 1;
}

static int32_t count_bits(const uint64_t *mask, int32_t words)
{
    int32_t n = 0;

    for (int32_t w = 0; w < words; w++)
        n += __builtin_popcountll(mask[w]);
    return n;
}

void ek_replica_sets_add_placement(ek_replica_sets *h, const ek_placement *p,
                                   const int32_t *domain_of, int32_t least)
{
    uint64_t *mask = mask_at(h, h->capacity); /* [experts][words] */

    memset(mask, 0, (size_t)p->experts * (size_t)h->words * sizeof(*mask));
    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        if (p->expert_of[s] >= 0) {
            int32_t d = domain_of[s / p->slots];

            mask[(int64_t)p->expert_of[s] * h->words + d / 64] |= UINT64_C(1) << (d % 64);
        }
    for (int32_t e = 0; e < p->experts; e++, mask += h->words)
        if (count_bits(mask, h->words) >= least)
            ek_replica_sets_add(h, mask);
}

/* The number of sets of the least size. */
static int64_t count_smallest(const ek_replica_sets *h, int32_t *size)
{
    int64_t n = 0;

    *size = h->domains + 1;
    for (int64_t i = 0; i < h->n; i++) {
        int32_t s = count_bits(mask_at(h, i), h->words);

        n = s < *size ? 1 : n + (s == *size);
        *size = s < *size ? s : *size;
    }
    return n;
}

int32_t ek_replica_sets_survive(const ek_replica_sets *h)
{
    int32_t size;

    count_smallest(h, &size);
    return size - 1;
}

/* --- counting --------------------------------------------------------------------------------- */

static double binomial(int32_t n, int32_t k)
{
    double c = 1;

    if (k > n - k)
        k = n - k;
    for (int32_t i = 0; i < k; i++)
        c = c * (n - i) / (i + 1);
    return c;
}

/* Whether the loss of the k domains in h->lost loses an expert. */
static int is_fatal(const ek_replica_sets *h, int32_t k)
{
    uint64_t *dead = mask_at(h, h->capacity);

    memset(dead, 0, (size_t)h->words * sizeof(*dead));
    for (int32_t i = 0; i < k; i++)
        dead[h->lost[i] / 64] |= UINT64_C(1) << (h->lost[i] % 64);
    return ek_replica_sets_cover(h, dead);
}

static double try_all(const ek_replica_sets *h, int32_t k, double sets)
{
    double fatal = 0;

    for (int32_t i = 0; i < k; i++)
        h->lost[i] = i;
    for (double n = 1; n <= sets; n++) {
        fatal += is_fatal(h, k);
        if (n < sets)
            ek_subset_next(h->lost, k, h->domains);
    }
    return fatal;
}

static ek_survivability draw_sets(const ek_replica_sets *h, int32_t k)
{
    int64_t n = TRIED / (h->n * h->words), fatal = 0;

    n = n > DRAWN ? DRAWN : n < DRAWN_LEAST ? DRAWN_LEAST : n;
    for (int64_t i = 0; i < n; i++) {
        ek_subset_draw(seed, h->lost, k, h->domains, i);
        fatal += is_fatal(h, k);
    }
    return (ek_survivability){.p = 1 - (double)fatal / (double)n,
                              .error = sqrt(log(2 / doubt) / (2 * (double)n))};
}

ek_survivability ek_replica_sets_survivability(const ek_replica_sets *h, int32_t k)
{
    double sets = binomial(h->domains, k);
    int32_t least;
    int64_t n = count_smallest(h, &least);

    if (k < least)
        return (ek_survivability){.p = 1};
    if (k == h->domains || least == 0)
        return (ek_survivability){.p = 0};
    if (k == least)
        return (ek_survivability){.p = 1 - (double)n / sets};
    if (sets * (double)(h->n * h->words) <= TRIED)
        return (ek_survivability){.p = 1 - try_all(h, k, sets) / sets};
    return draw_sets(h, k);
}

/* --- text ------------------------------------------------------------------------------------- */

/* Enough digits that a value other than 0 or 1 does not print as one. */
static int digits_of(double p)
{
    int digits = 2;

    if (p <= 0 || p >= 1)
        return digits;
    for (double unit = 0.005; digits < 6 && (p < unit || p > 1 - unit); unit /= 10)
        digits++;
    return digits;
}

/* "; any 2 of 4 nodes with probability 0.93". */
static void write_loss(FILE *f, const ek_replica_sets *h, const char *domain, int32_t any,
                       int32_t k, int is_first)
{
    ek_survivability s = ek_replica_sets_survivability(h, k);

    fprintf(f, "%s any %d", is_first ? "" : ";", (int)k);
    if (is_first)
        fprintf(f, " of %d %s%s", (int)h->domains, domain, h->domains > 1 ? "s" : "");
    if (k > any)
        fprintf(f, " with probability %.*f", digits_of(s.p), s.p);
    if (s.error > 0)
        fprintf(f, " +- %.3f", s.error);
}

const char *ek_replica_sets_text(const ek_replica_sets *h, const char *domain, char *text,
                                 size_t cap)
{
    enum { FURTHER = 2 };
    int32_t any = ek_replica_sets_survive(h), first = any > 0 ? any : 1;
    FILE *f;

    snprintf(text, cap, "survives no loss of a %s", domain);
    if (any < 0 || h->n == 0 || h->domains == 1 || (f = fmemopen(text, cap, "w")) == NULL)
        return text;
    fprintf(f, "survives");
    for (int32_t k = first; k <= any + FURTHER && k < h->domains; k++)
        write_loss(f, h, domain, any, k, k == first);
    fclose(f);
    return text;
}
