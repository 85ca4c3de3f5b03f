/* Counts and bytes as people read them. */
#include "base/count_text.h"
#include "ek_test.h"

#include <string.h>

static void check_bytes(double bytes, const char *want)
{
    char text[32];

    if (strcmp(ek_bytes_text(text, sizeof(text), bytes), want) != 0)
        EK_T_FAIL("%g bytes are \"%s\", expected \"%s\"", bytes, text, want);
}

static void bytes_have_units(void)
{
    check_bytes(0, "0 B");
    check_bytes(999, "999 B");
    check_bytes(1000, "1.00 kB");
    check_bytes(1 << 20, "1.05 MB");
    check_bytes(23.42e9, "23.4 GB");
    check_bytes(2e15, "2.00 PB");
}

static void rounding_reaches_the_next_unit(void)
{
    check_bytes(999.4, "999 B");
    check_bytes(999.6, "1.00 kB");
    check_bytes(999499, "999 kB");
    check_bytes(999999, "1.00 MB");
    check_bytes(9996, "10.0 kB");
    check_bytes(99960, "100 kB");
}

/* At every rounding the text of a number has three digits. */
static void three_digits(void)
{
    static const double x[] = {1, 9.994, 9.996, 30, 99.94, 99.96, 999.4};
    static const char *const want[] = {"1.00", "9.99", "10.0", "30.0", "99.9", "100", "999"};

    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        char text[16];

        snprintf(text, sizeof(text), "%.*f", ek_decimals(x[i]), x[i]);
        if (strcmp(text, want[i]) != 0)
            EK_T_FAIL("%g is \"%s\", expected \"%s\"", x[i], text, want[i]);
    }
}

static void means_have_digits_and_counts_none(void)
{
    static const double x[] = {0,   1,     14,    0.142857, 0.1,   0.9996,
                               1.5, 14.29, 135.4, 999.6,    15837, 3e-5};
    static const char *const want[] = {"0",    "1",    "14",  "0.143",  "0.100",  "1.00",
                                       "1.50", "14.3", "135", "1.00 k", "15.8 k", "3.00e-05"};

    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        char text[16];

        if (strcmp(ek_number_text(text, sizeof(text), x[i]), want[i]) != 0)
            EK_T_FAIL("%g is \"%s\", expected \"%s\"", x[i], text, want[i]);
    }
}

static void memory_has_the_binary_unit_it_was_given_in(void)
{
    static const double x[] = {512, 80 * 0x1p30, 1.5 * 0x1p30, 80e9, 0x1p20, 0x1p40, 0x1p30 + 1};
    static const char *const want[] = {"512 B",   "85.9 GB (80 GiB)", "1.61 GB (1.50 GiB)",
                                       "80.0 GB", "1.05 MB (1 MiB)",  "1.10 TB (1 TiB)",
                                       "1.07 GB"};

    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        char text[32];

        if (strcmp(ek_memory_text(text, sizeof(text), x[i]), want[i]) != 0)
            EK_T_FAIL("%g bytes are \"%s\", expected \"%s\"", x[i], text, want[i]);
    }
}

static void times_have_units(void)
{
    static const double x[] = {0, 0.5, 0.9999, 119, 142, 86400, 3.6e6 - 1, 42 * 86400};
    static const char *const want[] = {"0 s",      "500 ms", "1.00 s", "119 s",
                                       "2.37 min", "24.0 h", "1000 h", "42.0 days"};

    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        char text[32];

        if (strcmp(ek_time_text(text, sizeof(text), x[i]), want[i]) != 0)
            EK_T_FAIL("%g s are \"%s\", expected \"%s\"", x[i], text, want[i]);
    }
}

static const ek_case cases[] = {EK_CASE(bytes_have_units),
                                EK_CASE(rounding_reaches_the_next_unit),
                                EK_CASE(three_digits),
                                EK_CASE(means_have_digits_and_counts_none),
                                EK_CASE(memory_has_the_binary_unit_it_was_given_in),
                                EK_CASE(times_have_units)};
EK_TEST_MAIN(cases)
