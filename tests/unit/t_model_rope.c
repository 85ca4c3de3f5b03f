/* Rotary frequencies and attention factors of every type of rope scaling equal those of Hugging
 * Face transformers (tests/golden/make_rope.py); the table holds their cosines and sines. */
#include "base/json.h"
#include "ek_test.h"
#include "model/blocks/rope.h"
#include "model/hf/config.h"

#define RELATIVE 1e-12 /* both are computed in double */

static int read_case(const json_t *c, size_t number, ek_model_spec *m)
{
    char *text = json_dumps(json_object_get(c, "config"), 0);
    ek_status st = ek_hf_config_parse(text, strlen(text), "config", m);

    if (st < 0)
        EK_T_FAIL("case %zu: %s", number, ek_err_message());
    free(text);
    return st == EK_OK;
}

static void near_golden(double got, double want, size_t number, const char *what)
{
    if (!(fabs(got - want) <= RELATIVE * fabs(want)))
        EK_T_FAIL("case %zu, %s: %.17g, transformers has %.17g", number, what, got, want);
}

static void frequencies_are_those_of_transformers(void)
{
    json_t *cases = NULL;
    ek_model_spec m;

    CHECK(ek_json_read(EK_TEST_DATA "/golden/rope.json", &cases) == EK_OK);
    CHECK(json_array_size(cases) >= 17);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_object_get(c, "inv_freq");
        int64_t length = json_integer_value(json_object_get(c, "length"));

        if (!read_case(c, i, &m))
            continue;
        CHECK(m.rope.type != EK_ROPE_DEFAULT);
        CHECK_INT((int64_t)json_array_size(want), m.head_dim / 2);
        for (size_t p = 0; p < json_array_size(want); p++)
            near_golden(ek_rope_frequency(&m, length, (int64_t)p),
                        json_number_value(json_array_get(want, p)), i, "frequency");
        near_golden(ek_rope_attention_factor(&m),
                    json_number_value(json_object_get(c, "attention_factor")), i,
                    "attention factor");
    }
    json_decref(cases);
}

/* Rows of a table of 9 positions and 4 pairs, filled in two parts. */
static void a_table_holds_scaled_cosines_and_sines(void)
{
    double table[9 * 8] = {0};
    ek_model_spec m;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    m.head_dim = 8;
    m.max_positions = 6;
    m.rope = (ek_rope_scaling){.type = EK_ROPE_YARN,
                               .factor = 2,
                               .original_positions = 3,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .attention_factor = 1.5};
    ek_rope_fill(&m, 9, 0, 4, EK_F64, table);
    CHECK(table[4 * 8] == 0);
    ek_rope_fill(&m, 9, 4, 5, EK_F64, table);
    for (int t = 0; t < 9; t++)
        for (int i = 0; i < 4; i++) {
            double angle = t * ek_rope_frequency(&m, 9, i);

            CHECK(fabs(table[t * 8 + i] - 1.5 * cos(angle)) < 1e-15);
            CHECK(fabs(table[t * 8 + 4 + i] - 1.5 * sin(angle)) < 1e-15);
        }
}

static void only_dynamic_tables_differ_by_length_beyond_the_maximum(void)
{
    ek_model_spec m;

    CHECK(ek_model_preset("tiny", &m) == EK_OK);
    m.max_positions = 100;
    m.rope.factor = 4;
    CHECK_INT(ek_model_longest(&m), 100);
    for (int type = EK_ROPE_DEFAULT; type <= EK_ROPE_YARN; type++) {
        m.rope.type = (ek_rope_type)type;
        CHECK_INT(ek_rope_differs(&m, 300, 200), type == EK_ROPE_DYNAMIC);
        CHECK_INT(ek_rope_differs(&m, 300, 20), type == EK_ROPE_DYNAMIC);
        CHECK_INT(ek_rope_differs(&m, 100, 20), 0);
        CHECK_INT(ek_rope_differs(&m, 300, 300), 0);
        CHECK_INT(ek_model_longest(&m), type == EK_ROPE_DYNAMIC ? 400 : 100);
    }
}

static const ek_case cases[] = {
    EK_CASE(frequencies_are_those_of_transformers),
    EK_CASE(a_table_holds_scaled_cosines_and_sines),
    EK_CASE(only_dynamic_tables_differ_by_length_beyond_the_maximum),
};

EK_TEST_MAIN(cases)
