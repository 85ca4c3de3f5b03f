/* base/file: reading, listings, and writes that leave the old or the new file on any failure. */
#include "base/file.h"
#include "ek_test.h"
#include "faulty_io.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

static ek_path root;

static const char *at(const char *name)
{
    static ek_path p[4];
    static int next;
    ek_path *q = &p[next++ % 4];

    CHECK(ek_path_set(q, "%s/%s", root.s, name) == EK_OK);
    return q->s;
}

static void begin(void)
{
    CHECK(ek_path_set(&root, "/tmp/ek_t_file_XXXXXX") == EK_OK);
    CHECK(mkdtemp(root.s) != NULL);
}

static void end(void)
{
    CHECK(ek_folder_remove(NULL, root.s) == EK_OK);
    CHECK(ek_file_kind_of(root.s) == EK_FILE_NONE);
}

static int has_contents(const char *path, const char *want)
{
    char *data = NULL;
    size_t n = 0;
    int same = ek_file_read(path, 1000, &data, &n) == EK_OK && strcmp(data, want) == 0;

    free(data);
    return same;
}

static int error_has(const char *text)
{
    return strstr(ek_err_message(), text) != NULL;
}

/* Names in the folder. */
static int64_t entries(void)
{
    ek_names l = {0};
    int64_t n;

    CHECK(ek_folder_entries(root.s, &l) == EK_OK);
    n = l.n;
    ek_names_free(&l);
    return n;
}

static void paths(void)
{
    static const char *const cases[][2] = {{"a/b", "a"}, {"b", "."},    {"/b", "/"},
                                           {"/", "/"},   {"a/b/", "a"}, {"a//b//", "a"}};
    char *longer = calloc(5001, 1);
    ek_path p;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(ek_path_parent(cases[i][0], &p) == EK_OK);
        CHECK(strcmp(p.s, cases[i][1]) == 0);
    }
    memset(longer, 'x', 5000);
    CHECK_INT(ek_path_set(&p, "%s", longer), EK_EINVAL);
    longer[4500] = '/';
    CHECK_INT(ek_path_parent(longer, &p), EK_EINVAL);
    free(longer);
}

/* All spellings of a path give the same absolute path, whether it exists or not. */
static void absolute_paths(void)
{
    static const char *const ways[] = {"f/run", "f//run/",    "./f/./run",
                                       "l/run", "f/../f/run", "l/../f/run"};
    char before[4096];
    ek_path want, got;

    begin();
    CHECK(ek_folder_make(NULL, at("f")) == EK_OK && symlink("f", at("l")) == 0);
    CHECK(realpath(root.s, want.s) != NULL && getcwd(before, sizeof(before)) != NULL);
    CHECK(strlen(want.s) < 4000 && strcat(want.s, "/f/run") != NULL);
    CHECK(chdir(root.s) == 0);
    for (int there = 0; there < 2; there++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            CHECK_INT(ek_path_absolute(ways[i], &got), EK_OK);
            CHECK(strcmp(got.s, want.s) == 0);
        }
        CHECK_INT(ek_path_absolute(at("f/run/"), &got), EK_OK);
        CHECK(strcmp(got.s, want.s) == 0);
        CHECK(ek_folder_make(NULL, at("f/run")) == EK_OK);
    }
    CHECK_INT(ek_path_absolute("new", &got), EK_OK);
    CHECK(got.s[0] == '/' && strcmp(got.s + strlen(got.s) - 4, "/new") == 0);
    CHECK_INT(ek_path_absolute("/no-such-folder/x", &got), EK_OK);
    CHECK(strcmp(got.s, "/no-such-folder/x") == 0);
    CHECK(chdir(before) == 0);
    end();
}

static void reading(void)
{
    ek_file_map m;
    char *data = NULL;
    size_t n = 0;
    int64_t size = 0;
    char name[300] = "";

    begin();
    CHECK(ek_file_write(NULL, at("five"), "12345", 5) == EK_OK);
    CHECK(ek_file_write(NULL, at("none"), "", 0) == EK_OK);
    CHECK(ek_file_map_open(at("five"), &m) == EK_OK);
    CHECK(m.bytes == 5 && memcmp(m.data, "12345", 5) == 0);
    ek_file_map_close(&m);
    CHECK(ek_file_map_open(at("none"), &m) == EK_OK);
    CHECK(m.bytes == 0 && m.data != NULL);
    ek_file_map_close(&m);
    CHECK(ek_file_read(at("five"), 5, &data, &n) == EK_OK && n == 5 && strcmp(data, "12345") == 0);
    free(data);
    CHECK_INT(ek_file_read(at("five"), 4, &data, &n), EK_EFORMAT);
    CHECK(error_has("5 bytes, more than the 4 allowed"));
    CHECK(ek_file_size(at("five"), &size) == EK_OK && size == 5);
    CHECK_INT(ek_file_map_open(at("gone"), &m), EK_ENOENT);
    CHECK(error_has("gone") && error_has("No such file"));
    CHECK_INT(ek_file_map_open(root.s, &m), EK_EFORMAT);
    CHECK(error_has("is a folder"));
    CHECK_INT(ek_file_map_open(at("five/under"), &m), EK_ENOENT); /* a path below a file */
    CHECK(symlink("loop", at("loop")) == 0);
    CHECK_INT(ek_file_map_open(at("loop"), &m), EK_EFORMAT);
    CHECK(ek_file_remove(NULL, at("loop")) == EK_OK);
    memset(name, 'x', sizeof(name) - 1);
    CHECK_INT(ek_file_map_open(at(name), &m), EK_EFORMAT); /* the name is too long */
    CHECK(error_has("File name too long"));
    CHECK(mkfifo(at("pipe"), 0600) == 0);
    CHECK_INT(ek_file_read(at("pipe"), 10, &data, &n), EK_EFORMAT); /* and does not block */
    CHECK_INT(ek_file_kind_of(at("pipe")), EK_FILE_OTHER);
    CHECK(ek_folder_free(root.s, &size) == EK_OK && size > 0);
    CHECK_INT(ek_folder_free(at("gone"), &size), EK_ENOENT);
    end();
}

static void listings(void)
{
    static const char *const want[] = {"a-b", "a/x", "a/y/z", "b", "l"};
    ek_names l;

    begin();
    CHECK(ek_folder_make(NULL, at("a/y")) == EK_OK);
    CHECK(ek_folder_make(NULL, at("a/y")) == EK_OK); /* again */
    CHECK(ek_folder_make(NULL, at("empty")) == EK_OK);
    CHECK(ek_folder_make(NULL, at(".hidden")) == EK_OK);
    CHECK(ek_file_write(NULL, at("b"), "", 0) == EK_OK);
    CHECK_INT(ek_folder_make(NULL, at("b")), EK_EFORMAT);
    CHECK(error_has("/b: it exists, and is not a folder"));
    CHECK(ek_file_write(NULL, at("a/x"), "", 0) == EK_OK);
    CHECK(ek_file_write(NULL, at("a-b"), "", 0) == EK_OK);
    CHECK(ek_file_write(NULL, at("a/y/z"), "", 0) == EK_OK);
    CHECK(ek_file_write(NULL, at(".hidden/q"), "", 0) == EK_OK);
    CHECK(symlink("b", at("l")) == 0);
    CHECK(symlink("..", at("a/loop")) == 0);
    CHECK(ek_folder_files(root.s, &l) == EK_OK);
    CHECK_INT(l.n, 5);
    for (int i = 0; i < 5 && i < l.n; i++)
        CHECK(strcmp(l.names[i], want[i]) == 0);
    ek_names_free(&l);
    CHECK(ek_folder_entries(root.s, &l) == EK_OK);
    CHECK_INT(l.n, 6);
    CHECK(l.n == 6 && strcmp(l.names[0], ".hidden") == 0 && strcmp(l.names[3], "b") == 0);
    ek_names_free(&l);
    CHECK_INT(ek_folder_files(at("gone"), &l), EK_ENOENT);
    CHECK_INT(ek_folder_make(NULL, at("b/c")), EK_EFORMAT); /* b is a file */
    CHECK(error_has("cannot make folder"));
    CHECK(ek_file_remove(NULL, at("b")) == EK_OK);
    CHECK(ek_file_remove(NULL, at("b")) == EK_OK); /* again */
    CHECK(ek_folder_remove(NULL, at("gone")) == EK_OK);
    CHECK(ek_folder_remove(NULL, at("a/loop")) == EK_OK); /* only the link */
    CHECK(ek_file_kind_of(root.s) == EK_FILE_FOLDER);
    end();
}

/* Whichever call fails, the file has its old or new contents, and after success the new. */
static void replace_at_every_call(void)
{
    static const int errors[] = {ENOSPC, EIO};
    int done = 0, failed = 0;

    for (int mode = FAULTY_ONCE; mode <= FAULTY_CRASH; mode++)
        for (int e = 0; e < 2; e++)
            for (int64_t n = 1, last = 0; !last; n++) {
                ek_status st;

                begin();
                CHECK(ek_file_write(NULL, at("f"), "old", 3) == EK_OK);
                faulty_arm((faulty_mode)mode, n, errors[e]);
                st = ek_file_replace(&faulty_io, at("f"), "newer", 5);
                last = faulty.calls < n;
                if (st == EK_OK) {
                    done++;
                    CHECK(has_contents(at("f"), "newer"));
                } else {
                    failed++;
                    CHECK_INT(st, errors[e] == ENOSPC ? EK_ENOSPC : EK_EIO);
                    CHECK(error_has(root.s));
                    CHECK(has_contents(at("f"), "old") || has_contents(at("f"), "newer"));
                    if (mode == FAULTY_ONCE)
                        CHECK_INT(entries(), 1);
                    ek_folder_clear_temporaries(root.s, "f", 0);
                    CHECK_INT(entries(), 1);
                }
                CHECK(!last || st == EK_OK);
                end();
            }
    CHECK(done >= 4 && failed >= 4 * 7); /* open write sync close rename open sync */
}

static void replace_without_power(void)
{
    char grave[] = "/tmp/ek_t_grave_XXXXXX";

    CHECK(mkdtemp(grave) != NULL);
    snprintf(faulty.grave, sizeof(faulty.grave), "%s", grave);
    for (int names = 0; names < 2; names++)
        for (int64_t n = 1, last = 0; !last; n++) {
            ek_status st;

            begin();
            CHECK(ek_file_write(NULL, at("f"), "old", 3) == EK_OK);
            faulty_arm(FAULTY_POWER, n, EIO);
            st = ek_file_replace(&faulty_io, at("f"), "newer", 5);
            last = faulty.calls < n;
            faulty_power_loss(names);
            CHECK(has_contents(at("f"), "newer") || (st != EK_OK && has_contents(at("f"), "old")));
            end();
        }
    ek_folder_discard(NULL, grave);
}

static int once;

static ssize_t short_write(int fd, const void *data, size_t bytes)
{
    if (once++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return write(fd, data, bytes > 2 ? 2 : bytes);
}

static ssize_t no_write(int fd, const void *data, size_t bytes)
{
    (void)fd, (void)data, (void)bytes;
    return 0;
}

static void short_writes(void)
{
    ek_io io = ek_io_system;

    begin();
    io.write = short_write;
    CHECK(ek_file_replace(&io, at("f"), "1234567", 7) == EK_OK);
    CHECK(has_contents(at("f"), "1234567"));
    io.write = no_write;
    CHECK_INT(ek_file_replace(&io, at("f"), "x", 1), EK_EIO);
    CHECK(has_contents(at("f"), "1234567"));
    end();
}

static mode_t mode_of(const char *path)
{
    struct stat s = {0};

    CHECK(lstat(path, &s) == 0);
    return s.st_mode;
}

/* Temporary names are not predictable: existing files and links of such names are kept. */
static void existing_names_are_kept(void)
{
    ek_file_out f;

    begin();
    CHECK(ek_file_write(NULL, at("victim"), "kept", 4) == EK_OK);
    CHECK(symlink("victim", at("f.tmp")) == 0);
    CHECK(ek_file_replace(NULL, at("f"), "new", 3) == EK_OK);
    CHECK(has_contents(at("f"), "new") && has_contents(at("victim"), "kept") &&
          S_ISLNK(mode_of(at("f.tmp"))));
    CHECK_INT(entries(), 3);
    /* a file in a temporary folder follows no link and replaces nothing */
    CHECK(symlink("victim", at("l")) == 0);
    CHECK_INT(ek_file_write(NULL, at("l"), "x", 1), EK_EFORMAT);
    CHECK_INT(ek_file_write(NULL, at("f"), "x", 1), EK_EFORMAT);
    CHECK(error_has("/f: File exists"));
    CHECK(has_contents(at("f"), "new") && has_contents(at("victim"), "kept"));
    /* other files are not taken for temporary ones */
    CHECK(ek_file_write(NULL, at("f.abcdefgh.tmp"), "", 0) == EK_OK);
    CHECK(ek_file_write(NULL, at("f.ABCDEFGH.tmp"), "", 0) == EK_OK);
    CHECK(ek_file_write(NULL, at("g.abcdefgh.tmp"), "", 0) == EK_OK);
    ek_folder_clear_temporaries(root.s, "f", 3600);
    CHECK_INT(entries(), 7);
    ek_folder_clear_temporaries(root.s, "f", 0);
    CHECK_INT(entries(), 6);
    CHECK(!ek_file_exists(at("f.abcdefgh.tmp")));
    CHECK(ek_file_out_open(NULL, at("f"), EK_WRITE_REPLACE, &f) == EK_OK);
    CHECK_INT(entries(), 7);
    CHECK(has_contents(at("f"), "new"));
    ek_file_out_discard(&f);
    CHECK_INT(entries(), 6);
    /* links are made under temporary names, too */
    CHECK(ek_link_replace(NULL, "victim", at("l")) == EK_OK);
    CHECK_INT(entries(), 6);
    CHECK(symlink("victim", at("l.abcdefgh.tmp")) == 0);
    ek_folder_clear_temporaries(root.s, "l", 0);
    CHECK_INT(entries(), 6);
    CHECK(S_ISLNK(mode_of(at("l"))) && has_contents(at("l"), "kept"));
    end();
}

/* Permissions follow the umask, or the file that is replaced. */
static void permissions(void)
{
    static const mode_t modes[] = {0600, 0640, 0666, 0755, 0444};
    mode_t before = umask(027);

    begin();
    CHECK(ek_file_replace(NULL, at("f"), "1", 1) == EK_OK);
    CHECK_INT(mode_of(at("f")) & 07777, 0640);
    CHECK(ek_file_write(NULL, at("g"), "1", 1) == EK_OK);
    CHECK_INT(mode_of(at("g")) & 07777, 0640);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        CHECK(chmod(at("f"), modes[i]) == 0);
        CHECK(ek_file_replace(NULL, at("f"), "2", 1) == EK_OK);
        CHECK_INT(mode_of(at("f")) & 07777, modes[i]);
    }
    umask(before);
    end();
}

/* Links are followed, and kept. */
static void links(void)
{
    struct stat s;

    begin();
    CHECK(ek_folder_make(NULL, at("a")) == EK_OK && ek_folder_make(NULL, at("b")) == EK_OK);
    CHECK(ek_file_write(NULL, at("b/real"), "old", 3) == EK_OK && chmod(at("b/real"), 0600) == 0);
    CHECK(symlink("../b/real", at("a/l")) == 0 && symlink("a/l", at("l")) == 0);
    CHECK(ek_file_replace(NULL, at("l"), "new", 3) == EK_OK);
    CHECK(has_contents(at("b/real"), "new") && S_ISLNK(mode_of(at("l"))) &&
          S_ISLNK(mode_of(at("a/l"))));
    CHECK_INT(mode_of(at("b/real")) & 07777, 0600);
    CHECK(symlink("b/made", at("d")) == 0); /* dangling */
    CHECK(ek_file_replace(NULL, at("d"), "1", 1) == EK_OK && has_contents(at("b/made"), "1"));
    CHECK(symlink("loop", at("loop")) == 0);
    CHECK_INT(ek_file_replace(NULL, at("loop"), "1", 1), EK_EFORMAT);
    CHECK(symlink("b", at("folder")) == 0);
    CHECK_INT(ek_file_replace(NULL, at("folder"), "1", 1), EK_EINVAL);
    CHECK_INT(ek_file_replace(NULL, at("b"), "1", 1), EK_EINVAL);
    CHECK_INT(ek_file_replace(NULL, at("b/"), "1", 1), EK_EINVAL);
    CHECK_INT(ek_file_replace(NULL, at("new/"), "1", 1), EK_EINVAL);
    CHECK(error_has("names a folder"));
    /* another user's link in a world-writable folder */
    CHECK(chmod(at("a"), 01777) == 0);
    CHECK(ek_file_replace(NULL, at("a/l"), "own", 3) == EK_OK && has_contents(at("b/real"), "own"));
    if (lchown(at("a/l"), 12345, 12345) == 0 && lstat(at("a/l"), &s) == 0 && geteuid() == 0) {
        CHECK_INT(ek_file_replace(NULL, at("a/l"), "bad", 3), EK_EIO);
        CHECK(error_has("12345") && error_has("not followed"));
        CHECK(has_contents(at("b/real"), "own"));
    }
    end();
}

/* Special files are written in place and kept. */
static void special_files(void)
{
    char got[8] = {0}, path[64];
    int fd, pipe_fds[2];

    begin();
    /* own device nodes, as a bug here would replace the system's */
    if (mknod(at("full"), S_IFCHR | 0600, makedev(1, 7)) == 0 && access(at("full"), W_OK) == 0) {
        CHECK(symlink("full", at("l")) == 0);
        CHECK_INT(ek_file_replace(NULL, at("full"), "x", 1), EK_ENOSPC);
        CHECK_INT(ek_file_replace(NULL, at("l"), "x", 1), EK_ENOSPC);
        CHECK(S_ISLNK(mode_of(at("l"))) && S_ISCHR(mode_of(at("full"))));
        CHECK(unlink(at("l")) == 0);
    }
    unlink(at("full"));
    CHECK(mkfifo(at("pipe"), 0600) == 0);
    fd = open(at("pipe"), O_RDONLY | O_NONBLOCK);
    CHECK(fd >= 0 && ek_file_replace(NULL, at("pipe"), "12345", 5) == EK_OK);
    CHECK(read(fd, got, sizeof(got)) == 5 && memcmp(got, "12345", 5) == 0);
    CHECK(S_ISFIFO(mode_of(at("pipe"))) && close(fd) == 0);
    /* open files, as /dev/stdout is one */
    CHECK(pipe2(pipe_fds, O_NONBLOCK) == 0);
    snprintf(path, sizeof(path), "/dev/fd/%d", pipe_fds[1]);
    CHECK(ek_file_replace(NULL, path, "pipe", 4) == EK_OK);
    CHECK(read(pipe_fds[0], got, sizeof(got)) == 4 && memcmp(got, "pipe", 4) == 0);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    fd = open(at("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0 && write(fd, "a", 1) == 1);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CHECK(ek_file_replace(NULL, path, "b", 1) == EK_OK);
    CHECK(write(fd, "c", 1) == 1 && close(fd) == 0);
    CHECK(has_contents(at("log"), "abc"));
    CHECK_INT(entries(), 2);
    end();
}

/* A file that is read while it grows. */
static void growing_files(void)
{
    ek_file_out f;

    begin();
    CHECK(ek_file_write(NULL, at("real"), "old", 3) == EK_OK && symlink("real", at("f")) == 0);
    CHECK(ek_file_out_open(NULL, at("f"), EK_WRITE_GROW, &f) == EK_OK);
    CHECK(ek_file_out_write(&f, "1", 1) == EK_OK && has_contents(at("real"), "1"));
    CHECK(ek_file_out_write(&f, "2", 1) == EK_OK && ek_file_out_close(&f) == EK_OK);
    CHECK(has_contents(at("real"), "12") && S_ISLNK(mode_of(at("f"))));
    CHECK(ek_file_out_open(NULL, at("new"), EK_WRITE_GROW, &f) == EK_OK);
    CHECK(ek_file_out_write(&f, "1", 1) == EK_OK);
    ek_file_out_discard(&f);
    CHECK(has_contents(at("new"), "1"));
    CHECK_INT(entries(), 3);
    end();
}

static int stop_requested;

static int stop_hook(void)
{
    return stop_requested;
}

/* A writer that is interrupted removes its partial file. */
static void stopped_writers(void)
{
    ek_file_out f;

    begin();
    ek_file_set_stop(stop_hook);
    CHECK(ek_file_replace(NULL, at("f"), "old", 3) == EK_OK);
    CHECK(ek_file_out_open(NULL, at("f"), EK_WRITE_REPLACE, &f) == EK_OK);
    CHECK(ek_file_out_write(&f, "new", 3) == EK_OK);
    stop_requested = 1;
    CHECK_INT(ek_file_out_write(&f, "er", 2), EK_ECANCELED);
    CHECK(error_has("interrupted while") && error_has("/f"));
    CHECK_INT(ek_file_out_close(&f), EK_ECANCELED);
    ek_file_out_discard(&f);
    CHECK_INT(ek_file_replace(NULL, at("f"), "new", 3), EK_ECANCELED);
    CHECK(has_contents(at("f"), "old"));
    CHECK_INT(entries(), 1);
    ek_file_set_stop(NULL);
    CHECK(ek_file_replace(NULL, at("f"), "new", 3) == EK_OK);
    end();
}

/* A name of the maximum length. */
static void long_names(void)
{
    char name[256];

    memset(name, 'n', 255);
    name[255] = '\0';
    begin();
    CHECK(ek_file_replace(NULL, at(name), "1", 1) == EK_OK && has_contents(at(name), "1"));
    CHECK_INT(entries(), 1);
    end();
}

static void temporary_folders(void)
{
    ek_path a, b;

    begin();
    CHECK(ek_folder_make_temporary(NULL, at("x/y"), &a) == EK_OK);
    CHECK(ek_folder_make_temporary(NULL, at("x/y"), &b) == EK_OK);
    CHECK(strcmp(a.s, b.s) != 0 && ek_file_kind_of(a.s) == EK_FILE_FOLDER &&
          ek_file_kind_of(b.s) == EK_FILE_FOLDER && !ek_file_exists(at("x/y")));
    CHECK(strncmp(a.s, at("x/y."), strlen(at("x/y."))) == 0);
    CHECK(strcmp(a.s + strlen(a.s) - 4, ".tmp") == 0);
    end();
}

static void private_folders(void)
{
    int64_t bytes;
    int fd = -1;

    begin();
    CHECK(ek_folder_make_private(at("c/own")) == EK_OK);
    CHECK_INT(mode_of(at("c/own")) & 07777, 0700);
    CHECK(ek_folder_make_private(at("c/own")) == EK_OK);
    CHECK(ek_file_write(NULL, at("c/own/f"), "123", 3) == EK_OK && chmod(at("c/own/f"), 0600) == 0);
    CHECK(ek_file_open_private(at("c/own/f"), &fd, &bytes) == EK_OK && bytes == 3);
    close(fd);
    CHECK(symlink("f", at("c/own/l")) == 0);
    CHECK_INT(ek_file_open_private(at("c/own/l"), &fd, &bytes), EK_ENOENT);
    CHECK(chmod(at("c/own/f"), 0620) == 0);
    CHECK_INT(ek_file_open_private(at("c/own/f"), &fd, &bytes), EK_ENOENT);
    CHECK(chmod(at("c/own"), 0770) == 0);
    CHECK_INT(ek_folder_make_private(at("c/own")), EK_EINVAL);
    CHECK(error_has("c/own") && error_has("770"));
    CHECK(symlink("own", at("c/link")) == 0 && chmod(at("c/own"), 0700) == 0);
    CHECK_INT(ek_folder_make_private(at("c/link")), EK_EINVAL);
    if (geteuid() == 0) {
        CHECK(chown(at("c/own/f"), 12345, 12345) == 0 && chmod(at("c/own/f"), 0600) == 0);
        CHECK_INT(ek_file_open_private(at("c/own/f"), &fd, &bytes), EK_ENOENT);
        CHECK(chown(at("c/own"), 12345, 12345) == 0);
        CHECK_INT(ek_folder_make_private(at("c/own")), EK_EINVAL);
        CHECK(error_has("c/own") && error_has("user 12345"));
    }
    CHECK(ek_file_open_unnamed(root.s, &fd) == EK_OK);
    CHECK(write(fd, "x", 1) == 1 && lseek(fd, 0, SEEK_SET) == 0);
    CHECK_INT(entries(), 1);
    close(fd);
    CHECK_INT(ek_file_open_unnamed(at("gone"), &fd), EK_ENOENT);
    end();
}

/* A file system of 64 KiB that really is full. */
static void full_disk(void)
{
    static char data[256 << 10];
    int64_t room = 0;

    if (geteuid() != 0)
        SKIP("mounting a small file system needs root");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        SKIP("no mount namespace of our own is to be had");
    begin();
    if (mount("none", root.s, "tmpfs", 0, "size=64k") != 0) {
        end();
        SKIP("tmpfs cannot be mounted");
    }
    CHECK(ek_file_replace(NULL, at("f"), "old", 3) == EK_OK);
    CHECK_INT(ek_file_replace(NULL, at("f"), data, sizeof(data)), EK_ENOSPC);
    CHECK(error_has("No space left") && error_has("/f"));
    CHECK(has_contents(at("f"), "old"));
    CHECK_INT(entries(), 1);
    CHECK(ek_folder_free(root.s, &room) == EK_OK && room > 0 && room <= 64 << 10);
    CHECK(umount(root.s) == 0);
    end();
}

static const ek_case cases[] = {
    EK_CASE(paths),
    EK_CASE(absolute_paths),
    EK_CASE(reading),
    EK_CASE(listings),
    EK_CASE(replace_at_every_call),
    EK_CASE(replace_without_power),
    EK_CASE(short_writes),
    EK_CASE(existing_names_are_kept),
    EK_CASE(permissions),
    EK_CASE(links),
    EK_CASE(special_files),
    EK_CASE(growing_files),
    EK_CASE(stopped_writers),
    EK_CASE(long_names),
    EK_CASE(temporary_folders),
    EK_CASE(private_folders),
    EK_CASE(full_disk),
};

EK_TEST_MAIN(cases)
