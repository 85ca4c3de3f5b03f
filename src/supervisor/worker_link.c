/* A worker's connection to the supervisor on its host.
 *
 * The worker exits when it closes, or when it cannot connect: the supervisor was killed or has
 * ended this start, and possibly no mpiexec or proxy is left to kill the worker. */
#include "supervisor/worker_link.h"

#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HIGH_NUMBER = 960, KNOWN_MS = 60000 };

void ek_worker_link_machine(char machine[EK_WORKER_LINK_MACHINE_CAP])
{
    char boot[64] = "", net[48] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && read(fd, boot, sizeof(boot) - 1) > 0)
        boot[strcspn(boot, "\n")] = '\0';
    if (fd >= 0)
        close(fd);
    (void)!readlink("/proc/self/ns/net", net, sizeof(net) - 1);
    snprintf(machine, EK_WORKER_LINK_MACHINE_CAP, "%s %s", boot, net);
}

static int to_supervisor = -1;

/* Linux closes the descriptors of a dead process from the highest down, and MPICH starts to kill
 * the other workers when its own connection to one closes.  With a high number, ours closes first,
 * so the supervisor sees this death before the others. */
static int move_to_high_fd(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_NUMBER);

    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static void send_to_supervisor(int word)
{
    unsigned char bytes[EK_WORKER_LINK_BYTES];

    ek_worker_link_word_write(word, bytes);
    if (to_supervisor >= 0 && send(to_supervisor, bytes, sizeof(bytes), MSG_NOSIGNAL) < 0) {
        close(to_supervisor);
        to_supervisor = -1;
    }
}

/* One byte from the supervisor; 0 if it has closed the connection or ended. */
static int receive_byte(int fd)
{
    char c;
    ssize_t n;

    do
        n = recv(fd, &c, 1, 0);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Thread: blocks until the supervisor closes the connection or ends, then kills this process. */
static void *wait_for_end(void *connection)
{
    while (receive_byte((int)(intptr_t)connection)) {
    }
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Whether the peer runs as this user: another user may have taken the free socket name. */
static int is_own_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

static int is_this_machine(const char *machine)
{
    char own[EK_WORKER_LINK_MACHINE_CAP];

    ek_worker_link_machine(own);
    return strcmp(machine, own) == 0;
}

/* Waits until the supervisor has read the rank; 0: it does not, as it has no descriptor left. */
static int wait_until_known(void)
{
    struct pollfd p = {.fd = to_supervisor, .events = POLLIN};
    int n;

    do
        n = poll(&p, 1, KNOWN_MS);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return 0;
    if (!receive_byte(to_supervisor))
        _exit(EXIT_FAILURE); /* it has ended */
    return 1;
}

void ek_worker_link_join(int rank)
{
    ek_worker_link_address at =
        ek_worker_link_read(getenv(EK_WORKER_LINK_NAME), getenv(EK_WORKER_LINK_MACHINE));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(at.name);

    if (n == 0 || !is_this_machine(at.machine))
        return;
    memcpy(a.sun_path + 1, at.name, n);
    to_supervisor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to_supervisor < 0)
        return;
    if (connect(to_supervisor, (struct sockaddr *)&a,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) != 0 ||
        !is_own_user(to_supervisor))
        _exit(EXIT_FAILURE); /* the supervisor has ended */
    send_to_supervisor(rank);
    if (to_supervisor < 0)
        _exit(EXIT_FAILURE); /* likewise */
    if (wait_until_known()) {
        to_supervisor = move_to_high_fd(to_supervisor);
        ek_thread_detach(wait_for_end, (void *)(intptr_t)to_supervisor);
        return;
    }
    send_to_supervisor(EK_WORKER_LINK_EXIT); /* goes on unwatched */
    close(to_supervisor);
    to_supervisor = -1;
}

void ek_worker_link_leave(void)
{
    send_to_supervisor(EK_WORKER_LINK_EXIT);
}
