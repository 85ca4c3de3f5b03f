/* Trace-event JSON of recorded ops ("X" events; one thread id per lane). */
#include "exec/exec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void write_event(FILE *f, const ek_event *e, int64_t origin)
{
    double us = (double)(e->start_ns - origin) / 1e3, dur = (double)(e->end_ns - e->start_ns) / 1e3;

    fprintf(f, ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f",
            (int)e->lane, e->name, us, dur);
    fprintf(f, ",\"args\":{\"layer\":%" PRId32 ",\"micro\":%" PRId32 ",\"part\":%" PRId32, e->layer,
            e->micro, e->part);
    fprintf(f, ",\"flops\":%.0f,\"bytes\":%.0f", e->flops, e->bytes);
    if (e->flops > 0 && dur > 0)
        fprintf(f, ",\"gflops_per_s\":%.2f", e->flops / dur / 1e3);
    fprintf(f, "}}");
}

ek_status ek_timeline_write(const ek_event *events, int64_t n, const char *path)
{
    FILE *f = fopen(path, "w");
    int64_t origin = n > 0 ? events[0].start_ns : 0;
    int bad;

    EK_REQUIRE(f != NULL, EK_EIO, "cannot write %s: %s", path, strerror(errno));
    for (int64_t i = 0; i < n; i++)
        if (events[i].start_ns < origin)
            origin = events[i].start_ns;
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    fprintf(f,
            "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"evenkeel rank "
            "0\"}}");
    for (int lane = 0; lane < EK_LANE_COUNT; lane++)
        fprintf(f,
                ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":"
                "\"%s\"}}",
                lane, ek_lane_name((ek_lane)lane));
    for (int64_t i = 0; i < n; i++)
        write_event(f, &events[i], origin);
    fprintf(f, "\n]}\n");
    bad = ferror(f);
    bad |= fclose(f) != 0;
    EK_REQUIRE(!bad, EK_EIO, "cannot write %s: %s", path, strerror(errno));
    return EK_OK;
}
