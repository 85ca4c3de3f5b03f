/* Recorded failures: instances, positions and the nodes that are a sample of them; what is refused.
 */
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/failure_trace.h"

static ek_status parse(const char *text, int32_t nodes, ek_failure_trace *t)
{
    return ek_failure_trace_parse(text, strlen(text), "f.csv", nodes, t);
}

/* b, a and c are up at 10 ms, the first time that three are.  c and then b go; d takes c's
 * position, and c that of b. */
static const char record[] = "# comment\n0,add,a\n0, add ,b\r\n5,remove,a\n\n10,add,a\n10,add,c\n"
                             "1000,remove,c\n2000,remove,b\n3000,add,d # for c\n3000,add,c\n"
                             "4000,remove,d\n5000,remove,a\n";

static void check_event(const ek_failure_event *e, double at_s, int32_t node, int back)
{
    CHECK_NEAR(e->at_s, at_s);
    CHECK(e->node == node && e->back == back);
}

static void positions_are_filled_in_order(void)
{
    ek_failure_trace t;

    CHECK(parse(record, 3, &t) == EK_OK);
    CHECK_INT(t.instances, 3);
    CHECK_INT(t.n, 6);
    CHECK_NEAR(t.seconds, 4.99);
    check_event(&t.events[0], 0.99, 2, 0);
    check_event(&t.events[1], 1.99, 0, 0);
    check_event(&t.events[2], 2.99, 2, 1);
    check_event(&t.events[3], 2.99, 0, 1);
    check_event(&t.events[4], 3.99, 2, 0);
    check_event(&t.events[5], 4.99, 1, 0);
    ek_failure_trace_free(&t);
    CHECK(parse(record, 2, &t) == EK_OK); /* positions 0 and 1 */
    CHECK_INT(t.n, 3);
    check_event(&t.events[2], 4.99, 1, 0);
    ek_failure_trace_free(&t);
    CHECK(parse(record, 1, &t) == EK_OK);
    CHECK(t.n == 2 && t.instances == 3 && t.nodes == 1);
    ek_failure_trace_free(&t);
}

static void refused(const char *text, const char *message)
{
    ek_failure_trace t;

    CHECK_INT(parse(text, 2, &t), EK_EFORMAT);
    if (strstr(ek_err_message(), message) == NULL || strncmp(ek_err_message(), "f.csv: ", 7) != 0)
        EK_T_FAIL("\"%s\": \"%s\", expected \"%s\"", text, ek_err_message(), message);
    ek_failure_trace_free(&t);
}

static void malformed(void)
{
    refused("", "no instance is added");
    refused("# nothing\n", "no instance is added");
    refused("0,add,a\n1,added,b\n", "line 2: expected MILLISECONDS,add|remove,NAME");
    refused("-1,add,a\n", "line 1: expected");
    refused("1.5,add,a\n", "line 1: expected");
    refused(",add,a\n", "line 1: expected");
    refused("99999999999999999999,add,a\n", "line 1: expected");
    refused("0,add,\n", "line 1: expected");
    refused("0,add,a,b\n", "line 1: expected");
    refused("5,add,a\n4,add,b\n", "line 2: times must not decrease");
    refused("0,add,a\n5,add,a\n", "a is added at 5 ms, and is there already");
    refused("0,remove,a\n", "a is removed at 0 ms, and is gone already");
    refused("0,add,a\n3,remove,a\n3,remove,a\n", "a is removed at 3 ms, and is gone already");
    refused("0,add,a\n1,remove,a\n2,add,b\n", "at most 1 instances are up at once, for 2 nodes");
}

static void read_from_a_file(void)
{
    ek_failure_trace t;

    CHECK_INT(ek_failure_trace_read("/there/is/none.csv", 2, &t), EK_ENOENT);
    ek_failure_trace_free(&t);
}

static const ek_case cases[] = {
    EK_CASE(positions_are_filled_in_order),
    EK_CASE(malformed),
    EK_CASE(read_from_a_file),
};

EK_TEST_MAIN(cases)
