/* Groups that are opened when they are first used, and calls in flight. */
#include "train/net_calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ek_ranks ranks;
    ek_comm **of; /* [ranks.n] as each of them sees it */
} known_group;

/* One of the communicator's operations of a call. */
typedef struct {
    ek_coll *op; /* NULL: the call has none */
    int32_t call;
} running_call;

/* Calls of a rank, in the order in which they were started. */
typedef struct {
    running_call *list;
    int32_t n, cap;
    unsigned sums; /* of copies, for tags */
} rank_calls;

struct ek_net_calls {
    ek_recorder *recorder;
    int ranks;
    known_group *groups;
    int32_t n_groups;
    rank_calls *running;       /* [ranks] */
    int *list;                 /* [ranks] scratch: a group's */
    int64_t *table;            /* [ranks x ranks] scratch: rows, or starts of ranges */
    char nowhere;              /* the address of buffers, which nobody touches */
    const ek_sim_loads *loads; /* NULL: even, with one copy of each expert */
    int experts, ep, etp;
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

void ek_net_calls_set_loads(ek_net_calls *c, const ek_sim_loads *loads, int experts, int ep,
                            int etp)
{
    c->loads = loads;
    c->experts = experts;
    c->ep = ep;
    c->etp = etp;
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

/* Rows of one byte, so that any bytes can be spread over the other ranks of the span: evenly, or
 * passed [ep, ep] times that between the ranks of two expert ranks. */
static ek_status call_all_to_all(ek_net_calls *c, ek_comm *g, const ek_net_work *w,
                                 const double *passed, ek_coll **op)
{
    int n = ek_comm_size(g), span = w->span > 0 && w->span < n ? w->span : n;

    for (int i = 0; i < n; i++) {
        int first = i / span * span, end = first + span < n ? first + span : n;
        double even = end - first > 1 ? w->bytes / (end - first - 1) : 0;
        const double *to = passed != NULL ? passed + (int64_t)((i - first) / c->etp) * c->ep : NULL;

        memset(c->table + (int64_t)i * n, 0, (size_t)n * sizeof(*c->table));
        for (int j = first; j < end; j++)
            if (j != i)
                c->table[(int64_t)i * n + j] =
                    llround(to != NULL ? even * to[(j - first) / c->etp] : even);
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

static ek_status call_op(ek_net_calls *c, ek_comm *g, const ek_net_work *w, const double *passed,
                         int tag, ek_coll **op)
{
    int64_t bytes = llround(w->bytes);

    switch (w->collective) {
    case EK_COLLECTIVE_ALL_REDUCE:
    case EK_COLLECTIVE_ALL_GATHER:
    case EK_COLLECTIVE_REDUCE_SCATTER: return call_vector(c, g, w, op);
    case EK_COLLECTIVE_A2A_LINEAR:
    case EK_COLLECTIVE_A2A_PAIRWISE:
    case EK_COLLECTIVE_A2A_2DH: return call_all_to_all(c, g, w, passed, op);
    case EK_COLLECTIVE_PARTNERS: return call_partners(c, g, w, op);
    case EK_COLLECTIVE_SEND: return ek_comm_send(g, &c->nowhere, bytes, w->peer, tag, op);
    case EK_COLLECTIVE_RECEIVE: return ek_comm_recv(g, &c->nowhere, bytes, w->peer, tag, op);
    default:
        return EK_FAIL(EK_EUNSUPPORTED, "the messages of %s depend on a plan",
                       ek_collective_name(w->collective));
    }
}

/* The operation that is started next; NULL: no memory. */
static running_call *add_running(rank_calls *r, int32_t call)
{
    if (r->n == r->cap) {
        int32_t cap = r->cap > 0 ? 2 * r->cap : 8;
        running_call *more = realloc(r->list, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return NULL;
        r->list = more;
        r->cap = cap;
    }
    r->list[r->n] = (running_call){NULL, call};
    return &r->list[r->n++];
}

static ek_status start_call(ek_net_calls *c, int32_t rank, const ek_net_work *w,
                            const double *passed, int tag, int32_t call)
{
    running_call *x = add_running(&c->running[rank], call);
    ek_comm *g = NULL;

    if (x == NULL)
        return no_memory();
    EK_TRY(find_group(c, w->group, rank, &g));
    return call_op(c, g, w, passed, tag, &x->op);
}

ek_status ek_net_calls_start(ek_net_calls *c, int32_t rank, const ek_net_work *w, int tag,
                             int32_t call)
{
    return start_call(c, rank, w, NULL, tag, call);
}

/* --- sums of copies --------------------------------------------------------------------------- */

/* The ranks of the caller's group with the same shard of an expert as the caller, from a list of
 * expert ranks; how many, or 0: the caller is none of them. */
static int list_copies(ek_net_calls *c, int self, const int32_t *of)
{
    int first = self / (c->ep * c->etp) * (c->ep * c->etp), n = 0, is_in = 0;

    for (; n < c->ep && of[n] >= 0; n++) {
        c->list[n] = first + of[n] * c->etp + self % c->etp;
        is_in |= c->list[n] == self;
    }
    return is_in ? n : 0;
}

/* The two matrices of an expert, of which one is twice the other, as moe/replica_weights.c sends
 * them: sums, or what they have come to. */
static ek_status call_copies(ek_net_calls *c, int32_t rank, const ek_net_work *w, ek_comm *g,
                             int n_ranks, double gradient, int32_t call)
{
    rank_calls *r = &c->running[rank];
    ek_reduce how = w->element == 8 ? EK_SUM_F64 : EK_SUM_F32;

    for (unsigned i = 0; i < 2; i++) {
        int tag = (int)((r->sums + i) % EK_COMM_TAGS);
        double bytes = gradient * (2 - i) / 3;
        running_call *x = add_running(r, call);

        if (x == NULL)
            return no_memory();
        if (w->collective == EK_COLLECTIVE_MULTIREDUCES)
            EK_TRY(ek_comm_multireduce(g, &c->nowhere, llround(bytes / w->element), how, c->list,
                                       n_ranks, tag, &x->op));
        else
            EK_TRY(
                ek_comm_multicast(g, &c->nowhere, llround(bytes), c->list, n_ranks, tag, &x->op));
    }
    return EK_OK;
}

static ek_status start_copies(ek_net_calls *c, int32_t rank, const ek_op *op, const ek_net_work *w,
                              int32_t call)
{
    const int32_t *lists = ek_sim_loads_lists(c->loads, op);
    int self = (rank - w->group.first) / (w->group.stride > 0 ? w->group.stride : 1);
    double gradient = 0;
    ek_comm *g = NULL;

    EK_TRY(find_group(c, w->group, rank, &g));
    (void)ek_sim_loads_copies(c->loads, op, &gradient);
    for (int e = 0; e < c->experts; e++) {
        const int32_t *of = lists + (int64_t)e * c->ep;
        int n = list_copies(c, self, of);

        if (n > 0)
            EK_TRY(call_copies(c, rank, w, g, n, gradient, call));
        c->running[rank].sums += of[0] >= 0 ? 2 : 0; /* on all ranks alike */
    }
    return add_running(&c->running[rank], call) != NULL ? EK_OK : no_memory();
}

ek_status ek_net_calls_start_op(ek_net_calls *c, int32_t rank, const ek_op *op,
                                const ek_net_work *w, int tag, int32_t call)
{
    if (c->loads != NULL && ek_sim_loads_lists(c->loads, op) != NULL)
        return start_copies(c, rank, op, w, call);
    return start_call(c, rank, w, c->loads != NULL ? ek_sim_loads_passed(c->loads, op) : NULL, tag,
                      call);
}

/* --- progress --------------------------------------------------------------------------------- */

static int is_running(const rank_calls *r, int32_t call)
{
    int32_t i = 0;

    while (i < r->n && r->list[i].call != call)
        i++;
    return i < r->n;
}

/* Tests the operations in turn until one has finished that is the last of its call. */
static ek_status test_calls(rank_calls *r, int32_t *call)
{
    *call = -1;
    for (int32_t i = 0; i < r->n;) {
        ek_status st = r->list[i].op != NULL ? ek_coll_test(&r->list[i].op) : EK_OK;
        int32_t of = r->list[i].call;

        if (st == EK_PENDING) {
            i++;
            continue;
        }
        r->n--;
        memmove(r->list + i, r->list + i + 1, (size_t)(r->n - i) * sizeof(*r->list));
        if (st != EK_OK || !is_running(r, of)) {
            *call = of;
            return st;
        }
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

static ek_status start_op(void *self, int32_t rank, const ek_op *op, const ek_net_work *w, int tag,
                          int32_t call)
{
    return ek_net_calls_start_op(self, rank, op, w, tag, call);
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
    return (ek_sim_calls){c, start_op, finished_call, take_sent, let_go, deliver};
}
