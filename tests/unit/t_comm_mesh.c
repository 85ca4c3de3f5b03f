/* The groups of a layout, for every factorisation of up to 12 ranks, and errors. */
#include "comm/mesh.h"
#include "ek_test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { RANKS_MAX = 12 };

typedef struct {
    ek_comm *world;
    ek_mesh_sizes sizes;
    pthread_t thread;
    int failed;
} worker;

static _Thread_local worker *me;

#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            me->failed++;                                                                          \
            fprintf(stderr, "%s:%d: failed: %s (rank %d of %d, pp %d tp %d ep %d etp %d)\n",       \
                    __FILE__, __LINE__, #cond, ek_comm_rank(me->world), ek_comm_size(me->world),   \
                    me->sizes.pp, me->sizes.tp, me->sizes.ep, me->sizes.etp);                      \
        }                                                                                          \
    } while (0)

/* Checks the members of a group by sums over them (count, world ranks, squares of world ranks), and
 * that the caller's rank in it is `at`. */
static void check_group(ek_comm *c, int size, int at, int first, int stride, const char *name)
{
    int rank = ek_comm_rank(me->world);
    int64_t got[3] = {1, rank, rank * rank}, want[3] = {size, 0, 0};
    ek_coll *op = NULL;
    char text[64];

    EXPECT(c != NULL);
    for (int i = 0; i < size; i++) {
        want[1] += first + i * stride;
        want[2] += (first + i * stride) * (first + i * stride);
    }
    EXPECT(ek_comm_size(c) == size && ek_comm_rank(c) == at);
    snprintf(text, sizeof(text), "send on %s: -1 bytes", name);
    EXPECT(ek_comm_send(c, NULL, -1, 0, 0, &op) == EK_EINVAL);
    EXPECT(strcmp(ek_err_message(), text) == 0);
    EXPECT(ek_comm_all_reduce(c, got, 3, EK_SUM_I64, &op) == EK_OK);
    EXPECT(ek_coll_wait(&op) == EK_OK);
    EXPECT(memcmp(got, want, sizeof(got)) == 0);
}

static void check_mesh(const ek_mesh *m)
{
    int start = m->pp_rank * m->stage_size, experts = m->ep * m->etp;

    EXPECT(m->pp * m->dp * m->tp == m->size && m->pp * m->edp * m->ep * m->etp == m->size);
    EXPECT(m->rank == m->pp_rank * m->stage_size + m->at && m->stage_size * m->pp == m->size);
    EXPECT(m->at == m->dp_rank * m->tp + m->tp_rank);
    EXPECT(m->at == (m->edp_rank * m->ep + m->ep_rank) * m->etp + m->etp_rank);
    EXPECT(m->tp_rank < m->tp && m->dp_rank < m->dp && m->etp_rank < m->etp && m->ep_rank < m->ep);
    EXPECT(m->edp_rank < m->edp && m->pp_rank < m->pp);
    check_group(m->stage, m->stage_size, m->at, start, 1, "stage");
    check_group(m->tp_group, m->tp, m->tp_rank, start + m->dp_rank * m->tp, 1, "tp");
    check_group(m->dp_group, m->dp, m->dp_rank, start + m->tp_rank, m->tp, "dp");
    check_group(m->edp_group, m->edp, m->edp_rank, start + m->at % experts, experts, "edp");
    check_group(m->pipe, m->pp, m->pp_rank, m->at, m->stage_size, "pipe");
    if (m->pp > 1 && (m->pp_rank == 0 || m->pp_rank == m->pp - 1))
        check_group(m->ends, 2, m->pp_rank > 0, m->at, (m->pp - 1) * m->stage_size, "ends");
    else
        EXPECT(m->ends == NULL);
}

static void *work(void *arg)
{
    ek_mesh *m = NULL;

    me = arg;
    EXPECT(ek_mesh_open(me->world, &me->sizes, &m) == EK_OK);
    if (m != NULL)
        check_mesh(m);
    ek_mesh_close(&m);
    EXPECT(m == NULL);
    ek_comm_close(&me->world);
    return NULL;
}

static void one_layout(int ranks, ek_mesh_sizes sizes)
{
    ek_comm *worlds[RANKS_MAX];
    worker w[RANKS_MAX];

    CHECK(ek_comm_open_threads(ranks, worlds) == EK_OK);
    for (int r = 0; r < ranks; r++) {
        w[r] = (worker){.world = worlds[r], .sizes = sizes};
        CHECK_INT(pthread_create(&w[r].thread, NULL, work, &w[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(w[r].thread, NULL);
        ek_t.failed += w[r].failed;
    }
}

/* ek_mesh_check accepts exactly the sizes that divide, and these open. */
static void factorisations(void)
{
    int opened = 0;

    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int pp = 0; pp <= ranks; pp++)
            for (int tp = 0; tp <= ranks; tp++)
                for (int ep = 0; ep <= ranks; ep++)
                    for (int etp = 0; etp <= ranks; etp++) {
                        ek_mesh_sizes s = {.pp = pp, .tp = tp, .ep = ep, .etp = etp};
                        int p = pp + !pp, t = tp + !tp, e = (ep + !ep) * (etp + !etp);
                        int legal = ranks % (p * t) == 0 && ranks % (p * e) == 0;

                        CHECK_INT(ek_mesh_check(&s, ranks) == EK_OK, legal);
                        if (!legal || pp == 0 || tp == 0 || ep == 0 || etp == 0)
                            continue;
                        one_layout(ranks, s);
                        opened++;
                    }
    CHECK(opened > 200);
}

static void zeros(void)
{
    one_layout(6, (ek_mesh_sizes){0, 0, 0, 0});
    one_layout(6, (ek_mesh_sizes){.ep = 3});
}

static void refused(int ranks, ek_mesh_sizes sizes, const char *says)
{
    CHECK(ek_mesh_check(&sizes, ranks) == EK_EINVAL);
    if (strstr(ek_err_message(), says) == NULL)
        EK_T_FAIL("the message is \"%s\", expected \"%s\"", ek_err_message(), says);
}

static void messages(void)
{
    refused(4, (ek_mesh_sizes){.pp = 3}, "--pp 3 does not divide the 4 ranks there are: 1, 2 or 4");
    refused(1, (ek_mesh_sizes){.tp = 2},
            "--tp 2 does not divide the 1 rank of a pipeline stage: 1");
    refused(12, (ek_mesh_sizes){.pp = 2, .tp = 4},
            "--tp 4 does not divide the 6 ranks of a pipeline stage: 1, 2, 3 or 6 would");
    refused(12, (ek_mesh_sizes){.etp = 5}, "--etp 5 does not divide the 12 ranks");
    refused(12, (ek_mesh_sizes){.ep = 4, .etp = 2},
            "--ep 4 does not divide the 6 that --etp 2 leaves of the 12 ranks of a stage: 1, 2, 3");
    refused(4, (ek_mesh_sizes){.ep = -1}, "--ep -1 is not a number of ranks: 1, 2 or 4 would fit");
}

/* Elastic worlds: ek_mesh_fit changes only ep. */
static void fitting(void)
{
    for (int pp = 1; pp <= 3; pp++)
        for (int tp = 1; tp <= 4; tp++)
            for (int etp = 1; etp <= 4; etp++) {
                ek_mesh_sizes given = {pp, tp, 1, etp};
                int unit = ek_mesh_rank_multiple(&given);

                CHECK(unit % (pp * tp) == 0 && unit % (pp * etp) == 0 && unit <= pp * tp * etp);
                for (int n = 1; n < unit; n++)
                    CHECK_INT(ek_mesh_check(&given, n), EK_EINVAL);
                for (int ranks = unit; ranks <= 8 * unit; ranks += unit)
                    for (int ep = 0; ep <= 9; ep++) {
                        ek_mesh_sizes s = {pp, tp, ep, etp};
                        int most = ranks / pp / etp;

                        ek_mesh_fit(&s, ranks);
                        CHECK_INT(ek_mesh_check(&s, ranks), EK_OK);
                        CHECK(s.ep >= ep || s.ep == most);
                        for (int less = ep > 1 ? ep : 1; less < s.ep; less++)
                            CHECK(most % less != 0);
                    }
            }
}

static int ranks_on(int slots, int ep)
{
    return ek_mesh_elastic_ranks(&(ek_mesh_sizes){.ep = ep}, slots);
}

/* As many slots as possible are used, and ep is limited. */
static void idle_slots(void)
{
    CHECK_INT(ranks_on(7, 4), 7);
    CHECK_INT(ranks_on(13, 2), 13);
    CHECK_INT(ranks_on(17, 1), 17);
    CHECK_INT(ranks_on(17, 2), 16);
    CHECK_INT(ranks_on(37, 8), 36); /* 37 is a prime: ep 9 */
    CHECK_INT(ranks_on(31, 8), 31);
    CHECK_INT(ranks_on(8 * 1021, 64), 8165); /* 5 * 23 * 71 */
    CHECK_INT(ranks_on(1021, 400), 1020);
    CHECK_INT(ranks_on(1021, 600), 1021); /* without spare slots */
    CHECK_INT(ek_mesh_elastic_ranks(&(ek_mesh_sizes){2, 2, 4, 1}, 3), 0);
    CHECK_INT(ek_mesh_elastic_ranks(&(ek_mesh_sizes){2, 2, 4, 1}, 71), 64); /* 34 a stage: ep 17 */
    for (int ep = 1; ep <= 9; ep++)
        for (int slots = 1; slots <= 300; slots++) {
            ek_mesh_sizes s = {.ep = ep};
            int n = ranks_on(slots, ep), most = 4 * ep > 16 ? 4 * ep : 16;

            CHECK(n > 0 && n <= slots && slots - n < ep);
            ek_mesh_fit(&s, n);
            CHECK(s.ep <= most);
            for (int more = n + 1; more <= slots; more++) {
                s.ep = ep;
                ek_mesh_fit(&s, more);
                CHECK(s.ep > most);
            }
        }
}

static const ek_case cases[] = {
    EK_CASE(factorisations), EK_CASE(idle_slots), EK_CASE(fitting),
    EK_CASE(zeros),          EK_CASE(messages),
};

EK_TEST_MAIN(cases)
