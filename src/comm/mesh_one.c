/* The mesh of a single rank. */
#include "comm/mesh.h"

const ek_mesh ek_mesh_one = {
    .size = 1, .pp = 1, .dp = 1, .tp = 1, .edp = 1, .ep = 1, .etp = 1, .stage_size = 1};
