/* Re-routing for one element type, included after gate_body.h (R, NAME).
 *
 * During re-routing, kept->weights holds the scores of the assignments: the probability, plus the
 * bias if there is one. */

static R NAME(score_of)(const ek_moe *m, const ek_moe_activations *kept, int64_t t, int32_t e)
{
    const R *bias = m->w->bias.p;

    return ((const R *)kept->probs)[t * m->spec->experts + e] + (bias != NULL ? bias[e] : (R)0);
}

/* Gives assignment i to expert e; e negative: to none. */
static void NAME(assign_expert)(const ek_moe *m, const ek_moe_activations *kept, int64_t i,
                                int32_t e)
{
    kept->ids[i] = e;
    ((R *)kept->weights)[i] = e >= 0 ? NAME(score_of)(m, kept, i / m->cols, e) : (R)0;
}

static int NAME(has_expert)(const ek_moe *m, const ek_moe_activations *kept, int64_t t, int32_t e)
{
    for (int64_t j = 0; j < m->step->top_k; j++)
        if (kept->ids[t * m->cols + j] == e)
            return 1;
    return 0;
}

/* The best allowed expert that a token does not have yet; -1: none. */
static int32_t NAME(best_other)(const ek_moe *m, const ek_moe_activations *kept, int64_t t,
                                const unsigned char *allowed)
{
    int32_t best = -1;
    R most = 0;

    for (int32_t e = 0; e < (int32_t)m->spec->experts; e++) {
        R score;

        if (!allowed[e] || NAME(has_expert)(m, kept, t, e))
            continue;
        score = NAME(score_of)(m, kept, t, e);
        if (best < 0 || score > most) {
            best = e;
            most = score;
        }
    }
    return best;
}

/* --- topology --------------------------------------------------------------------------------- */

/* allowed [experts] for the tensor parallel rank that has token t of the data parallel rank. */
static const unsigned char *NAME(near_experts)(const ek_moe *m, const ek_micro *mb, int64_t t)
{
    int r = 0;

    while (ek_range_first(mb->all, m->mesh->tp, r + 1) <= t)
        r++;
    return m->gate.allowed + r * m->spec->experts;
}

/* Sequence s: the `limit` best of the assignments that leave the node do, the others stay on it. */
static void NAME(limit_remote)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept, int64_t s)
{
    int64_t cols = m->cols, k = m->step->top_k, n = 0;
    int64_t limit = (int64_t)floor(m->cfg->reroute_limit * (double)(k * mb->seq));

    for (int64_t t = s * mb->seq; t < (s + 1) * mb->seq; t++) {
        const unsigned char *near = NAME(near_experts)(m, mb, t);

        for (int64_t i = t * cols; i < t * cols + k; i++)
            if (kept->ids[i] >= 0 && !near[kept->ids[i]])
                m->gate.order[n++] = (int32_t)i;
    }
    NAME(sort_descending)(kept->weights, m->gate.order, n);
    for (int64_t i = limit; i < n; i++) {
        int64_t t = m->gate.order[i] / cols;
        int32_t e = NAME(best_other)(m, kept, t, NAME(near_experts)(m, mb, t));

        if (e >= 0)
            NAME(assign_expert)(m, kept, m->gate.order[i], e);
    }
}

/* --- swipe ------------------------------------------------------------------------------------ */

/* For assignment i, whose token has all experts below capacity already: moves an assignment of
 * another token of sequence s to one of these.  *passed: the expert which that token leaves, and
 * which i's token lacks.  Returns the expert that was filled; -1: none. */
static int32_t NAME(swap_assignment)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept,
                                     int64_t s, int64_t i, int32_t *passed)
{
    int64_t cols = m->cols;

    for (int64_t t = s * mb->seq; t < (s + 1) * mb->seq; t++)
        for (int64_t j = t * cols; j < t * cols + m->step->top_k; j++) {
            int32_t old = kept->ids[j], e;

            if (old < 0 || NAME(has_expert)(m, kept, i / cols, old))
                continue;
            e = NAME(best_other)(m, kept, t, m->gate.allowed);
            if (e < 0)
                break; /* the same for all assignments of this token */
            NAME(assign_expert)(m, kept, j, e);
            *passed = old;
            return e;
        }
    return -1;
}

/* Moves assignment i of sequence s away from an expert over capacity; share: the capacity. */
static void NAME(swipe_assignment)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept,
                                   int64_t s, int64_t i, int64_t share)
{
    int32_t filled = NAME(best_other)(m, kept, i / m->cols, m->gate.allowed), to = filled;

    if (filled < 0)
        filled = NAME(swap_assignment)(m, mb, kept, s, i, &to);
    if (filled < 0)
        return;
    NAME(assign_expert)(m, kept, i, to);
    m->gate.allowed[filled] = ++m->gate.taken[filled] < share;
}

/* Sequence s: no expert serves more than ceil(k T / E). */
static void NAME(swipe_sequence)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept, int64_t s)
{
    int64_t experts = m->spec->experts, span = mb->seq * m->cols, k = m->step->top_k;
    int64_t share = (k * mb->seq + experts - 1) / experts;

    memset(m->gate.taken, 0, (size_t)experts * sizeof(*m->gate.taken));
    for (int64_t i = s * span; i < (s + 1) * span; i++)
        if (kept->ids[i] >= 0)
            m->gate.taken[kept->ids[i]]++;
    for (int64_t e = 0; e < experts; e++)
        m->gate.allowed[e] = m->gate.taken[e] < share;
    for (int32_t e = 0; e < (int32_t)experts; e++) {
        int64_t n = 0;

        for (int64_t i = s * span; i < (s + 1) * span && m->gate.taken[e] > share; i++)
            if (kept->ids[i] == e)
                m->gate.order[n++] = (int32_t)i;
        NAME(sort_descending)(kept->weights, m->gate.order, n);
        for (int64_t i = share; i < n; i++)
            NAME(swipe_assignment)(m, mb, kept, s, m->gate.order[i], share);
    }
}

static void NAME(reroute_micro)(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    for (int64_t i = 0; i < mb->n * m->cols; i++)
        NAME(assign_expert)(m, kept, i, kept->ids[i]);
    for (int64_t s = 0; s < mb->seqs; s++)
        if (m->cfg->reroute == EK_REROUTE_TOPOLOGY)
            NAME(limit_remote)(m, mb, kept, s);
        else
            NAME(swipe_sequence)(m, mb, kept, s);
}
