/* store/record_sum.h - checksums of the records of experts that are written to scratch files. */
#ifndef STORE_RECORD_SUM_H
#define STORE_RECORD_SUM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

/* XXH64 of a record's bytes, whose seed is made from its layer, its expert and how often it was
 * written: a record that is read from the wrong place, or is older than the last write, has
 * another sum. */
uint64_t ek_record_sum(const void *data, size_t bytes, int64_t layer, int64_t expert,
                       int64_t generation);

/* EK_ECORRUPT unless the record has this sum; `where` names its file in the message. */
EK_CHECKED ek_status ek_record_check(const void *data, size_t bytes, int64_t layer, int64_t expert,
                                     int64_t generation, uint64_t sum, const char *where);

#endif
