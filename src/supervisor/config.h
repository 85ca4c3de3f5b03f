/* supervisor/config.h - what the supervisor is to run: the command line of a job and its options.
 */
#ifndef SUPERVISOR_CONFIG_H
#define SUPERVISOR_CONFIG_H

#include "comm/mesh.h"

typedef struct {
    const char *command;      /* "train": name in messages */
    int ranks;                /* 0: as many as there are slots */
    const char *hosts;        /* host file; NULL: this host */
    const char *discover;     /* command that prints the hosts, instead of a file; or NULL */
    const char *mpiexec_args; /* or NULL */
    const char *out;          /* folder of the run, from which progress is read; or NULL */
    int resume;               /* the run continues an earlier one */
    int elastic;              /* restart after losses, with a multiple of `unit` ranks: as in
                                 ek_train_config */
    int unit;
    ek_mesh_sizes sizes; /* that also fit them; zeros: any number does */
    int layout_changes;  /* the layout in use, and so unit and sizes, may change in a run: run.json
                            in `out` says which it is */
    double watchdog;     /* timeout in seconds where no better estimate is known */
    int live;            /* stderr is a terminal */
    int quiet;           /* no progress output */
    int *no_room;        /* becomes 1 if a host's shared memory was too small; or NULL */
    int argc;
    char **argv; /* arguments of this program for its workers */
} ek_supervisor_config;

#endif
