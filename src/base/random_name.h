/* base/random_name.h - names that nobody can guess: 128 bits of the system's randomness. */
#ifndef BASE_RANDOM_NAME_H
#define BASE_RANDOM_NAME_H

#include "evenkeel/err.h"

enum { EK_RANDOM_NAME_CHARS = 32, EK_RANDOM_NAME_CAP = EK_RANDOM_NAME_CHARS + 1 };

/* 32 hexadecimal digits and a 0. */
EK_CHECKED ek_status ek_random_name_make(char name[EK_RANDOM_NAME_CAP]);

/* Whether a text begins with 32 hexadecimal digits in lower case. */
int ek_random_name_is_at(const char *text);

#endif
