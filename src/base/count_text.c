/* Counts, bytes and long times as people read them. */
#include "base/count_text.h"

#include <math.h>
#include <stdio.h>

int ek_decimals(double n)
{
    return n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
}

const char *ek_count_text(char *buf, size_t cap, double n)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t u = 0;

    while (n >= 999.5 && u + 1 < sizeof(units) / sizeof(units[0])) { /* which is printed as 1000 */
        n /= 1000;
        u++;
    }
    snprintf(buf, cap, "%.*f%s", u == 0 ? 0 : ek_decimals(n), n, units[u]);
    return buf;
}

const char *ek_number_text(char *buf, size_t cap, double n)
{
    if (n == floor(n) || n >= 999.5)
        return ek_count_text(buf, cap, n);
    if (n < 0.9995)
        snprintf(buf, cap, "%#.3g", n);
    else
        snprintf(buf, cap, "%.*f", ek_decimals(n), n);
    return buf;
}

const char *ek_bytes_text(char *buf, size_t cap, double bytes)
{
    char count[16];

    ek_count_text(count, sizeof(count), bytes);
    snprintf(buf, cap, bytes < 999.5 ? "%s B" : "%sB", count);
    return buf;
}

const char *ek_memory_text(char *buf, size_t cap, double bytes)
{
    static const char *const units[] = {"TiB", "GiB", "MiB", "KiB"};
    double unit = 0x1p40;
    char decimal[16];

    ek_bytes_text(decimal, sizeof(decimal), bytes);
    snprintf(buf, cap, "%s", decimal);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++, unit /= 1024)
        if (bytes >= unit) {
            double quarters = 4 * bytes / unit;

            if (quarters == floor(quarters))
                snprintf(buf, cap, "%s (%.*f %s)", decimal,
                         quarters == 4 * floor(bytes / unit) ? 0 : 2, bytes / unit, units[u]);
            break;
        }
    return buf;
}

const char *ek_time_text(char *buf, size_t cap, double seconds)
{
    static const struct {
        double until, unit_s;
        const char *name;
    } units[] = {{0.9995, 1e-3, "ms"},
                 {120, 1, "s"},
                 {7200, 60, "min"},
                 {3.6e6, 3600, "h"},
                 {0, 86400, "days"}};
    size_t u = 0;
    double x;

    if (!(seconds > 0)) {
        snprintf(buf, cap, "0 s");
        return buf;
    }
    while (units[u].until > 0 && seconds >= units[u].until)
        u++;
    x = seconds / units[u].unit_s;
    snprintf(buf, cap, "%.*f %s", ek_decimals(x), x, units[u].name);
    return buf;
}

const char *ek_duration_text(char *buf, size_t cap, double seconds)
{
    long s = (long)(seconds + 0.5);

    if (s >= 3600)
        snprintf(buf, cap, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, cap, "%ld:%02ld", s / 60, s % 60);
    return buf;
}
