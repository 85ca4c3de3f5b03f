/* base/c_locale.h - numbers are written and read with a decimal point in any locale of the host.
 *
 * A program that uses the library may have set a locale in which 1.5 is "1,5".  What the library
 * writes and reads (JSON, files, messages) must not depend on it: every public function, and every
 * thread that the library starts, switches its thread to the C locale.  The locale of the process
 * is unchanged, and callbacks of the host run in the host's locale.
 *
 * Threads      the setting belongs to the calling thread. */
#ifndef BASE_C_LOCALE_H
#define BASE_C_LOCALE_H

#include <locale.h>

/* Sets the C locale until the end of the block.  host_locale: the previous one. */
#define EK_C_LOCALE                                                                                \
    locale_t host_locale __attribute__((cleanup(ek_c_locale_leave), unused)) = ek_c_locale_enter()

/* Returns the thread's previous locale, to be passed to ek_c_locale_leave. */
locale_t ek_c_locale_enter(void);
/* Restores the locale that enter returned. */
void ek_c_locale_leave(locale_t *host);

#endif
