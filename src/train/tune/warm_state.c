/* Format: a head with the shared numbers, the load history of each layer, the packed tuner. */
#include "train/tune/warm_state.h"

#include <string.h>

typedef struct {
    int64_t experts, layers, placed;
    uint64_t tune_bytes;
    double shared[EK_PASS_SHARED];
} warm_state_head;

/* Larger loads are invalid. */
static const int64_t max_load = (int64_t)1 << 48;

/* Precedes the loads of a layer's experts; of: see ek_plan_history. */
typedef struct {
    int64_t layer, of;
} layer_head;

static size_t layer_bytes(const ek_pass *pass)
{
    return sizeof(layer_head) + (size_t)pass->model->spec.experts * sizeof(int64_t);
}

/* NULL: no planner uses the layer's load history. */
static ek_plan_history *history_of(const ek_pass *pass, int64_t layer)
{
    if (layer < 0 || layer >= pass->model->spec.layers || pass->moe[layer].history.counts == NULL)
        return NULL;
    return &pass->moe[layer].history;
}

static int source_ranks(const ek_pass *pass, int64_t layer)
{
    return pass->moe[layer].planning->limits.ranks;
}

/* Writes loads summed over source ranks. */
static void write_layer(const ek_pass *pass, int64_t layer, unsigned char *to)
{
    const ek_plan_history *h = history_of(pass, layer);
    layer_head head = {layer, h->of};
    int64_t experts = pass->model->spec.experts;

    memcpy(to, &head, sizeof(head));
    for (int64_t e = 0; e < experts; e++) {
        int64_t sum = 0;

        for (int r = 0; r < source_ranks(pass, layer); r++)
            sum += h->counts[r * experts + e];
        memcpy(to + sizeof(head) + (size_t)e * sizeof(sum), &sum, sizeof(sum));
    }
}

size_t ek_warm_state_write(const ek_tune *tune, const ek_pass *pass,
                           const double shared[EK_PASS_SHARED], void *warm_state, size_t cap)
{
    warm_state_head h = {.experts = pass->model->spec.experts, .placed = pass->rebalance.placed};
    unsigned char *to = warm_state;
    size_t at = sizeof(h);

    if (cap < sizeof(h))
        return 0;
    memcpy(h.shared, shared, sizeof(h.shared));
    for (int64_t l = 0; l < pass->model->spec.layers && at + layer_bytes(pass) <= cap; l++)
        if (history_of(pass, l) != NULL) {
            write_layer(pass, l, to + at);
            at += layer_bytes(pass);
            h.layers++;
        }
    h.tune_bytes = tune != NULL ? ek_tune_pack(tune, to + at, cap - at) : 0;
    memcpy(to, &h, sizeof(h));
    return at + h.tune_bytes;
}

static int64_t count_histories(const ek_pass *pass)
{
    int64_t n = 0;

    for (int64_t l = 0; l < pass->model->spec.layers; l++)
        n += history_of(pass, l) != NULL;
    return n;
}

/* Reads loads, spread evenly over source ranks.  Returns 0 if they are invalid. */
static int read_layer(const ek_pass *pass, const unsigned char *from)
{
    int64_t experts = pass->model->spec.experts, load;
    const unsigned char *loads = from + sizeof(layer_head);
    layer_head head;
    ek_plan_history *h;

    memcpy(&head, from, sizeof(head));
    h = history_of(pass, head.layer);
    for (int64_t e = 0; e < experts; e++) {
        memcpy(&load, loads + (size_t)e * sizeof(load), sizeof(load));
        if (load < 0 || load > max_load)
            return 0;
    }
    if (h == NULL || head.of <= 0 || head.of > max_load)
        return 0;
    h->of = head.of;
    for (int64_t e = 0; e < experts; e++) {
        int ranks = source_ranks(pass, head.layer);

        memcpy(&load, loads + (size_t)e * sizeof(load), sizeof(load));
        for (int r = 0; r < ranks; r++)
            h->counts[r * experts + e] = load / ranks + (r < load % ranks);
    }
    return 1;
}

ek_warm_state_found ek_warm_state_read(ek_tune *tune, const ek_pass *pass, const void *warm_state,
                                       size_t bytes, int ranks_changed)
{
    const unsigned char *from = warm_state;
    size_t at = sizeof(warm_state_head);
    ek_warm_state_found found = {0};
    int64_t known = 0;
    warm_state_head h;

    if (bytes < sizeof(h))
        return found;
    memcpy(&h, from, sizeof(h));
    if (h.experts != pass->model->spec.experts || h.layers < 0 ||
        (uint64_t)h.layers > (bytes - at) / layer_bytes(pass) ||
        h.tune_bytes != bytes - at - (uint64_t)h.layers * layer_bytes(pass))
        return found;
    for (int64_t i = 0; i < h.layers; i++, at += layer_bytes(pass))
        known += read_layer(pass, from + at);
    if (tune != NULL)
        (void)!ek_tune_unpack(tune, from + at, bytes - at, ranks_changed);
    found.loads = known > 0 && known == count_histories(pass);
    found.placed = h.placed != 0;
    memcpy(found.shared, h.shared, sizeof(found.shared));
    return found;
}
