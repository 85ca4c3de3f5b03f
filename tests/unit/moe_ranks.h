/* moe_ranks.h - shared by tests that compare a distributed MoE layer, whose ranks are threads, with
 * the same layer on one rank.
 *
 * A scenario defines model, inputs and parallel layout.  Every rank runs two steps of two
 * micro-batches, all forwards before the backwards; inputs and weights depend on their global index
 * alone.  The results of all ranks are merged and compared. */
#ifndef MOE_RANKS_H
#define MOE_RANKS_H

#include "base/random.h"
#include "ek_test.h"
#include "exec/exec.h"
#include "moe/gate.h"
#include "moe/moe.h"
#include "tensor/select/select.h"

#include <pthread.h>

enum { RANKS_MAX = 6, MICROS = 2, ARENA = 64 << 20 };

typedef struct layer layer;

/* Model, inputs and parallel layout. */
typedef struct {
    ek_model_spec spec;
    int64_t seq, seqs[MICROS];
    double capacity_factor;
    int64_t top_k;
    int collapse;  /* all tokens select one expert */
    int recompute; /* forward is recomputed before backward */
    ek_mode mode;
    ek_isa isa;

    int ranks;
    ek_mesh_sizes sizes;
    ek_moe_config cfg;
    int32_t spare_slots;
    void (*look)(const layer *l, int turn); /* called after each step of a rank; may be NULL */
    ek_status (*wrap)(ek_comm *world);      /* changes a rank's transport; may be NULL */
} scenario;

/* Results of one rank, or their sum over ranks. */
typedef struct {
    double *x, *dy;             /* [tokens, d], zero but for its own rows */
    double *router, *up, *down; /* gradients, [experts, ...] in full */
    int32_t *ids;               /* [tokens, cols] */
    double aux, z, rank_max, primary_max;
    ek_roofline_counts work;
    double saved_rows;
    int64_t replicas, dropped, load[EK_GATE_EXPERTS_MAX];
    int64_t bytes, held; /* sent in the second step; expert parameters held */
} result;

typedef struct {
    const scenario *s;
    ek_comm *world; /* NULL: one rank */
    result out;
    int failed;
} rank;

static int64_t tokens_of(const scenario *s)
{
    return (s->seqs[0] + s->seqs[1]) * s->seq;
}

static inline double *numbers(int64_t n)
{
    return calloc((size_t)(n > 0 ? n : 1), sizeof(double));
}

static inline double value(uint64_t stream, int64_t i)
{
    return ek_random_normal(11, stream, (uint64_t)i);
}

static inline void make(const scenario *s, result *r)
{
    int64_t n = tokens_of(s), d = s->spec.hidden, f = s->spec.ff, e = s->spec.experts;

    r->x = numbers(n * d);
    r->dy = numbers(n * d);
    r->router = numbers(e * d);
    r->up = numbers(e * 2 * f * d);
    r->down = numbers(e * d * f);
    r->ids = calloc((size_t)(n * ek_moe_cols(&s->spec)), sizeof(*r->ids));
}

static inline void drop(result *r)
{
    free(r->x);
    free(r->dy);
    free(r->router);
    free(r->up);
    free(r->down);
    free(r->ids);
}

/* --- one rank --------------------------------------------------------------------------------- */

struct layer {
    rank *me;
    const scenario *s;
    ek_arena arena;
    ek_kernels *k;
    ek_mesh *opened;
    const ek_mesh *mesh;
    ek_exec *exec;
    ek_graph graph;
    ek_moe_weights w;
    ek_moe_scratch scratch;
    ek_moe_planning planning;
    ek_moe_step step;
    ek_micro micro[MICROS];
    int64_t row[MICROS]; /* global index of this rank's first token */
    int32_t act_slot_of[MICROS];
    ek_moe m;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != EK_OK) {                                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ek_err_message());                  \
            l->me->failed = 1;                                                                     \
        }                                                                                          \
    } while (0)

static inline void put(const ek_kernels *k, void *array, int64_t i, double x)
{
    if (k->real == EK_F64)
        ((double *)array)[i] = x;
    else
        ((float *)array)[i] = (float)x;
}

static inline double get(const ek_kernels *k, const void *array, int64_t i)
{
    return k->real == EK_F64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

static inline void *take_real(layer *l, int64_t n)
{
    return ek_arena_alloc(&l->arena, n, ek_dtype_size(l->k->real));
}

static inline void take_weight(layer *l, ek_weight *w, int64_t out, int64_t in)
{
    *w = (ek_weight){.out = out, .in = in};
    w->p = take_real(l, out * in);
    w->g = take_real(l, out * in);
    l->me->out.held += out * in;
}

/* The packed weight that a product reads. */
static inline void *packed(layer *l, const ek_weight *w, ek_form form)
{
    size_t bytes = l->k->packed_bytes(l->k, w->out, w->in, form);
    void *to = bytes == 0 ? w->p : ek_arena_alloc(&l->arena, (int64_t)bytes, 1);

    if (bytes > 0)
        MUST(l->k->pack(l->k, w->out, w->in, form, w->p, to));
    return to;
}

static inline void pack(layer *l, ek_weight *w)
{
    w->forward = packed(l, w, EK_PACKED_FORWARD);
    w->backward = packed(l, w, EK_PACKED_BACKWARD);
}

/* This rank's slice of an expert: rows of gate and up, columns of down. */
static inline void take_expert(layer *l, int32_t e)
{
    int64_t d = l->s->spec.hidden, ff = l->s->spec.ff, f = l->w.ff;
    int64_t first = ek_range_first(ff, l->mesh->etp, l->mesh->etp_rank);

    take_weight(l, &l->w.up[e], 2 * f, d);
    take_weight(l, &l->w.down[e], d, f);
    for (int64_t i = 0; i < f; i++)
        for (int64_t j = 0; j < d; j++) {
            int64_t row = e * 2 * ff + first + i;

            put(l->k, l->w.up[e].p, i * d + j, value(1, row * d + j));
            put(l->k, l->w.up[e].p, (f + i) * d + j, value(1, (row + ff) * d + j));
            put(l->k, l->w.down[e].p, j * f + i, value(2, (e * d + j) * ff + first + i));
        }
    pack(l, &l->w.up[e]);
    pack(l, &l->w.down[e]);
}

static inline void take_weights(layer *l)
{
    int64_t d = l->s->spec.hidden, experts = l->s->spec.experts;
    int32_t first;

    ek_moe_reserve_weights(&l->w, &l->arena, &l->s->spec, l->mesh, l->s->spare_slots, 0, NULL);
    MUST(ek_placement_check(&l->w.placement));
    take_weight(l, &l->w.router, experts, d);
    l->me->out.held = 0;
    if (l->s->spec.gate.kind == EK_GATE_SIGMOID_BIAS)
        l->w.bias.p = take_real(l, experts);
    for (int64_t i = 0; i < experts * d; i++)
        put(l->k, l->w.router.p, i, value(3, i) * (l->s->collapse ? 1e-3 : 1));
    for (int64_t j = 0; j < d && l->s->collapse; j++) /* y[0] is large and positive */
        put(l->k, l->w.router.p, 2 % experts * d + j, j == 0 ? 50 : 0);
    l->w.up = ek_arena_alloc(&l->arena, experts, sizeof(*l->w.up));
    l->w.down = ek_arena_alloc(&l->arena, experts, sizeof(*l->w.down));
    first = ek_moe_first_slot(&l->w, l->mesh);
    for (int32_t i = 0; i < l->w.placement.slots; i++)
        if (l->w.placement.expert_of[first + i] >= 0)
            take_expert(l, l->w.placement.expert_of[first + i]);
}

static inline void set_micros(layer *l)
{
    const ek_mesh *mesh = l->mesh;
    int64_t before = 0, seq = l->s->seq, all = l->s->seqs[0] + l->s->seqs[1];

    for (int i = 0; i < MICROS; i++) {
        ek_micro *mb = &l->micro[i];
        int64_t first = ek_range_first(l->s->seqs[i], mesh->dp, mesh->dp_rank);

        *mb = ek_micro_alone(ek_range_length(l->s->seqs[i], mesh->dp, mesh->dp_rank), seq,
                             (double)l->s->seqs[i] / (double)all, (uint64_t)(before + first), NULL,
                             NULL);
        mb->first = ek_range_first(mb->all, mesh->tp, mesh->tp_rank);
        mb->n = ek_range_length(mb->all, mesh->tp, mesh->tp_rank);
        mb->total = l->s->seqs[i] * seq;
        mb->micro_first = (uint64_t)before;
        l->row[i] = (before + first) * seq + mb->first;
        l->act_slot_of[i] = MICROS - 1 - i;
        before += l->s->seqs[i];
    }
}

static inline void take_state(layer *l)
{
    int64_t n = 0, total = 0, all = 0, d = l->s->spec.hidden;
    ek_moe_limits room;

    for (int i = 0; i < MICROS; i++) {
        n = l->micro[i].n > n ? l->micro[i].n : n;
        all = l->micro[i].all > all ? l->micro[i].all : all;
        total = l->micro[i].total > total ? l->micro[i].total : total;
    }
    room = (ek_moe_limits){n, all, total, l->s->spare_slots};
    MUST(ek_moe_check_limits(&l->s->spec, l->mesh, &room));
    l->m = (ek_moe){.k = l->k,
                    .spec = &l->s->spec,
                    .mesh = l->mesh,
                    .cfg = &l->s->cfg,
                    .w = &l->w,
                    .step = &l->step,
                    .scratch = &l->scratch,
                    .planning = &l->planning,
                    .act_slot_of = l->act_slot_of};
    l->scratch.dx = take_real(l, n * d);
    ek_moe_reserve_scratch(&l->scratch, &l->arena, l->k, &l->s->spec, l->mesh, &l->s->cfg, &room,
                           1);
    ek_moe_reserve_planning(&l->planning, &l->arena, &l->s->spec, l->mesh, &l->s->cfg, &room);
    ek_moe_reserve_state(&l->m, &l->arena, l->s->seq, MICROS);
    ek_moe_reserve_replicas(&l->m, &l->arena, &room, MICROS, 1);
    for (int i = 0; i < MICROS; i++) {
        ek_moe_reserve_activations(&l->m, i, &l->arena, &room, 0);
        ek_moe_set_tokens(&l->m, i, take_real(l, n * d), take_real(l, n * d)); /* C fits in R */
    }
}

static inline void open_layer(layer *l, rank *me)
{
    ek_exec_config exec = {.inline_async = me->world != NULL && ek_comm_rank(me->world) % 2,
                           .watchdog_s = 20};
    int nodes[RANKS_MAX];

    memset(l, 0, sizeof(*l));
    l->me = me;
    l->s = me->s;
    l->mesh = &ek_mesh_one;
    if (me->world != NULL) {
        if (me->s->wrap != NULL)
            MUST(me->s->wrap(me->world));
        MUST(ek_mesh_open(me->world, &me->s->sizes, &l->opened));
        l->mesh = l->opened;
        for (int r = 0; r < RANKS_MAX; r++)
            nodes[r] = r / 2;
        ek_comm_set_nodes(l->mesh->stage, nodes);
    }
    MUST(ek_arena_init(&l->arena, ARENA, "a layer"));
    MUST(ek_kernels_create(l->s->mode, l->s->isa, 1, &l->k));
    MUST(ek_exec_create(&exec, &l->exec));
    ek_graph_init(&l->graph);
    take_weights(l);
    set_micros(l);
    take_state(l);
    MUST(ek_arena_check(&l->arena, "a layer"));
    l->step = (ek_moe_step){.training = 1,
                            .aux_coef = 0.3,
                            .z_coef = 0.2,
                            .capacity_factor = l->s->capacity_factor,
                            .top_k = l->s->top_k,
                            .seed = 5,
                            .step = 3,
                            .micro = l->micro};
}

static inline void close_layer(layer *l)
{
    ek_graph_fini(&l->graph);
    ek_exec_destroy(&l->exec);
    ek_kernels_destroy(&l->k);
    ek_arena_fini(&l->arena);
    ek_mesh_close(&l->opened);
}

static inline void run_graph(layer *l)
{
    MUST(ek_graph_check(&l->graph));
    MUST(ek_exec_run(l->exec, &l->graph));
    ek_graph_reset(&l->graph);
    ek_moe_begin_graph(&l->m);
}

/* Values of tokens [first, first + n), as R. */
static inline void fill(const layer *l, void *to, uint64_t stream, int64_t first, int64_t n)
{
    int64_t d = l->s->spec.hidden;

    for (int64_t i = 0; i < n * d; i++) {
        double x = value(stream, first * d + i);

        put(l->k, to, i, l->s->collapse && stream == 5 && i % d == 0 ? 1 + fabs(x) : x);
    }
}

/* The layer's input for a micro-batch: as C and, if that is another type, as R. */
static inline void fill_y(const layer *l, int32_t i)
{
    int64_t n = l->micro[i].n;

    fill(l, l->scratch.y_real, 5, l->row[i], n);
    l->k->to_comp(n, l->s->spec.hidden, l->scratch.y_real,
                  l->m.handles[l->act_slot_of[i]].activations.y);
}

static inline void copy_out(const layer *l, double *to, const void *from, int32_t i)
{
    int64_t d = l->s->spec.hidden;

    for (int64_t j = 0; j < l->micro[i].n * d; j++)
        to[l->row[i] * d + j] = get(l->k, from, j);
}

/* Both micro-batches forward, then each backward. */
static inline void run_step(layer *l)
{
    result *out = &l->me->out;

    ek_moe_begin_step(&l->m);
    for (int32_t i = 0; i < MICROS; i++) {
        fill(l, l->m.handles[l->act_slot_of[i]].activations.x, 4, l->row[i], l->micro[i].n);
        fill_y(l, i);
        ek_moe_build_forward(&l->m, &l->graph, i, l->micro[i].n, 0, -1);
        run_graph(l);
    }
    for (int32_t i = 0; i < MICROS; i++) {
        const ek_moe_activations *kept = &l->m.handles[l->act_slot_of[i]].activations;
        int64_t n = l->micro[i].n, cols = l->m.cols;
        int32_t dep = -1;

        copy_out(l, out->x, kept->x, i);
        memcpy(out->ids + l->row[i] * cols, kept->ids, (size_t)(n * cols) * sizeof(int32_t));
        fill(l, l->scratch.dx, 6, l->row[i], n);
        fill_y(l, i);
        if (l->s->recompute)
            dep = ek_moe_build_forward(&l->m, &l->graph, i, n, 1, -1);
        ek_moe_build_backward(&l->m, &l->graph, i, n, dep);
        run_graph(l);
        copy_out(l, out->dy, l->scratch.dy, i);
    }
}

/* Adds this rank's gradients to arrays over whole experts. */
static inline void collect(layer *l)
{
    int64_t d = l->s->spec.hidden, ff = l->s->spec.ff, f = l->w.ff, experts = l->s->spec.experts;
    int64_t first = ek_range_first(ff, l->mesh->etp, l->mesh->etp_rank);
    result *out = &l->me->out;

    for (int64_t i = 0; i < experts * d; i++)
        out->router[i] = get(l->k, l->w.router.g, i);
    for (int64_t e = 0; e < experts; e++) {
        const void *up = l->w.up[e].g, *down = l->w.down[e].g;

        for (int64_t i = 0; i < f && up != NULL; i++)
            for (int64_t j = 0; j < d; j++) {
                int64_t row = e * 2 * ff + first + i;

                out->up[row * d + j] = get(l->k, up, i * d + j);
                out->up[(row + ff) * d + j] = get(l->k, up, (f + i) * d + j);
                out->down[(e * d + j) * ff + first + i] = get(l->k, down, j * f + i);
            }
    }
    memcpy(out->load, l->m.stats.load, (size_t)experts * sizeof(*out->load));
    out->aux = l->m.stats.aux_loss;
    out->z = l->m.stats.z_loss;
    out->dropped = l->m.stats.dropped;
    out->rank_max = ek_moe_rank_balance(&l->m.stats, &l->m.x).max_over_mean;
    out->primary_max = ek_moe_primary_balance(&l->m.stats, &l->m.x).max_over_mean;
    out->work = l->m.stats.work;
    out->saved_rows = l->m.stats.saved_rows;
    out->replicas = l->m.stats.replicas;
}

static inline void clear_gradient(const layer *l, ek_weight *w)
{
    memset(w->g, 0, (size_t)ek_weight_elements(w) * ek_dtype_size(l->k->real));
}

static inline void clear_gradients(layer *l)
{
    clear_gradient(l, &l->w.router);
    for (int64_t e = 0; e < l->s->spec.experts; e++)
        if (l->w.up[e].g != NULL) {
            clear_gradient(l, &l->w.up[e]);
            clear_gradient(l, &l->w.down[e]);
        }
}

static inline void look(const layer *l, int turn)
{
    if (l->s->look != NULL && l->me->world != NULL)
        l->s->look(l, turn);
}

static inline void *run_rank(void *arg)
{
    rank *me = arg;
    layer *l = malloc(sizeof(*l));
    int64_t before;

    make(me->s, &me->out);
    open_layer(l, me);
    if (!me->failed)
        run_step(l);
    if (!me->failed) {
        look(l, 0);
        before = me->world != NULL ? ek_comm_bytes_sent(me->world) : 0;
        clear_gradients(l);
        l->step.step++;
        run_step(l);
        look(l, 1);
        me->out.bytes = me->world != NULL ? ek_comm_bytes_sent(me->world) - before : 0;
        collect(l);
    }
    close_layer(l);
    free(l);
    return NULL;
}

/* --- all ranks -------------------------------------------------------------------------------- */

static inline void add(double *sum, const double *one, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += one[i];
}

static inline void gather(const scenario *s, rank *all, result *sum)
{
    int64_t n = tokens_of(s), d = s->spec.hidden, f = s->spec.ff, e = s->spec.experts;

    for (int r = 0; r < s->ranks; r++) {
        const result *one = &all[r].out;

        add(sum->x, one->x, n * d);
        add(sum->dy, one->dy, n * d);
        add(sum->router, one->router, e * d);
        add(sum->up, one->up, e * 2 * f * d);
        add(sum->down, one->down, e * d * f);
        for (int64_t i = 0; i < n * ek_moe_cols(&s->spec); i++)
            sum->ids[i] += one->ids[i]; /* only one rank has the token */
        sum->bytes += one->bytes;
        sum->held += one->held;
        if (one->aux != all[0].out.aux || one->z != all[0].out.z ||
            one->dropped != all[0].out.dropped || one->rank_max != all[0].out.rank_max ||
            one->primary_max != all[0].out.primary_max ||
            one->saved_rows != all[0].out.saved_rows || one->replicas != all[0].out.replicas ||
            memcmp(&one->work, &all[0].out.work, sizeof(one->work)) != 0 ||
            memcmp(one->load, all[0].out.load, (size_t)e * sizeof(*one->load)) != 0)
            EK_T_FAIL("statistics of rank %d are not those of rank 0", r);
    }
    sum->aux = all[0].out.aux;
    sum->z = all[0].out.z;
    sum->dropped = all[0].out.dropped;
    sum->rank_max = all[0].out.rank_max;
    sum->primary_max = all[0].out.primary_max;
    sum->work = all[0].out.work;
    sum->saved_rows = all[0].out.saved_rows;
    sum->replicas = all[0].out.replicas;
    memcpy(sum->load, all[0].out.load, sizeof(sum->load));
}

/* Sums over ranks; returns 0 if one of them failed. */
static inline int run_ranks(const scenario *s, result *sum)
{
    ek_comm *worlds[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    rank all[RANKS_MAX];
    int ok = 1;

    memset(all, 0, sizeof(all));
    memset(sum, 0, sizeof(*sum));
    make(s, sum);
    CHECK(ek_comm_open_threads(s->ranks, worlds) == EK_OK);
    for (int r = 0; r < s->ranks; r++) {
        all[r].s = s;
        all[r].world = worlds[r];
        CHECK(pthread_create(&threads[r], NULL, run_rank, &all[r]) == 0);
    }
    for (int r = 0; r < s->ranks; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && !all[r].failed;
    }
    for (int r = 0; r < s->ranks; r++)
        ek_comm_close(&worlds[r]);
    CHECK(ok);
    if (ok)
        gather(s, all, sum);
    for (int r = 0; r < s->ranks; r++)
        drop(&all[r].out);
    return ok;
}

static inline void run_alone(const scenario *s, result *out)
{
    rank one = {.s = s};

    run_rank(&one);
    CHECK(!one.failed);
    *out = one.out;
}

/* The largest difference, relative to the largest number. */
static inline double apart(const double *a, const double *b, int64_t n)
{
    double worst = 0, scale = 1;

    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]))
            return (double)INFINITY;
        worst = fmax(worst, fabs(a[i] - b[i]));
        scale = fmax(scale, fabs(b[i]));
    }
    return worst / scale;
}

static inline void describe(const scenario *s, char *text, size_t cap)
{
    snprintf(text, cap, "%d ranks, tp %d ep %d etp %d, degree %d, group %d, a2a %d, %d experts",
             s->ranks, s->sizes.tp, s->sizes.ep, s->sizes.etp, s->cfg.degree, s->cfg.smart_group,
             (int)s->cfg.a2a, (int)s->spec.experts);
}

static inline void compare(const scenario *s, const result *one, const result *many)
{
    int64_t n = tokens_of(s), d = s->spec.hidden, f = s->spec.ff, e = s->spec.experts;
    static const double tolerances[] = {
        [EK_MODE_FP64] = 1e-12, [EK_MODE_FP32] = 2e-6, [EK_MODE_BF16] = 1e-2};
    const double tolerance = tolerances[s->mode];
    char text[128];

    describe(s, text, sizeof(text));
    if (apart(many->x, one->x, n * d) > tolerance)
        EK_T_FAIL("%s: x is %.3g away", text, apart(many->x, one->x, n * d));
    if (apart(many->dy, one->dy, n * d) > tolerance)
        EK_T_FAIL("%s: dy is %.3g away", text, apart(many->dy, one->dy, n * d));
    if (apart(many->router, one->router, e * d) > tolerance)
        EK_T_FAIL("%s: router is %.3g away", text, apart(many->router, one->router, e * d));
    if (apart(many->up, one->up, e * 2 * f * d) > tolerance)
        EK_T_FAIL("%s: up is %.3g away", text, apart(many->up, one->up, e * 2 * f * d));
    if (apart(many->down, one->down, e * d * f) > tolerance)
        EK_T_FAIL("%s: down is %.3g away", text, apart(many->down, one->down, e * d * f));
    if (fabs(many->aux - one->aux) > tolerance || fabs(many->z - one->z) > tolerance * one->z)
        EK_T_FAIL("%s: losses %.17g, %.17g, alone %.17g, %.17g", text, many->aux, many->z, one->aux,
                  one->z);
    CHECK_INT(many->dropped, one->dropped);
    for (int64_t i = 0; i < e; i++)
        CHECK_INT(many->load[i], one->load[i]);
    /* each expert-parallel group has every expert once, over its shards */
    CHECK_INT(many->held, (int64_t)s->ranks / (s->sizes.ep * s->sizes.etp) * 3 * e * d * f);
}

/* Runs the scenario over its ranks and compares it with `one`. */
static inline void check(const scenario *s, const result *one)
{
    result many;

    if (run_ranks(s, &many))
        compare(s, one, &many);
    drop(&many);
}

/* Sizes that do not divide: experts, sequences, widths. */
static inline scenario plain(void)
{
    scenario s = {.seq = 3, .seqs = {5, 4}, .top_k = 2, .mode = EK_MODE_FP64};

    ek_model_default(&s.spec);
    s.spec.vocab = s.spec.heads = s.spec.kv_heads = 4;
    s.spec.head_dim = 2;
    s.spec.layers = 1;
    s.spec.hidden = 6;
    s.spec.ff = 7;
    s.spec.experts = 5;
    s.spec.top_k = 2;
    s.ranks = 1;
    s.sizes = (ek_mesh_sizes){1, 1, 1, 1};
    return s;
}

/* Calls `each` with every factorisation of every number of ranks; i counts them. */
static inline void each_layout(scenario s, void (*each)(scenario *s, const result *one, int i))
{
    result one;
    int i = 0;

    run_alone(&s, &one);
    for (s.ranks = 1; s.ranks <= RANKS_MAX; s.ranks++)
        for (s.sizes.ep = 1; s.sizes.ep <= s.ranks; s.sizes.ep++)
            for (s.sizes.etp = 1; s.sizes.ep * s.sizes.etp <= s.ranks; s.sizes.etp++)
                if (s.ranks % (s.sizes.ep * s.sizes.etp) == 0) {
                    each(&s, &one, i);
                    i++;
                }
    drop(&one);
}

#endif
