/* base/log.h - log messages of the library.
 *
 * The library never prints: messages go to the sink that the command line or a host program has
 * set; without one they are dropped.  Failures are returned, not logged.  Messages are lower case,
 * with values, names and units, without a trailing dot.
 *
 * Threads      any thread may log; calls of the sink are serialised, and it must not log. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "evenkeel/err.h"

typedef enum {
    EK_LOG_ERROR,
    EK_LOG_WARN,
    EK_LOG_INFO,  /* once per run or step */
    EK_LOG_DEBUG, /* once per object */
    EK_LOG_TRACE  /* per message */
} ek_log_level;

/* `component` is the layer that logs; `message` is one printable line. */
typedef void ek_log_sink(void *context, ek_log_level level, const char *component,
                         const char *message);

/* Sends messages of level `most` and more severe ones to `sink`; NULL (the default): none. */
void ek_log_set_sink(ek_log_sink *sink, void *context, ek_log_level most);

/* Until ek_log_unlimit() gets what this returned, messages less severe than `most` are not logged:
 * for parts of the program that do the same many times. */
int ek_log_limit(ek_log_level most);
void ek_log_unlimit(int before);

/* Whether messages of this level are logged: to skip preparing an expensive one. */
int ek_log_is_enabled(ek_log_level level);

/* Logs one message, formatted as printf does and escaped (base/printable.h), if its level is
 * logged. */
void ek_log(const char *component, ek_log_level level, const char *fmt, ...) EK_PRINTF(3, 4);

/* "error", "warning", "info", "debug" or "trace". */
const char *ek_log_level_name(ek_log_level level);

#endif
