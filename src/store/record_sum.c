/* XXH64 of records, seeded by what they are. */
#include "store/record_sum.h"

#include <inttypes.h>
#include <xxhash.h>

uint64_t ek_record_sum(const void *data, size_t bytes, int64_t layer, int64_t expert,
                       int64_t generation)
{
    const int64_t key[] = {layer, expert, generation};

    return XXH64(data, bytes, XXH64(key, sizeof(key), 0));
}

ek_status ek_record_check(const void *data, size_t bytes, int64_t layer, int64_t expert,
                          int64_t generation, uint64_t sum, const char *where)
{
    uint64_t got = ek_record_sum(data, bytes, layer, expert, generation);

    EK_REQUIRE(got == sum, EK_ECORRUPT,
               "expert %" PRId64 " of layer %" PRId64 " was read with checksum %016" PRIx64
               " from %s, written as %016" PRIx64 " (write %" PRId64
               "): the disk returned other bytes; check it, then start again from a checkpoint",
               expert, layer, got, where, sum, generation);
    return EK_OK;
}
