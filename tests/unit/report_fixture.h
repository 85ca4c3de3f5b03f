/* report_fixture.h - a supervisor with four hosts, and what it prints on stderr. */
#ifndef REPORT_FIXTURE_H
#define REPORT_FIXTURE_H

#include "ek_test.h"
#include "supervisor/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS = 4 };

static ek_supervisor_config config;
static ek_supervisor sup;
static ek_core_host host[HOSTS];

/* Hosts a, b, c and d, of which none is in use. */
static inline void begin(void)
{
    memset(&sup, 0, sizeof(sup));
    memset(host, 0, sizeof(host));
    config = (ek_supervisor_config){.command = "train"};
    sup.config = &config;
    sup.generation.job.death = (ek_worker_death){-1, -1, -1, -1, ""};
    sup.core.hosts.host = host;
    sup.core.hosts.n = HOSTS;
    for (int i = 0; i < HOSTS; i++) {
        host[i].host.name[0] = (char)('a' + i);
        host[i].number = 10 + i;
    }
}

static FILE *terminal; /* stderr as it was */
static char *said;
static size_t said_bytes;

/* From here to check_stderr(), stderr is in memory. */
static inline void listen_stderr(void)
{
    terminal = stderr;
    stderr = open_memstream(&said, &said_bytes);
}

static inline void check_stderr(const char *want)
{
    fclose(stderr);
    stderr = terminal;
    if (strcmp(said, want) != 0)
        EK_T_FAIL("said: %s, expected: %s", said, want);
    free(said);
}

#endif
