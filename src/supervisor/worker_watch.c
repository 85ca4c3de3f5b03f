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

/* `how`: EPOLLET for workers, since epoll_wait() then returns them in the order in which they
 * ended. Without it, one that had an earlier event stays queued, before others that end first. */
static int epoll_add(int set, int fd, uint32_t how)
{
    struct epoll_event e = {.events = EPOLLIN | how, .data.fd = fd};

    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
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
    if (w->fd < 0 || w->door < 0 || epoll_add(w->fd, w->door, 0) != 0 ||
        ek_worker_link_set(&at) < 0)
        ek_worker_watch_fini(w); /* fall back to the reports of mpiexec */
}

void ek_worker_watch_fini(ek_worker_watch *w)
{
    for (int i = 0; i < w->n; i++)
        close(w->connection[i].fd);
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
    ek_worker_connection *grown = realloc(w->connection, ((size_t)w->n + 1) * sizeof(*grown));

    if (grown == NULL)
        return -1;
    w->connection = grown;
    grown[w->n++] = (ek_worker_connection){fd, NO_RANK};
    return 0;
}

static void accept_workers(ek_worker_watch *w)
{
    struct ucred who;
    socklen_t n = sizeof(who);
    int fd;

    while ((fd = accept4(w->door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid() ||
            add_connection(w, fd) != 0)
            close(fd);
        else if (epoll_add(w->fd, fd, EPOLLET) != 0)
            close(w->connection[--w->n].fd);
}

/* The worker has sent its rank, for whose acknowledgement it waits, or announced its exit. */
static void handle_word(ek_worker_watch *w, ek_worker_connection *c, int word)
{
    c->rank = word;
    if (word == EK_WORKER_LINK_EXIT)
        return;
    w->watched++;
    (void)!send(c->fd, "", 1, MSG_NOSIGNAL);
}

static void handle_end(ek_worker_watch *w, ek_worker_connection *c)
{
    if (c->rank != NO_RANK && w->first == NO_RANK)
        w->first = c->rank;
    w->ended++;
    close(c->fd);
    *c = w->connection[--w->n];
}

/* Reads all that there is: the event is not repeated. */
static void handle_worker(ek_worker_watch *w, int fd)
{
    unsigned char bytes[EK_WORKER_LINK_BYTES];
    ek_worker_connection *c = w->connection;
    ssize_t n;
    int word;

    while (c->fd != fd)
        c++;
    while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0 &&
           ek_worker_link_word_read(bytes, (size_t)n, &word))
        handle_word(w, c, word);
    if (n >= 0 || errno != EAGAIN)
        handle_end(w, c);
}

void ek_worker_watch_poll(ek_worker_watch *w)
{
    struct epoll_event e[BATCH];
    int n = epoll_wait(w->fd, e, BATCH, 0);

    for (int i = 0; i < n; i++)
        if (e[i].data.fd == w->door)
            accept_workers(w);
        else
            handle_worker(w, e[i].data.fd);
}
