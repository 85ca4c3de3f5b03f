/* store/safetensors_priv.h - shared by the files of the safetensors reader. */
#ifndef STORE_SAFETENSORS_PRIV_H
#define STORE_SAFETENSORS_PRIV_H

#include "store/safetensors.h"

/* One file: its bytes, and its name in messages. */
typedef struct {
    ek_file_map map;
    int mapped; /* owned: unmap at close */
    char *path;
} ek_tensor_file;

struct ek_safetensors {
    ek_tensor_file *files;
    int64_t n_files;
    ek_safetensor *tensors; /* sorted by name; owns the names */
    int64_t n;
};

/* Checks the header of a file and appends its tensors, in any order, to *list.  The caller frees
 * their names, even after a failure. */
EK_CHECKED ek_status ek_safetensors_header(const ek_tensor_file *s, ek_safetensor **list,
                                           int64_t *n);

#endif
