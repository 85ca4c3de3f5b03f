/* Chains of copies, expert after expert. */
#include "sim/copy_sums.h"

#include <math.h>
#include <string.h>

/* The two matrices of an expert are messages of their own. */
enum { MATRICES = 2 };

typedef struct {
    const ek_copy_sums_config *cfg;
    const ek_plan *p;
    const ek_cluster *links;      /* gaps of messages are no gradients: without them */
    ek_copy_messages *sent, *got; /* [ranks] */
    int32_t *passed;              /* [ranks, ranks] from one to another */
    ek_copy_traffic *out;
} counting;

ek_net_traffic ek_copy_messages_traffic(const ek_copy_messages *m, double gradient)
{
    ek_net_traffic t;

    for (int l = 0; l < EK_CLUSTER_LEVELS; l++) {
        t.bytes[l] = m->gradients[l] * gradient;
        t.messages[l] = (double)m->gradients[l] * MATRICES;
        t.largest[l] = m->largest[l] * gradient;
    }
    return t;
}

/* Whether a rank has a persistent copy, and (serving) one that has served.  Rows of transient
 * copies are the primary's. */
static int has_copy(const counting *x, int32_t rank, int32_t expert, int serving)
{
    const ek_placement *at = &x->p->placement;
    int32_t first = rank * at->slots;

    for (int32_t s = first; s < first + x->cfg->states; s++)
        if (at->expert_of[s] == expert && (!serving || x->cfg->all_serve || x->p->quota[s] > 0))
            return 1;
    for (int32_t s = 0; serving && at->primary[expert] / at->slots == rank &&
                        s < at->ranks * at->slots && !x->cfg->all_serve;
         s++)
        if (s % at->slots >= x->cfg->states && at->expert_of[s] == expert && x->p->quota[s] > 0)
            return 1;
    return 0;
}

static int32_t count_copies(const counting *x, int32_t expert, int serving)
{
    int32_t n = 0;

    for (int32_t r = 0; r < x->p->placement.ranks; r++)
        n += has_copy(x, r, expert, serving);
    return n;
}

/* The rank that gets the sum. */
static int32_t root_of(const counting *x, int32_t expert)
{
    const ek_placement *at = &x->p->placement;
    int32_t primary = at->primary[expert] / at->slots;

    for (int32_t r = 0; r < at->ranks && !has_copy(x, primary, expert, 1); r++)
        if (has_copy(x, r, expert, 1))
            return r;
    return primary;
}

static void add_message(const counting *x, int32_t from, int32_t to)
{
    int l = ek_cluster_level_between(x->cfg->cluster, (int64_t)from * x->cfg->etp,
                                     (int64_t)to * x->cfg->etp);
    int32_t passed = ++x->passed[from * x->p->placement.ranks + to];
    ek_copy_messages *of[] = {&x->sent[from], &x->got[to]};
    ek_net_traffic *all = &x->out->all;

    for (int i = 0; i < 2; i++) {
        of[i]->gradients[l]++;
        of[i]->largest[l] = passed > of[i]->largest[l] ? passed : of[i]->largest[l];
    }
    all->bytes[l] += 1;
    all->messages[l] += MATRICES;
    all->largest[l] = fmax(all->largest[l], passed);
}

/* The chain of an expert's copies, or of those that have served: the rank that follows another, or
 * -1; the first follows the root. */
static int32_t next_of(const counting *x, int32_t expert, int to_root, int32_t root, int32_t last)
{
    for (int32_t r = last == root ? 0 : last + 1; r < x->p->placement.ranks; r++)
        if (r != root && has_copy(x, r, expert, to_root))
            return r;
    return -1;
}

/* Without rows there is no gradient. */
static int has_messages(const counting *x, int32_t expert, int to_root)
{
    return count_copies(x, expert, 1) > to_root;
}

static void add_chain(const counting *x, int32_t expert, int to_root)
{
    int32_t root = root_of(x, expert), last = root, r;

    while ((r = next_of(x, expert, to_root, root, last)) >= 0) {
        add_message(x, to_root ? r : last, to_root ? last : r);
        last = r;
    }
}

/* Finds the busiest rank, and what others take of its time. */
static void compare_ranks(const counting *x, double *factor)
{
    double most = 0;

    for (int32_t r = 0; r < x->p->placement.ranks; r++) {
        ek_net_traffic up = ek_copy_messages_traffic(&x->sent[r], 1);
        ek_net_traffic down = ek_copy_messages_traffic(&x->got[r], 1);
        double sent = ek_price_traffic(x->links, &up).wire_s;
        double got = ek_price_traffic(x->links, &down).wire_s;

        factor[r] = fmax(sent, got);
        if (factor[r] <= most)
            continue;
        most = factor[r];
        x->out->busiest = sent >= got ? up : down;
    }
    for (int32_t r = 0; r < x->p->placement.ranks; r++)
        factor[r] = most > 0 ? factor[r] / most : 0;
}

static void count(counting *x, int to_root, double *factor)
{
    size_t ranks = (size_t)x->p->placement.ranks;

    memset(x->sent, 0, 2 * ranks * sizeof(*x->sent));
    memset(x->passed, 0, ranks * ranks * sizeof(*x->passed));
    *x->out = (ek_copy_traffic){.sent = x->sent, .got = x->got};
    for (int32_t e = 0; e < x->p->placement.experts; e++)
        if (has_messages(x, e, to_root))
            add_chain(x, e, to_root);
    compare_ranks(x, factor);
}

void ek_copy_sums_lists(const ek_copy_sums_config *cfg, const ek_plan *p, int to_root,
                        int32_t *lists)
{
    counting x = {.cfg = cfg, .p = p};
    int32_t ranks = p->placement.ranks;

    memset(lists, 0xff, (size_t)p->placement.experts * (size_t)ranks * sizeof(*lists));
    for (int32_t e = 0; e < p->placement.experts; e++) {
        int32_t *list = lists + (int64_t)e * ranks, root = root_of(&x, e), last = root;

        if (!has_messages(&x, e, to_root) || next_of(&x, e, to_root, root, root) < 0)
            continue;
        for (*list = root; (last = next_of(&x, e, to_root, root, last)) >= 0; *list = last)
            list++;
    }
}

void ek_copy_sums_of(const ek_copy_sums_config *cfg, const ek_plan *p,
                     const ek_copy_results *by_rank, int32_t *passed, ek_copy_sums *out)
{
    int32_t ranks = p->placement.ranks;
    ek_cluster links = *cfg->cluster;
    counting x = {.cfg = cfg,
                  .p = p,
                  .links = &links,
                  .sent = by_rank->messages,
                  .got = by_rank->messages + ranks,
                  .passed = passed,
                  .out = &out->to_sum};

    for (int l = 0; l < links.n_levels; l++)
        links.level[l].gap_s = 0;
    count(&x, 1, by_rank->to_sum);
    x.sent += 2 * ranks;
    x.got += 2 * ranks;
    x.out = &out->of_sum;
    count(&x, 0, by_rank->of_sum);
}
