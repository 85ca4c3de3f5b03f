/* Detects which worker of a job died first.
 *
 * MPICH's mpiexec kills all other workers with SIGKILL when one has died, and then names one of
 * those it killed.  So each worker on the supervisor's host holds a connection to the supervisor,
 * which closes when the worker ends; the first that closes without an announced exit belongs to the
 * worker that died. */
#include "supervisor/worker_watch.h"

#include "supervisor/worker_link.h"

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

enum { BATCH = 64, NO_RANK = EK_WORKER_LINK_EXIT };

/* Registers a connection with epoll; its data are the descriptor and the rank, once known. */
static int epoll_set(int set, int how, int fd, int rank)
{
    struct epoll_event e = {.events = EPOLLIN,
                            .data.u64 = (uint64_t)(uint32_t)fd << 32 | ((uint32_t)rank + 1)};

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
            n < offsetof(struct sockaddr_un, sun_path) + EK_WORKER_LINK_NAME_CAP) {
            memcpy(name, a.sun_path + 1, n - offsetof(struct sockaddr_un, sun_path) - 1);
            return fd;
        }
    }
    close(fd);
    return -1;
}

void ek_worker_watch_init(ek_worker_watch *w)
{
    ek_worker_link_address at = {0};

    ek_worker_link_machine(at.machine);
    *w = (ek_worker_watch){.fd = epoll_create1(EPOLL_CLOEXEC), .first = NO_RANK};
    w->door = open_listener(at.name);
    if (w->fd < 0 || w->door < 0 || epoll_set(w->fd, EPOLL_CTL_ADD, w->door, NO_RANK) != 0 ||
        ek_worker_link_set(&at) < 0)
        ek_worker_watch_fini(w); /* fall back to the reports of mpiexec */
}

void ek_worker_watch_fini(ek_worker_watch *w)
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
    (void)!ek_worker_link_set(NULL);
}

static int add_connection(ek_worker_watch *w, int fd)
{
    int *grown = realloc(w->connection, ((size_t)w->n + 1) * sizeof(*grown));

    if (grown == NULL)
        return -1;
    w->connection = grown;
    grown[w->n++] = fd;
    return 0;
}

static void close_connection(ek_worker_watch *w, int fd)
{
    int n = 0;

    for (int i = 0; i < w->n; i++)
        if (w->connection[i] != fd)
            w->connection[n++] = w->connection[i];
    w->n = n;
    close(fd);
}

static void accept_workers(ek_worker_watch *w)
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
static void handle_worker(ek_worker_watch *w, int fd, int rank)
{
    unsigned char bytes[EK_WORKER_LINK_BYTES];
    ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
    int word;

    if (n > 0 && ek_worker_link_word_read(bytes, (size_t)n, &word) &&
        epoll_set(w->fd, EPOLL_CTL_MOD, fd, word) == 0) {
        w->watched += word != EK_WORKER_LINK_EXIT;
        return;
    }
    if (rank != NO_RANK && w->first == NO_RANK)
        w->first = rank;
    w->ended++;
    close_connection(w, fd);
}

void ek_worker_watch_poll(ek_worker_watch *w)
{
    struct epoll_event e[BATCH]; /* in order of arrival */
    int n = epoll_wait(w->fd, e, BATCH, 0);

    for (int i = 0; i < n; i++) {
        int fd = (int)(e[i].data.u64 >> 32), rank = (int)((uint32_t)e[i].data.u64 - 1);

        if (fd == w->door)
            accept_workers(w);
        else
            handle_worker(w, fd, rank);
    }
}
