/* mpiexec as a child process, and its output in lines. */
#include "supervisor/generation.h"

#include "base/clock.h"
#include "base/command.h"
#include "supervisor/cleanup.h"
#include "supervisor/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1 << 20 };

ek_status ek_generation_init(ek_generation *g)
{
    *g = (ek_generation){.watch = {.fd = -1, .door = -1}, .stream = {{.fd = -1}, {.fd = -1}}};
    for (int i = 0; i < 2; i++) {
        g->stream[i].text = malloc(LINE_MAX_BYTES);
        EK_REQUIRE(g->stream[i].text != NULL, EK_ENOMEM, "no memory for the output of a job");
    }
    g->stream[0].line = ek_job_output_stdout;
    g->stream[1].line = ek_job_output_stderr;
    return EK_OK;
}

void ek_generation_fini(ek_generation *g)
{
    ek_generation_close(g);
    for (int i = 0; i < 2; i++)
        free(g->stream[i].text);
}

/* --- mpiexec ---------------------------------------------------------------------------------- */

/* What a process prints that cannot execute mpiexec, except for the reason: it speaks as a worker.
 */
static void describe_failed_start(const char *command, const char *mpiexec, char *text, size_t cap)
{
    static const ek_worker_message failed = {.kind = EK_MESSAGE_FAILED,
                                             .failed = {.status = EK_EXIT_FAILED}};
    char reason[PATH_MAX];
    size_t n = ek_message_write(&failed, text);

    snprintf(reason, sizeof(reason), "evenkeel %s: cannot start %s: ", command, mpiexec);
    n += ek_line_write(EK_LINE_TEXT, reason, strlen(reason), text + n, cap - n);
    text[n - 1] = '\0'; /* in place of the newline */
}

static ek_status start_child(ek_generation *g, const char *command, char **argv,
                             const sigset_t *mask)
{
    char failed[EK_MESSAGE_CAP + PATH_MAX];
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    int piped = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    ek_process process = {.argv = argv,
                          .in = EK_PROCESS_QUIET,
                          .out = out[1],
                          .err = err[1],
                          .mask = mask,
                          .mark = ek_cleanup_mark(),
                          .failed = failed};
    ek_status st;

    describe_failed_start(command, argv[0], failed, sizeof(failed));
    fflush(stdout);
    st = piped ? ek_process_start(&process, &g->child)
               : EK_FAIL(EK_EIO, "cannot start %s: %s", argv[0], strerror(errno));
    close(out[1]);
    close(err[1]);
    g->stream[0].fd = out[0];
    g->stream[1].fd = err[0];
    return st;
}

ek_status ek_generation_start(ek_generation *g, const char *command, const ek_launched *launched,
                              char **argv, const sigset_t *mask, ek_host_list *hosts,
                              ek_message_listener on_message)
{
    g->hosts = *hosts;
    *hosts = (ek_host_list){0};
    g->child = 0;
    g->ended = 0;
    EK_TRY(ek_launched_set(launched));
    EK_TRY(ek_job_state_init(&g->job, launched->ranks));
    EK_TRY(ek_job_output_init(&g->output, &g->job));
    ek_worker_watch_init(&g->watch);
    g->open = 1;
    g->job.watch = &g->watch;
    g->job.on_message = on_message;
    g->output.hide_mpiexec_reports = launched->elastic;
    return start_child(g, command, argv, mask);
}

static void close_stream(ek_output_stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    s->n = 0;
}

void ek_generation_close(ek_generation *g)
{
    if (g->child > 0 && !g->ended) {
        kill(-g->child, SIGKILL);
        waitpid(g->child, NULL, 0);
        ek_cleanup_kill(g->child);
    }
    g->child = 0;
    for (int i = 0; i < 2; i++)
        close_stream(&g->stream[i]);
    if (g->open)
        ek_worker_watch_fini(&g->watch);
    g->open = 0;
    ek_job_output_fini(&g->output);
    ek_job_state_fini(&g->job);
    ek_host_list_free(&g->hosts);
}

void ek_generation_signal(ek_generation *g, int sig)
{
    if (g->child > 0 && !g->ended)
        kill(g->child, sig);
}

int ek_generation_has_ended(ek_generation *g)
{
    if (g->child <= 0 || g->ended || waitpid(g->child, &g->wait_status, WNOHANG) != g->child)
        return 0;
    if (WIFSIGNALED(g->wait_status))
        kill(-g->child, SIGKILL);
    ek_cleanup_kill(g->child);
    g->ended = 1;
    return 1;
}

int ek_generation_is_over(const ek_generation *g, int64_t now)
{
    return g->ended && ((g->stream[0].fd < 0 && g->stream[1].fd < 0) || now >= g->drain_until);
}

/* --- output ----------------------------------------------------------------------------------- */

/* Passes on all complete lines; at end of file, or if a line exceeds the buffer, also the rest. */
static void emit_lines(ek_generation *g, ek_output_stream *s, int all)
{
    size_t at = 0;
    char *end;

    while ((end = memchr(s->text + at, '\n', s->n - at)) != NULL) {
        size_t n = (size_t)(end - s->text) - at;

        s->line(&g->output, s->text + at, n);
        at += n + 1;
    }
    if (s->n > at && (all || (at == 0 && s->n == LINE_MAX_BYTES))) {
        s->line(&g->output, s->text + at, s->n - at);
        at = s->n;
    }
    memmove(s->text, s->text + at, s->n - at);
    s->n -= at;
}

void ek_generation_read(ek_generation *g, int stream)
{
    ek_output_stream *s = &g->stream[stream];
    ssize_t n = read(s->fd, s->text + s->n, LINE_MAX_BYTES - s->n);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0)
        s->n += (size_t)n;
    emit_lines(g, s, n <= 0);
    if (n <= 0)
        close_stream(s);
}

void ek_generation_flush(ek_generation *g)
{
    for (int i = 0; i < 2; i++)
        emit_lines(g, &g->stream[i], 1);
}
