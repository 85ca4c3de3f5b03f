/* Measures what training does between messages, in wall time and on all ranks at once: an expert's
 * products with the rows of the run, AdamW, and attention, forward and backward.
 *
 * Time and memory are bounded for any model.  Products and AdamW take part of an expert and of the
 * state.  Attention takes at most TOKENS tokens and FLOPS_MOST a thread: of longer sequences their
 * beginning, of many heads some; its time for a token of the run is then that of the measured ones
 * by FLOPs, as these are nearly all of it.  What is linear in tokens beside it is products, which
 * are priced by themselves. */
#include "base/arena.h"
#include "comm/agree.h"
#include "cost/cost.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>

/* Rounds of passes, of which the middle one counts; one only, if that takes LONG_S. */
enum { ROUNDS = 3, ROWS_FIRST = 64 };

enum {
    EXPERT_MOST = 2 << 20, /* numbers of its weights */
    STATE_MOST = 4 << 20,
    TOKENS = 1024,
    SEQ_LEAST = 64,
    QKV_BYTES_MOST = 16 << 20
};

#define FLOPS_MOST 1e9 /* of a pass of attention, a thread */
#define ROUND_S    0.05
#define LONG_S     0.25
#define PASS_S     0.01 /* of products, at least, unless they have all rows */

/* What is timed. */
typedef struct {
    ek_training_sizes of;
    ek_arena arena; /* of what is not the expert */
    int64_t rows;   /* of an expert, now */
    void *p, *g, *m, *v, *qkv, *dqkv, *o, *d_o, *lse, *ws;
} training;

typedef ek_status (*pass_fn)(training *t);

/* --- what is measured ------------------------------------------------------------------------- */

double ek_calibrate_attention_flops(const ek_attention *a)
{
    double pairs = 0.5 * (double)a->seq * (double)(a->seq + 1);

    return 14.0 * (double)(a->batch * a->heads * a->head_dim) * pairs; /* 4 forward, 10 backward */
}

/* An accelerator is quick with all heads, and slow with few. */
static int is_too_large(const ek_kernels *k, const ek_attention *a)
{
    int64_t bytes = a->batch * a->seq * a->ld * (int64_t)ek_dtype_size(k->comp);

    return bytes > QKV_BYTES_MOST ||
           (k->memory == NULL && ek_calibrate_attention_flops(a) > FLOPS_MOST * k->threads);
}

/* Heads of keys first, with their heads of queries; then these, and tokens last.  Whether it did
 * anything. */
static int halve_attention(ek_attention *a)
{
    int64_t group = a->heads / a->kv_heads;

    if (a->kv_heads > 1) {
        a->kv_heads /= 2;
        a->heads = a->kv_heads * group;
    } else if (a->heads > 1) {
        a->heads /= 2;
    } else if (a->batch > 1) {
        a->batch /= 2;
    } else if (a->seq > SEQ_LEAST) {
        a->seq /= 2;
    } else {
        return 0;
    }
    a->ld = (a->heads + 2 * a->kv_heads) * a->head_dim;
    return 1;
}

void ek_calibrate_training_sizes(const ek_calibration *c, ek_training_sizes *out)
{
    const ek_model_spec *s = c->cfg->spec;
    int64_t seq = ek_calibrate_at_most(c->cfg->training_seq, TOKENS);
    ek_expert_bench *b = &out->experts;

    *b = (ek_expert_bench){.k = c->cfg->k, .d = s->hidden, .experts = 1};
    b->f = ek_calibrate_at_most(s->ff, EXPERT_MOST / (3 * b->d));
    b->rows = ek_expert_bench_rows(b, c->cfg->training_rows);
    out->state = ek_calibrate_at_most(3 * s->hidden * s->ff * c->experts, STATE_MOST);
    out->attention = (ek_attention){.batch = TOKENS / seq,
                                    .seq = seq,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .ld = (s->heads + 2 * s->kv_heads) * s->head_dim,
                                    .scale = 1 / sqrt((double)s->head_dim)};
    while (is_too_large(b->k, &out->attention) && halve_attention(&out->attention))
        ;
}

static void layout_training(training *t)
{
    const ek_attention *a = &t->of.attention;
    const ek_kernels *k = t->of.experts.k;
    size_t comp = ek_dtype_size(k->comp), real = ek_dtype_size(k->real);
    int64_t tokens = a->batch * a->seq, out = a->heads * a->head_dim;
    void **state[] = {&t->p, &t->g, &t->m, &t->v};

    for (int i = 0; i < 4; i++)
        *state[i] = ek_arena_alloc(&t->arena, t->of.state, real);
    t->qkv = ek_arena_alloc(&t->arena, tokens * a->ld, comp);
    t->dqkv = ek_arena_alloc(&t->arena, tokens * a->ld, comp);
    t->o = ek_arena_alloc(&t->arena, tokens * out, comp);
    t->d_o = ek_arena_alloc(&t->arena, tokens * out, comp);
    t->lse = ek_arena_alloc(&t->arena, tokens * a->heads, real);
    t->ws = ek_arena_alloc(&t->arena, (int64_t)k->attention_workspace(k, a), 1);
}

size_t ek_calibrate_training_bytes(const ek_training_sizes *s)
{
    training t = {.of = *s};

    ek_expert_bench_measure(&t.of.experts);
    ek_arena_measure_from(&t.arena, t.of.experts.k->memory, NULL);
    layout_training(&t);
    return t.of.experts.arena.used + t.arena.used;
}

static ek_status open_training(training *t)
{
    EK_TRY(ek_expert_bench_open(&t->of.experts));
    t->rows = ek_calibrate_at_most(t->of.experts.rows, ROWS_FIRST);
    ek_arena_measure_from(&t->arena, t->of.experts.k->memory, NULL);
    layout_training(t);
    EK_TRY(ek_arena_check(&t->arena, "calibration"));
    EK_TRY(ek_arena_reserve(&t->arena, "calibration"));
    layout_training(t);
    return ek_arena_check(&t->arena, "calibration");
}

/* --- passes ----------------------------------------------------------------------------------- */

static ek_status pass_products(training *t)
{
    const ek_expert_bench *b = &t->of.experts;

    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        ek_expert_bench_set_groups(b, (ek_cost_product)p, t->rows, 1);
        EK_TRY(ek_expert_bench_call(b, (ek_cost_product)p, 1));
    }
    return ek_kernels_wait(b->k);
}

static ek_status pass_adamw(training *t)
{
    static const ek_adamw h = {1e-4, 0.1, 0.9, 0.95, 1e-8, 0.5, 0.5, 1};
    const ek_kernels *k = t->of.experts.k;

    k->adamw(&h, t->of.state, t->p, t->g, t->m, t->v);
    return ek_kernels_wait(k);
}

static ek_status pass_attention(training *t)
{
    const ek_kernels *k = t->of.experts.k;
    const ek_attention *a = &t->of.attention;

    k->attention_forward(a, t->qkv, t->o, t->lse, t->ws);
    k->attention_backward(a, t->qkv, t->o, t->lse, t->d_o, t->dqkv, t->ws);
    return ek_kernels_wait(k);
}

/* Doubles the rows until a pass of products takes long enough, after a warm-up of each kind. */
static ek_status grow_rows(training *t)
{
    EK_TRY(pass_adamw(t));
    EK_TRY(pass_attention(t));
    EK_TRY(pass_products(t));
    for (;;) {
        int64_t start = ek_clock_ns();

        EK_TRY(pass_products(t));
        if (ek_calibrate_since(start) >= PASS_S || t->rows >= t->of.experts.rows)
            return EK_OK;
        t->rows = ek_calibrate_at_most(2 * t->rows, t->of.experts.rows);
    }
}

/* Whole passes for a round, at least one. */
static ek_status time_passes(training *t, pass_fn pass, double *seconds)
{
    int64_t start = ek_clock_ns();
    int n = 0;

    do {
        EK_TRY(pass(t));
        n++;
    } while (ek_calibrate_since(start) < ROUND_S);
    *seconds = ek_calibrate_since(start) / n;
    return EK_OK;
}

/* *seconds := of a pass, on the slowest rank, all of which make them at once.  Collective. */
static ek_status time_training(const ek_calibration *c, training *t, pass_fn pass, double *seconds)
{
    double took[ROUNDS];
    int rounds = ROUNDS;

    for (int i = 0; i < rounds; i++) {
        if (c->ranks > 1)
            EK_TRY(ek_comm_barrier(c->world));
        EK_TRY(ek_agree(c->ranks > 1 ? c->world : NULL, "measure the rates of training",
                        time_passes(t, pass, &took[i])));
        EK_TRY(ek_calibrate_largest(c, &took[i], 1));
        rounds = took[0] < LONG_S ? ROUNDS : 1;
    }
    *seconds =
        rounds == 1 ? took[0] : fmax(fmin(took[0], took[1]), fmin(fmax(took[0], took[1]), took[2]));
    *seconds = fmax(*seconds, 1e-9);
    return EK_OK;
}

double ek_calibrate_attention_of_token(const ek_calibration *c, const ek_attention *a,
                                       double seconds)
{
    ek_attention whole = *a;

    whole.batch = 1;
    whole.seq = c->cfg->training_seq;
    whole.heads = c->cfg->spec->heads;
    return seconds / ek_calibrate_attention_flops(a) * ek_calibrate_attention_flops(&whole) /
           (double)whole.seq;
}

static ek_status measure_training(ek_calibration *c, training *t)
{
    enum { STATE_ACCESSES = 8 }; /* four numbers, read and written */
    ek_training_rates *out = &c->m->training;
    const ek_expert_bench *b = &t->of.experts;
    double rows = (double)-t->rows, seconds = 0;

    if (c->ranks > 1)
        EK_TRY(ek_minimum(c->world, &rows));
    t->rows = (int64_t)-rows;
    EK_TRY(time_training(c, t, pass_products, &seconds));
    out->flops_per_s =
        ek_cost_round(EK_COST_PRODUCTS * ek_cost_row_flops(b->d, b->f) * (double)t->rows / seconds);
    EK_TRY(time_training(c, t, pass_adamw, &seconds));
    out->adamw = ek_cost_round((double)(STATE_ACCESSES * t->of.state) *
                               (double)ek_dtype_size(b->k->real) / seconds);
    EK_TRY(time_training(c, t, pass_attention, &seconds));
    out->attention_s = ek_cost_round(ek_calibrate_attention_of_token(c, &t->of.attention, seconds));
    out->seq = c->cfg->training_seq;
    out->rows = c->cfg->training_rows;
    return EK_OK;
}

ek_status ek_calibrate_training(ek_calibration *c)
{
    training t = {0};
    ek_status st;

    ek_kernels_enter(c->cfg->k);
    ek_calibrate_training_sizes(c, &t.of);
    st = open_training(&t);
    if (st == EK_OK)
        st = grow_rows(&t);
    EK_TRY_OUT(ek_agree(c->ranks > 1 ? c->world : NULL, "measure the rates of training", st));
    EK_TRY_OUT(measure_training(c, &t));
out:
    ek_arena_fini(&t.of.experts.arena);
    ek_arena_fini(&t.arena);
    return st;
}
