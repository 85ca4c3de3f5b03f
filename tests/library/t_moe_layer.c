/* A layer of evenkeel/moe_layer.h, through the public headers alone: output and gradients against
 * plain loops in one process; under mpiexec outputs and gradients of all ranks against one process,
 * also with replicas. */
#include "library/moe_layer_fixture.h"

#include <evenkeel/planner.h>

/* --- one process, against plain loops --------------------------------------------------------- */

/* The layer's weights, and a loss: the sum of y dy, plus balance and z-loss. */
typedef struct {
    const ek_moe_layer_config *c;
    int sigmoid;
    int64_t n;
    double x[TOKENS_MAX * HIDDEN], dy[TOKENS_MAX * HIDDEN], y[TOKENS_MAX * HIDDEN];
    double *router, *bias, *up[EXPERTS], *down[EXPERTS], *shared_up, *shared_down, *shared_gate;
    double balance, z;
} plain;

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* y += weight down (silu(gate x) * up x). */
static void plain_expert(const double *up, const double *down, int f, const double *x,
                         double weight, double *y)
{
    double h[FF + SHARED];

    for (int i = 0; i < f; i++) {
        double g = dot(up + i * HIDDEN, x, HIDDEN);

        h[i] = g * sigmoid(g) * dot(up + (f + i) * HIDDEN, x, HIDDEN);
    }
    for (int j = 0; j < HIDDEN; j++)
        y[j] += weight * dot(down + j * f, h, f);
}

/* Scores of a token's experts; returns the log-sum-exp of the logits. */
static double plain_scores(const plain *p, const double *x, double *score)
{
    double sum = 0;

    for (int e = 0; e < EXPERTS; e++) {
        double logit = dot(p->router + e * HIDDEN, x, HIDDEN);

        score[e] = p->sigmoid ? sigmoid(logit) : exp(logit);
        sum += exp(logit);
    }
    for (int e = 0; e < EXPERTS && !p->sigmoid; e++)
        score[e] /= sum;
    return log(sum);
}

/* The experts with the largest score, with the bias. */
static void plain_top(const plain *p, const double *score, int *top)
{
    for (int j = 0; j < TOP_K; j++) {
        top[j] = -1;
        for (int e = 0; e < EXPERTS; e++) {
            double v = score[e] + (p->sigmoid ? p->bias[e] : 0);

            if (j > 0 && top[0] == e)
                continue;
            if (top[j] < 0 || v > score[top[j]] + (p->sigmoid ? p->bias[top[j]] : 0))
                top[j] = e;
        }
    }
}

static double plain_loss(plain *p)
{
    double probability[EXPERTS] = {0}, rows[EXPERTS] = {0}, loss = 0;

    p->balance = p->z = 0;
    for (int64_t t = 0; t < p->n; t++) {
        const double *x = p->x + t * HIDDEN;
        double score[EXPERTS], *y = p->y + t * HIDDEN, sum = 0;
        double lse = plain_scores(p, x, score), shared = sigmoid(dot(p->shared_gate, x, HIDDEN));
        int top[TOP_K];

        plain_top(p, score, top);
        memset(y, 0, HIDDEN * sizeof(*y));
        for (int j = 0; j < TOP_K; j++)
            sum += score[top[j]];
        for (int j = 0; j < TOP_K; j++) {
            rows[top[j]]++;
            plain_expert(p->up[top[j]], p->down[top[j]], FF, x,
                         score[top[j]] / (p->c->normalise ? sum : 1), y);
        }
        plain_expert(p->shared_up, p->shared_down, SHARED, x, shared, y);
        for (int e = 0; e < EXPERTS; e++)
            probability[e] += score[e];
        if (!p->sigmoid)
            p->z += lse * lse / (double)p->n;
        loss += dot(y, p->dy + t * HIDDEN, HIDDEN);
    }
    for (int e = 0; e < EXPERTS; e++)
        p->balance += EXPERTS * rows[e] / (double)(TOP_K * p->n) * probability[e] / (double)p->n;
    return loss + p->c->aux_coef * p->balance + p->c->z_coef * p->z;
}

/* The derivative of the loss by one number, by differences of fourth order. */
static double slope(plain *p, double *v)
{
    const double was = *v, h = 1e-3;
    double at[4];

    for (int i = 0; i < 4; i++) {
        *v = was + h * (i < 2 ? i - 2 : i - 1);
        at[i] = plain_loss(p);
    }
    *v = was;
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h);
}

static void check_slopes(plain *p, const char *what, double *value, const double *gradient,
                         int64_t n)
{
    double worst = 0, largest = 0;

    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs(slope(p, &value[i]) - gradient[i]));
        largest = fmax(largest, fabs(gradient[i]));
    }
    if (!(worst < 1e-9) || !(largest > 1e-3))
        EK_T_FAIL("the gradient of %s is %.3g away from differences; its largest number is %.3g",
                  what, worst, largest);
}

static void check_weight(plain *p, ek_moe_layer *l, const char *name, int64_t expert)
{
    ek_moe_layer_weight w = param(l, name, expert);

    check_slopes(p, name, w.value, w.gradient, w.rows * w.cols);
}

static void set_plain(plain *p, ek_moe_layer *l, const ek_moe_layer_config *c)
{
    p->c = c;
    p->sigmoid = strcmp(c->gate, "sigmoid") == 0;
    p->router = param(l, "router", 0).value;
    p->bias = p->sigmoid ? param(l, "bias", 0).value : NULL;
    for (int e = 0; e < EXPERTS; e++) {
        p->up[e] = param(l, "up", e).value;
        p->down[e] = param(l, "down", e).value;
    }
    p->shared_up = param(l, "shared_up", 0).value;
    p->shared_down = param(l, "shared_down", 0).value;
    p->shared_gate = param(l, "shared_gate", 0).value;
}

static void check_against_loops(const ek_moe_layer_config *c)
{
    static plain p;
    double y[TOKENS_MAX * HIDDEN], dx[TOKENS_MAX * HIDDEN];
    ek_moe_layer *l = create(c);
    ek_moe_layer_stats stats;

    set_plain(&p, l, c);
    p.n = 9;
    fill(p.x, 0, p.n * HIDDEN, 1);
    fill(p.dy, 0, p.n * HIDDEN, 2);
    for (int e = 0; e < EXPERTS && p.sigmoid; e++)
        p.bias[e] = 0.2 * number(e);
    MUST(ek_moe_layer_forward(l, 0, p.dy, p.n, 1, y)); /* of which nothing is to be left */
    MUST(ek_moe_layer_backward(l, 0, p.x, dx));
    MUST(ek_moe_layer_zero_gradients(l));
    MUST(ek_moe_layer_forward(l, 0, p.x, p.n, 1, y));
    MUST(ek_moe_layer_backward(l, 0, p.dy, dx));
    plain_loss(&p);
    for (int64_t i = 0; i < p.n * HIDDEN; i++)
        CHECK(fabs(y[i] - p.y[i]) < 1e-12);
    MUST(ek_moe_layer_get_stats(l, &stats));
    CHECK(fabs(stats.balance_loss - p.balance) < 1e-12 && fabs(stats.z_loss - p.z) < 1e-12);
    CHECK_INT(stats.tokens, p.n);
    check_slopes(&p, "x", p.x, dx, p.n * HIDDEN);
    check_weight(&p, l, "router", 0);
    for (int e = 0; e < EXPERTS; e++)
        if (stats.load[e] > 0) {
            check_weight(&p, l, "up", e);
            check_weight(&p, l, "down", e);
        }
    check_weight(&p, l, "shared_up", 0);
    check_weight(&p, l, "shared_down", 0);
    check_weight(&p, l, "shared_gate", 0);
    ek_moe_layer_destroy(&l);
}

static void one_process_against_plain_loops(void)
{
    ek_moe_layer_config c = small_config();

    check_against_loops(&c);
    c.normalise = 0;
    c.gate = "sigmoid";
    c.aux_coef = c.z_coef = 0;
    check_against_loops(&c);
}

/* Rows over ceil(top_k factor n / experts) of an expert are dropped. */
static void capacity_drops_rows(void)
{
    ek_moe_layer_config c = small_config();
    double x[10 * HIDDEN], y[10 * HIDDEN];
    ek_moe_layer_stats stats;
    int64_t over = 0;
    ek_moe_layer *l;

    c.capacity_factor = 0.8;
    l = create(&c);
    fill(x, 0, 10 * HIDDEN, 1);
    MUST(ek_moe_layer_forward(l, 0, x, 10, 1, y));
    MUST(ek_moe_layer_get_stats(l, &stats));
    for (int e = 0; e < EXPERTS; e++)
        over += stats.load[e] > 4 ? stats.load[e] - 4 : 0;
    CHECK(over > 0);
    CHECK_INT(stats.dropped, over);
    ek_moe_layer_destroy(&l);
}

/* --- types ------------------------------------------------------------------------------------ */

/* Results of one forward and backward in a type, as double. */
typedef struct {
    double y[9 * HIDDEN], dx[9 * HIDDEN], router[EXPERTS * HIDDEN];
} typed_results;

static void to_double(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* Changes weights that have packed forms. */
static void double_down(ek_moe_layer *l, int fp64)
{
    for (int e = 0; e < EXPERTS; e++) {
        ek_moe_layer_weight w = param(l, "down", e);

        for (int64_t i = 0; i < w.rows * w.cols; i++)
            if (fp64)
                ((double *)w.value)[i] *= 2;
            else
                ((float *)w.value)[i] *= 2;
    }
    MUST(ek_moe_layer_pack(l));
}

static void run_typed(const char *dtype, typed_results *out)
{
    ek_moe_layer_config c = small_config();
    double x[9 * HIDDEN], dy[9 * HIDDEN];
    float xf[9 * HIDDEN], dyf[9 * HIDDEN], y[9 * HIDDEN];
    ek_moe_layer *l;

    c.dtype = dtype;
    l = create(&c);
    double_down(l, strcmp(dtype, "fp64") == 0);
    fill(x, 0, 9 * HIDDEN, 1);
    fill(dy, 0, 9 * HIDDEN, 2);
    for (int i = 0; i < 9 * HIDDEN; i++) {
        xf[i] = (float)x[i];
        dyf[i] = (float)dy[i];
    }
    if (strcmp(dtype, "fp64") == 0) {
        MUST(ek_moe_layer_forward(l, 0, x, 9, 1, out->y));
        MUST(ek_moe_layer_backward(l, 0, dy, out->dx));
        memcpy(out->router, param(l, "router", 0).gradient, sizeof(out->router));
    } else {
        MUST(ek_moe_layer_forward(l, 0, xf, 9, 1, y));
        to_double(out->y, y, 9 * HIDDEN);
        MUST(ek_moe_layer_backward(l, 0, dyf, xf));
        to_double(out->dx, xf, 9 * HIDDEN);
        to_double(out->router, param(l, "router", 0).gradient, EXPERTS * HIDDEN);
    }
    ek_moe_layer_destroy(&l);
}

static double distance(const double *a, const double *b, int64_t n)
{
    double worst = 0, largest = 0;

    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    return worst / largest;
}

static void types_agree(void)
{
    static const struct {
        const char *dtype;
        double tolerance;
    } types[] = {{"fp32", 1e-5}, {"bf16", 0.03}};
    typed_results exact, r;

    run_typed("fp64", &exact);
    for (int i = 0; i < 2; i++) {
        run_typed(types[i].dtype, &r);
        CHECK(distance(r.y, exact.y, 9 * HIDDEN) < types[i].tolerance);
        CHECK(distance(r.dx, exact.dx, 9 * HIDDEN) < types[i].tolerance);
        CHECK(distance(r.router, exact.router, EXPERTS * HIDDEN) < types[i].tolerance);
    }
}

/* --- several ranks, against one process ------------------------------------------------------- */

/* A layer that all tokens of all ranks go through, or those of this rank, twice. */
typedef struct {
    ek_moe_layer *l;
    int64_t n;
    double y[TOKENS_MAX * HIDDEN], dx[TOKENS_MAX * HIDDEN];
    ek_moe_layer_stats stats;
} two_steps;

/* Two forwards and backwards, whose gradients add up. */
static void take_two_steps(two_steps *s, int64_t first, int64_t n)
{
    double x[TOKENS_MAX * HIDDEN], dy[TOKENS_MAX * HIDDEN];

    s->n = n;
    prefer_expert_0(s->l);
    for (int step = 0; step < 2; step++) {
        fill_tokens(x, first, n, 3 + step);
        fill(dy, first * HIDDEN, n * HIDDEN, 5 + step);
        MUST(ek_moe_layer_forward(s->l, 0, x, n, 1, s->y));
        MUST(ek_moe_layer_get_stats(s->l, &s->stats));
        MUST(ek_moe_layer_backward(s->l, 0, dy, s->dx));
    }
    MUST(ek_moe_layer_sum_gradients(s->l));
}

static void check_gradient(const two_steps *many, const two_steps *one, const char *name, int64_t e)
{
    ek_moe_layer_weight a = param(many->l, name, e), b = param(one->l, name, e);

    CHECK(a.rows == b.rows && a.cols == b.cols);
    check_numbers(name, a.gradient, b.gradient, a.rows * a.cols);
}

static void compare(const two_steps *many, const two_steps *one)
{
    const char *const of_all[] = {"router", "shared_up", "shared_down", "shared_gate"};
    int64_t first = first_token(rank) * HIDDEN;

    check_numbers("y", many->y, one->y + first, many->n * HIDDEN);
    check_numbers("dx", many->dx, one->dx + first, many->n * HIDDEN);
    for (int i = 0; i < 4; i++)
        check_gradient(many, one, of_all[i], 0);
    for (int e = 0; e < EXPERTS; e++) {
        ek_moe_layer_weight w;

        CHECK_INT(many->stats.load[e], one->stats.load[e]);
        if (rank_of(e) == rank) {
            check_gradient(many, one, "up", e);
            check_gradient(many, one, "down", e);
        } else {
            CHECK_INT(ek_moe_layer_param(many->l, "up", e, &w), EK_ENOENT);
        }
    }
    CHECK_INT(many->stats.tokens, one->stats.tokens);
    CHECK(fabs(many->stats.balance_loss - one->stats.balance_loss) < 1e-12);
    CHECK(fabs(many->stats.z_loss - one->stats.z_loss) < 1e-12);
}

/* Creates both layers, runs them and compares them; the caller destroys that of all ranks. */
static void run_on_ranks(two_steps *many, const char *balance, int spare_slots)
{
    static two_steps one;
    ek_moe_layer_config c = small_config();

    one.l = create(&c);
    take_two_steps(&one, 0, first_token(ranks));
    c.world = world;
    c.balance = balance;
    c.spare_slots = spare_slots;
    c.compute_s_per_row = 1e-5;
    c.comm_s_per_row = 1e-6;
    c.replica_s = 1e-5;
    many->l = create(&c);
    take_two_steps(many, first_token(rank), tokens_of(rank));
    compare(many, &one);
    ek_moe_layer_destroy(&one.l);
}

static void ranks_compute_what_one_process_does(void)
{
    two_steps s;

    if (ranks == 1)
        SKIP("there is one rank");
    run_on_ranks(&s, "off", 0);
    CHECK_INT(s.stats.replicas, 0);
    CHECK(s.stats.busiest == s.stats.busiest_before && s.stats.busiest > 1.1);
    ek_moe_layer_destroy(&s.l);
}

static void replicas_relieve_the_busiest_rank(void)
{
    double x[TOKENS_MAX * HIDDEN], y[TOKENS_MAX * HIDDEN];
    ek_moe_layer_stats plain_stats;
    two_steps s;

    if (ranks == 1)
        SKIP("there is one rank");
    run_on_ranks(&s, "exact", 1);
    CHECK(s.stats.replicas > 0);
    CHECK(s.stats.busiest < s.stats.busiest_before && s.stats.busiest < 1.1);
    fill_tokens(x, first_token(rank), s.n, 4);
    MUST(ek_moe_layer_forward(s.l, 0, x, s.n, 0, y));
    check_numbers("y without training", y, s.y, s.n * HIDDEN);
    MUST(ek_moe_layer_get_stats(s.l, &plain_stats));
    CHECK_INT(plain_stats.replicas, 0);
    CHECK_INT(ek_moe_layer_backward(s.l, 0, x, NULL), rank == 0 ? EK_ESTATE : EK_EPEER);
    ek_moe_layer_destroy(&s.l);
}

static void policies_change_no_result(void)
{
    const char *const policies[] = {"shadow", "fastermoe", "prophet"};
    int64_t replicas = 0;
    two_steps s;

    if (ranks == 1)
        SKIP("there is one rank");
    for (int i = 0; i < 3; i++) {
        run_on_ranks(&s, policies[i], 1);
        CHECK(s.stats.planner_fault == NULL && s.stats.busiest <= s.stats.busiest_before);
        replicas += s.stats.replicas;
        ek_moe_layer_destroy(&s.l);
    }
    CHECK(replicas > 0);
}

static ek_status plan_never(void *context, void *memory, const ek_planner_input *in,
                            ek_planner_output *out)
{
    (void)context, (void)memory, (void)out;
    return EK_FAIL(EK_EUNSUPPORTED, "%d experts are too few", (int)in->setup->experts);
}

static void planners_that_fail_are_named(void)
{
    ek_planner_functions f = {.size = sizeof(f), .plan_transient = plan_never};
    two_steps s;

    if (ranks == 1)
        SKIP("there is one rank");
    MUST(ek_planner_register("never", &f));
    run_on_ranks(&s, "never", 1);
    CHECK_INT(s.stats.replicas, 0);
    CHECK(s.stats.planner_fault != NULL &&
          strcmp(s.stats.planner_fault, "planner never: 5 experts are too few") == 0);
    ek_moe_layer_destroy(&s.l);
}

static const ek_case cases[] = {EK_CASE(one_process_against_plain_loops),
                                EK_CASE(capacity_drops_rows),
                                EK_CASE(types_agree),
                                EK_CASE(ranks_compute_what_one_process_does),
                                EK_CASE(replicas_relieve_the_busiest_rank),
                                EK_CASE(policies_change_no_result),
                                EK_CASE(planners_that_fail_are_named)};

int main(int argc, char **argv)
{
    return run_cases(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
