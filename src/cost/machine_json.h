/* cost/machine_json.h - a machine file's object within another JSON file. */
#ifndef COST_MACHINE_JSON_H
#define COST_MACHINE_JSON_H

#include "base/json.h"
#include "cost/machine.h"

/* Reads a machine from an object with the keys of a machine file.  `file` is for messages.  Strict,
 * and clears *out on failure: EK_EFORMAT. */
EK_CHECKED ek_status ek_machine_of_json(const json_t *o, const char *file, ek_machine *out);

#endif
