/* Questions about a model: its virtual stages; its executor and memory for tokens. */
#include "model/model.h"

int ek_model_vstages(const ek_model *m)
{
    return m->cfg.mesh->pp * m->cfg.model_chunks;
}

int64_t ek_model_vstage_first(const ek_model *m, int vstage)
{
    return m->vstage_first[vstage];
}

int ek_model_vstage_of(const ek_model *m, int64_t layer)
{
    return m->vstage_of[layer];
}

int ek_model_has_layer(const ek_model *m, int64_t layer)
{
    return ek_model_vstage_of(m, layer) % m->cfg.mesh->pp == m->cfg.mesh->pp_rank;
}

int ek_model_has_moe_layer(const ek_model *m, int64_t layer)
{
    return ek_model_has_layer(m, layer) && !m->spec.dense[layer];
}

int ek_model_has_embed(const ek_model *m)
{
    return m->cfg.mesh->pp_rank == 0;
}

int ek_model_has_head(const ek_model *m)
{
    return m->cfg.mesh->pp_rank == m->cfg.mesh->pp - 1;
}

int32_t ek_model_next_moe(const ek_model *m, int32_t l)
{
    for (l++; l < (int32_t)m->spec.layers; l++)
        if (ek_model_has_moe_layer(m, l))
            break;
    return l;
}

int32_t ek_model_last_moe(const ek_model *m, int32_t first, int32_t end)
{
    for (end--; end >= first; end--)
        if (ek_model_has_moe_layer(m, end))
            return end;
    return -1;
}

static ek_status synchronize_kernels(const void *kernels)
{
    return ek_kernels_wait(kernels);
}

static void set_queueing(const void *kernels, int on)
{
    ek_kernels_queue(kernels, on);
}

ek_status ek_model_exec(const ek_model *m, const ek_exec_config *config, ek_exec **out)
{
    ek_exec_config c = config != NULL ? *config : (ek_exec_config){0};

    if (m->k->wait != NULL) {
        c.synchronize = synchronize_kernels;
        c.queue = set_queueing;
        c.computer = m->k;
    }
    return ek_exec_create(&c, out);
}

ek_status ek_model_reserve_tokens(const ek_model *m, int64_t n, ek_arena *a, int32_t **inputs,
                                  int32_t **targets, int32_t **starts)
{
    ek_arena_measure_from(a, m->k->memory, NULL);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            EK_TRY(ek_arena_reserve(a, "tokens"));
        *inputs = ek_arena_alloc(a, n + 1, sizeof(**inputs));
        *targets = ek_arena_alloc(a, n + 1, sizeof(**targets));
        if (starts != NULL)
            *starts = ek_arena_alloc(a, n + 1, sizeof(**starts));
    }
    return ek_arena_check(a, "tokens");
}
