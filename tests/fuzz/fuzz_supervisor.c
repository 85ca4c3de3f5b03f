/* Any sequence of events to the supervisor's decision core, in a world that bytes choose: what must
 * always hold (tests/supervisor_world.h) holds, and it comes to its end. */
#include "../supervisor_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static world w;

    if (!world_run(&w, data, size)) {
        fprintf(stderr, "%s\n", w.fault);
        abort();
    }
    return 0;
}
