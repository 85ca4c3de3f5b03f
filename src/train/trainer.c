/* One step: micro-batches through the graph, then the optimizer in the same graph. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

struct ek_trainer {
    ek_model *model;
    ek_trainer_config cfg;
    ek_pass *pass;
    ek_optimizer optimizer;
    ek_exec *exec;
    ek_graph graph;
    ek_micro *micro;
    int64_t n_micro;
    int32_t *inputs, *targets;
};

static ek_pass_config pass_config(const ek_trainer_config *cfg)
{
    return (ek_pass_config){.max_seqs = cfg->micro_batch,
                            .max_seq = cfg->seq,
                            .micros = (cfg->batch + cfg->micro_batch - 1) / cfg->micro_batch,
                            .training = 1,
                            .recompute = cfg->recompute};
}

ek_status ek_trainer_measure(ek_model *m, const ek_trainer_config *cfg, size_t *bytes)
{
    ek_pass_config pc = pass_config(cfg);

    EK_TRY(ek_pass_measure(m, &pc, bytes));
    *bytes += 2 * sizeof(int32_t) * (size_t)cfg->batch * (size_t)cfg->seq;
    return EK_OK;
}

/* Cuts the batch into micro-batches of consecutive sequences; the last may be smaller. */
static void cut_batch(ek_trainer *tr)
{
    const ek_trainer_config *c = &tr->cfg;

    for (int64_t i = 0; i < tr->n_micro; i++) {
        int64_t first = i * c->micro_batch, seqs = c->batch - first;

        seqs = seqs < c->micro_batch ? seqs : c->micro_batch;
        tr->micro[i] =
            ek_micro_alone(seqs, c->seq, (double)seqs / (double)c->batch, (uint64_t)first,
                           tr->inputs + first * c->seq, tr->targets + first * c->seq);
    }
}

ek_status ek_trainer_create(ek_model *m, const ek_trainer_config *cfg, ek_trainer **out)
{
    ek_trainer *tr = NULL;
    ek_pass_config pc = pass_config(cfg);
    ek_status st = EK_OK;
    size_t tokens;

    EK_REQUIRE(cfg->batch > 0 && cfg->micro_batch > 0 && cfg->micro_batch <= cfg->batch, EK_EINVAL,
               "a batch of %lld sequences in micro-batches of %lld", (long long)cfg->batch,
               (long long)cfg->micro_batch);
    EK_REQUIRE(cfg->top_k <= m->spec.top_k, EK_EINVAL, "top-k %lld is over the model's %lld",
               (long long)cfg->top_k, (long long)m->spec.top_k);
    tr = calloc(1, sizeof(*tr));
    EK_REQUIRE(tr != NULL, EK_ENOMEM, "no memory for a trainer");
    tr->model = m;
    tr->cfg = *cfg;
    tr->n_micro = (cfg->batch + cfg->micro_batch - 1) / cfg->micro_batch;
    ek_graph_init(&tr->graph);
    EK_TRY_OUT(ek_pass_create(m, &pc, &tr->pass));
    EK_TRY_OUT(ek_exec_create(NULL, &tr->exec));
    tokens = (size_t)(cfg->batch * cfg->seq);
    tr->micro = calloc((size_t)tr->n_micro, sizeof(*tr->micro));
    tr->inputs = calloc(tokens, sizeof(*tr->inputs));
    tr->targets = calloc(tokens, sizeof(*tr->targets));
    EK_REQUIRE_OUT(tr->micro != NULL && tr->inputs != NULL && tr->targets != NULL, EK_ENOMEM,
                   "no memory for %zu tokens", tokens);
    cut_batch(tr);
    ek_optimizer_init(&tr->optimizer, m, &cfg->optimizer);
    *out = tr;
    tr = NULL;
out:
    ek_trainer_destroy(&tr);
    return st;
}

void ek_trainer_destroy(ek_trainer **ptr)
{
    ek_trainer *tr;

    if (ptr == NULL || *ptr == NULL)
        return;
    tr = *ptr;
    ek_pass_destroy(&tr->pass);
    ek_exec_destroy(&tr->exec);
    ek_graph_fini(&tr->graph);
    free(tr->micro);
    free(tr->inputs);
    free(tr->targets);
    free(tr);
    *ptr = NULL;
}

int32_t *ek_trainer_inputs(ek_trainer *tr)
{
    return tr->inputs;
}

int32_t *ek_trainer_targets(ek_trainer *tr)
{
    return tr->targets;
}

static double model_flops(const ek_graph *g)
{
    double sum = 0;

    for (int32_t i = 0; i < g->n_ops; i++)
        if (!g->ops[i].again)
            sum += g->ops[i].flops;
    return sum;
}

ek_status ek_trainer_step(ek_trainer *tr, ek_step_result *out)
{
    const ek_trainer_config *c = &tr->cfg;
    ek_moe_step step = {.training = 1,
                        .aux_coef = c->aux_coef,
                        .z_coef = c->z_coef,
                        .capacity_factor = c->capacity_factor,
                        .top_k = c->top_k > 0 ? c->top_k : tr->model->spec.top_k,
                        .seed = c->seed,
                        .step = (uint64_t)tr->optimizer.steps_done};

    out->step = tr->optimizer.steps_done;
    out->tokens = c->batch * c->seq;
    EK_TRY(ek_pass_begin(tr->pass, &step, tr->micro, tr->n_micro));
    ek_graph_reset(&tr->graph);
    EK_TRY(ek_pass_build(tr->pass, &tr->graph));
    ek_optimizer_build(&tr->optimizer, &tr->graph, tr->graph.n_ops - 1);
    EK_TRY(ek_exec_run(tr->exec, &tr->graph));
    ek_pass_losses(tr->pass, &out->losses);
    for (int64_t l = 0; l < tr->model->spec.layers; l++)
        ek_moe_update_bias(&tr->pass->moe[l]);
    out->grad_norm = tr->optimizer.grad_norm;
    out->lr = tr->optimizer.lr;
    out->flops = model_flops(&tr->graph);
    return EK_OK;
}

int64_t ek_trainer_steps_done(const ek_trainer *tr)
{
    return tr->optimizer.steps_done;
}

void ek_trainer_resume(ek_trainer *tr, int64_t steps_done)
{
    tr->optimizer.steps_done = steps_done;
}

ek_status ek_trainer_set_top_k(ek_trainer *tr, int64_t top_k)
{
    EK_REQUIRE(top_k > 0 && top_k <= tr->model->spec.top_k, EK_EINVAL,
               "top-k %lld is not from 1 to the model's %lld", (long long)top_k,
               (long long)tr->model->spec.top_k);
    tr->cfg.top_k = top_k;
    return EK_OK;
}

ek_exec *ek_trainer_exec(ek_trainer *tr)
{
    return tr->exec;
}

const ek_pass *ek_trainer_pass(const ek_trainer *tr)
{
    return tr->pass;
}
