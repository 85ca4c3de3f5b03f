/* Expected names and shapes are those in files that transformers wrote. */
#include "base/file.h"
#include "base/json.h"
#include "ek_test.h"
#include "model/hf/config.h"
#include "model/hf/names.h"

#define MODELS EK_TEST_DATA "/golden/models/"

/* Adds the header of one safetensors file to `all`: name -> {shape, ...}. */
static void add_header(const char *path, json_t *all)
{
    ek_file_map f;
    json_t *head = NULL;
    uint64_t bytes;

    if (ek_file_map_open(path, &f) < 0) {
        EK_T_FAIL("%s", ek_err_text());
        return;
    }
    memcpy(&bytes, f.data, sizeof(bytes));
    if (ek_json_parse((const char *)f.data + 8, bytes, path, &head) < 0)
        EK_T_FAIL("%s", ek_err_text());
    json_object_del(head, "__metadata__");
    json_object_update(all, head);
    json_decref(head);
    ek_file_map_close(&f);
}

/* All tensors of a golden folder. */
static json_t *headers(const char *name)
{
    json_t *all = json_object();
    char path[512];
    ek_names l = {0};

    snprintf(path, sizeof(path), MODELS "%s", name);
    if (ek_folder_entries(path, &l) < 0)
        EK_T_FAIL("%s", ek_err_text());
    for (int64_t i = 0; i < l.n; i++) {
        size_t n = strlen(l.names[i]);

        if (strncmp(l.names[i], "model", 5) != 0 || n < 12 ||
            strcmp(l.names[i] + n - 12, ".safetensors") != 0)
            continue;
        snprintf(path, sizeof(path), MODELS "%s/%s", name, l.names[i]);
        add_header(path, all);
    }
    ek_names_free(&l);
    return all;
}

static int same_shape(const json_t *entry, int dims, const int64_t *shape)
{
    const json_t *s = json_object_get(entry, "shape");
    int same = (int)json_array_size(s) == dims;

    for (int d = 0; d < dims && same; d++)
        same = json_integer_value(json_array_get(s, (size_t)d)) == shape[d];
    return same;
}

/* Every tensor is found in the folder under one of its names, with its shape, and every element of
 * every tensor of the folder is used exactly once. */
static void covers(const char *folder, int grouped)
{
    json_t *all = headers(folder), *entry;
    ek_model_spec m;
    const char *name;
    char path[512];
    int alternatives = 0;

    snprintf(path, sizeof(path), MODELS "%s/config.json", folder);
    CHECK(ek_hf_config_read(path, &m) == EK_OK);
    for (int64_t i = 0; i < ek_hf_count(&m); i++) {
        ek_hf_source s = {0};
        ek_hf_tensor t;
        int ok;

        ek_hf_tensor_at(&m, i, &t);
        entry = json_object_get(all, t.name);
        if (entry != NULL) {
            ok = same_shape(entry, t.dims, t.shape);
            s.count = t.shape[0] * (t.dims == 2 ? t.shape[1] : 1);
        } else {
            ok = ek_hf_alternative(&m, &t, &s);
            entry = json_object_get(all, s.name);
            ok = ok && same_shape(entry, s.dims, s.shape);
            alternatives++;
        }
        if (!ok)
            EK_T_FAIL("%s: %s is not there, or in another shape", folder, t.name);
        /* the parts of a tensor come in the order of their elements */
        for (int64_t e = 0; e < s.count; e++) {
            char mark[32];

            snprintf(mark, sizeof(mark), "%lld", (long long)(s.first + e));
            if (json_object_get(entry, mark) != NULL)
                EK_T_FAIL("%s: element %s of %s is wanted twice", folder, mark, t.name);
            json_object_set_new(entry, mark, json_true());
        }
    }
    json_object_foreach(all, name, entry)
    {
        const json_t *at = json_object_get(entry, "data_offsets");
        size_t width = strcmp(json_string_value(json_object_get(entry, "dtype")), "BF16") ? 4 : 2;
        int64_t bytes =
            json_integer_value(json_array_get(at, 1)) - json_integer_value(json_array_get(at, 0));

        if (json_object_size(entry) - 3 != (size_t)bytes / width)
            EK_T_FAIL("%s: %s is not wanted, or in part", folder, name);
    }
    CHECK(grouped == (alternatives > 0));
    json_decref(all);
}

static void names_are_those_in_the_files(void)
{
    covers("mixtral", 0);
    covers("mixtral_sharded_bf16", 0);
    covers("olmoe", 0);
    covers("qwen2_moe", 0);
    covers("qwen2_moe_dense", 0);
    covers("qwen3_moe", 0);
}

static void grouped_files_are_covered_by_alternatives(void)
{
    covers("mixtral_grouped", 1);
    covers("qwen3_moe_grouped", 1);
}

static void numbers_and_roles_agree(void)
{
    static const char *const folders[] = {"mixtral", "olmoe", "qwen2_moe_dense", "qwen3_moe"};

    for (size_t f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
        ek_model_spec m;
        char path[512];

        snprintf(path, sizeof(path), MODELS "%s/config.json", folders[f]);
        CHECK(ek_hf_config_read(path, &m) == EK_OK);
        for (int64_t i = 0; i < ek_hf_count(&m); i++) {
            ek_hf_tensor t, u;

            ek_hf_tensor_at(&m, i, &t);
            CHECK(ek_hf_tensor_of(&m, t.role, t.layer, t.expert, &u));
            CHECK(memcmp(&t, &u, sizeof(t)) == 0);
        }
    }
}

static void absent_roles_are_absent(void)
{
    ek_model_spec m;
    ek_hf_tensor t;
    ek_hf_source s;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_Q_BIAS, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_Q_NORM, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_ROUTER_BIAS, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_ROUTER_SCALE, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_ROUTER_PROJECTION, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_SHARED_UP, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_DENSE_UP, 0, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_ROUTER, m.layers, -1, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_EXPERT_UP, 0, m.experts, &t));
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_EXPERT_UP, 0, -1, &t));
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_HEAD, -1, -1, &t));
    CHECK(!ek_hf_alternative(&m, &t, &s));
    m.tie_embeddings = 1;
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_HEAD, -1, -1, &t));
}

static void own_gates_have_names(void)
{
    ek_model_spec m;
    ek_hf_tensor t;
    int64_t plain;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    plain = ek_hf_count(&m);
    m.gate.kind = EK_GATE_SIGMOID_BIAS;
    m.shared_ff = 48;
    CHECK_INT(ek_hf_count(&m), plain + 4 * m.layers);
    m.shared_gated = 1;
    CHECK_INT(ek_hf_count(&m), plain + 5 * m.layers);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_ROUTER_BIAS, 3, -1, &t));
    CHECK(strcmp(t.name, "model.layers.3.block_sparse_moe.gate.e_score_correction_bias") == 0);
    CHECK_INT(t.dims, 1);
    CHECK_INT(t.shape[0], 8);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_SHARED_ROUTER, 0, -1, &t));
    CHECK(strcmp(t.name, "model.layers.0.block_sparse_moe.shared_expert_gate.weight") == 0);
    CHECK_INT(t.shape[0], 1);
    CHECK_INT(t.shape[1], m.hidden);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_SHARED_DOWN, 0, -1, &t));
    CHECK_INT(t.shape[1], 48);
}

static void a_cosine_router_has_names(void)
{
    ek_model_spec m;
    ek_hf_tensor t;
    int64_t plain;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    plain = ek_hf_count(&m);
    m.router_dim = 24;
    CHECK_INT(ek_hf_count(&m), plain + 2 * m.layers);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_ROUTER, 1, -1, &t));
    CHECK(strcmp(t.name, "model.layers.1.block_sparse_moe.gate.weight") == 0);
    CHECK_INT(t.shape[0], 8);
    CHECK_INT(t.shape[1], 24);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_ROUTER_PROJECTION, 1, -1, &t));
    CHECK(strcmp(t.name, "model.layers.1.block_sparse_moe.gate.projection.weight") == 0);
    CHECK_INT(t.shape[0], 24);
    CHECK_INT(t.shape[1], m.hidden);
    CHECK(ek_hf_tensor_of(&m, EK_ROLE_ROUTER_SCALE, 1, -1, &t));
    CHECK(strcmp(t.name, "model.layers.1.block_sparse_moe.gate.log_scale") == 0);
    CHECK_INT(t.dims, 1);
    CHECK_INT(t.shape[0], 1);
    m.dense[1] = 1;
    CHECK(!ek_hf_tensor_of(&m, EK_ROLE_ROUTER_SCALE, 1, -1, &t));
}

/* gradient norms were stored under the same names */
static void golden_gradients_have_our_names(void)
{
    static const char *const folders[] = {"mixtral_grouped", "qwen2_moe_dense", "qwen3_moe_grouped",
                                          "qwen3_moe"};

    for (size_t f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
        ek_model_spec m;
        json_t *golden = NULL;
        const json_t *norms;
        char path[512];

        snprintf(path, sizeof(path), MODELS "%s/config.json", folders[f]);
        CHECK(ek_hf_config_read(path, &m) == EK_OK);
        snprintf(path, sizeof(path), MODELS "%s/golden.json", folders[f]);
        CHECK(ek_json_read(path, &golden) == EK_OK);
        norms = json_object_get(golden, "grad_norm");
        CHECK_INT((int64_t)json_object_size(norms), ek_hf_count(&m));
        for (int64_t i = 0; i < ek_hf_count(&m); i++) {
            ek_hf_tensor t;

            ek_hf_tensor_at(&m, i, &t);
            if (json_object_get(norms, t.name) == NULL)
                EK_T_FAIL("%s: no gradient of %s", folders[f], t.name);
        }
        json_decref(golden);
    }
}

static const ek_case cases[] = {
    EK_CASE(names_are_those_in_the_files),    EK_CASE(grouped_files_are_covered_by_alternatives),
    EK_CASE(numbers_and_roles_agree),         EK_CASE(absent_roles_are_absent),
    EK_CASE(a_cosine_router_has_names),       EK_CASE(own_gates_have_names),
    EK_CASE(golden_gradients_have_our_names),
};

EK_TEST_MAIN(cases)
