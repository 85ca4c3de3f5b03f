/* Kernels, executor and model of a rank: threads, layout, weights. */
#include "base/log.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "model/hf/init.h"
#include "tensor/select/select.h"
#include "train/run/balance.h"
#include "train/run/state.h"

static int64_t comm_activity(void *world)
{
    return ek_comm_activity(world);
}

/* Without a free core on this host, a thread that polls the network would slow computation down. */
ek_status ek_run_configure_exec(ek_run *r)
{
    double busy = (double)r->kernels->threads;

    EK_TRY(ek_run_sum_on_host(r, &busy));
    r->training.exec.inline_async = r->kernels->memory == NULL && busy >= (double)ek_cores_usable();
    r->training.exec.watchdog_s = r->cfg->watchdog;
    if (r->ranks > 1) {
        r->training.exec.moved = comm_activity;
        r->training.exec.context = r->world;
    }
    return EK_OK;
}

/* Index of this rank among those of its host, from 0. */
static int rank_on_host(const ek_run *r)
{
    int n = 0;

    for (int i = 0; i < r->rank && r->ranks > 1; i++)
        n += ek_comm_node(r->world, i) == ek_comm_node(r->world, r->rank);
    return n;
}

/* Compute threads of this rank: as given, or its share of the host's cores. */
ek_status ek_run_open_kernels(ek_run *r)
{
    double ranks = 1, isa = (double)ek_cpu_isa();
    int threads = r->cfg->threads;

    EK_TRY(ek_run_minimum(r->all, &isa)); /* layout and updates must be the same on all ranks */
    if (threads == 0) {
        EK_TRY(ek_run_sum_on_host(r, &ranks));
        threads = (int)((double)ek_cores_usable() / ranks);
    }
    return ek_kernels_open(r->cfg->device, rank_on_host(r), r->options.mode, (ek_isa)isa,
                           threads > 1 ? threads : 1, &r->kernels);
}

ek_status ek_run_layout_model(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_model_config mc = {.trained = 1,
                          .mesh = r->mesh,
                          .model_chunks = r->mesh != NULL && r->mesh->pp > 1 ? c->chunks : 1,
                          .zero = c->zero,
                          .embed_columns = c->embed_columns,
                          .never_touched = c->dry_run};
    size_t activations;

    EK_TRY(ek_run_set_balance(r, &mc));
    EK_TRY(ek_run_set_slices(r, &mc));
    if (c->elastic && !c->dry_run) {
        const ek_moe_config *moe = &r->training.moe;

        r->memory.state.memory.moves = ek_moe_may_place(moe) && moe->plan_every > 0;
        mc.state = &r->memory.state.memory;
    }
    r->base_rss = ek_rss_bytes();
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, &mc, &r->model));
    EK_TRY(ek_trainer_measure(r->model, &r->training, &activations));
    r->out->info.predicted_bytes =
        (size_t)r->base_rss + r->model->arena.bytes + r->model->state.bytes + activations;
    return EK_OK;
}

/* Initial weights, from files or from the seed. */
static ek_status first_weights(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_load_options how = {.files = r->files};

    if (c->init != NULL)
        return ek_model_load_path(r->model, c->init, &how);
    if (r->source.weights.s[0] != '\0')
        return ek_model_load_path(r->model, r->source.weights.s, &how);
    EK_TRY(ek_model_source_no_weights(&r->source));
    return ek_model_init(r->model, c->seed);
}

ek_status ek_run_fill_model(ek_run *r)
{
    ek_run_report_phase(r, "transfer");
    EK_TRY(ek_run_fill_from_memory(r));
    if (r->memory.step < 0 && r->saves.found.path.s[0] != '\0')
        EK_TRY(ek_train_load(r->model, r->saves.found.path.s, &r->files));
    else if (r->memory.step < 0)
        EK_TRY(ek_agree(r->world, "read the first weights", first_weights(r)));
    return ek_model_pack(r->model);
}
