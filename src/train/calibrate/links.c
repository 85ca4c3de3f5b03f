/* Measures messages within and between nodes: all-to-alls, and hops of multicasts.
 *
 * All ranks communicate at the same time, as in training: in an all-to-all each with all others of
 * its class, in hops each with one other.  Decisions use times of the slowest rank, which all ranks
 * know, so that all make the same calls. */
#include "base/clock.h"
#include "comm/agree.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALLEST = 1 << 10,
    LARGEST = 4 << 20,
    STEP = 4, /* from size to size */
    BUFFER_MOST = 32 << 20,
    BUFFER_A_SECOND = 512 << 20 /* of each of two */
};

/* One kind of measurement. */
typedef struct {
    ek_link link;
    int hop; /* 1: a hop of a multicast, 0: an all-to-all */
} figure;

typedef struct {
    ek_calibration *c;
    int64_t start;          /* of the part */
    double spent;           /* seconds since then, on the slowest rank */
    int messages[EK_LINKS]; /* most bytes that a rank sends in an all-to-all */
    int pair[EK_LINKS][2];  /* this rank's hop; -1: none */
    int64_t *rows;          /* [ranks][ranks] */
    unsigned char *send, *recv;
    int64_t buffer_bytes; /* bytes of each */
} links;

/* --- communicating ranks ---------------------------------------------------------------------- */

static ek_link link_of(const ek_calibration *c, int from, int to)
{
    return ek_calibrate_node(c, from) == ek_calibrate_node(c, to) ? EK_LINK_NODE : EK_LINK_NET;
}

static void count_messages(links *l)
{
    for (int r = 0; r < l->c->ranks; r++) {
        int n[EK_LINKS] = {0};

        for (int o = 0; o < l->c->ranks; o++)
            n[link_of(l->c, r, o)] += o != r;
        for (int k = 0; k < EK_LINKS; k++)
            l->messages[k] = n[k] > l->messages[k] ? n[k] : l->messages[k];
    }
}

/* Pairs each even rank of a node, or of the first ranks of nodes, with the next one. */
static void find_pairs(links *l)
{
    const ek_calibration *c = l->c;
    int mine = ek_calibrate_node(c, c->rank), first = -1, last[EK_LINKS] = {-1, -1};

    for (int k = 0; k < EK_LINKS; k++)
        l->pair[k][0] = l->pair[k][1] = -1;
    for (int r = 0, nodes = 0; r < c->ranks; r++) {
        int node = ek_calibrate_node(c, r), here = node == mine, opens = node == nodes;

        nodes += opens; /* nodes are numbered by first rank */
        first = here && first < 0 ? r : first;
        for (int k = 0; k < EK_LINKS; k++) {
            if (k == EK_LINK_NODE ? !here : !opens)
                continue;
            if (last[k] < 0) {
                last[k] = r;
                continue;
            }
            if (last[k] == c->rank || r == c->rank) {
                l->pair[k][0] = last[k];
                l->pair[k][1] = r;
            }
            last[k] = -1;
        }
    }
}

/* Limits message sizes by the budget, the same on all ranks. */
static ek_status links_open(links *l, double budget_s)
{
    int64_t buffer_cap = budget_s * BUFFER_A_SECOND > BUFFER_MOST ? BUFFER_MOST
                         : budget_s > 0 ? (int64_t)(budget_s * BUFFER_A_SECOND)
                                        : 0;
    int most = 1;

    count_messages(l);
    find_pairs(l);
    for (int k = 0; k < EK_LINKS; k++)
        most = l->messages[k] > most ? l->messages[k] : most;
    l->buffer_bytes = (int64_t)most * LARGEST > buffer_cap ? buffer_cap : (int64_t)most * LARGEST;
    if (l->buffer_bytes < (int64_t)most * SMALLEST)
        l->buffer_bytes = (int64_t)most * SMALLEST;
    l->rows = calloc((size_t)l->c->ranks * (size_t)l->c->ranks, sizeof(*l->rows));
    l->send = malloc((size_t)l->buffer_bytes);
    l->recv = malloc((size_t)l->buffer_bytes);
    EK_REQUIRE(l->rows != NULL && l->send != NULL && l->recv != NULL, EK_ENOMEM,
               "no memory for messages between %d ranks", l->c->ranks);
    memset(l->send, 1, (size_t)l->buffer_bytes);
    memset(l->recv, 1, (size_t)l->buffer_bytes);
    return EK_OK;
}

static void links_close(links *l)
{
    free(l->rows);
    free(l->send);
    free(l->recv);
}

/* --- measuring -------------------------------------------------------------------------------- */

static void set_rows(links *l, ek_link link, int64_t bytes)
{
    for (int i = 0; i < l->c->ranks; i++)
        for (int j = 0; j < l->c->ranks; j++)
            l->rows[i * l->c->ranks + j] = i != j && link_of(l->c, i, j) == link ? bytes : 0;
}

static ek_status make_call(links *l, const figure *f, int64_t bytes)
{
    const int *pair = l->pair[f->link];
    ek_coll *op;

    if (f->hop && pair[0] < 0)
        return EK_OK;
    if (f->hop)
        EK_TRY(ek_comm_multicast(l->c->world, l->send, bytes, pair, 2, 0, &op));
    else
        EK_TRY(ek_comm_all_to_all(l->c->world, EK_A2A_LINEAR, l->rows, 1, l->send, l->recv, &op));
    EK_TRY(ek_coll_wait(&op));
    return EK_OK;
}

/* The callback of ek_calibrate_sizes. */
typedef struct {
    links *l;
    const figure *f;
} timed;

/* both of the slowest rank */
static ek_status time_calls(void *context, int64_t bytes, int n, double *seconds, double *spent)
{
    const timed *of = context;
    links *l = of->l;
    double t[2];
    int64_t start;

    if (!of->f->hop)
        set_rows(l, of->f->link, bytes);
    EK_TRY(ek_comm_barrier(l->c->world));
    start = ek_clock_ns();
    for (int i = 0; i < n; i++)
        EK_TRY(make_call(l, of->f, bytes));
    t[0] = (double)(ek_clock_ns() - start) * 1e-9 / n;
    t[1] = (double)(ek_clock_ns() - l->start) * 1e-9;
    EK_TRY(ek_calibrate_largest(l->c, t, 2));
    *seconds = t[0];
    *spent = l->spent = t[1];
    return EK_OK;
}

static ek_status measure_table(links *l, const figure *f, double share, ek_cost_table *t)
{
    int per_call = f->hop ? 1 : l->messages[f->link];
    timed of = {l, f};
    int64_t sizes[EK_COST_POINTS];
    double seconds[EK_COST_POINTS];
    int n = 0;

    for (int64_t bytes = SMALLEST; bytes <= LARGEST && bytes * per_call <= l->buffer_bytes;
         bytes *= STEP)
        sizes[n++] = bytes;
    EK_TRY(ek_calibrate_sizes(time_calls, &of, l->spent, share, sizes, seconds, &n));
    for (t->n = 0; t->n < n; t->n++) {
        t->x[t->n] = (double)sizes[t->n];
        t->y[t->n] = ek_cost_round(seconds[t->n] / per_call);
    }
    ek_cost_smooth_times(t);
    return EK_OK;
}

static ek_status measure_all(links *l, double budget_s)
{
    static const figure figures[] = {
        {EK_LINK_NODE, 0}, {EK_LINK_NODE, 1}, {EK_LINK_NET, 0}, {EK_LINK_NET, 1}};
    enum { FIGURES = sizeof(figures) / sizeof(figures[0]) };
    int count = 0, left;

    for (int i = 0; i < FIGURES; i++)
        count += l->messages[figures[i].link] > 0;
    left = count;
    for (int i = 0; i < FIGURES; i++) {
        ek_link_cost *cost = &l->c->m->link[figures[i].link];
        double share = (budget_s - l->spent) / (left > 0 ? left : 1);

        if (l->messages[figures[i].link] == 0)
            continue;
        cost->ranks_a_node = l->c->a_node;
        EK_TRY(measure_table(l, &figures[i], fmax(share, budget_s / count / 2),
                             figures[i].hop ? &cost->hop : &cost->message));
        left--;
    }
    return EK_OK;
}

ek_status ek_calibrate_links(ek_calibration *c, double budget_s)
{
    links l = {.c = c, .start = ek_clock_ns()};
    ek_status st = EK_OK;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY_OUT(ek_agree(c->world, "measure messages", links_open(&l, budget_s)));
    EK_TRY_OUT(measure_all(&l, budget_s));
out:
    links_close(&l);
    return st;
}
