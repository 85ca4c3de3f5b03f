/* Kernels, executor and model of a rank: threads, layout, weights. */
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "model/hf/init.h"
#include "model/offload.h"
#include "model/param_buckets.h"
#include "tensor/select/select.h"
#include "train/run/balance.h"
#include "train/run/partners.h"
#include "train/run/stages.h"
#include "train/tune/tune.h"

#include <string.h>

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

    EK_TRY(ek_minimum(r->all, &isa)); /* layout and updates must be the same on all ranks */
    if (threads == 0) {
        EK_TRY(ek_run_sum_on_host(r, &ranks));
        threads = (int)((double)ek_cores_usable() / ranks);
    }
    return ek_kernels_open(r->cfg->device, rank_on_host(r), r->options.mode, (ek_isa)isa,
                           threads > 1 ? threads : 1, &r->kernels);
}

ek_status ek_run_measure(ek_run *r)
{
    size_t activations;

    EK_TRY(ek_trainer_measure(r->model, &r->training, &activations));
    r->out->info.predicted_bytes = (size_t)r->room.base_rss + r->model->arena.bytes +
                                   r->model->state.bytes + activations +
                                   (size_t)ek_run_copies_bytes(&r->partners);
    return EK_OK;
}

static ek_status create_model(ek_run *r, const ek_model_config *mc)
{
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, mc, &r->model));
    return ek_run_measure(r);
}

/* The folder of the scratch file. */
static ek_status offload_dir(const ek_train_config *c, ek_path *dir)
{
    char *slash;

    if (c->offload_dir != NULL)
        return ek_path_set(dir, "%s", c->offload_dir);
    EK_TRY(ek_path_set(dir, "%s", c->out));
    if (ek_file_kind_of(dir->s) == EK_FILE_FOLDER)
        return EK_OK;
    slash = strrchr(dir->s, '/');
    if (slash == NULL)
        return ek_path_set(dir, ".");
    slash[slash == dir->s] = '\0';
    return EK_OK;
}

/* Experts on disk: measures with the fewest entries, with gradients in memory if they fit there,
 * and finds how many entries more do.  Collective. */
static ek_status measure_offload(ek_run *r, ek_model_config *mc, ek_offload_config *o)
{
    const char *gradients = r->cfg->offload_gradients;
    double fits = 1;

    o->gradients = strcmp(gradients, "disk") == 0;
    mc->never_touched = 1;
    EK_TRY(create_model(r, mc));
    if (strcmp(gradients, "auto") == 0)
        EK_TRY(ek_run_fits_memory(r, &fits));
    if (fits <= 0) {
        ek_model_destroy(&r->model);
        o->gradients = 1;
        EK_TRY(create_model(r, mc));
    }
    EK_TRY(ek_run_fit_entries(r, o));
    ek_model_destroy(&r->model);
    return EK_OK;
}

static ek_status create_offloaded(ek_run *r, ek_model_config *mc)
{
    ek_offload_config o = {.entries = EK_OFFLOAD_ENTRIES_MIN};
    ek_path dir;

    EK_TRY(offload_dir(r->cfg, &dir));
    o.dir = dir.s;
    mc->offload = &o;
    EK_TRY(measure_offload(r, mc, &o));
    mc->never_touched = r->cfg->dry_run;
    return create_model(r, mc);
}

void ek_run_choose_a2a(ek_run *r)
{
    ek_trainer_config *t = &r->training;
    const ek_model_spec *spec = &r->source.spec;
    double rows; /* of a micro-batch, from a rank to another */

    if (!t->tune_a2a || r->mesh == NULL || !ek_mesh_distributes_experts(r->mesh))
        return;
    rows = (double)(t->micro_batch * t->seq) / r->mesh->stage_size *
           (double)(t->top_k > 0 ? t->top_k : spec->top_k) / r->mesh->ep;
    t->moe.a2a = ek_tune_a2a_by_topology(r->mesh, rows * (double)spec->hidden *
                                                      (double)ek_dtype_size(r->kernels->comp));
    if (t->moe.a2a == EK_A2A_2DH && r->rank == 0)
        ek_log("tune", EK_LOG_INFO,
               "all-to-all 2dh%s: messages between ranks are short, and hosts have several ranks",
               t->moe.smart_group > 0 ? "" : " to begin with");
}

ek_status ek_run_layout_model(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_model_config mc = {.trained = 1,
                          .mesh = r->mesh,
                          .model_chunks = r->mesh != NULL && r->mesh->pp > 1 ? c->chunks : 1,
                          .zero = c->zero,
                          .partner_copies = c->elastic,
                          .slot_buckets = c->elastic, /* also of ranks that only are laid out */
                          .rack_of = r->options.rack_of,
                          .embed_columns = c->embed_columns,
                          .never_touched = c->dry_run,
                          .stage_layers = r->options.stage_layers};

    EK_TRY(ek_run_cut_stages(r));
    r->room.base_rss = ek_run_is_executed(r) ? ek_rss_bytes() : 0; /* not who imagines it */
    r->room.peak_before = ek_run_is_executed(r) && !r->cfg->dry_run ? ek_rss_peak_bytes() : 0;
    EK_TRY(ek_run_choose_partners(r, &mc));
    EK_TRY(ek_run_protect_experts(r, &mc));
    EK_TRY(ek_run_set_balance(r, &mc));
    EK_TRY(ek_run_set_slices(r, &mc));
    ek_run_choose_a2a(r);
    mc.migrates = ek_moe_may_place(&r->training.moe) && r->training.moe.plan_every > 0;
    if (c->elastic && c->dry_run)
        ek_state_addresses_init(&r->memory.addresses);
    if (c->elastic)
        mc.state = c->dry_run ? &r->memory.addresses.memory : &r->memory.state.memory;
    if (strcmp(c->offload, "experts") == 0)
        return create_offloaded(r, &mc);
    EK_TRY(create_model(r, &mc));
    if (!ek_run_has_partners(&r->partners))
        return EK_OK;
    EK_TRY(ek_run_layout_copies(r, &mc));
    return ek_run_measure(r); /* with these */
}

/* Initial weights, from files or from the seed. */
static ek_status first_weights(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_load_options how = {.files = r->room.files};

    if (c->init != NULL)
        return ek_model_load_path(r->model, c->init, &how);
    if (r->source.weights.s[0] != '\0')
        return ek_model_load_path(r->model, r->source.weights.s, &how);
    EK_TRY(ek_model_source_no_weights(&r->source));
    return ek_model_init(r->model, c->seed);
}

static ek_status fill_copies(ek_run *r)
{
    EK_TRY(ek_param_buckets_fill_copies(r->model));
    return ek_run_has_partners(&r->partners) ? ek_rank_copies_fill(&r->partners.copies) : EK_OK;
}

ek_status ek_run_fill_model(ek_run *r)
{
    ek_run_report_phase(r, "transfer");
    EK_TRY(ek_run_fill_from_memory(r));
    if (r->memory.step < 0 && r->saves.found.path.s[0] != '\0')
        EK_TRY(ek_train_load(r->model, r->saves.found.path.s, &r->room.files));
    else if (r->memory.step < 0)
        EK_TRY(ek_agree(r->world, "read the first weights", first_weights(r)));
    if (r->memory.step < 0) /* else memory holds the copies, too */
        EK_TRY(fill_copies(r));
    return ek_model_pack(r->model);
}
