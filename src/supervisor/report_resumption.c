/* After the first step of a generation: what the loss before it has cost. */
#include "base/clock.h"
#include "base/count_text.h"
#include "base/file.h"
#include "base/json.h"
#include "supervisor/report.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Warns if completed steps are repeated, with the reason. */
static void warn_of_loss(const ek_supervisor *x)
{
    const ek_core_resumption *r = &x->core.resumption;
    long long n = r->repeated, first = x->core.reported.first_step;
    const char *left = r->incomplete ? "only part of the state" : "no state of the run";

    if (n == 0)
        return;
    fprintf(stderr, "evenkeel %s: warning: %lld %s repeated, from ", x->config->command, n,
            n > 1 ? "completed steps are" : "completed step is");
    if (r->from_memory)
        fprintf(stderr, "step %lld: no newer state is left in memory\n", first);
    else if (first > 0)
        fprintf(stderr, "the checkpoint of step %lld: %s is left in memory\n", first, left);
    else
        fprintf(stderr, "the beginning: %s is left in memory, and there is no checkpoint\n", left);
}

static const char *source_of(const ek_supervisor *x)
{
    if (x->core.resumption.from_memory)
        return "memory";
    return x->core.reported.first_step > 0 ? "checkpoint" : "start";
}

/* Appends a complete line or nothing; text: its terminating NUL is replaced by a newline. */
static void append_line(const char *path, char *text)
{
    size_t bytes = strlen(text) + 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t done;

    if (fd < 0)
        return;
    text[bytes - 1] = '\n';
    done = write(fd, text, bytes);
    if (done > 0 && (size_t)done < bytes)
        (void)!ftruncate(fd, lseek(fd, 0, SEEK_END) - done);
    close(fd);
}

/* Appends a line to generations.jsonl; errors are ignored. */
static void record(const ek_supervisor *x)
{
    const ek_core *c = &x->core;
    const ek_core_resumption *r = &c->resumption;
    const double *took = c->progress.took_s;
    int hosts = c->cfg.listed ? ek_core_hosts_in_use(&c->hosts) : 1;
    json_t *o =
        json_pack("{s:I, s:f, s:i, s:i, s:I, s:s, s:I}", "generation",
                  (json_int_t)c->history.generations, "time", ek_clock_epoch_s(), "ranks", c->ranks,
                  "hosts", hosts, "first_step", (json_int_t)c->reported.first_step, "from",
                  source_of(x), "steps_again", (json_int_t)r->repeated);
    char *text;
    ek_path path;

    if (r->times.seen_at > 0)
        json_object_update_new(
            o, json_pack("{s:o, s:f, s:f, s:f, s:f}", "after", ek_json_text_of(x->said.end_reason),
                         "seen", x->said.seen_epoch, "ending_s", r->times.ending_s, "hand_over_s",
                         r->times.drain_s, "total_s", r->total_s));
    json_object_update_new(
        o, json_pack("{s:f, s:f, s:f, s:f}", "taken_mb", (double)x->run.taken / 1e6, "copied_mb",
                     (double)x->run.copied / 1e6, "received_mb", (double)x->run.received / 1e6,
                     "prealloc_mb", (double)x->run.prealloc / 1e6));
    json_object_update_new(o, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "probe_s",
                                        r->times.probe_s, "launch_s", took[EK_PHASE_LAUNCH],
                                        "connect_s", took[EK_PHASE_CONNECT], "plan_s",
                                        took[EK_PHASE_PLAN], "transfer_s", took[EK_PHASE_TRANSFER],
                                        "first_step_s", c->progress.first_step_s));
    text = json_dumps(o, JSON_REAL_PRECISION(6 + 7));
    if (text != NULL && ek_path_set(&path, "%s/generations.jsonl", x->config->out) == EK_OK)
        append_line(path.s, text);
    free(text);
    json_decref(o);
}

void ek_report_resumption(ek_supervisor *x)
{
    const ek_core_resumption *r = &x->core.resumption;
    const double *took = x->core.progress.took_s;
    char draining[48] = "", total[32], text[7][32];

    record(x);
    warn_of_loss(x);
    if (r->times.seen_at == 0)
        return;
    if (r->times.drain_s > 0)
        snprintf(draining, sizeof(draining), ", handing over %s",
                 ek_time_text(text[0], sizeof(text[0]), r->times.drain_s));
    fprintf(stderr,
            "evenkeel %s: resumed, step %lld completed after %s: ending %s%s, probe %s, launch "
            "%s, connect %s, plan %s, transfer %s, step %s\n",
            x->config->command, (long long)x->core.reported.first_step + 1,
            ek_time_text(total, sizeof(total), r->total_s),
            ek_time_text(text[0], sizeof(text[0]), r->times.ending_s), draining,
            ek_time_text(text[1], sizeof(text[1]), r->times.probe_s),
            ek_time_text(text[2], sizeof(text[2]), took[EK_PHASE_LAUNCH]),
            ek_time_text(text[3], sizeof(text[3]), took[EK_PHASE_CONNECT]),
            ek_time_text(text[4], sizeof(text[4]), took[EK_PHASE_PLAN]),
            ek_time_text(text[5], sizeof(text[5]), took[EK_PHASE_TRANSFER]),
            ek_time_text(text[6], sizeof(text[6]), x->core.progress.first_step_s));
}
