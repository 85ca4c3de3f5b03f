/* One sink per process, guarded by a lock; the level is read without it. */
#include "base/log.h"

#include "base/printable.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { MESSAGE_CAP = 1024, NO_LEVEL = -1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ek_log_sink *current;
static void *current_context;
static _Atomic int threshold = NO_LEVEL;

void ek_log_set_sink(ek_log_sink *sink, void *context, ek_log_level most)
{
    pthread_mutex_lock(&lock);
    current = sink;
    current_context = context;
    atomic_store(&threshold, sink == NULL ? NO_LEVEL : (int)most);
    pthread_mutex_unlock(&lock);
}

int ek_log_limit(ek_log_level most)
{
    int before;

    pthread_mutex_lock(&lock);
    before = atomic_load(&threshold);
    if ((int)most < before)
        atomic_store(&threshold, (int)most);
    pthread_mutex_unlock(&lock);
    return before;
}

void ek_log_unlimit(int before)
{
    pthread_mutex_lock(&lock);
    atomic_store(&threshold, before);
    pthread_mutex_unlock(&lock);
}

int ek_log_is_enabled(ek_log_level level)
{
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

void ek_log(const char *component, ek_log_level level, const char *fmt, ...)
{
    char message[MESSAGE_CAP];
    va_list ap;

    if (!ek_log_is_enabled(level))
        return;
    va_start(ap, fmt);
    ek_printable_format(message, sizeof(message), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (current != NULL)
        current(current_context, level, component, message);
    pthread_mutex_unlock(&lock);
}

const char *ek_log_level_name(ek_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};

    return level <= EK_LOG_TRACE ? names[level] : "unknown";
}
