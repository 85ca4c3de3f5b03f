/* Runs windows through a forward pass, a batch at a time; the shorter last window runs alone. */
#include "infer/evaluate.h"

#include "data/documents.h"
#include "data/windows.h"
#include "exec/exec.h"
#include "model/step/pass.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    ek_model *m;
    ek_pass *pass;
    ek_exec *exec;
    ek_graph graph;
    ek_arena tokens;
    int32_t *inputs, *targets, *starts; /* starts NULL: no document mask */
    int32_t document_end;
    double sum;
} evaluator;

static ek_status run_batch(evaluator *e, int64_t seqs, int64_t seq, ek_evaluation *out)
{
    const ek_model_spec *s = &e->m->spec;
    ek_moe_step step = {.top_k = s->top_k};
    ek_micro mb = ek_micro_alone(seqs, seq, 1, 0, e->inputs, e->targets);

    for (int64_t i = 0; e->starts != NULL && i < seqs; i++)
        ek_documents_mark(seq, e->document_end, e->inputs + i * seq, e->targets + i * seq,
                          e->starts + i * seq);
    mb.starts = e->starts;
    EK_TRY(ek_pass_begin(e->pass, &step, &mb, 1));
    ek_graph_reset(&e->graph);
    EK_TRY(ek_pass_build(e->pass, &e->graph));
    EK_TRY(ek_exec_run(e->exec, &e->graph));
    e->sum += e->pass->backward.loss.sum;
    out->tokens += (int64_t)e->pass->backward.loss.tokens;
    for (int64_t i = 0; i < s->layers * s->experts; i++)
        out->load[i] += (int64_t)ek_pass_load(e->pass, i / s->experts)[i % s->experts];
    return EK_OK;
}

static ek_status run_windows(evaluator *e, const ek_tokens *tokens, const ek_evaluate_config *cfg,
                             ek_evaluation *out)
{
    int64_t windows = ek_eval_windows(tokens, cfg->seq), held = 0;

    for (int64_t w = 0; w < windows; w++) {
        int64_t n;

        EK_TRY(ek_eval_window(tokens, cfg->seq, w, e->inputs + held * cfg->seq,
                              e->targets + held * cfg->seq, &n));
        if (n < cfg->seq) { /* the last window: run the collected ones first, then move it to the
                               front */
            if (held > 0)
                EK_TRY(run_batch(e, held, cfg->seq, out));
            held = 0;
            EK_TRY(ek_eval_window(tokens, cfg->seq, w, e->inputs, e->targets, &n));
            EK_TRY(run_batch(e, 1, n, out));
        } else if (++held == cfg->batch || w == windows - 1) {
            EK_TRY(run_batch(e, held, cfg->seq, out));
            held = 0;
        }
        if (cfg->progress != NULL)
            cfg->progress(cfg->context, w + 1, windows);
        EK_REQUIRE(held > 0 || cfg->stop == NULL || !cfg->stop(cfg->context), EK_ECANCELED,
                   "interrupted after %lld of %lld windows", (long long)w + 1, (long long)windows);
    }
    return EK_OK;
}

ek_status ek_evaluate(ek_model *m, const ek_tokens *tokens, const ek_evaluate_config *cfg,
                      ek_evaluation *out)
{
    ek_pass_config pc = {.max_seqs = cfg->batch, .max_seq = cfg->seq};
    int64_t capacity = cfg->batch * cfg->seq;
    evaluator e = {.m = m, .document_end = cfg->document_end};
    ek_status st = EK_OK;

    *out = (ek_evaluation){0};
    EK_REQUIRE(ek_eval_windows(tokens, cfg->seq) > 0, EK_EFORMAT,
               "the data hold %lld tokens; a loss needs two at least",
               (long long)ek_tokens_get_info(tokens).n_tokens);
    ek_graph_init(&e.graph);
    EK_TRY_OUT(ek_model_reserve_tokens(m, capacity, &e.tokens, &e.inputs, &e.targets,
                                       cfg->document_mask ? &e.starts : NULL));
    out->load = calloc((size_t)(m->spec.layers * m->spec.experts), sizeof(*out->load));
    EK_REQUIRE_OUT(out->load != NULL, EK_ENOMEM, "no memory for the loads");
    EK_TRY_OUT(ek_pass_create(m, &pc, &e.pass));
    EK_TRY_OUT(ek_model_exec(m, NULL, &e.exec));
    EK_TRY_OUT(run_windows(&e, tokens, cfg, out));
    EK_REQUIRE_OUT(out->tokens > 0, EK_EFORMAT,
                   "with --document-mask no token of the data counts: each is a document of "
                   "its own");
    out->loss = e.sum / (double)out->tokens;
    EK_REQUIRE_OUT(isfinite(out->loss), EK_ENONFINITE, "the loss is not finite: %g", out->loss);
out:
    ek_pass_destroy(&e.pass);
    ek_exec_destroy(&e.exec);
    ek_graph_fini(&e.graph);
    ek_arena_fini(&e.tokens);
    return st;
}
