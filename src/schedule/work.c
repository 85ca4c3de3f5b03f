/* What the work of an op amounts to, and its hash. */
#include "schedule/work.h"

#include <string.h>

static double net_bytes(const ek_net_work *w)
{
    double others = (double)(w->group.n - 1) / (double)w->group.n;

    switch (w->collective) {
    case EK_COLLECTIVE_ALL_REDUCE: return 2 * w->bytes * others;
    case EK_COLLECTIVE_ALL_GATHER:
    case EK_COLLECTIVE_REDUCE_SCATTER: return w->bytes * others;
    default: return w->bytes;
    }
}

double ek_work_net_bytes(const ek_work *w)
{
    return w->kind == EK_WORK_NET ? net_bytes(&w->net) : 0;
}

uint64_t ek_digest_add(uint64_t digest, const void *data, size_t bytes)
{
    uint64_t word = 0;

    memcpy(&word, data, bytes);
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

static uint64_t add_numbers(uint64_t digest, const int64_t *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        digest = ek_digest_add(digest, &numbers[i], sizeof(numbers[i]));
    return digest;
}

static uint64_t add_net(uint64_t digest, const ek_net_work *w)
{
    int64_t numbers[] = {(int64_t)w->collective,
                         w->group.first,
                         w->group.stride,
                         w->group.n,
                         w->span,
                         w->peer,
                         w->element};

    digest = add_numbers(digest, numbers, sizeof(numbers) / sizeof(numbers[0]));
    return ek_digest_add(digest, &w->bytes, sizeof(w->bytes));
}

uint64_t ek_work_digest(uint64_t digest, const ek_work *w)
{
    digest = add_numbers(digest, (int64_t[]){(int64_t)w->kind}, 1);
    switch (w->kind) {
    case EK_WORK_NONE: break;
    case EK_WORK_NET: digest = add_net(digest, &w->net); break;
    }
    return digest;
}

const char *ek_collective_name(ek_collective collective)
{
    static const char *const names[EK_COLLECTIVES] = {
        [EK_COLLECTIVE_ALL_REDUCE] = "all-reduce",
        [EK_COLLECTIVE_ALL_GATHER] = "all-gather",
        [EK_COLLECTIVE_REDUCE_SCATTER] = "reduce-scatter",
        [EK_COLLECTIVE_A2A_LINEAR] = "all-to-all",
        [EK_COLLECTIVE_A2A_PAIRWISE] = "pairwise all-to-all",
        [EK_COLLECTIVE_A2A_2DH] = "2dh all-to-all",
        [EK_COLLECTIVE_SEND] = "send",
        [EK_COLLECTIVE_RECEIVE] = "receive",
        [EK_COLLECTIVE_MULTICASTS] = "multicasts",
        [EK_COLLECTIVE_MULTIREDUCES] = "multireduces",
        [EK_COLLECTIVE_TRANSFERS] = "transfers",
    };

    return names[collective];
}
