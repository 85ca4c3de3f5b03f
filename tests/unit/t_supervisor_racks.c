/* EK_RACKS_VARIABLE as read by workers. */
#include "ek_test.h"
#include "supervisor/racks.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6 };

/* want [ranks]; NULL: malformed. */
static void check(const char *list, int ranks, const int *want)
{
    int *rack_of = NULL;

    CHECK(ek_racks_set(list) == EK_OK);
    CHECK(ek_racks_get(ranks, &rack_of) == EK_OK);
    CHECK((rack_of == NULL) == (want == NULL));
    for (int r = 0; r < ranks && rack_of != NULL && want != NULL; r++)
        CHECK_INT(rack_of[r], want[r]);
    free(rack_of);
}

static void in_the_order_of_hosts(void)
{
    check("2:0,1:1,3:0", RANKS, (int[]){0, 0, 1, 0, 0, 0});
    check("2:0,1:1,3:0", 3, (int[]){0, 0, 1});
    check("2:0,1:7", RANKS, (int[]){0, 0, 7, 0, 0, 7}); /* more ranks than slots */
    check("100000:3", 1, (int[]){3});
}

static void nothing_is_known(void)
{
    static const char *const lists[] = {"",    "x",     "2",       "2:",    "2:0;1:1",
                                        ":1",  "0:1",   "-1:0",    "2:-1",  "2:0,x",
                                        "2:a", "2:0,b", "2:0,3:x", "1:0,,", "2:99999999999"};

    check(NULL, RANKS, NULL);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        check(lists[i], RANKS, NULL);
}

static const ek_case cases[] = {
    EK_CASE(in_the_order_of_hosts),
    EK_CASE(nothing_is_known),
};
EK_TEST_MAIN(cases)
