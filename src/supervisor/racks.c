/* The environment variable that tells workers the rack of each rank. */
#include "supervisor/racks.h"

#include <stdint.h>
#include <stdlib.h>

ek_status ek_racks_set(const char *list)
{
    int failed = list != NULL ? setenv(EK_RACKS_VARIABLE, list, 1) : unsetenv(EK_RACKS_VARIABLE);

    EK_REQUIRE(failed == 0, EK_ENOMEM, "no memory for an environment variable");
    return EK_OK;
}

/* Parses "SLOTS:RACK" and moves *text past it and a comma; returns 0 on a syntax error. */
static int read_host(const char **text, long *slots, long *rack)
{
    char *end;

    *slots = strtol(*text, &end, 10);
    if (end == *text || *end != ':' || *slots < 1)
        return 0;
    *text = end + 1;
    *rack = strtol(*text, &end, 10);
    if (end == *text || *rack < 0 || *rack >= INT32_MAX || (*end != ',' && *end != '\0'))
        return 0;
    *text = *end == ',' ? end + 1 : end;
    return 1;
}

ek_status ek_racks_get(int ranks, int **rack_of)
{
    const char *list = getenv(EK_RACKS_VARIABLE), *at = list;

    *rack_of = NULL;
    if (list == NULL || *list == '\0')
        return EK_OK;
    *rack_of = calloc((size_t)ranks, sizeof(**rack_of));
    EK_REQUIRE(*rack_of != NULL, EK_ENOMEM, "no memory for the racks of %d ranks", ranks);
    for (int r = 0; r < ranks;) {
        long slots, rack;

        if (!read_host(&at, &slots, &rack)) {
            free(*rack_of);
            *rack_of = NULL;
            return EK_OK;
        }
        for (; slots > 0 && r < ranks; slots--)
            (*rack_of)[r++] = (int)rack;
        at = *at == '\0' ? list : at;
    }
    return EK_OK;
}
