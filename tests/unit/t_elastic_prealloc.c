/* Preallocated memory: has the block sizes of another rank, is moved where sizes match and as far
 * as it was completed, and is freed. */
#include "elastic/prealloc.h"
#include "segment_fixture.h"

#include <fcntl.h>

enum { K = EK_SEGMENT_ALIGN };

static ek_segment create(const ek_segment_id *id, const size_t *bytes, int64_t n)
{
    ek_segment s = {0};

    CHECK_INT(ek_segment_create(id, 1, 0, "/out", 10, bytes, n, &s), EK_OK);
    return s;
}

static void described(void)
{
    const size_t bytes[] = {K, 2 * K, K - 5, K, 5 * K};
    ek_segment_id id = {run_of_test("described"), 1, 0};
    ek_segment s = create(&id, bytes, 5);
    char text[EK_PREALLOC_TEXT];

    ek_prealloc_describe(&s, text, sizeof(text));
    CHECK(strcmp(text, "65536x3,131072x1,327680x1") == 0);
    ek_prealloc_describe(&s, text, 20); /* not a part of it */
    CHECK(text[0] == '\0');
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
}

static void moved(void)
{
    const size_t bytes[] = {2 * K, K, 3 * K, K, K};
    unsigned char missing[] = {1, 0, 1, 1, 1};
    ek_segment_id id = {run_of_test("moved"), 4, 0},
                  prealloc_id = {id.run, 2, EK_PREALLOC_RANK + 1};
    ek_segment s = create(&id, bytes, 5), prealloc = {0};
    int64_t moved_bytes = 0;

    CHECK(ek_prealloc_is(&prealloc_id) && !ek_prealloc_is(&id));
    CHECK_INT(ek_prealloc_create(&prealloc_id, 77, "/out", "65536x7"), EK_OK);
    CHECK_INT(ek_prealloc_create(&prealloc_id, 77, "/out", "131072x2,65536x1,196608x1"), EK_OK);
    CHECK_INT(count(id.run), 2);
    CHECK_INT(ek_segment_open(&prealloc_id, 0, &prealloc), EK_OK);
    CHECK_INT(ek_segment_phase_of(&prealloc), EK_SEGMENT_BUILDING); /* no state */
    CHECK(prealloc.head->supervisor_id == 77);
    CHECK_INT(ek_prealloc_move(&prealloc, &s, missing, &moved_bytes), EK_OK);
    CHECK_INT(moved_bytes, 6 * K);
    CHECK(missing[0] == 0 && missing[2] == 0 && missing[3] == 0 && missing[4] == 1);
    ek_segment_close(&prealloc);
    CHECK_INT(ek_prealloc_remove(id.run, 77), EK_OK);
    CHECK_INT(count(id.run), 1); /* moved blocks stay */
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; k != 1 && i < bytes[k]; i++)
            if (s.body[s.block_at[k] + i]++ != 0) {
                CHECK(!"spare memory is zero");
                break;
            }
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
}

/* The creator was killed before the end, even within a block. */
static void partly_there(void)
{
    const size_t bytes[] = {K, K, K};
    unsigned char missing[] = {1, 1, 1};
    char empty[EK_SEGMENT_PATH];
    int fd;
    ek_segment_id id = {run_of_test("partly"), 4, 0},
                  prealloc_id = {id.run, 0, EK_PREALLOC_RANK + 3};
    ek_segment s = create(&id, bytes, 3), prealloc = create(&prealloc_id, bytes, 3);
    int64_t moved_bytes = 0;

    CHECK_INT(ek_segment_create_block(&prealloc, 1), EK_OK);
    path_in(&prealloc_id, "2", empty);
    fd = open(empty, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK_INT(ek_prealloc_move(&prealloc, &s, missing, &moved_bytes), EK_OK);
    CHECK_INT(moved_bytes, K);
    CHECK(missing[0] == 0 && missing[1] == 1 && missing[2] == 1);
    CHECK_INT(ek_prealloc_move(&prealloc, &s, missing, &moved_bytes), EK_OK); /* once */
    CHECK_INT(moved_bytes, K);
    ek_segment_close(&prealloc);
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_prealloc_remove(id.run, 0), EK_OK);
    CHECK_INT(count(id.run), 0);
}

static void refused(void)
{
    static const char *const texts[] = {"",
                                        "x",
                                        "65536",
                                        "65536x0",
                                        "65535x1",
                                        "65536x1;",
                                        "0x1",
                                        "65536x-1",
                                        "65536x1,,",
                                        "65536x1 ",
                                        "65536x9999999",
                                        "-65536x1",
                                        "65536x1,",
                                        "065536x1",
                                        "65536x01",
                                        " 65536x1",
                                        "+65536x1",
                                        "65536x1048575,65536x1",
                                        "18446744073709617152x1"};
    ek_segment_id id = {run_of_test("refused"), 0, EK_PREALLOC_RANK};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (ek_prealloc_create(&id, 0, "/out", texts[i]) != EK_EINVAL)
            EK_T_FAIL("\"%s\": %s", texts[i], ek_err_message());
    CHECK_INT(ek_prealloc_create(&id, 0, "/out", "65536x1,1099511627776x3"), EK_ENOSPC);
    CHECK_INT(count(id.run), 0);
}

static const ek_case cases[] = {
    EK_CASE(described),
    EK_CASE(moved),
    EK_CASE(partly_there),
    EK_CASE(refused),
};
EK_TEST_MAIN(cases)
