/* The C locale of a thread. */
#include "base/c_locale.h"

/* glibc has it ready: nothing is allocated, and it cannot fail. */
locale_t ek_c_locale_enter(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

void ek_c_locale_leave(locale_t *host)
{
    uselocale(*host);
}
