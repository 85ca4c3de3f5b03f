/* The shared scratch is large enough for each kind of layer. */
#include "ek_test.h"
#include "moe/moe.h"
#include "tensor/select/select.h"

enum { TOKENS = 8, THREADS = 8 };

/* A workspace is not monotone in the width: strips of a wider product may hold fewer rows.  So a
 * dense layer a little wider than the shared expert must not set the size alone. */
static void the_workspace_fits_shared_and_dense_layers(void)
{
    const int64_t widths[][2] = {{4096, 4100}, {4100, 4096}, {2048, 2050}, {6144, 6150}};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        ek_model_spec spec;
        ek_moe_scratch s = {0};
        ek_kernels *k = NULL;
        ek_arena a;
        size_t room;

        ek_model_default(&spec);
        spec.hidden = 64;
        spec.experts = 2;
        spec.top_k = 1;
        spec.ff = 32;
        spec.shared_ff = widths[i][0];
        spec.dense_ff = widths[i][1];
        spec.layers = 2;
        spec.dense[0] = 1;
        CHECK_INT(ek_kernels_create(EK_MODE_FP32, EK_ISA_AVX512_BF16, THREADS, &k), EK_OK);
        CHECK_INT(ek_arena_init(&a, 256 << 20, "the test"), EK_OK);
        ek_moe_reserve_scratch(&s, &a, k, &spec, &ek_mesh_one, &(ek_moe_config){0},
                               &(ek_moe_limits){TOKENS, TOKENS, TOKENS, 0}, 1);
        room = (size_t)((char *)s.y_real - (char *)s.ws);
        for (int j = 0; j < 2; j++) {
            CHECK(room >= k->linear_workspace(k, TOKENS, 1, 2 * widths[i][j], spec.hidden));
            CHECK(room >= k->linear_workspace(k, TOKENS, 1, spec.hidden, widths[i][j]));
        }
        ek_arena_fini(&a);
        ek_kernels_destroy(&k);
    }
}

static const ek_case cases[] = {
    EK_CASE(the_workspace_fits_shared_and_dense_layers),
};

EK_TEST_MAIN(cases)
