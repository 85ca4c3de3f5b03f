/* Switches a thread to the C locale and back. */
#include "base/c_locale.h"

/* glibc holds the C locale statically: newlocale allocates nothing and cannot fail. */
locale_t ek_c_locale_enter(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

void ek_c_locale_leave(locale_t *host)
{
    uselocale(*host);
}
