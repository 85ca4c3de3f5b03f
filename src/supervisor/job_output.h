/* supervisor/job_output.h - output of a job: prints lines of workers, hands their messages on,
 * holds back lines of mpiexec. */
#ifndef SUPERVISOR_JOB_OUTPUT_H
#define SUPERVISOR_JOB_OUTPUT_H

#include "evenkeel/err.h"

#include "supervisor/job_state.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    ek_job_state *job;
    int hide_mpiexec_reports; /* do not show mpiexec's report of a worker's end */
    int explained;            /* a line of a worker's report of a failure was printed */
    int drawn;                /* the live line on the terminal is not terminated */
    int in_mpiexec_report;    /* stdout: inside mpiexec's report */
    int blank;                /* stdout: empty lines that may belong to the report */
    char *held;               /* held-back lines of mpiexec */
    size_t held_bytes;
    int64_t held_since; /* ek_clock_ns() of the oldest; 0: none */
} ek_job_output;

EK_CHECKED ek_status ek_job_output_init(ek_job_output *t, ek_job_state *job);
void ek_job_output_fini(ek_job_output *t);
/* Processes a line (without newline) of the job's stdout or stderr. */
void ek_job_output_stdout(ek_job_output *t, const char *line, size_t n);
void ek_job_output_stderr(ek_job_output *t, const char *line, size_t n);
/* Prints, or drops, the held-back lines. */
void ek_job_output_release(ek_job_output *t);
void ek_job_output_drop(ek_job_output *t);
/* Terminates the live line, if one is drawn, before other output. */
void ek_job_output_end_live_line(ek_job_output *t);

#endif
