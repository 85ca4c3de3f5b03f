/* base/c_locale.h - numbers are written and read with a point, whatever the locale of the host is.
 *
 * A program that uses the library may have set a locale in which 1.5 is "1,5".  What the library
 * writes and reads (JSON, files, messages) does not depend on it: every public function, and every
 * thread that the library starts, works in the C locale of its thread.  The process's locale stays
 * as it is, and functions of the host that are called back run in the host's.
 *
 * Threads      the setting belongs to the calling thread. */
#ifndef BASE_C_LOCALE_H
#define BASE_C_LOCALE_H

#include <locale.h>

/* The C locale, from here to the end of the block.  host_locale: what was there before. */
#define EK_C_LOCALE                                                                                \
    locale_t host_locale __attribute__((cleanup(ek_c_locale_leave), unused)) = ek_c_locale_enter()

/* Returns the locale to be restored. */
locale_t ek_c_locale_enter(void);
void ek_c_locale_leave(locale_t *host);

#endif
