/* Where documents begin in a sequence, and by which token. */
#include "base/log.h"
#include "data/documents.h"
#include "ek_test.h"

enum { END = 9, N = 10 };

static void check_marks(const char *tokens, const char *counts, const char *begin)
{
    int64_t n = (int64_t)strlen(tokens);
    int32_t in[N] = {0}, next[N], starts[N];

    for (int64_t i = 0; i < n; i++) {
        in[i] = tokens[i] - '0';
        next[i] = 5;
    }
    ek_documents_mark(n, END, in, next, starts);
    for (int64_t i = 0; i < n; i++) {
        CHECK_INT(next[i], counts[i] == 'x' ? -1 : 5);
        CHECK_INT(starts[i], begin[i] - '0');
    }
}

static void documents_begin_behind_end_tokens(void)
{
    check_marks("1234", "....", "0000");
    check_marks("1294", "..x.", "0003");
    check_marks("9123", "x...", "0111");
    check_marks("1239", "...x", "0000");
    check_marks("9999", "xxxx", "0123");
    check_marks("1999129", ".xxx..x", "0023444");
    check_marks("", "", "");
}

static void the_end_token_is_the_tokenizer_s_or_the_config_s(void)
{
    ek_tokenizer *bytes = NULL;
    int32_t end = -5;

    CHECK(ek_tokenizer_open("bytes", &bytes) == EK_OK);
    CHECK(ek_documents_end(bytes, 7, &end) == EK_OK);
    CHECK_INT(end, 256);
    CHECK(ek_documents_end(NULL, 7, &end) == EK_OK);
    CHECK_INT(end, 7);
    CHECK(ek_documents_end(NULL, 0, &end) == EK_OK);
    CHECK_INT(end, 0);
    CHECK(ek_documents_end(NULL, -1, &end) == EK_EFORMAT);
    CHECK(strstr(ek_err_message(), "eos_token_id") != NULL);
    ek_tokenizer_destroy(&bytes);
}

static int warnings, of_one_in_two;

static void count_warning(void *context, ek_log_level level, const char *component,
                          const char *message)
{
    (void)context;
    (void)component;
    warnings += level == EK_LOG_WARN;
    of_one_in_two += strstr(message, " 1 of 2 data sources hold no end token") != NULL;
}

/* 9000 tokens: more than one read. */
static void streams_without_end_tokens_are_warned_of(void)
{
    static uint16_t ids[2][9000];
    ek_tokens *t[2] = {NULL, NULL};

    ids[0][5000] = END;
    for (int i = 0; i < 2; i++)
        CHECK(ek_tokens_wrap(ids[i], sizeof(ids[i]), 2, 100, "ids", &t[i]) == EK_OK);
    ek_log_set_sink(count_warning, NULL, EK_LOG_WARN);
    CHECK_INT(ek_documents_check(t, 1, END), EK_OK);
    ids[0][5000] = 0;
    ids[0][8999] = END;
    CHECK_INT(ek_documents_check(t, 1, END), EK_OK);
    CHECK_INT(warnings, 0);
    CHECK_INT(ek_documents_check(t, 2, END), EK_OK);
    CHECK(warnings == 1 && of_one_in_two == 1);
    ek_log_set_sink(NULL, NULL, EK_LOG_WARN);
    ek_tokens_close(&t[0]);
    ek_tokens_close(&t[1]);
}

static const ek_case cases[] = {
    EK_CASE(documents_begin_behind_end_tokens),
    EK_CASE(the_end_token_is_the_tokenizer_s_or_the_config_s),
    EK_CASE(streams_without_end_tokens_are_warned_of),
};
EK_TEST_MAIN(cases)
