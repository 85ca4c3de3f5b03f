/* store/safetensors_priv.h - shared by the files of the safetensors reader. */
#ifndef STORE_SAFETENSORS_PRIV_H
#define STORE_SAFETENSORS_PRIV_H

#include "store/safetensors.h"

/* One file: where its bytes are, and its name in messages. */
typedef struct {
    const void *memory; /* NULL: in the open file */
    int fd;             /* -1: in memory */
    int64_t bytes;
    char *path;
} ek_tensor_file;

struct ek_safetensors {
    ek_tensor_file *files;
    int64_t n_files;
    ek_safetensor *tensors; /* sorted by name; owns the names */
    int64_t n;
};

/* Reads bytes [at, at + n) of a file; EK_EFORMAT if it ends before, EK_EIO. */
EK_CHECKED ek_status ek_tensor_file_read(const char *path, const void *memory, int fd, int64_t at,
                                         size_t n, void *dst);

/* Checks the header of a file and appends its tensors, in any order, to *list.  The caller frees
 * their names, even after a failure. */
EK_CHECKED ek_status ek_safetensors_header(const ek_tensor_file *s, ek_safetensor **list,
                                           int64_t *n);

#endif
