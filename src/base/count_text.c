/* Counts and bytes as people read them. */
#include "base/count_text.h"

#include <stdio.h>

const char *ek_count_text(char *buf, size_t cap, double n)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t u = 0;

    while (n >= 1000 && u + 1 < sizeof(units) / sizeof(units[0])) {
        n /= 1000;
        u++;
    }
    snprintf(buf, cap,
             u == 0    ? "%.0f%s"
             : n < 10  ? "%.2f%s"
             : n < 100 ? "%.1f%s"
                       : "%.0f%s",
             n, units[u]);
    return buf;
}
