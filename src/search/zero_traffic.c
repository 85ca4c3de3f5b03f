/* Counts what ZeRO sends by the order of a stage's work. */
#include "search/zero_traffic.h"

#include "schedule/pipeline.h"
#include "train/simulate.h"

#include <math.h>
#include <stdlib.h>

/* --- a layer ---------------------------------------------------------------------------------- */

typedef struct {
    const ek_cluster *cluster;
    const ek_sim_class *stage;
    int32_t layer; /* -1: none yet */
    ek_layer_traffic now, least;
} layer_sums;

static void add_op(const layer_sums *s, const ek_op *op, double seconds[2])
{
    ek_sim_price price;

    ek_simulate_price(s->cluster, s->stage, op, &price);
    seconds[price.outside] += price.wire;
}

static void end_layer(layer_sums *s)
{
    for (int i = 0; i < 2 && s->layer >= 0; i++) {
        s->least.gather_s[i] = fmin(s->least.gather_s[i], s->now.gather_s[i]);
        s->least.sum_s[i] = fmin(s->least.sum_s[i], s->now.sum_s[i]);
    }
    s->now = (ek_layer_traffic){{0}, {0}};
}

static void add_bucket(void *context, int32_t layer, const ek_op *gather, const ek_op *sum)
{
    layer_sums *s = context;

    if (layer != s->layer)
        end_layer(s);
    s->layer = layer;
    add_op(s, gather, s->now.gather_s);
    add_op(s, sum, s->now.sum_s);
}

ek_status ek_layer_traffic_of(const ek_imagined_rank *x, const ek_cluster *c, int32_t stage,
                              ek_layer_traffic *out)
{
    int32_t *ranks = calloc((size_t)stage, sizeof(*ranks));
    ek_sim_class of = {.n_ranks = stage, .ranks = ranks};
    layer_sums s = {.cluster = c,
                    .stage = &of,
                    .layer = -1,
                    .least = {{INFINITY, INFINITY}, {INFINITY, INFINITY}}};

    *out = (ek_layer_traffic){{0}, {0}};
    EK_REQUIRE(ranks != NULL, EK_ENOMEM, "no memory for %d ranks", (int)stage);
    for (int32_t i = 0; i < stage; i++)
        ranks[i] = i;
    ek_imagined_rank_each_bucket(x, add_bucket, &s);
    end_layer(&s);
    if (s.layer >= 0)
        *out = s.least;
    free(ranks);
    return EK_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Layers of virtual stage `chunk` of the first stage. */
static int64_t vstage_layers(const ek_layer_uses *u, int64_t chunk)
{
    return ek_range_length(u->layers, u->pp * u->chunks, (int)chunk * u->pp);
}

static int64_t stage_layers(const ek_layer_uses *u)
{
    int64_t n = 0;

    for (int64_t c = 0; c < u->chunks; c++)
        n += vstage_layers(u, c);
    return n;
}

/* The buffers for every second layer: which of the rank's layers each has. */
typedef struct {
    int64_t layer[2];
    int64_t gathers;
} weight_buffers;

static void use_layer(weight_buffers *b, int64_t layer)
{
    b->gathers += b->layer[layer % 2] != layer;
    b->layer[layer % 2] = layer;
}

static void use_vstage(weight_buffers *b, const ek_layer_uses *u, const ek_pipe_item *item)
{
    int64_t first = 0, n = vstage_layers(u, item->model_chunk);

    for (int64_t c = 0; c < item->model_chunk; c++)
        first += vstage_layers(u, c);
    for (int64_t i = 0; i < n; i++)
        use_layer(b, first + (item->backward ? n - 1 - i : i));
}

ek_status ek_layer_gathers(const ek_layer_uses *u, int64_t *gathers)
{
    int64_t all = 2 * u->micros * u->chunks;
    ek_pipe_item *items = malloc((size_t)(all + 1) * sizeof(*items));
    weight_buffers b = {.layer = {-1, -1}};

    *gathers = 0;
    EK_REQUIRE(items != NULL, EK_ENOMEM, "no memory for %lld micro-batches", (long long)u->micros);
    all = ek_pipe_order(u->pp, u->chunks, u->micros, 0, 1, items);
    for (int64_t i = 0; i < all; i++)
        use_vstage(&b, u, &items[i]);
    *gathers = b.gathers;
    free(items);
    return EK_OK;
}

ek_status ek_zero_traffic_bound(const ek_layer_traffic *of, const ek_layer_uses *u, int zero,
                                double *seconds)
{
    enum { LEFT_OUT = 2 };
    double sums = fmax((double)(u->micros * stage_layers(u)) - LEFT_OUT, 0);
    int64_t gathers = 0;

    if (zero == 3)
        EK_TRY(ek_layer_gathers(u, &gathers));
    gathers = gathers > LEFT_OUT ? gathers - LEFT_OUT : 0;
    *seconds = 0;
    for (int i = 0; i < 2; i++) {
        *seconds = fmax(*seconds, sums * of->sum_s[i]);
        *seconds = fmax(*seconds, (double)gathers * of->gather_s[i]);
    }
    return EK_OK;
}
