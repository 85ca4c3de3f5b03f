/* Memory and traffic of ZeRO stages: the bytes that a rank keeps and sends, and the overlap of
 * communication with computation. */
#include "model/hf/names.h"
#include "train_ranks.h"

/* Sizes that ranks divide and that fill cache lines: what is kept is what the formulas say. */
enum { D = 64, LAYERS = 4, EXPERTS = 4, FF = 32, EVEN_VOCAB = 128 };

static ek_model_spec even_spec(void)
{
    ek_model_spec s = odd_spec();

    s.vocab = EVEN_VOCAB;
    s.hidden = D;
    s.layers = LAYERS;
    s.head_dim = 16;
    s.experts = EXPERTS;
    s.ff = FF;
    return s;
}

/* Elements of a layer's attention, experts and the rest, of the layer, of both ends, of the model;
 * and of all matrices of products. */
static const double attention = 3.0 * D * D, experts = 3.0 * EXPERTS * D * FF,
                    small = 2.0 * D + EXPERTS * D, per_layer = attention + experts + small,
                    ends = 2.0 * EVEN_VOCAB * D + D, all = LAYERS * per_layer + ends,
                    products = LAYERS * (attention + experts) + 1.0 * EVEN_VOCAB * D;

/* Bytes of the model's arena over all ranks together. */
static double held(const job *j)
{
    rank ranks[RANKS_MAX];
    double sum = 0;

    run(j, ranks);
    for (int i = 0; i < j->ranks; i++)
        sum += ranks[i].m != NULL ? (double)ranks[i].m->arena.bytes : 0;
    close_ranks(ranks, j->ranks);
    return sum;
}

static void check_near(const char *what, int zero, double got, double want, double bound)
{
    if (!(fabs(got / want - 1) < bound))
        EK_T_FAIL("%s, zero %d: %.0f, expected %.0f", what, zero, got, want);
}

/* Where kernels read masters: two layers at a time, and both ends, of what is cut away. */
static void memory_of_masters(void)
{
    const double n = 3, turns = 2 * per_layer + ends;
    const double want[] = {n * 4 * all, n * 2 * all + 2 * all, n * (all + turns) + 3 * all,
                           n * 2 * turns + 4 * all};
    job j = {.spec = even_spec(), .mode = EK_MODE_FP64, .ranks = 3, .idle = 1};

    for (j.zero = 0; j.zero <= 3; j.zero++)
        check_near("fp64 bytes", j.zero, held(&j), 8 * want[j.zero], 0.005);
}

/* Where kernels read packed forms, one of 2 bytes an element here: no whole master of those, but
 * one or two units on their way, and one layer's forms. */
static void memory_of_packed_forms(void)
{
    const double n = 3, turns = 2 * per_layer + ends, staged = experts + attention;
    const double packed = attention + experts + 1.0 * EVEN_VOCAB * D; /* of a layer and the head */
    const double read = 2 * small + 1.0 * EVEN_VOCAB * D + D;
    const double want[] = {n * (16 * all + 2 * products),
                           n * (4 * (all - products) + 4 * all + 2 * products + 4 * staged) +
                               4 * products + 8 * all,
                           n * (4 * (all - products) + 4 * turns + 2 * products + 4 * staged) +
                               4 * products + 12 * all,
                           n * (4 * turns + 4 * read + 4 * packed + 4 * packed) + 16 * all};
    job j = {.spec = even_spec(), .mode = EK_MODE_BF16, .ranks = 3, .idle = 1};

    for (j.zero = 0; j.zero <= 3; j.zero++)
        check_near("bf16 bytes", j.zero, held(&j), want[j.zero], 0.005);
}

/* A collective of n elements sends (ranks - 1) n over all ranks, an all-reduce twice that.  ZeRO 3
 * gathers a layer for each forward and backward of a micro-batch, but where two are still there.
 * A little more is sent: the counts of routing, the norm. */
static void bytes_moved(void)
{
    const double turns = LAYERS + (2 * MICROS - 1) * (LAYERS - 2);
    const double want[] = {2 * all, 2 * all, (MICROS + 1) * all,
                           MICROS * all + turns * per_layer + ends};
    job j = {.spec = even_spec(), .mode = EK_MODE_FP64, .ranks = 3};

    for (j.zero = 0; j.zero <= 3; j.zero++) {
        rank ranks[RANKS_MAX];
        double sum = 0;

        run(&j, ranks);
        for (int i = 0; i < j.ranks; i++)
            sum += (double)ranks[i].sent;
        check_near("bytes sent", j.zero, sum, 8.0 * (j.ranks - 1) * want[j.zero], 0.02);
        close_ranks(ranks, j.ranks);
    }
}

/* Ranges of ranks are as even as rows allow, disjoint and complete. */
static void runs_are_even(void)
{
    for (int n = 2; n <= 4; n++) {
        job j = {.spec = even_spec(), .mode = EK_MODE_FP64, .ranks = n, .zero = 3, .idle = 1};
        rank ranks[RANKS_MAX];
        int64_t sum = 0;

        run(&j, ranks);
        for (int i = 0; i < n && ready(ranks, n); i++) {
            double mine = (double)ranks[i].m->n_elements;

            CHECK_INT(ek_hf_elements(&ranks[i].m->spec), (int64_t)all);
            CHECK(fabs(mine * n / all - 1) < 0.02);
            sum += ranks[i].m->n_elements;
        }
        CHECK_INT(sum, (int64_t)all);
        close_ranks(ranks, n);
    }
}

/* --- overlap ---------------------------------------------------------------------------------- */

/* The first op at or after `from` of this name and layer; -1: none. */
static int32_t find(const ek_graph *g, ek_op_kind kind, int32_t layer, int32_t from)
{
    for (int32_t i = from; i < g->n_ops; i++)
        if (g->ops[i].layer == layer && g->ops[i].kind == kind)
            return i;
    return -1;
}

/* The latest op that op i waits for. */
static int32_t latest_dep(const ek_graph *g, int32_t i)
{
    int32_t latest = -1;

    for (int32_t d = 0; d < g->ops[i].n_deps; d++)
        if (g->deps[g->ops[i].dep + d] > latest)
            latest = g->deps[g->ops[i].dep + d];
    return latest;
}

/* The first op that waits for op i. */
static int32_t first_waiting(const ek_graph *g, int32_t i)
{
    for (int32_t j = i + 1; j < g->n_ops; j++)
        for (int32_t d = 0; d < g->ops[j].n_deps; d++)
            if (g->deps[g->ops[j].dep + d] == i)
                return j;
    return -1;
}

/* A layer, used from op `use` on, is gathered by ops from `from` on, all before op `under`, which
 * they do not wait for. */
static void check_gathered(const ek_graph *g, int32_t l, int32_t from, int32_t under, int32_t use)
{
    int n = 0;

    for (int32_t i = find(g, EK_OP_GATHER_WEIGHTS, l, from); i >= 0 && i < use; n++) {
        CHECK(i < under && latest_dep(g, i) < under);
        i = find(g, EK_OP_GATHER_WEIGHTS, l, i + 1);
    }
    CHECK(n > 0);
}

/* Forward and backward gather a layer under the one before it. */
static void gathers_are_prefetched(void)
{
    const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_BF16};

    for (int i = 0; i < 2; i++) {
        job j = {.spec = even_spec(), .mode = modes[i], .ranks = 2, .zero = 3};
        rank ranks[RANKS_MAX];
        const ek_graph *g = &ranks[0].graph;
        int32_t back;

        run(&j, ranks);
        for (int32_t l = 0; l + 1 < LAYERS; l++)
            check_gathered(g, l + 1, 0, find(g, EK_OP_NORM, l, 0), find(g, EK_OP_NORM, l + 1, 0));
        back = find(g, EK_OP_CROSS_ENTROPY, -1, 0);
        for (int32_t l = LAYERS - 1; l >= 2; l--)
            check_gathered(g, l - 2, back, find(g, EK_OP_UNPERMUTE_BACKWARD, l - 1, back),
                           find(g, EK_OP_UNPERMUTE_BACKWARD, l - 2, back));
        close_ranks(ranks, j.ranks);
    }
}

/* Nothing waits for a layer's gradients to be reduced before the layer below has gone back. */
static void reductions_hide(void)
{
    for (int zero = 0; zero <= 3; zero++) {
        job j = {.spec = even_spec(), .mode = EK_MODE_FP64, .ranks = 2, .zero = zero};
        rank ranks[RANKS_MAX];
        const ek_graph *g = &ranks[0].graph;

        run(&j, ranks);
        for (int32_t l = LAYERS - 1; l >= 1; l--) {
            int32_t reduce = find(g, EK_OP_REDUCE_GRADIENTS, l, 0);

            CHECK(reduce >= 0 &&
                  latest_dep(g, reduce) < find(g, EK_OP_UNPERMUTE_BACKWARD, l - 1, reduce));
            CHECK(first_waiting(g, reduce) > find(g, EK_OP_QKV_BACKWARD, l - 1, reduce));
        }
        close_ranks(ranks, j.ranks);
    }
}

static const ek_case cases[] = {
    EK_CASE(memory_of_masters), EK_CASE(memory_of_packed_forms), EK_CASE(bytes_moved),
    EK_CASE(runs_are_even),     EK_CASE(gathers_are_prefetched), EK_CASE(reductions_hide),
};

EK_TEST_MAIN(cases)
