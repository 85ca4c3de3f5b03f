/* fit/scratch_rates.h - what a disk reaches with the scratch file of experts on disk. */
#ifndef FIT_SCRATCH_RATES_H
#define FIT_SCRATCH_RATES_H

#include "evenkeel/err.h"

/* Bytes/s past the page cache; 0: not measured, as the folder's file system has no such access. */
typedef struct {
    double read, write; /* alone */
    double both;        /* the sum, when half of the requests in flight read and half write */
} ek_scratch_rates;

/* Measures for 0.6 s on an unnamed file of 512 MiB in the folder, of which nothing remains.
 * EK_ENOENT, EK_ENOSPC, EK_EIO. */
EK_CHECKED ek_status ek_measure_scratch_rates(const char *folder, ek_scratch_rates *out);

#endif
