/* Writing the cluster file, one level a line, with the machine inside. */
#include "base/file.h"
#include "base/json.h"
#include "sim/cluster.h"

#include <stdio.h>
#include <stdlib.h>

static void write_member(FILE *f, const char *key, double x)
{
    fprintf(f, "\"%s\": ", key);
    ek_json_write_real(f, x);
}

static ek_status write_rank(FILE *f, const ek_cluster *c)
{
    char *machine = NULL;
    size_t bytes = 0;

    EK_TRY(ek_machine_text(&c->machine, &machine, &bytes));
    fputs("  \"rank\": {", f);
    if (c->memory > 0) {
        write_member(f, "memory", c->memory);
        fputs(", ", f);
    }
    if (c->device[0] != '\0')
        fprintf(f, "\"device\": \"%s\", ", c->device);
    if (c->cores > 0)
        fprintf(f, "\"cores\": %lld, ", (long long)c->cores);
    fprintf(f, "\"machine\": %.*s},\n", (int)bytes - 1, machine); /* without the end of its line */
    free(machine);
    return EK_OK;
}

/* A number that is 0 where it is left out. */
static void write_if_given(FILE *f, const char *key, double x)
{
    if (x > 0) {
        fputs(", ", f);
        write_member(f, key, x);
    }
}

static ek_status write_level(FILE *f, const ek_cluster_level *l)
{
    fputs("    {\"name\": ", f);
    EK_TRY(ek_json_write_text(f, l->name));
    fprintf(f, ", \"ranks\": %lld, ", (long long)l->ranks);
    write_member(f, "gbytes_s", l->bytes_s / 1e9);
    fputs(", ", f);
    write_member(f, "us", l->latency_s * 1e6);
    write_if_given(f, "message_us", l->overhead_s * 1e6);
    write_if_given(f, "collective_us", l->collective_s * 1e6);
    write_if_given(f, "byte_ns", l->byte_s * 1e9);
    write_if_given(f, "peer_gbytes_s", l->peer_bytes_s / 1e9);
    write_if_given(f, "gap_us", l->gap_s * 1e6);
    write_if_given(f, "ring_step_us", l->ring_step_s * 1e6);
    write_if_given(f, "arrival_skew_us", l->arrival_skew_s * 1e6);
    write_if_given(f, "burst_kbytes", l->burst / 1e3);
    if (l->rails > 1)
        fprintf(f, ", \"rails\": %lld", (long long)l->rails);
    if (l->shared_by > 1)
        fprintf(f, ", \"shared_by\": %lld", (long long)l->shared_by);
    fputc('}', f);
    return EK_OK;
}

static void write_slow(FILE *f, const ek_cluster *c)
{
    if (c->n_slow == 0)
        return;
    fputs(",\n  \"slow\": {\"ranks\": [", f);
    for (int32_t i = 0; i < c->n_slow; i++)
        fprintf(f, "%s%d", i > 0 ? ", " : "", (int)c->slow[i]);
    fputs("], ", f);
    write_member(f, "factor", c->slow_factor);
    fputc('}', f);
}

/* A further member, unless it is not given. */
static void write_optional(FILE *f, const char *key, double x)
{
    if (x <= 0)
        return;
    fputs(", ", f);
    write_member(f, key, x);
}

static void write_failures(FILE *f, const ek_cluster *c)
{
    if (c->node_mtbf_s > 0) {
        fputs(",\n  \"failures\": {", f);
        write_member(f, "node_mtbf_h", c->node_mtbf_s / 3600);
        if (c->rack_nodes > 0)
            fprintf(f, ", \"rack_nodes\": %lld", (long long)c->rack_nodes);
        write_optional(f, "rack_share", c->rack_share);
        write_optional(f, "back_s", c->back_s);
        write_optional(f, "recover_s", c->recover_s);
        write_optional(f, "restart_s", c->restart_s);
        write_optional(f, "save_s", c->save_s);
        fputc('}', f);
    }
    if (c->node_s_price > 0) {
        fputs(",\n  \"price\": {", f);
        write_member(f, "node_hour", c->node_s_price * 3600);
        fputc('}', f);
    }
}

static ek_status write_cluster(FILE *f, const void *from)
{
    const ek_cluster *c = from;

    fputs("{\n  \"evenkeel_cluster\": 1,\n  \"name\": ", f);
    EK_TRY(ek_json_write_text(f, c->name));
    fputs(",\n", f);
    EK_TRY(write_rank(f, c));
    fputs("  \"levels\": [\n", f);
    for (int32_t l = 0; l < c->n_levels; l++) {
        EK_TRY(write_level(f, &c->level[l]));
        fputs(l + 1 < c->n_levels ? ",\n" : "]", f);
    }
    write_slow(f, c);
    write_failures(f, c);
    fputs("\n}\n", f);
    return EK_OK;
}

ek_status ek_cluster_text(const ek_cluster *c, char **text, size_t *bytes)
{
    return ek_json_written(write_cluster, c, "cluster file", text, bytes);
}

/* Reads back what it writes, so that no file is written that would be refused. */
ek_status ek_cluster_write(const ek_cluster *c, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_cluster *back = malloc(sizeof(*back));
    ek_status st;

    EK_REQUIRE(back != NULL, EK_ENOMEM, "no memory for a cluster file");
    EK_TRY_OUT(ek_cluster_text(c, &text, &bytes));
    EK_TRY_OUT(ek_cluster_parse(text, bytes, path, back));
    EK_TRY_OUT(ek_file_replace(NULL, path, text, bytes));
out:
    free(text);
    free(back);
    return st;
}
