/* Weights are parsed digit by digit, independent of the locale's decimal point. */
#include "data/sources.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double share_total = 2147483648.0;

/* A plain decimal number; returns 0 if the text is none. */
static int read_weight(const char *text, double *out)
{
    double x = 0, unit = 1;
    int digits = 0, point = 0;

    for (; *text != '\0'; text++) {
        if (*text == '.' && !point) {
            point = 1;
            continue;
        }
        if (*text < '0' || *text > '9')
            return 0;
        digits++;
        x = 10 * x + (*text - '0');
        unit *= point ? 10 : 1;
    }
    *out = x / unit;
    return digits > 0 && isfinite(*out);
}

ek_status ek_source_path(const char *text, ek_path *path, const char **weight)
{
    const char *colon = strrchr(text, ':');
    double x;

    *weight = NULL;
    if (colon == NULL || colon == text || ek_file_kind_of(text) != EK_FILE_NONE ||
        !read_weight(colon + 1, &x))
        return ek_path_set(path, "%s", text);
    *weight = colon + 1;
    return ek_path_set(path, "%.*s", (int)(colon - text), text);
}

ek_status ek_sources_have_texts(const char *const *paths, int64_t n, int *have)
{
    int64_t weighted = 0, files;
    const char *weight;
    ek_path path;

    *have = 0;
    for (int64_t i = 0; i < n; i++) {
        EK_TRY(ek_source_path(paths[i], &path, &weight));
        weighted += weight != NULL;
        *have |= !ek_tokens_is_file(path.s);
    }
    return weighted > 0 ? EK_OK : ek_tokens_count_files(paths, n, &files);
}

/* The weights of all paths, or 0 for each if none has one. */
static ek_status read_weights(const ek_tokens_config *c, double *weights, double *sum)
{
    int64_t with = 0;
    const char *text;
    ek_path path;

    *sum = 0;
    for (int64_t i = 0; i < c->n_paths; i++) {
        EK_TRY(ek_source_path(c->paths[i], &path, &text));
        if (text == NULL)
            continue;
        EK_REQUIRE(with < EK_SOURCES_MAX, EK_EINVAL, "--data names more than %d weighted sources",
                   EK_SOURCES_MAX);
        EK_REQUIRE(read_weight(text, &weights[with]) && weights[with] > 0, EK_EINVAL,
                   "--data %s: the weight has to be above 0; leave the path out", c->paths[i]);
        *sum += weights[with++];
    }
    EK_REQUIRE(with == 0 || with == c->n_paths, EK_EINVAL,
               "--data: %lld of %lld paths have a weight (PATH:WEIGHT); give one to each, or none",
               (long long)with, (long long)c->n_paths);
    return EK_OK;
}

static ek_status open_source(const ek_tokens_config *config, int64_t i, ek_tokens **out)
{
    ek_tokens_config one = *config;
    const char *paths[1], *weight;
    ek_path path;

    EK_TRY(ek_source_path(config->paths[i], &path, &weight));
    paths[0] = path.s;
    one.paths = paths;
    one.n_paths = 1;
    return ek_tokens_open(&one, out);
}

ek_status ek_sources_open(const ek_tokens_config *config, ek_sources *out)
{
    double weights[EK_SOURCES_MAX], sum;
    ek_status st = EK_OK;

    *out = (ek_sources){.n = 0};
    EK_TRY(read_weights(config, weights, &sum));
    if (!(sum > 0)) {
        EK_TRY(ek_tokens_open(config, &out->tokens[0]));
        out->share[0] = 1;
        out->n = 1;
        return EK_OK;
    }
    for (int64_t i = 0; i < config->n_paths; i++) {
        double share = round(weights[i] / sum * share_total);

        EK_TRY_OUT(open_source(config, i, &out->tokens[i]));
        out->share[i] = share >= 1 ? (uint64_t)share : 1;
        out->n++;
    }
    return EK_OK;
out:
    ek_sources_close(out);
    return st;
}

void ek_sources_close(ek_sources *s)
{
    for (int64_t i = 0; i < s->n; i++)
        ek_tokens_close(&s->tokens[i]);
    s->n = 0;
}

int64_t ek_sources_tokens(const ek_sources *s)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < s->n; i++)
        sum += ek_tokens_get_info(s->tokens[i]).n_tokens;
    return sum;
}

ek_status ek_sources_describe(const ek_sources *s, char *text, size_t cap)
{
    size_t n = 0;

    for (int64_t i = 0; i < s->n && n < cap; i++) {
        n += (size_t)snprintf(text + n, cap - n, "%s", i > 0 ? ", " : "");
        if (s->n > 1 && n < cap)
            n += (size_t)snprintf(text + n, cap - n, "%llu of ", (unsigned long long)s->share[i]);
        if (n < cap)
            n += (size_t)snprintf(text + n, cap - n, "%lld tokens",
                                  (long long)ek_tokens_get_info(s->tokens[i]).n_tokens);
    }
    EK_REQUIRE(n < cap, EK_EOVERFLOW, "the description of %lld sources is too long",
               (long long)s->n);
    return EK_OK;
}
