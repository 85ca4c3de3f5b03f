/* Host lists: every form of a line, faults with their line, slots and racks. */
#include "ek_test.h"
#include "supervisor/host_list.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parses text as "list"; the caller frees *h. */
static ek_status parse(const char *text, ek_host_list *h)
{
    char copy[1024];

    snprintf(copy, sizeof(copy), "%s", text);
    return ek_host_list_parse("list", copy, h);
}

static void check_line(const char *line, const char *name, int slots, const char *rack)
{
    ek_host_list h;

    if (parse(line, &h) < 0) {
        EK_T_FAIL("\"%s\": %s", line, ek_err_message());
        return;
    }
    if (h.n != 1 || strcmp(h.host[0].name, name) != 0 || h.host[0].slots != slots ||
        strcmp(h.host[0].rack, rack) != 0)
        EK_T_FAIL("\"%s\": %d hosts, %s:%lld rack=%s", line, h.n, h.host[0].name,
                  (long long)h.host[0].slots, h.host[0].rack);
    ek_host_list_free(&h);
}

static void check_fault(const char *text, const char *message)
{
    ek_host_list h = {.n = 1};
    ek_status st = parse(text, &h);

    if (st != EK_EFORMAT || strcmp(ek_err_message(), message) != 0)
        EK_T_FAIL("\"%s\": status %d, %s", text, (int)st, ek_err_message());
    CHECK(h.host == NULL && h.n == 0);
    if (st >= 0)
        ek_host_list_free(&h);
}

static void line_has_a_host_and_optionally_slots_and_a_rack(void)
{
    check_line("a", "a", 1, "");
    check_line("a:3", "a", 3, "");
    check_line("a:4096", "a", 4096, "");
    check_line("a slots=2", "a", 2, "");
    check_line("a rack=r1", "a", 1, "r1");
    check_line("a:2 rack=r1", "a", 2, "r1");
    check_line("a slots=2 rack=r1", "a", 2, "r1");
    check_line("a rack=r1 slots=2", "a", 2, "r1");
    check_line(" \ta\t slots=2 \r", "a", 2, "");
    check_line("node-1.cluster:2 # the first one", "node-1.cluster", 2, "");
    check_line("a#:9 rack=r", "a", 1, "");
}

static void check_even(const char *text, int64_t ranks, const char *slots)
{
    ek_host_list h;
    char *list = NULL;

    CHECK(parse(text, &h) == EK_OK);
    ek_host_list_fill(&h, ek_host_list_even_slots(&h, ranks));
    CHECK(ek_host_list_text(&h, &list) == EK_OK);
    if (list == NULL || strcmp(list, slots) != 0)
        EK_T_FAIL("\"%s\" for %lld ranks: %s, not %s", text, (long long)ranks, list, slots);
    free(list);
    ek_host_list_free(&h);
}

static void hosts_without_slots_share_the_ranks(void)
{
    check_even("a\nb\nc\nd\n", 8, "a:2,b:2,c:2,d:2");
    check_even("a\nb\nc rack=r\n", 9, "a:3,b:3,c:3");
    check_even("a\nb\nc\n", 8, "a:1,b:1,c:1");
    check_even("a\nb\n", 2, "a:1,b:1");
    check_even("a\nb\n", 1, "a:1,b:1");
    check_even("a\nb\n", 0, "a:1,b:1");
    check_even("a\n", 4096, "a:4096");
    check_even("a\n", 4097, "a:1");
    check_even("a:1\nb\n", 8, "a:1,b:1"); /* some are said: the others have one, as without */
    check_even("a slots=2\nb\n", 8, "a:2,b:1");
}

static void empty_lines_and_comments_name_no_host(void)
{
    check_line("\n# hosts\n   \na\n\n", "a", 1, "");
    check_fault("", "list contains no hosts");
    check_fault("\n# a\n \t\n", "list contains no hosts");
}

static void wrong_number_of_slots_is_rejected_with_its_line(void)
{
    static const char message[] = "list, line 3: host b must have 1 to 4096 slots";
    static const char *const lines[] = {
        "b:0",        "b:-1",         "b:",         "b:x",
        "b:2x",       "b:+2",         "b:4097",     "b:99999999999999999999",
        "b:2:3",      "b slots=",     "b slots=0",  "b slots=-1",
        "b slots=2x", "b slots=4097", "b slots= 2", "b:0 rack=r"};

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[128];

        snprintf(text, sizeof(text), "a\n\n%s\nc\n", lines[i]);
        check_fault(text, message);
    }
}

static void unexpected_word_is_rejected_with_its_line(void)
{
    static const char *const words[] = {"2",       "slots",         "rack=", "slots=2 slots=2",
                                        "Slots=2", "rack=x rack=y", ":2"};
    static const char *const named[] = {"2",       "slots",  "rack=", "slots=2",
                                        "Slots=2", "rack=y", ":2"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char text[128], message[256];

        snprintf(text, sizeof(text), "a\nb %s", words[i]);
        snprintf(message, sizeof(message),
                 "list, line 2: unexpected %s after host b; a line is HOST, HOST:SLOTS or HOST "
                 "slots=SLOTS, optionally followed by rack=NAME",
                 named[i]);
        check_fault(text, message);
    }
    check_fault("b:2 slots=2",
                "list, line 1: unexpected slots=2 after host b; a line is HOST, HOST:SLOTS or HOST "
                "slots=SLOTS, optionally followed by rack=NAME");
}

static void wrong_name_of_a_host_is_rejected_with_its_line(void)
{
    check_fault("a\n:2", "list, line 2: \"\" is not a host name");
    check_fault("-x", "list, line 1: \"-x\" is not a host name");
    check_fault("a,b", "list, line 1: \"a,b\" is not a host name");
}

static void names_have_limits(void)
{
    char name[EK_HOST_NAME_CAP + 1], line[EK_HOST_NAME_CAP + 1], rack[EK_RACK_NAME_CAP + 1];
    ek_host_list h;

    memset(name, 'h', sizeof(name));
    name[EK_HOST_NAME_CAP - 1] = '\0';
    check_line(name, name, 1, "");
    memset(name, 'h', sizeof(name) - 1);
    name[EK_HOST_NAME_CAP] = '\0';
    CHECK(parse(name, &h) == EK_EFORMAT);
    memset(rack, 'r', sizeof(rack));
    rack[EK_RACK_NAME_CAP - 1] = '\0';
    snprintf(line, sizeof(line), "a rack=%s", rack);
    check_line(line, "a", 1, rack);
    snprintf(line, sizeof(line), "a rack=%sr", rack);
    CHECK(parse(line, &h) == EK_EFORMAT);
}

static void list_is_written_for_mpiexec_in_its_order(void)
{
    ek_host_list h, copy;
    char *text = NULL;

    CHECK(parse("b:2 rack=x\na\nb\nc slots=3", &h) == EK_OK);
    CHECK_INT(h.n, 4);
    CHECK_INT(ek_host_list_slots(&h), 7);
    CHECK(ek_host_list_copy(&h, &copy) == EK_OK);
    ek_host_list_free(&h);
    CHECK(h.host == NULL && h.n == 0);
    CHECK(ek_host_list_text(&copy, &text) == EK_OK);
    CHECK(strcmp(text, "b:2,a:1,b:1,c:3") == 0);
    CHECK(strcmp(copy.host[0].rack, "x") == 0);
    free(text);
    ek_host_list_free(&copy);
}

/* want [n]; n = 0: not known. */
static void check_racks(const char *text, const ek_rack_slots *want, int n)
{
    ek_rack_slots *racks = NULL;
    ek_host_list h;

    CHECK(parse(text, &h) == EK_OK);
    CHECK(ek_host_list_racks(&h, &racks) == EK_OK);
    CHECK((racks == NULL) == (n == 0) && (n == 0 || h.n == n));
    for (int i = 0; i < n && racks != NULL; i++)
        if (racks[i].slots != want[i].slots || racks[i].rack != want[i].rack)
            EK_T_FAIL("%s: host %d: %d:%d", text, i, racks[i].slots, racks[i].rack);
    free(racks);
    ek_host_list_free(&h);
}

static void rack_is_the_first_host_in_it(void)
{
    check_racks("a rack=x\nb rack=y\nc rack=x\nd rack=y\ne rack=z",
                (ek_rack_slots[]){{1, 0}, {1, 1}, {1, 0}, {1, 1}, {1, 4}}, 5);
    check_racks("a:2 rack=x\nb:3 rack=xx", (ek_rack_slots[]){{2, 0}, {3, 1}}, 2);
}

static void host_without_a_rack_is_a_rack_of_its_own(void)
{
    check_racks("a\nb rack=x\nc\nd rack=x", (ek_rack_slots[]){{1, 0}, {1, 1}, {1, 2}, {1, 1}}, 4);
    check_racks("a\nb:2", NULL, 0);
}

static void file_is_named_in_faults(void)
{
    char path[] = "/tmp/ek_host_list_XXXXXX", want[128];
    int fd = mkstemp(path);
    ek_host_list h = {.n = 1};

    CHECK(fd >= 0 && write(fd, "a\nb:0\n", 6) == 6);
    close(fd);
    CHECK(ek_host_list_read(path, &h) == EK_EFORMAT);
    snprintf(want, sizeof(want), "%s, line 2: host b must have 1 to 4096 slots", path);
    CHECK(strcmp(ek_err_message(), want) == 0);
    CHECK(truncate(path, 2) == 0 && ek_host_list_read(path, &h) == EK_OK);
    CHECK(h.n == 1 && strcmp(h.host[0].name, "a") == 0);
    ek_host_list_free(&h);
    unlink(path);
    CHECK(ek_host_list_read(path, &h) == EK_ENOENT);
    CHECK(strstr(ek_err_message(), path) != NULL && h.host == NULL && h.n == 0);
}

static void ranks_fill_the_entries_in_order(void)
{
    static const int on[] = {0, 0, 1, 0, 3, 3}, in[] = {0, 0, 1, 0, 1, 1};
    int *hosts, *racks;
    ek_host_list h;

    CHECK_INT(parse("a:2\nb rack=r\na\nc rack=r\n", &h), EK_OK);
    CHECK_INT(ek_host_list_places(&h, 6, &hosts, &racks), EK_OK);
    CHECK(racks != NULL && hosts != NULL);
    for (int r = 0; r < 6 && hosts != NULL && racks != NULL; r++) {
        CHECK_INT(hosts[r], on[r]);
        CHECK(r == 3 || racks[r] == in[r]);
    }
    free(hosts);
    free(racks);
    ek_host_list_free(&h);
    CHECK_INT(parse("a:2\nb\n", &h), EK_OK);
    CHECK_INT(ek_host_list_places(&h, 3, &hosts, &racks), EK_OK);
    CHECK(hosts != NULL && hosts[2] == 1 && racks == NULL);
    free(hosts);
    ek_host_list_free(&h);
}

static const ek_case cases[] = {
    EK_CASE(ranks_fill_the_entries_in_order),
    EK_CASE(hosts_without_slots_share_the_ranks),
    EK_CASE(line_has_a_host_and_optionally_slots_and_a_rack),
    EK_CASE(empty_lines_and_comments_name_no_host),
    EK_CASE(wrong_number_of_slots_is_rejected_with_its_line),
    EK_CASE(unexpected_word_is_rejected_with_its_line),
    EK_CASE(wrong_name_of_a_host_is_rejected_with_its_line),
    EK_CASE(names_have_limits),
    EK_CASE(list_is_written_for_mpiexec_in_its_order),
    EK_CASE(rack_is_the_first_host_in_it),
    EK_CASE(host_without_a_rack_is_a_rack_of_its_own),
    EK_CASE(file_is_named_in_faults),
};

EK_TEST_MAIN(cases)
