/* Names from untrusted files in messages: control characters are escaped, all else is kept. */
#include "evenkeel/err.h"

#include "base/log.h"
#include "base/printable.h"
#include "ek_test.h"

static void check_escaped(const char *text, const char *want)
{
    char out[64];

    if (strcmp(ek_printable(out, sizeof(out), text), want) != 0)
        EK_T_FAIL("\"%s\", expected \"%s\"", out, want);
}

static void printable_text_is_kept(void)
{
    check_escaped("", "");
    check_escaped(NULL, "");
    check_escaped("plain, 100 % \\x1b \\n", "plain, 100 % \\x1b \\n");
    check_escaped("\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x9a\xa2",
                  "\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x9a\xa2");
}

static void controls_are_escaped(void)
{
    check_escaped("a\x1b]0;title\x07z", "a\\x1b]0;title\\x07z");
    check_escaped("a\nb\rc\td\x7f", "a\\nb\\rc\\td\\x7f");
    check_escaped("\xc2\x9b"
                  "31m",
                  "\\u009b31m"); /* CSI in C1 */
    check_escaped("a\xe2\x80\xae"
                  "b\xe2\x81\xa6\xe2\x80\xa8",
                  "a\\u202eb\\u2066\\u2028");
}

static void bytes_that_are_not_utf8_are_escaped(void)
{
    check_escaped("\xff\xfe", "\\xff\\xfe");
    check_escaped("\xc0\x80", "\\xc0\\x80");                   /* overlong */
    check_escaped("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* a surrogate */
    check_escaped("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* beyond U+10FFFF */
    check_escaped("\xe6\xbc", "\\xe6\\xbc");
    check_escaped("\x9b", "\\x9b");
}

static void limits(void)
{
    char out[8];

    CHECK_INT(ek_printable_bytes(out, 1, "abc", 3, ""), 0);
    CHECK(strcmp(out, "") == 0);
    CHECK_INT(ek_printable_bytes(out, 6, "ab\x1b\x1b", 4, ""), 2); /* cut before a whole escape */
    CHECK_INT(ek_printable_bytes(out, 8, "a\0\n\t", 4, "\n\t"), 7);
    CHECK(strcmp(out, "a\\x00\n\t") == 0);
}

static void messages_of_failures(void)
{
    char big[2000];

    CHECK_INT(EK_FAIL(EK_EFORMAT, "model_type %s", "x\x1b[2J\ny"), EK_EFORMAT);
    CHECK(strcmp(ek_err_message(), "model_type x\\x1b[2J\\ny") == 0);
    CHECK_INT(EK_FAIL(EK_EIO, "file: %s", ek_err_message()), EK_EIO);
    CHECK(strcmp(ek_err_message(), "file: model_type x\\x1b[2J\\ny") == 0);
    for (size_t i = 0; i + 1 < sizeof(big); i += 2)
        memcpy(big + i, "\xc3\xa9", 2);
    big[sizeof(big) - 1] = '\0';
    CHECK_INT(EK_FAIL(EK_EIO, "%s", big), EK_EIO); /* cut between characters */
    CHECK_INT(strlen(ek_err_message()), 1022);
}

static void keep_message(void *context, ek_log_level level, const char *component,
                         const char *message)
{
    (void)level;
    (void)component;
    snprintf(context, 64, "%s", message);
}

static void log_lines(void)
{
    char logged[64] = "";

    ek_log_set_sink(keep_message, logged, EK_LOG_WARN);
    ek_log("test", EK_LOG_WARN, "host %s", "a\x1b[1A\r");
    ek_log_set_sink(NULL, NULL, EK_LOG_ERROR);
    CHECK(strcmp(logged, "host a\\x1b[1A\\r") == 0);
}

static const ek_case cases[] = {EK_CASE(printable_text_is_kept),
                                EK_CASE(controls_are_escaped),
                                EK_CASE(bytes_that_are_not_utf8_are_escaped),
                                EK_CASE(limits),
                                EK_CASE(messages_of_failures),
                                EK_CASE(log_lines)};
EK_TEST_MAIN(cases)
