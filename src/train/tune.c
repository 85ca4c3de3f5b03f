/* The search for the fastest setting, step by step. */
#include "train/tune.h"

#include <math.h>
#include <string.h>

/* Rounds of a stage.  The first warms up: a setting's first step may take memory.  The second
 * sorts out what is hopeless, and the others half of what is left. */
static const int rounds_of_few[] = {1, 2, 3, 6, 9, 16};
static const int rounds_of_many[] = {1, 1, 1, 3, 4, 6, 8};
enum {
    STAGES = sizeof(rounds_of_few) / sizeof(rounds_of_few[0]),
    STAGES_OF_MANY = sizeof(rounds_of_many) / sizeof(rounds_of_many[0])
};

/* What takes so many times the best is not tried again. */
static const double hopeless = 1.5;
/* A choice is made again when its steps take so many times what they did, or so many times less. */
static const double changed = 1.3;

/* Times are taken to be between these. */
static const double least = 1e-9, most = 1e9;

/* --- settings --------------------------------------------------------------------------------- */

/* Whether some ranks that exchange share a node, and others do not: runs of neighbours do. */
static int has_nodes(const ek_mesh *mesh)
{
    int run = mesh->ep * mesh->etp;

    for (int first = 0; first < mesh->size; first += run) {
        int same = 0, other = 0;

        for (int i = first; i < first + run; i++)
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

/* Degrees and all-to-alls with one way to gather; how many. */
static int add_ways(const ek_mesh *mesh, const ek_tune_given *given, int gather, int room,
                    ek_moe_traffic *out)
{
    static const int degrees[] = {1, 2, 4, 8};
    int run = mesh->ep * mesh->etp, n = 0;
    int worth[] = {1, run > 2, run > 2 && has_nodes(mesh)};

    for (int a = EK_A2A_LINEAR; a <= EK_A2A_2DH; a++)
        for (int d = 0; d < 4; d++)
            if (n < room && (given->a2a >= 0 ? a == given->a2a : worth[a]) &&
                (given->degree > 0 ? d == 0 : run > 1 || d == 0))
                out[n++] = (ek_moe_traffic){given->degree > 0 ? given->degree : degrees[d],
                                            (ek_a2a)a, gather};
    return n;
}

int ek_tune_settings(const ek_mesh *mesh, const ek_tune_given *given, ek_moe_traffic *out)
{
    ek_tune_given all = {given->degree > 0 ? given->degree : 1,
                         given->a2a >= 0 ? given->a2a : EK_A2A_LINEAR, EK_GATHER_ALL, 0};
    int room = EK_TUNE_SETTINGS - 1, n = 0;

    if (given->gather > 0)
        n = add_ways(mesh, given, given->gather, room, out);
    for (int i = 0; i < mesh->etp && given->gather == 0; i++) {
        int g = i == 1  ? mesh->etp
                : i > 1 ? i
                        : 1; /* the ends first, if there is no room for all */

        if (mesh->etp % g == 0)
            n += add_ways(mesh, given, g, room - n, out + n);
    }
    if (given->gather < 0 || (given->gather == 0 && given->gather_all))
        n += add_ways(mesh, &all, EK_GATHER_ALL, 1, out + n);
    return mesh->ep * mesh->etp > 1 ? n : 1;
}

int64_t ek_tune_bucket_of(int64_t tokens, int64_t top_k, int64_t experts, double capacity_factor)
{
    double f = capacity_factor != 0 ? fabs(capacity_factor) : 1;

    return (int64_t)(f * (double)tokens * (double)top_k / (double)experts / EK_TUNE_CAPACITY);
}

/* --- a search --------------------------------------------------------------------------------- */

static int stages(const ek_tune *t)
{
    return t->n > EK_TUNE_FEW ? STAGES_OF_MANY : STAGES;
}

/* Rounds of a bucket's stage. */
static int rounds(const ek_tune *t, const ek_tune_bucket *b)
{
    return t->n > EK_TUNE_FEW ? rounds_of_many[b->stage] : rounds_of_few[b->stage];
}

static void begin_search(ek_tune *t, ek_tune_bucket *b)
{
    b->search = ++t->searches;
    b->began = t->step;
    b->last = b->best;
    b->best = t->n > 1 ? -1 : 0;
    b->stage = b->tried = b->timed = 0;
    b->n_watched = 0;
    b->n_left = t->n;
    for (int i = 0; i < t->n; i++) {
        b->left[i] = i;
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
            if (t->bucket[i].used < b->used)
                b = &t->bucket[i];
    b->key = key;
    b->best = -1;
    b->patience = EK_TUNE_PATIENCE;
    begin_search(t, b);
    return b;
}

static double median(const double *s, int n)
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
    return median(b->s[setting], b->n[setting]);
}

/* What a setting takes: the median over rounds of its time over the mean of those that are left. */
static double score_of(const ek_tune_bucket *b, int setting)
{
    double ratio[EK_TUNE_SAMPLES];

    for (int k = 0; k < b->n[setting]; k++) {
        double sum = 0;

        for (int i = 0; i < b->n_left; i++)
            sum += b->s[b->left[i]][k];
        ratio[k] = b->s[setting][k] * b->n_left / sum;
    }
    return median(ratio, b->n[setting]);
}

/* Puts the better ones first; of equal ones the simpler stays ahead. */
static void sort_left(ek_tune_bucket *b, double *score)
{
    for (int i = 0; i < b->n_left; i++)
        score[i] = score_of(b, b->left[i]);
    for (int i = 1; i < b->n_left; i++) {
        double of_moved = score[i];
        int moved = b->left[i], at = i;

        for (; at > 0 && score[at - 1] > of_moved; at--) {
            b->left[at] = b->left[at - 1];
            score[at] = score[at - 1];
        }
        b->left[at] = moved;
        score[at] = of_moved;
    }
}

/* How many times longer a setting took than another, in the rounds that both were in. */
static double ratio_of(const ek_tune_bucket *b, int a, int other)
{
    double ratio[EK_TUNE_SAMPLES];
    int n = b->n[a] < b->n[other] ? b->n[a] : b->n[other];

    for (int k = 0; k < n; k++)
        ratio[k] = b->s[a][k] / b->s[other][k];
    return median(ratio, n);
}

static void converge(ek_tune *t, ek_tune_bucket *b, ek_tune_result *found)
{
    b->best = b->left[0];
    b->best_s = median_of(b, b->best);
    *found = (ek_tune_result){.best = t->settings[b->best],
                              .first = t->settings[0],
                              .best_s = b->best_s,
                              .gain = ratio_of(b, 0, b->best),
                              .bucket = b->key,
                              .steps = t->step - b->began};
    if (b->best != b->last)
        b->patience = EK_TUNE_PATIENCE;
    else if (b->patience < EK_TUNE_PATIENCE_MAX)
        b->patience *= 2;
    b->began = t->step;
}

/* Leaves those that may be the best.  1: that is one. */
static int end_stage(ek_tune *t, ek_tune_bucket *b, ek_tune_result *found)
{
    if (b->stage > 0) {
        double score[EK_TUNE_SETTINGS];
        int stay = b->stage == 1 ? b->n_left : (b->n_left + 1) / 2, n = 1;

        sort_left(b, score);
        while (n < stay && score[n] <= hopeless * score[0])
            n++;
        b->n_left = n;
    }
    b->stage++;
    b->tried = b->timed = 0;
    if (b->n_left > 1 && b->stage < stages(t))
        return 0;
    converge(t, b, found);
    return 1;
}

/* --- steps ------------------------------------------------------------------------------------ */

ek_tune_choice ek_tune_next(ek_tune *t, int64_t bucket)
{
    ek_tune_bucket *b = bucket_of(t, bucket);
    int all, round, at, place;

    b->used = t->step++;
    if (b->best >= 0)
        return (ek_tune_choice){t->settings[b->best], b->best, b->stage, b->search};
    all = b->n_left * rounds(t, b);
    if (b->tried == all) /* the last times are still to come */
        return (ek_tune_choice){t->settings[b->left[0]], b->left[0], -1, b->search};
    round = b->tried / b->n_left;
    at = b->tried++ % b->n_left;
    place = b->left[round % 2 == 0 ? at : b->n_left - 1 - at];
    return (ek_tune_choice){t->settings[place], place, b->stage, b->search};
}

/* Of a bucket that has settled. */
static void watch(ek_tune *t, ek_tune_bucket *b, double seconds)
{
    double now;

    b->watched[b->n_watched++] = seconds;
    if (b->n_watched < EK_TUNE_WATCH)
        return;
    b->n_watched = 0;
    now = median(b->watched, EK_TUNE_WATCH);
    if (b->best_s == 0)
        b->best_s = now;
    if (t->n > 1 && t->step - b->began >= b->patience &&
        (now > changed * b->best_s || changed * now < b->best_s))
        begin_search(t, b);
}

int ek_tune_add(ek_tune *t, const ek_tune_choice *c, double seconds, ek_tune_result *found)
{
    ek_tune_bucket *b = t->bucket, *end = t->bucket + t->n_buckets;

    while (b < end && b->search != c->search)
        b++;
    if (b == end || c->stage != b->stage)
        return 0; /* of a search that is over, or not counted */
    if (b->best >= 0) {
        watch(t, b, seconds);
        return 0;
    }
    if (b->stage > 0 && b->n[c->place] < EK_TUNE_SAMPLES)
        b->s[c->place][b->n[c->place]++] = seconds < most ? fmax(seconds, least) : most;
    if (++b->timed < b->n_left * rounds(t, b))
        return 0;
    return end_stage(t, b, found);
}

/* --- from process to process ------------------------------------------------------------------ */

/* Begins a note; the buckets follow. */
typedef struct {
    uint64_t bucket_bytes;
    int n, n_buckets;
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int64_t step, searches;
} note_head;

size_t ek_tune_pack(const ek_tune *t, void *warm_state, size_t room)
{
    note_head h = {sizeof(ek_tune_bucket), t->n, 0, {{0}}, t->step, t->searches};
    char *to = (char *)warm_state + sizeof(h);
    int64_t before = INT64_MAX;

    if (room < sizeof(h))
        return 0;
    while (h.n_buckets < t->n_buckets &&
           sizeof(h) + (size_t)(h.n_buckets + 1) * sizeof(*t->bucket) <= room) {
        const ek_tune_bucket *next = NULL; /* no two were used in the same step */

        for (int i = 0; i < t->n_buckets; i++)
            if (t->bucket[i].used < before && (next == NULL || t->bucket[i].used > next->used))
                next = &t->bucket[i];
        memcpy(to + (size_t)h.n_buckets++ * sizeof(*next), next, sizeof(*next));
        before = next->used;
    }
    memcpy(h.settings, t->settings, (size_t)t->n * sizeof(*t->settings));
    memcpy(warm_state, &h, sizeof(h));
    return sizeof(h) + (size_t)h.n_buckets * sizeof(*t->bucket);
}

static int is_of(const ek_tune *t, const note_head *h, size_t bytes)
{
    if (h->bucket_bytes != sizeof(ek_tune_bucket) || h->n != t->n || h->n_buckets < 0 ||
        h->n_buckets > EK_TUNE_BUCKETS ||
        bytes != sizeof(*h) + (size_t)h->n_buckets * sizeof(ek_tune_bucket))
        return 0;
    return memcmp(h->settings, t->settings, (size_t)t->n * sizeof(*t->settings)) == 0;
}

/* Whether nothing in a bucket points outside of it. */
static int is_sound(const ek_tune *t, const ek_tune_bucket *b)
{
    int sound = b->best >= -1 && b->best < t->n && b->last >= -1 && b->last < t->n &&
                b->stage >= 0 && b->stage <= stages(t) && (b->best >= 0 || b->stage < stages(t)) &&
                b->n_left > 0 && b->n_left <= t->n && b->timed >= 0 && b->n_watched >= 0 &&
                b->n_watched < EK_TUNE_WATCH &&
                (b->best >= 0 || b->timed < b->n_left * rounds(t, b));

    for (int i = 0; i < t->n && sound; i++)
        sound = b->n[i] >= 0 && b->n[i] <= EK_TUNE_SAMPLES &&
                (i >= b->n_left || (b->left[i] >= 0 && b->left[i] < t->n));
    return sound;
}

int ek_tune_unpack(ek_tune *t, const void *warm_state, size_t bytes, int others)
{
    const char *from = (const char *)warm_state + sizeof(note_head);
    note_head h;

    if (bytes < sizeof(h))
        return 0;
    memcpy(&h, warm_state, sizeof(h));
    if (!is_of(t, &h, bytes))
        return 0;
    t->n_buckets = 0;
    t->step = h.step;
    t->searches = h.searches;
    for (int i = 0; i < h.n_buckets; i++) {
        ek_tune_bucket *b = &t->bucket[t->n_buckets];

        memcpy(b, from + (size_t)i * sizeof(*b), sizeof(*b));
        if (!is_sound(t, b))
            continue;
        t->n_buckets++;
        b->tried = b->timed; /* the last times never came */
        b->n_watched = 0;
        if (others)
            b->best_s = 0;
    }
    return 1;
}
