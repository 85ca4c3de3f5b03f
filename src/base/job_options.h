/* base/job_options.h - option rows of commands that can run on several ranks. */
#ifndef BASE_JOB_OPTIONS_H
#define BASE_JOB_OPTIONS_H

#include "base/options.h"

/* clang-format off */
#define EK_JOB_OPTIONS                                                                             \
    {"ranks", EK_OPTION_INT, .shown = "1, or the slots of --hosts", .unit = "processes",           \
     .allowed = "[1,1000000]",                                                                     \
     .help = "number of ranks, started through mpiexec; inside an MPI job: must match its size"},  \
    {"hosts", EK_OPTION_TEXT, .unit = "FILE",                                                      \
     .help = "host file, one host per line: HOST, HOST:SLOTS or HOST slots=SLOTS, optionally "     \
     "followed by rack=NAME; without any SLOTS, hosts that divide --ranks share it"},                 \
    {"mpiexec-args", EK_OPTION_TEXT, .unit = "\"WORDS\"",                                          \
     .help = "additional arguments for mpiexec, separated by spaces"}
/* clang-format on */

#endif
