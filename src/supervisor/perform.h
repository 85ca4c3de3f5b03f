/* supervisor/perform.h - does what the decision core asks for (core_action.h). */
#ifndef SUPERVISOR_PERFORM_H
#define SUPERVISOR_PERFORM_H

#include "evenkeel/err.h"

#include "supervisor/state.h"

/* Answers that are known at once are kept in x->answer.  A failure ends the supervisor. */
EK_CHECKED ek_status ek_supervisor_perform(ek_supervisor *x, const ek_core_action *a);
/* Takes the end of --discover: then the list is read, which is an answer, too. */
void ek_supervisor_poll_discover(ek_supervisor *x);

#endif
