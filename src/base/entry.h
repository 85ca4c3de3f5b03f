/* base/entry.h - the prologue of public functions: EK_C_LOCALE (base/c_locale.h), and checks of
 * arguments that must not be NULL. */
#ifndef BASE_ENTRY_H
#define BASE_ENTRY_H

#include "evenkeel/err.h"

#include "base/c_locale.h"

#define EK_NOT_NULL(x) EK_REQUIRE((x) != NULL, EK_EINVAL, "%s: %s must not be NULL", __func__, #x)

#endif
