/* Waves of experts through the slots of a store. */
#include "moe/expert_store.h"

#include "base/clock.h"
#include "base/populate.h"

#include <stdlib.h>
#include <string.h>

enum {
    PASS_TENTHS = 8, /* a batch that needs more than so many tenths of the experts is a pass */
    MANY_TOKENS = 16 /* of so many some experts of the next layer are certain */
};

struct ek_expert_store {
    ek_expert_store_config cfg;
    ek_slot_pool *pool;
    ek_arena arena;
    ek_populate *populate;   /* the slots' memory; NULL: a device's */
    ek_expert_form *in_slot; /* [slots], without the weights' names */
    int32_t ring_layers;     /* layers that a ring fetches in advance */

    /* of a call, [experts] each */
    int32_t *missing;        /* placement slots of experts that are in no slot of the pool */
    int32_t *at, *pool_slot; /* of the current wave: slots of the placement, of the pool */
    ek_expert_form *forms;
    unsigned char *needed;
    int32_t layer; /* which one */
    int pass;

    /* from one call to the next */
    int32_t *lent; /* [lendable], slots of the pool whose memory the source has, */
    int32_t n_lent;
    int32_t fetched;     /* layers after this one of which all experts were prefetched */
    int32_t n_predicted; /* experts of the next layer that were predicted, */
    int32_t *predicted;  /* [experts] */

    ek_expert_store_stats stats;
};

static size_t round_up(size_t bytes)
{
    return (bytes + EK_ARENA_ALIGN - 1) / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
}

size_t ek_expert_store_slot_bytes(size_t up_bytes, size_t down_bytes)
{
    return round_up(up_bytes) + round_up(down_bytes);
}

static ek_status reserve(ek_expert_store *s)
{
    const ek_expert_store_config *c = &s->cfg;
    char *memory = NULL;

    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0)
            ek_arena_measure_from(&s->arena, c->k->memory, NULL);
        else
            EK_TRY(ek_arena_reserve(&s->arena, "the slots of experts"));
        memory = ek_arena_alloc(&s->arena, c->slots, c->slot_bytes);
    }
    for (int32_t i = 0; i < c->slots && memory != NULL; i++) {
        char *at = memory + (size_t)i * c->slot_bytes;

        s->in_slot[i] =
            (ek_expert_form){.memory = at, .to_up = at, .to_down = at + round_up(c->up_bytes)};
    }
    EK_TRY(ek_arena_check(&s->arena, "the slots of experts"));
    if (c->k->memory != NULL)
        return EK_OK;
    return ek_populate_create(memory, (size_t)c->slots * c->slot_bytes, c->k->threads,
                              &s->populate);
}

/* Names the experts that keep their slots in a pass: of all experts in order, evenly spread. */
static void keep_experts(ek_expert_store *s)
{
    const ek_expert_store_config *c = &s->cfg;
    int64_t all = (int64_t)c->layers * c->experts;

    for (int64_t i = 0; i < all; i++)
        if ((i + 1) * c->kept / all > i * c->kept / all)
            ek_slot_pool_keep(s->pool, (int32_t)(i / c->experts), (int32_t)(i % c->experts));
}

/* As many layers as the source's buffers hold, if kept experts are in slots. */
static int32_t ring_layers(const ek_expert_store_config *c)
{
    int32_t moving = c->layers * c->experts - c->kept, n;

    if (!c->ring || c->source.buffers == 0 || moving == 0)
        return 0;
    n = c->source.buffers * c->layers / moving;
    n = n > 0 ? n : 1;
    return n < c->layers ? n : c->layers - 1;
}

static ek_status alloc_lists(ek_expert_store *s)
{
    size_t n = (size_t)s->cfg.experts;

    s->missing = calloc(n, sizeof(*s->missing));
    s->at = calloc(n, sizeof(*s->at));
    s->pool_slot = calloc(n, sizeof(*s->pool_slot));
    s->forms = calloc(n, sizeof(*s->forms));
    s->needed = calloc(n, sizeof(*s->needed));
    s->predicted = calloc(n, sizeof(*s->predicted));
    s->in_slot = calloc((size_t)s->cfg.slots, sizeof(*s->in_slot));
    s->lent = calloc((size_t)s->cfg.source.lendable + 1, sizeof(*s->lent));
    EK_REQUIRE(s->missing != NULL && s->at != NULL && s->pool_slot != NULL && s->forms != NULL &&
                   s->needed != NULL && s->predicted != NULL && s->in_slot != NULL &&
                   s->lent != NULL,
               EK_ENOMEM, "no memory for lists of %d experts", (int)s->cfg.experts);
    return EK_OK;
}

ek_status ek_expert_store_create(const ek_expert_store_config *cfg, ek_expert_store **out)
{
    ek_expert_store *s = calloc(1, sizeof(*s));
    ek_status st;

    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a store of experts");
    s->cfg = *cfg;
    s->ring_layers = ring_layers(cfg);
    s->layer = -1;
    EK_TRY_OUT(ek_slot_pool_create(cfg->slots, cfg->layers, cfg->experts, cfg->eviction, &s->pool));
    keep_experts(s);
    EK_TRY_OUT(alloc_lists(s));
    EK_TRY_OUT(reserve(s));
    *out = s;
    s = NULL;
out:
    ek_expert_store_destroy(&s);
    return st;
}

void ek_expert_store_destroy(ek_expert_store **ps)
{
    ek_expert_store *s = *ps;

    if (s == NULL)
        return;
    ek_slot_pool_destroy(&s->pool);
    ek_populate_destroy(&s->populate);
    ek_arena_fini(&s->arena);
    free(s->missing);
    free(s->at);
    free(s->pool_slot);
    free(s->forms);
    free(s->needed);
    free(s->predicted);
    free(s->in_slot);
    free(s->lent);
    free(s);
    *ps = NULL;
}

ek_expert_store_stats ek_expert_store_get_stats(const ek_expert_store *s)
{
    ek_expert_store_stats out = s->stats;

    if (s->populate != NULL)
        out.touched_bytes = (int64_t)ek_populate_touched(s->populate);
    return out;
}

static int32_t layer_of(const ek_expert_store *s, const ek_moe_weights *w)
{
    int32_t l = 0;

    while (l < s->cfg.layers && s->cfg.layer[l].w != w)
        l++;
    return l;
}

struct ek_expert_lookahead *ek_expert_store_lookahead(const ek_expert_store *s, int64_t tokens)
{
    return s->cfg.predict_tokens || tokens >= MANY_TOKENS ? s->cfg.lookahead : NULL;
}

static ek_expert_form form_in(const ek_expert_store *s, const ek_moe_weights *w, int32_t expert,
                              int32_t slot)
{
    ek_expert_form x = slot >= 0 ? s->in_slot[slot] : (ek_expert_form){0};

    x.up = &w->up[expert];
    x.down = &w->down[expert];
    return x;
}

/* at: slot of the placement; slot: of the pool. */
static void add_to_wave(ek_expert_store *s, const ek_expert_wave *call, int32_t n, int32_t at,
                        int32_t slot)
{
    s->at[n] = at;
    s->pool_slot[n] = slot;
    s->forms[n] = form_in(s, call->w, call->held[at], slot);
}

/* Packs the experts of a wave of which there are values only. */
static ek_status pack_wave(ek_expert_store *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        ek_expert_form *x = &s->forms[i];

        if (x->to_rest == NULL || s->cfg.source.pack == NULL)
            continue;
        EK_TRY(s->cfg.source.pack(s->cfg.source.context, x));
        s->in_slot[s->pool_slot[i]] = *x;
        s->stats.packed += x->to_rest == NULL;
    }
    return EK_OK;
}

/* Runs the wave of n experts, and unpins their slots.  again: they were needed before. */
static ek_status run_wave(ek_expert_store *s, const ek_expert_wave *call, int32_t n, int again)
{
    ek_status st = again ? pack_wave(s, n) : EK_OK;

    if (st == EK_OK && n > 0)
        st = call->run(call->context, n, s->at, s->forms);
    for (int32_t i = 0; i < n; i++)
        ek_slot_pool_unpin(s->pool, s->pool_slot[i]);
    return st;
}

static ek_status read_wave(ek_expert_store *s, int32_t n)
{
    int64_t start = ek_clock_ns();
    ek_status st = s->cfg.source.read(s->cfg.source.context, n, s->forms);

    s->stats.read_ns += ek_clock_ns() - start;
    s->stats.read_bytes += n * (int64_t)(s->cfg.up_bytes + s->cfg.down_bytes);
    for (int32_t i = 0; i < n; i++) {
        s->in_slot[s->pool_slot[i]] = s->forms[i]; /* exchanged even if others could not be read */
        if (st < 0)
            ek_slot_pool_drop(s->pool, s->pool_slot[i]);
    }
    return st;
}

/* --- what is fetched -------------------------------------------------------------------------- */

static void prefetch_expert(const ek_expert_store *s, int32_t layer, int32_t expert, int idle)
{
    ek_expert_form x = form_in(s, s->cfg.layer[layer].w, expert, -1);

    if (s->cfg.source.prefetch != NULL)
        s->cfg.source.prefetch(s->cfg.source.context, &x, idle);
}

/* Starts to fetch missing experts from number `from` to before `to`, of n; returns the next one. */
static int32_t prefetch_missing(const ek_expert_store *s, const ek_expert_wave *call, int32_t from,
                                int32_t to, int32_t n)
{
    for (; from < to && from < n; from++)
        prefetch_expert(s, s->layer, call->held[s->missing[from]], 0);
    return from;
}

/* Starts to fetch the experts that the next layer is expected to need, and are in no slot, `most`
 * at most. */
static void prefetch_expected(ek_expert_store *s, const ek_expert_wave *call, int32_t most,
                              int idle)
{
    int32_t n, kept = 0;

    if (call->predict == NULL || s->layer + 1 >= s->cfg.layers || s->cfg.source.buffers == 0)
        return;
    n = call->predict(call->context, &s->cfg.layer[s->layer + 1], s->predicted);
    for (int32_t i = 0; i < n && kept < most; i++) {
        if (ek_slot_pool_find(s->pool, s->layer + 1, s->predicted[i]) >= 0)
            continue;
        s->predicted[kept++] = s->predicted[i];
        prefetch_expert(s, s->layer + 1, s->predicted[i], idle);
    }
    s->n_predicted = kept;
    s->stats.predicted += kept;
}

/* Starts to fetch all experts of a layer that are in no slot. */
static void prefetch_layer(const ek_expert_store *s, int32_t layer)
{
    for (int32_t e = 0; e < s->cfg.experts; e++)
        if (ek_slot_pool_find(s->pool, layer, e) < 0)
            prefetch_expert(s, layer, e, 0);
}

/* In a ring the layers that its buffers hold, in another pass the next one: what is not likely to
 * be needed comes last, and is dropped before it is read if the disk is late. */
static void prefetch_pass(ek_expert_store *s, const ek_expert_wave *call)
{
    int32_t most = s->ring_layers;

    if (!s->cfg.ring)
        most = s->cfg.source.buffers > 0 && s->layer + 1 < s->cfg.layers;
    if (s->fetched == 0 && most > 0)
        prefetch_expected(s, call, s->cfg.experts, 0);
    for (; s->fetched < most; s->fetched++)
        prefetch_layer(s, (s->layer + 1 + s->fetched) % s->cfg.layers);
}

/* In a pass the source is lent slots, but for those that experts keep and those of a wave. */
static void lend_slots(ek_expert_store *s)
{
    const ek_expert_store_config *c = &s->cfg;
    int32_t most = c->slots - c->kept - EK_EXPERT_WAVE;

    most = most < c->source.lendable ? most : c->source.lendable;
    while (s->n_lent < most) {
        int32_t slot = ek_slot_pool_take_empty(s->pool);

        if (slot < 0)
            return;
        s->lent[s->n_lent++] = slot;
        s->stats.lent = s->n_lent > s->stats.lent ? s->n_lent : s->stats.lent;
        c->source.lend(c->source.context, s->in_slot[slot].memory);
    }
}

static void take_slots_back(ek_expert_store *s)
{
    for (; s->n_lent > 0; s->n_lent--) {
        int32_t slot = s->lent[s->n_lent - 1];

        s->in_slot[slot].memory = s->cfg.source.take_back(s->cfg.source.context);
        ek_slot_pool_drop(s->pool, slot);
    }
}

/* Slots that the layers fetched in advance are expected to fill, if each needs as many experts as
 * this one. */
static int64_t count_ahead(const ek_expert_store *s, int32_t needed)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < s->fetched; i++) {
        int32_t layer = (s->layer + 1 + i) % s->cfg.layers, missing = 0;

        for (int32_t e = 0; e < s->cfg.experts; e++)
            missing += ek_slot_pool_find(s->pool, layer, e) < 0;
        sum += missing < needed ? missing : needed;
    }
    return sum;
}

/* Has memory touched that experts will be read into: of this layer and of what is fetched for the
 * next ones.  The source's own buffers are used, too. */
static void touch_slots(const ek_expert_store *s, int32_t needed)
{
    int64_t ahead = s->pass ? count_ahead(s, needed) : s->n_predicted;
    int64_t slots = s->stats.uses - s->stats.hits + ahead - s->cfg.source.buffers;

    if (s->populate != NULL && slots > 0)
        ek_populate_ask(s->populate, (size_t)slots * s->cfg.slot_bytes);
}

/* Drops what was fetched for this layer in vain. */
static void drop_unneeded(ek_expert_store *s)
{
    for (int32_t e = 0; e < s->cfg.experts; e++) {
        ek_expert_form x = form_in(s, s->cfg.layer[s->layer].w, e, -1);

        if (!s->needed[e] || ek_slot_pool_find(s->pool, s->layer, e) >= 0)
            s->cfg.source.drop(s->cfg.source.context, &x);
    }
}

/* Enters a layer: what was fetched in advance is for this one, or is dropped.  Returns whether
 * something was. */
static int enter_layer(ek_expert_store *s, const ek_moe_weights *w)
{
    int32_t layer = layer_of(s, w);
    int fetched = s->fetched > 0 || s->n_predicted > 0;

    if (fetched && layer != (s->layer + 1) % s->cfg.layers) {
        s->cfg.source.drop(s->cfg.source.context, NULL);
        fetched = s->fetched = s->n_predicted = 0;
    }
    s->layer = layer;
    s->fetched -= s->fetched > 0;
    return fetched;
}

/* What was predicted is first among the missing experts: it is in buffers, which the others need.
 */
static void confirm_predicted(ek_expert_store *s, const ek_expert_wave *call, int32_t missing)
{
    int32_t first = 0;

    for (int32_t p = 0; p < s->n_predicted; p++) {
        int32_t i = first, at;

        s->stats.confirmed += s->needed[s->predicted[p]];
        while (i < missing && call->held[s->missing[i]] != s->predicted[p])
            i++;
        if (i == missing)
            continue;
        at = s->missing[i];
        memmove(&s->missing[first + 1], &s->missing[first],
                (size_t)(i - first) * sizeof(*s->missing));
        s->missing[first++] = at;
    }
    s->n_predicted = 0;
}

/* The first wave: experts that are in slots.  Returns the number of the others. */
static int32_t use_held(ek_expert_store *s, const ek_expert_wave *call, int32_t *held)
{
    int32_t missing = 0;

    *held = 0;
    memset(s->needed, 0, (size_t)s->cfg.experts);
    for (int32_t i = 0; i < call->slots; i++) {
        int32_t slot;

        if (call->held[i] < 0 || call->offset[i + 1] == call->offset[i])
            continue;
        s->needed[call->held[i]] = 1;
        slot = ek_slot_pool_use(s->pool, s->layer, call->held[i]);
        if (slot >= 0)
            add_to_wave(s, call, (*held)++, i, slot);
        else
            s->missing[missing++] = i;
    }
    s->pass = s->cfg.ring || 10 * (*held + missing) > PASS_TENTHS * s->cfg.experts;
    s->stats.uses += *held + missing;
    s->stats.hits += *held;
    s->stats.passes += s->pass;
    confirm_predicted(s, call, missing);
    return missing;
}

static int32_t take_slot(ek_expert_store *s, int32_t expert)
{
    return s->pass ? ek_slot_pool_take_in_pass(s->pool, s->layer, expert)
                   : ek_slot_pool_take(s->pool, s->layer, expert);
}

/* Experts of a wave: in a pass no more than there are slots of which nothing is kept. */
static int32_t wave_size(const ek_expert_store *s)
{
    int32_t moving = s->cfg.slots - s->cfg.kept - s->n_lent;

    return !s->pass || moving >= EK_EXPERT_WAVE ? EK_EXPERT_WAVE : moving > 0 ? moving : 1;
}

/* The next wave of missing experts, from number i on of `missing`: gives them slots, and returns
 * how many they are. */
static int32_t next_wave(ek_expert_store *s, const ek_expert_wave *call, int32_t i, int32_t missing)
{
    int32_t n = 0, most = wave_size(s);

    for (; n < most && i + n < missing; n++) {
        int32_t at = s->missing[i + n], slot = take_slot(s, call->held[at]);

        if (slot < 0)
            break;
        add_to_wave(s, call, n, at, slot);
    }
    return n;
}

ek_status ek_expert_store_run(ek_expert_store *s, const ek_expert_wave *call)
{
    int fetched_in_advance = enter_layer(s, call->w);
    int32_t held, missing = use_held(s, call, &held), fetched;
    int32_t most = s->cfg.source.buffers > 0 ? missing : 2 * EK_EXPERT_WAVE;

    if (fetched_in_advance)
        drop_unneeded(s);
    if (s->pass)
        lend_slots(s);
    else
        take_slots_back(s);
    fetched = prefetch_missing(s, call, 0, most, missing);
    if (s->pass)
        prefetch_pass(s, call);
    else /* as many as there are buffers: the others would be read no sooner */
        prefetch_expected(s, call, s->cfg.source.buffers, 1);
    touch_slots(s, held + missing);
    EK_TRY(run_wave(s, call, held, 1));
    for (int32_t i = 0, n; i < missing; i += n) {
        n = next_wave(s, call, i, missing);
        EK_REQUIRE(n > 0, EK_EINTERNAL, "all slots of experts are pinned");
        EK_TRY(read_wave(s, n));
        fetched = prefetch_missing(s, call, fetched, i + n + most, missing);
        EK_TRY(run_wave(s, call, n, 0));
    }
    return EK_OK;
}
