/* The tree of a cluster's levels, and reading the cluster file: JSON whose keys name their units,
 * strict as machine files are.  "note" is free text, allowed in every object of this file. */
#include "sim/cluster.h"

#include "base/file.h"
#include "base/option_value.h"
#include "cost/machine_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, COUNT_MAX = 1 << 30, FILE_BYTES_MAX = 1 << 20, WHERE_CAP = 4352 };

/* Values beyond these are mistakes; with these bounds, times stay finite. */
#define VALUE_MAX 1e24
#define VALUE_MIN 1e-12

/* --- the tree --------------------------------------------------------------------------------- */

int64_t ek_cluster_ranks(const ek_cluster *c)
{
    return c->level[c->n_levels - 1].ranks;
}

int64_t ek_cluster_node_ranks(const ek_cluster *c)
{
    for (int l = 0; l < c->n_levels; l++)
        if (strcmp(c->level[l].name, "node") == 0)
            return c->level[l].ranks;
    return 1;
}

int ek_cluster_level_between(const ek_cluster *c, int64_t a, int64_t b)
{
    int l = 0;

    while (l + 1 < c->n_levels && a / c->level[l].ranks != b / c->level[l].ranks)
        l++;
    return l;
}

/* --- values ----------------------------------------------------------------------------------- */

/* A number above 0, times `unit`. */
static ek_status read_positive(const json_t *o, const char *where, const char *key,
                               ek_json_need need, double unit, double *out)
{
    double x = NAN;

    EK_TRY(ek_json_real(o, where, key, need, &x));
    if (isnan(x))
        return EK_OK;
    EK_REQUIRE(x >= VALUE_MIN && x <= VALUE_MAX, EK_EFORMAT,
               "%s: key `%s`: %g is not between %g and %g", where, key, x, VALUE_MIN, VALUE_MAX);
    *out = x * unit;
    return EK_OK;
}

/* Microseconds, 0 allowed, as seconds. */
static ek_status read_us(const json_t *o, const char *where, const char *key, ek_json_need need,
                         double *out)
{
    double x = 0;

    EK_TRY(ek_json_real(o, where, key, need, &x));
    EK_REQUIRE(x >= 0 && x <= 1e12, EK_EFORMAT, "%s: key `%s`: %g is not between 0 and 1e+12",
               where, key, x);
    *out = x * 1e-6;
    return EK_OK;
}

static ek_status read_count(const json_t *o, const char *where, const char *key, ek_json_need need,
                            int64_t *out)
{
    return ek_json_int(o, where, key, need, 1, COUNT_MAX, out);
}

/* The keys of an object, "note" among them. */
static ek_status check_keys(const json_t *o, const char *where, const char *const *keys)
{
    const char *note = NULL;

    EK_TRY(ek_json_check_keys(o, where, keys));
    return ek_json_text(o, where, "note", EK_JSON_OPTIONAL, &note);
}

/* --- a rank ----------------------------------------------------------------------------------- */

/* A machine with the same rate of products at every size, and no measured links. */
static ek_status read_constant_machine(const json_t *o, const char *where, ek_cluster *out)
{
    static const char *const keys[] = {"peak",  "memory_bytes_s", "efficiency",
                                       "dtype", "note",           NULL};
    ek_machine *m = &out->machine;
    double efficiency = 0;

    *m = (ek_machine){
        .dtype = "bf16", .ranks = 1, .nodes = 1, .threads = 1, .hidden = 1, .ff = 1, .experts = 1};
    EK_TRY(check_keys(o, where, keys));
    EK_TRY(read_positive(o, where, "peak", EK_JSON_REQUIRED, 1, &out->peak));
    EK_TRY(read_positive(o, where, "memory_bytes_s", EK_JSON_REQUIRED, 1, &m->copy));
    EK_TRY(read_positive(o, where, "efficiency", EK_JSON_REQUIRED, 1, &efficiency));
    EK_REQUIRE(efficiency <= 1, EK_EFORMAT, "%s: key `efficiency`: %g is not between 0 and 1",
               where, efficiency);
    EK_TRY(ek_json_copy_text(o, where, "dtype", EK_JSON_OPTIONAL, m->dtype, sizeof(m->dtype)));
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        m->rate[p] = (ek_cost_table){.n = 1, .x = {1}, .y = {out->peak * efficiency}};
    return ek_machine_check(m, where);
}

static ek_status read_machine_object(const json_t *o, const char *file, ek_cluster *out)
{
    char where[WHERE_CAP];

    snprintf(where, sizeof(where), "%s: rank.machine", file);
    if (json_object_get(o, "evenkeel_machine") != NULL)
        return ek_machine_of_json(o, where, &out->machine);
    return read_constant_machine(o, where, out);
}

/* The name of a machine file, relative to the folder of the cluster file; or the object itself. */
static ek_status read_machine(const json_t *rank, const char *file, const char *where,
                              ek_cluster *out)
{
    const json_t *value = json_object_get(rank, "machine");
    ek_path folder, path;

    EK_REQUIRE(value != NULL, EK_EFORMAT, "%s: key `machine` is missing", where);
    if (json_is_object(value))
        return read_machine_object(value, file, out);
    EK_REQUIRE(json_is_string(value), EK_EFORMAT,
               "%s: key `machine`: expected a file's name or an object, found %s", where,
               ek_json_type_name(value));
    if (json_string_value(value)[0] == '/')
        return ek_machine_read(json_string_value(value), &out->machine);
    EK_TRY(ek_path_parent(file, &folder));
    EK_TRY(ek_path_set(&path, "%s/%s", folder.s, json_string_value(value)));
    return ek_machine_read(path.s, &out->machine);
}

/* Bytes, as a number or as text: 80000000000, "80G". */
static ek_status read_memory(const json_t *rank, const char *where, double *out)
{
    const json_t *value = json_object_get(rank, "memory");
    int64_t bytes = 0;

    if (!json_is_string(value))
        return read_positive(rank, where, "memory", EK_JSON_OPTIONAL, 1, out);
    EK_REQUIRE(ek_option_size(json_string_value(value), &bytes) && bytes > 0, EK_EFORMAT,
               "%s: key `memory`: \"%s\" is not a size (80G, 512M, 1.5GiB)", where,
               json_string_value(value));
    *out = (double)bytes;
    return EK_OK;
}

static ek_status read_device(const json_t *rank, const char *where, ek_cluster *c)
{
    const char *device = "cpu";

    EK_TRY(ek_json_text(rank, where, "device", EK_JSON_OPTIONAL, &device));
    EK_REQUIRE(strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0, EK_EFORMAT,
               "%s: key `device`: \"%s\" is neither cpu nor cuda", where, device);
    snprintf(c->device, sizeof(c->device), "%s", device);
    return EK_OK;
}

static ek_status read_rank(const json_t *root, const char *file, ek_cluster *c)
{
    static const char *const keys[] = {"memory", "machine", "cores", "device", "note", NULL};
    char where[WHERE_CAP];
    json_t *o = NULL;

    EK_TRY(ek_json_object(root, file, "rank", EK_JSON_REQUIRED, &o));
    snprintf(where, sizeof(where), "%s: rank", file);
    EK_TRY(check_keys(o, where, keys));
    EK_TRY(read_memory(o, where, &c->memory));
    EK_TRY(read_count(o, where, "cores", EK_JSON_OPTIONAL, &c->cores));
    EK_TRY(read_device(o, where, c));
    EK_TRY(read_machine(o, file, where, c));
    if (c->machine.name[0] == '\0')
        snprintf(c->machine.name, sizeof(c->machine.name), "%s", c->name);
    return EK_OK;
}

/* --- levels ----------------------------------------------------------------------------------- */

static ek_status read_level(const json_t *o, const char *where, ek_cluster_level *l)
{
    static const char *const keys[] = {
        "name",      "ranks",         "gbytes_s",        "us",           "message_us",
        "byte_ns",   "collective_us", "peer_gbytes_s",   "gap_us",       "rails",
        "shared_by", "burst_kbytes",  "arrival_skew_us", "ring_step_us", "note",
        NULL};

    EK_REQUIRE(json_is_object(o), EK_EFORMAT, "%s: expected an object, found %s", where,
               ek_json_type_name(o));
    EK_TRY(check_keys(o, where, keys));
    l->rails = l->shared_by = 1;
    EK_TRY(ek_json_copy_text(o, where, "name", EK_JSON_REQUIRED, l->name, sizeof(l->name)));
    EK_REQUIRE(l->name[0] != '\0', EK_EFORMAT, "%s: key `name`: the text is empty", where);
    EK_TRY(read_count(o, where, "ranks", EK_JSON_REQUIRED, &l->ranks));
    EK_TRY(read_positive(o, where, "gbytes_s", EK_JSON_REQUIRED, 1e9, &l->bytes_s));
    EK_TRY(read_us(o, where, "us", EK_JSON_REQUIRED, &l->latency_s));
    EK_TRY(read_us(o, where, "message_us", EK_JSON_OPTIONAL, &l->overhead_s));
    EK_TRY(read_us(o, where, "collective_us", EK_JSON_OPTIONAL, &l->collective_s));
    EK_TRY(read_us(o, where, "byte_ns", EK_JSON_OPTIONAL, &l->byte_s));
    l->byte_s *= 1e-3;
    EK_TRY(read_us(o, where, "arrival_skew_us", EK_JSON_OPTIONAL, &l->arrival_skew_s));
    EK_TRY(read_positive(o, where, "burst_kbytes", EK_JSON_OPTIONAL, 1e3, &l->burst));
    EK_TRY(read_positive(o, where, "peer_gbytes_s", EK_JSON_OPTIONAL, 1e9, &l->peer_bytes_s));
    EK_TRY(read_us(o, where, "gap_us", EK_JSON_OPTIONAL, &l->gap_s));
    EK_TRY(read_us(o, where, "ring_step_us", EK_JSON_OPTIONAL, &l->ring_step_s));
    EK_TRY(read_count(o, where, "rails", EK_JSON_OPTIONAL, &l->rails));
    return read_count(o, where, "shared_by", EK_JSON_OPTIONAL, &l->shared_by);
}

/* A level's place among those below it: more ranks, a multiple of theirs, and another name. */
static ek_status check_level(const ek_cluster *c, int32_t i, const char *where)
{
    const ek_cluster_level *l = &c->level[i], *below = &c->level[i - 1];

    EK_REQUIRE(l->ranks >= below->ranks, EK_EFORMAT,
               "%s: key `ranks`: %lld are fewer than the %lld of the level below, \"%s\"", where,
               (long long)l->ranks, (long long)below->ranks, below->name);
    EK_REQUIRE(l->ranks % below->ranks == 0, EK_EFORMAT,
               "%s: key `ranks`: %lld is not a multiple of the %lld of the level below, \"%s\"",
               where, (long long)l->ranks, (long long)below->ranks, below->name);
    for (int32_t j = 0; j < i; j++)
        EK_REQUIRE(strcmp(c->level[j].name, l->name) != 0, EK_EFORMAT,
                   "%s: key `name`: there is a level \"%s\" already", where, l->name);
    return EK_OK;
}

/* A link is shared by ranks of a switch of the level below. */
static ek_status check_shared(const ek_cluster_level *l, int64_t ranks_below, const char *where)
{
    EK_REQUIRE(
        ranks_below % l->shared_by == 0, EK_EFORMAT,
        "%s: key `shared_by`: the %lld rank%s below a switch of the level below cannot share "
        "links by %lld",
        where, (long long)ranks_below, ranks_below > 1 ? "s" : "", (long long)l->shared_by);
    return EK_OK;
}

static ek_status read_levels(const json_t *root, const char *file, ek_cluster *c)
{
    char where[WHERE_CAP];
    json_t *list = NULL;
    size_t n;

    EK_TRY(ek_json_array(root, file, "levels", EK_JSON_REQUIRED, &list));
    n = json_array_size(list);
    EK_REQUIRE(n >= 1 && n <= EK_CLUSTER_LEVELS, EK_EFORMAT,
               "%s: key `levels`: %zu levels; 1 to %d are allowed", file, n, EK_CLUSTER_LEVELS);
    for (c->n_levels = 0; c->n_levels < (int32_t)n; c->n_levels++) {
        int32_t i = c->n_levels;

        snprintf(where, sizeof(where), "%s: levels[%d]", file, (int)i);
        EK_TRY(read_level(json_array_get(list, (size_t)i), where, &c->level[i]));
        if (i > 0)
            EK_TRY(check_level(c, i, where));
        EK_TRY(check_shared(&c->level[i], i > 0 ? c->level[i - 1].ranks : 1, where));
    }
    return EK_OK;
}

/* --- the rest --------------------------------------------------------------------------------- */

static ek_status read_slow_ranks(const json_t *list, const char *where, ek_cluster *c)
{
    size_t n = json_array_size(list);

    EK_REQUIRE(n >= 1 && n <= EK_CLUSTER_SLOW, EK_EFORMAT,
               "%s: key `ranks`: %zu ranks; 1 to %d are allowed", where, n, EK_CLUSTER_SLOW);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        int64_t rank = json_integer_value(x);

        EK_REQUIRE(json_is_integer(x), EK_EFORMAT, "%s: key `ranks`: expected an integer, found %s",
                   where, ek_json_type_name(x));
        EK_REQUIRE(rank >= 0 && rank < ek_cluster_ranks(c), EK_EFORMAT,
                   "%s: key `ranks`: %lld is not one of the %lld ranks", where, (long long)rank,
                   (long long)ek_cluster_ranks(c));
        c->slow[c->n_slow++] = (int32_t)rank;
    }
    return EK_OK;
}

static ek_status read_slow(const json_t *root, const char *file, ek_cluster *c)
{
    static const char *const keys[] = {"ranks", "factor", "note", NULL};
    char where[WHERE_CAP];
    json_t *o = NULL, *list = NULL;

    EK_TRY(ek_json_object(root, file, "slow", EK_JSON_OPTIONAL, &o));
    if (o == NULL)
        return EK_OK;
    snprintf(where, sizeof(where), "%s: slow", file);
    EK_TRY(check_keys(o, where, keys));
    EK_TRY(ek_json_array(o, where, "ranks", EK_JSON_REQUIRED, &list));
    EK_TRY(read_slow_ranks(list, where, c));
    return read_positive(o, where, "factor", EK_JSON_REQUIRED, 1, &c->slow_factor);
}

static ek_status read_failures(const json_t *root, const char *file, ek_cluster *c)
{
    static const char *const keys[] = {"node_mtbf_h", "rack_nodes", "rack_share",
                                       "back_s",      "recover_s",  "restart_s",
                                       "save_s",      "note",       NULL};
    char where[WHERE_CAP];
    json_t *o = NULL;

    EK_TRY(ek_json_object(root, file, "failures", EK_JSON_OPTIONAL, &o));
    if (o == NULL)
        return EK_OK;
    snprintf(where, sizeof(where), "%s: failures", file);
    EK_TRY(check_keys(o, where, keys));
    EK_TRY(read_positive(o, where, "node_mtbf_h", EK_JSON_REQUIRED, 3600, &c->node_mtbf_s));
    EK_TRY(read_count(o, where, "rack_nodes", EK_JSON_OPTIONAL, &c->rack_nodes));
    EK_TRY(read_positive(o, where, "rack_share", EK_JSON_OPTIONAL, 1, &c->rack_share));
    EK_REQUIRE(c->rack_share <= 1 && (c->rack_share <= 0 || c->rack_nodes > 0), EK_EFORMAT,
               "%s: key `rack_share`: %g is not a probability of losing one of racks of "
               "`rack_nodes` nodes",
               where, c->rack_share);
    EK_TRY(read_positive(o, where, "back_s", EK_JSON_OPTIONAL, 1, &c->back_s));
    EK_TRY(read_positive(o, where, "recover_s", EK_JSON_OPTIONAL, 1, &c->recover_s));
    EK_TRY(read_positive(o, where, "restart_s", EK_JSON_OPTIONAL, 1, &c->restart_s));
    return read_positive(o, where, "save_s", EK_JSON_OPTIONAL, 1, &c->save_s);
}

static ek_status read_price(const json_t *root, const char *file, ek_cluster *c)
{
    static const char *const keys[] = {"node_hour", "note", NULL};
    char where[WHERE_CAP];
    json_t *o = NULL;

    EK_TRY(ek_json_object(root, file, "price", EK_JSON_OPTIONAL, &o));
    if (o == NULL)
        return EK_OK;
    snprintf(where, sizeof(where), "%s: price", file);
    EK_TRY(check_keys(o, where, keys));
    return read_positive(o, where, "node_hour", EK_JSON_REQUIRED, 1 / 3600.0, &c->node_s_price);
}

static ek_status read_root(const json_t *o, const char *file, ek_cluster *c)
{
    static const char *const keys[] = {"evenkeel_cluster", "name",  "rank", "levels", "slow",
                                       "failures",         "price", "note", NULL};
    int64_t version = 0;

    EK_REQUIRE(!json_is_object(o) || json_object_get(o, "evenkeel_cluster") != NULL, EK_EFORMAT,
               "%s: not a cluster file, as key `evenkeel_cluster` is missing (docs/formats.md; "
               "`bench costs --cluster-out` writes one)",
               file);
    EK_TRY(ek_json_int(o, file, "evenkeel_cluster", EK_JSON_REQUIRED, 0, COUNT_MAX, &version));
    EK_REQUIRE(version == VERSION, EK_EFORMAT,
               "%s: key `evenkeel_cluster`: version %lld; this program reads version %d", file,
               (long long)version, VERSION);
    EK_TRY(check_keys(o, file, keys));
    EK_TRY(ek_json_copy_text(o, file, "name", EK_JSON_REQUIRED, c->name, sizeof(c->name)));
    EK_TRY(read_levels(o, file, c));
    EK_TRY(read_slow(o, file, c));
    EK_TRY(read_failures(o, file, c));
    EK_TRY(read_price(o, file, c));
    return read_rank(o, file, c);
}

ek_status ek_cluster_parse(const char *text, size_t bytes, const char *file, ek_cluster *out)
{
    json_t *root = NULL;
    ek_status st;

    memset(out, 0, sizeof(*out));
    EK_TRY(ek_json_parse(text, bytes, file, &root));
    st = read_root(root, file, out);
    json_decref(root);
    if (st < 0)
        memset(out, 0, sizeof(*out));
    return st;
}

ek_status ek_cluster_read(const char *file_or_text, ek_cluster *out)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    if (file_or_text[0] == '{')
        return ek_cluster_parse(file_or_text, strlen(file_or_text), "the cluster", out);
    memset(out, 0, sizeof(*out));
    EK_TRY_OUT(ek_file_read(file_or_text, FILE_BYTES_MAX, &text, &bytes));
    EK_TRY_OUT(ek_cluster_parse(text, bytes, file_or_text, out));
out:
    free(text);
    return st;
}

ek_status ek_cluster_nodes(const ek_cluster *c, int ranks, int **node_of)
{
    int64_t each = ek_cluster_node_ranks(c);

    *node_of = calloc((size_t)ranks, sizeof(**node_of));
    EK_REQUIRE(*node_of != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        (*node_of)[r] = (int)(r / each);
    return EK_OK;
}

ek_cluster ek_cluster_alone(const ek_cluster *c)
{
    ek_cluster alone = *c;

    for (int32_t l = 0; l < alone.n_levels; l++) {
        alone.level[l].bytes_s = ek_level_capacity(&alone.level[l]);
        alone.level[l].shared_by = 1;
    }
    return alone;
}
