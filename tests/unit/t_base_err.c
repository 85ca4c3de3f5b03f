/* The error record: message, frames, classes, threads, overlong text. */
#include "evenkeel/err.h"

#include "ek_test.h"

#include <pthread.h>

static ek_status leaf(int x)
{
    EK_REQUIRE(x > 0, EK_EINVAL, "x is %d, must be above 0", x);
    return EK_OK;
}

static ek_status middle(int x)
{
    EK_TRY(leaf(x));
    return EK_OK;
}

static ek_status owner(int x, int *cleaned)
{
    ek_status st;

    EK_TRY_OUT(middle(x));
    EK_REQUIRE_OUT(x < 9, EK_EOVERFLOW, "x is %d, must be below 9", x);
out:
    *cleaned = 1;
    return st;
}

static void frames(void)
{
    int cleaned = 0;

    CHECK_INT(owner(1, &cleaned), EK_OK);
    CHECK_INT(owner(0, &cleaned), EK_EINVAL);
    CHECK(cleaned);
    CHECK(strcmp(ek_err_message(), "x is 0, must be above 0") == 0);
    CHECK(strstr(ek_err_text(), "invalid argument: x is 0") == ek_err_text());
    CHECK(strstr(ek_err_text(), "at leaf (") != NULL);
    CHECK(strstr(ek_err_text(), "from middle (") != NULL);
    CHECK(strstr(ek_err_text(), "from owner (") != NULL);
    CHECK_INT(owner(9, &cleaned), EK_EOVERFLOW);
    CHECK(strstr(ek_err_text(), "leaf") == NULL); /* a new record, nothing of the old one */
}

static void old_message_as_argument(void)
{
    CHECK_INT(EK_FAIL(EK_EIO, "disk is gone"), EK_EIO);
    CHECK_INT(EK_FAIL(EK_ECORRUPT, "checkpoint: %s", ek_err_message()), EK_ECORRUPT);
    CHECK(strcmp(ek_err_message(), "checkpoint: disk is gone") == 0);
}

static void overlong(void)
{
    char big[5000];

    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    CHECK_INT(EK_FAIL(EK_EIO, "%s", big), EK_EIO);
    CHECK_INT(strlen(ek_err_message()), 1023);
    for (int i = 0; i < 200; i++)
        CHECK_INT(ek_err_pass("file.c", i, "caller", EK_EIO), EK_EIO);
    CHECK_INT(strlen(ek_err_text()), 2047);
}

static void *other_thread(void *arg)
{
    (void)arg;
    CHECK(strcmp(ek_err_message(), "") == 0);
    CHECK_INT(EK_FAIL(EK_ECANCELED, "theirs"), EK_ECANCELED);
    return NULL;
}

static void per_thread(void)
{
    pthread_t t;

    CHECK_INT(EK_FAIL(EK_EIO, "ours"), EK_EIO);
    CHECK_INT(pthread_create(&t, NULL, other_thread, NULL), 0);
    pthread_join(t, NULL);
    CHECK(strcmp(ek_err_message(), "ours") == 0);
}

static void classes(void)
{
    static const struct {
        ek_status st;
        ek_class c;
    } want[] = {
        {EK_OK, EK_CLASS_OK},           {EK_PENDING, EK_CLASS_OK},
        {EK_EINVAL, EK_CLASS_USAGE},    {EK_ENOSPC, EK_CLASS_RESOURCE},
        {EK_ECANCELED, EK_CLASS_RETRY}, {EK_EPEER, EK_CLASS_RANK},
        {EK_EFORMAT, EK_CLASS_DATA},    {EK_EIO, EK_CLASS_SYSTEM},
        {EK_EINTERNAL, EK_CLASS_BUG},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        CHECK_INT(ek_status_class(want[i].st), want[i].c);
    for (int st = -99; st <= 1; st++)
        CHECK(strlen(ek_status_name((ek_status)st)) > 0);
    CHECK(strcmp(ek_status_name(EK_ECORRUPT), "checksum mismatch") == 0);
}

static const ek_case cases[] = {EK_CASE(frames), EK_CASE(old_message_as_argument),
                                EK_CASE(overlong), EK_CASE(per_thread), EK_CASE(classes)};
EK_TEST_MAIN(cases)
