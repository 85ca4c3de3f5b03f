/* One MoE layer in a program that has the rest of the model: its experts are spread over the
 * processes that mpiexec starts, and it learns y = x, by plain gradient descent.
 *
 *   cc examples/moe_layer.c -o moe_layer $(pkg-config --cflags --libs evenkeel)
 *   ./moe_layer
 *   mpiexec -n 2 ./moe_layer */
#include <evenkeel/job.h>
#include <evenkeel/moe_layer.h>
#include <stdio.h>

enum { HIDDEN = 32, FF = 64, EXPERTS = 4, TOKENS = 256, STEPS = 200 };

static void descend(ek_moe_layer_weight w, float rate)
{
    float *value = w.value, *gradient = w.gradient;

    for (int64_t i = 0; i < w.rows * w.cols; i++)
        value[i] -= rate * gradient[i];
}

/* Updates the router and the experts of this rank, and makes both ready for the next forward. */
static ek_status update(ek_moe_layer *layer, float rate)
{
    static const char *const names[] = {"up", "down"};
    ek_moe_layer_weight w;
    ek_status st = ek_moe_layer_sum_gradients(layer); /* of the router, over ranks */

    if (st == EK_OK)
        st = ek_moe_layer_param(layer, "router", 0, &w);
    if (st == EK_OK)
        descend(w, rate);
    for (int64_t e = 0; st == EK_OK && e < EXPERTS; e++)
        for (int i = 0; st == EK_OK && i < 2; i++) {
            st = ek_moe_layer_param(layer, names[i], e, &w);
            if (st == EK_OK)
                descend(w, rate);
            else if (st == EK_ENOENT)
                st = EK_OK; /* another rank holds it */
        }
    if (st == EK_OK)
        st = ek_moe_layer_pack(layer);
    return st == EK_OK ? ek_moe_layer_zero_gradients(layer) : st;
}

/* Half the mean square of y - x, and its gradient. */
static double loss_of(const float *x, const float *y, float *dy)
{
    double sum = 0;

    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        dy[i] = (y[i] - x[i]) / TOKENS;
        sum += 0.5 * (y[i] - x[i]) * (y[i] - x[i]) / TOKENS;
    }
    return sum;
}

static ek_status learn(ek_moe_layer *layer, int rank)
{
    static float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN], dy[TOKENS * HIDDEN];
    ek_moe_layer_stats stats;
    ek_status st = EK_OK;
    uint32_t seed = 1 + (uint32_t)rank;
    double loss = 0;

    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    for (int step = 0; st == EK_OK && step <= STEPS; step++) {
        st = ek_moe_layer_forward(layer, 0, x, TOKENS, 1, y);
        if (st != EK_OK)
            break;
        loss = loss_of(x, y, dy);
        st = ek_moe_layer_backward(layer, 0, dy, NULL);
        if (st == EK_OK)
            st = ek_moe_layer_get_stats(layer, &stats);
        if (st == EK_OK && rank == 0 && step % 50 == 0)
            printf("step %3d  loss %.4f  busiest rank %.2f of the mean, %.2f without replicas\n",
                   step, loss, stats.busiest, stats.busiest_before);
        if (st == EK_OK)
            st = update(layer, 0.2f);
    }
    return st;
}

int main(void)
{
    ek_moe_layer_config cfg = EK_MOE_LAYER_CONFIG_INIT;
    ek_moe_layer *layer = NULL;
    ek_comm *world = NULL;
    ek_status st = ek_job_join(&world);
    int rank = ek_job_rank(world);

    cfg.hidden = HIDDEN, cfg.ff = FF, cfg.experts = EXPERTS, cfg.top_k = 2, cfg.tokens = TOKENS;
    cfg.world = world, cfg.balance = "exact", cfg.spare_slots = 1, cfg.init_std = 0.2;
    if (st == EK_OK)
        st = ek_moe_layer_create(&cfg, &layer);
    if (st == EK_OK)
        st = learn(layer, rank);
    if (st < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, ek_err_message());
        ek_job_abort(world, 1);
        return 1;
    }
    ek_moe_layer_destroy(&layer);
    ek_job_leave(&world);
    return 0;
}
