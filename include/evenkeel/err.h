/* evenkeel/err.h - status codes, and the text of the last failure.
 *
 * Every call that can fail returns an ek_status.  The one who finds the failure writes one
 * sentence, with the values in it, into a record of the calling thread; the library itself
 * never prints and never exits.
 *
 * Threads      the text belongs to the thread that failed. */
#ifndef EK_ERR_H
#define EK_ERR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define EK_CHECKED      __attribute__((warn_unused_result))
#define EK_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define EK_API          __attribute__((visibility("default")))
#else
#define EK_CHECKED
#define EK_PRINTF(f, a)
#define EK_API
#endif

/** 0 is success, positive is "not yet" (only from calls that poll), negative is failure.
 *  The tens digit says what the failure costs, so that a recovery can be chosen from it. */
typedef enum {
    EK_OK = 0,
    EK_PENDING = 1,
    EK_EINVAL = -10, /* the caller's mistake */
    EK_ESTATE = -11,
    EK_EUNSUPPORTED = -12,
    EK_EOVERFLOW = -13,
    EK_ENOMEM = -20, /* something ran out; a smaller request may pass */
    EK_ENOSPC = -21,
    EK_ETIMEOUT = -30, /* the same call may pass later */
    EK_ECANCELED = -32,
    EK_EPEER = -40, /* a rank is lost, ours or another; this comm is dead */
    EK_EDEVICE = -42,
    EK_ECORRUPT = -50, /* data cannot be trusted */
    EK_EFORMAT = -51,
    EK_ENONFINITE = -52,
    EK_ENOENT = -53,
    EK_EIO = -60, /* the system under us failed */
    EK_ECOMM = -61,
    EK_EINTERNAL = -90 /* our bug */
} ek_status;

/** What a failure costs. */
typedef enum {
    EK_CLASS_OK,
    EK_CLASS_USAGE,
    EK_CLASS_RESOURCE,
    EK_CLASS_RETRY,
    EK_CLASS_RANK,
    EK_CLASS_DATA,
    EK_CLASS_SYSTEM,
    EK_CLASS_BUG
} ek_class;

/** A few words for a status, such as "bad format".  Never NULL. */
EK_API const char *ek_status_name(ek_status st);

/** The class of a status: the tens digit of its code. */
EK_API ek_class ek_status_class(ek_status st);

/** This thread's last failure: message, then one line per frame it passed. */
EK_API const char *ek_err_text(void);

/** This thread's last failure: the message alone, one line, without status name or frames.
 *  Control characters and bytes that are not UTF-8 are escaped in it (\x1b, \n). */
EK_API const char *ek_err_message(void);

/** Starts this thread's record: used through EK_FAIL.  Returns st. */
EK_API ek_status ek_err_raise(const char *file, int line, const char *func, ek_status st,
                              const char *fmt, ...) EK_PRINTF(5, 6);

/** Adds a frame to this thread's record: used through EK_TRY.  Returns st. */
EK_API ek_status ek_err_pass(const char *file, int line, const char *func, ek_status st);

#define EK_FAIL(st, ...) ek_err_raise(__FILE__, __LINE__, __func__, (st), __VA_ARGS__)

#define EK_REQUIRE(cond, code, ...)                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return EK_FAIL((code), __VA_ARGS__);                                                   \
    } while (0)

/* For functions that own nothing. */
#define EK_TRY(call)                                                                               \
    do {                                                                                           \
        ek_status ek_st_ = (call);                                                                 \
        if (ek_st_ < 0)                                                                            \
            return ek_err_pass(__FILE__, __LINE__, __func__, ek_st_);                              \
    } while (0)

/* For functions that own something: needs `ek_status st;` and a label `out:`. */
#define EK_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st < 0) {                                                                              \
            st = ek_err_pass(__FILE__, __LINE__, __func__, st);                                    \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* EK_REQUIRE for functions that own something. */
#define EK_REQUIRE_OUT(cond, code, ...)                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            st = EK_FAIL((code), __VA_ARGS__);                                                     \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
