/* The per-thread record of the last failure: one message, then the frames it passed.  A message is
 * printable from the start, whatever names from foreign files are in it. */
#include "evenkeel/err.h"

#include "base/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_CAP = 2048, MESSAGE_CAP = 1024 };

static _Thread_local char text[TEXT_CAP];
static _Thread_local char message[MESSAGE_CAP];
static _Thread_local size_t used;

EK_PRINTF(1, 2) static void append_text(const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text + used, TEXT_CAP - used, fmt, ap);
    va_end(ap);
    if (n > 0)
        used += (size_t)n < TEXT_CAP - used ? (size_t)n : TEXT_CAP - used - 1;
}

static const char *text_or_unknown(const char *name)
{
    return name != NULL ? name : "?";
}

ek_status ek_err_raise(const char *file, int line, const char *func, ek_status st, const char *fmt,
                       ...)
{
    char fresh[MESSAGE_CAP]; /* an argument may be the old message */
    va_list ap;

    va_start(ap, fmt);
    ek_printable_format(fresh, sizeof(fresh), fmt != NULL ? fmt : "", ap);
    va_end(ap);
    memcpy(message, fresh, sizeof(message));
    used = 0;
    append_text("%s: %s", ek_status_name(st), message);
    append_text("\n  at %s (%s:%d)", text_or_unknown(func), text_or_unknown(file), line);
    return st;
}

ek_status ek_err_pass(const char *file, int line, const char *func, ek_status st)
{
    append_text("\n  from %s (%s:%d)", text_or_unknown(func), text_or_unknown(file), line);
    return st;
}

const char *ek_err_text(void)
{
    return text;
}

const char *ek_err_message(void)
{
    return message;
}

ek_class ek_status_class(ek_status st)
{
    switch (-(int)st / 10) {
    case 0: return EK_CLASS_OK;
    case 1: return EK_CLASS_USAGE;
    case 2: return EK_CLASS_RESOURCE;
    case 3: return EK_CLASS_RETRY;
    case 4: return EK_CLASS_RANK;
    case 5: return EK_CLASS_DATA;
    case 6: return EK_CLASS_SYSTEM;
    default: return EK_CLASS_BUG;
    }
}

const char *ek_status_name(ek_status st)
{
    switch (st) {
    case EK_OK: return "ok";
    case EK_PENDING: return "pending";
    case EK_EINVAL: return "invalid argument";
    case EK_ESTATE: return "wrong state";
    case EK_EUNSUPPORTED: return "not supported";
    case EK_EOVERFLOW: return "size overflow";
    case EK_ENOMEM: return "out of memory";
    case EK_ENOSPC: return "no space left";
    case EK_ETIMEOUT: return "timed out";
    case EK_ECANCELED: return "canceled";
    case EK_EPEER: return "rank lost";
    case EK_EDEVICE: return "device error";
    case EK_ECORRUPT: return "checksum mismatch";
    case EK_EFORMAT: return "bad format";
    case EK_ENONFINITE: return "non-finite value";
    case EK_ENOENT: return "not found";
    case EK_EIO: return "i/o error";
    case EK_ECOMM: return "communication error";
    case EK_EINTERNAL: return "internal error";
    }
    return "unknown status";
}
