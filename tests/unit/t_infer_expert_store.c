/* Experts from a store: logits are those of a model in memory, bit for bit, for any number of
 * slots, any block, as a cache or a ring, with either back end of the disk queue; failures of the
 * source; what is counted. */
#include "base/random.h"
#include "ek_test.h"
#include "faulty_disk_io.h"
#include "infer/session.h"
#include "model/hf/expert_files.h"
#include "model/hf/init.h"
#include "model/hf/io.h"
#include "model/hf/source.h"
#include "unit/kernel_tables.h"

#include <time.h>

enum { TOKENS = 24, VOCAB = 61, EXPERTS = 5, ITEMS = 4 * EXPERTS }; /* of four layers */

typedef struct {
    const ek_kernels *k;
    ek_model_spec spec;
    char folder[32];
    ek_path path;
    int32_t ids[TOKENS];
    ek_model *in_memory;
    char want[VOCAB * 8]; /* the logits after all tokens in blocks, from memory */
} fixture;

static ek_model_spec spec_of(int dense_first)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = VOCAB;
    s.hidden = 36;
    s.layers = 5;
    s.heads = s.kv_heads = 2;
    s.head_dim = 18;
    s.experts = EXPERTS;
    s.top_k = 2;
    s.ff = 23;
    s.dense[0] = (unsigned char)dense_first;
    s.dense_ff = dense_first ? 40 : 0;
    if (!dense_first)
        s.layers = 4;
    return s;
}

static size_t logit_bytes(const fixture *f)
{
    return (size_t)f->spec.vocab * ek_dtype_size(f->k->real);
}

/* Feeds the tokens in blocks, and then the last six one by one. */
static ek_status feed(const fixture *f, ek_model *m, int64_t block, char *logits)
{
    ek_session *s = NULL;
    ek_status st;

    EK_TRY(ek_session_create(m, &(ek_session_config){.capacity = TOKENS, .block = block}, &s));
    st = ek_session_feed(s, f->ids, TOKENS - 6);
    for (int i = TOKENS - 6; st == EK_OK && i < TOKENS; i++)
        st = ek_session_feed(s, &f->ids[i], 1);
    if (st == EK_OK)
        memcpy(logits, ek_session_logits(s), logit_bytes(f));
    ek_session_destroy(&s);
    return st;
}

/* Writes a model's file, as R, or as C if all its layers have experts, and fills it to memory. */
static void setup_spec(fixture *f, const ek_kernels *k, const ek_model_spec *spec)
{
    ek_owned_tensors owned = {0};
    ek_model *m = NULL;

    *f = (fixture){.k = k, .spec = *spec, .folder = "/tmp/ek_store_XXXXXX"};
    for (int i = 0; i < TOKENS; i++)
        f->ids[i] = (int32_t)(ek_random_bits(3, 4, (uint64_t)i) % VOCAB);
    CHECK(mkdtemp(f->folder) != NULL);
    CHECK(ek_path_set(&f->path, "%s/model.safetensors", f->folder) == EK_OK);
    CHECK(ek_model_create(&f->spec, k, &(ek_model_config){.trained = 1}, &m) == EK_OK);
    CHECK(ek_model_init(m, 3) == EK_OK);
    CHECK(ek_model_list_owned(m, EK_ARRAYS_MASTER, &owned) == EK_OK);
    CHECK(ek_owned_tensors_write(&owned, spec->dense[0] ? k->real : k->comp, NULL, f->path.s,
                                 EK_WRITE_REPLACE, NULL, NULL) == EK_OK);
    ek_owned_tensors_free(&owned);
    ek_model_destroy(&m);
    CHECK(ek_model_create(&f->spec, k, &(ek_model_config){.trained = 0}, &f->in_memory) == EK_OK);
    CHECK(ek_model_load_path(f->in_memory, f->path.s, NULL) == EK_OK);
    CHECK(ek_model_pack(f->in_memory) == EK_OK);
}

static void setup(fixture *f, const ek_kernels *k, int dense_first)
{
    ek_model_spec spec = spec_of(dense_first);

    setup_spec(f, k, &spec);
}

/* Computes what a session in blocks of this size gives from memory. */
static void set_block(fixture *f, int64_t block)
{
    CHECK(feed(f, f->in_memory, block, f->want) == EK_OK);
}

/* Writes the file anew with every matrix in two slices, so that no expert is contiguous. */
static void slice_matrices(const fixture *f)
{
    ek_safetensors *st = NULL;
    ek_safetensors_writer *w = NULL;
    ek_tensor_decl decls[200];
    char names[200][160];
    int64_t n = 0, i;

    CHECK(ek_safetensors_open(f->path.s, &st) == EK_OK);
    for (i = 0; i < ek_safetensors_count(st); i++) {
        const ek_safetensor *t = ek_safetensors_get(st, i);
        int parts = t->dims == 2 ? 2 : 1;

        for (int p = 0; p < parts; p++, n++) {
            int64_t half = t->shape[0] / parts, cols = t->dims == 2 ? t->shape[1] : 1;
            ek_tensor_slice s = {p * half, p + 1 < parts ? half : t->shape[0] - p * half, 0, cols};

            ek_tensor_slice_name(names[n], sizeof(names[n]), t->name, &s, t->dims, t->shape);
            decls[n] = (ek_tensor_decl){names[n], t->dtype, t->dims, {s.rows, cols}};
        }
    }
    CHECK(ek_safetensors_create(NULL, f->path.s, EK_WRITE_REPLACE, decls, n, &w) == EK_OK);
    while ((i = ek_safetensors_next(w)) >= 0) {
        const char *bracket = strchr(names[i], '[');
        int64_t row = bracket != NULL ? atoll(bracket + 1) : 0, cols = 1, elements;
        char name[160] = "", data[1 << 16];
        const ek_safetensor *t;

        memcpy(name, names[i], bracket != NULL ? (size_t)(bracket - names[i]) : strlen(names[i]));
        t = ek_safetensors_find(st, name);
        cols = t->dims == 2 ? t->shape[1] : 1;
        elements = decls[i].shape[0] * cols;
        CHECK((size_t)elements * ek_dtype_size(t->dtype) <= sizeof(data));
        CHECK(ek_safetensor_read(t, row * cols, elements, data, t->dtype) == EK_OK);
        CHECK(ek_safetensors_append(w, names[i], elements, data, t->dtype) == EK_OK);
    }
    CHECK(ek_safetensors_finish(&w, NULL) == EK_OK);
    ek_safetensors_close(&st);
}

static void teardown(fixture *f)
{
    ek_model_destroy(&f->in_memory);
    CHECK(unlink(f->path.s) == 0 && rmdir(f->folder) == 0);
}

static void open_stored(const fixture *f, const ek_expert_files_config *cfg, ek_model **m,
                        ek_expert_files **x)
{
    CHECK(ek_model_create(&f->spec, f->k, &(ek_model_config){.trained = 0, .experts_elsewhere = 1},
                          m) == EK_OK);
    CHECK(ek_model_load_path(*m, f->path.s, NULL) == EK_OK);
    CHECK(ek_model_pack(*m) == EK_OK);
    CHECK(ek_expert_files_open(*m, f->path.s, cfg, x) == EK_OK);
}

/* Every use of an expert is a hit or read once, and the bytes are those of the reads; what the disk
 * read beyond that is what was dropped. */
static void check_counts(const ek_expert_files *x, const ek_model *m,
                         const ek_expert_files_config *cfg)
{
    ek_expert_files_stats all = ek_expert_files_get_stats(x);
    const ek_expert_store_stats *s = &all.store;
    const ek_moe_weights *w = &m->layers[m->spec.layers - 1].experts;
    int64_t each =
        (int64_t)(ek_weight_form_bytes(m->k, &w->up[0]) + ek_weight_form_bytes(m->k, &w->down[0]));

    CHECK(s->uses > 0 && s->hits < s->uses);
    CHECK_INT(s->read_bytes, (s->uses - s->hits) * each);
    if (cfg->slots >= ITEMS)
        CHECK(s->uses - s->hits <= ITEMS);
    else
        CHECK(s->uses - s->hits > cfg->slots);
    CHECK(s->passes > 0); /* blocks that need all experts */
    CHECK(cfg->lookahead ? s->predicted > 0 : !cfg->mapped || s->predicted == 0);
    CHECK(s->confirmed >= s->predicted / 3 && s->confirmed <= s->predicted);
    CHECK(!cfg->lookahead || s->confirmed < s->predicted);
    CHECK(all.wasted_bytes >= 0);
    if (!cfg->mapped)
        CHECK(all.disk_bytes > 0);
    if (!cfg->mapped && cfg->ring && cfg->slots < ITEMS - EXPERTS)
        CHECK(all.wasted_bytes > 0); /* single tokens need 2 of 5 */
}

/* A cache, a ring of K layers, of which K - 2 stay (kept) or none, or mapped files. */
static const ek_expert_files_config stores[] = {
    {.slots = 1},
    {.slots = 8, .mapped = 1},
    {.slots = 2, .eviction = EK_EVICT_LFU, .kept = 1},
    {.slots = 3, .eviction = EK_EVICT_AUTO, .backend = EK_DISK_POOL},
    {.slots = 13, .kept = 11, .buffer_bytes = 1 << 20},
    {.slots = 7, .lookahead = 1},
    {.slots = 7, .lookahead = 1, .eviction = EK_EVICT_LFU, .buffer_bytes = 1 << 20},
    {.slots = 7, .lookahead = 1, .backend = EK_DISK_POOL, .buffer_bytes = 1 << 17},
    {.slots = 1000, .backend = EK_DISK_POOL, .buffer_bytes = 1 << 17},
    {.slots = EXPERTS, .ring = 1, .buffer_bytes = 1 << 20},
    {.slots = 2 * EXPERTS, .ring = 1, .kept = EXPERTS, .buffer_bytes = 1 << 17},
    {.slots = 2 * EXPERTS, .ring = 1, .kept = 0, .buffer_bytes = 1 << 16, .backend = EK_DISK_POOL},
    {.slots = 3 * EXPERTS, .ring = 1, .kept = 2 * EXPERTS, .buffer_bytes = 1 << 20},
    {.slots = 4 * EXPERTS, .ring = 1, .kept = 3 * EXPERTS},
    {.slots = 15, .kept = 3, .buffer_bytes = 1 << 17},
    {.slots = 18, .kept = 2, .lookahead = 1, .backend = EK_DISK_POOL, .buffer_bytes = 1 << 16},
};

/* Experts that the file has whole and as C stay as they were read, and are packed when they are
 * needed again, if the kernels have another form for that, of whole panels. */
static void check_packed(const fixture *f, const ek_expert_files *x,
                         const ek_expert_files_config *cfg, int sliced)
{
    int64_t packed = ek_expert_files_get_stats(x).store.packed;
    int packs = !cfg->mapped && !sliced && !f->spec.dense[0] && !f->k->one_form;

    CHECK(packs == 0 || f->spec.ff % f->k->panel_rows == 0);

    if ((packed > 0) != packs && (!packs || cfg->slots > 2 * EXPERTS))
        EK_T_FAIL("%s, %lld slots%s: %lld experts packed", f->k->name, (long long)cfg->slots,
                  cfg->ring ? ", a ring" : "", (long long)packed);
}

/* In passes, slots that no expert keeps are lent, but for a wave of 8, if experts that are read fit
 * in a slot. */
static void check_lent(const fixture *f, const ek_expert_files *x,
                       const ek_expert_files_config *cfg, int sliced)
{
    int64_t lent = ek_expert_files_get_stats(x).store.lent, most = cfg->slots - cfg->kept - 8;

    if (cfg->mapped || cfg->ring || cfg->slots > ITEMS || most < 0)
        most = 0;
    if (lent != most && (lent != 0 || (!sliced && !f->spec.dense[0])))
        EK_T_FAIL("%s, %lld slots: %lld lent", f->k->name, (long long)cfg->slots, (long long)lent);
}

/* from, step: which stores. */
static void compare(const ek_kernels *k, int dense_first, int sliced, size_t from, size_t step)
{
    ek_model_spec spec = spec_of(dense_first);
    fixture f;

    if (!dense_first)
        spec.ff = 64;
    setup_spec(&f, k, &spec);
    if (sliced)
        slice_matrices(&f);
    for (size_t i = from; i < sizeof(stores) / sizeof(stores[0]); i += step) {
        ek_model *m = NULL;
        ek_expert_files *x = NULL;
        char got[sizeof(f.want)];

        open_stored(&f, &stores[i], &m, &x);
        for (int64_t block = 1; block <= TOKENS; block += 7) {
            set_block(&f, block);
            CHECK(feed(&f, m, block, got) == EK_OK);
            if (memcmp(got, f.want, logit_bytes(&f)) != 0)
                EK_T_FAIL("%s, store %zu, blocks of %lld: other logits than from memory", k->name,
                          i, (long long)block);
        }
        check_counts(x, m, &stores[i]);
        check_packed(&f, x, &stores[i], sliced);
        check_lent(&f, x, &stores[i], sliced);
        ek_expert_files_close(&x);
        ek_model_destroy(&m);
    }
    teardown(&f);
}

/* All stores with the fastest kernels of each mode, some with the others. */
static void logits_are_those_of_a_model_in_memory(void)
{
    static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        for (int isa = EK_ISA_REF; isa <= (int)ek_cpu_isa(); isa++) {
            int fastest = isa == (int)ek_cpu_isa();
            size_t step = fastest ? 1 + 4 * EK_T_SLOW : 4;
            ek_kernels *k = NULL;

            if (has_same_next(modes[i], isa) || (EK_T_SLOW && !fastest && isa > EK_ISA_REF))
                continue;

            CHECK(ek_kernels_create(modes[i], (ek_isa)isa, 2, &k) == EK_OK);
            compare(k, 0, 0, 0, step);
            compare(k, 1, 0, 1, step);
            compare(k, 1, 1, 1, 4);
            ek_kernels_destroy(&k);
        }
}

/* A model whose experts are elsewhere has no memory for them. */
static void experts_elsewhere_take_no_memory(void)
{
    ek_model_spec s = spec_of(0);
    ek_kernels *k = NULL;
    ek_model *all = NULL, *without = NULL;
    size_t experts;

    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), 1, &k) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 0}, &all) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.experts_elsewhere = 1}, &without) == EK_OK);
    experts = ITEMS * (ek_weight_form_bytes(k, &all->layers[0].experts.up[0]) +
                       ek_weight_form_bytes(k, &all->layers[0].experts.down[0]));
    CHECK(all->arena.used >= without->arena.used + experts);
    CHECK(without->layers[0].experts.up[0].forward == NULL);
    ek_model_destroy(&all);
    ek_model_destroy(&without);
    ek_kernels_destroy(&k);
}

/* A file that is cut short while it is in use is an error; put right, the same session's model goes
 * on with the right logits: no slot kept what was not read. */
static void cut_file_short(const ek_expert_files_config *cfg)
{
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    char got[VOCAB * 8], *whole;
    fixture f;
    FILE *file;
    long bytes;

    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 2, &k) == EK_OK);
    setup(&f, k, 0);
    set_block(&f, 5);
    open_stored(&f, cfg, &m, &x);
    file = fopen(f.path.s, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    whole = malloc((size_t)bytes);
    rewind(file);
    CHECK(whole != NULL && fread(whole, 1, (size_t)bytes, file) == (size_t)bytes);
    fclose(file);
    for (long cut = bytes / 4; cut < bytes; cut += bytes / 5) {
        CHECK(truncate(f.path.s, cut) == 0);
        CHECK_INT(feed(&f, m, 5, got), EK_EFORMAT);
        CHECK(strstr(ek_err_message(), "cut short") != NULL);
        file = fopen(f.path.s, "r+b");
        CHECK(file != NULL && fwrite(whole, 1, (size_t)bytes, file) == (size_t)bytes);
        fclose(file);
        CHECK(feed(&f, m, 5, got) == EK_OK);
        CHECK(memcmp(got, f.want, logit_bytes(&f)) == 0);
    }
    free(whole);
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
    teardown(&f);
    ek_kernels_destroy(&k);
}

static void a_failed_read_leaves_no_wrong_expert(void)
{
    cut_file_short(&(ek_expert_files_config){.slots = 3});
    cut_file_short(&(ek_expert_files_config){.slots = 3, .mapped = 1});
    cut_file_short(&(ek_expert_files_config){.slots = 15, .kept = 3, .buffer_bytes = 1 << 16});
}

/* Reads of four texts in two blocks each, with 3 of 4 layers in slots. */
static int64_t misses_of_blocks(const fixture *f, int64_t kept, int ring)
{
    ek_expert_files_config cfg = {
        .slots = 3 * EXPERTS, .kept = kept, .ring = ring, .buffer_bytes = 1 << 20};
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    ek_session *session = NULL;
    ek_expert_store_stats s;

    open_stored(f, &cfg, &m, &x);
    CHECK(ek_session_create(m, &(ek_session_config){.capacity = TOKENS, .block = TOKENS / 2},
                            &session) == EK_OK);
    for (int i = 0; i < 4; i++) {
        ek_session_reset(session);
        CHECK(ek_session_feed(session, f->ids, TOKENS) == EK_OK);
    }
    ek_session_destroy(&session);
    s = ek_expert_files_get_stats(x).store;
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
    return s.uses - s.hits;
}

static void kept_experts_are_hits_of_every_pass(void)
{
    ek_kernels *k = NULL;
    int64_t passes = 4 * 2;
    fixture f;

    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 2, &k) == EK_OK);
    setup(&f, k, 0);
    /* a ring of 4 layers in which none stays reads all each time; with two that stay, the rest; and
     * a cache keeps all slots but one */
    CHECK_INT(misses_of_blocks(&f, 0, 1), passes * ITEMS);
    CHECK_INT(misses_of_blocks(&f, 2 * EXPERTS, 1), 2 * EXPERTS + passes * 2 * EXPERTS);
    CHECK_INT(misses_of_blocks(&f, 3 * EXPERTS - 1, 0), 3 * EXPERTS - 1 + passes * (EXPERTS + 1));
    teardown(&f);
    ek_kernels_destroy(&k);
}

/* Feeds 600 tokens at once; the logits. */
static void feed_long(const fixture *f, ek_model *m, char *logits)
{
    ek_session *s = NULL;
    int32_t ids[600];

    for (int i = 0; i < 600; i++)
        ids[i] = (int32_t)(ek_random_bits(3, 5, (uint64_t)i) % VOCAB);
    CHECK(ek_session_create(m, &(ek_session_config){.capacity = 600}, &s) == EK_OK);
    CHECK(ek_session_feed(s, ids, 600) == EK_OK);
    memcpy(logits, ek_session_logits(s), logit_bytes(f));
    ek_session_destroy(&s);
}

/* From files, a long text takes larger blocks, and reads each expert once in each. */
static void long_texts_are_those_from_memory(void)
{
    static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        ek_model *m = NULL;
        ek_expert_files *x = NULL;
        ek_kernels *k = NULL;
        ek_expert_store_stats s;
        char got[VOCAB * 8];
        fixture f;

        CHECK(ek_kernels_create(modes[i], ek_cpu_isa(), 2, &k) == EK_OK);
        setup(&f, k, 1);
        feed_long(&f, f.in_memory, f.want);
        open_stored(&f, &(ek_expert_files_config){.slots = 4}, &m, &x);
        feed_long(&f, m, got);
        CHECK(memcmp(got, f.want, logit_bytes(&f)) == 0);
        s = ek_expert_files_get_stats(x).store;
        CHECK_INT(s.uses, 2 * ITEMS); /* blocks of 512 and of 88 */
        CHECK_INT(s.hits, 0);
        ek_expert_files_close(&x);
        ek_model_destroy(&m);
        teardown(&f);
        ek_kernels_destroy(&k);
    }
}

/* A block of many tokens, of which a layer needs fewer than a pass, has the next layer's experts
 * predicted, mostly right; single tokens do not. */
static void many_tokens_predict_experts(void)
{
    ek_model_spec spec = spec_of(0);
    ek_expert_store_stats block, all;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    ek_session *s = NULL;
    char got[VOCAB * 8];
    fixture f;

    spec.experts = 40;
    spec.top_k = 1;
    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), 2, &k) == EK_OK);
    setup_spec(&f, k, &spec);
    set_block(&f, TOKENS);
    open_stored(&f, &(ek_expert_files_config){.slots = 60, .buffer_bytes = 1 << 16}, &m, &x);
    CHECK(ek_session_create(m, &(ek_session_config){.capacity = TOKENS}, &s) == EK_OK);
    CHECK(ek_session_feed(s, f.ids, TOKENS - 6) == EK_OK);
    block = ek_expert_files_get_stats(x).store;
    CHECK(block.passes == 0 && block.predicted > 3);
    CHECK(4 * block.confirmed >= 3 * block.predicted);
    for (int i = TOKENS - 6; i < TOKENS; i++)
        CHECK(ek_session_feed(s, &f.ids[i], 1) == EK_OK);
    memcpy(got, ek_session_logits(s), logit_bytes(&f));
    CHECK(memcmp(got, f.want, logit_bytes(&f)) == 0);
    all = ek_expert_files_get_stats(x).store;
    CHECK_INT(all.predicted, block.predicted);
    ek_session_destroy(&s);
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
    teardown(&f);
    ek_kernels_destroy(&k);
}

/* Of a batch that needs most experts, those of the next layer that it will need for certain are
 * fetched first. */
static void passes_predict_experts(void)
{
    ek_model_spec spec = spec_of(0);
    ek_expert_store_stats stats;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    char got[VOCAB * 8];
    fixture f;

    spec.experts = 10;
    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), 2, &k) == EK_OK);
    setup_spec(&f, k, &spec);
    set_block(&f, TOKENS);
    open_stored(&f, &(ek_expert_files_config){.slots = 20, .kept = 19, .buffer_bytes = 1 << 16}, &m,
                &x);
    CHECK(feed(&f, m, TOKENS, got) == EK_OK);
    CHECK(memcmp(got, f.want, logit_bytes(&f)) == 0);
    stats = ek_expert_files_get_stats(x).store;
    CHECK(stats.passes > 1 && stats.predicted > 10); /* single tokens predict none */
    CHECK(4 * stats.confirmed >= 3 * stats.predicted);
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
    teardown(&f);
    ek_kernels_destroy(&k);
}

/* Touched slots after a text of n tokens, in slots for all experts; 3 buffers were used, too.
 * Threads may still touch them, on a busy machine for long: waits for as many as `expected`, and a
 * moment for more. */
static int64_t touched_slots(const fixture *f, int64_t n, int64_t expected, int64_t *read)
{
    enum { NAPS_MOST = 3000, NAPS_AFTER = 5 };
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    ek_session *s = NULL;
    ek_expert_store_stats stats;
    int64_t each;
    int after = 0;

    open_stored(f, &(ek_expert_files_config){.slots = ITEMS}, &m, &x);
    each = (int64_t)ek_expert_files_slot_bytes(m);
    CHECK(ek_session_create(m, &(ek_session_config){.capacity = TOKENS}, &s) == EK_OK);
    CHECK(ek_session_feed(s, f->ids, n) == EK_OK);
    stats = ek_expert_files_get_stats(x).store;
    for (int i = 0; i < NAPS_MOST && after < NAPS_AFTER; i++) {
        after += stats.touched_bytes >= expected * each;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        stats = ek_expert_files_get_stats(x).store;
    }
    *read = stats.uses - stats.hits;
    CHECK_INT(stats.touched_bytes % each, 0);
    CHECK(ek_expert_files_untouched(x) >= ITEMS * each - *read * each);
    ek_session_destroy(&s);
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
    return stats.touched_bytes / each;
}

static void slots_are_touched_ahead_no_more_than_are_used(void)
{
    ek_kernels *k = NULL;
    int64_t read;
    fixture f;

    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 2, &k) == EK_OK);
    setup(&f, k, 0);
    CHECK_INT(touched_slots(&f, 1, 4 * 2 - 3, &read), 4 * 2 - 3); /* two experts of each layer */
    CHECK_INT(read, 4 * 2);
    CHECK_INT(touched_slots(&f, TOKENS, ITEMS - 3, &read), ITEMS - 3);
    CHECK_INT(read, ITEMS);
    teardown(&f);
    ek_kernels_destroy(&k);
}

/* Transfers fail, but a ring takes them: if it takes none, it stays broken. */
static ek_disk_io transfers_fail(void)
{
    ek_disk_io io = faulty_disk_io;

    io.ring_submit = ek_disk_io_system.ring_submit;
    return io;
}

/* Lets each disk call in turn fail: alone, it is made again; with all that follow, it is one
 * sentence, and when the disk works again, so does the model. */
static void fail_calls(const fixture *f, const ek_expert_files_config *cfg)
{
    ek_model *m = NULL;
    ek_expert_files *x = NULL;
    char got[VOCAB * 8];
    int n = 1, step = EK_T_SLOW ? 67 : 17;

    open_stored(f, cfg, &m, &x);
    for (int calls = n; n <= calls; n += step) { /* as many as a run has */
        arm_disk_fault(n, EIO, 0);
        CHECK_INT(feed(f, m, 5, got), EK_OK);
        CHECK(memcmp(got, f->want, logit_bytes(f)) == 0);
        calls = atomic_load(&faulty_disk.calls);
        arm_disk_fault(n, EIO, 1);
        CHECK_INT(feed(f, m, 5, got), EK_EIO);
        CHECK(strstr(ek_err_message(), f->path.s) != NULL);
        CHECK(strchr(ek_err_message(), '\n') == NULL);
        arm_disk_fault(0, 0, 0);
        CHECK_INT(feed(f, m, 5, got), EK_OK);
        CHECK(memcmp(got, f->want, logit_bytes(f)) == 0);
    }
    CHECK(n > 1 + step);
    ek_expert_files_close(&x);
    ek_model_destroy(&m);
}

static void a_call_that_fails_is_made_again(void)
{
    ek_disk_io io = transfers_fail();
    ek_expert_files_config cache = {.slots = 3, .io = &io},
                           ring = {.slots = EXPERTS, .ring = 1, .buffer_bytes = 1 << 17, .io = &io};
    ek_kernels *k = NULL;
    fixture f;

    arm_disk_fault(0, 0, 0);
    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 2, &k) == EK_OK);
    setup(&f, k, 0);
    set_block(&f, 5);
    fail_calls(&f, &cache);
    fail_calls(&f, &ring);
    cache.lookahead = 1;
    cache.backend = ring.backend = EK_DISK_POOL;
    fail_calls(&f, &cache);
    fail_calls(&f, &ring);
    teardown(&f);
    ek_kernels_destroy(&k);
}

/* Bytes that this process has caused to be read from disks; -1: the system does not say. */
static int64_t system_read_bytes(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    long long bytes = -1;
    char line[128];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "read_bytes: %lld", &bytes) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return bytes;
}

static void counted_bytes_are_those_of_the_system(void)
{
    static const ek_expert_files_config ways[] = {
        {.slots = 3},
        {.slots = 7, .lookahead = 1, .buffer_bytes = 1 << 17},
        {.slots = 2 * EXPERTS, .ring = 1, .kept = EXPERTS, .buffer_bytes = 1 << 17},
        {.slots = 3, .backend = EK_DISK_POOL},
    };
    ek_kernels *k = NULL;
    fixture f;
    int64_t most = 0;

    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 1, &k) == EK_OK);
    setup(&f, k, 0);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        ek_model *m = NULL;
        ek_expert_files *x = NULL;
        int64_t before, system, counted;
        char got[VOCAB * 8];

        open_stored(&f, &ways[i], &m, &x);
        before = system_read_bytes();
        CHECK(feed(&f, m, 5, got) == EK_OK);
        counted = ek_expert_files_get_stats(x).disk_bytes;
        ek_expert_files_close(&x); /* what is in flight has ended */
        system = system_read_bytes() - before;
        most = system > most ? system : most;
        /* with what was in flight when the bytes were counted, and pages of the program */
        CHECK(system == 0 || (system >= counted && system < counted + (1 << 20)));
        ek_model_destroy(&m);
    }
    teardown(&f);
    ek_kernels_destroy(&k);
    if (most == 0)
        SKIP("the system does not report direct reads of this file system");
}

static const ek_case cases[] = {
    EK_CASE(many_tokens_predict_experts),
    EK_CASE(counted_bytes_are_those_of_the_system),
    EK_CASE(kept_experts_are_hits_of_every_pass),
    EK_CASE(a_call_that_fails_is_made_again),
    EK_CASE(long_texts_are_those_from_memory),
    EK_CASE(logits_are_those_of_a_model_in_memory),
    EK_CASE(experts_elsewhere_take_no_memory),
    EK_CASE(a_failed_read_leaves_no_wrong_expert),
    EK_CASE(passes_predict_experts),
    EK_CASE(slots_are_touched_ahead_no_more_than_are_used),
};
EK_TEST_MAIN(cases)
