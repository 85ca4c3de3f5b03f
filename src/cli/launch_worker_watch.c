/* Detects which worker of a job died first, and ends workers whose launcher is gone.
 *
 * MPICH's mpiexec kills all other workers with SIGKILL when one has died, and then names one of
 * those it killed.  So each worker on the launcher's host holds a connection to the launcher, which
 * closes when the worker ends; the first that closes without an announced exit belongs to the
 * worker that died.
 *
 * Conversely, a worker exits when the connection closes, or when it cannot connect on the
 * launcher's own host: the launcher was killed or has ended this start, and possibly no mpiexec or
 * proxy is left to kill the worker. */
#include "cli/launch_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_VARIABLE  "EK_LAUNCHED_BY"
#define PLACE_VARIABLE "EK_LAUNCHED_ON"

enum { BATCH = 64, NAME_CAP = 16, PLACE_CAP = 128, NO_RANK = -1, HIGH_NUMBER = 960 };

/* Identifies the scope of abstract socket names: boot id and network namespace. */
static void machine_id(char place[PLACE_CAP])
{
    char boot[64] = "", net[48] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && read(fd, boot, sizeof(boot) - 1) > 0)
        boot[strcspn(boot, "\n")] = '\0';
    if (fd >= 0)
        close(fd);
    (void)!readlink("/proc/self/ns/net", net, sizeof(net) - 1);
    snprintf(place, PLACE_CAP, "%s %s", boot, net);
}

/* --- launcher side ---------------------------------------------------------------------------- */

/* Registers a connection with epoll; its data are the descriptor and the rank, once known. */
static int epoll_set(int set, int how, int fd, int rank)
{
    struct epoll_event e = {.events = EPOLLIN,
                            .data.u64 = (uint64_t)(uint32_t)fd << 32 | (uint32_t)(rank + 1)};

    return epoll_ctl(set, how, fd, &e);
}

/* Listens on an abstract socket whose name the kernel chooses. */
static int open_listener(char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t n = sizeof(a.sun_family);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, SOMAXCONN) == 0) {
        n = sizeof(a);
        if (getsockname(fd, (struct sockaddr *)&a, &n) == 0 &&
            n < offsetof(struct sockaddr_un, sun_path) + NAME_CAP) {
            memcpy(name, a.sun_path + 1, n - offsetof(struct sockaddr_un, sun_path) - 1);
            return fd;
        }
    }
    close(fd);
    return -1;
}

void launch_worker_watch_init(launch_worker_watch *w)
{
    char name[NAME_CAP] = "", place[PLACE_CAP];

    machine_id(place);
    *w = (launch_worker_watch){.fd = epoll_create1(EPOLL_CLOEXEC), .first = NO_RANK};
    w->door = open_listener(name);
    if (w->fd < 0 || w->door < 0 || epoll_set(w->fd, EPOLL_CTL_ADD, w->door, NO_RANK) != 0 ||
        setenv(NAME_VARIABLE, name, 1) != 0 || setenv(PLACE_VARIABLE, place, 1) != 0)
        launch_worker_watch_fini(w); /* fall back to the reports of mpiexec */
}

void launch_worker_watch_fini(launch_worker_watch *w)
{
    for (int i = 0; i < w->n; i++)
        close(w->connection[i]);
    free(w->connection);
    w->connection = NULL;
    w->n = 0;
    if (w->fd >= 0)
        close(w->fd);
    if (w->door >= 0)
        close(w->door);
    w->fd = w->door = -1;
    unsetenv(NAME_VARIABLE);
    unsetenv(PLACE_VARIABLE);
}

static int add_connection(launch_worker_watch *w, int fd)
{
    int *grown = realloc(w->connection, ((size_t)w->n + 1) * sizeof(*grown));

    if (grown == NULL)
        return -1;
    w->connection = grown;
    grown[w->n++] = fd;
    return 0;
}

static void close_connection(launch_worker_watch *w, int fd)
{
    int n = 0;

    for (int i = 0; i < w->n; i++)
        if (w->connection[i] != fd)
            w->connection[n++] = w->connection[i];
    w->n = n;
    close(fd);
}

static void accept_workers(launch_worker_watch *w)
{
    struct ucred who;
    socklen_t n = sizeof(who);
    int fd;

    while ((fd = accept4(w->door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid() ||
            epoll_set(w->fd, EPOLL_CTL_ADD, fd, NO_RANK) != 0 || add_connection(w, fd) != 0)
            close(fd);
}

/* Event on a connection: the worker's rank, NO_RANK before a regular exit, or end of file. */
static void handle_worker(launch_worker_watch *w, int fd, int rank)
{
    int32_t said = NO_RANK;
    ssize_t n = recv(fd, &said, sizeof(said), 0);

    if (n == (ssize_t)sizeof(said) && said >= 0 && epoll_set(w->fd, EPOLL_CTL_MOD, fd, said) == 0) {
        w->watched++;
        return;
    }
    if (n == (ssize_t)sizeof(said) && epoll_set(w->fd, EPOLL_CTL_MOD, fd, NO_RANK) == 0)
        return; /* regular exit */
    if (rank != NO_RANK && w->first == NO_RANK)
        w->first = rank;
    w->ended++;
    close_connection(w, fd);
}

void launch_worker_watch_poll(launch_worker_watch *w)
{
    struct epoll_event e[BATCH]; /* in order of arrival */
    int n = epoll_wait(w->fd, e, BATCH, 0);

    for (int i = 0; i < n; i++) {
        int fd = (int)(e[i].data.u64 >> 32), rank = (int)(uint32_t)e[i].data.u64 - 1;

        if (fd == w->door)
            accept_workers(w);
        else
            handle_worker(w, fd, rank);
    }
}

/* --- worker side ------------------------------------------------------------------------------ */

static int to_launcher = -1;

/* Linux closes the descriptors of a dead process from the highest down, and MPICH starts to kill
 * the other workers when its own connection to one closes.  With a high number, ours closes first,
 * so the launcher sees this death before the others. */
static int move_to_high_fd(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_NUMBER);

    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static void send_to_launcher(int32_t what)
{
    if (to_launcher >= 0 && send(to_launcher, &what, sizeof(what), MSG_NOSIGNAL) < 0) {
        close(to_launcher);
        to_launcher = -1;
    }
}

/* Thread: blocks until the launcher closes the connection or ends, then kills this process. */
static void *wait_for_end(void *connection)
{
    int fd = (int)(intptr_t)connection;
    char c;
    ssize_t n;

    do
        n = recv(fd, &c, 1, 0);
    while (n > 0 || (n < 0 && errno == EINTR));
    kill(getpid(), SIGKILL);
    return NULL;
}

/* In a thread with all signals blocked, so that it works whatever other threads do. */
static void start_watch_thread(int fd)
{
    enum { STACK_BYTES = 256 << 10 };
    pthread_attr_t how;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&how);
    pthread_attr_setstacksize(&how, STACK_BYTES);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    (void)pthread_create(&thread, &how, wait_for_end, (void *)(intptr_t)fd);
    pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Whether the peer runs as this user: another user may have taken the free socket name. */
static int is_own_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

static int is_launcher_host(void)
{
    const char *place = getenv(PLACE_VARIABLE);
    char own[PLACE_CAP];

    machine_id(own);
    return place != NULL && strcmp(place, own) == 0;
}

void launch_worker_watch_join(int rank)
{
    const char *name = getenv(NAME_VARIABLE);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = name != NULL ? strlen(name) : 0;

    if (n == 0 || n >= NAME_CAP)
        return;
    memcpy(a.sun_path + 1, name, n);
    to_launcher = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to_launcher < 0)
        return;
    if (connect(to_launcher, (struct sockaddr *)&a,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) != 0 ||
        !is_own_user(to_launcher)) {
        if (is_launcher_host())
            _exit(EXIT_FAILURE); /* the launcher has ended */
        close(to_launcher);      /* the launcher is on another host */
        to_launcher = -1;
        return;
    }
    to_launcher = move_to_high_fd(to_launcher);
    send_to_launcher(rank);
    start_watch_thread(to_launcher);
}

void launch_worker_watch_leave(void)
{
    send_to_launcher(NO_RANK);
}
