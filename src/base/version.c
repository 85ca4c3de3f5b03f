/* The version of the library. */
#include "evenkeel/version.h"

const char *ek_version(void)
{
    return EK_VERSION;
}
