/* Measures what training needs, with experts in memory or on disk. */
#include "base/option_value.h"
#include "base/threads.h"
#include "fit/fit.h"
#include "model/offload.h"
#include "tensor/select/select.h"
#include "train/offload_room.h"
#include "train/trainer.h"

/* A mode's configurations. */
typedef struct {
    const ek_model_spec *spec;
    ek_mesh mesh;
    ek_trainer_config trainer;
    ek_model_config model;
    ek_kernels *k;
    int64_t base;
} layout;

/* The sizes of a data parallel layout, as rank 0 sees them: enough to measure memory, no groups. */
static ek_mesh data_parallel_mesh(int ranks)
{
    ek_mesh mesh = ek_mesh_one;

    mesh.size = mesh.dp = mesh.edp = mesh.stage_size = ranks;
    return mesh;
}

/* The caller destroys l->k. */
static ek_status open_layout(const ek_model_spec *spec, const ek_fit_mode *mode, int threads,
                             layout *l)
{
    int recompute = ek_option_choice_index("off|attention|full", mode->recompute);

    EK_REQUIRE(recompute >= 0, EK_EINVAL, "no recomputation %s", mode->recompute);
    *l = (layout){
        .spec = spec,
        .mesh = data_parallel_mesh(mode->ranks),
        .trainer = {.batch = mode->batch,
                    .seq = mode->seq,
                    .micro_batch = mode->micro_batch,
                    .recompute = (ek_recompute)recompute,
                    .moe = {.degree = 1}},
        .model = {.trained = 1, .zero = mode->zero, .model_chunks = 1, .never_touched = 1}};
    EK_TRY(ek_kernels_open("cpu", 0, mode->mode, ek_cpu_isa(), threads, &l->k));
    l->base = ek_rss_bytes();
    return EK_OK;
}

/* Replaces *m by a model with these experts on disk (NULL: none); *bytes: of the process. */
static ek_status lay_out(layout *l, const ek_offload_config *offload, ek_model **m, int64_t *bytes)
{
    size_t activations;

    ek_model_destroy(m);
    l->model.mesh = &l->mesh;
    l->model.offload = offload;
    EK_TRY(ek_model_create(l->spec, l->k, &l->model, m));
    EK_TRY(ek_trainer_measure(*m, &l->trainer, &activations));
    *bytes = l->base + (int64_t)((*m)->arena.bytes + activations);
    return EK_OK;
}

ek_status ek_fit_training_of(const ek_model_spec *spec, const ek_fit_mode *mode, int threads,
                             int64_t *bytes)
{
    ek_model *m = NULL;
    layout l = {0};
    ek_status st;

    EK_TRY_OUT(open_layout(spec, mode, threads, &l));
    EK_TRY_OUT(lay_out(&l, NULL, &m, bytes));
out:
    ek_model_destroy(&m);
    ek_kernels_destroy(&l.k);
    return st;
}

/* Entries for two layers. */
static int32_t comfortable_entries(const ek_model *m)
{
    int32_t layers = (int32_t)ek_model_moe_layers(&m->spec), n = ek_offload_buckets(m);
    int32_t entries = layers > 0 ? 2 * ((n + layers - 1) / layers) : 0;

    return entries > EK_OFFLOAD_ENTRIES_MIN ? entries : EK_OFFLOAD_ENTRIES_MIN;
}

/* What a run within the limit would use: gradients in memory if they fit, then entries and forms.
 */
static ek_status fill_limit(layout *l, int64_t limit, ek_model **m, ek_fit_offload *out)
{
    ek_offload_config o = {.entries = EK_OFFLOAD_ENTRIES_MIN};

    EK_TRY(lay_out(l, &o, m, &out->bytes));
    if (out->bytes > limit) {
        o.gradients = 1;
        EK_TRY(lay_out(l, &o, m, &out->bytes));
    }
    EK_TRY(ek_offload_fill_room(NULL, *m, &l->trainer, (double)(limit - out->bytes), &o));
    return lay_out(l, &o, m, &out->bytes);
}

ek_status ek_fit_offload_of(const ek_model_spec *spec, const ek_fit_mode *mode, int threads,
                            int64_t limit, ek_fit_offload *out)
{
    ek_offload_config o = {.entries = EK_OFFLOAD_ENTRIES_MIN, .gradients = 1};
    ek_model *m = NULL;
    layout l = {0};
    ek_status st;

    *out = (ek_fit_offload){0};
    EK_TRY_OUT(open_layout(spec, mode, threads, &l));
    EK_TRY_OUT(lay_out(&l, &o, &m, &out->least));
    o = (ek_offload_config){.entries = comfortable_entries(m), .forms = ek_offload_buckets(m)};
    EK_TRY_OUT(lay_out(&l, &o, &m, &out->comfortable));
    EK_TRY_OUT(fill_limit(&l, limit, &m, out));
    out->entries = m->cfg.offload->entries;
    out->gradients = m->cfg.offload->gradients;
    out->buckets = ek_offload_buckets(m);
    out->scratch = ek_offload_disk_bytes(m);
    EK_TRY_OUT(ek_trainer_count_disk(m, &l.trainer, &out->step));
out:
    ek_model_destroy(&m);
    ek_kernels_destroy(&l.k);
    return st;
}
