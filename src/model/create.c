/* Creating a model.  layout.c lists this rank's weights; param_buckets.c lays them out, first to
 * measure, then to allocate. */
#include "model/layout.h"
#include "model/offload.h"
#include "model/param_buckets.h"

#include <stdlib.h>

static ek_status make_tables(ek_model *m)
{
    size_t bytes;

    ek_arena_measure(&m->tables);
    m->n_params = ek_model_list_params(m); /* counts the weights */
    ek_arena_measure(&m->tables);
    ek_model_list_params(m); /* measures with that count */
    EK_TRY(ek_arena_check(&m->tables, "the model's tables"));
    bytes = m->tables.used;
    EK_TRY(ek_arena_init(&m->tables, bytes, "the model's tables"));
    m->n_params = ek_model_list_params(m);
    EK_TRY(ek_arena_check(&m->tables, "the model's tables"));
    EK_TRY(ek_param_buckets_create(m));
    return m->cfg.offload != NULL ? ek_offload_create(m) : EK_OK;
}

static ek_status reserve_weights(ek_model *m)
{
    const ek_model_memory *state = m->cfg.state;
    size_t state_bytes;
    void *memory = NULL;

    for (int i = 0; i < 2; i++) {
        ek_arena_measure_from(&m->arena, m->k->memory, NULL);
        ek_arena_measure(&m->state);
        ek_param_buckets_reserve(m);
        ek_offload_reserve(m);
    }
    EK_TRY(ek_arena_check(&m->arena, "the model"));
    EK_TRY(ek_arena_check(&m->state, "the model's state"));
    state_bytes = m->state.used;
    m->arena.never_touched = m->cfg.never_touched;
    EK_TRY(ek_arena_reserve(&m->arena, "the model's weights"));
    if (state != NULL) {
        EK_TRY(state->take(state->context, m, state_bytes, &memory));
        ek_arena_over(&m->state, memory, state_bytes);
    }
    ek_param_buckets_reserve(m);
    ek_offload_reserve(m);
    EK_TRY(ek_arena_check(&m->state, "the model's state"));
    return ek_arena_check(&m->arena, "the model");
}

/* Which layers the virtual stages have. */
static ek_status cut_stages(ek_model *m)
{
    const int32_t *given = m->cfg.stage_layers;
    int n = ek_model_vstages(m);

    m->vstage_first = calloc((size_t)n + 1, sizeof(*m->vstage_first));
    m->vstage_of = calloc((size_t)m->spec.layers + 1, sizeof(*m->vstage_of));
    EK_REQUIRE(m->vstage_first != NULL && m->vstage_of != NULL, EK_ENOMEM,
               "no memory for %d stages", n);
    for (int i = 0; i < n; i++) {
        int32_t even = (int32_t)ek_range_length(m->spec.layers, n, i);

        EK_REQUIRE(given == NULL || given[i] > 0, EK_EINVAL, "stage %d has %d layers", i,
                   (int)given[i]);
        m->vstage_first[i + 1] = m->vstage_first[i] + (given != NULL ? given[i] : even);
    }
    m->cfg.stage_layers = NULL; /* it was borrowed */
    EK_REQUIRE(m->vstage_first[n] == m->spec.layers, EK_EINVAL,
               "stages of %d layers in all, and the model has %lld", (int)m->vstage_first[n],
               (long long)m->spec.layers);
    for (int i = 0; i < n; i++)
        for (int32_t l = m->vstage_first[i]; l < m->vstage_first[i + 1]; l++)
            m->vstage_of[l] = i;
    return EK_OK;
}

ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k,
                          const ek_model_config *cfg, ek_model **out)
{
    ek_model *m = NULL;
    ek_status st = EK_OK;

    EK_TRY(ek_model_check(spec));
    EK_REQUIRE(cfg->zero >= 0 && cfg->zero <= 3, EK_EINVAL, "zero %d is not from 0 to 3",
               cfg->zero);
    EK_REQUIRE(!cfg->embed_columns || !spec->tie_embeddings, EK_EINVAL,
               "the columns of a tied embedding cannot be sharded (--embed-columns)");
    m = calloc(1, sizeof(*m));
    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a model");
    m->spec = *spec;
    m->k = k;
    m->cfg = *cfg;
    if (m->cfg.mesh == NULL)
        m->cfg.mesh = &ek_mesh_one;
    if (m->cfg.model_chunks == 0)
        m->cfg.model_chunks = 1;
    if (!m->cfg.trained) {
        m->cfg.zero = 0;
        m->cfg.offload = NULL;
    }
    if (m->cfg.mesh->dp == 1)
        m->cfg.embed_columns = 0;
    m->local = ek_model_local_sizes(spec, &m->cfg);
    EK_TRY_OUT(cut_stages(m));
    EK_TRY_OUT(make_tables(m));
    EK_TRY_OUT(reserve_weights(m));
    if (m->offload != NULL && !m->cfg.never_touched)
        EK_TRY_OUT(ek_offload_open(m));
    if (spec->tie_embeddings && ek_model_has_embed(m) && ek_model_has_head(m))
        m->head = m->embed;
    *out = m;
    m = NULL;
out:
    ek_model_destroy(&m);
    return st;
}

void ek_model_destroy(ek_model **pm)
{
    if (pm == NULL || *pm == NULL)
        return;
    ek_offload_destroy(*pm); /* before the memory that reads go to */
    ek_param_buckets_destroy(&(*pm)->buckets);
    ek_arena_fini(&(*pm)->arena);
    ek_arena_fini(&(*pm)->state);
    ek_arena_fini(&(*pm)->tables);
    free((*pm)->vstage_first);
    free((*pm)->vstage_of);
    free(*pm);
    *pm = NULL;
}
