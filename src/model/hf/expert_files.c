/* The source of a store of experts: forms filled from safetensors files. */
#include "model/hf/expert_files.h"

#include "model/hf/expert_reads.h"
#include "model/hf/file_maps.h"
#include "moe/expert_lookahead.h"

#include <stdlib.h>
#include <string.h>

enum {
    MORE_BUFFERS = 8,   /* beside EK_EXPERT_BUFFERS, at most, */
    SLOTS_A_BUFFER = 32 /* and one for so many slots */
};

struct ek_expert_files {
    ek_model *m;
    ek_slice_set *files;
    ek_hf_values values;
    ek_expert_reads *reads; /* NULL: from mapped files, by the following */
    ek_file_maps *maps;
    ek_filler *filler;
    ek_weight_form *forms;  /* [2 experts] */
    ek_expert_layer *layer; /* [layers], those with experts */
    int32_t layers;
    int64_t slots;
    ek_expert_lookahead *lookahead; /* NULL: not possible */
    ek_expert_store *store;
};

static const ek_moe_weights *first_moe(const ek_model *m)
{
    return &m->layers[ek_model_next_moe(m, -1)].experts;
}

static size_t up_bytes(const ek_model *m)
{
    return ek_weight_form_bytes(m->k, &first_moe(m)->up[0]);
}

static size_t down_bytes(const ek_model *m)
{
    return ek_weight_form_bytes(m->k, &first_moe(m)->down[0]);
}

/* Elements of an expert. */
static size_t expert_elements(const ek_model *m)
{
    const ek_moe_weights *w = first_moe(m);

    return (size_t)(ek_weight_elements(&w->up[0]) + ek_weight_elements(&w->down[0]));
}

/* For an expert's values as they were read, and for its packed forms. */
size_t ek_expert_files_slot_bytes(const ek_model *m)
{
    size_t packed = ek_expert_store_slot_bytes(up_bytes(m), down_bytes(m));
    size_t values = ek_expert_reads_room(expert_elements(m) * ek_dtype_size(m->k->comp));
    size_t most = packed > values ? packed : values;

    return (most + EK_DISK_ALIGN - 1) / EK_DISK_ALIGN * EK_DISK_ALIGN;
}

int64_t ek_expert_files_buffers(int64_t slots)
{
    int64_t more = slots / SLOTS_A_BUFFER;

    return EK_EXPERT_BUFFERS + (more < MORE_BUFFERS ? more : MORE_BUFFERS);
}

size_t ek_expert_files_buffer_bytes(const ek_model *m, int64_t buffers)
{
    size_t n = expert_elements(m);
    size_t stored = strcmp(m->spec.torch_dtype, "bfloat16") == 0 ? 2 : sizeof(float);
    size_t least = EK_EXPERT_BUFFERS * ek_expert_reads_room(n * sizeof(float));
    size_t all = (size_t)buffers * ek_expert_reads_room(n * stored);

    return all > least ? all : least;
}

static void prefetch(void *context, const ek_expert_form *expert, int idle)
{
    ek_expert_files *x = context;

    ek_expert_reads_want(x->reads, expert, idle);
}

static void drop(void *context, const ek_expert_form *expert)
{
    ek_expert_files *x = context;

    if (x->reads != NULL)
        ek_expert_reads_drop(x->reads, expert);
}

static ek_status read_experts(void *context, int64_t n, ek_expert_form *experts)
{
    ek_expert_files *x = context;

    if (x->reads != NULL)
        return ek_expert_reads_read(x->reads, n, experts);
    for (int64_t i = 0; i < n; i++) {
        x->forms[2 * i] = (ek_weight_form){experts[i].up, experts[i].to_up};
        x->forms[2 * i + 1] = (ek_weight_form){experts[i].down, experts[i].to_down};
    }
    return ek_filler_read(x->filler, 2 * n, x->forms, NULL);
}

static ek_status pack_expert(void *context, ek_expert_form *expert)
{
    ek_expert_files *x = context;

    return ek_expert_reads_pack(x->reads, expert);
}

static void lend(void *context, void *memory)
{
    ek_expert_files *x = context;

    ek_expert_reads_lend(x->reads, memory);
}

static void *take_back(void *context)
{
    ek_expert_files *x = context;

    return ek_expert_reads_take_back(x->reads);
}

static void set_store(ek_expert_files *x, ek_expert_store *store)
{
    for (int32_t l = ek_model_next_moe(x->m, -1); l < (int32_t)x->m->spec.layers;
         l = ek_model_next_moe(x->m, l))
        x->m->layers[l].experts.store = store;
}

static ek_status list_layers(ek_expert_files *x)
{
    const ek_model *m = x->m;

    x->layer = calloc((size_t)m->spec.layers, sizeof(*x->layer));
    EK_REQUIRE(x->layer != NULL, EK_ENOMEM, "no memory for a list of layers");
    for (int32_t l = ek_model_next_moe(m, -1); l < (int32_t)m->spec.layers;
         l = ek_model_next_moe(m, l))
        x->layer[x->layers++] = (ek_expert_layer){&m->layers[l].experts, &m->layers[l].norm2};
    return EK_OK;
}

static ek_status open_store(ek_expert_files *x, const ek_expert_files_config *cfg)
{
    int64_t all = x->layers * x->m->spec.experts;
    ek_expert_store_config c = {.k = x->m->k,
                                .layer = x->layer,
                                .layers = x->layers,
                                .experts = (int32_t)x->m->spec.experts,
                                .slots = (int32_t)(cfg->slots < all ? cfg->slots : all),
                                .kept = (int32_t)(cfg->slots < all ? cfg->kept : all),
                                .ring = cfg->ring,
                                .up_bytes = up_bytes(x->m),
                                .down_bytes = down_bytes(x->m),
                                .slot_bytes = ek_expert_files_slot_bytes(x->m),
                                .eviction = cfg->eviction,
                                .source = {.drop = drop, .read = read_experts, .context = x},
                                .lookahead = x->lookahead,
                                .predict_tokens = cfg->lookahead};

    if (x->reads != NULL) {
        c.source.prefetch = prefetch;
        c.source.pack = pack_expert;
        c.source.lend = lend;
        c.source.take_back = take_back;
        c.source.buffers = ek_expert_reads_buffers(x->reads);
        c.source.lendable = ek_expert_reads_lendable(x->reads);
    }
    x->slots = c.slots;
    EK_TRY(ek_expert_store_create(&c, &x->store));
    set_store(x, x->store);
    return EK_OK;
}

/* Opens what experts are read by. */
static ek_status open_source(ek_expert_files *x, const ek_expert_files_config *cfg)
{
    ek_expert_reads_config reads = {.buffer_bytes = cfg->buffer_bytes,
                                    .lendable = cfg->ring ? 0 : EK_EXPERTS_LENT,
                                    .slot_bytes = ek_expert_files_slot_bytes(x->m),
                                    .backend = cfg->backend,
                                    .io = cfg->io};
    ek_value_source from;

    if (!cfg->mapped)
        return ek_expert_reads_create(x->m, x->files, &reads, &x->reads);
    EK_TRY(ek_file_maps_create(&x->values, &x->maps));
    from = ek_file_maps_source(x->maps);
    return ek_filler_create(x->m, &from, &x->filler);
}

ek_status ek_expert_files_open(ek_model *m, const char *path, const ek_expert_files_config *config,
                               ek_expert_files **out)
{
    ek_expert_files *x = calloc(1, sizeof(*x));
    ek_status st;

    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for the experts of %s", path);
    x->m = m;
    x->forms = calloc(2 * (size_t)m->spec.experts, sizeof(*x->forms));
    EK_REQUIRE_OUT(x->forms != NULL, EK_ENOMEM, "no memory for the experts of %s", path);
    EK_TRY_OUT(list_layers(x));
    EK_TRY_OUT(ek_slice_set_open(path, &x->files));
    x->values = (ek_hf_values){.spec = &m->spec, .files = x->files};
    EK_TRY_OUT(open_source(x, config));
    if (!config->mapped)
        EK_TRY_OUT(ek_expert_lookahead_create(m->k, &m->spec, &x->lookahead));
    EK_TRY_OUT(open_store(x, config));
    *out = x;
    x = NULL;
out:
    ek_expert_files_close(&x);
    return st;
}

void ek_expert_files_close(ek_expert_files **px)
{
    ek_expert_files *x = *px;

    if (x == NULL)
        return;
    set_store(x, NULL);
    ek_expert_reads_destroy(&x->reads); /* its calls in flight may write to memory of the store */
    ek_expert_store_destroy(&x->store);
    ek_expert_lookahead_destroy(&x->lookahead);
    ek_filler_destroy(&x->filler);
    ek_file_maps_destroy(&x->maps);
    ek_slice_set_close(&x->files);
    free(x->forms);
    free(x->layer);
    free(x);
    *px = NULL;
}

int64_t ek_expert_files_untouched(const ek_expert_files *x)
{
    ek_expert_files_stats s = ek_expert_files_get_stats(x);
    int64_t each = (int64_t)ek_expert_files_slot_bytes(x->m), buffers = 0;
    int64_t used = (s.store.uses - s.store.hits + s.store.lent) * each;
    int64_t left = x->slots * each - (used > s.store.touched_bytes ? used : s.store.touched_bytes);

    if (x->reads != NULL)
        buffers = (int64_t)ek_expert_reads_buffer_bytes(x->reads) - s.disk_bytes;
    return (left > 0 ? left : 0) + (buffers > 0 ? buffers : 0);
}

ek_expert_files_stats ek_expert_files_get_stats(const ek_expert_files *x)
{
    ek_expert_files_stats s = {.store = ek_expert_store_get_stats(x->store)};
    int64_t used;

    if (x->reads != NULL) {
        ek_expert_reads_traffic(x->reads, &s.disk_bytes, &used);
        s.wasted_bytes = s.disk_bytes - used;
    }
    return s;
}
