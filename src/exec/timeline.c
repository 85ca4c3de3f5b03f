/* Trace-event JSON of recorded ops ("X" events; a process id per rank, a thread id per lane and
 * track). */
#include "base/file.h"
#include "exec/exec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int track_id(ek_lane lane, int32_t track)
{
    return (int)lane + EK_LANE_COUNT * (int)track;
}

/* What a network op asks of which ranks; peer: a rank of the world. */
static void write_net_work(FILE *f, const ek_net_work *w)
{
    fprintf(f, ",\"collective\":\"%s\",\"ranks\":%" PRId32, ek_collective_name(w->collective),
            w->group.n);
    if (w->peer >= 0)
        fprintf(f, ",\"peer\":%" PRId32, ek_ranks_at(w->group, w->peer));
}

static void write_event(FILE *f, const ek_event *e, int rank, int64_t origin)
{
    double us = (double)(e->start_ns - origin) / 1e3, dur = (double)(e->end_ns - e->start_ns) / 1e3;

    fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f",
            rank, track_id(e->lane, e->track), ek_op_name(e->kind), us, dur);
    fprintf(f, ",\"args\":{\"layer\":%" PRId32 ",\"micro\":%" PRId32 ",\"part\":%" PRId32, e->layer,
            e->micro, e->part);
    fprintf(f, ",\"flops\":%.0f,\"bytes\":%.0f", e->flops, e->bytes);
    if (e->flops > 0 && dur > 0)
        fprintf(f, ",\"gflops_per_s\":%.2f", e->flops / dur / 1e3);
    if (e->work.kind == EK_WORK_NET)
        write_net_work(f, &e->work.net);
    fprintf(f, "}}");
}

/* Writes a track's name and its position below the rank's name. */
static void name_track(FILE *f, int rank, ek_lane lane, int32_t track, int numbered)
{
    int id = track_id(lane, track);

    fprintf(f, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",", rank, id);
    fprintf(f, "\"args\":{\"name\":\"%s", ek_lane_name(lane));
    if (numbered)
        fprintf(f, " %d", (int)track);
    fprintf(f, "\"}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",", rank,
            id);
    fprintf(f, "\"args\":{\"sort_index\":%d}}", (int)lane * 10000 + (int)track);
}

static void name_tracks(FILE *f, const ek_event *events, int64_t n, int rank)
{
    int32_t last[EK_LANE_COUNT] = {0};

    for (int64_t i = 0; i < n; i++)
        if (events[i].track > last[events[i].lane])
            last[events[i].lane] = events[i].track;
    for (int lane = 0; lane < EK_LANE_COUNT; lane++)
        for (int32_t track = 0; track <= last[lane]; track++)
            name_track(f, rank, (ek_lane)lane, track, last[lane] > 0);
}

static void mark_step(FILE *f, const ek_timeline_rank *who, int64_t i, int64_t origin)
{
    int64_t step = who->first_step + i;

    fprintf(f,
            ",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":0,\"name\":\"step %" PRId64
            "\",\"ts\":%.3f,\"args\":{\"step\":%" PRId64,
            who->rank, step, (double)(who->step_ns[i] - origin) / 1e3, step);
    if (who->step_names != NULL)
        fprintf(f, ",\"name\":\"%s\"", who->step_names[i]);
    fprintf(f, "}}");
}

ek_status ek_timeline_write(const ek_event *events, int64_t n, const ek_timeline_rank *who,
                            const char *path)
{
    ek_file_out out;
    FILE *f;
    int rank = who != NULL ? who->rank : 0, ranks = who != NULL ? who->ranks : 1;
    int64_t origin = who != NULL ? who->origin_ns : 0;
    int bad;
    ek_status st;

    EK_TRY(ek_file_out_open(NULL, path, EK_WRITE_REPLACE, &out));
    EK_TRY_OUT(ek_file_out_stream(&out, &f));
    for (int64_t i = 0; i < n && (who == NULL || who->origin_ns == 0); i++)
        if (i == 0 || events[i].start_ns < origin)
            origin = events[i].start_ns;
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",", rank);
    fprintf(f, "\"args\":{\"name\":\"evenkeel rank %d of %d\"}},\n", rank, ranks);
    fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",", rank);
    fprintf(f, "\"args\":{\"sort_index\":%d}}", rank);
    name_tracks(f, events, n, rank);
    for (int64_t i = 0; who != NULL && i < who->n_steps; i++)
        mark_step(f, who, i, origin);
    for (int64_t i = 0; i < n; i++)
        write_event(f, &events[i], rank, origin);
    fprintf(f, "\n]}\n");
    bad = ferror(f);
    bad |= fclose(f) != 0;
    EK_REQUIRE_OUT(!bad, errno == ENOSPC ? EK_ENOSPC : EK_EIO, "cannot write %s: %s", path,
                   strerror(errno));
    EK_TRY_OUT(ek_file_out_close(&out));
out:
    if (st < 0)
        ek_file_out_discard(&out);
    return st;
}
