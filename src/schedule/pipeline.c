/* Orders of pipeline stages: a sequence of forwards and one of backwards, the same on every stage,
 * merged according to the stage's number of warm-up forwards. */
#include "schedule/pipeline.h"

typedef struct {
    int64_t stages, model_chunks, micros;
} pipe;

/* A position in the sequence of forwards or backwards: micro-batch `at` of a group, in a chunk. */
typedef struct {
    int64_t group, first, model_chunk, at; /* first: the group's first micro-batch */
} position;

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t group_count(const pipe *p)
{
    return p->micros < p->stages ? 1 : p->micros / p->stages;
}

static int64_t group_size(const pipe *p, int64_t group)
{
    return p->micros / group_count(p) + (group < p->micros % group_count(p));
}

/* Returns the item at a position, and advances the position. */
static ek_pipe_item next_item(const pipe *p, position *x, int backward)
{
    int64_t model_chunk = backward ? p->model_chunks - 1 - x->model_chunk : x->model_chunk;
    ek_pipe_item item = {(int32_t)(x->first + x->at), (int32_t)model_chunk, backward};

    if (++x->at < group_size(p, x->group))
        return item;
    x->at = 0;
    if (++x->model_chunk < p->model_chunks)
        return item;
    x->model_chunk = 0;
    x->first += group_size(p, x->group++);
    return item;
}

/* Number of warm-up forwards: enough to keep later stages busy until a gradient comes back and,
 * with several chunks, for a whole group to reach the last chunk. */
static int64_t warm_up_forwards(const pipe *p, int64_t stage)
{
    int64_t behind = p->stages - stage - 1;

    return p->model_chunks == 1 ? behind : 2 * behind + (p->model_chunks - 1) * group_size(p, 0);
}

int64_t ek_pipe_order(int stages, int model_chunks, int64_t micros, int stage, int training,
                      ek_pipe_item *items)
{
    pipe p = {stages, model_chunks, micros};
    int64_t all = micros * model_chunks, n = 0,
            forwards = training ? min_i64(warm_up_forwards(&p, stage), all) : all;
    position f = {0}, b = {0};

    while (n < forwards)
        items[n++] = next_item(&p, &f, 0);
    for (int64_t i = 0; training && i < all; i++) {
        if (forwards + i < all)
            items[n++] = next_item(&p, &f, 0);
        items[n++] = next_item(&p, &b, 1);
    }
    return n;
}

int64_t ek_pipe_slots(const ek_pipe_item *items, int64_t n, int model_chunk)
{
    int64_t now = 0, most = 0;

    for (int64_t i = 0; i < n; i++) {
        if (items[i].model_chunk != model_chunk)
            continue;
        now += items[i].backward ? -1 : 1;
        most = now > most ? now : most;
    }
    return most;
}
