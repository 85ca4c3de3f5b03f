/* A session against the training forward pass: every family and kind of layer, fed in every way.
 *
 * The pass yields losses, not logits.  With one target for all positions, and each token in turn
 * as that target, they are the negative log probabilities of the whole vocabulary. */
#include "base/random.h"
#include "ek_test.h"
#include "infer/session.h"
#include "model/hf/init.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

enum { VOCAB = 23, TOKENS = 13 };

typedef struct {
    ek_kernels *k;
    ek_model *model;
    int32_t ids[TOKENS];
    double want[TOKENS][VOCAB]; /* -log p of each token after each position */
} fixture;

/* Odd on purpose: 3 query heads on 1 key head, 5 experts. */
static ek_model_spec small_spec(void)
{
    ek_model_spec s;

    CHECK(ek_model_preset("tiny", &s) == EK_OK);
    s.vocab = VOCAB;
    s.hidden = 12;
    s.layers = 2;
    s.heads = 3;
    s.kv_heads = 1;
    s.head_dim = 4;
    s.experts = 5;
    s.top_k = 2;
    s.ff = 9;
    s.eos_id = -1;
    s.init_range = 0.3;
    s.rope_theta = 100;
    return s;
}

static void run_pass(fixture *f)
{
    ek_pass_config cfg = {.max_seqs = 1, .max_seq = TOKENS};
    ek_moe_step step = {.top_k = f->model->spec.top_k, .seed = 5};
    int32_t targets[TOKENS] = {0};
    ek_micro micro = ek_micro_alone(1, TOKENS, 1, 0, f->ids, targets);
    ek_pass *pass = NULL;
    ek_exec *exec = NULL;
    ek_graph graph;

    ek_graph_init(&graph);
    CHECK(ek_exec_create(NULL, &exec) == EK_OK);
    CHECK(ek_pass_create(f->model, &cfg, &pass) == EK_OK);
    for (int v = 0; v < VOCAB; v++) {
        for (int t = 0; t < TOKENS; t++)
            targets[t] = v;
        ek_graph_reset(&graph);
        CHECK(ek_pass_begin(pass, &step, &micro, 1) == EK_OK);
        CHECK(ek_pass_build(pass, &graph) == EK_OK);
        CHECK(ek_exec_run(exec, &graph) == EK_OK);
        for (int t = 0; t < TOKENS; t++)
            f->want[t][v] = pass->backward.head.loss_rows[t];
    }
    ek_pass_destroy(&pass);
    ek_exec_destroy(&exec);
    ek_graph_fini(&graph);
}

/* Sets biases, norms and router biases to values other than the initial ones, so that they
 * matter. */
static void shake_vectors(ek_model *m)
{
    for (int64_t i = 0; i < m->n_params; i++) {
        ek_weight *w = m->params[i].w;

        for (int64_t j = 0; w->in == 0 && j < w->out; j++) {
            double x = 0.3 * ek_random_normal(11, (uint64_t)i, (uint64_t)j);

            if (m->k->real == EK_F64)
                ((double *)w->p)[j] += x;
            else
                ((float *)w->p)[j] += (float)x;
        }
    }
}

static void setup(fixture *f, const ek_model_spec *spec, ek_mode mode, ek_isa isa)
{
    memset(f, 0, sizeof(*f));
    CHECK(ek_kernels_create(mode, isa, 2, &f->k) == EK_OK);
    CHECK(ek_model_create(spec, f->k, &(ek_model_config){.trained = 0}, &f->model) == EK_OK);
    CHECK(ek_model_init(f->model, 7) == EK_OK);
    shake_vectors(f->model);
    CHECK(ek_model_pack(f->model) == EK_OK);
    for (int t = 0; t < TOKENS; t++)
        f->ids[t] = (int32_t)(ek_random_bits(2, 3, (uint64_t)t) % VOCAB);
    run_pass(f);
}

static void teardown(fixture *f)
{
    ek_model_destroy(&f->model);
    ek_kernels_destroy(&f->k);
}

/* The session's distribution after the last token fed against the pass's. */
static void compare(fixture *f, ek_session *s, double tolerance, const char *how)
{
    int64_t t = ek_session_position(s) - 1;
    double logits[VOCAB], top = -INFINITY, sum = 0;

    ek_session_logits_f64(s, logits);
    for (int v = 0; v < VOCAB; v++)
        top = fmax(top, logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp(logits[v] - top);
    for (int v = 0; v < VOCAB; v++) {
        double got = top + log(sum) - logits[v], want = f->want[t][v];

        if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
            EK_T_FAIL("%s, %s: position %d, token %d: -log p is %.15g, the pass has %.15g",
                      f->k->name, how, (int)t, v, got, want);
            return;
        }
    }
}

/* Feeds all tokens in blocks (the last size repeats), comparing after each. */
static void feed(fixture *f, ek_session *s, const int *pieces, int n_pieces, double tolerance,
                 const char *how)
{
    ek_session_reset(s);
    for (int at = 0, i = 0; at < TOKENS; i++) {
        int n = pieces[i < n_pieces ? i : n_pieces - 1];

        n = n < TOKENS - at ? n : TOKENS - at;
        CHECK(ek_session_feed(s, f->ids + at, n) == EK_OK);
        at += n;
        CHECK_INT(ek_session_position(s), at);
        compare(f, s, tolerance, how);
    }
}

static void all_ways(const ek_model_spec *spec, ek_mode mode, ek_isa isa, double tolerance)
{
    static const int one[] = {1}, all[] = {TOKENS}, mixed[] = {4, 1, 1, 3, 2};
    const int64_t blocks[] = {0, 3, 1};
    fixture f;

    setup(&f, spec, mode, isa);
    for (int i = 0; i < 3; i++) {
        ek_session_config cfg = {.capacity = TOKENS, .block = blocks[i]};
        ek_session *s = NULL;

        CHECK(ek_session_create(f.model, &cfg, &s) == EK_OK);
        if (s != NULL) {
            feed(&f, s, one, 1, tolerance, "one by one");
            feed(&f, s, all, 1, tolerance, "all at once");
            feed(&f, s, mixed, 5, tolerance, "in pieces");
        }
        ek_session_destroy(&s);
    }
    teardown(&f);
}

static void on_reference(const ek_model_spec *spec)
{
    all_ways(spec, EK_MODE_FP64, EK_ISA_REF, 1e-12);
    all_ways(spec, EK_MODE_FP32, EK_ISA_REF, 1e-5);
    all_ways(spec, EK_MODE_BF16, EK_ISA_REF, 1e-5); /* row by row the same roundings */
}

static void mixtral(void)
{
    ek_model_spec s = small_spec();

    on_reference(&s);
}

static void olmoe_full_norm(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_OLMOE;
    s.gate.normalise = 0;
    s.qk_norm = EK_QK_NORM_FULL;
    s.heads = 4;
    s.kv_heads = 2;
    s.top_k = 3;
    on_reference(&s);
}

static void qwen3_head_norm_tied(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_QWEN3_MOE;
    s.qk_norm = EK_QK_NORM_HEAD;
    s.heads = 6;
    s.kv_heads = 2;
    s.tie_embeddings = 1;
    s.top_k = 1;
    s.gate.normalise = 0;
    on_reference(&s);
}

static void qwen2_shared_bias_dense(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_QWEN2_MOE;
    s.layers = 3;
    s.qkv_bias = 1;
    s.shared_ff = 10;
    s.shared_gated = 1;
    s.dense_ff = 14;
    s.dense[0] = 1;
    on_reference(&s);
}

static void sigmoid_bias_groups(void)
{
    ek_model_spec s = small_spec();

    s.experts = 6;
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.gate.groups = 3;
    s.gate.group_top = 2;
    s.gate.scale = 1.5;
    s.shared_ff = 8;
    on_reference(&s);
}

static void cosine_router(void)
{
    ek_model_spec s = small_spec();

    s.router_dim = 3;
    on_reference(&s);
}

/* Jitter is noise of training: a session has none. */
static void softmax_groups_jitter(void)
{
    ek_model_spec s = small_spec();

    s.experts = 6;
    s.gate.groups = 2;
    s.gate.group_top = 1;
    s.gate.jitter = 0.3;
    on_reference(&s);
}

/* The kernels of this CPU.  All experts are chosen, so that no rounding flips a choice. */
static void fast_kernels(void)
{
    ek_model_spec s = small_spec();

    s.hidden = 40;
    s.heads = 4;
    s.kv_heads = 2;
    s.head_dim = 16;
    s.ff = 33;
    s.top_k = s.experts;
    s.init_range = 0.1;
    all_ways(&s, EK_MODE_FP32, ek_cpu_isa(), 1e-5);
    all_ways(&s, EK_MODE_BF16, ek_cpu_isa(), 3e-2);
}

/* A session that was reset, or whose feed was refused, continues with the same bits. */
static void reset_and_refusals(void)
{
    ek_model_spec spec = small_spec();
    ek_session_config cfg = {.capacity = TOKENS, .block = 4};
    const int32_t outside[] = {1, VOCAB}, negative[] = {-1};
    double first[VOCAB], again[VOCAB];
    ek_session *s = NULL;
    fixture f;

    setup(&f, &spec, EK_MODE_FP64, EK_ISA_REF);
    CHECK(ek_session_create(f.model, &cfg, &s) == EK_OK);
    CHECK_INT(ek_session_position(s), 0);
    CHECK(ek_session_feed(s, f.ids, 9) == EK_OK);
    ek_session_logits_f64(s, first);

    CHECK(ek_session_feed(s, f.ids, 0) == EK_EINVAL);
    CHECK(ek_session_feed(s, f.ids, 5) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "9 of at most 13") != NULL);
    CHECK(ek_session_feed(s, outside, 2) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "outside the vocabulary of 23") != NULL);
    CHECK(ek_session_feed(s, negative, 1) == EK_EINVAL);
    CHECK_INT(ek_session_position(s), 9);
    ek_session_logits_f64(s, again);
    CHECK(memcmp(first, again, sizeof(first)) == 0);
    CHECK(ek_session_feed(s, f.ids + 9, TOKENS - 9) == EK_OK);
    compare(&f, s, 1e-12, "after refusals");
    CHECK(ek_session_feed(s, f.ids, 1) == EK_EINVAL);

    ek_session_reset(s);
    CHECK_INT(ek_session_position(s), 0);
    CHECK(ek_session_feed(s, f.ids + 5, 4) == EK_OK); /* another text in between */
    ek_session_reset(s);
    CHECK(ek_session_feed(s, f.ids, 9) == EK_OK);
    ek_session_logits_f64(s, again);
    CHECK(memcmp(first, again, sizeof(first)) == 0);
    ek_session_destroy(&s);
    ek_session_destroy(&s);
    teardown(&f);
}

static ek_status create(const ek_model_spec *spec, int64_t capacity, int64_t block)
{
    ek_session_config cfg = {.capacity = capacity, .block = block};
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_session *s = NULL;
    ek_status st;

    CHECK(ek_kernels_create(EK_MODE_FP32, EK_ISA_REF, 1, &k) == EK_OK);
    CHECK(ek_model_create(spec, k, &(ek_model_config){.trained = 0}, &m) == EK_OK);
    st = ek_session_create(m, &cfg, &s);
    CHECK((st == EK_OK) == (s != NULL));
    ek_session_destroy(&s);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    return st;
}

static void limits(void)
{
    ek_model_spec s = small_spec();

    s.max_positions = 40;
    CHECK(create(&s, 40, 0) == EK_OK);
    CHECK(create(&s, 41, 0) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "max_position_embeddings, 40") != NULL);
    CHECK(create(&s, 0, 0) == EK_EINVAL);
    CHECK(create(&s, 40, -1) == EK_EINVAL);
    CHECK(create(&s, 40, INT64_MAX) == EK_OK); /* no more rows than positions */
    s.sliding_window = 30;
    CHECK(create(&s, 30, 0) == EK_OK);
    CHECK(create(&s, 31, 0) == EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "sliding_window of 30") != NULL);
    s = small_spec();
    s.gate.kind = EK_GATE_EXPERT_CHOICE;
    s.gate.normalise = 0;
    CHECK(create(&s, 8, 0) == EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "later tokens") != NULL);
}

/* Counted by hand for the reference kernels, which read the master weights. */
static void active_bytes(void)
{
    ek_model_spec spec = small_spec();
    ek_session_config cfg = {.capacity = TOKENS};
    ek_session *s = NULL;
    fixture f;
    double attention, moe, dense, ends, cache;

    spec.qkv_bias = 1;
    spec.qk_norm = EK_QK_NORM_HEAD;
    spec.shared_ff = 10;
    spec.shared_gated = 1;
    spec.dense_ff = 14;
    spec.dense[0] = 1;
    spec.router_dim = 4;
    setup(&f, &spec, EK_MODE_FP32, EK_ISA_REF);
    CHECK(ek_session_create(f.model, &cfg, &s) == EK_OK);
    attention = 12 * 20 + 20 + 2 * 4 + 12 * 12 + 2 * 12; /* qkv and bias, norms of heads, out */
    moe = (5 + 12) * 4 + 1;                              /* router */
    moe += 2 * 3 * 9 * 12 + 3 * 10 * 12 + 12;            /* 2 experts, shared, its gate */
    dense = 3 * 14 * 12;
    ends = 12 + 12 + 23 * 12; /* embedding row, norm, head */
    cache = 2 * 2 * 4;        /* of one position: 2 layers, key and value */
    CHECK(ek_session_active_bytes(s, 0) == 4 * (2 * attention + moe + dense + ends + cache));
    CHECK(ek_session_active_bytes(s, 9) == 4 * (2 * attention + moe + dense + ends + 10 * cache));
    ek_session_destroy(&s);
    teardown(&f);
}

/* The ops of a step can be recorded: a prompt of two blocks has its logits once. */
static void timeline(void)
{
    ek_model_spec spec = small_spec();
    ek_session_config cfg = {.capacity = TOKENS, .block = 5};
    ek_session *s = NULL;
    const ek_event *e;
    fixture f;
    int64_t n;
    int embeds = 0, heads = 0;

    setup(&f, &spec, EK_MODE_FP64, EK_ISA_REF);
    CHECK(ek_session_create(f.model, &cfg, &s) == EK_OK);
    ek_exec_record(ek_session_exec(s), 1);
    CHECK(ek_session_feed(s, f.ids, 8) == EK_OK);
    e = ek_exec_events(ek_session_exec(s), &n);
    for (int64_t i = 0; i < n; i++) {
        embeds += e[i].kind == EK_OP_EMBED;
        heads += e[i].kind == EK_OP_LOGITS;
        CHECK(e[i].flops >= 0 && e[i].bytes > 0);
    }
    CHECK_INT(embeds, 2);
    CHECK_INT(heads, 1);
    ek_session_destroy(&s);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(mixtral),
    EK_CASE(olmoe_full_norm),
    EK_CASE(qwen3_head_norm_tied),
    EK_CASE(qwen2_shared_bias_dense),
    EK_CASE(cosine_router),
    EK_CASE(sigmoid_bias_groups),
    EK_CASE(softmax_groups_jitter),
    EK_CASE(fast_kernels),
    EK_CASE(reset_and_refusals),
    EK_CASE(limits),
    EK_CASE(active_bytes),
    EK_CASE(timeline),
};
EK_TEST_MAIN(cases)
