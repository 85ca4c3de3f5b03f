/* The gates, for one element type: R and NAME() are defined by the file that includes this.
 *
 * A choice in ids is an expert e, -1 for none, or -2 - e for one that went over capacity: its
 * weight is lost, but it keeps its part in the normalisation and so in the gradient. */

/* moe/reroute_body.h */
static void NAME(reroute)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept);

/* Router noise: logits times uniform(1 - j, 1 + j), a number of its own for every (seed, step,
 * layer, sequence, position, expert), whatever the layout. */
static R NAME(jitter)(const ek_moe *m, const ek_micro *mb, int64_t t, int64_t e)
{
    const ek_moe_step *s = m->step;
    uint64_t stream = s->step << 16 | (uint64_t)m->w->layer;
    uint64_t index = ek_gate_position(mb, t) * (uint64_t)m->spec->experts + (uint64_t)e;
    double u = ek_random_uniform(s->seed ^ ek_random_stream("jitter"), stream, index);

    return (R)(1.0 + m->spec->gate.jitter * (2.0 * u - 1.0));
}

static int NAME(jittered)(const ek_moe *m)
{
    return m->step->training && m->spec->gate.jitter > 0;
}

/* The `want` largest of x [n] that are not -infinity, largest first, ties to the lower index. */
static void NAME(choose)(const R *x, int64_t n, int64_t want, int32_t *ids)
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

/* Sets the scores of experts outside the best group_top groups to -infinity.  A group scores by
 * its best expert (softmax) or the sum of its best two (sigmoid with bias). */
static void NAME(limit_groups)(const ek_gate_spec *gs, int64_t experts, R *score)
{
    int64_t width = experts / gs->groups;
    R value[EK_GATE_GROUPS_MAX];
    int32_t best[EK_GATE_GROUPS_MAX];

    for (int g = 0; g < gs->groups; g++) {
        int32_t top[2] = {-1, -1};
        int64_t want = gs->kind == EK_GATE_SIGMOID_BIAS && width > 1 ? 2 : 1;

        NAME(choose)(score + g * width, width, want, top);
        value[g] = top[0] >= 0 ? score[g * width + top[0]] : (R)-INFINITY;
        if (top[1] >= 0)
            value[g] += score[g * width + top[1]];
    }
    NAME(choose)(value, gs->groups, gs->group_top, best);
    for (int g = 0; g < gs->groups; g++) {
        int keep = 0;

        for (int i = 0; i < gs->group_top; i++)
            keep |= best[i] == g;
        for (int64_t e = 0; e < width && !keep; e++)
            score[g * width + e] = (R)-INFINITY;
    }
}

/* Choice by scores that differ from the probabilities: with a bias, or limited to groups. */
static void NAME(choose_by_score)(ek_moe *m, int64_t n, ek_moe_saved *kept)
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
        NAME(choose)(score, experts, cols, kept->ids + t * cols);
    }
}

void NAME(ek_sigmoid)(R *x, int64_t n)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        x[i] = (R)1 / ((R)1 + (R)exp((double)-x[i]));
}

void NAME(ek_sigmoid_backward)(const R *x, R *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        d[i] *= x[i] * ((R)1 - x[i]);
}

/* Weights of the chosen: their probabilities, over their sum if the family wants it. */
static void NAME(weigh)(ek_moe *m, int64_t n, ek_moe_saved *kept)
{
    const ek_gate_spec *gs = &m->spec->gate;
    const R *p = kept->probs;
    R *w = kept->weights;
    int64_t experts = m->spec->experts, cols = m->cols;

#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        R sum = 0;

        for (int64_t j = 0; j < cols; j++) {
            int32_t e = kept->ids[t * cols + j];

            w[t * cols + j] = e >= 0 ? p[t * experts + e] : (R)0;
            sum += w[t * cols + j];
        }
        if (!gs->normalise || sum <= 0)
            sum = 1;
        for (int64_t j = 0; j < cols; j++) /* divided, so that a single choice weighs 1 exactly */
            w[t * cols + j] = (R)gs->scale * w[t * cols + j] / sum;
    }
}

/* Whether a comes before b: the larger score, or the lower index of equals. */
static int NAME(before)(const R *score, int32_t a, int32_t b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Orders list [n] by score[list[i]], largest first, ties to the lower index (heap sort). */
static void NAME(sort_down)(const R *score, int32_t *list, int64_t n)
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
            if (child + 1 < end && NAME(before)(score, list[child], list[child + 1]))
                child++;
            if (!NAME(before)(score, x, list[child]))
                break;
            list[root] = list[child];
        }
        list[root] = x;
    }
}

/* Each expert takes its `room` best tokens of each sequence. */
static void NAME(expert_choice)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept)
{
    const R *p = kept->probs;
    int64_t experts = m->spec->experts, room = ek_gate_capacity(m, mb->seq);

    for (int64_t i = 0; i < mb->n * experts; i++)
        kept->ids[i] = -1;
    for (int64_t s = 0; s < mb->seqs; s++) {
        for (int64_t e = 0; e < experts; e++) {
            for (int64_t t = 0; t < mb->seq; t++)
                m->order[t] = (int32_t)((s * mb->seq + t) * experts + e);
            NAME(sort_down)(p, m->order, mb->seq);
            for (int64_t i = 0; i < room && i < mb->seq; i++)
                kept->ids[m->order[i]] = (int32_t)e;
        }
    }
}

/* Marks what goes over capacity, lowest weight first, ties: later token first. */
static void NAME(drop_over_capacity)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept)
{
    int64_t cols = m->cols, room = ek_gate_capacity(m, mb->seq), span = mb->seq * cols;

    for (int64_t s = 0; s < mb->seqs; s++) {
        for (int32_t e = 0; e < (int32_t)m->spec->experts; e++) {
            int64_t n = 0;

            for (int64_t i = s * span; i < (s + 1) * span; i++)
                if (kept->ids[i] == e)
                    m->order[n++] = (int32_t)i;
            if (n <= room)
                continue;
            NAME(sort_down)(kept->weights, m->order, n);
            for (int64_t i = room; i < n; i++)
                kept->ids[m->order[i]] = -2 - e;
        }
    }
}

/* What this rank's tokens add to the statistics of the micro-batch. */
void NAME(ek_gate_tally)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept)
{
    const R *p = kept->probs, *lse = kept->lse;
    int64_t experts = m->spec->experts, n = mb->n;
    int chunks = m->x.token_chunks;
    ek_tally *own = ek_tally_of(m, kept, m->x.at);

    memset(own, 0, (size_t)m->x.words * sizeof(*own));
    for (int c = 0; c < chunks; c++) {
        int64_t first = ek_run_first(n, chunks, c), end = ek_run_first(n, chunks, c + 1);

        for (int64_t i = first * m->cols; i < end * m->cols; i++) {
            int32_t e = kept->ids[i];

            if (e >= 0)
                own[ek_tally_rows(experts, c) + e].count++;
            if (e != -1)
                own[EK_TALLY_CHOSEN + (e >= 0 ? e : -2 - e)].count++;
            if (e < -1)
                own[EK_TALLY_DROPPED].count++;
        }
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t e = 0; e < experts; e++)
            own[ek_tally_probs(experts) + e].sum += (double)p[t * experts + e];
    for (int64_t t = 0; t < n && m->spec->gate.kind != EK_GATE_SIGMOID_BIAS; t++)
        own[EK_TALLY_Z].sum += (double)lse[t] * (double)lse[t] / (double)mb->total;
}

void NAME(ek_gate_forward)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept)
{
    const ek_gate_spec *gs = &m->spec->gate;
    int64_t experts = m->spec->experts, n = mb->n;
    R *p = kept->probs;

    if (NAME(jittered)(m)) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n * experts; i++)
            p[i] *= NAME(jitter)(m, mb, i / experts, i % experts);
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
        NAME(reroute)(m, mb, kept);
    if (ek_gate_is_forced(m))
        ek_gate_force(m, mb, kept->ids);
    NAME(weigh)(m, n, kept);
    if (m->step->capacity_factor != 0 && gs->kind != EK_GATE_EXPERT_CHOICE)
        NAME(drop_over_capacity)(m, mb, kept);
}

/* Gradient of the scores that the weights of token t were made of, added to ds [experts]. */
static void NAME(weigh_backward)(const ek_moe *m, const ek_moe_saved *kept, int64_t t, const R *dw,
                                 R *ds)
{
    const ek_gate_spec *gs = &m->spec->gate;
    int64_t cols = m->cols;
    const int32_t *ids = kept->ids + t * cols;
    const R *p = (const R *)kept->probs + t * m->spec->experts;
    const R *w = (const R *)kept->weights + t * cols;
    R sum = 0, inner = 0;

    for (int64_t j = 0; j < cols; j++) {
        if (ids[j] == -1)
            continue;
        sum += p[ids[j] >= 0 ? ids[j] : -2 - ids[j]];
        inner += dw[j] * w[j];
    }
    for (int64_t j = 0; j < cols; j++) {
        if (ids[j] == -1)
            continue;
        ds[ids[j] >= 0 ? ids[j] : -2 - ids[j]] +=
            gs->normalise && sum > 0 ? ((R)gs->scale * dw[j] - inner) / sum : (R)gs->scale * dw[j];
    }
}

void NAME(ek_gate_backward)(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept)
{
    const ek_moe_step *step = m->step;
    int64_t experts = m->spec->experts, n = mb->n;
    int kind = (int)m->spec->gate.kind, noisy = NAME(jittered)(m);
    double balance = kind == EK_GATE_SOFTMAX && kept->assigned > 0
                         ? mb->share * step->aux_coef * (double)experts /
                               ((double)kept->assigned * (double)mb->total)
                         : 0;
    double z = kind == EK_GATE_SIGMOID_BIAS ? 0 : 2 * step->z_coef * mb->share / (double)mb->total;

#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++) {
        const R *p = (const R *)kept->probs + t * experts;
        R *dl = (R *)m->scratch->dlogits + t * experts, inner = 0;

        for (int64_t e = 0; e < experts; e++)
            dl[e] = (R)(balance * (double)kept->fraction[e]);
        NAME(weigh_backward)(m, kept, t, (const R *)m->scratch->dweights + t * m->cols, dl);
        for (int64_t e = 0; e < experts; e++)
            inner += dl[e] * p[e];
        for (int64_t e = 0; e < experts; e++) {
            if (kind == EK_GATE_SIGMOID_BIAS)
                dl[e] *= p[e] * ((R)1 - p[e]);
            else
                dl[e] = p[e] * (dl[e] - inner + (R)z * ((const R *)kept->lse)[t]);
            if (noisy)
                dl[e] *= NAME(jitter)(m, mb, t, e);
        }
    }
}
