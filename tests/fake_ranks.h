/* fake_ranks.h - drawn layouts of which each rank is laid out, and its first step built, alone. */
#ifndef FAKE_RANKS_H
#define FAKE_RANKS_H

#include "comm/fake.h"
#include "equal_threads.h"

/* Builds the first step of a rank that is alone, shows its graph, and sets out->memory. */
static inline ek_status fake_build(const equal_layout *l, int rank,
                                   void (*show)(const ek_graph *g, equal_result *out),
                                   equal_result *out)
{
    ek_mesh_sizes sizes = {l->pp, l->tp, l->ep, l->etp};
    ek_trainer_config cfg = equal_config(l);
    equal_model_settings settings;
    ek_comm *world = NULL;
    ek_kernels *k = NULL;
    ek_mesh *mesh = NULL;
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_graph *g;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_kernels_create(l->mode, ek_cpu_isa(), 1, &k));
    EK_TRY_OUT(ek_fake_open(rank, l->ranks, &world));
    equal_set_nodes(world, l);
    EK_TRY_OUT(ek_mesh_open(world, &sizes, &mesh));
    equal_set_model(&settings, l, mesh);
    settings.config.never_touched = 1;
    EK_TRY_OUT(ek_model_create(&settings.spec, k, &settings.config, &m));
    EK_TRY_OUT(ek_trainer_create(m, &cfg, &tr));
    EK_TRY_OUT(equal_set_step(tr, l, 0));
    equal_tokens(tr, 0, cfg.seq, settings.spec.vocab); /* FLOPs depend on where documents end */
    EK_TRY_OUT(ek_trainer_build_step(tr, &g));
    show(g, out);
    out->memory = equal_memory(m, &cfg);
out:
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_mesh_close(&mesh);
    ek_comm_close(&world);
    ek_kernels_destroy(&k);
    return st;
}

/* The i-th layout: one in four with experts on disk, one with one of the planners of users; of the
 * others those with ZeRO on several nodes have partners. */
static inline equal_layout fake_draw(int ranks, int i)
{
    equal_layout l = equal_draw((uint64_t)equal_number("EK_TEST_SEED", 1), ranks, i);
    int drawn = l.balance, turn = i / 4;

    l.blind = 1;
    if (i % 4 == 1)
        l.balance = EQUAL_DRAWN + (turn + ranks) % (EQUAL_PLANNERS - EQUAL_DRAWN);
    if (!equal_legal(&l))
        l.balance = drawn;
    l.partners = i % 4 != 3 && l.zero > 0 && l.nodes != EQUAL_ONE_NODE;
    if (i % 4 == 3) {
        l.degree = 1;
        l.group = l.gather = 0;
        l.balance = turn % 2 ? EQUAL_EXACT : 0;
        l.entries = 3 + turn % 5;
        l.forms = turn % 4 * 5;
        l.offload = 1 + turn % 2;
    }
    return l;
}

#endif
