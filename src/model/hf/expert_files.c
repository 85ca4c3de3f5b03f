/* The source of a store of experts: forms filled from safetensors files. */
#include "model/hf/expert_files.h"

#include "model/hf/expert_reads.h"

#include <stdlib.h>

struct ek_expert_files {
    ek_model *m;
    ek_slice_set *files;
    ek_hf_values values;
    ek_expert_reads *reads; /* NULL: through the page cache, by the following */
    ek_filler *filler;
    ek_weight_form *forms; /* [2 experts] */
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

size_t ek_expert_files_slot_bytes(const ek_model *m)
{
    return ek_expert_store_slot_bytes(up_bytes(m), down_bytes(m));
}

size_t ek_expert_files_buffer_bytes(const ek_model *m)
{
    const ek_moe_weights *w = first_moe(m);
    int64_t elements = ek_weight_elements(&w->up[0]) + ek_weight_elements(&w->down[0]);

    return EK_EXPERT_BUFFERS * ek_disk_room((size_t)elements * sizeof(float));
}

static void prefetch(void *context, const ek_expert_form *expert)
{
    ek_expert_files *x = context;

    if (x->reads != NULL) {
        ek_expert_reads_want(x->reads, expert);
        return;
    }
    ek_filler_prefetch(x->filler, expert->up);
    ek_filler_prefetch(x->filler, expert->down);
}

static ek_status read_experts(void *context, int64_t n, const ek_expert_form *experts)
{
    ek_expert_files *x = context;

    if (x->reads != NULL)
        return ek_expert_reads_read(x->reads, n, experts);
    for (int64_t i = 0; i < n; i++) {
        x->forms[2 * i] = (ek_weight_form){experts[i].up, experts[i].to_up};
        x->forms[2 * i + 1] = (ek_weight_form){experts[i].down, experts[i].to_down};
    }
    return ek_filler_read(x->filler, 2 * n, x->forms);
}

static void set_store(ek_model *m, ek_expert_store *store)
{
    for (int32_t l = ek_model_next_moe(m, -1); l < (int32_t)m->spec.layers;
         l = ek_model_next_moe(m, l))
        m->layers[l].experts.store = store;
}

static ek_status open_store(ek_expert_files *x, int64_t slots, ek_eviction eviction)
{
    const ek_model_spec *s = &x->m->spec;
    int64_t most = s->layers * s->experts;
    ek_expert_store_config c = {.k = x->m->k,
                                .layers = (int32_t)s->layers,
                                .experts = (int32_t)s->experts,
                                .slots = (int32_t)(slots < most ? slots : most),
                                .up_bytes = up_bytes(x->m),
                                .down_bytes = down_bytes(x->m),
                                .eviction = eviction,
                                .source = {prefetch, read_experts, x}};

    EK_TRY(ek_expert_store_create(&c, &x->store));
    set_store(x->m, x->store);
    return EK_OK;
}

ek_status ek_expert_files_open(ek_model *m, const char *path, int64_t slots, ek_eviction eviction,
                               ek_expert_files **out)
{
    ek_expert_files *x = calloc(1, sizeof(*x));
    ek_value_source from;
    ek_status st;

    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for the experts of %s", path);
    x->m = m;
    x->forms = calloc(2 * (size_t)m->spec.experts, sizeof(*x->forms));
    EK_REQUIRE_OUT(x->forms != NULL, EK_ENOMEM, "no memory for the experts of %s", path);
    EK_TRY_OUT(ek_slice_set_open(path, &x->files));
    x->values = (ek_hf_values){.spec = &m->spec, .files = x->files};
    from = ek_hf_value_source(&x->values);
    EK_TRY_OUT(ek_filler_create(m, &from, &x->filler));
    EK_TRY_OUT(ek_expert_reads_create(m, x->files, &x->reads));
    EK_TRY_OUT(open_store(x, slots, eviction));
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
    set_store(x->m, NULL);
    ek_expert_store_destroy(&x->store);
    ek_expert_reads_destroy(&x->reads);
    ek_filler_destroy(&x->filler);
    ek_slice_set_close(&x->files);
    free(x->forms);
    free(x);
    *px = NULL;
}

ek_expert_store_stats ek_expert_files_stats(const ek_expert_files *x)
{
    return ek_expert_store_get_stats(x->store);
}

int ek_expert_files_are_direct(const ek_expert_files *x)
{
    return x->reads != NULL;
}
