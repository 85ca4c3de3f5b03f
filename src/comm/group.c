/* Worlds and groups: their ranks, hosts and nodes. */
#include "comm/coll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_comm(ek_comm *c)
{
    ek_coll *next;

    if (c == NULL)
        return;
    for (ek_coll *op = c->idle; op != NULL; op = next) {
        next = op->next;
        free(op->kept.scratch);
        free(op->kept.transfers);
        free(op->kept.table);
        free(op);
    }
    free(c->world_of);
    free(c->node_of);
    free(c->local_rank_of);
    free(c->node_size);
    free(c->by_node);
    free(c->node_first);
    free(c->hosts);
    free(c);
}

static ek_comm *new_comm(ek_world *w, const char *name, int rank, int size)
{
    ek_comm *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return NULL;
    c->world = w;
    c->name = name;
    c->rank = rank;
    c->size = size;
    c->world_of = calloc((size_t)size, sizeof(*c->world_of));
    c->node_of = calloc((size_t)size, sizeof(*c->node_of));
    c->local_rank_of = calloc((size_t)size, sizeof(*c->local_rank_of));
    c->node_size = calloc((size_t)size, sizeof(*c->node_size));
    c->by_node = calloc((size_t)size, sizeof(*c->by_node));
    c->node_first = calloc((size_t)size + 1, sizeof(*c->node_first));
    c->hosts = calloc((size_t)size, sizeof(*c->hosts));
    if (c->world_of == NULL || c->node_of == NULL || c->local_rank_of == NULL ||
        c->node_size == NULL || c->by_node == NULL || c->node_first == NULL || c->hosts == NULL) {
        free_comm(c);
        return NULL;
    }
    return c;
}

ek_status ek_comm_create(const ek_backend *backend, void *state, int rank, int ranks,
                         const char (*hosts)[EK_HOST_CAP], ek_comm **out)
{
    ek_world *w = calloc(1, sizeof(*w));
    ek_comm *c = new_comm(w, "world", rank, ranks);

    if (w == NULL || c == NULL) {
        backend->close(state, 0);
        free_comm(c);
        free(w);
        return EK_FAIL(EK_ENOMEM, "no memory for a world of %d ranks", ranks);
    }
    w->backend = backend;
    w->state = c->state = state;
    ek_comm_set_message_max(c, backend->message_max);
#ifdef EK_COMM_CHECKED
    w->checked = true;
#endif
    memcpy(c->hosts, hosts, (size_t)ranks * sizeof(*hosts));
    for (int r = 0; r < ranks; r++) {
        int same = 0;

        while (strcmp(hosts[same], hosts[r]) != 0)
            same++;
        c->node_of[r] = same;
        c->world_of[r] = r;
    }
    ek_comm_set_nodes(c, c->node_of);
    *out = c;
    return EK_OK;
}

ek_status ek_comm_group(ek_comm *parent, const char *name, const int *ranks, int n, ek_comm **out)
{
    ek_world *w = parent->world;
    int me = -1, largest = -1;
    ek_comm *c;
    ek_status st;

    for (int i = 0; i < n; i++) {
        EK_REQUIRE(ranks[i] >= 0 && ranks[i] < parent->size, EK_EINVAL,
                   "group %s: rank %d is not in 0 to %d of %s", name, ranks[i], parent->size - 1,
                   parent->name);
        for (int j = 0; j < i && ranks[i] <= largest; j++)
            EK_REQUIRE(ranks[i] != ranks[j], EK_EINVAL, "group %s: rank %d is listed twice", name,
                       ranks[i]);
        largest = ranks[i] > largest ? ranks[i] : largest;
        if (ranks[i] == parent->rank)
            me = i;
    }
    EK_REQUIRE(me >= 0, EK_EINVAL, "group %s: rank %d of %s is not among its %d ranks", name,
               parent->rank, parent->name, n);
    EK_REQUIRE(w->failed == EK_OK, w->failed, "group %s after a failure: %s", name, w->reason);
    c = new_comm(w, name, me, n);
    EK_REQUIRE(c != NULL, EK_ENOMEM, "group %s: no memory for %d ranks", name, n);
    for (int i = 0; i < n; i++) {
        c->world_of[i] = parent->world_of[ranks[i]];
        c->node_of[i] = parent->node_of[ranks[i]];
        memcpy(c->hosts[i], parent->hosts[ranks[i]], sizeof(c->hosts[i]));
    }
    ek_comm_set_nodes(c, c->node_of);
    EK_TRY_OUT(w->backend->group(parent->state, ranks, n, &c->state));
    *out = c;
    return EK_OK;
out:
    free_comm(c);
    return st;
}

/* Returns a group's running operations to the pool: after a failure they cannot finish. */
static void drop_running(ek_comm *c)
{
    ek_coll **at = &c->world->running;

    while (*at != NULL) {
        ek_coll *op = *at;

        if (op->comm != c) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        if (op->next != NULL)
            op->next->prev = op->prev;
        op->next = c->idle;
        c->idle = op;
    }
}

void ek_comm_close(ek_comm **comm)
{
    ek_comm *c = *comm;

    if (c == NULL)
        return;
    *comm = NULL;
    c->world->backend->close(c->state, c->world->failed != EK_OK);
    drop_running(c);
    if (c->state == c->world->state)
        free(c->world);
    free_comm(c);
}

void ek_comm_set_nodes(ek_comm *c, const int *node_of)
{
    int *first = c->local_rank_of; /* temporarily: the first rank on the same node */
    int largest = node_of[0];

    for (int r = 0; r < c->size; r++) {
        int neighbours = r > 0 && node_of[r - 1] == node_of[r];

        first[r] = neighbours ? first[r - 1] : node_of[r] > largest ? r : 0;
        while (node_of[first[r]] != node_of[r])
            first[r]++;
        largest = node_of[r] > largest ? node_of[r] : largest;
    }
    c->nodes = 0;
    for (int r = 0; r < c->size; r++) {
        int node = first[r] == r ? c->nodes++ : c->node_of[first[r]];

        if (first[r] == r)
            c->node_size[node] = 0;
        c->node_of[r] = node;
        c->local_rank_of[r] = c->node_size[node]++;
    }
    c->node_first[0] = 0;
    for (int node = 0; node < c->nodes; node++)
        c->node_first[node + 1] = c->node_first[node] + c->node_size[node];
    for (int r = 0; r < c->size; r++)
        c->by_node[c->node_first[c->node_of[r]] + c->local_rank_of[r]] = r;
}

/* --- accessors -------------------------------------------------------------------------------- */

int ek_comm_rank(const ek_comm *c)
{
    return c->rank;
}

int ek_comm_size(const ek_comm *c)
{
    return c->size;
}

const char *ek_comm_host(const ek_comm *c, int rank)
{
    return c->hosts[rank];
}

int ek_comm_node(const ek_comm *c, int rank)
{
    return c->node_of[rank];
}

int ek_comm_ranks_here(const ek_comm *c)
{
    int here = c == NULL;

    for (int r = 0; c != NULL && r < c->size; r++)
        here += c->node_of[r] == c->node_of[c->rank];
    return here;
}

int64_t ek_comm_bytes_sent(const ek_comm *c)
{
    return c->world->bytes_sent;
}

void ek_comm_set_watchdog(ek_comm *c, double seconds)
{
    c->world->watchdog_s = seconds;
}

int64_t ek_comm_activity(const ek_comm *c)
{
    return c->world->bytes_sent + c->world->arrived;
}

void ek_comm_abort(ek_comm *world, int status)
{
    if (world->world->backend->abort != NULL)
        world->world->backend->abort(world->state, status);
}

void ek_comm_decorate(ek_comm *world, const ek_backend *outer, void *outer_state,
                      const ek_backend **inner, void **state)
{
    *inner = world->world->backend;
    *state = world->state;
    world->world->backend = outer;
    world->world->state = world->state = outer_state;
}

void ek_comm_set_message_max(ek_comm *world, int64_t bytes)
{
    world->world->message_max = world->world->far_max = bytes;
}

void ek_comm_set_far_max(ek_comm *world, int64_t bytes)
{
    world->world->far_max = bytes;
}

void ek_comm_set_checked(ek_comm *world, int checked)
{
    world->world->checked = checked != 0;
}
