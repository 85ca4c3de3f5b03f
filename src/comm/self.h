/* comm/self.h - the world of one rank. */
#ifndef COMM_SELF_H
#define COMM_SELF_H

#include "comm/comm.h"

/* Opens a world of this process alone; ek_comm_close frees it.  EK_ENOMEM. */
EK_CHECKED ek_status ek_self_open(ek_comm **world);

#endif
