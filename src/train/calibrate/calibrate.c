/* Order of measurements, agreement of ranks, and the cache. */
#include "train/calibrate/calibrate.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/agree.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The default keeps the total below 2 s with measurements that cannot be cut short. */
#define BUDGET_S 1.6
/* Part of the budget, with several ranks. */
#define LINKS_SHARE 0.45

ek_status ek_calibrate_largest(const ek_calibration *c, double *x, int64_t n)
{
    ek_coll *op;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY(ek_comm_all_reduce(c->world, x, n, EK_MAX_F64, &op));
    EK_TRY(ek_coll_wait(&op));
    return EK_OK;
}

ek_stopwatch ek_stopwatch_start(void)
{
    ek_stopwatch w = {ek_clock_ns(), ek_clock_thread_ns()};

    return w;
}

double ek_stopwatch_stop(const ek_stopwatch *w, int threads, ek_cpu_share *share)
{
    double passed = (double)(ek_clock_ns() - w->passed_ns) * 1e-9;
    double ran = threads == 1 ? (double)(ek_clock_thread_ns() - w->ran_ns) * 1e-9 : passed;

    share->passed_s += passed;
    share->ran_s += ran;
    return ran;
}

double ek_cpu_share_of(const ek_cpu_share *share)
{
    double part = share->passed_s > 0 ? share->ran_s / share->passed_s : 1;

    return part < 0.9 ? fmax(part, 0.01) : 1;
}

/* --- identity of the machine ------------------------------------------------------------------ */

static void find_nodes(ek_calibration *c)
{
    c->nodes = c->a_node = 1;
    for (int r = 0; r < c->ranks; r++) {
        int here = 0;

        for (int o = 0; o < c->ranks; o++)
            here += ek_calibrate_node(c, o) == ek_calibrate_node(c, r);
        c->a_node = here > c->a_node ? here : c->a_node;
        if (ek_calibrate_node(c, r) >= c->nodes)
            c->nodes = ek_calibrate_node(c, r) + 1;
    }
}

/* The processor's name, with printable characters only. */
static void cpu_name(char *name, size_t cap)
{
    static const char label[] = "model name";
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    size_t n = 0;

    snprintf(name, cap, "unknown CPU");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *value = strchr(line, ':');

        if (strncmp(line, label, sizeof(label) - 1) != 0 || value == NULL)
            continue;
        for (value += strspn(value, ": \t"); *value != '\0' && n + 1 < cap; value++)
            if (*value >= ' ' && *value <= '~')
                name[n++] = *value;
        name[n] = '\0';
        break;
    }
    if (f != NULL)
        fclose(f);
}

/* Fingerprint of host names and of the ranks on each. */
static uint64_t hosts_fingerprint(const ek_calibration *c)
{
    uint64_t sum = 0;

    for (int r = 0; r < c->ranks && c->ranks > 1; r++)
        sum = ek_random_bits(sum, ek_random_stream(ek_comm_host(c->world, r)),
                             (uint64_t)ek_calibrate_node(c, r));
    return sum;
}

static void host_name(const ek_calibration *c, char *name, size_t cap)
{
    FILE *f = NULL;

    if (c->world != NULL) {
        snprintf(name, cap, "%s", ek_comm_host(c->world, 0));
        return;
    }
    snprintf(name, cap, "this host");
    f = fopen("/proc/sys/kernel/hostname", "re");
    if (f != NULL && fgets(name, (int)cap, f) != NULL)
        name[strcspn(name, "\n")] = '\0';
    if (f != NULL)
        fclose(f);
}

/* Describes the machine; rank 0's description is used. */
static void describe_machine(ek_calibration *c)
{
    const ek_calibrate_config *cfg = c->cfg;
    ek_machine *m = c->m;
    char host[80], cpu[96];

    m->ranks = c->ranks;
    m->nodes = c->nodes;
    m->threads = cfg->k->threads;
    m->hidden = cfg->spec->hidden;
    m->ff = cfg->spec->ff;
    c->experts = cfg->experts > 0 ? cfg->experts : (cfg->spec->experts + c->ranks - 1) / c->ranks;
    m->experts = c->experts;
    snprintf(m->dtype, sizeof(m->dtype), "%s",
             cfg->k->comp == EK_BF16  ? "bf16"
             : cfg->k->comp == EK_F32 ? "fp32"
                                      : "fp64");
    host_name(c, host, sizeof(host));
    cpu_name(cpu, sizeof(cpu));
    snprintf(m->name, sizeof(m->name), "%s, %s, %d rank%s on %d node%s, %d thread%s each, %s", host,
             cpu, c->ranks, c->ranks > 1 ? "s" : "", c->nodes, c->nodes > 1 ? "s" : "",
             cfg->k->threads, cfg->k->threads > 1 ? "s" : "", m->dtype);
    snprintf(m->key, sizeof(m->key),
             "%s; hosts %016llx; %s; %s (%s), %d threads; %lld experts of %lld x %lld; method 9",
             m->name, (unsigned long long)hosts_fingerprint(c),
             c->ranks > 1 ? ek_comm_library(EK_COMM_MPI) : "one rank", cfg->k->name,
             cfg->k->products, cfg->k->threads, (long long)m->experts, (long long)m->hidden,
             (long long)m->ff);
}

/* --- the cache -------------------------------------------------------------------------------- */

static ek_status cache_path(const ek_calibration *c, ek_path *path)
{
    return ek_path_set(path, "%s/machine-%016llx.json", c->cfg->cache,
                       (unsigned long long)ek_random_stream(c->m->key));
}

/* Whether rank 0 has found costs in the cache.  Collective. */
static int read_cached_costs(ek_calibration *c)
{
    ek_machine found;
    ek_path path;
    ek_status st;

    if (c->cfg->cache == NULL || c->cfg->anew || c->rank > 0)
        return 0;
    st = cache_path(c, &path);
    if (st == EK_OK)
        st = ek_machine_read(path.s, &found);
    if (st < 0 && st != EK_ENOENT)
        ek_log("train", EK_LOG_WARN, "costs are measured again: %s", ek_err_message());
    if (st < 0 || strcmp(found.key, c->m->key) != 0 ||
        (c->cfg->kernels_s > 0 && !ek_calibrate_has_kernels(c, &found)))
        return 0;
    *c->m = found;
    return 1;
}

/* Uses the costs of the previous start: products of a rank take the same time, and messages nearly
 * the same with a few ranks more or fewer. */
static int read_last_costs(ek_calibration *c)
{
    ek_machine now = *c->m, found;

    if (!c->cfg->hurry || c->rank > 0 || ek_machine_read(c->cfg->last, &found) < 0 ||
        found.threads != now.threads || found.hidden != now.hidden || found.ff != now.ff ||
        strcmp(found.dtype, now.dtype) != 0 || (found.ranks > 1) != (now.ranks > 1) ||
        (found.nodes > 1) != (now.nodes > 1))
        return 0;
    *c->m = found;
    describe_machine(c);
    return 1;
}

static ek_status write_cache(const ek_calibration *c)
{
    ek_path path;

    EK_TRY(ek_folder_make(NULL, c->cfg->cache));
    EK_TRY(cache_path(c, &path));
    return ek_machine_write(c->m, path.s);
}

static void write_costs_file(const ek_calibration *c)
{
    if (c->cfg->cache == NULL || c->rank > 0)
        return;
    if (write_cache(c) < 0)
        ek_log("train", EK_LOG_WARN, "measured costs are not kept: %s", ek_err_message());
}

/* Writes cfg->last, for cfg->hurry of a later start.  A failure is ignored; a file of that name
 * that holds no costs is not overwritten. */
static void write_last_costs(const ek_calibration *c)
{
    ek_machine found;

    if (c->cfg->last == NULL || c->rank > 0)
        return;
    if (ek_file_kind_of(c->cfg->last) == EK_FILE_NONE || ek_machine_read(c->cfg->last, &found) >= 0)
        (void)!ek_machine_write(c->m, c->cfg->last);
}

/* --- calibration ------------------------------------------------------------------------------ */

/* What predictions of steps need besides. */
static ek_status measure_step_costs(ek_calibration *c)
{
    int64_t start = ek_clock_ns();
    double took;

    EK_TRY(ek_calibrate_cores(c));
    EK_TRY(ek_calibrate_burst(c));
    EK_TRY(ek_calibrate_progress(c));
    took = (double)(ek_clock_ns() - start) * 1e-9;
    EK_TRY(ek_calibrate_largest(c, &took, 1));
    return ek_calibrate_kernels(c, fmax(c->cfg->kernels_s - took, c->cfg->kernels_s / 2));
}

static ek_status measure_costs(ek_calibration *c)
{
    double budget = c->cfg->budget_s > 0 ? c->cfg->budget_s : BUDGET_S;
    double links = c->ranks > 1 ? LINKS_SHARE * budget : 0, took;
    int64_t start;

    if (c->ranks > 1)
        EK_TRY(ek_comm_barrier(c->world));
    start = ek_clock_ns();
    ek_kernels_enter(c->cfg->k);
    EK_TRY(ek_calibrate_compute(c, budget - links));
    if (c->ranks > 1) {
        /* Messages get the rest of the budget. */
        took = (double)(ek_clock_ns() - start) * 1e-9;
        EK_TRY(ek_calibrate_largest(c, &took, 1));
        EK_TRY(ek_calibrate_links(c, fmax(budget - took, links / 2)));
    }
    if (c->cfg->kernels_s > 0)
        EK_TRY(measure_step_costs(c));
    took = (double)(ek_clock_ns() - start) * 1e-9;
    EK_TRY(ek_calibrate_largest(c, &took, 1));
    c->m->took_s = ek_cost_round(took);
    return EK_OK;
}

/* Broadcasts rank 0's costs, as other hosts may round differently. */
static ek_status broadcast_costs(ek_calibration *c, int *found)
{
    struct {
        int64_t found;
        ek_machine machine;
    } * sent;
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    if (c->ranks == 1)
        return EK_OK;
    sent = calloc(1, sizeof(*sent));
    EK_TRY_OUT(ek_agree(c->world, "get memory for costs",
                        sent != NULL ? EK_OK : EK_FAIL(EK_ENOMEM, "no memory for costs")));
    sent->found = *found;
    sent->machine = *c->m;
    EK_TRY_OUT(ek_comm_broadcast(c->world, sent, sizeof(*sent), 0, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
    *found = (int)sent->found;
    *c->m = sent->machine;
out:
    free(sent);
    return st;
}

/* Whether the rates of training are wanted, and not there.  A start that hurries does without. */
static int lacks_training(const ek_calibration *c)
{
    return c->cfg->training_rows > 0 && !c->cfg->hurry &&
           (c->m->training.rows != c->cfg->training_rows ||
            c->m->training.seq != c->cfg->training_seq);
}

ek_status ek_calibrate(const ek_calibrate_config *cfg, ek_machine *out, int *cached)
{
    ek_calibration c = {.cfg = cfg, .world = cfg->world, .ranks = 1, .m = out, .busy_share = 1};
    int found;

    if (cfg->world != NULL) {
        c.rank = ek_comm_rank(cfg->world);
        c.ranks = ek_comm_size(cfg->world);
    }
    memset(out, 0, sizeof(*out));
    find_nodes(&c);
    describe_machine(&c);
    found = read_cached_costs(&c) || read_last_costs(&c);
    EK_TRY(broadcast_costs(&c, &found));
    if (cached != NULL)
        *cached = found;
    if (!found) {
        EK_TRY(measure_costs(&c));
        EK_TRY(broadcast_costs(&c, &found));
        EK_TRY(ek_machine_check(out, "calibration"));
        write_costs_file(&c);
    }
    if (lacks_training(&c)) {
        EK_TRY(ek_calibrate_training(&c));
        EK_TRY(broadcast_costs(&c, &found));
        EK_TRY(ek_machine_check(out, "calibration"));
        write_costs_file(&c);
    }
    write_last_costs(&c);
    return EK_OK;
}
