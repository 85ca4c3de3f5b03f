/* base/job_options.h - option rows of commands that can run on several ranks. */
#ifndef BASE_JOB_OPTIONS_H
#define BASE_JOB_OPTIONS_H

#include "base/options.h"

/* clang-format off */
/* only: of ek_option. */
#define EK_JOB_OPTIONS_ONLY(words)                                                                 \
    {"ranks", EK_OPTION_INT, .shown = "1, or the slots of --hosts", .unit = "processes",           \
     .allowed = "[1,1000000]", .only = words,                                                      \
     .help = "number of ranks, started through mpiexec; inside an MPI job: must match its size"},  \
    {"hosts", EK_OPTION_TEXT, .unit = "FILE", .only = words,                                       \
     .help = "host file, one host per line: HOST, HOST:SLOTS or HOST slots=SLOTS, optionally "     \
     "followed by rack=NAME; without any SLOTS, hosts that divide --ranks share it"},                 \
    {"mpiexec-args", EK_OPTION_TEXT, .unit = "\"WORDS\"", .only = words,                           \
     .help = "additional arguments for mpiexec, separated by spaces"}
#define EK_JOB_OPTIONS EK_JOB_OPTIONS_ONLY(NULL)
/* clang-format on */

#endif
