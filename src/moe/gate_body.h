/* The gates for one element type; the including file defines R and NAME().
 *
 * An entry of ids is an expert e, -1 for none, or -2 - e for an assignment dropped over capacity:
 * it is not computed, but its probability still counts in the normalisation and the gradient. */

/* moe/reroute_body.h */
static void NAME(reroute_micro)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* Router noise: the factor of a logit, uniform in (1 - j, 1 + j), which depends on seed, step,
 * layer, sequence, position and expert alone, not on the parallel layout. */
static R NAME(jitter_factor)(const ek_moe *m, const ek_micro *mb, int64_t t, int64_t e)
{
    const ek_moe_step *s = m->step;
    uint64_t stream = s->step << 16 | (uint64_t)m->w->layer;
    uint64_t index = ek_gate_position(mb, t) * (uint64_t)m->spec->experts + (uint64_t)e;
    double u = ek_random_uniform(s->seed ^ ek_random_stream("jitter"), stream, index);

    return (R)(1.0 + m->spec->gate.jitter * (2.0 * u - 1.0));
}

/* The `want` largest of x [n] that are not -infinity, largest first, ties to the lower index. */
static void NAME(select_top)(const R *x, int64_t n, int64_t want, int32_t *ids)
{
    for (int64_t j = 0; j < want; j++) {
        int32_t best = -1;

        for (int32_t e = 0; e < (int32_t)n; e++) {
            int taken = x[e] == (R)-INFINITY;

            for (int64_t i = 0; i < j && !taken; i++)
                taken = ids[i] == e;
            if (!taken && (best < 0 || x[e] > x[best]))
                best = e;
        }
        ids[j] = best;
    }
}

/* Sets the scores of experts outside the best group_top groups to -infinity.  A group's score is
 * its best expert's (softmax) or the sum of its best two (sigmoid with bias). */
static void NAME(limit_groups)(const ek_gate_spec *gs, int64_t experts, R *score)
{
    int64_t width = experts / gs->groups;
    R value[EK_GATE_GROUPS_MAX];
    int32_t best[EK_GATE_GROUPS_MAX];

    for (int g = 0; g < gs->groups; g++) {
        int32_t top[2] = {-1, -1};
        int64_t want = gs->kind == EK_GATE_SIGMOID_BIAS && width > 1 ? 2 : 1;

        NAME(select_top)(score + g * width, width, want, top);
        value[g] = top[0] >= 0 ? score[g * width + top[0]] : (R)-INFINITY;
        if (top[1] >= 0)
            value[g] += score[g * width + top[1]];
    }
    NAME(select_top)(value, gs->groups, gs->group_top, best);
    for (int g = 0; g < gs->groups; g++) {
        int keep = 0;

        for (int i = 0; i < gs->group_top; i++)
            keep |= best[i] == g;
        for (int64_t e = 0; e < width && !keep; e++)
            score[g * width + e] = (R)-INFINITY;
    }
}

/* Top-k by scores that differ from the probabilities: with a bias, or limited to groups. */
static void NAME(choose_by_score)(ek_moe *m, int64_t n, ek_moe_activations *kept)
{
    const ek_gate_spec *gs = &m->spec->gate;
    const R *p = kept->probs, *bias = m->w->bias.p;
    int64_t experts = m->spec->experts, cols = m->cols;

#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        R score[EK_GATE_EXPERTS_MAX];

        for (int64_t e = 0; e < experts; e++)
            score[e] = p[t * experts + e] + (bias != NULL ? bias[e] : (R)0);
        if (gs->groups > 0)
            NAME(limit_groups)(gs, experts, score);
        NAME(select_top)(score, experts, cols, kept->ids + t * cols);
    }
}

/* Whether a comes before b in descending order: larger score, ties to the lower index. */
static int NAME(sorts_before)(const R *score, int32_t a, int32_t b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Orders list [n] by score[list[i]], largest first, ties to the lower index (heap sort). */
static void NAME(sort_descending)(const R *score, int32_t *list, int64_t n)
{
    for (int64_t end = n, start = n / 2; end > 1;) {
        int64_t root;
        int32_t x;

        if (start > 0) {
            x = list[root = --start];
        } else {
            x = list[--end];
            list[end] = list[root = 0];
        }
        for (int64_t child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && NAME(sorts_before)(score, list[child], list[child + 1]))
                child++;
            if (!NAME(sorts_before)(score, x, list[child]))
                break;
            list[root] = list[child];
        }
        list[root] = x;
    }
}

/* Expert choice: each expert takes the `capacity` best tokens of each sequence. */
static void NAME(expert_choice)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    const R *p = kept->probs;
    int64_t experts = m->spec->experts, capacity = ek_gate_capacity(m, mb->seq);

    for (int64_t i = 0; i < mb->n * experts; i++)
        kept->ids[i] = -1;
    for (int64_t s = 0; s < mb->seqs; s++) {
        for (int64_t e = 0; e < experts; e++) {
            for (int64_t t = 0; t < mb->seq; t++)
                m->gate.order[t] = (int32_t)((s * mb->seq + t) * experts + e);
            NAME(sort_descending)(p, m->gate.order, mb->seq);
            for (int64_t i = 0; i < capacity && i < mb->seq; i++)
                kept->ids[m->gate.order[i]] = (int32_t)e;
        }
    }
}

/* Marks assignments over capacity as dropped: lowest weights, ties: later tokens. */
static void NAME(drop_over_capacity)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    int64_t cols = m->cols, capacity = ek_gate_capacity(m, mb->seq), span = mb->seq * cols;

    for (int64_t s = 0; s < mb->seqs; s++) {
        for (int32_t e = 0; e < (int32_t)m->spec->experts; e++) {
            int64_t n = 0;

            for (int64_t i = s * span; i < (s + 1) * span; i++)
                if (kept->ids[i] == e)
                    m->gate.order[n++] = (int32_t)i;
            if (n <= capacity)
                continue;
            NAME(sort_descending)(kept->weights, m->gate.order, n);
            for (int64_t i = capacity; i < n; i++)
                kept->ids[m->gate.order[i]] = -2 - e;
        }
    }
}

void NAME(ek_gate_forward)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    const ek_gate_spec *gs = &m->spec->gate;
    const ek_weighing by = ek_gate_weighing(m);
    int64_t experts = m->spec->experts, n = mb->n;
    R *p = kept->probs;

    if (ek_gate_jitters(m)) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n * experts; i++)
            p[i] *= NAME(jitter_factor)(m, mb, i / experts, i % experts);
    }
    if (gs->kind == EK_GATE_SIGMOID_BIAS)
        NAME(ek_sigmoid)(p, n * experts);
    else
        m->k->softmax_topk(n, experts, gs->kind == EK_GATE_SOFTMAX ? m->cols : 1, p, p, kept->ids,
                           kept->lse);
    if (gs->kind == EK_GATE_EXPERT_CHOICE)
        NAME(expert_choice)(m, mb, kept);
    else if (gs->kind == EK_GATE_SIGMOID_BIAS || gs->groups > 0)
        NAME(choose_by_score)(m, n, kept);
    for (int64_t t = 0; gs->kind != EK_GATE_EXPERT_CHOICE && t < n; t++)
        for (int64_t j = m->step->top_k; j < m->cols; j++)
            kept->ids[t * m->cols + j] = -1;
    if (ek_reroute_applies(m))
        NAME(reroute_micro)(m, mb, kept);
    if (ek_gate_is_forced(m))
        ek_gate_force(m, mb, kept->ids);
    m->k->weigh(&by, n, p, kept->ids, kept->weights);
    if (m->step->capacity_factor != 0 && gs->kind != EK_GATE_EXPERT_CHOICE)
        NAME(drop_over_capacity)(m, mb, kept);
}

/* Multiplies the gradients of logits by the noise factors of forward. */
static void NAME(jitter_gradients)(const ek_moe *m, const ek_micro *mb)
{
    int64_t experts = m->spec->experts;
    R *dl = m->scratch->dlogits;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < mb->n * experts; i++)
        dl[i] *= NAME(jitter_factor)(m, mb, i / experts, i % experts);
}
