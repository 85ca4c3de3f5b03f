/* supervisor/links.h - `evenkeel links`: exits with status 0 if all ranks of its job reach each
 * other. */
#ifndef SUPERVISOR_LINKS_H
#define SUPERVISOR_LINKS_H

#include "supervisor/protocol.h"

/* Internal command (internal_command.h); returns its exit status. */
int ek_links_command(const ek_internal_call *call);

#endif
