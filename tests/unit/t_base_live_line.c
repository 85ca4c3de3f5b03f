/* The live line takes one row of any terminal, and other output starts on a new row. */
#include "base/live_line.h"
#include "cli/cli.h"
#include "ek_test.h"

static const char step[] =
    "step 123/100000  loss 5.8058  1.23 k tokens/s  balance 1.05  left 1:23:45";

static void fits(const char *text, size_t columns, const char *want)
{
    char out[256];
    size_t n = ek_live_line_fit(text, strlen(text), columns, out, sizeof(out));

    CHECK_INT((int64_t)n, (int64_t)strlen(want));
    if (strcmp(out, want) != 0)
        EK_T_FAIL("%zu columns: \"%s\", expected \"%s\"", columns, out, want);
}

static void fields_are_left_out(void)
{
    fits(step, 79, step);
    fits(step, strlen(step), step);
    fits(step, strlen(step) - 1, "step 123/100000  loss 5.8058  1.23 k tokens/s  left 1:23:45");
    fits(step, 49, "step 123/100000  loss 5.8058  left 1:23:45");
    fits(step, 40, "step 123/100000  loss 5.8058");
    fits(step, 19, "step 123/100000");
    fits(step, 4, "step");
    fits(step, 0, "");
    fits("", 10, "");
}

static void wide_characters(void)
{
    fits("漢字かな", 8, "漢字かな");
    fits("漢字かな", 7, "漢字か");
    fits("漢  字  か  な", 12, "漢  字  な");
    fits("e\xcc\x81t\xc3\xa9", 3, "e\xcc\x81t\xc3\xa9"); /* a combining accent takes no column */
    fits("e\xcc\x81t\xc3\xa9", 2, "e\xcc\x81t");
    fits("\xff\xfe?", 2, "\xff\xfe"); /* invalid UTF-8: one column per byte */
}

static void small_buffers(void)
{
    char out[8];

    CHECK_INT((int64_t)ek_live_line_fit("ab  cd  ef", 10, 80, out, sizeof(out)), 6);
    CHECK(strcmp(out, "ab  cd") == 0);
    CHECK_INT((int64_t)ek_live_line_fit("ab  cde", 7, 80, out, sizeof(out)), 7);
    CHECK(strcmp(out, "ab  cde") == 0);
    CHECK_INT((int64_t)ek_live_line_fit("ab  cdef", 8, 80, out, sizeof(out)),
              2); /* no room for a 0 */
    CHECK(strcmp(out, "ab") == 0);
}

/* If the width is not known, the line is passed on uncut: the launcher cuts it. */
static void output_around_it(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);

    CHECK(f != NULL);
    ek_command_set_err(f);
    CHECK(strcmp(ek_live_line_end(), "") == 0);
    ek_live_line_show("%s", step);
    fprintf(f, "%swarning: x\n", ek_live_line_end());
    fprintf(f, "%swarning: y\n", ek_live_line_end());
    ek_live_line_show("step 2");
    fputs(ek_live_line_end(), f);
    ek_command_set_err(NULL);
    CHECK(fclose(f) == 0);
    CHECK(text[0] == '\r' && strncmp(text + 1, step, sizeof(step) - 1) == 0);
    CHECK(strcmp(text + sizeof(step), "\nwarning: x\nwarning: y\n\rstep 2\n") == 0);
    free(text);
}

static const ek_case cases[] = {
    EK_CASE(fields_are_left_out),
    EK_CASE(wide_characters),
    EK_CASE(small_buffers),
    EK_CASE(output_around_it),
};
EK_TEST_MAIN(cases)
