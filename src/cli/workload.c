/* evenkeel workload: writes a routing trace that is made up by rule and seed. */
#include "balance/workload.h"

#include "balance/trace.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

static const ek_option options[] = {
    {"name", EK_OPTION_CHOICE, NULL, NULL, NULL,
     "W0|W1|W2|W3|W4|W5|W6|W7|drifting|stable|switching|flat", 1, "which, of those below"},
    {"ranks", EK_OPTION_INT, NULL, NULL, "ranks", "[1,65536]", 1,
     "sources of tokens, which hold the experts in block order"},
    {"experts", EK_OPTION_INT, NULL, NULL, "experts", "[1,65536]", 1, "of a layer"},
    {"layers", EK_OPTION_INT, "1", NULL, "layers", "[1,100000]", 0, "routed ones"},
    {"iterations", EK_OPTION_INT, "100", NULL, "iterations", "[1,1000000]", 0, "steps of training"},
    {"tokens", EK_OPTION_INT, "4096", NULL, "tokens", "[0,1000000000]", 0,
     "of a rank in an iteration, on average"},
    {"top-k", EK_OPTION_INT, "2", NULL, "experts", "[1,65536]", 0, "different experts a token"},
    {"seed", EK_OPTION_UINT, "0", NULL, NULL, NULL, 0, "of all that is left to chance"},
    {"out", EK_OPTION_TEXT, NULL, NULL, "FILE.npy", NULL, 1,
     "gets uint32 [iteration][layer][source rank][expert], numbers of assignments"},
};

static const ek_option_table table = {.command = "workload",
                                      .summary =
                                          "Make up a routing trace, for `plan --trace` and `train "
                                          "--replay-routing`.",
                                      .options = options,
                                      .n_options = sizeof(options) / sizeof(options[0])};

static void list_workloads(void)
{
    printf("\nworkloads:\n");
    for (size_t i = 0; i < ek_workload_count; i++)
        printf("  %-10s %s\n", ek_workloads[i].name, ek_workloads[i].what);
}

static ek_workload_shape shape_of(const ek_options *o)
{
    return (ek_workload_shape){.iterations = ek_options_int(o, "iterations"),
                               .layers = ek_options_int(o, "layers"),
                               .sources = (int32_t)ek_options_int(o, "ranks"),
                               .experts = (int32_t)ek_options_int(o, "experts"),
                               .tokens = ek_options_int(o, "tokens"),
                               .top_k = ek_options_int(o, "top-k"),
                               .seed = ek_options_uint(o, "seed")};
}

static ek_status write_numbers(ek_workload_maker *m, const ek_workload_shape *s, ek_file_out *f)
{
    size_t n = (size_t)s->sources * (size_t)s->experts;
    uint32_t *counts = calloc(n, sizeof(*counts));
    ek_status st = EK_OK;

    EK_REQUIRE(counts != NULL, EK_ENOMEM, "no memory for a layer's numbers");
    for (int64_t i = 0; i < s->iterations; i++)
        for (int64_t l = 0; l < s->layers; l++) {
            ek_workload_counts(m, i, l, counts);
            EK_TRY_OUT(ek_file_out_write(f, counts, n * sizeof(*counts)));
        }
out:
    free(counts);
    return st;
}

static ek_status write_trace(ek_workload_maker *m, const ek_workload_shape *s, const char *path)
{
    const int64_t axes[] = {s->iterations, s->layers, s->sources, s->experts};
    ek_file_out f;
    ek_status st;

    EK_TRY(ek_trace_out_open(path, axes, &f));
    EK_TRY_OUT(write_numbers(m, s, &f));
    EK_TRY_OUT(ek_file_out_close(&f));
out:
    if (st < 0)
        ek_file_out_discard(&f);
    return st;
}

static ek_status run(const ek_options *o)
{
    ek_workload_shape s = shape_of(o);
    ek_workload_maker *m = NULL;
    ek_status st;

    EK_TRY(ek_workload_open(ek_workload_find(ek_options_text(o, "name")), &s, &m));
    st = write_trace(m, &s, ek_options_text(o, "out"));
    ek_workload_close(&m);
    return st;
}

int cli_workload(int argc, char **argv)
{
    ek_options *o = NULL;
    int status = cli_parse(&table, argc, argv, &o);
    ek_status st;

    if (status == CLI_DONE)
        list_workloads();
    if (status >= 0)
        return status;
    cli_stop_writing_on_signals();
    st = run(o);
    ek_options_destroy(o);
    return st < 0 ? cli_fail("workload", st) : CLI_DONE;
}
