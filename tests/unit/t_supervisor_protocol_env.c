/* What passes to workers through their environment, and from them through their connection: what is
 * written reads back as the same, and nothing else is read. */
#include "base/random.h"
#include "ek_test.h"
#include "supervisor/worker.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 2000, RANKS = 6 };

static uint64_t drawn;

/* From 0 to n - 1. */
static int draw(int n)
{
    return (int)(ek_random_bits(1, ek_random_stream("environment"), drawn++) % (uint64_t)n);
}

/* --- EK_LAUNCHED_VARIABLE --------------------------------------------------------------------- */

/* text = NULL: any. */
static void check_launched(const ek_launched *l, const char *text)
{
    ek_launched back;

    CHECK(ek_launched_set(l) == EK_OK);
    CHECK(text == NULL || strcmp(getenv(EK_LAUNCHED_VARIABLE), text) == 0);
    back = ek_launched_read(getenv(EK_LAUNCHED_VARIABLE));
    CHECK(back.ranks == l->ranks && back.live == l->live && back.elastic == l->elastic);
    CHECK(back.supervisor_id == l->supervisor_id && back.n_draining == l->n_draining);
    CHECK(back.least_step == l->least_step);
    CHECK(back.lost_hosts == l->lost_hosts && (l->lost_hosts == 0 || back.host_s == l->host_s));
}

static void job_reads_back(void)
{
    check_launched(&(ek_launched){.ranks = 3}, "3");
    check_launched(&(ek_launched){.ranks = 1, .live = 1}, "1 live");
    check_launched(&(ek_launched){.ranks = 8, .elastic = 1, .supervisor_id = 0xabc},
                   "8 elastic=0000000000000abc");
    check_launched(&(ek_launched){.ranks = INT_MAX,
                                  .live = 1,
                                  .elastic = 1,
                                  .supervisor_id = UINT64_MAX,
                                  .n_draining = INT_MAX - 1,
                                  .least_step = INT64_MAX},
                   "2147483647 live elastic=ffffffffffffffff draining=2147483646 "
                   "least=9223372036854775807");
    check_launched(
        &(ek_launched){.ranks = 8, .elastic = 1, .supervisor_id = 0xabc, .least_step = 7},
        "8 elastic=0000000000000abc least=7");
    check_launched(
        &(ek_launched){
            .ranks = 8, .elastic = 1, .supervisor_id = 0xabc, .lost_hosts = 3, .host_s = INT64_MAX},
        "8 elastic=0000000000000abc lost=3 after=9223372036854775807");
    check_launched(
        &(ek_launched){
            .ranks = 8, .elastic = EK_ELASTIC_BY_DEFAULT, .supervisor_id = 0xabc, .n_draining = 1},
        "8 elastic=0000000000000abc default draining=1");
}

static void any_job_reads_back(void)
{
    for (int i = 0; i < DRAWS; i++) {
        ek_launched l = {.ranks = 1 + draw(1 << draw(31)), .live = draw(2), .elastic = draw(3)};

        l.supervisor_id = l.elastic ? ek_random_bits(2, 0, drawn++) >> draw(64) : 0;
        l.n_draining = l.elastic ? draw(l.ranks) : 0;
        l.least_step = l.elastic ? draw(1 << draw(31)) : 0;
        l.lost_hosts = l.elastic ? draw(3) : 0;
        l.host_s = l.lost_hosts > 0 ? 1 + draw(1 << draw(31)) : 0;
        check_launched(&l, NULL);
    }
}

static void malformed_job_is_none(void)
{
    static const char *const bad[] = {"",
                                      "0",
                                      "-1",
                                      "x",
                                      "03",
                                      "3 ",
                                      " 3",
                                      "3  live",
                                      "3 alive",
                                      "3 live ",
                                      "3 live live",
                                      "3 elastic",
                                      "3 elastic=",
                                      "3 elastic=xyz",
                                      "3 elastic=000000000000001",
                                      "3 elastic=00000000000000001",
                                      "3 elastic=000000000000000A",
                                      "3 elastic=0000000000000001 live",
                                      "3 draining=1",
                                      "3 elastic=0000000000000001 draining=",
                                      "3 elastic=0000000000000001 draining=-1",
                                      "3 elastic=0000000000000001 draining=0",
                                      "3 elastic=0000000000000001 draining=3",
                                      "3 elastic=0000000000000001 draining=1 draining=1",
                                      "3 least=1",
                                      "3 elastic=0000000000000001 least=",
                                      "3 default",
                                      "3 elastic=0000000000000001 default default",
                                      "3 elastic=0000000000000001 draining=1 default",
                                      "3 elastic=0000000000000001 least=0",
                                      "3 elastic=0000000000000001 least=-1",
                                      "3 elastic=0000000000000001 lost=1",
                                      "3 elastic=0000000000000001 lost=0 after=1",
                                      "3 elastic=0000000000000001 lost=1 after=0",
                                      "3 elastic=0000000000000001 least=1 draining=1",
                                      "2147483648"};

    CHECK_INT(ek_launched_read(NULL).ranks, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (ek_launched_read(bad[i]).ranks != 0)
            EK_T_FAIL("read: %s", bad[i]);
}

/* --- EK_RACKS_VARIABLE ------------------------------------------------------------------------ */

/* The racks of ranks on these hosts. */
static void check_ranks(const ek_rack_slots *host, int n, int ranks, const int *want)
{
    int *rack_of = NULL;

    CHECK(ek_racks_set(host, n) == EK_OK);
    CHECK(ek_worker_racks(ranks, &rack_of) == EK_OK);
    CHECK((rack_of == NULL) == (want == NULL));
    for (int r = 0; r < ranks && rack_of != NULL && want != NULL; r++)
        CHECK_INT(rack_of[r], want[r]);
    free(rack_of);
}

static void ranks_have_racks_in_the_order_of_hosts(void)
{
    static const ek_rack_slots hosts[] = {{2, 0}, {1, 1}, {3, 0}};

    check_ranks(hosts, 3, RANKS, (int[]){0, 0, 1, 0, 0, 0});
    CHECK(strcmp(getenv(EK_RACKS_VARIABLE), "2:0,1:1,3:0") == 0);
    check_ranks(hosts, 3, 3, (int[]){0, 0, 1});
    check_ranks(hosts, 2, RANKS, (int[]){0, 0, 1, 0, 0, 1}); /* more ranks than slots */
    check_ranks(NULL, 0, RANKS, NULL);
    CHECK(getenv(EK_RACKS_VARIABLE) == NULL);
}

static void any_racks_read_back(void)
{
    for (int i = 0; i < DRAWS; i++) {
        ek_rack_slots host[20], *back = NULL;
        int n = 1 + draw(20), n_back;

        for (int k = 0; k < n; k++)
            host[k] =
                (ek_rack_slots){1 + draw(1 << draw(31)), k > 0 && draw(2) ? host[draw(k)].rack : k};
        CHECK(ek_racks_set(host, n) == EK_OK);
        CHECK(ek_racks_read(getenv(EK_RACKS_VARIABLE), &back, &n_back) == EK_OK);
        CHECK_INT(n_back, n);
        for (int k = 0; k < n && k < n_back; k++)
            CHECK(back[k].slots == host[k].slots && back[k].rack == host[k].rack);
        free(back);
    }
}

static void malformed_racks_are_not_known(void)
{
    static const char *const bad[] = {"",
                                      "x",
                                      ",",
                                      "2",
                                      "2:",
                                      "2:0;1:1",
                                      ":0",
                                      "0:0",
                                      "-1:0",
                                      "2:-1",
                                      "2:a",
                                      "2:1",
                                      "2:0,x",
                                      "2:0,",
                                      "2:0,,",
                                      "2:0,1:2",
                                      "2:0,1:b",
                                      "1:0 ",
                                      " 1:0",
                                      "1:0:0",
                                      "+1:0",
                                      "01:0",
                                      "1:00",
                                      "2147483648:0",
                                      "1:0,1:9",
                                      "2:99999999999",
                                      ",2:0",
                                      "1 :0",
                                      "1:0,1:1,1:3",
                                      "1:0,1:0,1:1"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ek_rack_slots *host = NULL;
        int n, *rack_of = NULL;

        CHECK(ek_racks_read(bad[i], &host, &n) == EK_OK);
        if (host != NULL || n != 0)
            EK_T_FAIL("read: %s", bad[i]);
        free(host);
        CHECK(setenv(EK_RACKS_VARIABLE, bad[i], 1) == 0);
        CHECK(ek_worker_racks(1, &rack_of) == EK_OK && rack_of == NULL);
        free(rack_of);
    }
}

/* --- the connection --------------------------------------------------------------------------- */

static ek_worker_link_address address_in_environment(void)
{
    return ek_worker_link_read(getenv(EK_WORKER_LINK_NAME), getenv(EK_WORKER_LINK_MACHINE));
}

static void address_reads_back(void)
{
    static const ek_worker_link_address good[] = {{"0001f", "6dc6d1f4-d7a8 net:[4026531840]"},
                                                  {"0123456789abcde", "a b"},
                                                  {"0", " b"},
                                                  {"0", "a "},
                                                  {"0", " "}};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ek_worker_link_address back;

        CHECK(ek_worker_link_set(&good[i]) == EK_OK);
        back = address_in_environment();
        CHECK(strcmp(back.name, good[i].name) == 0 && strcmp(back.machine, good[i].machine) == 0);
    }
    CHECK(ek_worker_link_set(NULL) == EK_OK);
    CHECK(getenv(EK_WORKER_LINK_NAME) == NULL && getenv(EK_WORKER_LINK_MACHINE) == NULL);
    CHECK(address_in_environment().name[0] == '\0');
}

static void malformed_address_is_none(void)
{
    static const ek_worker_link_address bad[] = {
        {"", "a b"},   {"a b", "a b"}, {"a\n", "a b"}, {"a", ""},      {"a", "ab"},
        {"a", "a  b"}, {"a", "a b c"}, {"a", "a b "},  {"a", "a\t b"}, {"a", "a \x1b"}};
    char longest[EK_WORKER_LINK_MACHINE_CAP + 1];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (ek_worker_link_read(bad[i].name, bad[i].machine).name[0] != '\0')
            EK_T_FAIL("read: \"%s\", \"%s\"", bad[i].name, bad[i].machine);
        CHECK(ek_worker_link_set(&bad[i]) == EK_EINVAL);
    }
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    longest[3] = ' ';
    CHECK(ek_worker_link_read("a", longest).name[0] == '\0');
    CHECK(ek_worker_link_read("a", longest + 1).name[0] == 'a');
    CHECK(ek_worker_link_read("0123456789abcdef", "a b").name[0] == '\0');
    CHECK(ek_worker_link_read(NULL, "a b").name[0] == '\0');
    CHECK(ek_worker_link_read("a", NULL).name[0] == '\0');
}

static void word_of_a_worker_reads_back(void)
{
    static const int words[] = {EK_WORKER_LINK_EXIT, 0, 1, 255, 256, INT_MAX};
    unsigned char bytes[EK_WORKER_LINK_BYTES + 1] = {0};
    int word;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        ek_worker_link_word_write(words[i], bytes);
        CHECK(ek_worker_link_word_read(bytes, EK_WORKER_LINK_BYTES, &word) && word == words[i]);
        CHECK(!ek_worker_link_word_read(bytes, EK_WORKER_LINK_BYTES - 1, &word));
        CHECK(!ek_worker_link_word_read(bytes, EK_WORKER_LINK_BYTES + 1, &word));
    }
    ek_worker_link_word_write(-2, bytes);
    CHECK(!ek_worker_link_word_read(bytes, EK_WORKER_LINK_BYTES, &word));
    ek_worker_link_word_write(INT_MIN, bytes);
    CHECK(!ek_worker_link_word_read(bytes, EK_WORKER_LINK_BYTES, &word));
}

/* --- EK_PROCESS_MARK_VARIABLE ----------------------------------------------------------------- */

static void mark_is_of_its_supervisor_and_process_alone(void)
{
    char text[EK_PROCESS_MARK_CAP];

    ek_process_mark_write("0123abcd", 4194304, text);
    CHECK(strcmp(text, "0123abcd.4194304") == 0);
    CHECK(ek_process_mark_is(text, "0123abcd", 4194304));
    CHECK(ek_process_mark_is(text, "0123abcd", 0));
    CHECK(!ek_process_mark_is(text, "0123abcd", 419430));
    CHECK(!ek_process_mark_is(text, "0123abc", 0) && !ek_process_mark_is(text, "0123abcde", 0));
    CHECK(!ek_process_mark_is(text, "", 0));
}

static void malformed_mark_is_of_nobody(void)
{
    static const char *const bad[] = {"",
                                      "a",
                                      "a.",
                                      "a.x",
                                      "a.0",
                                      "a.-1",
                                      "a.1 ",
                                      "a. 1",
                                      "a.01",
                                      "a1",
                                      "b.1",
                                      "a.1.1",
                                      ".1",
                                      "aa.1",
                                      "A.1",
                                      "a..1",
                                      "a.9223372036854775808"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (ek_process_mark_is(bad[i], "a", 0))
            EK_T_FAIL("read: %s", bad[i]);
}

static const ek_case cases[] = {
    EK_CASE(job_reads_back),
    EK_CASE(any_job_reads_back),
    EK_CASE(malformed_job_is_none),
    EK_CASE(ranks_have_racks_in_the_order_of_hosts),
    EK_CASE(any_racks_read_back),
    EK_CASE(malformed_racks_are_not_known),
    EK_CASE(address_reads_back),
    EK_CASE(malformed_address_is_none),
    EK_CASE(word_of_a_worker_reads_back),
    EK_CASE(mark_is_of_its_supervisor_and_process_alone),
    EK_CASE(malformed_mark_is_of_nobody),
};

EK_TEST_MAIN(cases)
