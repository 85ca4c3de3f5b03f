/* Creating a model, and its initial weights.  layout.c lists this rank's weights; param_buckets.c
 * lays them out, first to measure, then to allocate. */
#include "base/random.h"
#include "model/layout.h"
#include "model/param_buckets.h"
#include "moe/cosine.h"

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
    return ek_param_buckets_create(m);
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
    EK_TRY(ek_arena_check(&m->state, "the model's state"));
    return ek_arena_check(&m->arena, "the model");
}

static int64_t count_whole(const ek_model_spec *spec)
{
    int64_t count = ek_hf_count(spec), n = 0;

    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(spec, i, &t);
        n += t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
    }
    return n;
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
    if (!m->cfg.trained)
        m->cfg.zero = 0;
    if (m->cfg.mesh->dp == 1)
        m->cfg.embed_columns = 0;
    m->local = ek_model_local_sizes(spec, &m->cfg);
    EK_TRY_OUT(make_tables(m));
    EK_TRY_OUT(reserve_weights(m));
    if (spec->tie_embeddings && ek_model_has_embed(m) && ek_model_has_head(m))
        m->head = m->embed;
    m->n_whole = count_whole(spec);
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
    ek_param_buckets_destroy(&(*pm)->buckets);
    ek_arena_fini(&(*pm)->arena);
    ek_arena_fini(&(*pm)->state);
    ek_arena_fini(&(*pm)->tables);
    free(*pm);
    *pm = NULL;
}

static void set_element(const ek_kernels *k, void *p, int64_t i, double x)
{
    if (k->real == EK_F64)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

/* Initial value of a tensor: -1 stands for normal noise. */
static double initial_value(ek_role role)
{
    switch (role) {
    case EK_ROLE_NORM1:
    case EK_ROLE_NORM2:
    case EK_ROLE_Q_NORM:
    case EK_ROLE_K_NORM:
    case EK_ROLE_FINAL_NORM: return 1;
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS:
    case EK_ROLE_ROUTER_BIAS: return 0;
    case EK_ROLE_ROUTER_SCALE: return EK_COSINE_THETA;
    default: return -1;
    }
}

void ek_model_init(ek_model *m, uint64_t seed)
{
    int64_t count = ek_hf_count(&m->spec);

    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        ek_span a;
        double value;
        uint64_t stream;

        ek_hf_tensor_at(&m->spec, i, &t);
        if (!ek_model_span(m, &t, &a))
            continue;
        value = initial_value(t.role);
        stream = ek_random_stream(t.name);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < a.rows; r++) {
            int64_t width = t.dims > 1 ? t.shape[1] : 1, from = (a.row + r) * width + a.col;

            /* the columns of this row that are kept here */
            int64_t at = a.first + r * a.ld - a.w->kept_first;
            int64_t first = at < 0 ? -at : 0,
                    end = a.w->kept - at < a.cols ? a.w->kept - at : a.cols;

            for (int64_t c = first; c < end; c++)
                set_element(m->k, a.w->p_kept, at + c,
                            value >= 0 ? value
                                       : m->spec.init_range *
                                             ek_random_normal(seed, stream, (uint64_t)(from + c)));
        }
    }
}
