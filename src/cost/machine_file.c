/* The machine file: JSON whose keys name their units, written one array a line for readability, and
 * read strictly: no key may be missing or unknown, and in no table may more work take less time.
 * Version 2 has `op_s`, `kernels` and, where measured, `polling`; files of version 1 are read as
 * without. */
#include "base/file.h"
#include "cost/machine_json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, COUNT_MAX = 1 << 30, FILE_BYTES_MAX = 1 << 20 };

/* Values beyond these are mistakes; with these bounds, products of a few values stay finite. */
#define X_MAX     1e18
#define ALONE_MAX 1000
#define Y_MAX     1e24
#define Y_MIN     1e-24

/* --- checks ----------------------------------------------------------------------------------- */

static int is_positive(double x, double most)
{
    return isfinite(x) && x > 0 && x <= most;
}

/* Values at ascending sizes.  Times may not fall, rates may not grow faster than sizes. */
static ek_status check_table(const ek_cost_table *t, const char *file, const char *key, int rates)
{
    EK_REQUIRE(t->n >= 1 && t->n <= EK_COST_POINTS, EK_EFORMAT,
               "%s: key `%s`: %d points; 1 to %d are allowed", file, key, (int)t->n,
               EK_COST_POINTS);
    for (int32_t i = 0; i < t->n; i++) {
        EK_REQUIRE(is_positive(t->x[i], X_MAX), EK_EFORMAT,
                   "%s: key `%s`: size %g of point %d is not above 0", file, key, t->x[i],
                   (int)i + 1);
        EK_REQUIRE(is_positive(t->y[i], Y_MAX) && t->y[i] >= Y_MIN, EK_EFORMAT,
                   "%s: key `%s`: value %g of point %d is not above 0", file, key, t->y[i],
                   (int)i + 1);
        EK_REQUIRE(i == 0 || t->x[i] > t->x[i - 1], EK_EFORMAT,
                   "%s: key `%s`: sizes must ascend, but %g follows %g", file, key, t->x[i],
                   t->x[i - 1]);
        EK_REQUIRE(i == 0 || rates || t->y[i] >= t->y[i - 1], EK_EFORMAT,
                   "%s: key `%s`: %g takes less time than %g", file, key, t->x[i], t->x[i - 1]);
        EK_REQUIRE(i == 0 || !rates ||
                       t->y[i] / t->y[i - 1] <= t->x[i] / t->x[i - 1] * (1 + 8 * DBL_EPSILON),
                   EK_EFORMAT, "%s: key `%s`: at these rates %g rows take less time than %g", file,
                   key, t->x[i], t->x[i - 1]);
    }
    return EK_OK;
}

static ek_status check_link(const ek_link_cost *l, ek_link link, const char *file)
{
    char key[64];

    if (l->message.n == 0 && l->hop.n == 0)
        return EK_OK;
    EK_REQUIRE(l->ranks_a_node >= 1 && l->ranks_a_node <= COUNT_MAX, EK_EFORMAT,
               "%s: key `%s.ranks_a_node`: %lld is not between 1 and %d", file, ek_link_name(link),
               (long long)l->ranks_a_node, COUNT_MAX);
    snprintf(key, sizeof(key), "%s.all_to_all", ek_link_name(link));
    EK_TRY(check_table(&l->message, file, key, 0));
    EK_REQUIRE(isfinite(l->seconds_a_byte_beside) && l->seconds_a_byte_beside >= 0 &&
                   l->seconds_a_byte_beside <= 1,
               EK_EFORMAT, "%s: key `%s.seconds_a_byte_beside`: %g is not a time of a byte", file,
               ek_link_name(link), l->seconds_a_byte_beside);
    EK_REQUIRE(isfinite(l->arrival_skew_s) && l->arrival_skew_s >= 0, EK_EFORMAT,
               "%s: key `%s.seconds_of_arrival_skew`: %g is no time", file, ek_link_name(link),
               l->arrival_skew_s);
    EK_REQUIRE(isfinite(l->burst) && l->burst >= 0, EK_EFORMAT,
               "%s: key `%s.burst_bytes`: %g is no number of bytes", file, ek_link_name(link),
               l->burst);
    snprintf(key, sizeof(key), "%s.multicast", ek_link_name(link));
    return check_table(&l->hop, file, key, 0);
}

/* Every kernel at least one point, no kernel of some sizes twice. */
static ek_status check_kernels(const ek_kernel_costs *c, const char *file)
{
    EK_REQUIRE(c->n >= 0 && c->n <= EK_KERNEL_COSTS_MAX, EK_EFORMAT,
               "%s: key `kernels`: %d entries; 0 to %d are allowed", file, (int)c->n,
               EK_KERNEL_COSTS_MAX);
    for (int32_t i = 0; i < c->n; i++) {
        const ek_kernel_cost *k = &c->cost[i];
        const ek_kernel_info *info = ek_kernel_info_of(k->kernel);

        for (int s = 0; s < EK_KERNEL_SIZES; s++)
            EK_REQUIRE(info->size_key[s] != NULL ? k->size[s] >= 1 && k->size[s] <= COUNT_MAX
                                                 : k->size[s] == 0,
                       EK_EFORMAT, "%s: key `kernels`: %s: size %d is not between 1 and %d", file,
                       info->name, (int)k->size[s], COUNT_MAX);
        EK_REQUIRE(ek_kernel_cost_find(c, k->kernel, k->size) == k, EK_EFORMAT,
                   "%s: key `kernels`: %s: the same sizes twice", file, info->name);
        EK_TRY(check_table(&k->rate, file, info->name, 1 /* rates */));
    }
    return EK_OK;
}

/* Rates that make sense, where there are any. */
static ek_status check_training(const ek_training_rates *t, const char *file)
{
    const struct {
        const char *key;
        double value, least;
    } rates[] = {{"flops_per_s", t->flops_per_s, Y_MIN},
                 {"adamw_bytes_per_s", t->adamw, Y_MIN},
                 {"attention_s_a_token", t->attention_s, 0}};

    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]) && t->rows > 0; i++)
        EK_REQUIRE(is_positive(rates[i].value, Y_MAX) && rates[i].value >= rates[i].least,
                   EK_EFORMAT, "%s: key `training.%s`: %g is not above 0", file, rates[i].key,
                   rates[i].value);
    return EK_OK;
}

static ek_status check_alone(double alone, const char *key, const char *file)
{
    EK_REQUIRE(alone == 0 || (isfinite(alone) && alone >= 1 && alone <= ALONE_MAX), EK_EFORMAT,
               "%s: key `%s`: %g is not between 1 and %d", file, key, alone, ALONE_MAX);
    return EK_OK;
}

ek_status ek_machine_check(const ek_machine *m, const char *file)
{
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {{"ranks", m->ranks},   {"nodes", m->nodes}, {"threads", m->threads},
                  {"hidden", m->hidden}, {"ff", m->ff},       {"experts", m->experts}};

    EK_REQUIRE(strcmp(m->dtype, "bf16") == 0 || strcmp(m->dtype, "fp32") == 0 ||
                   strcmp(m->dtype, "fp64") == 0,
               EK_EFORMAT, "%s: key `dtype`: \"%s\" is none of bf16, fp32 and fp64", file,
               m->dtype);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        EK_REQUIRE(counts[i].value >= 1 && counts[i].value <= COUNT_MAX, EK_EFORMAT,
                   "%s: key `%s`: %lld is not between 1 and %d", file, counts[i].key,
                   (long long)counts[i].value, COUNT_MAX);
    EK_REQUIRE(isfinite(m->took_s) && m->took_s >= 0, EK_EFORMAT,
               "%s: key `measured_in_s`: %g is not a valid time", file, m->took_s);
    EK_REQUIRE(is_positive(m->copy, Y_MAX) && m->copy >= Y_MIN, EK_EFORMAT,
               "%s: key `copy_bytes_per_s`: %g is not above 0", file, m->copy);
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        EK_TRY(check_table(&m->rate[p], file, ek_cost_product_name((ek_cost_product)p),
                           1 /* rates */));
    for (int l = 0; l < EK_LINKS; l++)
        EK_TRY(check_link(&m->link[l], (ek_link)l, file));
    EK_TRY(check_training(&m->training, file));
    EK_REQUIRE(isfinite(m->op_s) && m->op_s >= 0 && m->op_s <= 1, EK_EFORMAT,
               "%s: key `op_s`: %g is not a time of an op", file, m->op_s);
    EK_REQUIRE(isfinite(m->polling) && m->polling >= 0 && m->polling <= 100, EK_EFORMAT,
               "%s: key `polling`: %g is not a share between 0 and 100", file, m->polling);
    EK_TRY(check_alone(m->rank_alone, "rank_alone", file));
    EK_TRY(check_alone(m->node_alone, "node_alone", file));
    return check_kernels(&m->kernels, file);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void write_array(FILE *f, const char *key, const double *x, int32_t n)
{
    fprintf(f, "\"%s\": [", key);
    for (int32_t i = 0; i < n; i++) {
        fputs(i > 0 ? ", " : "", f);
        ek_json_write_real(f, x[i]);
    }
    fputc(']', f);
}

static void write_alone(FILE *f, const char *key, double alone)
{
    if (alone <= 0)
        return;
    fprintf(f, ",\n  \"%s\": ", key);
    ek_json_write_real(f, alone);
}

static void write_link(FILE *f, const ek_machine *m, ek_link link)
{
    const ek_link_cost *l = &m->link[link];

    if (l->message.n == 0)
        return;
    fprintf(f, ",\n  \"%s\": {\n    \"ranks_a_node\": %lld,\n    \"all_to_all\": {\n      ",
            ek_link_name(link), (long long)l->ranks_a_node);
    write_array(f, "message_bytes", l->message.x, l->message.n);
    fputs(",\n      ", f);
    write_array(f, "seconds_a_message", l->message.y, l->message.n);
    fputs("},\n    \"multicast\": {\n      ", f);
    write_array(f, "message_bytes", l->hop.x, l->hop.n);
    fputs(",\n      ", f);
    write_array(f, "seconds_a_hop", l->hop.y, l->hop.n);
    fputc('}', f);
    if (l->seconds_a_byte_beside > 0) {
        fputs(",\n    \"seconds_a_byte_beside\": ", f);
        ek_json_write_real(f, l->seconds_a_byte_beside);
    }
    if (l->arrival_skew_s > 0) {
        fputs(",\n    \"seconds_of_arrival_skew\": ", f);
        ek_json_write_real(f, l->arrival_skew_s);
    }
    if (l->burst > 0) {
        fputs(",\n    \"burst_bytes\": ", f);
        ek_json_write_real(f, l->burst);
    }
    fputc('}', f);
}

static void write_kernel(FILE *f, const ek_kernel_cost *k)
{
    const ek_kernel_info *info = ek_kernel_info_of(k->kernel);

    fprintf(f, "\n    {\"kernel\": \"%s\",", info->name);
    for (int i = 0; i < EK_KERNEL_SIZES && info->size_key[i] != NULL; i++)
        fprintf(f, " \"%s\": %d,", info->size_key[i], (int)k->size[i]);
    fputs("\n     ", f);
    write_array(f, info->x_key, k->rate.x, k->rate.n);
    fputs(",\n     ", f);
    write_array(f, info->y_key, k->rate.y, k->rate.n);
    fputc('}', f);
}

static void write_kernels(FILE *f, const ek_kernel_costs *c)
{
    fputs(",\n  \"kernels\": [", f);
    for (int32_t i = 0; i < c->n; i++) {
        fputs(i > 0 ? "," : "", f);
        write_kernel(f, &c->cost[i]);
    }
    fputc(']', f);
}

static void write_training(FILE *f, const ek_training_rates *t)
{
    fprintf(f,
            ",\n  \"training\": {\n    \"rows_an_expert\": %lld,\n    \"tokens_a_sequence\": "
            "%lld,\n    \"flops_per_s\": ",
            (long long)t->rows, (long long)t->seq);
    ek_json_write_real(f, t->flops_per_s);
    fputs(",\n    \"adamw_bytes_per_s\": ", f);
    ek_json_write_real(f, t->adamw);
    fputs(",\n    \"attention_s_a_token\": ", f);
    ek_json_write_real(f, t->attention_s);
    fputc('}', f);
}

static ek_status write_machine(FILE *f, const void *from)
{
    const ek_machine *m = from;

    fprintf(f, "{\n  \"evenkeel_machine\": %d,\n  \"name\": ", VERSION);
    EK_TRY(ek_json_write_text(f, m->name));
    fputs(",\n  \"key\": ", f);
    EK_TRY(ek_json_write_text(f, m->key));
    fprintf(
        f,
        ",\n  \"dtype\": \"%s\",\n  \"ranks\": %lld,\n  \"nodes\": %lld,\n  \"threads\": %lld,\n"
        "  \"measured_in_s\": ",
        m->dtype, (long long)m->ranks, (long long)m->nodes, (long long)m->threads);
    ek_json_write_real(f, m->took_s);
    fputs(",\n  \"copy_bytes_per_s\": ", f);
    ek_json_write_real(f, m->copy);
    if (m->training.rows > 0)
        write_training(f, &m->training);
    fputs(",\n  \"op_s\": ", f);
    ek_json_write_real(f, m->op_s);
    if (m->polling > 0) {
        fputs(",\n  \"polling\": ", f);
        ek_json_write_real(f, m->polling);
    }
    write_alone(f, "rank_alone", m->rank_alone);
    write_alone(f, "node_alone", m->node_alone);
    fprintf(f,
            ",\n  \"expert\": {\n    \"hidden\": %lld,\n    \"ff\": %lld,\n    \"experts\": %lld",
            (long long)m->hidden, (long long)m->ff, (long long)m->experts);
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        fprintf(f, ",\n    \"%s\": {\n      ", ek_cost_product_name((ek_cost_product)p));
        write_array(f, "rows_an_expert", m->rate[p].x, m->rate[p].n);
        fputs(",\n      ", f);
        write_array(f, "flops_per_s", m->rate[p].y, m->rate[p].n);
        fputc('}', f);
    }
    fputc('}', f);
    for (int l = 0; l < EK_LINKS; l++)
        write_link(f, m, (ek_link)l);
    write_kernels(f, &m->kernels);
    fputs("\n}\n", f);
    return EK_OK;
}

ek_status ek_machine_text(const ek_machine *m, char **text, size_t *bytes)
{
    return ek_json_written(write_machine, m, "machine file", text, bytes);
}

ek_status ek_machine_write(const ek_machine *m, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    EK_TRY(ek_machine_check(m, path));
    EK_TRY_OUT(ek_machine_text(m, &text, &bytes));
    EK_TRY_OUT(ek_file_replace(NULL, path, text, bytes));
out:
    free(text);
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

static ek_status read_count(const json_t *o, const char *file, const char *key, int64_t *out)
{
    return ek_json_int(o, file, key, EK_JSON_REQUIRED, 1, COUNT_MAX, out);
}

static ek_status read_array(const json_t *o, const char *file, const char *where, const char *key,
                            double *out, int32_t *n)
{
    const json_t *a = json_object_get(o, key);

    EK_REQUIRE(json_is_array(a), EK_EFORMAT, "%s: key `%s.%s`: expected an array, found %s", file,
               where, key, ek_json_type_name(a));
    EK_REQUIRE(json_array_size(a) >= 1 && json_array_size(a) <= EK_COST_POINTS, EK_EFORMAT,
               "%s: key `%s.%s`: %zu points; 1 to %d are allowed", file, where, key,
               json_array_size(a), EK_COST_POINTS);
    *n = (int32_t)json_array_size(a);
    for (int32_t i = 0; i < *n; i++) {
        const json_t *x = json_array_get(a, (size_t)i);

        EK_REQUIRE(json_is_number(x), EK_EFORMAT, "%s: key `%s.%s`: expected a number, found %s",
                   file, where, key, ek_json_type_name(x));
        out[i] = json_number_value(x);
    }
    return EK_OK;
}

/* The two arrays of a table; where: what they belong to, for messages. */
static ek_status read_points(const json_t *o, const char *file, const char *where,
                             const char *x_key, const char *y_key, ek_cost_table *t)
{
    int32_t n = 0;

    EK_TRY(read_array(o, file, where, x_key, t->x, &t->n));
    EK_TRY(read_array(o, file, where, y_key, t->y, &n));
    EK_REQUIRE(n == t->n, EK_EFORMAT, "%s: key `%s`: %d of `%s`, but %d of `%s`", file, where,
               (int)t->n, x_key, (int)n, y_key);
    return EK_OK;
}

/* {x_key: [...], y_key: [...]} */
static ek_status read_table(const json_t *o, const char *file, const char *key, const char *x_key,
                            const char *y_key, ek_cost_table *t)
{
    const char *const keys[] = {x_key, y_key, NULL};
    json_t *table = NULL;

    EK_TRY(ek_json_object(o, file, key, EK_JSON_REQUIRED, &table));
    EK_TRY(ek_json_check_keys(table, file, keys));
    return read_points(table, file, key, x_key, y_key, t);
}

static ek_status read_expert(const json_t *root, const char *file, ek_machine *m)
{
    static const char *const keys[] = {
        "hidden", "ff", "experts", "forward", "backward_input", "backward_weight", NULL};
    json_t *o = NULL;

    EK_TRY(ek_json_object(root, file, "expert", EK_JSON_REQUIRED, &o));
    EK_TRY(ek_json_check_keys(o, file, keys));
    EK_TRY(read_count(o, file, "hidden", &m->hidden));
    EK_TRY(read_count(o, file, "ff", &m->ff));
    EK_TRY(read_count(o, file, "experts", &m->experts));
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        EK_TRY(read_table(o, file, ek_cost_product_name((ek_cost_product)p), "rows_an_expert",
                          "flops_per_s", &m->rate[p]));
    return EK_OK;
}

static ek_status read_link(const json_t *root, const char *file, ek_link link, ek_machine *m)
{
    static const char *const keys[] = {"ranks_a_node",
                                       "all_to_all",
                                       "multicast",
                                       "seconds_a_byte_beside",
                                       "seconds_of_arrival_skew",
                                       "burst_bytes",
                                       NULL};
    ek_link_cost *l = &m->link[link];
    json_t *o = NULL;

    if (json_object_get(root, ek_link_name(link)) == NULL)
        return EK_OK;
    EK_TRY(ek_json_object(root, file, ek_link_name(link), EK_JSON_REQUIRED, &o));
    EK_TRY(ek_json_check_keys(o, file, keys));
    EK_TRY(read_count(o, file, "ranks_a_node", &l->ranks_a_node));
    EK_TRY(ek_json_real(o, file, "seconds_a_byte_beside", EK_JSON_OPTIONAL,
                        &l->seconds_a_byte_beside));
    EK_TRY(ek_json_real(o, file, "seconds_of_arrival_skew", EK_JSON_OPTIONAL, &l->arrival_skew_s));
    EK_TRY(ek_json_real(o, file, "burst_bytes", EK_JSON_OPTIONAL, &l->burst));
    EK_TRY(read_table(o, file, "all_to_all", "message_bytes", "seconds_a_message", &l->message));
    return read_table(o, file, "multicast", "message_bytes", "seconds_a_hop", &l->hop);
}

static ek_status kernel_named(const char *name, const char *file, ek_cost_kernel *out)
{
    for (int k = 0; k < EK_COST_KERNELS; k++)
        if (strcmp(ek_kernel_info_of((ek_cost_kernel)k)->name, name) == 0) {
            *out = (ek_cost_kernel)k;
            return EK_OK;
        }
    return EK_FAIL(EK_EFORMAT, "%s: key `kernels`: \"%s\" is not a kernel", file, name);
}

static ek_status read_kernel(const json_t *o, const char *file, ek_kernel_cost *out)
{
    const char *keys[EK_KERNEL_SIZES + 4] = {"kernel"}, *name = NULL;
    const ek_kernel_info *info;
    int n = 1;

    EK_REQUIRE(json_is_object(o), EK_EFORMAT, "%s: key `kernels`: expected an object, found %s",
               file, ek_json_type_name(o));
    EK_TRY(ek_json_text(o, file, "kernel", EK_JSON_REQUIRED, &name));
    EK_TRY(kernel_named(name, file, &out->kernel));
    info = ek_kernel_info_of(out->kernel);
    for (int i = 0; i < EK_KERNEL_SIZES && info->size_key[i] != NULL; i++) {
        int64_t size = 0;

        keys[n++] = info->size_key[i];
        EK_TRY(read_count(o, file, info->size_key[i], &size));
        out->size[i] = (int32_t)size;
    }
    keys[n++] = info->x_key;
    keys[n++] = info->y_key;
    EK_TRY(ek_json_check_keys(o, file, keys));
    return read_points(o, file, info->name, info->x_key, info->y_key, &out->rate);
}

static ek_status read_kernels(const json_t *root, const char *file, ek_kernel_costs *out)
{
    const json_t *all = json_object_get(root, "kernels");

    EK_REQUIRE(json_is_array(all), EK_EFORMAT, "%s: key `kernels`: expected an array, found %s",
               file, ek_json_type_name(all));
    EK_REQUIRE(json_array_size(all) <= EK_KERNEL_COSTS_MAX, EK_EFORMAT,
               "%s: key `kernels`: %zu entries; at most %d are allowed", file, json_array_size(all),
               EK_KERNEL_COSTS_MAX);
    for (; out->n < (int32_t)json_array_size(all); out->n++)
        EK_TRY(read_kernel(json_array_get(all, (size_t)out->n), file, &out->cost[out->n]));
    return EK_OK;
}

static ek_status read_training(const json_t *o, const char *file, ek_training_rates *t)
{
    static const char *const keys[] = {"rows_an_expert",    "tokens_a_sequence",   "flops_per_s",
                                       "adamw_bytes_per_s", "attention_s_a_token", NULL};
    const json_t *at = json_object_get(o, "training");

    if (at == NULL)
        return EK_OK;
    EK_REQUIRE(json_is_object(at), EK_EFORMAT, "%s: key `training`: expected an object", file);
    EK_TRY(ek_json_check_keys(at, file, keys));
    EK_TRY(read_count(at, file, "rows_an_expert", &t->rows));
    EK_TRY(read_count(at, file, "tokens_a_sequence", &t->seq));
    EK_TRY(ek_json_real(at, file, "flops_per_s", EK_JSON_REQUIRED, &t->flops_per_s));
    EK_TRY(ek_json_real(at, file, "adamw_bytes_per_s", EK_JSON_REQUIRED, &t->adamw));
    return ek_json_real(at, file, "attention_s_a_token", EK_JSON_REQUIRED, &t->attention_s);
}

static ek_status read_machine(const json_t *o, const char *file, ek_machine *m)
{
    static const char *const keys[] = {"evenkeel_machine",
                                       "name",
                                       "key",
                                       "dtype",
                                       "ranks",
                                       "nodes",
                                       "threads",
                                       "measured_in_s",
                                       "copy_bytes_per_s",
                                       "expert",
                                       "node",
                                       "net",
                                       "op_s",
                                       "polling",
                                       "rank_alone",
                                       "node_alone",
                                       "kernels",
                                       "training",
                                       NULL};
    enum { KEYS_OF_1 = 12 };
    const char *keys_of_1[KEYS_OF_1 + 1] = {NULL};
    int64_t version = 0;

    EK_REQUIRE(!json_is_object(o) || json_object_get(o, "evenkeel_machine") != NULL, EK_EFORMAT,
               "%s: not a machine file, as key `evenkeel_machine` is missing (docs/formats.md; "
               "`bench costs --out` writes one)",
               file);
    EK_TRY(ek_json_int(o, file, "evenkeel_machine", EK_JSON_REQUIRED, 0, COUNT_MAX, &version));
    EK_REQUIRE(version >= 1 && version <= VERSION, EK_EFORMAT,
               "%s: key `evenkeel_machine`: version %lld; this program reads versions 1 to %d",
               file, (long long)version, VERSION);
    memcpy(keys_of_1, keys, KEYS_OF_1 * sizeof(keys[0]));
    EK_TRY(ek_json_check_keys(o, file, version == 1 ? keys_of_1 : keys));
    EK_TRY(ek_json_copy_text(o, file, "name", EK_JSON_REQUIRED, m->name, sizeof(m->name)));
    EK_TRY(ek_json_copy_text(o, file, "key", EK_JSON_REQUIRED, m->key, sizeof(m->key)));
    EK_TRY(ek_json_copy_text(o, file, "dtype", EK_JSON_REQUIRED, m->dtype, sizeof(m->dtype)));
    EK_TRY(read_count(o, file, "ranks", &m->ranks));
    EK_TRY(read_count(o, file, "nodes", &m->nodes));
    EK_TRY(read_count(o, file, "threads", &m->threads));
    EK_TRY(ek_json_real(o, file, "measured_in_s", EK_JSON_REQUIRED, &m->took_s));
    EK_TRY(ek_json_real(o, file, "copy_bytes_per_s", EK_JSON_REQUIRED, &m->copy));
    EK_TRY(read_expert(o, file, m));
    for (int l = 0; l < EK_LINKS; l++)
        EK_TRY(read_link(o, file, (ek_link)l, m));
    if (version > 1) {
        EK_TRY(ek_json_real(o, file, "op_s", EK_JSON_REQUIRED, &m->op_s));
        EK_TRY(ek_json_real(o, file, "polling", EK_JSON_OPTIONAL, &m->polling));
        EK_TRY(ek_json_real(o, file, "rank_alone", EK_JSON_OPTIONAL, &m->rank_alone));
        EK_TRY(ek_json_real(o, file, "node_alone", EK_JSON_OPTIONAL, &m->node_alone));
        EK_TRY(read_training(o, file, &m->training));
        EK_TRY(read_kernels(o, file, &m->kernels));
    }
    return ek_machine_check(m, file);
}

ek_status ek_machine_of_json(const json_t *o, const char *file, ek_machine *out)
{
    ek_status st;

    memset(out, 0, sizeof(*out));
    st = read_machine(o, file, out);
    if (st < 0)
        memset(out, 0, sizeof(*out));
    return st;
}

ek_status ek_machine_parse(const char *text, size_t bytes, const char *file, ek_machine *out)
{
    json_t *root = NULL;
    ek_status st;

    memset(out, 0, sizeof(*out));
    EK_TRY(ek_json_parse(text, bytes, file, &root));
    st = ek_machine_of_json(root, file, out);
    json_decref(root);
    return st;
}

ek_status ek_machine_read(const char *path, ek_machine *out)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    memset(out, 0, sizeof(*out));
    EK_TRY_OUT(ek_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    EK_TRY_OUT(ek_machine_parse(text, bytes, path, out));
out:
    free(text);
    return st;
}
