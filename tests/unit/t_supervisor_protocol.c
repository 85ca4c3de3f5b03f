/* Messages and lines of workers to the supervisor: what is written reads back as the same, and
 * nothing else is read. */
#include "base/random.h"
#include "ek_test.h"
#include "supervisor/protocol.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int reads(const char *text, ek_worker_message *m)
{
    return ek_message_read(text, strlen(text), m);
}

/* Writes it as `text`, and reads it back. */
static void check_message(const ek_worker_message *m, const char *text)
{
    char line[EK_MESSAGE_CAP], again[EK_MESSAGE_CAP];
    const char *body;
    size_t n = ek_message_write(m, line), bytes;
    ek_worker_message back;

    CHECK(n == strlen(line) && n > 2 && line[n - 1] == '\n');
    CHECK(ek_line_read(line, n - 1, &body, &bytes) == EK_LINE_MESSAGE);
    CHECK(bytes == strlen(text) && memcmp(body, text, bytes) == 0);
    CHECK(ek_message_read(body, bytes, &back) && back.kind == m->kind);
    CHECK(ek_message_write(&back, again) == n && strcmp(line, again) == 0);
}

static void every_message_reads_back(void)
{
    ek_worker_message m;

    m = (ek_worker_message){.kind = EK_MESSAGE_START, .worker = {0, 1, "a"}};
    check_message(&m, "start 0 pid 1 host a");
    m = (ek_worker_message){.kind = EK_MESSAGE_JOINED, .worker = {3, 1234, "node3.cluster"}};
    check_message(&m, "rank 3 pid 1234 host node3.cluster");
    m = (ek_worker_message){.kind = EK_MESSAGE_FAILED, .failed = {3, 2, 0}};
    check_message(&m, "failed 3 rank 2");
    m = (ek_worker_message){.kind = EK_MESSAGE_FAILED, .failed = {1, 0, 1}};
    check_message(&m, "failed 1 rank 0 lost");
    m = (ek_worker_message){.kind = EK_MESSAGE_PHASE, .phase = {"transfer"}};
    check_message(&m, "phase transfer");
    m = (ek_worker_message){.kind = EK_MESSAGE_STEP, .step = {12, 5000000000}};
    check_message(&m, "step 12 of 5000000000");
    m = (ek_worker_message){.kind = EK_MESSAGE_RECOVERED, .recovered = {1, 0, INT64_MAX, 7}};
    check_message(&m, "recovered 1 0 9223372036854775807 7");
    m = (ek_worker_message){.kind = EK_MESSAGE_LACKING, .lacking = {19}};
    check_message(&m, "lacking 19");
    m = (ek_worker_message){.kind = EK_MESSAGE_MEMORY,
                            .memory = {0x00ff00ff00ff00ff, "65536x3,131072x1"}};
    check_message(&m, "memory 00ff00ff00ff00ff 65536x3,131072x1");
    m = (ek_worker_message){.kind = EK_MESSAGE_NOTICE, .notice = {INT_MAX}};
    check_message(&m, "notice 2147483647");
    m = (ek_worker_message){.kind = EK_MESSAGE_ALIVE, .notice = {7}};
    check_message(&m, "alive 7");
    m = (ek_worker_message){.kind = EK_MESSAGE_LEAVING, .notice = {0}};
    check_message(&m, "leaving 0");
    m = (ek_worker_message){.kind = EK_MESSAGE_NO_ROOM, .notice = {0}};
    check_message(&m, "noroom 0");
}

static void fields_have_their_values(void)
{
    ek_worker_message m;

    CHECK(reads("rank 3 pid 12 host node", &m) && m.kind == EK_MESSAGE_JOINED);
    CHECK(m.worker.rank == 3 && m.worker.pid == 12 && strcmp(m.worker.host, "node") == 0);
    CHECK(reads("failed 3 rank 2 lost", &m));
    CHECK(m.failed.status == 3 && m.failed.rank == 2 && m.failed.lost == 1);
    CHECK(reads("failed 3", &m) && m.failed.status == 3 && m.failed.rank == 0 && !m.failed.lost);
    CHECK(reads("failed 1 lost", &m) && m.failed.rank == 0 && m.failed.lost == 1);
    CHECK(reads("step 12 of 99", &m) && m.step.done == 12 && m.step.total == 99);
    CHECK(reads("recovered 1 2 3 4", &m) && m.recovered.taken == 1 && m.recovered.copied == 2);
    CHECK(m.recovered.received == 3 && m.recovered.prealloc == 4);
    CHECK(reads("memory 0000000000000abc b", &m) && m.memory.run == 0xabc);
    CHECK(strcmp(m.memory.blocks, "b") == 0);
}

static void malformed_messages_are_rejected(void)
{
    static const char *const bad[] = {
        "",
        " ",
        "start",
        "start ",
        "start 1",
        "start 1 pid 2",
        "start 1 pid 2 host",
        "start 1 pid 2 host ",
        "start 1 pid 2 host a b",
        "start 1 pid 2 host a ",
        " start 1 pid 2 host a",
        "start  1 pid 2 host a",
        "start x pid 2 host a",
        "start 1 host a pid 2",
        "start -1 pid 2 host a",
        "start +1 pid 2 host a",
        "start 1 pid 2 host a\tb",
        "start 1 pid 2 host \x1b[1m",
        "start 1 pid 2 host \x9b",
        "start 1 pid 2 host \xc2\x9b",
        "starting 1 pid 2 host a",
        "failed",
        "failed x",
        "failed 1 rank",
        "failed 1 rank x",
        "failed 1 rank 2 losing",
        "failed 1 lost rank 2",
        "failed 1.5",
        "phase",
        "phase a b",
        "step 1",
        "step 1 of",
        "step 1 of 2 3",
        "step 1 in 2",
        "recovered 1 2 3",
        "recovered 1 2 3 4 5",
        "recovered 1 2 3 nan",
        "lacking",
        "lacking ",
        "lacking 1 2",
        "memory 0000000000000abc",
        "memory 0000000000000abc b c",
        "memory 000000000000abc b",
        "memory 00000000000000abc b",
        "memory 0000000000000aBC b",
        "memory 0x00000000000abc b",
        "notice",
        "notice 1 2",
        "notice 01",
        "step 1 of 007",
        "unknown 1",
    };
    ek_worker_message m;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (reads(bad[i], &m))
            EK_T_FAIL("read: %s", bad[i]);
    CHECK(!ek_message_read("lacking 1\0", 10, &m) && !ek_message_read("notice 1\0", 9, &m));
}

static void numbers_have_limits(void)
{
    ek_worker_message m;

    CHECK(reads("notice 2147483647", &m) && m.notice.rank == INT_MAX);
    CHECK(!reads("notice 2147483648", &m) && !reads("notice 99999999999999999999", &m));
    CHECK(reads("step 9223372036854775807 of 0", &m) && m.step.done == INT64_MAX);
    CHECK(!reads("step 9223372036854775808 of 0", &m));
    CHECK(!reads("step 1 of 18446744073709551617", &m));
}

static void texts_have_limits(void)
{
    char text[EK_MESSAGE_CAP + 64], line[EK_MESSAGE_CAP];
    ek_worker_message m;

    memset(text, 'x', sizeof(text));
    memcpy(text, "phase ", 6);
    CHECK(ek_message_read(text, 6 + EK_MESSAGE_PHASE_CAP - 1, &m));
    CHECK(strlen(m.phase.name) == EK_MESSAGE_PHASE_CAP - 1);
    CHECK(!ek_message_read(text, 6 + EK_MESSAGE_PHASE_CAP, &m));
    m = (ek_worker_message){.kind = EK_MESSAGE_MEMORY};
    memset(m.memory.blocks, '9', sizeof(m.memory.blocks) - 1);
    CHECK(ek_message_write(&m, line) == strlen(line) && strlen(line) < sizeof(line));
    CHECK(ek_message_read(line + 1, strlen(line) - 2, &m));
}

/* The longest message of each kind fits a line. */
static void the_longest_messages_fit(void)
{
    char line[EK_MESSAGE_CAP];
    ek_worker_message m = {.kind = EK_MESSAGE_START, .worker = {INT_MAX, INT_MAX, ""}};

    memset(m.worker.host, 'h', sizeof(m.worker.host) - 1);
    CHECK(ek_message_write(&m, line) > 0);
    m.kind = EK_MESSAGE_JOINED;
    CHECK(ek_message_write(&m, line) > 0);
    m = (ek_worker_message){.kind = EK_MESSAGE_FAILED, .failed = {INT_MAX, INT_MAX, 1}};
    CHECK(ek_message_write(&m, line) > 0);
    m = (ek_worker_message){.kind = EK_MESSAGE_STEP, .step = {INT64_MAX, INT64_MAX}};
    CHECK(ek_message_write(&m, line) > 0);
    m = (ek_worker_message){.kind = EK_MESSAGE_RECOVERED,
                            .recovered = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
    CHECK(ek_message_write(&m, line) > 0);
}

static void invalid_messages_are_not_written(void)
{
    static const ek_worker_message bad[] = {
        {.kind = EK_MESSAGES},
        {.kind = EK_MESSAGE_START, .worker = {0, 1, ""}},
        {.kind = EK_MESSAGE_START, .worker = {0, 1, "a b"}},
        {.kind = EK_MESSAGE_START, .worker = {0, 1, "a\n"}},
        {.kind = EK_MESSAGE_START, .worker = {-1, 1, "a"}},
        {.kind = EK_MESSAGE_STEP, .step = {-1, 1}},
        {.kind = EK_MESSAGE_MEMORY, .memory = {1, ""}},
    };
    char line[EK_MESSAGE_CAP];
    ek_worker_message m = {.kind = EK_MESSAGE_PHASE};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(ek_message_write(&bad[i], line) == 0 && line[0] == '\0');
    memset(m.phase.name, 'p', sizeof(m.phase.name)); /* not terminated */
    CHECK(ek_message_write(&m, line) == 0);
}

static void check_line(ek_line_kind kind, const char *text, const char *want)
{
    char out[16];
    const char *body;
    size_t bytes, n = ek_line_write(kind, text, strlen(text), out, sizeof(out));

    CHECK(n == strlen(want) && memcmp(out, want, n) == 0);
    CHECK(ek_line_read(out, n - 1, &body, &bytes) == kind);
}

static void lines_have_a_type(void)
{
    char out[8];
    const char *text;
    size_t bytes;

    check_line(EK_LINE_TEXT, "a b",
               "\x1e"
               "a b\n");
    check_line(EK_LINE_TEXT, "", "\x1e\n");
    check_line(EK_LINE_PART, "\ra", "\x1d\ra\n");
    check_line(EK_LINE_FOREIGN, "a", "a\n");
    CHECK(ek_line_read("", 0, &text, &bytes) == EK_LINE_FOREIGN && bytes == 0);
    CHECK(ek_line_write(EK_LINE_TEXT, "\x1clacking 1", 10, out, sizeof(out)) ==
          8); /* a message, cut */
    CHECK(memcmp(out, "\x1clackin\n", 8) == 0);
    CHECK(ek_line_write(EK_LINE_TEXT, "1234567890", 10, out, sizeof(out)) == 8);
    CHECK(memcmp(out,
                 "\x1e"
                 "123456\n",
                 8) == 0);
}

/* --- random messages -------------------------------------------------------------------------- */

enum { DRAWS = 20000 };

static uint64_t drawn;

/* From 0 to n - 1. */
static uint64_t draw(uint64_t n)
{
    return ek_random_bits(1, ek_random_stream("protocol"), drawn++) % n;
}

/* Any number of digits. */
static int64_t draw_number(void)
{
    return (int64_t)(ek_random_bits(2, 0, drawn++) >> (1 + draw(63)));
}

static int draw_int(void)
{
    return (int)(draw_number() & INT_MAX);
}

static void draw_word(char *word, size_t cap)
{
    size_t n = 1 + draw(cap - 1);

    memset(word, 0, cap);
    for (size_t i = 0; i < n; i++)
        word[i] = (char)('!' + draw('~' - '!' + 1));
}

static ek_worker_message draw_message(void)
{
    ek_worker_message m;

    memset(&m, 0, sizeof(m)); /* with padding, to be compared */
    m.kind = (ek_message_kind)draw(EK_MESSAGES);
    switch (m.kind) {
    case EK_MESSAGE_START:
    case EK_MESSAGE_JOINED:
        m.worker.rank = draw_int();
        m.worker.pid = draw_int();
        draw_word(m.worker.host, sizeof(m.worker.host));
        break;
    case EK_MESSAGE_FAILED:
        m.failed.status = draw_int();
        m.failed.rank = draw_int();
        m.failed.lost = (int)draw(2);
        break;
    case EK_MESSAGE_PHASE: draw_word(m.phase.name, sizeof(m.phase.name)); break;
    case EK_MESSAGE_STEP:
        m.step.done = draw_number();
        m.step.total = draw_number();
        break;
    case EK_MESSAGE_RECOVERED:
        m.recovered.taken = draw_number();
        m.recovered.copied = draw_number();
        m.recovered.received = draw_number();
        m.recovered.prealloc = draw_number();
        break;
    case EK_MESSAGE_MEMORY:
        m.memory.run = (uint64_t)draw_number();
        draw_word(m.memory.blocks, sizeof(m.memory.blocks));
        break;
    case EK_MESSAGE_NO_ROOM:
    case EK_MESSAGE_NOTICE:
    case EK_MESSAGE_ALIVE:
    case EK_MESSAGE_LEAVING: m.notice.rank = draw_int(); break;
    case EK_MESSAGE_LACKING: m.lacking.step = draw_number(); break;
    case EK_MESSAGES: break;
    }
    return m;
}

static void any_message_reads_back_as_it_was(void)
{
    for (int i = 0; i < DRAWS; i++) {
        ek_worker_message m = draw_message(), back;
        char line[EK_MESSAGE_CAP];
        size_t n = ek_message_write(&m, line);

        if (n < 3 || !ek_message_read(line + 1, n - 2, &back) || memcmp(&m, &back, sizeof(m)) != 0)
            EK_T_FAIL("message %d: %s", i, line + 1);
    }
}

/* One byte of it changed, removed or inserted. */
static size_t corrupt(char *text, size_t n)
{
    size_t at = draw(n);
    char byte = (char)draw(256);

    switch (draw(3)) {
    case 0: text[at] = byte; return n;
    case 1: memmove(text + at, text + at + 1, n - at - 1); return n - 1;
    default:
        memmove(text + at + 1, text + at, n - at);
        text[at] = byte;
        return n + 1;
    }
}

/* The optional fields of a failure are always written. */
static void corrupted_message_is_rejected_or_reads_back(void)
{
    int rejected = 0;

    for (int i = 0; i < DRAWS; i++) {
        ek_worker_message m = draw_message(), back;
        char line[EK_MESSAGE_CAP + 1], again[EK_MESSAGE_CAP];
        size_t n = corrupt(line + 1, ek_message_write(&m, line) - 2);

        if (!ek_message_read(line + 1, n, &back))
            rejected++;
        else if (back.kind != EK_MESSAGE_FAILED &&
                 (ek_message_write(&back, again) != n + 2 || memcmp(line, again, n + 1) != 0))
            EK_T_FAIL("read: %.*s", (int)n, line + 1);
    }
    CHECK(rejected > DRAWS / 4 && rejected < DRAWS);
}

static const ek_case cases[] = {
    EK_CASE(every_message_reads_back),
    EK_CASE(fields_have_their_values),
    EK_CASE(malformed_messages_are_rejected),
    EK_CASE(numbers_have_limits),
    EK_CASE(texts_have_limits),
    EK_CASE(the_longest_messages_fit),
    EK_CASE(invalid_messages_are_not_written),
    EK_CASE(lines_have_a_type),
    EK_CASE(any_message_reads_back_as_it_was),
    EK_CASE(corrupted_message_is_rejected_or_reads_back),
};

EK_TEST_MAIN(cases)
