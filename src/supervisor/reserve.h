/* supervisor/reserve.h - `evenkeel reserve`: preallocates shared memory on a host that joins, or
 * frees it. */
#ifndef SUPERVISOR_RESERVE_H
#define SUPERVISOR_RESERVE_H

#include "supervisor/protocol.h"

/* Internal command (internal_command.h); returns its exit status. */
int ek_reserve_command(const ek_internal_call *call);

#endif
