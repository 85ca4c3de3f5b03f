/* base/team.h - failures in a team of threads: the message of the first job that failed, for the
 * thread that started the team (messages belong to a thread). */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "evenkeel/err.h"

#include <stdint.h>

/* Starts as {.index = -1}. */
typedef struct {
    int64_t index; /* least index of a job that failed; -1: none */
    ek_status st;
    char text[1024];
} ek_team_failure;

/* Records the calling thread's failure of job `index`. */
void ek_team_record(ek_team_failure *first, int64_t index, ek_status st);

/* Whether a job has failed so far. */
int ek_team_has_failed(ek_team_failure *first);

/* The failure, raised in the calling thread; EK_OK if there is none. */
EK_CHECKED ek_status ek_team_result(const ek_team_failure *first);

#endif
