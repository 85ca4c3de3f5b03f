/* evenkeel/err.h - status codes, and the text of the last failure.
 *
 * Every call that can fail returns an ek_status.  The function that detects a failure writes one
 * sentence, with the values concerned, to a record of the calling thread; the library never prints
 * and never exits.
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
 *  The tens digit is the class of the failure, by which a caller can choose a recovery. */
typedef enum {
    EK_OK = 0,
    EK_PENDING = 1,
    EK_EINVAL = -10, /* -1x: wrong use by the caller */
    EK_ESTATE = -11,
    EK_EUNSUPPORTED = -12,
    EK_EOVERFLOW = -13,
    EK_ENOMEM = -20, /* -2x: out of a resource; a smaller request may succeed */
    EK_ENOSPC = -21,
    EK_ETIMEOUT = -30, /* -3x: the same call may succeed later */
    EK_ECANCELED = -32,
    EK_EPEER = -40, /* -4x: a rank failed, this one or another; the communicator is unusable */
    EK_EDEVICE = -42,
    EK_ECORRUPT = -50, /* -5x: invalid or missing data */
    EK_EFORMAT = -51,
    EK_ENONFINITE = -52,
    EK_ENOENT = -53,
    EK_EIO = -60, /* -6x: the system or MPI failed */
    EK_ECOMM = -61,
    EK_EINTERNAL = -90 /* -9x: a bug in evenkeel */
} ek_status;

/** Classes of failures. */
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

/** A short description of a status, such as "bad format".  Never NULL. */
EK_API const char *ek_status_name(ek_status st);

/** The class of a status: the tens digit of its code. */
EK_API ek_class ek_status_class(ek_status st);

/** This thread's last failure: message, then one line per frame it passed. */
EK_API const char *ek_err_text(void);

/** This thread's last failure: the message alone, one line, without status name or frames.
 *  Control characters and bytes that are not UTF-8 are escaped in it (\x1b, \n). */
EK_API const char *ek_err_message(void);

/** Starts this thread's record of a failure; called through EK_FAIL.  Returns st. */
EK_API ek_status ek_err_raise(const char *file, int line, const char *func, ek_status st,
                              const char *fmt, ...) EK_PRINTF(5, 6);

/** Adds a frame to this thread's record; called through EK_TRY.  Returns st. */
EK_API ek_status ek_err_pass(const char *file, int line, const char *func, ek_status st);

#define EK_FAIL(st, ...) ek_err_raise(__FILE__, __LINE__, __func__, (st), __VA_ARGS__)

#define EK_REQUIRE(cond, code, ...)                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return EK_FAIL((code), __VA_ARGS__);                                                   \
    } while (0)

/* Returns a failure to the caller; for functions that need no cleanup. */
#define EK_TRY(call)                                                                               \
    do {                                                                                           \
        ek_status ek_st_ = (call);                                                                 \
        if (ek_st_ < 0)                                                                            \
            return ek_err_pass(__FILE__, __LINE__, __func__, ek_st_);                              \
    } while (0)

/* For functions with cleanup: needs `ek_status st;` and a label `out:`. */
#define EK_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st < 0) {                                                                              \
            st = ek_err_pass(__FILE__, __LINE__, __func__, st);                                    \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* EK_REQUIRE for functions with cleanup. */
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
