/* Waves of experts through the slots of a store. */
#include "moe/expert_store.h"

#include "base/clock.h"

#include <stdlib.h>

/* Experts that are read together: while they are multiplied, the next ones are fetched. */
enum { WAVE = 8 };

struct ek_expert_store {
    ek_expert_store_config cfg;
    ek_slot_pool *pool;
    ek_arena arena;
    char *memory; /* [slots] of slot_bytes */
    size_t slot_bytes;

    /* of a call, [experts] each */
    int32_t *missing;        /* placement slots of experts that are in no slot of the pool */
    int32_t *at, *pool_slot; /* of the current wave: slots of the placement, of the pool */
    ek_expert_form *forms;
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

    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0)
            ek_arena_measure_from(&s->arena, c->k->memory, NULL);
        else
            EK_TRY(ek_arena_reserve(&s->arena, "the slots of experts"));
        s->memory = ek_arena_alloc(&s->arena, c->slots, s->slot_bytes);
    }
    return ek_arena_check(&s->arena, "the slots of experts");
}

ek_status ek_expert_store_create(const ek_expert_store_config *cfg, ek_expert_store **out)
{
    ek_expert_store *s = calloc(1, sizeof(*s));
    size_t n = (size_t)cfg->experts;
    ek_status st;

    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a store of experts");
    s->cfg = *cfg;
    s->slot_bytes = ek_expert_store_slot_bytes(cfg->up_bytes, cfg->down_bytes);
    EK_TRY_OUT(ek_slot_pool_create(cfg->slots, cfg->layers, cfg->experts, cfg->eviction, &s->pool));
    s->missing = calloc(n, sizeof(*s->missing));
    s->at = calloc(n, sizeof(*s->at));
    s->pool_slot = calloc(n, sizeof(*s->pool_slot));
    s->forms = calloc(n, sizeof(*s->forms));
    EK_REQUIRE_OUT(s->missing != NULL && s->at != NULL && s->pool_slot != NULL && s->forms != NULL,
                   EK_ENOMEM, "no memory for lists of %d experts", (int)cfg->experts);
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
    ek_arena_fini(&s->arena);
    free(s->missing);
    free(s->at);
    free(s->pool_slot);
    free(s->forms);
    free(s);
    *ps = NULL;
}

ek_expert_store_stats ek_expert_store_get_stats(const ek_expert_store *s)
{
    return s->stats;
}

static ek_expert_form form_in(const ek_expert_store *s, const ek_moe_weights *w, int32_t expert,
                              int32_t slot)
{
    char *at = slot >= 0 ? s->memory + (size_t)slot * s->slot_bytes : NULL;

    return (ek_expert_form){&w->up[expert], &w->down[expert], at,
                            at != NULL ? at + round_up(s->cfg.up_bytes) : NULL};
}

/* at: slot of the placement; slot: of the pool. */
static void add_to_wave(ek_expert_store *s, const ek_expert_wave *call, int32_t n, int32_t at,
                        int32_t slot)
{
    s->at[n] = at;
    s->pool_slot[n] = slot;
    s->forms[n] = form_in(s, call->w, call->held[at], slot);
}

/* Runs the wave of n experts, and unpins their slots. */
static ek_status run_wave(ek_expert_store *s, const ek_expert_wave *call, int32_t n)
{
    ek_status st = n > 0 ? call->run(call->context, n, s->at, s->forms) : EK_OK;

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
    for (int32_t i = 0; st < 0 && i < n; i++)
        ek_slot_pool_drop(s->pool, s->pool_slot[i]);
    return st;
}

/* Starts to fetch missing experts from number `from` to before `to`, of n; returns the next one. */
static int32_t prefetch(const ek_expert_store *s, const ek_expert_wave *call, int32_t from,
                        int32_t to, int32_t n)
{
    for (; s->cfg.source.prefetch != NULL && from < to && from < n; from++) {
        ek_expert_form x = form_in(s, call->w, call->held[s->missing[from]], -1);

        s->cfg.source.prefetch(s->cfg.source.context, &x);
    }
    return from;
}

/* The first wave: experts that are in slots.  Returns the number of the others. */
static int32_t use_held(ek_expert_store *s, const ek_expert_wave *call, int32_t *held)
{
    int32_t missing = 0;

    *held = 0;
    for (int32_t i = 0; i < call->slots; i++) {
        int32_t slot;

        if (call->held[i] < 0 || call->offset[i + 1] == call->offset[i])
            continue;
        slot = ek_slot_pool_use(s->pool, call->w->layer, call->held[i]);
        if (slot >= 0)
            add_to_wave(s, call, (*held)++, i, slot);
        else
            s->missing[missing++] = i;
    }
    s->stats.uses += *held + missing;
    s->stats.hits += *held;
    return missing;
}

ek_status ek_expert_store_run(ek_expert_store *s, const ek_expert_wave *call)
{
    int32_t held, missing = use_held(s, call, &held), fetched = 0;

    fetched = prefetch(s, call, fetched, 2 * WAVE, missing);
    EK_TRY(run_wave(s, call, held));
    for (int32_t i = 0, n; i < missing; i += n) {
        for (n = 0; n < WAVE && i + n < missing; n++) {
            int32_t at = s->missing[i + n];
            int32_t slot = ek_slot_pool_take(s->pool, call->w->layer, call->held[at]);

            if (slot < 0)
                break;
            add_to_wave(s, call, n, at, slot);
        }
        EK_REQUIRE(n > 0, EK_EINTERNAL, "all slots of experts are pinned");
        EK_TRY(read_wave(s, n));
        fetched = prefetch(s, call, fetched, i + n + 2 * WAVE, missing);
        EK_TRY(run_wave(s, call, n));
    }
    return EK_OK;
}
