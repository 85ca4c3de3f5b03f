/* comm/fake.h - worlds of which only one rank exists. */
#ifndef COMM_FAKE_H
#define COMM_FAKE_H

#include "comm/comm.h"

/* A world of `ranks` ranks, as rank `rank` would see it, in this process alone; all are on this
 * host until ek_comm_set_nodes says otherwise.  Groups can be opened; with several ranks,
 * operations fail (EK_EINTERNAL), but for those of comm/agree.h.  With one rank, collectives finish
 * without messages.  To lay out models and build step graphs of any rank of any layout; PyTorch
 * calls it a fake process group. ek_comm_close frees it.  EK_EINVAL: no such rank; EK_ENOMEM.
 * Local. */
EK_CHECKED ek_status ek_fake_open(int rank, int ranks, ek_comm **world);

#endif
