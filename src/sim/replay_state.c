/* Sets up a replay: which entities there are, which groups they form, what their ops cost. */
#include "base/count_text.h"
#include "base/memory_limit.h"
#include "sim/replay_priv.h"

#include <stdlib.h>
#include <string.h>

static int is_collective(const ek_op *op)
{
    return op->work.kind == EK_WORK_NET && op->work.net.collective != EK_COLLECTIVE_SEND &&
           op->work.net.collective != EK_COLLECTIVE_RECEIVE;
}

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a simulation");
}

/* --- entities --------------------------------------------------------------------------------- */

/* Whether a stage has several classes: then a class may exchange messages with several. */
static int divides_stages(const ek_sim_graphs *g)
{
    for (int32_t k = 0; k < g->n_classes; k++)
        for (int32_t j = 0; j < k; j++)
            if (g->classes[j].stage == g->classes[k].stage)
                return 1;
    return 0;
}

/* Whether ranks of a class differ. */
static int distinguishes_ranks(const ek_sim_config *cfg)
{
    if (cfg->each_rank || cfg->factors != NULL || divides_stages(cfg->graphs))
        return 1;
    for (int32_t r = 0; cfg->slow != NULL && r < cfg->graphs->ranks; r++)
        if (cfg->slow[r] != cfg->slow[0])
            return 1;
    return 0;
}

static ek_status number_entities(const ek_sim_config *cfg, sim *s)
{
    s->each_rank = distinguishes_ranks(cfg);
    for (int32_t k = 0; k < s->n_classes; k++) {
        sim_class *c = &s->classes[k];

        *c = (sim_class){.of = &s->graphs->classes[k],
                         .index = k,
                         .first = s->n,
                         .n = s->each_rank ? s->graphs->classes[k].n_ranks : 1};
        for (int32_t i = 0; i < c->of->n_ranks; i++) {
            s->entity_of[c->of->ranks[i]] = s->n + (s->each_rank ? i : 0);
            s->class_of[c->of->ranks[i]] = k;
        }
        s->n += c->n;
    }
    s->entity = calloc((size_t)s->n, sizeof(*s->entity));
    s->parts = calloc((size_t)s->n, sizeof(*s->parts));
    s->queues = calloc((size_t)s->n, sizeof(*s->queues));
    if (s->entity == NULL || s->parts == NULL || s->queues == NULL)
        return no_memory();
    for (int32_t r = 0; r < s->graphs->ranks; r++) {
        s->entity[s->entity_of[r]].slow = cfg->slow != NULL ? cfg->slow[r] : 1;
        s->entity[s->entity_of[r]].column = cfg->factors != NULL ? cfg->column_of[r] : 0;
    }
    return EK_OK;
}

/* --- channels --------------------------------------------------------------------------------- */

static void close_channel(sim_channel *ch)
{
    free(ch->leader);
    free(ch->set_of);
    free(ch->n_members);
    free(ch->n_arrived);
    free(ch->state);
    free(ch->ready);
}

static ek_status allocate_channel(const sim *s, sim_channel *ch)
{
    size_t n = (size_t)s->n, classes = (size_t)s->n_classes;

    ch->leader = calloc(2 * n, sizeof(*ch->leader));
    ch->set_of = calloc(classes, sizeof(*ch->set_of));
    ch->n_members = calloc(classes, sizeof(*ch->n_members));
    ch->n_arrived = calloc(classes, sizeof(*ch->n_arrived));
    ch->state = calloc(classes, sizeof(*ch->state));
    ch->ready = calloc(5 * n, sizeof(*ch->ready));
    if (ch->leader == NULL || ch->set_of == NULL || ch->n_members == NULL ||
        ch->n_arrived == NULL || ch->state == NULL || ch->ready == NULL)
        return no_memory();
    ch->outside = ch->leader + n;
    ch->wire = ch->ready + n;
    ch->latency = ch->wire + n;
    ch->begun = ch->latency + n;
    ch->end = ch->begun + n;
    return EK_OK;
}

/* The first rank of a rank's group, or of its span of that. */
static int32_t leader_rank(const sim_channel *ch, int32_t rank)
{
    ek_ranks group = ek_ranks_around(rank, ch->stride, ch->n);
    int32_t at = (rank - group.first) / ch->stride;

    return ek_ranks_at(group, at / ch->span * ch->span);
}

static void join_sets(const sim *s, sim_channel *ch, int32_t a, int32_t b)
{
    int32_t from = ch->set_of[a], to = ch->set_of[b];

    for (int32_t k = 0; k < s->n_classes; k++)
        if (ch->set_of[k] == from)
            ch->set_of[k] = to;
}

static ek_status open_channel(sim *s, const ek_net_work *w)
{
    sim_channel *ch = &s->channels[s->n_channels++];

    *ch = (sim_channel){.stride = w->group.stride, .n = w->group.n, .span = w->span};
    EK_TRY(allocate_channel(s, ch));
    for (int32_t k = 0; k < s->n_classes; k++)
        ch->set_of[k] = k;
    for (int32_t r = 0; r < s->graphs->ranks; r++) {
        int32_t leader = leader_rank(ch, r);

        if (s->class_of[leader] != s->class_of[r])
            join_sets(s, ch, s->class_of[r], s->class_of[leader]);
    }
    for (int32_t k = 0; k < s->n_classes; k++)
        ch->n_members[ch->set_of[k]]++;
    for (int32_t r = 0; r < s->graphs->ranks && s->each_rank; r++)
        ch->leader[s->entity_of[r]] = s->entity_of[leader_rank(ch, r)];
    for (int32_t k = 0; k < s->n_classes && !s->each_rank; k++) /* a set meets as a whole */
        ch->leader[s->classes[k].first] = s->classes[ch->set_of[k]].first;
    return EK_OK;
}

static int is_channel_of(const sim_channel *ch, const ek_net_work *w)
{
    return ch->stride == w->group.stride && ch->n == w->group.n && ch->span == w->span;
}

static ek_status find_channel(sim *s, const ek_net_work *w, int32_t *index)
{
    sim_channel *more;

    for (*index = 0; *index < s->n_channels; ++*index)
        if (is_channel_of(&s->channels[*index], w))
            return EK_OK;
    more = realloc(s->channels, ((size_t)s->n_channels + 1) * sizeof(*more));
    if (more == NULL)
        return no_memory();
    s->channels = more;
    return open_channel(s, w);
}

/* --- classes ---------------------------------------------------------------------------------- */

/* What needs less is not checked, which takes longer than a small simulation. */
#define CHECKED_BYTES 1e8

/* The times of all ops on all entities. */
static ek_status check_memory(const sim *s)
{
    double bytes = 0, have;
    char text[2][32];

    for (int32_t k = 0; k < s->n_classes; k++)
        bytes += 2.0 * sizeof(double) * s->classes[k].n * s->classes[k].of->graph->n_ops;
    if (bytes < CHECKED_BYTES)
        return EK_OK;
    have = (double)ek_memory_available();
    EK_REQUIRE(have <= 0 || bytes <= have, EK_ENOMEM,
               "the simulation needs up to %s of memory for the times of %d ranks, and %s are free",
               ek_bytes_text(text[0], sizeof(text[0]), bytes), (int)s->graphs->ranks,
               ek_bytes_text(text[1], sizeof(text[1]), have));
    return EK_OK;
}

static ek_status open_class(const ek_sim_config *cfg, sim *s, sim_class *c)
{
    const ek_graph *g = c->of->graph;
    size_t ops = (size_t)g->n_ops + 1, columns = (size_t)c->n;
    int32_t nets = 0;

    EK_TRY(ek_sim_prices_open(cfg, c->of, &c->prices));
    for (int32_t i = 0; i < c->prices.n; i++) {
        sim_priced *x = &c->prices.list[i];

        s->polls |= x->price.polled > 0;
        if (is_collective(&x->like) && !x->price.silent)
            EK_TRY(find_channel(s, &x->like.work.net, &x->channel));
    }
    c->end = malloc(ops * columns * sizeof(*c->end));
    c->net_index = calloc(ops, sizeof(*c->net_index));
    if (c->end == NULL || c->net_index == NULL)
        return no_memory();
    for (int32_t i = 0; i < g->n_ops; i++) {
        c->net_index[i] = nets;
        nets += ek_graph_op(g, i)->work.kind == EK_WORK_NET;
    }
    c->begun = malloc(((size_t)nets + 1) * columns * sizeof(*c->begun));
    return c->begun != NULL ? EK_OK : no_memory();
}

ek_status ek_sim_open(const ek_sim_config *cfg, sim *s)
{
    const ek_sim_graphs *g = cfg->graphs;

    *s = (sim){.graphs = g,
               .n_classes = g->n_classes,
               .classes = calloc((size_t)g->n_classes, sizeof(*s->classes)),
               .entity_of = calloc((size_t)g->ranks, sizeof(*s->entity_of)),
               .class_of = calloc((size_t)g->ranks, sizeof(*s->class_of))};
    if (s->classes == NULL || s->entity_of == NULL || s->class_of == NULL)
        return no_memory();
    EK_TRY(number_entities(cfg, s));
    EK_TRY(check_memory(s));
    for (int32_t k = 0; k < s->n_classes; k++)
        EK_TRY(open_class(cfg, s, &s->classes[k]));
    return EK_OK;
}

void ek_sim_close(sim *s)
{
    for (int32_t k = 0; s->classes != NULL && k < s->n_classes; k++) {
        sim_class *c = &s->classes[k];

        ek_sim_prices_close(&c->prices);
        free(c->end);
        free(c->begun);
        free(c->net_index);
    }
    for (int32_t i = 0; i < s->n_channels; i++)
        close_channel(&s->channels[i]);
    for (int32_t x = 0; s->queues != NULL && x < s->n; x++) {
        for (int32_t i = 0; i < s->queues[x].n; i++)
            free(s->queues[x].list[i].list);
        free(s->queues[x].list);
    }
    free(s->classes);
    free(s->channels);
    free(s->queues);
    free(s->entity);
    free(s->parts);
    free(s->entity_of);
    free(s->class_of);
}

/* --- messages --------------------------------------------------------------------------------- */

static sim_queue *find_queue(const sim *s, int32_t from, int32_t to, int gradient)
{
    sim_queues *q = &s->queues[from];

    for (int32_t i = 0; i < q->n; i++)
        if (q->list[i].to == to && q->list[i].gradient == gradient)
            return &q->list[i];
    return NULL;
}

static sim_queue *add_queue(sim_queues *q, int32_t to, int gradient)
{
    sim_queue *more = realloc(q->list, ((size_t)q->n + 1) * sizeof(*more));

    if (more == NULL)
        return NULL;
    q->list = more;
    q->list[q->n] = (sim_queue){.to = to, .gradient = gradient};
    return &q->list[q->n++];
}

ek_status ek_sim_post(sim *s, int32_t from, int32_t to, int gradient, sim_message m)
{
    sim_queue *q = find_queue(s, from, to, gradient);

    if (q == NULL)
        q = add_queue(&s->queues[from], to, gradient);
    if (q == NULL)
        return no_memory();
    if (q->n == q->cap) {
        int32_t cap = q->cap > 0 ? 2 * q->cap : 16;
        sim_message *more = realloc(q->list, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return no_memory();
        q->list = more;
        q->cap = cap;
    }
    q->list[q->n++] = m;
    return EK_OK;
}

int ek_sim_has_message(const sim *s, int32_t from, int32_t to, int gradient)
{
    const sim_queue *q = find_queue(s, from, to, gradient);

    return q != NULL && q->first < q->n;
}

sim_message ek_sim_take(sim *s, int32_t from, int32_t to, int gradient)
{
    sim_queue *q = find_queue(s, from, to, gradient);

    return q->list[q->first++];
}
