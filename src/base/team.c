/* The first failure of a team of OpenMP threads. */
#include "base/team.h"

#include <stdio.h>

void ek_team_record(ek_team_failure *first, int64_t index, ek_status st)
{
#pragma omp critical(ek_team)
    if (first->index < 0 || index < first->index) {
        first->index = index;
        first->st = st;
        (void)snprintf(first->text, sizeof(first->text), "%s", ek_err_message());
    }
}

int ek_team_has_failed(ek_team_failure *first)
{
    int failed;

#pragma omp critical(ek_team)
    failed = first->index >= 0;
    return failed;
}

ek_status ek_team_result(const ek_team_failure *first)
{
    return first->index < 0 ? EK_OK : EK_FAIL(first->st, "%s", first->text);
}
