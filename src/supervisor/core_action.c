/* The list of actions of one event. */
#include "supervisor/core_action.h"

#include <stdlib.h>

void ek_core_act(ek_core_actions *out, const ek_core_action *a)
{
    if (out->n == out->cap) {
        size_t cap = 2 * out->cap + 16;
        ek_core_action *grown = realloc(out->action, cap * sizeof(*grown));

        if (grown == NULL) {
            out->failed = 1;
            return;
        }
        out->action = grown;
        out->cap = cap;
    }
    out->action[out->n++] = *a;
}
