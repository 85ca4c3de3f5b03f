/* model/hf/file_maps.h - a model's files, mapped into memory, as a source of values.
 *
 * The kernel brings pages in when they are touched and drops them when memory is short, so reads
 * are as many and as large as it decides: what other ways of reading are compared with.
 *
 * Errors       a file that is shorter than its header says is an error when its values are asked
 *              for.  An I/O error, or a file cut short at that moment, is SIGBUS, which ends the
 *              process: a library installs no handler. */
#ifndef MODEL_HF_FILE_MAPS_H
#define MODEL_HF_FILE_MAPS_H

#include "model/hf/io.h"

typedef struct ek_file_maps ek_file_maps;

/* Maps all files of `values`, which is borrowed.  EK_EIO, EK_ENOMEM. */
EK_CHECKED ek_status ek_file_maps_create(ek_hf_values *values, ek_file_maps **out);
void ek_file_maps_destroy(ek_file_maps **m);

/* Tensors that are in pieces are read from the files.  Borrows m. */
ek_value_source ek_file_maps_source(ek_file_maps *m);

#endif
