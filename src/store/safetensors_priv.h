/* store/safetensors_priv.h - what the parts of the safetensors reader share. */
#ifndef STORE_SAFETENSORS_PRIV_H
#define STORE_SAFETENSORS_PRIV_H

#include "store/safetensors.h"

/* One file: its bytes, and how messages name it. */
typedef struct {
    ek_file_map map;
    int mapped; /* ours to unmap */
    char *path;
} ek_shard;

struct ek_safetensors {
    ek_shard *shards;
    int64_t n_shards;
    ek_safetensor *tensors; /* by name; the names are ours */
    int64_t n;
};

/* Checks the header of a shard and adds its tensors, in no particular order, to *list, whose
 * names the caller frees even after a failure. */
EK_CHECKED ek_status ek_safetensors_header(const ek_shard *s, ek_safetensor **list, int64_t *n);

#endif
