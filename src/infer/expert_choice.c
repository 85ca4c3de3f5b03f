/* The choice between all experts in memory and a cache of them. */
#include "infer/expert_choice.h"

#include "infer/memory.h"

#include <string.h>

static int is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

static int is_cache(const char *name)
{
    return name != NULL && strcmp(name, "cache") == 0;
}

ek_status ek_expert_choice_check(const ek_lm_config *cfg)
{
    const char *store = cfg->expert_store, *eviction = cfg->expert_eviction;

    EK_REQUIRE(is_auto(store) || is_cache(store) || strcmp(store, "memory") == 0, EK_EINVAL,
               "an expert store '%s' is not known; there are auto, memory and cache", store);
    EK_REQUIRE(is_auto(eviction) || strcmp(eviction, "lru") == 0 || strcmp(eviction, "lfu") == 0,
               EK_EINVAL, "an eviction '%s' is not known; there are auto, lru and lfu", eviction);
    EK_REQUIRE(cfg->expert_slots >= 0 && cfg->expert_slots <= INT32_MAX, EK_EINVAL,
               "%lld slots for experts; there must be at least 1", (long long)cfg->expert_slots);
    EK_REQUIRE(is_auto(store) || is_cache(store) || cfg->expert_slots == 0, EK_EINVAL,
               "--expert-slots is for --expert-store cache; with memory all experts have a slot");
    return EK_OK;
}

ek_status ek_expert_choice_make(const ek_lm_config *cfg, const ek_model_spec *spec,
                                const ek_kernels *k, ek_expert_choice *out)
{
    const char *eviction = cfg->expert_eviction;
    int in_memory = 1;

    *out = (ek_expert_choice){.slots = cfg->expert_slots, .eviction = EK_EVICT_AUTO};
    if (!is_auto(eviction))
        out->eviction = strcmp(eviction, "lru") == 0 ? EK_EVICT_LRU : EK_EVICT_LFU;
    if (cfg->expert_slots > 0 || (!is_auto(cfg->expert_store) && !is_cache(cfg->expert_store)))
        return EK_OK;
    if (is_auto(cfg->expert_store))
        EK_TRY(ek_infer_fits(spec, k, cfg->memory_limit, cfg->positions, &in_memory));
    if (is_cache(cfg->expert_store) || !in_memory)
        return ek_infer_most_slots(spec, k, cfg->memory_limit, cfg->positions, &out->slots);
    return EK_OK;
}
