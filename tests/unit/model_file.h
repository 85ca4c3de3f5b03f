/* A small model as a file, for tests of layouts and steps. */
#ifndef UNIT_MODEL_FILE_H
#define UNIT_MODEL_FILE_H

#include "ek_test.h"

#include <stdlib.h>
#include <unistd.h>

/* A Mixtral of 8 layers of 8 experts; path: as of mkstemp. */
static void write_model(char *path)
{
    static const char text[] =
        "{\"model_type\":\"mixtral\",\"vocab_size\":512,\"hidden_size\":64,"
        "\"num_hidden_layers\":8,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":128,"
        "\"max_position_embeddings\":256}";
    int file = mkstemp(path);

    CHECK(file >= 0 && dprintf(file, "%s", text) > 0 && close(file) == 0);
}

#endif
