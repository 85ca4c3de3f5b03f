/** @file
 *  evenkeel/err.h - status codes, and the text of the last failure.
 *
 *  Every call that can fail returns an ek_status.  The function that detects a failure writes one
 *  sentence, with the values concerned, to a record of the calling thread; the library never
 *  prints and never exits (but for evenkeel/elastic.h).
 *
 *  @par Collective
 *  No function of this header is.
 *
 *  @par Threads
 *  The text belongs to the thread that failed. */
#ifndef EK_ERR_H
#define EK_ERR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
/** A result that the caller has to look at. */
#define EK_CHECKED __attribute__((warn_unused_result))
/** Argument f is a format of printf for the arguments from a on. */
#define EK_PRINTF(f, a) __attribute__((format(printf, f, a)))
/** A function that the shared library exports. */
#define EK_API __attribute__((visibility("default")))
#else
#define EK_CHECKED
#define EK_PRINTF(f, a)
#define EK_API
#endif

/** 0 is success, positive is "not yet" (only from calls that poll), negative is failure.
 *  The tens digit is the class of the failure, by which a caller can choose a recovery. */
typedef enum {
    EK_OK = 0,             /**< success */
    EK_PENDING = 1,        /**< not yet */
    EK_EINVAL = -10,       /**< wrong use by the caller (-1x): an argument or a setting */
    EK_ESTATE = -11,       /**< not now: an object or a folder is in another state */
    EK_EUNSUPPORTED = -12, /**< not in this build, or not for this model */
    EK_EOVERFLOW = -13,    /**< a size beyond the limits */
    EK_ENOMEM = -20,       /**< out of memory (-2x: a smaller request may succeed) */
    EK_ENOSPC = -21,       /**< out of disk space */
    EK_ETIMEOUT = -30,     /**< too slow (-3x: the same call may succeed later) */
    EK_ECANCELED = -32,    /**< ended by the caller's stop hook */
    EK_EPEER = -40,   /**< a rank failed, this one or another (-4x: the communicator is unusable) */
    EK_EDEVICE = -42, /**< an accelerator failed */
    EK_ECORRUPT = -50,   /**< a checksum differs (-5x: invalid or missing data) */
    EK_EFORMAT = -51,    /**< a file is not what it should be */
    EK_ENONFINITE = -52, /**< a loss or gradient is not a number */
    EK_ENOENT = -53,     /**< a file or folder is missing */
    EK_EIO = -60,        /**< the system failed to read or write (-6x: the system or MPI) */
    EK_ECOMM = -61,      /**< MPI failed */
    EK_EINTERNAL = -90   /**< a bug in evenkeel (-9x) */
} ek_status;

/** Classes of failures. */
typedef enum {
    EK_CLASS_OK,       /**< no failure */
    EK_CLASS_USAGE,    /**< wrong use by the caller */
    EK_CLASS_RESOURCE, /**< out of a resource; a smaller request may succeed */
    EK_CLASS_RETRY,    /**< the same call may succeed later */
    EK_CLASS_RANK,     /**< a rank failed */
    EK_CLASS_DATA,     /**< invalid or missing data */
    EK_CLASS_SYSTEM,   /**< the system or MPI failed */
    EK_CLASS_BUG       /**< a bug in evenkeel */
} ek_class;

/** Describes a status.
 *
 *  @param[in] st  any value
 *  @return a few words, such as "bad format"; static, never NULL */
EK_API const char *ek_status_name(ek_status st);

/** The class of a status: the tens digit of its code.
 *
 *  @param[in] st  any value
 *  @return EK_CLASS_BUG for a value that is no status */
EK_API ek_class ek_status_class(ek_status st);

/** This thread's last failure in full.
 *
 *  @return the message, then one line per frame it passed; owned by the library, valid until the
 *          thread's next failure; "" if there was none */
EK_API const char *ek_err_text(void);

/** This thread's last failure: the message alone, one line, without status name or frames.
 *
 *  @return printable text: control characters and bytes that are not UTF-8 are escaped (\\x1b,
 *          \\n); owned as that of ek_err_text */
EK_API const char *ek_err_message(void);

/** Starts this thread's record of a failure; called through EK_FAIL.
 *
 *  @param[in] file  where it failed; as the next two, borrowed during the call
 *  @param[in] line  where it failed
 *  @param[in] func  where it failed
 *  @param[in] st    the failure
 *  @param[in] fmt   a format of printf, followed by its arguments: one sentence
 *  @return st */
EK_API ek_status ek_err_raise(const char *file, int line, const char *func, ek_status st,
                              const char *fmt, ...) EK_PRINTF(5, 6);

/** Adds a frame to this thread's record; called through EK_TRY.
 *
 *  @param[in] file  the frame; as the next two, borrowed during the call
 *  @param[in] line  the frame
 *  @param[in] func  the frame
 *  @param[in] st    the failure
 *  @return st */
EK_API ek_status ek_err_pass(const char *file, int line, const char *func, ek_status st);

/** Writes the message of a failure, a format of printf and its arguments.  Its value is st. */
#define EK_FAIL(st, ...) ek_err_raise(__FILE__, __LINE__, __func__, (st), __VA_ARGS__)

/** Returns from the calling function with this failure unless cond holds. */
#define EK_REQUIRE(cond, code, ...)                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return EK_FAIL((code), __VA_ARGS__);                                                   \
    } while (0)

/** Returns a failure to the caller; for functions that need no cleanup. */
#define EK_TRY(call)                                                                               \
    do {                                                                                           \
        ek_status ek_st_ = (call);                                                                 \
        if (ek_st_ < 0)                                                                            \
            return ek_err_pass(__FILE__, __LINE__, __func__, ek_st_);                              \
    } while (0)

/** EK_TRY for functions with cleanup: needs `ek_status st;` and a label `out:`. */
#define EK_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st < 0) {                                                                              \
            st = ek_err_pass(__FILE__, __LINE__, __func__, st);                                    \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/** EK_REQUIRE for functions with cleanup. */
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
