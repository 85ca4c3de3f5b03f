/* The search for the fastest setting, step by step. */
#include "train/tune/tune.h"

#include <math.h>
#include <string.h>

/* Rounds of each stage.  The first stage warms up: a setting's first step may fault in memory.  The
 * second drops far slower settings, and each later one the slower half of the rest. */
static const int rounds_small[] = {1, 2, 3, 6, 9, 16};
static const int rounds_large[] = {1, 1, 1, 3, 4, 6, 8};
enum {
    STAGES = sizeof(rounds_small) / sizeof(rounds_small[0]),
    STAGES_LARGE = sizeof(rounds_large) / sizeof(rounds_large[0])
};

/* A setting that takes this many times as long as the best is dropped. */
static const double drop_ratio = 1.5;
/* A search is repeated when steps become slower or faster by this factor. */
static const double retune_ratio = 1.3;

/* Bounds to which measured times are clamped. */
static const double min_time_s = 1e-9, max_time_s = 1e9;

/* --- settings --------------------------------------------------------------------------------- */

/* Whether in an expert-parallel group (consecutive ranks) some ranks share a node and others do
 * not. */
static int has_nodes(const ek_mesh *mesh)
{
    int ep_ranks = mesh->ep * mesh->etp;

    for (int first = 0; first < mesh->size; first += ep_ranks) {
        int same = 0, other = 0;

        for (int i = first; i < first + ep_ranks && !(same && other); i++)
            for (int j = first; j < i; j++)
                if (ek_comm_node(mesh->world, i) == ek_comm_node(mesh->world, j))
                    same = 1;
                else
                    other = 1;
        if (same && other)
            return 1;
    }
    return 0;
}

/* Whether 2DH differs from linear. */
static int has_hierarchy(const ek_mesh *mesh)
{
    return mesh->ep * mesh->etp > 2 && has_nodes(mesh);
}

/* On 4 and 8 nodes of 2 and 4 ranks, messages of 1 KiB take 1.4 to 1.6 times as long with linear as
 * with 2DH, of 4 KiB 1.0 to 1.2 times, of 16 KiB as long, longer ones a little less
 * (bench/results/pipelining.md). */
static const double short_message = 8 << 10;

ek_a2a ek_tune_a2a_by_topology(const ek_mesh *mesh, double bytes)
{
    return bytes <= short_message && has_hierarchy(mesh) ? EK_A2A_2DH : EK_A2A_LINEAR;
}

enum { ALL_TO_ALLS = EK_A2A_2DH + 1 };

/* Lists all-to-alls, the given one first; returns their number. */
static int list_all_to_alls(const ek_mesh *mesh, const ek_tune_fixed *fixed, ek_a2a *out)
{
    int worth[] = {1, mesh->ep * mesh->etp > 2, has_hierarchy(mesh)}, n = 0;

    if (fixed->a2a >= 0) {
        out[0] = (ek_a2a)fixed->a2a;
        return 1;
    }
    if (worth[fixed->first])
        out[n++] = fixed->first;
    for (int a = EK_A2A_LINEAR; a < ALL_TO_ALLS; a++)
        if (worth[a] && a != (int)fixed->first)
            out[n++] = (ek_a2a)a;
    return n;
}

/* Appends all degrees and all-to-alls for one `gather`; returns their number. */
static int add_settings(const ek_mesh *mesh, const ek_tune_fixed *fixed, int gather, int cap,
                        ek_moe_traffic *out)
{
    static const int degrees[] = {1, 2, 4, 8};
    ek_a2a a2a[ALL_TO_ALLS];
    int all = list_all_to_alls(mesh, fixed, a2a), n = 0;
    int n_degrees = fixed->degree > 0 || mesh->ep * mesh->etp == 1 ? 1 : 4;

    for (int a = 0; a < all; a++)
        for (int d = 0; d < n_degrees && n < cap; d++)
            out[n++] =
                (ek_moe_traffic){fixed->degree > 0 ? fixed->degree : degrees[d], a2a[a], gather};
    return n;
}

int ek_tune_settings(const ek_mesh *mesh, const ek_tune_fixed *fixed, ek_moe_traffic *out)
{
    ek_tune_fixed gather_all = {.degree = fixed->degree > 0 ? fixed->degree : 1,
                                .a2a = fixed->a2a >= 0 ? fixed->a2a : EK_A2A_LINEAR,
                                .gather = EK_GATHER_ALL};
    int cap = EK_TUNE_SETTINGS - 1, n = 0;

    if (fixed->gather > 0)
        n = add_settings(mesh, fixed, fixed->gather, cap, out);
    for (int i = 0; i < mesh->etp && fixed->gather == 0; i++) {
        int g = i == 1 ? mesh->etp : i > 1 ? i : 1; /* 1 and etp first, as not all may fit */

        if (mesh->etp % g == 0)
            n += add_settings(mesh, fixed, g, cap - n, out + n);
    }
    if (fixed->gather < 0 || (fixed->gather == 0 && fixed->gather_all))
        n += add_settings(mesh, &gather_all, EK_GATHER_ALL, 1, out + n);
    return ek_mesh_distributes_experts(mesh) ? n : 1;
}

int64_t ek_tune_bucket_of(int64_t tokens, int64_t top_k, int64_t experts, double capacity_factor)
{
    double f = capacity_factor != 0 ? fabs(capacity_factor) : 1;

    return (int64_t)(f * (double)tokens * (double)top_k / (double)experts / EK_TUNE_CAPACITY);
}

/* --- a search --------------------------------------------------------------------------------- */

static int stage_count(const ek_tune *t)
{
    return t->n > EK_TUNE_SMALL ? STAGES_LARGE : STAGES;
}

/* Rounds of a bucket's stage. */
static int round_count(const ek_tune *t, const ek_tune_bucket *b)
{
    return t->n > EK_TUNE_SMALL ? rounds_large[b->stage] : rounds_small[b->stage];
}

static void begin_search(ek_tune *t, ek_tune_bucket *b)
{
    b->search = ++t->searches;
    b->began = t->step;
    b->last = b->best;
    b->best = t->n > 1 ? -1 : 0;
    b->stage = b->tried = b->timed = 0;
    b->n_watched = 0;
    b->n_remaining = t->n;
    for (int i = 0; i < t->n; i++) {
        b->remaining[i] = i;
        b->n[i] = 0;
    }
}

void ek_tune_init(ek_tune *t, const ek_moe_traffic *settings, int n)
{
    memset(t, 0, sizeof(*t));
    t->n = n < EK_TUNE_SETTINGS ? n : EK_TUNE_SETTINGS;
    memcpy(t->settings, settings, (size_t)t->n * sizeof(*settings));
}

static ek_tune_bucket *bucket_of(ek_tune *t, int64_t key)
{
    ek_tune_bucket *b = t->bucket;

    for (int i = 0; i < t->n_buckets; i++)
        if (t->bucket[i].key == key)
            return &t->bucket[i];
    if (t->n_buckets < EK_TUNE_BUCKETS)
        b = &t->bucket[t->n_buckets++];
    else
        for (int i = 1; i < EK_TUNE_BUCKETS; i++)
            if (t->bucket[i].last_used < b->last_used)
                b = &t->bucket[i];
    b->key = key;
    b->best = -1;
    b->retune_steps = EK_TUNE_RETUNE_STEPS;
    begin_search(t, b);
    return b;
}

static double median_time(const double *s, int n)
{
    double sorted[EK_TUNE_SAMPLES] = {0};

    for (int i = 0; i < n; i++) {
        int at = i;

        for (; at > 0 && sorted[at - 1] > s[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = s[i];
    }
    return sorted[(n - 1) / 2];
}

static double median_of(const ek_tune_bucket *b, int setting)
{
    return median_time(b->s[setting], b->n[setting]);
}

/* Score of a setting: the median over rounds of its time over the mean of remaining settings. */
static double score_of(const ek_tune_bucket *b, int setting)
{
    double ratio[EK_TUNE_SAMPLES];

    for (int k = 0; k < b->n[setting]; k++) {
        double sum = 0;

        for (int i = 0; i < b->n_remaining; i++)
            sum += b->s[b->remaining[i]][k];
        ratio[k] = b->s[setting][k] * b->n_remaining / sum;
    }
    return median_time(ratio, b->n[setting]);
}

/* Sorts remaining settings by score; stable, so that simpler settings come first at equal score. */
static void sort_remaining(ek_tune_bucket *b, double *score)
{
    for (int i = 0; i < b->n_remaining; i++)
        score[i] = score_of(b, b->remaining[i]);
    for (int i = 1; i < b->n_remaining; i++) {
        double of_moved = score[i];
        int moved = b->remaining[i], at = i;

        for (; at > 0 && score[at - 1] > of_moved; at--) {
            b->remaining[at] = b->remaining[at - 1];
            score[at] = score[at - 1];
        }
        b->remaining[at] = moved;
        score[at] = of_moved;
    }
}

/* Time of setting a over that of `other`: the median over the rounds that included both. */
static double ratio_of(const ek_tune_bucket *b, int a, int other)
{
    double ratio[EK_TUNE_SAMPLES];
    int n = b->n[a] < b->n[other] ? b->n[a] : b->n[other];

    for (int k = 0; k < n; k++)
        ratio[k] = b->s[a][k] / b->s[other][k];
    return median_time(ratio, n);
}

static void end_search(ek_tune *t, ek_tune_bucket *b, ek_tune_result *found)
{
    b->best = b->remaining[0];
    b->best_s = median_of(b, b->best);
    *found = (ek_tune_result){.best = t->settings[b->best],
                              .first = t->settings[0],
                              .best_s = b->best_s,
                              .gain = ratio_of(b, 0, b->best),
                              .bucket = b->key,
                              .steps = t->step - b->began};
    if (b->best != b->last)
        b->retune_steps = EK_TUNE_RETUNE_STEPS;
    else if (b->retune_steps < EK_TUNE_RETUNE_MAX)
        b->retune_steps *= 2;
    b->began = t->step;
}

/* Drops settings that cannot be the best.  Returns 1 when one remains. */
static int end_stage(ek_tune *t, ek_tune_bucket *b, ek_tune_result *found)
{
    if (b->stage > 0) {
        double score[EK_TUNE_SETTINGS];
        int stay = b->stage == 1 ? b->n_remaining : (b->n_remaining + 1) / 2, n = 1;

        sort_remaining(b, score);
        while (n < stay && score[n] <= drop_ratio * score[0])
            n++;
        b->n_remaining = n;
    }
    b->stage++;
    b->tried = b->timed = 0;
    if (b->n_remaining > 1 && b->stage < stage_count(t))
        return 0;
    end_search(t, b, found);
    return 1;
}

/* --- steps ------------------------------------------------------------------------------------ */

ek_tune_choice ek_tune_next(ek_tune *t, int64_t bucket)
{
    ek_tune_bucket *b = bucket_of(t, bucket);
    int all, round, at, setting;

    b->last_used = t->step++;
    if (b->best >= 0)
        return (ek_tune_choice){t->settings[b->best], b->best, b->stage, b->search};
    all = b->n_remaining * round_count(t, b);
    if (b->tried == all) /* times of the last steps have not arrived yet */
        return (ek_tune_choice){t->settings[b->remaining[0]], b->remaining[0], -1, b->search};
    round = b->tried / b->n_remaining;
    at = b->tried++ % b->n_remaining;
    setting = b->remaining[round % 2 == 0 ? at : b->n_remaining - 1 - at];
    return (ek_tune_choice){t->settings[setting], setting, b->stage, b->search};
}

/* Adds a time of a bucket whose search has ended; starts a new search if steps have changed. */
static void watch_bucket(ek_tune *t, ek_tune_bucket *b, double seconds)
{
    double now;

    b->watched[b->n_watched++] = seconds;
    if (b->n_watched < EK_TUNE_WATCH)
        return;
    b->n_watched = 0;
    now = median_time(b->watched, EK_TUNE_WATCH);
    if (b->best_s == 0)
        b->best_s = now;
    if (t->n > 1 && t->step - b->began >= b->retune_steps &&
        (now > retune_ratio * b->best_s || retune_ratio * now < b->best_s))
        begin_search(t, b);
}

int ek_tune_add(ek_tune *t, const ek_tune_choice *c, double seconds, ek_tune_result *found)
{
    ek_tune_bucket *b = t->bucket, *end = t->bucket + t->n_buckets;

    while (b < end && b->search != c->search)
        b++;
    if (b == end || c->stage != b->stage)
        return 0; /* of an earlier search, or not counted */
    if (b->best >= 0) {
        watch_bucket(t, b, seconds);
        return 0;
    }
    if (b->stage > 0 && b->n[c->setting] < EK_TUNE_SAMPLES)
        b->s[c->setting][b->n[c->setting]++] =
            seconds < max_time_s ? fmax(seconds, min_time_s) : max_time_s;
    if (++b->timed < b->n_remaining * round_count(t, b))
        return 0;
    return end_stage(t, b, found);
}

/* --- warm state ------------------------------------------------------------------------------- */

/* The head of a packed tuner; its buckets follow. */
typedef struct {
    uint64_t bucket_bytes;
    int n, n_buckets;
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int64_t step, searches;
} warm_state_head;

size_t ek_tune_pack(const ek_tune *t, void *warm_state, size_t cap)
{
    warm_state_head h = {sizeof(ek_tune_bucket), t->n, 0, {{0}}, t->step, t->searches};
    char *to = (char *)warm_state + sizeof(h);
    int64_t before = INT64_MAX;

    if (cap < sizeof(h))
        return 0;
    while (h.n_buckets < t->n_buckets &&
           sizeof(h) + (size_t)(h.n_buckets + 1) * sizeof(*t->bucket) <= cap) {
        const ek_tune_bucket *next = NULL; /* no two were used in the same step */

        for (int i = 0; i < t->n_buckets; i++)
            if (t->bucket[i].last_used < before &&
                (next == NULL || t->bucket[i].last_used > next->last_used))
                next = &t->bucket[i];
        memcpy(to + (size_t)h.n_buckets++ * sizeof(*next), next, sizeof(*next));
        before = next->last_used;
    }
    memcpy(h.settings, t->settings, (size_t)t->n * sizeof(*t->settings));
    memcpy(warm_state, &h, sizeof(h));
    return sizeof(h) + (size_t)h.n_buckets * sizeof(*t->bucket);
}

static int has_same_settings(const ek_tune *t, const warm_state_head *h, size_t bytes)
{
    if (h->bucket_bytes != sizeof(ek_tune_bucket) || h->n != t->n || h->n_buckets < 0 ||
        h->n_buckets > EK_TUNE_BUCKETS ||
        bytes != sizeof(*h) + (size_t)h->n_buckets * sizeof(ek_tune_bucket))
        return 0;
    return memcmp(h->settings, t->settings, (size_t)t->n * sizeof(*t->settings)) == 0;
}

/* Whether all indices in a bucket are in range. */
static int is_valid_bucket(const ek_tune *t, const ek_tune_bucket *b)
{
    int sound = b->best >= -1 && b->best < t->n && b->last >= -1 && b->last < t->n &&
                b->stage >= 0 && b->stage <= stage_count(t) &&
                (b->best >= 0 || b->stage < stage_count(t)) && b->n_remaining > 0 &&
                b->n_remaining <= t->n && b->timed >= 0 && b->n_watched >= 0 &&
                b->n_watched < EK_TUNE_WATCH &&
                (b->best >= 0 || b->timed < b->n_remaining * round_count(t, b));

    for (int i = 0; i < t->n && sound; i++)
        sound = b->n[i] >= 0 && b->n[i] <= EK_TUNE_SAMPLES &&
                (i >= b->n_remaining || (b->remaining[i] >= 0 && b->remaining[i] < t->n));
    return sound;
}

int ek_tune_unpack(ek_tune *t, const void *warm_state, size_t bytes, int ranks_changed)
{
    const char *from = (const char *)warm_state + sizeof(warm_state_head);
    warm_state_head h;

    if (bytes < sizeof(h))
        return 0;
    memcpy(&h, warm_state, sizeof(h));
    if (!has_same_settings(t, &h, bytes))
        return 0;
    t->n_buckets = 0;
    t->step = h.step;
    t->searches = h.searches;
    for (int i = 0; i < h.n_buckets; i++) {
        ek_tune_bucket *b = &t->bucket[t->n_buckets];

        memcpy(b, from + (size_t)i * sizeof(*b), sizeof(*b));
        if (!is_valid_bucket(t, b))
            continue;
        t->n_buckets++;
        b->tried = b->timed; /* times of the last steps were lost */
        b->n_watched = 0;
        if (ranks_changed)
            b->best_s = 0;
    }
    return 1;
}
