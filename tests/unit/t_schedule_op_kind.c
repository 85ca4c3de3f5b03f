/* The table of op kinds: every kind has an entry of its own, and what the entries say agrees. */
#include "ek_test.h"
#include "schedule/op_kind.h"

#include <string.h>

static void every_kind_has_a_name_of_its_own(void)
{
    for (int i = 0; i < EK_OP_KINDS; i++) {
        const char *name = ek_op_name((ek_op_kind)i);

        if (name == NULL || name[0] == '\0') {
            EK_T_FAIL("kind %d has no name", i);
            continue;
        }
        for (int j = 0; j < i; j++)
            if (strcmp(name, ek_op_name((ek_op_kind)j)) == 0)
                EK_T_FAIL("kinds %d and %d are both called %s", j, i, name);
    }
}

static void every_group_has_a_name_of_its_own_and_an_op(void)
{
    for (int g = 0; g < EK_OP_GROUPS; g++) {
        int ops = 0;

        CHECK(ek_op_group_name((ek_op_group)g) != NULL);
        for (int h = 0; h < g; h++)
            CHECK(strcmp(ek_op_group_name((ek_op_group)g), ek_op_group_name((ek_op_group)h)) != 0);
        for (int i = 0; i < EK_OP_KINDS; i++)
            ops += ek_op_info_of((ek_op_kind)i)->group == (ek_op_group)g;
        CHECK(ops > 0);
    }
}

static void an_expert_layer_has_its_products_and_no_attention(void)
{
    for (int i = 0; i < EK_OP_KINDS; i++) {
        const ek_op_info *op = ek_op_info_of((ek_op_kind)i);

        if (op->group == EK_OP_GROUP_EXPERTS || op->group == EK_OP_GROUP_DISPATCH)
            CHECK(op->of_expert_layer);
        if (op->group == EK_OP_GROUP_ATTENTION || op->group == EK_OP_GROUP_OPTIMIZER)
            CHECK(!op->of_expert_layer);
    }
}

static const ek_case cases[] = {
    EK_CASE(every_kind_has_a_name_of_its_own),
    EK_CASE(every_group_has_a_name_of_its_own_and_an_op),
    EK_CASE(an_expert_layer_has_its_products_and_no_attention),
};

EK_TEST_MAIN(cases)
