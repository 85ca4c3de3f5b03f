/* Segments: created, found, abandoned by a killed process, refused, removed. */
#include "segment_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void ids(void)
{
    CHECK(ek_run_id("/a") != ek_run_id("/b"));
    CHECK(ek_run_id("/a") == ek_run_id("/a"));
    CHECK(ek_run_id("/a") != 0);
}

static void making(void)
{
    ek_segment_id id = {run_of_test("making"), 3, 1};
    ek_segment s = {0}, again = {0};

    CHECK_INT(ek_segment_create(&id, 4, 0, "/some/where", 100000, NULL, 0, &s), EK_OK);
    CHECK(s.body_bytes >= 100000 && (uintptr_t)s.body % 4096 == 0);
    CHECK_INT(ek_segment_phase_of(&s), EK_SEGMENT_BUILDING);
    for (size_t i = 0; i < s.body_bytes; i++)
        if (s.body[i] != 0) {
            CHECK(!"new memory is zero");
            break;
        }
    memset(s.body, 7, 100000);
    ek_segment_set_phase(&s, EK_SEGMENT_READY);
    CHECK_INT(ek_segment_open(&id, 0, &again), EK_ESTATE); /* its creator is alive */
    CHECK(again.head == NULL);
    ek_segment_close(&s);
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_OK);
    CHECK_INT(ek_segment_open(&id, 0, &again), EK_ESTATE); /* one process at a time may change it */
    CHECK_INT(ek_segment_open(&id, -1, &again), EK_OK);    /* others may read */
    CHECK(again.body != s.body && again.body[99999] == 7);
    CHECK_INT(ek_segment_phase_of(&again), EK_SEGMENT_READY);
    CHECK(again.head->ranks == 4 && strcmp(again.head->out, "/some/where") == 0);
    ek_segment_close(&again);
    ek_segment_close(&s);
    CHECK(s.head == NULL);
    CHECK_INT(ek_segment_create(&id, 2, 0, "/other", 10, NULL, 0, &s),
              EK_OK); /* replaces an abandoned segment */
    CHECK(s.body[0] == 0 && s.head->ranks == 2);
    ek_segment_close(&s);
    CHECK_INT(count(id.run), 1);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(count(id.run), 0);
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_ENOENT);
}

static void private_to_its_user(void)
{
    ek_segment_id id = {run_of_test("private"), 0, 0};
    ek_segment s = {0};
    char path[EK_SEGMENT_PATH];
    struct stat of = {0};

    CHECK_INT(ek_segment_create(&id, 1, 0, "/out", 10, NULL, 0, &s), EK_OK);
    CHECK_INT(stat(s.folder, &of), 0);
    CHECK_INT(of.st_mode & 0777, 0700);
    path_in(&id, "front", path);
    CHECK_INT(stat(path, &of), 0);
    CHECK_INT(of.st_mode & 0777, 0600);
    CHECK((size_t)of.st_blocks * 512 >= s.body_bytes); /* reserved, not only promised */
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
}

static void outliving_its_maker(void)
{
    ek_segment_id id = {run_of_test("outliving"), 0, 0};
    ek_segment s = {0};
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        if (ek_segment_create(&id, 1, 0, "/out", 1000, NULL, 0, &s) < 0)
            _exit(1);
        s.body[999] = 42;
        ek_segment_set_phase(&s, EK_SEGMENT_READY);
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_OK);
    CHECK(s.head != NULL && s.body[999] == 42 && s.head->pid == child);
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
}

static void waiting_for_its_maker(void)
{
    ek_segment_id id = {run_of_test("waiting"), 0, 0};
    ek_segment s = {0};
    int ready[2], go[2];
    char c;
    pid_t child;

    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    child = fork();
    if (child == 0) {
        close(go[1]); /* it ends when this process has */
        if (ek_segment_create(&id, 1, 0, "/out", 1000, NULL, 0, &s) < 0 ||
            write(ready[1], "x", 1) != 1 || read(go[0], &c, 1) != 1)
            _exit(1);
        usleep(200000);
        s.body[0] = 9; /* the last byte */
        kill(getpid(), SIGKILL);
    }
    close(ready[1]); /* the child's end is the end of what it writes */
    CHECK(read(ready[0], &c, 1) == 1);
    CHECK_INT(ek_segment_open(&id, 0.01, &s), EK_ESTATE);
    CHECK(strstr(ek_err_message(), "still runs") != NULL);
    CHECK(write(go[1], "x", 1) == 1);
    CHECK_INT(ek_segment_open(&id, 300, &s), EK_OK);
    CHECK(s.head != NULL && s.body[0] == 9);
    ek_segment_close(&s);
    CHECK_INT(waitpid(child, NULL, 0), child);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
}

/* A stopped process keeps its lock. */
static void ending_its_maker(void)
{
    ek_segment_id id = {run_of_test("ending"), 0, 0};
    ek_segment s = {0};
    int ready[2], status = 0;
    char c;
    pid_t child;

    CHECK(pipe(ready) == 0);
    child = fork();
    if (child == 0) {
        if (ek_segment_create(&id, 1, 0, "/out", 1000, NULL, 0, &s) < 0)
            _exit(1);
        s.head->supervisor_id = 77;
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        kill(getpid(), SIGSTOP);
        _exit(1);
    }
    CHECK(read(ready[0], &c, 1) == 1);
    CHECK_INT(ek_segment_open(&id, 0.01, &s), EK_ESTATE);
    CHECK_INT(ek_segment_kill_holder(&id, 0), 0);
    CHECK_INT(ek_segment_kill_holder(&id, 76), 0); /* of another supervisor */
    CHECK_INT(ek_segment_kill_holder(&id, 77), child);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_INT(ek_segment_kill_holder(&id, 77), 0);
    CHECK_INT(ek_segment_open(&id, 300, &s), EK_OK);
    CHECK_INT(ek_segment_kill_holder(&id, 77), 0); /* not this one */
    ek_segment_close(&s);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_segment_kill_holder(&id, 77), 0);
}

static void too_large(void)
{
    ek_segment_id id = {run_of_test("large"), 0, 0};
    ek_segment s = {0};
    size_t room = 0;

    CHECK_INT(ek_segment_available(&room), EK_OK);
    CHECK_INT(ek_segment_create(&id, 1, 0, "/out", room * 2 + (1 << 20), NULL, 0, &s), EK_ENOSPC);
    CHECK(s.head == NULL && strstr(ek_err_message(), "--elastic") != NULL);
    CHECK_INT(count(id.run), 0);
}

static void listing(void)
{
    uint64_t run = run_of_test("listing");
    ek_segment_id made[] = {{run, 2, 0}, {run, 0, 3}, {run, 10, 1}, {run, 0, 0}}, *found = NULL;
    const int order[] = {3, 1, 0, 2};
    ek_segment s = {0};
    int64_t n = 0;

    for (int i = 0; i < 4; i++) {
        CHECK_INT(ek_segment_create(&made[i], 4, 0, "/out", 10, NULL, 0, &s), EK_OK);
        ek_segment_close(&s);
    }
    CHECK_INT(ek_segment_list(run, &found, &n), EK_OK);
    CHECK_INT(n, 4);
    for (int i = 0; i < 4 && n == 4; i++)
        CHECK(found[i].generation == made[order[i]].generation &&
              found[i].rank == made[order[i]].rank && found[i].run == run);
    free(found);
    CHECK_INT(ek_segment_list(0, &found, &n), EK_OK);
    CHECK(n >= 4);
    free(found);
    for (int i = 0; i < 4; i++)
        CHECK_INT(ek_segment_remove(&made[i]), EK_OK);
}

/* Names are unique, and folders of other users, or accessible to them, are not used. */
static void others_names(void)
{
    ek_segment_id id = {run_of_test("others"), 0, 0};
    char first[EK_SEGMENT_FOLDER], second[EK_SEGMENT_FOLDER], text[256];
    ek_segment s = {0};
    int status = 0;
    pid_t child;

    CHECK_INT(ek_segment_folder_make(&id, first), EK_OK);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_segment_folder_make(&id, second), EK_OK);
    CHECK(strcmp(first, second) != 0);
    CHECK_INT(ek_segment_foreign(id.run, text, sizeof(text)), EK_OK);
    CHECK(text[0] == '\0');
    CHECK_INT(chmod(second, 0777), 0);
    CHECK_INT(count(id.run), 0);
    CHECK_INT(ek_segment_foreign(id.run, text, sizeof(text)), EK_OK);
    CHECK(strstr(text, "only its owner can use") != NULL);
    CHECK_INT(rmdir(second), 0);
    if (geteuid() != 0)
        SKIP("folders of another user need root");
    child = fork();
    if (child == 0)
        _exit(setuid(65534) != 0 || ek_segment_folder_make(&id, first) < 0 || count(id.run) != 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_INT(count(id.run), 0);
    CHECK_INT(ek_segment_foreign(id.run, text, sizeof(text)), EK_OK);
    CHECK(strstr(text, "belongs to user ") != NULL);
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_ENOENT);
    CHECK_INT(ek_segment_create(&id, 1, 0, "/out", 10, NULL, 0, &s), EK_OK);
    ek_segment_close(&s);
    CHECK_INT(count(id.run), 1);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_segment_foreign(id.run, text, sizeof(text)), EK_OK);
    CHECK(text[0] != '\0'); /* it is not removed */
    *strchr(text, ' ') = '\0';
    CHECK_INT(rmdir(text), 0);
}

/* Writes a file of these bytes as the front of a segment. */
static void put(const ek_segment_id *id, const void *bytes, size_t n)
{
    char folder[EK_SEGMENT_FOLDER], name[EK_SEGMENT_PATH];
    int fd;

    if (ek_segment_folder_find(id, folder) < 0)
        CHECK_INT(ek_segment_folder_make(id, folder), EK_OK);
    ek_segment_front_path(folder, name);
    fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void what_is_none(void)
{
    ek_segment_id id = {run_of_test("none"), 0, 0}, other = {id.run, 0, 1};
    static unsigned char bytes[2 * EK_SEGMENT_ALIGN];
    ek_segment s = {0};

    put(&id, bytes, 10);
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_ECORRUPT);
    put(&id, bytes, sizeof(bytes)); /* killed before the head was whole */
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_ECORRUPT);
    CHECK(s.head == NULL);
    CHECK_INT(ek_segment_create(&other, 2, 0, "/out", 5000, NULL, 0, &s), EK_OK);
    memcpy(bytes, s.head, EK_SEGMENT_ALIGN);
    ek_segment_close(&s);
    put(&id, bytes, sizeof(bytes)); /* of another rank */
    CHECK_INT(ek_segment_open(&id, 0, &s), EK_ECORRUPT);
    CHECK(strstr(ek_err_message(), "not what its name says") != NULL);
    put(&other, bytes, EK_SEGMENT_ALIGN + 4096); /* cut short */
    CHECK_INT(ek_segment_open(&other, 0, &s), EK_ECORRUPT);
    put(&other, bytes, sizeof(bytes));
    CHECK_INT(ek_segment_open(&other, 0, &s), EK_OK);
    s.head->version++;
    ek_segment_close(&s);
    CHECK_INT(ek_segment_open(&other, 0, &s), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "version") != NULL);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(ek_segment_remove(&other), EK_OK);
}

/* Fills a block with a number. */
static void fill_block(ek_segment *s, int64_t k, int with)
{
    memset(s->body + s->block_at[k], with, ek_segment_block_bytes(s, k));
}

static int first_and_last(const ek_segment *s, int64_t k)
{
    int first = s->body[s->block_at[k]], last = s->body[s->block_at[k + 1] - 1];

    return first == last ? first : -1;
}

static const size_t sizes[] = {10, EK_SEGMENT_ALIGN, EK_SEGMENT_ALIGN + 1};

static void blocks(void)
{
    ek_segment_id id = {run_of_test("pieces"), 0, 0};
    ek_segment s = {0}, again = {0};

    CHECK_INT(ek_segment_create(&id, 1, 0, "/out", 100, sizes, 3, &s), EK_OK);
    CHECK(s.block_at[0] == EK_SEGMENT_ALIGN && s.block_at[3] == s.body_bytes);
    CHECK(ek_segment_block_bytes(&s, 2) == 2 * EK_SEGMENT_ALIGN);
    s.body[99] = 5;
    CHECK_INT(ek_segment_create_block(&s, 1), EK_OK);
    CHECK_INT(ek_segment_open(&id, -1, &again), EK_OK); /* BUILDING: only the front is mapped */
    CHECK(again.body[99] == 5 && again.body_bytes == EK_SEGMENT_ALIGN);
    ek_segment_close(&again);
    ek_segment_set_phase(&s, EK_SEGMENT_FILLED);
    CHECK_INT(ek_segment_open(&id, -1, &again), EK_ECORRUPT); /* two are missing */
    CHECK_INT(ek_segment_create_block(&s, 0), EK_OK);
    CHECK_INT(ek_segment_create_block(&s, 2), EK_OK);
    for (int k = 0; k < 3; k++) {
        CHECK_INT(first_and_last(&s, k), 0);
        fill_block(&s, k, k + 1);
    }
    CHECK_INT(ek_segment_open(&id, -1, &again), EK_OK);
    CHECK(again.body_bytes == s.body_bytes);
    for (int k = 0; k < 3; k++)
        CHECK_INT(first_and_last(&again, k), k + 1);
    ek_segment_close(&again);
    ek_segment_close(&s);
    CHECK_INT(count(id.run), 1);
    CHECK_INT(ek_segment_remove(&id), EK_OK);
    CHECK_INT(count(id.run), 0); /* nor any blocks */
}

static void adopted_blocks_are_shared(void)
{
    ek_segment_id old = {run_of_test("taken"), 4, 1}, new = {old.run, 5, 0};
    const size_t others[] = {EK_SEGMENT_ALIGN + 2, 10};
    ek_segment a = {0}, b = {0};
    char head[EK_SEGMENT_PATH];

    CHECK_INT(ek_segment_create(&old, 2, 0, "/out", 100, sizes, 3, &a), EK_OK);
    for (int k = 0; k < 3; k++) {
        CHECK_INT(ek_segment_create_block(&a, k), EK_OK);
        fill_block(&a, k, k + 1);
    }
    CHECK_INT(ek_segment_create(&new, 1, 0, "/out", 100, others, 2, &b), EK_OK);
    CHECK_INT(ek_segment_adopt_block(&b, 0, &a, 0), EK_EINVAL); /* of another size */
    CHECK_INT(ek_segment_adopt_block(&b, 0, &a, 2), EK_OK);
    CHECK_INT(ek_segment_create_block(&b, 1), EK_OK);
    CHECK_INT(first_and_last(&b, 0), 3);
    fill_block(&b, 0, 9);
    CHECK_INT(first_and_last(&a, 2), 9); /* the same memory */
    CHECK_INT(first_and_last(&b, 1), 0);
    ek_segment_set_phase(&b, EK_SEGMENT_READY);
    ek_segment_close(&a);
    CHECK_INT(ek_segment_remove(&old), EK_OK);
    ek_segment_close(&b);
    CHECK_INT(ek_segment_open(&new, 0, &b), EK_OK); /* it stays while a segment has it */
    CHECK_INT(first_and_last(&b, 0), 9);
    ek_segment_close(&b);
    path_in(&new, "front", head);
    CHECK_INT(unlink(head), 0);
    CHECK_INT(count(new.run), 1); /* blocks are found without a front */
    CHECK_INT(ek_segment_open(&new, 0, &b), EK_ENOENT);
    CHECK_INT(ek_segment_remove(&new), EK_OK);
    CHECK_INT(count(new.run), 0);
}

static const ek_case cases[] = {
    EK_CASE(ids),
    EK_CASE(making),
    EK_CASE(private_to_its_user),
    EK_CASE(outliving_its_maker),
    EK_CASE(waiting_for_its_maker),
    EK_CASE(ending_its_maker),
    EK_CASE(too_large),
    EK_CASE(listing),
    EK_CASE(others_names),
    EK_CASE(blocks),
    EK_CASE(adopted_blocks_are_shared),
    EK_CASE(what_is_none),
};

EK_TEST_MAIN(cases)
