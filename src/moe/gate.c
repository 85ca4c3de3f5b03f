/* The gates for float and double; capacity, statistics and bias update, which need no type. */
#include "moe/gate.h"

#include "base/random.h"
#include "moe/reroute.h"
#include "nn/sigmoid.h"

#include <math.h>
#include <string.h>

/* Capacity of an expert in a sequence of T tokens: ceil(k f T / E), f = 1 if dropless. */
static int64_t ek_gate_capacity(const ek_moe *m, int64_t seq)
{
    double f = m->step->capacity_factor != 0 ? fabs(m->step->capacity_factor) : 1.0;

    return (int64_t)ceil((double)m->step->top_k * f * (double)seq / (double)m->spec->experts);
}

/* A token's index within the step, the same in every parallel layout. */
static uint64_t ek_gate_position(const ek_micro *mb, int64_t t)
{
    return mb->first_sequence * (uint64_t)mb->seq + (uint64_t)(mb->first + t);
}

/* Even spread: assignment j of token t goes to expert t k + j, modulo E. */
static void ek_gate_spread(const ek_moe *m, const ek_micro *mb, int32_t *ids)
{
    int64_t experts = m->spec->experts, cols = m->cols, k = m->step->top_k;
    int by_expert = m->spec->gate.kind == EK_GATE_EXPERT_CHOICE; /* a column is an expert */

    for (int64_t t = 0; t < mb->n; t++) {
        uint64_t first = ek_gate_position(mb, t) * (uint64_t)k;

        for (int64_t j = 0; j < k; j++) {
            int32_t e = (int32_t)((first + (uint64_t)j) % (uint64_t)experts);

            ids[t * cols + (by_expert ? e : j)] = e;
        }
    }
}

/* Choices with the loads of a recorded trace. */
static void ek_gate_replay(const ek_moe *m, const ek_micro *mb, int32_t *ids)
{
    int64_t n = ek_model_moe_layers_below(m->spec, m->w->layer);
    int64_t before = (int64_t)(mb->first_sequence - mb->micro_first) * mb->seq;
    ek_replay_of of = {
        .trace = m->cfg->replay,
        .layer = ek_trace_layer_for(m->cfg->replay->layers, n, ek_model_moe_layers(m->spec)),
        .iteration = (int64_t)m->step->step,
        .total = mb->total,
        .first = before + mb->first,
        .n = mb->n,
        .top_k = m->step->top_k};

    ek_replay_choose(&m->gate.replay, &of, m->cols, ids);
}

/* Whether the gate's choice is replaced. */
static int ek_gate_is_forced(const ek_moe *m)
{
    return m->cfg->force_balance || m->cfg->replay != NULL;
}

static void ek_gate_force(const ek_moe *m, const ek_micro *mb, int32_t *ids)
{
    for (int64_t i = 0; i < mb->n * m->cols; i++)
        ids[i] = -1;
    if (m->cfg->force_balance)
        ek_gate_spread(m, mb, ids);
    else
        ek_gate_replay(m, mb, ids);
}

/* Whether logits are multiplied by noise. */
static int ek_gate_jitters(const ek_moe *m)
{
    return m->step->training && m->spec->gate.jitter > 0;
}

static ek_weighing ek_gate_weighing(const ek_moe *m)
{
    const ek_gate_spec *gs = &m->spec->gate;

    return (ek_weighing){m->spec->experts, m->cols, gs->normalise, gs->kind == EK_GATE_SIGMOID_BIAS,
                         gs->scale};
}

#define R       float
#define NAME(x) x##_f32
#include "moe/gate_body.h"
#include "moe/reroute_body.h"
#undef R
#undef NAME

#define R       double
#define NAME(x) x##_f64
#include "moe/gate_body.h"
#include "moe/reroute_body.h"
#undef R
#undef NAME

int ek_gate_needs_sequences(const ek_moe *m)
{
    return m->step->capacity_factor != 0 || m->spec->gate.kind == EK_GATE_EXPERT_CHOICE ||
           ek_reroute_applies(m);
}

int ek_gate_is_plain(const ek_moe *m)
{
    const ek_gate_spec *gs = &m->spec->gate;

    return gs->kind != EK_GATE_EXPERT_CHOICE && gs->kind != EK_GATE_SIGMOID_BIAS &&
           gs->groups == 0 && m->step->top_k == m->cols && m->step->capacity_factor == 0 &&
           !ek_gate_jitters(m) && !ek_reroute_applies(m) && !ek_gate_is_forced(m);
}

/* Adds the choices of a token chunk to this rank's statistics. */
static void count_choices(const ek_moe *m, const ek_moe_activations *kept, int chunk, int64_t first,
                          int64_t n, ek_gate_stats *own)
{
    int64_t experts = m->spec->experts;
    const int64_t *count = m->gate.counts;

    m->k->count_choices(n * m->cols, experts, kept->ids + first * m->cols, m->gate.counts);
    for (int64_t e = 0; e < experts; e++) {
        own[ek_gate_stats_rows(experts, chunk) + e].count = count[e];
        own[EK_GATE_STATS_CHOSEN + e].count += count[e] + count[experts + e];
        own[EK_GATE_STATS_DROPPED].count += count[experts + e];
    }
}

void ek_gate_count_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    int64_t experts = m->spec->experts;
    int chunks = m->x.token_chunks;
    ek_gate_stats *own = ek_gate_stats_of(m, kept, m->x.at);

    memset(own, 0, (size_t)m->x.words * sizeof(*own));
    for (int c = 0; c < chunks; c++) {
        int64_t first = ek_range_first(mb->n, chunks, c);

        count_choices(m, kept, c, first, ek_range_first(mb->n, chunks, c + 1) - first, own);
    }
    m->k->sum_columns(mb->n, experts, kept->probs, m->gate.sums);
    for (int64_t e = 0; e < experts; e++)
        own[ek_gate_stats_probs(experts) + e].sum = m->gate.sums[e];
    if (m->spec->gate.kind != EK_GATE_SIGMOID_BIAS)
        own[EK_GATE_STATS_Z].sum = m->k->sum_squares(mb->n, kept->lse) / (double)mb->total;
}

void ek_gate_backward(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    const ek_weighing by = ek_gate_weighing(m);
    const ek_moe_step *step = m->step;
    int64_t experts = m->spec->experts;
    double of_balance = m->spec->gate.kind == EK_GATE_SOFTMAX && kept->assigned > 0
                            ? mb->share * step->aux_coef * (double)experts /
                                  ((double)kept->assigned * (double)mb->total)
                            : 0;
    double z = 2 * step->z_coef * mb->share / (double)mb->total;

    for (int64_t e = 0; e < experts; e++)
        m->gate.sums[e] = of_balance * (double)kept->fraction[e];
    m->k->weigh_backward(&by, mb->n, kept->probs, kept->lse, kept->ids, kept->weights,
                         m->scratch->dweights, m->gate.sums, z, m->scratch->dlogits);
    if (ek_gate_jitters(m) && m->k->real == EK_F64)
        jitter_gradients_f64(m, mb);
    else if (ek_gate_jitters(m))
        jitter_gradients_f32(m, mb);
}

/* Sum over ranks of one word of their statistics. */
static int64_t count_over_ranks(const ek_moe *m, const ek_moe_activations *kept, int64_t word)
{
    int64_t count = 0;

    for (int r = 0; r < m->x.ranks; r++)
        count += ek_gate_stats_of(m, kept, r)[word].count;
    return count;
}

static double sum_over_ranks(const ek_moe *m, const ek_moe_activations *kept, int64_t word)
{
    double sum = 0;

    for (int r = 0; r < m->x.ranks; r++)
        sum += ek_gate_stats_of(m, kept, r)[word].sum;
    return sum;
}

void ek_gate_sum_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept, int recompute)
{
    int64_t experts = m->spec->experts;
    double balance = 0;

    kept->assigned = 0;
    for (int64_t e = 0; e < experts; e++) {
        kept->fraction[e] = count_over_ranks(m, kept, EK_GATE_STATS_CHOSEN + e);
        kept->assigned += kept->fraction[e];
    }
    if (recompute)
        return;
    for (int64_t e = 0; e < experts; e++) {
        m->stats.load[e] += kept->fraction[e];
        if (kept->assigned > 0)
            balance += (double)kept->fraction[e] / (double)kept->assigned *
                       sum_over_ranks(m, kept, ek_gate_stats_probs(experts) + e) /
                       (double)mb->total;
    }
    m->stats.aux_loss += mb->share * (double)experts * balance;
    m->stats.z_loss += mb->share * sum_over_ranks(m, kept, EK_GATE_STATS_Z);
    m->stats.dropped += count_over_ranks(m, kept, EK_GATE_STATS_DROPPED);
    for (int r = 0; r < m->x.ranks; r++)
        for (int c = 0; c < m->x.token_chunks; c++)
            for (int64_t e = 0; e < experts; e++)
                m->stats.primary_rows[r / (m->x.ranks / m->x.ep_groups) * m->mesh->ep +
                                      m->x.start_rank[e]] +=
                    ek_gate_stats_of(m, kept, r)[ek_gate_stats_rows(experts, c) + e].count;
}

void ek_gate_set_feedback(ek_moe *m)
{
    int64_t total = 0, experts = m->spec->experts;

    if (m->spec->gate.kind != EK_GATE_SIGMOID_BIAS)
        return;
    for (int64_t e = 0; e < experts; e++)
        total += m->stats.load[e];
    for (int64_t e = 0; e < experts; e++) {
        int64_t off = total - m->stats.load[e] * experts; /* E (mean - load) */
        double step = m->spec->gate.bias_rate * (double)((off > 0) - (off < 0));

        if (m->k->real == EK_F64)
            ((double *)m->w->bias.g)[e] = step;
        else
            ((float *)m->w->bias.g)[e] = (float)step;
    }
}
