/* metrics.jsonl of a resumed run: which lines stay, and what finding them costs. */
#include "base/file.h"
#include "ek_test.h"
#include "train/output/metrics.h"

#include <fcntl.h>
#include <inttypes.h>

static ek_path folder, path;

static void set_up(const char *text, size_t bytes)
{
    char name[] = "/tmp/ek_metrics_XXXXXX";

    CHECK(mkdtemp(name) != NULL);
    CHECK_INT(ek_path_set(&folder, "%s", name), EK_OK);
    CHECK_INT(ek_path_set(&path, "%s/metrics.jsonl", name), EK_OK);
    CHECK_INT(ek_file_replace(NULL, path.s, text, bytes), EK_OK);
}

static void tear_down(void)
{
    CHECK_INT(ek_folder_remove(NULL, folder.s), EK_OK);
}

/* Resumes at first_step a file that holds `before`; it then has to hold `after`. */
static void check_trim(const char *before, size_t bytes, int64_t first_step, const char *after,
                       int64_t next)
{
    ek_metrics m = {.fd = -1};
    char *text = NULL;
    size_t n = 0;

    set_up(before, bytes);
    CHECK_INT(ek_metrics_open(folder.s, first_step, &m), EK_OK);
    CHECK_INT(m.next, next);
    ek_metrics_close(&m);
    CHECK_INT(ek_file_read(path.s, 1 << 20, &text, &n), EK_OK);
    CHECK_INT(n, strlen(after));
    CHECK(text != NULL && strcmp(text, after) == 0);
    free(text);
    tear_down();
}

#define LINE(n) "{\"step\": " #n ", \"loss\": 1}\n"

static void resume_removes_steps_taken_again(void)
{
    const char all[] = LINE(0) LINE(1) LINE(2) LINE(3);

    check_trim(all, sizeof(all) - 1, 4, all, 4);
    check_trim(all, sizeof(all) - 1, 2, LINE(0) LINE(1), 2);
    check_trim(all, sizeof(all) - 1, 9, all, 4);
    check_trim("", 0, 3, "", 0);
}

static void resume_removes_what_a_crash_left(void)
{
    const char torn[] = LINE(0) LINE(1) "{\"step\": 1", zeros[] = LINE(0) "\0\0\0\0" LINE(2),
               alone[] = "{\"step\": 0, \"lo";

    check_trim(torn, sizeof(torn) - 1, 7, LINE(0) LINE(1), 2);
    check_trim(zeros, sizeof(zeros) - 1, 1, LINE(0), 1);
    check_trim(alone, sizeof(alone) - 1, 1, "", 0);
}

static void resume_finds_lines_longer_than_a_block(void)
{
    enum { LONG = 200000 };
    char *text = calloc(1, 3 * LONG), *want = calloc(1, 3 * LONG);
    size_t n = 0;

    CHECK(text != NULL && want != NULL);
    for (int i = 0; i < 2; i++) {
        n += (size_t)sprintf(text + n, "{\"step\": %d, \"x\": \"", i);
        memset(text + n, 'x', LONG);
        n += LONG;
        n += (size_t)sprintf(text + n, "\"}\n");
        if (i == 0)
            memcpy(want, text, n);
    }
    check_trim(text, n, 1, want, 1);
    free(text);
    free(want);
}

/* Bytes that this process has read by system calls. */
static int64_t bytes_read(void)
{
    char text[512] = "";
    int64_t n = -1;
    FILE *f = fopen("/proc/self/io", "r");

    if (f == NULL)
        return -1;
    if (fread(text, 1, sizeof(text) - 1, f) == 0 || sscanf(text, "rchar: %" SCNd64, &n) != 1)
        n = -1;
    fclose(f);
    return n;
}

/* A run of a million steps, with more than 2 GiB of metrics: a hole stands for its beginning. */
static void resume_after_a_million_steps_reads_the_end_alone(void)
{
    const off_t hole = (off_t)2500 << 20;
    int64_t before, after;
    ek_metrics m = {.fd = -1};
    int fd;

    if (bytes_read() < 0)
        SKIP("/proc/self/io cannot be read");
    set_up("", 0);
    fd = open(path.s, O_WRONLY);
    CHECK(fd >= 0 && lseek(fd, hole, SEEK_SET) == hole);
    dprintf(fd, "\n");
    for (int i = 999000; i < 1000000; i++)
        dprintf(fd, "{\"step\": %d, \"tokens\": 2048, \"loss\": 1.25, \"ranks\": 1}\n", i);
    close(fd);
    before = bytes_read();
    CHECK_INT(ek_metrics_open(folder.s, 1000000, &m), EK_OK);
    CHECK_INT(m.next, 1000000);
    ek_metrics_close(&m);
    CHECK_INT(ek_metrics_open(folder.s, 999500, &m), EK_OK);
    CHECK_INT(m.next, 999500);
    ek_metrics_close(&m);
    after = bytes_read();
    CHECK(after - before < 1 << 20);
    tear_down();
}

/* The file then has to hold `after`. */
static void check_eval(const char *before, int64_t step, double loss, const char *after)
{
    ek_metrics_eval e = {.loss = loss, .tokens = 7, .seconds = 0.25};
    ek_metrics m = {.fd = -1};
    char *text = NULL;
    size_t n = 0;

    set_up(before, strlen(before));
    CHECK_INT(ek_metrics_open(folder.s, 100, &m), EK_OK);
    CHECK_INT(ek_metrics_add_eval(&m, step, &e), EK_OK);
    ek_metrics_close(&m);
    CHECK_INT(ek_file_read(path.s, 1 << 20, &text, &n), EK_OK);
    CHECK(text != NULL && n == strlen(after) && strcmp(text, after) == 0);
    free(text);
    tear_down();
}

#define EVAL(perplexity)                                                                           \
    ", \"eval_perplexity\": " perplexity ", \"eval_tokens\": 7, \"eval_s\": 0.250}\n"

static void evaluation_is_added_to_the_line_of_its_step(void)
{
    static const char one[] = "{\"step\": 1, \"loss\": 1, \"eval_loss\": 0" EVAL("1");

    check_eval(LINE(0) LINE(1), 1, 0,
               LINE(0) "{\"step\": 1, \"loss\": 1, \"eval_loss\": 0" EVAL("1"));
    check_eval(one, 1, 2, one);         /* it has one */
    check_eval(LINE(0), 1, 0, LINE(0)); /* the line is lost */
    check_eval("", 0, 0, "");
    check_eval("{\"step\": 0}\n", 0, 1000, "{\"step\": 0, \"eval_loss\": 1000" EVAL("null"));
}

/* --- removed lines ---------------------------------------------------------------------------- */

static void check_file(const char *name, const char *want)
{
    ek_path file;
    char *text = NULL;
    size_t n = 0;

    CHECK_INT(ek_path_set(&file, "%s/%s", folder.s, name), EK_OK);
    CHECK((ek_file_exists(file.s) != 0) == (want != NULL));
    if (want == NULL)
        return;
    CHECK_INT(ek_file_read(file.s, 1 << 20, &text, &n), EK_OK);
    CHECK(text != NULL && n == strlen(want) && strcmp(text, want) == 0);
    free(text);
}

/* Resumes at first_step, after which the file ends before `next`, and appends `more`. */
static void resume(int64_t first_step, int64_t next, const char *more)
{
    ek_metrics m = {.fd = -1};

    CHECK_INT(ek_metrics_open(folder.s, first_step, &m), EK_OK);
    CHECK_INT(ek_metrics_fill(&m, first_step), EK_OK);
    CHECK_INT(m.next, next);
    CHECK(write(m.fd, more, strlen(more)) == (ssize_t)strlen(more));
    ek_metrics_close(&m);
}

#define OTHER(n) "{\"step\": " #n ", \"loss\": 2}\n"

static void run_that_goes_on_from_a_later_state_fills_in_lines(void)
{
    static const char text[] = LINE(0) LINE(1) LINE(2) LINE(3) LINE(4);

    set_up(text, sizeof(text) - 1);
    resume(5, 5, "");
    check_file("metrics-undone.jsonl", NULL); /* nothing was removed */
    resume(0, 0, OTHER(0) OTHER(1) "{\"st");
    check_file("metrics-undone.jsonl", text);
    resume(1, 1, OTHER(1) OTHER(2)); /* back again: the later lines stay */
    check_file("metrics-undone.jsonl", OTHER(1) LINE(2) LINE(3) LINE(4));
    resume(6, 3, ""); /* it lacks one */
    check_file("metrics.jsonl", OTHER(0) OTHER(1) OTHER(2));
    resume(5, 5, OTHER(5));
    check_file("metrics.jsonl", OTHER(0) OTHER(1) OTHER(2) LINE(3) LINE(4) OTHER(5));
    tear_down();
}

static void lines_are_filled_in_only_if_all_are_there(void)
{
    ek_path undone;
    static const char gap[] = LINE(1) LINE(2) LINE(4), torn[] = LINE(1) LINE(2) "{\"step\": 3";

    set_up(LINE(0), sizeof(LINE(0)) - 1);
    CHECK_INT(ek_path_set(&undone, "%s/metrics-undone.jsonl", folder.s), EK_OK);
    CHECK_INT(ek_file_replace(NULL, undone.s, gap, sizeof(gap) - 1), EK_OK);
    resume(5, 1, "");
    CHECK_INT(ek_file_replace(NULL, undone.s, torn, sizeof(torn) - 1), EK_OK);
    resume(4, 1, "");
    check_file("metrics.jsonl", LINE(0));
    resume(3, 3, "");
    check_file("metrics.jsonl", LINE(0) LINE(1) LINE(2));
    tear_down();
}

/* Killed after a part of a line was filled in, or before lines that are kept were removed. */
static void a_kill_leaves_each_step_once(void)
{
    static const char text[] = LINE(0) LINE(1) LINE(2) LINE(3), zeros[] = LINE(0) "\0\0\n" LINE(1);
    enum { ONE = sizeof(LINE(0)) - 1 };

    for (size_t bytes = ONE; bytes < sizeof(text); bytes++) {
        set_up(text, sizeof(text) - 1);
        resume(1, 1, "");
        CHECK_INT(ek_file_replace(NULL, path.s, text, bytes), EK_OK);
        resume(4, 4, "");
        check_file("metrics.jsonl", text);
        resume(1, 1, "");
        check_file("metrics-undone.jsonl", text + ONE);
        tear_down();
    }
    set_up(zeros, sizeof(zeros) - 1);
    resume(1, 1, "");
    check_file("metrics-undone.jsonl", LINE(1)); /* of lines alone */
    tear_down();
}

/* clang-format off */
static const ek_case cases[] = {
    EK_CASE(run_that_goes_on_from_a_later_state_fills_in_lines),
    EK_CASE(lines_are_filled_in_only_if_all_are_there),
    EK_CASE(a_kill_leaves_each_step_once),
    EK_CASE(resume_removes_steps_taken_again),
    EK_CASE(resume_removes_what_a_crash_left),
    EK_CASE(resume_finds_lines_longer_than_a_block),
    EK_CASE(resume_after_a_million_steps_reads_the_end_alone),
    EK_CASE(evaluation_is_added_to_the_line_of_its_step),
};
/* clang-format on */
EK_TEST_MAIN(cases)
