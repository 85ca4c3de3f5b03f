/* Commands that the supervisor runs itself. */
#include "supervisor/internal_command.h"

#include "base/command.h"
#include "supervisor/cleanup.h"
#include "supervisor/links.h"
#include "supervisor/protocol.h"
#include "supervisor/reserve.h"

int ek_internal_command(int argc, char **argv, int *status)
{
    static int (*const run[EK_INTERNAL_KINDS])(const ek_internal_call *call) = {
        [EK_INTERNAL_RESERVE] = ek_reserve_command,
        [EK_INTERNAL_FREE] = ek_reserve_command,
        [EK_INTERNAL_LINKS] = ek_links_command,
        [EK_INTERNAL_GUARD] = ek_cleanup_guard_command};
    ek_internal_call call;

    if (argc < 2 || !ek_internal_is(argv[1]))
        return 0;
    *status = ek_internal_read(argc - 1, argv + 1, &call)
                  ? run[call.kind](&call)
                  : ek_command_fail(argv[1], EK_FAIL(EK_EINVAL, "internal command, called by the "
                                                                "supervisor"));
    return 1;
}
