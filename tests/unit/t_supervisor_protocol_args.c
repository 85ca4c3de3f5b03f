/* Arguments of internal commands: what is written reads back as the same, and nothing else is read.
 */
#include "base/random.h"
#include "ek_test.h"
#include "supervisor/protocol.h"

#include <limits.h>
#include <string.h>

enum { DRAWS = 2000 };

static const char id[] = "0123456789abcdef0123456789abcdef";

static uint64_t drawn;

/* From 0 to n - 1. */
static int draw(int n)
{
    return (int)(ek_random_bits(1, ek_random_stream("arguments"), drawn++) % (uint64_t)n);
}

/* The arguments, joined by '|'. */
static void join(const ek_internal_args *a, char *text, size_t cap)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 0; i < a->argc && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%s", i > 0 ? "|" : "", a->argv[i]);
}

/* want = NULL: any. */
static void check(const ek_internal_call *c, const char *want)
{
    ek_internal_args args;
    ek_internal_call back;
    char text[EK_INTERNAL_TEXT_CAP];

    CHECK(ek_internal_write(c, &args) == EK_OK);
    join(&args, text, sizeof(text));
    if (want != NULL && strcmp(text, want) != 0)
        EK_T_FAIL("%s, expected %s", text, want);
    CHECK(args.argv[args.argc] == NULL && ek_internal_is(args.argv[0]));
    if (!ek_internal_read(args.argc, args.argv, &back))
        EK_T_FAIL("not read: %s", text);
    CHECK(back.kind == c->kind && back.run == c->run && back.supervisor_id == c->supervisor_id);
    CHECK(back.host == c->host && back.ranks == c->ranks);
    CHECK(strcmp(back.blocks, c->blocks) == 0 && strcmp(back.out.s, c->out.s) == 0);
    CHECK(strcmp(back.id, c->id) == 0);
}

static ek_internal_call reserve_call(void)
{
    return (ek_internal_call){.kind = EK_INTERNAL_RESERVE,
                              .run = 0xabc,
                              .supervisor_id = UINT64_MAX,
                              .host = 3,
                              .ranks = 2,
                              .blocks = "65536x3,131072x1",
                              .out = {"/a b/out"}};
}

static void every_call_reads_back(void)
{
    ek_internal_call c = reserve_call();

    check(&c, "reserve|0000000000000abc|ffffffffffffffff|3|2|65536x3,131072x1|/a b/out");
    check(&(ek_internal_call){.kind = EK_INTERNAL_FREE, .run = 1, .supervisor_id = 2},
          "reserve|0000000000000001|0000000000000002");
    check(&(ek_internal_call){.kind = EK_INTERNAL_LINKS}, "links");
    c = (ek_internal_call){.kind = EK_INTERNAL_GUARD};
    memcpy(c.id, id, sizeof(id));
    check(&c, "guard|0123456789abcdef0123456789abcdef");
}

static void longest_call_fits(void)
{
    ek_internal_call c = reserve_call();

    c.run = c.supervisor_id = UINT64_MAX;
    c.host = INT_MAX;
    c.ranks = EK_INTERNAL_RANKS_MAX;
    memset(c.blocks, '9', sizeof(c.blocks) - 1);
    memset(c.out.s, '/', sizeof(c.out.s) - 1);
    check(&c, NULL);
}

static void any_reservation_reads_back(void)
{
    for (int i = 0; i < DRAWS; i++) {
        ek_internal_call c = {.kind = EK_INTERNAL_RESERVE,
                              .run = ek_random_bits(2, 0, (uint64_t)i) >> draw(64),
                              .supervisor_id = ek_random_bits(3, 0, (uint64_t)i) >> draw(64),
                              .host = draw(1 << draw(31)),
                              .ranks = 1 + draw(EK_INTERNAL_RANKS_MAX)};

        for (int k = draw(sizeof(c.blocks) - 1); k >= 0; k--)
            c.blocks[k] = (char)('!' + draw('~' - '!' + 1));
        c.out.s[0] = '/';
        for (int k = draw(100); k > 0; k--)
            c.out.s[k] = (char)(1 + draw(255));
        check(&c, NULL);
    }
}

static void check_invalid(const ek_internal_call *c)
{
    ek_internal_args args;

    CHECK(ek_internal_write(c, &args) == EK_EINVAL && args.argc == 0);
}

static void invalid_call_is_not_written(void)
{
    ek_internal_call c = reserve_call();

    c.host = -1;
    check_invalid(&c);
    c = reserve_call();
    c.ranks = 0;
    check_invalid(&c);
    c.ranks = EK_INTERNAL_RANKS_MAX + 1;
    check_invalid(&c);
    c = reserve_call();
    c.blocks[0] = '\0';
    check_invalid(&c);
    c = reserve_call();
    c.blocks[2] = ' ';
    check_invalid(&c);
    c = reserve_call();
    c.out.s[0] = '\0';
    check_invalid(&c);
    c.out.s[0] = 'a';
    check_invalid(&c);
    c.kind = EK_INTERNAL_GUARD; /* without an id */
    check_invalid(&c);
    memcpy(c.id, id, sizeof(id) - 2);
    check_invalid(&c);
    memset(c.id, 'a', sizeof(c.id)); /* not terminated */
    check_invalid(&c);
    c.kind = EK_INTERNAL_KINDS;
    check_invalid(&c);
}

/* An argument list that is written as its words, joined by '|'. */
static int reads(const char *text)
{
    char copy[512], *argv[16] = {NULL}, *rest = copy, *word;
    ek_internal_call c;
    int argc = 0;

    snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strsep(&rest, "|")) != NULL)
        argv[argc++] = word;
    return ek_internal_read(argc, argv, &c);
}

static void malformed_calls_are_rejected(void)
{
    static const char *const bad[] = {
        "",
        "reserve",
        "reserve|0000000000000abc",
        "reserve|0000000000000abc|00000000000000ff|",
        "reserve|0000000000000abc|00000000000000ff|3",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1|/out|",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1|/out|x",
        "Reserve|0000000000000abc|00000000000000ff",
        "reserve|abc|00000000000000ff",
        "reserve|0x00000000000abc|00000000000000ff",
        "reserve| 000000000000abc|00000000000000ff",
        "reserve|0000000000000ABC|00000000000000ff",
        "reserve|0000000000000abc|00000000000000ff0",
        "reserve|0000000000000abc|",
        "reserve|0000000000000abc|00000000000000ff|-1|2|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|x|2|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|03|2|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|2147483648|2|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|3|0|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|3|65537|65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|3|2 |65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|3||65536x1|/out",
        "reserve|0000000000000abc|00000000000000ff|3|2||/out",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1 |/out",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1|out",
        "reserve|0000000000000abc|00000000000000ff|3|2|65536x1|",
        "links|",
        "links|1",
        "guard",
        "guard|",
        "guard|0123456789abcdef0123456789abcde",
        "guard|0123456789abcdef0123456789abcdef0",
        "guard|0123456789abcdef0123456789abcdeg",
        "guard|0123456789ABCDEF0123456789ABCDEF",
        "guard|0123456789abcdef0123456789abcdef|1",
    };
    char *none[] = {NULL};
    ek_internal_call c;

    CHECK(reads("reserve|0000000000000abc|00000000000000ff|3|2|65536x1|/out"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (reads(bad[i]))
            EK_T_FAIL("read: %s", bad[i]);
    CHECK(!ek_internal_read(0, none, &c));
    CHECK(!ek_internal_is("train") && !ek_internal_is(""));
}

static const ek_case cases[] = {
    EK_CASE(every_call_reads_back),        EK_CASE(longest_call_fits),
    EK_CASE(any_reservation_reads_back),   EK_CASE(invalid_call_is_not_written),
    EK_CASE(malformed_calls_are_rejected),
};

EK_TEST_MAIN(cases)
