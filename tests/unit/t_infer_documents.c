/* Document masks: each document of a packed sequence has the loss that it has alone, whatever
 * precedes it.  In fp64 on the reference kernels. */
#include "data/documents.h"
#include "ek_test.h"
#include "exec/exec.h"
#include "model/hf/init.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

enum { SEQ = 16, SEQS = 2, VOCAB = 23, END = 22, DOCUMENTS = 5 };

/* Lengths of the documents, with the end token. */
static const int lengths[SEQS][DOCUMENTS] = {{3, 1, 6, 4, 2}, {1, 8, 1, 1, 5}};

typedef struct {
    ek_kernels *k;
    ek_model *model;
    ek_pass *pass;
    ek_exec *exec;
    ek_graph graph;
    int32_t inputs[SEQS * SEQ], targets[SEQS * SEQ], starts[SEQS * SEQ];
} fixture;

static ek_model_spec small_spec(void)
{
    ek_model_spec s;

    CHECK(ek_model_preset("tiny", &s) == EK_OK);
    s.vocab = VOCAB;
    s.hidden = 12;
    s.layers = 3;
    s.heads = 3;
    s.kv_heads = 1;
    s.head_dim = 4;
    s.experts = 5;
    s.top_k = 2;
    s.ff = 9;
    s.eos_id = END;
    s.init_range = 0.3;
    s.rope_theta = 100;
    s.max_positions = SEQ;
    return s;
}

static void setup(fixture *f, const ek_model_spec *spec)
{
    ek_pass_config cfg = {.max_seqs = SEQS, .max_seq = SEQ};

    memset(f, 0, sizeof(*f));
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &f->k) == EK_OK);
    CHECK(ek_model_create(spec, f->k, &(ek_model_config){.trained = 0}, &f->model) == EK_OK);
    CHECK(ek_model_init(f->model, 7) == EK_OK);
    CHECK(ek_model_pack(f->model) == EK_OK);
    CHECK(ek_pass_create(f->model, &cfg, &f->pass) == EK_OK);
    CHECK(ek_exec_create(NULL, &f->exec) == EK_OK);
    ek_graph_init(&f->graph);
}

static void teardown(fixture *f)
{
    ek_graph_fini(&f->graph);
    ek_exec_destroy(&f->exec);
    ek_pass_destroy(&f->pass);
    ek_model_destroy(&f->model);
    ek_kernels_destroy(&f->k);
}

static int32_t token_at(int64_t i)
{
    return (int32_t)((i * 7 + i / 5) % END);
}

/* Both sequences and their targets, marked. */
static void fill_packed(fixture *f)
{
    for (int s = 0; s < SEQS; s++) {
        int32_t *in = f->inputs + s * SEQ, *next = f->targets + s * SEQ;
        int at = 0;

        for (int d = 0; d < DOCUMENTS; d++)
            for (int i = 1; i <= lengths[s][d]; i++, at++)
                in[at] = i == lengths[s][d] ? END : token_at(s * SEQ + at);
        for (int i = 0; i < SEQ; i++)
            next[i] = i + 1 < SEQ ? in[i + 1] : 1;
        ek_documents_mark(SEQ, END, in, next, f->starts + s * SEQ);
    }
}

/* Sum of the losses of the targets that count. */
static double loss_sum(fixture *f, int64_t seqs, int64_t seq, const int32_t *inputs,
                       const int32_t *targets, const int32_t *starts)
{
    ek_moe_step step = {.top_k = f->model->spec.top_k};
    ek_micro mb = ek_micro_alone(seqs, seq, 1, 0, inputs, targets);

    mb.starts = starts;
    CHECK(ek_pass_begin(f->pass, &step, &mb, 1) == EK_OK);
    ek_graph_reset(&f->graph);
    CHECK(ek_pass_build(f->pass, &f->graph) == EK_OK);
    CHECK(ek_exec_run(f->exec, &f->graph) == EK_OK);
    return f->pass->backward.loss.sum;
}

/* The same for one document within its sequence. */
static double packed_loss(fixture *f, int sequence, int first, int n, const int32_t *starts)
{
    int32_t targets[SEQS * SEQ];

    for (int i = 0; i < SEQS * SEQ; i++) {
        int at = i - sequence * SEQ - first;

        targets[i] = at >= 0 && at < n ? f->targets[i] : -1;
    }
    return loss_sum(f, SEQS, SEQ, f->inputs, targets, starts);
}

static double loss_alone(fixture *f, int sequence, int first, int n)
{
    int32_t starts[SEQ], targets[SEQ];
    const int32_t *inputs = f->inputs + sequence * SEQ + first;

    for (int i = 0; i < n; i++)
        targets[i] = i + 1 < n ? inputs[i + 1] : 1;
    ek_documents_mark(n, END, inputs, targets, starts);
    return loss_sum(f, 1, n, inputs, targets, starts);
}

/* Largest difference between the loss of a document in its sequence and alone, of its tokens. */
static double worst_difference(fixture *f, const int32_t *starts)
{
    double worst = 0;

    for (int s = 0; s < SEQS; s++) {
        int first = 0;

        for (int d = 0; d < DOCUMENTS; d++) {
            int n = lengths[s][d];
            double alone = loss_alone(f, s, first, n);

            CHECK(n == 1 ? alone == 0 : alone > 0.1);
            worst = fmax(worst, fabs(packed_loss(f, s, first, n, starts) - alone));
            first += n;
        }
        CHECK_INT(first, SEQ);
    }
    return worst;
}

static void each_has_the_loss_that_it_has_alone(void)
{
    ek_model_spec s = small_spec();
    fixture f;

    setup(&f, &s);
    fill_packed(&f);
    CHECK(worst_difference(&f, f.starts) < 1e-9);
    CHECK(worst_difference(&f, NULL) > 1e-3); /* without masks tokens attend to earlier documents */
    teardown(&f);
}

/* Attention depends on differences of positions, also with scaled frequencies. */
static void positions_need_not_begin_anew(void)
{
    static const ek_rope_scaling scalings[] = {
        {.type = EK_ROPE_LINEAR, .factor = 3},
        {.type = EK_ROPE_DYNAMIC, .factor = 3},
        {.type = EK_ROPE_LLAMA3,
         .factor = 4,
         .original_positions = 8,
         .low_freq = 1,
         .high_freq = 4},
        {.type = EK_ROPE_YARN,
         .factor = 4,
         .original_positions = 8,
         .beta_fast = 32,
         .beta_slow = 1,
         .truncate = 1},
    };
    ek_model_spec s = small_spec();
    fixture f;

    for (size_t i = 0; i < sizeof(scalings) / sizeof(scalings[0]); i++) {
        s.rope = scalings[i];
        setup(&f, &s);
        fill_packed(&f);
        CHECK(worst_difference(&f, f.starts) < 1e-9);
        teardown(&f);
    }
}

/* Dynamic frequencies depend on the length of the sequence, not of the document. */
static void dynamic_angles_are_those_of_the_sequence(void)
{
    ek_model_spec s = small_spec();
    fixture f;

    s.max_positions = SEQ / 2;
    s.rope = (ek_rope_scaling){.type = EK_ROPE_DYNAMIC, .factor = 3};
    setup(&f, &s);
    fill_packed(&f);
    CHECK(worst_difference(&f, f.starts) > 1e-6);
    teardown(&f);
}

/* The mean is over the targets that count: one less per end token. */
static void the_mean_is_of_what_counts(void)
{
    ek_model_spec s = small_spec();
    ek_losses out;
    double sum;
    fixture f;

    setup(&f, &s);
    fill_packed(&f);
    sum = loss_sum(&f, SEQS, SEQ, f.inputs, f.targets, f.starts);
    ek_pass_losses(f.pass, &out);
    CHECK(out.masked);
    CHECK(out.loss_tokens == SEQS * SEQ - SEQS * DOCUMENTS);
    CHECK(fabs(out.loss - sum / out.loss_tokens) < 1e-14);
    loss_sum(&f, 1, SEQ, f.inputs, f.targets, NULL);
    ek_pass_losses(f.pass, &out);
    CHECK(!out.masked && out.loss_tokens == SEQ);
    for (int i = 0; i < SEQ; i++)
        f.targets[i] = -1;
    CHECK(loss_sum(&f, 1, SEQ, f.inputs, f.targets, f.starts) == 0);
    ek_pass_losses(f.pass, &out);
    CHECK(out.loss == 0 && out.loss_tokens == 0);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(each_has_the_loss_that_it_has_alone),
    EK_CASE(positions_need_not_begin_anew),
    EK_CASE(dynamic_angles_are_those_of_the_sequence),
    EK_CASE(the_mean_is_of_what_counts),
};
EK_TEST_MAIN(cases)
