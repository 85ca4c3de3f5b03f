/* Settings that change at given steps: parsing and lookup. */
#include "train/value_schedule.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parses an entry at *at and advances it; returns 0 if there is no valid entry. */
static int parse_entry(const char **at, int64_t *step, double *value)
{
    char *end;

    if (**at < '0' || **at > '9')
        return 0;
    errno = 0;
    *step = strtoll(*at, &end, 10);
    if (errno != 0 || *end != ':')
        return 0;
    *at = end + 1;
    if (strchr("+-.0123456789", **at) == NULL || **at == '\0')
        return 0;
    *value = strtod(*at, &end);
    if (end == *at || !isfinite(*value) || (*end != ',' && *end != '\0'))
        return 0;
    *at = end;
    return 1;
}

ek_status ek_value_schedule_parse(const char *option, const char *text, double least, double most,
                                  int whole, ek_value_schedule *out)
{
    out->n = 0;
    for (const char *at = text, *entry = text; at != NULL; entry = ++at) {
        int64_t step;
        double value;

        EK_REQUIRE(out->n < EK_VALUE_SCHEDULE_MAX, EK_EINVAL, "--%s has more than %d entries",
                   option, EK_VALUE_SCHEDULE_MAX);
        EK_REQUIRE(parse_entry(&at, &step, &value), EK_EINVAL,
                   "--%s: %s is not STEP:VALUE,STEP:VALUE,...", option, entry);
        EK_REQUIRE(out->n == 0 || step > out->step[out->n - 1], EK_EINVAL,
                   "--%s: step %lld does not come after step %lld", option, (long long)step,
                   (long long)out->step[out->n - 1]);
        EK_REQUIRE(value >= least && value <= most && (!whole || floor(value) >= value), EK_EINVAL,
                   "--%s: %g at step %lld is not %s from %g to %g", option, value, (long long)step,
                   whole ? "an integer" : "a number", least, most);
        out->step[out->n] = step;
        out->value[out->n++] = value;
        if (*at == '\0')
            break;
    }
    return EK_OK;
}

double ek_value_schedule_at(const ek_value_schedule *s, int64_t step, double before)
{
    double value = before;

    for (int i = 0; i < s->n && s->step[i] <= step; i++)
        value = s->value[i];
    return value;
}
