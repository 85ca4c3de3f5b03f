/* evenkeel reserve: preallocates shared memory for ranks that are about to start on this host, or
 * frees it (elastic/prealloc.h).  Internal: called by the --elastic supervisor (protocol.h). */
#include "supervisor/reserve.h"

#include "base/command.h"
#include "base/count_text.h"
#include "base/memory_limit.h"
#include "elastic/prealloc.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Preallocates for all ranks or for none.  Checks the available memory first: the kernel grants
 * shared memory beyond what it has. */
static ek_status preallocate_ranks(const ek_segment_id *first, int ranks, uint64_t supervisor_id,
                                   const char *out, const char *blocks)
{
    double have = (double)ek_memory_available(), want;
    char text[2][32];
    ek_segment_id id = *first;
    size_t bytes;
    ek_status st = EK_OK;

    EK_TRY(ek_prealloc_bytes(blocks, &bytes));
    want = (double)bytes * ranks;
    EK_REQUIRE(have == 0 || want <= have, EK_ENOMEM,
               "%d joining ranks need about %s of memory, and %s are available", ranks,
               ek_bytes_text(text[0], sizeof(text[0]), want),
               ek_bytes_text(text[1], sizeof(text[1]), have));
    for (id.rank = EK_PREALLOC_RANK; id.rank < EK_PREALLOC_RANK + ranks && st == EK_OK; id.rank++)
        st = ek_prealloc_create(&id, supervisor_id, out, blocks);
    for (id.rank = EK_PREALLOC_RANK; id.rank < EK_PREALLOC_RANK + ranks && st < 0; id.rank++)
        (void)!ek_segment_remove(&id);
    return st;
}

static ek_status reserve(const ek_internal_call *c)
{
    ek_segment_id id = {.run = c->run, .generation = c->host};

    if (c->kind == EK_INTERNAL_FREE)
        return ek_prealloc_remove(c->run, c->supervisor_id);
    return preallocate_ranks(&id, (int)c->ranks, c->supervisor_id, c->out.s, c->blocks);
}

int ek_reserve_command(const ek_internal_call *call)
{
    ek_status st;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
    st = getppid() != 1 ? reserve(call) : EK_ECANCELED;
    return st < 0 ? ek_command_fail("reserve", st) : EK_EXIT_DONE;
}
