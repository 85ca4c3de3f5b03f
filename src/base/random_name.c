/* Random names from getrandom(). */
#include "base/random_name.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char digits[] = "0123456789abcdef";

ek_status ek_random_name_make(char name[EK_RANDOM_NAME_CAP])
{
    unsigned char bits[EK_RANDOM_NAME_CHARS / 2];
    size_t done = 0;

    while (done < sizeof(bits)) {
        ssize_t n = getrandom(bits + done, sizeof(bits) - done, 0);

        EK_REQUIRE(n > 0 || errno == EINTR, EK_EIO, "getrandom() failed: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    for (size_t i = 0; i < sizeof(bits); i++) {
        name[2 * i] = digits[bits[i] >> 4];
        name[2 * i + 1] = digits[bits[i] & 15];
    }
    name[EK_RANDOM_NAME_CHARS] = '\0';
    return EK_OK;
}

int ek_random_name_is_at(const char *text)
{
    return strspn(text, digits) >= EK_RANDOM_NAME_CHARS;
}
