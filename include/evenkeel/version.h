/** @file
 *  evenkeel/version.h - which version this is, at compile time and at run time.
 *
 *  @par Collective
 *  No; may be called at any time from any thread. */
#ifndef EK_VERSION_H
#define EK_VERSION_H

#include "evenkeel/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the headers.  Before 1.0 a new minor version may change interfaces. */
#define EK_VERSION_MAJOR 0
/** See EK_VERSION_MAJOR. */
#define EK_VERSION_MINOR 2
/** See EK_VERSION_MAJOR. */
#define EK_VERSION_PATCH 0
/** The three numbers as a string. */
#define EK_VERSION "0.2.0"

/** The version of the library that is loaded.  Not collective.
 *
 *  @return such as "0.2.0"; static.  It may differ from EK_VERSION, which is that of the headers */
EK_API const char *ek_version(void);

#ifdef __cplusplus
}
#endif
#endif
