/* The choice between all experts in memory, a cache of them, a ring of layers, and mapped files. */
#include "infer/expert_choice.h"

#include "model/hf/expert_files.h"

#include <string.h>

enum {
    RING_LEAST = 2,  /* one layer that computes and one that arrives */
    PROMPT = 512,    /* tokens of a prompt for which slots leave room */
    MAPPED_SLOTS = 8 /* for the packed forms of experts at work: the cache is the kernel's */
};

static int is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

static int is(const char *name, const char *value)
{
    return name != NULL && strcmp(name, value) == 0;
}

ek_status ek_expert_choice_check(const ek_lm_config *cfg)
{
    const char *store = cfg->expert_store, *eviction = cfg->expert_eviction;

    EK_REQUIRE(is_auto(store) || is(store, "memory") || is(store, "cache") || is(store, "ring") ||
                   is(store, "mmap"),
               EK_EINVAL,
               "an expert store '%s' is not known; there are auto, memory, cache, ring and mmap",
               store);
    EK_REQUIRE(is_auto(eviction) || is(eviction, "lru") || is(eviction, "lfu"), EK_EINVAL,
               "an eviction '%s' is not known; there are auto, lru and lfu", eviction);
    EK_REQUIRE(cfg->expert_lookahead == NULL || is(cfg->expert_lookahead, "on") ||
                   is(cfg->expert_lookahead, "off"),
               EK_EINVAL, "expert lookahead is 'on' or 'off', not '%s'", cfg->expert_lookahead);
    EK_REQUIRE(cfg->expert_slots >= 0 && cfg->expert_slots <= INT32_MAX, EK_EINVAL,
               "%lld slots for experts; there must be at least 1", (long long)cfg->expert_slots);
    EK_REQUIRE(is_auto(store) || is(store, "cache") || cfg->expert_slots == 0, EK_EINVAL,
               "--expert-slots is for --expert-store cache, not %s", store);
    EK_REQUIRE(is(store, "ring") || cfg->ring == 0, EK_EINVAL,
               "--ring is for --expert-store ring, not %s", store != NULL ? store : "auto");
    EK_REQUIRE(
        cfg->ring == 0 || (cfg->ring >= RING_LEAST && cfg->ring <= INT32_MAX), EK_EINVAL,
        "a ring of %lld layers; it needs at least %d, one that computes and one that is read",
        (long long)cfg->ring, RING_LEAST);
    return EK_OK;
}

/* Positions of a text whose prompt is not known yet; 0: no text is planned. */
static int64_t text_positions(const ek_lm_config *cfg, const ek_model_spec *spec)
{
    int64_t n = cfg->positions + PROMPT, most = ek_model_longest(spec);

    return cfg->positions == 0 ? 0 : n < most ? n : most;
}

/* One layer of a ring is in buffers, on its way; of the others all but those of a wave stay. */
static ek_status make_ring(const ek_lm_config *cfg, const ek_model_spec *spec, const ek_kernels *k,
                           ek_expert_choice *out)
{
    out->ring = 1;
    out->room =
        (ek_expert_room){.slots = (cfg->ring - 1) * spec->experts, .buffers = spec->experts};
    if (cfg->ring == 0) {
        EK_TRY(
            ek_infer_most_slots(spec, k, cfg->memory_limit, text_positions(cfg, spec), &out->room));
        out->room.slots -= out->room.slots % spec->experts;
    }
    if (is_auto(cfg->expert_eviction)) /* else layers move in a circle, and none stays */
        out->kept =
            out->room.slots - (spec->experts < EK_EXPERT_WAVE ? spec->experts : EK_EXPERT_WAVE);
    return EK_OK;
}

/* Most slots keep their experts in a pass; up to an eighth are for a wave, and lent as buffers. */
static void complete_cache(ek_expert_choice *c)
{
    int64_t moving = c->room.slots / 8, most = EK_EXPERTS_LENT + EK_EXPERT_WAVE;

    if (c->room.buffers == 0)
        c->room.buffers = ek_expert_files_buffers(c->room.slots);
    moving = moving < most ? moving : most;
    moving = moving > c->room.slots / 16 ? moving : c->room.slots / 16;
    c->kept = c->room.slots - moving - 1;
}

ek_status ek_expert_choice_make(const ek_lm_config *cfg, const ek_model_spec *spec,
                                const ek_kernels *k, ek_expert_choice *out)
{
    const char *eviction = cfg->expert_eviction;
    int in_memory = is(cfg->expert_store, "memory");

    *out = (ek_expert_choice){.room = {.slots = cfg->expert_slots},
                              .eviction = EK_EVICT_AUTO,
                              .lookahead = is(cfg->expert_lookahead, "on")};
    if (!is_auto(eviction))
        out->eviction = is(eviction, "lru") ? EK_EVICT_LRU : EK_EVICT_LFU;
    if (is(cfg->expert_store, "ring"))
        return make_ring(cfg, spec, k, out);
    if (is(cfg->expert_store, "mmap")) {
        out->mapped = 1;
        out->room.slots = MAPPED_SLOTS;
        return EK_OK;
    }
    if (is_auto(cfg->expert_store) && cfg->expert_slots == 0)
        EK_TRY(ek_infer_fits(spec, k, cfg->memory_limit, cfg->positions, &in_memory));
    if (in_memory)
        return EK_OK;
    if (cfg->expert_slots == 0)
        EK_TRY(
            ek_infer_most_slots(spec, k, cfg->memory_limit, text_positions(cfg, spec), &out->room));
    complete_cache(out);
    return EK_OK;
}
