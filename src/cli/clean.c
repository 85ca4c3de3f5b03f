/* evenkeel clean: lists or removes shared-memory segments of --elastic runs on this host. */
#include "base/count_text.h"
#include "base/file.h"
#include "cli/cli.h"
#include "elastic/prealloc.h"
#include "elastic/step_journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const ek_option options[] = {
    {"out", EK_OPTION_TEXT, .unit = "DIR",
     .help = "remove shared memory of the run with this --out on this host; that run then "
             "continues from its newest checkpoint"},
    {"all", EK_OPTION_FLAG, .help = "remove shared memory of all runs of this user on this host"},
};

static const ek_option_table table = {
    .command = "clean",
    .summary = "List or remove shared memory left by `train --elastic` runs on this host.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0])};

/* Whether a process still uses the segment. */
static int is_in_use(const ek_segment_id *id)
{
    ek_segment s = {0};
    ek_status st = ek_segment_open(id, 0, &s);

    ek_segment_close(&s);
    return st == EK_ESTATE;
}

/* Prints one line about a segment. */
static void print_segment(const ek_segment_id *id, int in_use)
{
    static const char *const phases[] = {"being created", "filled", "ready"};
    unsigned phase;
    ek_segment s = {0};
    ek_journal l;
    char bytes[16], step[48] = "";
    cli_text out;

    if (ek_segment_open(id, -1, &s) < 0) {
        printf("run %016" PRIx64 " generation %d rank %d: %s\n", id->run, (int)id->generation,
               (int)id->rank, ek_err_message());
        return;
    }
    if (ek_prealloc_is(id)) {
        printf(
            "--out %s: reserved for a rank that was to join, %sB%s\n", cli_shown(&out, s.head->out),
            ek_count_text(bytes, sizeof(bytes), (double)s.head->bytes), in_use ? ", in use" : "");
        ek_segment_close(&s);
        return;
    }
    if (ek_journal_open(s.body, s.body_bytes, &l) == EK_OK)
        snprintf(step, sizeof(step), ", %" PRId64 " steps completed",
                 ek_journal_look(&l).steps_done);
    phase = (unsigned)ek_segment_phase_of(&s);
    printf("--out %s: %srank %d of %d, generation %d, %sB, %s%s%s\n", cli_shown(&out, s.head->out),
           ek_segment_is_copy(id->rank, s.head->ranks) ? "copy of " : "",
           (int)ek_segment_owner(id->rank, s.head->ranks), (int)s.head->ranks, (int)id->generation,
           ek_count_text(bytes, sizeof(bytes), (double)s.head->bytes),
           phase <= EK_SEGMENT_READY ? phases[phase] : "unknown phase", step,
           in_use ? ", in use" : "");
    ek_segment_close(&s);
}

/* Lists the segments of a run (0: of all runs) and removes them if `remove`.  EK_ESTATE, and
 * nothing is removed, if any of them is in use. */
static ek_status list_segments(uint64_t run, int remove)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0, used = 0;
    ek_status st;

    EK_TRY_OUT(ek_segment_list(run, &ids, &n));
    for (int64_t i = 0; i < n; i++) {
        int in_use = is_in_use(&ids[i]);

        print_segment(&ids[i], in_use);
        used += in_use;
    }
    EK_REQUIRE_OUT(!remove || used == 0, EK_ESTATE,
                   "a run is still using its memory; stop it first. Nothing was removed");
    for (int64_t i = 0; i < n && remove; i++)
        EK_TRY_OUT(ek_segment_remove(&ids[i]));
    if (n == 0)
        printf("no shared memory of runs on this host\n");
    else if (remove)
        printf("%" PRId64 " segments removed\n", n);
out:
    free(ids);
    return st;
}

static ek_status run_clean(const ek_options *o)
{
    const char *out = ek_options_text(o, "out");
    ek_path path;

    if (out == NULL)
        return list_segments(0, ek_options_flag(o, "all"));
    EK_TRY(ek_path_absolute(out, &path));
    return list_segments(ek_run_id(path.s), 1);
}

int cli_clean(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_clean);
}
