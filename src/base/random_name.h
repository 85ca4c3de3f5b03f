/* base/random_name.h - unguessable names: 128 random bits from the system. */
#ifndef BASE_RANDOM_NAME_H
#define BASE_RANDOM_NAME_H

#include "evenkeel/err.h"

enum { EK_RANDOM_NAME_CHARS = 32, EK_RANDOM_NAME_CAP = EK_RANDOM_NAME_CHARS + 1 };

/* 32 lower-case hexadecimal digits and a NUL.  EK_EIO if the system returns no random bytes. */
EK_CHECKED ek_status ek_random_name_make(char name[EK_RANDOM_NAME_CAP]);

/* Whether a text begins with 32 lower-case hexadecimal digits. */
int ek_random_name_is_at(const char *text);

#endif
