/* Settings that change at given steps. */
#include "ek_test.h"
#include "train/value_schedule.h"

#include <math.h>
#include <string.h>

static ek_status parse(const char *text, int whole, ek_value_schedule *s)
{
    return ek_value_schedule_parse("top-k-schedule", text, 1, 8, whole, s);
}

static void a_value_holds_from_its_step_until_the_next(void)
{
    static const double expected[] = {6, 6, 4, 4, 4, 1.5, 1.5};
    ek_value_schedule s;

    CHECK(parse("2:4,5:1.5", 0, &s) == EK_OK);
    CHECK_INT(s.n, 2);
    for (int64_t step = 0; step < (int64_t)(sizeof(expected) / sizeof(expected[0])); step++)
        CHECK(fabs(ek_value_schedule_at(&s, step, 6) - (expected[step])) < 1e-12);
    CHECK(fabs(ek_value_schedule_at(&s, INT64_MAX, 6) - (1.5)) < 1e-12);
}

static void none_leaves_the_value_before(void)
{
    ek_value_schedule s;

    CHECK(parse(NULL, 1, &s) == EK_OK);
    CHECK(fabs(ek_value_schedule_at(&s, 100, 2) - (2)) < 1e-12);
}

static void mistakes_are_named(void)
{
    static const char *const wrong[][2] = {
        {"", "STEP:VALUE"},
        {"2", "STEP:VALUE"},
        {"2:", "STEP:VALUE"},
        {":2", "STEP:VALUE"},
        {"-1:2", "STEP:VALUE"},
        {"1:2,", "STEP:VALUE"},
        {"1:2 ", "STEP:VALUE"},
        {"1:nan", "STEP:VALUE"},
        {"1:2;2:3", "STEP:VALUE"},
        {"99999999999999999999:2", "STEP:VALUE"},
        {"3:2,3:4", "does not come after step 3"},
        {"3:2,1:4", "does not come after step 3"},
        {"0:0", "from 1 to 8"},
        {"0:9", "from 1 to 8"},
        {"0:1.5", "an integer"},
    };
    ek_value_schedule s;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (parse(wrong[i][0], 1, &s) != EK_EINVAL ||
            strstr(ek_err_message(), wrong[i][1]) == NULL ||
            strstr(ek_err_message(), "--top-k-schedule") == NULL)
            EK_T_FAIL("`%s`: %s", wrong[i][0], ek_err_message());
}

static void too_many_entries_are_refused(void)
{
    char text[8 * (EK_VALUE_SCHEDULE_MAX + 1)];
    ek_value_schedule s;
    size_t n = 0;

    for (int i = 0; i <= EK_VALUE_SCHEDULE_MAX; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%d:2", i > 0 ? "," : "", i);
        CHECK(parse(text, 1, &s) == (i < EK_VALUE_SCHEDULE_MAX ? EK_OK : EK_EINVAL));
    }
}

static const ek_case cases[] = {
    EK_CASE(a_value_holds_from_its_step_until_the_next),
    EK_CASE(none_leaves_the_value_before),
    EK_CASE(mistakes_are_named),
    EK_CASE(too_many_entries_are_refused),
};
EK_TEST_MAIN(cases)
