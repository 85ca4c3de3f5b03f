/* Groups that are opened when they are first used, and calls in flight. */
#include "train/net_calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ek_ranks ranks;
    ek_comm **of; /* [ranks.n] as each of them sees it */
} known_group;

typedef struct {
    ek_coll *op;
    int32_t call;
} running_call;

/* Calls of a rank, in the order in which they were started. */
typedef struct {
    running_call *list;
    int32_t n, cap;
} rank_calls;

struct ek_net_calls {
    ek_recorder *recorder;
    int ranks;
    known_group *groups;
    int32_t n_groups;
    rank_calls *running; /* [ranks] */
    int *list;           /* [ranks] scratch: a group's */
    int64_t *table;      /* [ranks x ranks] scratch: rows, or starts of ranges */
    char nowhere;        /* the address of buffers, which nobody touches */
};

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for calls of the communicator");
}

ek_status ek_net_calls_open(int ranks, const int *node_of, ek_net_calls **out)
{
    ek_net_calls *c = calloc(1, sizeof(*c));
    size_t n = (size_t)ranks;

    *out = c;
    if (c == NULL)
        return no_memory();
    c->ranks = ranks;
    c->running = calloc(n, sizeof(*c->running));
    c->list = calloc(n, sizeof(*c->list));
    c->table = calloc(n * n + 1, sizeof(*c->table));
    if (c->running == NULL || c->list == NULL || c->table == NULL)
        return no_memory();
    EK_TRY(ek_record_open(ranks, &c->recorder));
    for (int r = 0; r < ranks; r++)
        ek_comm_set_nodes(ek_record_world(c->recorder, r), node_of);
    return EK_OK;
}

void ek_net_calls_close(ek_net_calls **pc)
{
    ek_net_calls *c = *pc;

    *pc = NULL;
    if (c == NULL)
        return;
    for (int32_t g = 0; g < c->n_groups; g++) {
        for (int32_t i = 0; i < c->groups[g].ranks.n; i++)
            ek_comm_close(&c->groups[g].of[i]);
        free(c->groups[g].of);
    }
    ek_record_close(&c->recorder);
    for (int r = 0; c->running != NULL && r < c->ranks; r++)
        free(c->running[r].list);
    free(c->running);
    free(c->groups);
    free(c->list);
    free(c->table);
    free(c);
}

ek_recorder *ek_net_calls_recorder(ek_net_calls *c)
{
    return c->recorder;
}

/* --- groups ----------------------------------------------------------------------------------- */

static ek_status open_group(ek_net_calls *c, ek_ranks ranks)
{
    known_group *more = realloc(c->groups, ((size_t)c->n_groups + 1) * sizeof(*more));
    ek_comm **of = calloc((size_t)ranks.n, sizeof(ek_comm *));

    if (more != NULL)
        c->groups = more;
    if (more == NULL || of == NULL) {
        free(of);
        return no_memory();
    }
    c->groups[c->n_groups++] = (known_group){ranks, of};
    for (int32_t i = 0; i < ranks.n; i++)
        c->list[i] = ek_ranks_at(ranks, i);
    return ek_record_group(c->recorder, "simulated", c->list, ranks.n, of);
}

static ek_status find_group(ek_net_calls *c, ek_ranks ranks, int32_t rank, ek_comm **out)
{
    int32_t g = 0;

    while (g < c->n_groups && memcmp(&c->groups[g].ranks, &ranks, sizeof(ranks)) != 0)
        g++;
    if (g == c->n_groups)
        EK_TRY(open_group(c, ranks));
    *out = c->groups[g].of[(rank - ranks.first) / (ranks.stride > 0 ? ranks.stride : 1)];
    return EK_OK;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* A work's vector in elements that can be added: those that are not 4 or 8 bytes long are
 * together. */
static ek_status call_vector(ek_net_calls *c, ek_comm *g, const ek_net_work *w, ek_coll **op)
{
    int64_t element = w->element == 8 ? 8 : 4, n;
    ek_reduce how = element == 8 ? EK_SUM_F64 : EK_SUM_F32;

    if (w->collective == EK_COLLECTIVE_ALL_GATHER)
        element = w->element > 0 ? w->element : 1;
    n = (int64_t)(w->bytes / (double)element);
    for (int r = 0; r <= ek_comm_size(g); r++)
        c->table[r] = ek_range_first(n, ek_comm_size(g), r);
    if (w->collective == EK_COLLECTIVE_ALL_REDUCE)
        return ek_comm_all_reduce(g, &c->nowhere, n, how, op);
    if (w->collective == EK_COLLECTIVE_REDUCE_SCATTER)
        return ek_comm_reduce_scatter(g, &c->nowhere, c->table, how, op);
    return ek_comm_all_gather(g, &c->nowhere, c->table, (size_t)element, op);
}

/* Rows of one byte, so that any bytes can be spread evenly over the other ranks of the span. */
static ek_status call_all_to_all(ek_net_calls *c, ek_comm *g, const ek_net_work *w, ek_coll **op)
{
    int n = ek_comm_size(g), span = w->span > 0 && w->span < n ? w->span : n;

    for (int i = 0; i < n; i++) {
        int first = i / span * span, end = first + span < n ? first + span : n;
        int64_t rows = end - first > 1 ? llround(w->bytes / (end - first - 1)) : 0;

        for (int j = 0; j < n; j++)
            c->table[(int64_t)i * n + j] = j >= first && j < end && j != i ? rows : 0;
    }
    return ek_comm_all_to_all(g, (ek_a2a)(w->collective - EK_COLLECTIVE_A2A_LINEAR), c->table, 1,
                              &c->nowhere, &c->nowhere, op);
}

/* Every rank's bytes go to the rank that comes so many after it as the caller's partner does. */
static ek_status call_partners(ek_net_calls *c, ek_comm *g, const ek_net_work *w, ek_coll **op)
{
    int n = ek_comm_size(g);

    memset(c->table, 0, (size_t)n * (size_t)n * sizeof(*c->table));
    for (int i = 0; i < n; i++)
        c->table[(int64_t)i * n + (i + w->after) % n] = llround(w->bytes);
    return ek_comm_all_to_all(g, EK_A2A_LINEAR, c->table, 1, &c->nowhere, &c->nowhere, op);
}

static ek_status call_op(ek_net_calls *c, ek_comm *g, const ek_net_work *w, int tag, ek_coll **op)
{
    int64_t bytes = llround(w->bytes);

    switch (w->collective) {
    case EK_COLLECTIVE_ALL_REDUCE:
    case EK_COLLECTIVE_ALL_GATHER:
    case EK_COLLECTIVE_REDUCE_SCATTER: return call_vector(c, g, w, op);
    case EK_COLLECTIVE_A2A_LINEAR:
    case EK_COLLECTIVE_A2A_PAIRWISE:
    case EK_COLLECTIVE_A2A_2DH: return call_all_to_all(c, g, w, op);
    case EK_COLLECTIVE_PARTNERS: return call_partners(c, g, w, op);
    case EK_COLLECTIVE_SEND: return ek_comm_send(g, &c->nowhere, bytes, w->peer, tag, op);
    case EK_COLLECTIVE_RECEIVE: return ek_comm_recv(g, &c->nowhere, bytes, w->peer, tag, op);
    default:
        return EK_FAIL(EK_EUNSUPPORTED, "the messages of %s depend on a plan",
                       ek_collective_name(w->collective));
    }
}

ek_status ek_net_calls_start(ek_net_calls *c, int32_t rank, const ek_net_work *w, int tag,
                             int32_t call)
{
    rank_calls *r = &c->running[rank];
    running_call *more;
    ek_coll *op = NULL;
    ek_comm *g = NULL;

    if (r->n == r->cap) {
        r->cap = r->cap > 0 ? 2 * r->cap : 8;
        more = realloc(r->list, (size_t)r->cap * sizeof(*more));
        if (more == NULL)
            return no_memory();
        r->list = more;
    }
    EK_TRY(find_group(c, w->group, rank, &g));
    EK_TRY(call_op(c, g, w, tag, &op));
    r->list[r->n++] = (running_call){op, call};
    return EK_OK;
}

/* Tests the calls in turn until one has finished. */
static ek_status test_calls(rank_calls *r, int32_t *call)
{
    *call = -1;
    for (int32_t i = 0; i < r->n; i++) {
        ek_status st = ek_coll_test(&r->list[i].op);

        if (st == EK_PENDING)
            continue;
        *call = r->list[i].call;
        r->n--;
        memmove(r->list + i, r->list + i + 1, (size_t)(r->n - i) * sizeof(*r->list));
        return st;
    }
    return EK_OK;
}

ek_status ek_net_calls_finished(ek_net_calls *c, int32_t rank, int32_t *call)
{
    const ek_comm *world = ek_record_world(c->recorder, rank);
    int64_t before;

    do { /* a message that is sent or seen may let another call go on */
        before = ek_comm_activity(world);
        EK_TRY(test_calls(&c->running[rank], call));
    } while (*call < 0 && ek_comm_activity(world) != before);
    return EK_OK;
}

/* --- for a simulation ------------------------------------------------------------------------- */

static ek_status start_call(void *self, int32_t rank, const ek_net_work *w, int tag, int32_t call)
{
    return ek_net_calls_start(self, rank, w, tag, call);
}

static ek_status finished_call(void *self, int32_t rank, int32_t *call)
{
    return ek_net_calls_finished(self, rank, call);
}

static int take_sent(void *self, ek_sim_sent *m)
{
    ek_recorded r;

    if (!ek_record_take(((ek_net_calls *)self)->recorder, &r))
        return 0;
    *m = (ek_sim_sent){r.id, r.from, r.to, (double)r.bytes};
    return 1;
}

static void let_go(void *self, int32_t id)
{
    ek_record_left(((ek_net_calls *)self)->recorder, id);
}

static void deliver(void *self, int32_t id)
{
    ek_record_arrived(((ek_net_calls *)self)->recorder, id);
}

ek_sim_calls ek_net_calls_for_sim(ek_net_calls *c)
{
    return (ek_sim_calls){c, start_call, finished_call, take_sent, let_go, deliver};
}
