/* A layer of evenkeel/moe_layer.h, through the public headers alone: output and gradients against
 * plain loops in one process; under mpiexec outputs and gradients of all ranks against one process,
 * also with replicas; and misuse. */
#include "ek_test.h"

#include <evenkeel/job.h>
#include <evenkeel/moe_layer.h>
#include <evenkeel/planner.h>
#include <pthread.h>

enum { HIDDEN = 6, FF = 5, EXPERTS = 5, TOP_K = 2, SHARED = 4, TOKENS_MAX = 64 };

static ek_comm *world; /* NULL: one process, rank 0 of 1 */
static int rank, ranks = 1;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != EK_OK) {                                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ek_err_text());                     \
            ek_job_abort(world, 1); /* the others wait for this one */                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define REFUSED(call, status, word)                                                                \
    do {                                                                                           \
        CHECK_INT((call), (status));                                                               \
        if (strstr(ek_err_message(), (word)) == NULL)                                              \
            EK_T_FAIL("%s says \"%s\", without \"%s\"", #call, ek_err_message(), (word));          \
    } while (0)

static ek_moe_layer_config small_config(void)
{
    ek_moe_layer_config c = EK_MOE_LAYER_CONFIG_INIT;

    c.hidden = HIDDEN;
    c.ff = FF;
    c.experts = EXPERTS;
    c.top_k = TOP_K;
    c.shared_ff = SHARED;
    c.shared_gated = 1;
    c.tokens = TOKENS_MAX;
    c.dtype = "fp64";
    c.threads = 1;
    c.aux_coef = 0.3;
    c.z_coef = 0.2;
    c.seed = 7;
    c.init_std = 0.6;
    return c;
}

static ek_moe_layer *create(const ek_moe_layer_config *c)
{
    ek_moe_layer *l;

    MUST(ek_moe_layer_create(c, &l));
    return l;
}

static ek_moe_layer_weight param(ek_moe_layer *l, const char *name, int64_t expert)
{
    ek_moe_layer_weight w;

    MUST(ek_moe_layer_param(l, name, expert, &w));
    return w;
}

/* A number that depends on i alone, from -1 to 1. */
static double number(int64_t i)
{
    return sin(12.9898 * (double)i + 1) * cos(0.37 * (double)(i % 1009));
}

static void fill(double *to, int64_t first, int64_t n, int64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = number(100003 * stream + first + i);
}

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

/* Tokens of a rank; the last of several has none. */
static int64_t tokens_of(int r)
{
    return r > 1 && r == ranks - 1 ? 0 : 9 + 2 * r;
}

static int64_t first_token(int r)
{
    return r == 0 ? 0 : first_token(r - 1) + tokens_of(r - 1);
}

/* Tokens that choose expert 0, once prefer_expert_0() has made its logits large. */
static void fill_tokens(double *x, int64_t first, int64_t n, int64_t stream)
{
    fill(x, first * HIDDEN, n * HIDDEN, stream);
    for (int64_t t = 0; t < n; t++)
        x[t * HIDDEN] = 1 + fabs(x[t * HIDDEN]);
}

static void prefer_expert_0(ek_moe_layer *l)
{
    ((double *)param(l, "router", 0).value)[0] = 6;
    MUST(ek_moe_layer_pack(l));
}

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

static void check_numbers(const char *what, const double *got, const double *want, int64_t n)
{
    double worst = 0;

    for (int64_t i = 0; i < n; i++)
        worst = isfinite(got[i]) ? fmax(worst, fabs(got[i] - want[i])) : (double)INFINITY;
    if (!(worst <= 1e-9))
        EK_T_FAIL("rank %d of %d: %s is %.3g away from one process", rank, ranks, what, worst);
}

static void check_gradient(const two_steps *many, const two_steps *one, const char *name, int64_t e)
{
    ek_moe_layer_weight a = param(many->l, name, e), b = param(one->l, name, e);

    CHECK(a.rows == b.rows && a.cols == b.cols);
    check_numbers(name, a.gradient, b.gradient, a.rows * a.cols);
}

/* The rank that has an expert, in block order. */
static int rank_of(int expert)
{
    int whole = EXPERTS / ranks, more = EXPERTS % ranks;

    return expert < more * (whole + 1) ? expert / (whole + 1) : (expert - more) / whole;
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
    fill(x, first_token(rank) * HIDDEN, s.n * HIDDEN, 4);
    for (int64_t t = 0; t < s.n; t++)
        x[t * HIDDEN] = 1 + fabs(x[t * HIDDEN]);
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

/* --- several forwards before their backwards -------------------------------------------------- */

enum { MICROS = 4, ACT_SLOTS = 3 };

/* The calls of a schedule: i is the forward of micro-batch i, BACK + i its backward, both in
 * activation slot i % ACT_SLOTS; EVALUATE is a forward without a backward, in a slot of its own. */
enum { BACK = 100, EVALUATE = -1, END = -2 };

typedef struct {
    ek_moe_layer *l;
    int64_t replicas;
    double y[MICROS][TOKENS_MAX * HIDDEN], dx[MICROS][TOKENS_MAX * HIDDEN];
} schedule_results;

static void run_schedule(schedule_results *s, const int *calls, int64_t first, int64_t n)
{
    double x[TOKENS_MAX * HIDDEN], y[TOKENS_MAX * HIDDEN];
    ek_moe_layer_stats stats;

    prefer_expert_0(s->l);
    for (; *calls != END; calls++) {
        int i = *calls % BACK, act_slot = i % ACT_SLOTS;

        if (*calls == EVALUATE) {
            fill_tokens(x, first, n, 30);
            MUST(ek_moe_layer_forward(s->l, ACT_SLOTS, x, n, 0, y));
        } else if (*calls < BACK) {
            fill_tokens(x, first, n, 10 + i);
            MUST(ek_moe_layer_forward(s->l, act_slot, x, n, 1, s->y[i]));
            MUST(ek_moe_layer_get_stats(s->l, &stats));
            s->replicas += stats.replicas;
        } else {
            fill(y, first * HIDDEN, n * HIDDEN, 20 + i);
            MUST(ek_moe_layer_backward(s->l, act_slot, y, s->dx[i]));
        }
    }
    MUST(ek_moe_layer_sum_gradients(s->l));
}

static void compare_gradients(ek_moe_layer *many, ek_moe_layer *one)
{
    static const char *const of_all[] = {"router", "shared_up"}, *const of_expert[] = {"up",
                                                                                       "down"};

    for (int i = 0; i < 2; i++) {
        ek_moe_layer_weight a = param(many, of_all[i], 0), b = param(one, of_all[i], 0);

        check_numbers(of_all[i], a.gradient, b.gradient, a.rows * a.cols);
        for (int e = 0; e < EXPERTS; e++) {
            if (rank_of(e) != rank)
                continue;
            a = param(many, of_expert[i], e);
            b = param(one, of_expert[i], e);
            check_numbers(of_expert[i], a.gradient, b.gradient, a.rows * a.cols);
        }
    }
}

/* All ranks in the order of `calls` against one process, with each backward after its forward.
 * Returns how many replicas there were. */
static int64_t compare_schedules(const int *calls, const char *balance)
{
    static const int in_turn[] = {0, BACK, 1, BACK + 1, 2, BACK + 2, 3, BACK + 3, END};
    static schedule_results one, many;
    ek_moe_layer_config c = small_config();
    int64_t first = first_token(rank) * HIDDEN, n = tokens_of(rank);

    c.act_slots = ACT_SLOTS;
    one.l = create(&c);
    run_schedule(&one, in_turn, 0, first_token(ranks));
    c.world = world;
    c.act_slots = ACT_SLOTS + 1;
    c.balance = balance;
    c.spare_slots = 1;
    c.compute_s_per_row = 1e-5;
    many.l = create(&c);
    many.replicas = 0;
    run_schedule(&many, calls, first_token(rank), n);
    for (int i = 0; i < MICROS; i++) {
        check_numbers("y", many.y[i], one.y[i] + first, n * HIDDEN);
        check_numbers("dx", many.dx[i], one.dx[i] + first, n * HIDDEN);
    }
    compare_gradients(many.l, one.l);
    ek_moe_layer_destroy(&many.l);
    ek_moe_layer_destroy(&one.l);
    return many.replicas;
}

static void backwards_come_in_any_order(void)
{
    static const int schedules[][11] = {
        {0, 1, 2, BACK, 3, BACK + 1, BACK + 2, BACK + 3, END},           /* 1F1B */
        {0, 1, 2, EVALUATE, BACK + 2, BACK + 1, BACK, 3, BACK + 3, END}, /* a sum of losses */
        {0, 1, BACK, 3, 2, BACK + 3, BACK + 2, EVALUATE, BACK + 1, END}};
    int64_t replicas = 0;

    for (int i = 0; i < 3; i++) {
        compare_schedules(schedules[i], "off");
        if (ranks > 1)
            replicas += compare_schedules(schedules[i], "exact");
    }
    CHECK(ranks == 1 || replicas > 0);
}

/* In bf16 a layer also keeps x as the floats that it was. */
static void backwards_come_in_any_order_in_bf16(void)
{
    ek_moe_layer_config c = small_config();
    float x[2][9 * HIDDEN], y[9 * HIDDEN], in_turn[EXPERTS * HIDDEN], *gradient;
    ek_moe_layer *l;

    c.dtype = "bf16";
    c.act_slots = 2;
    l = create(&c);
    gradient = param(l, "router", 0).gradient;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 9 * HIDDEN; j++)
            x[i][j] = (float)number(1000 * i + j);
    for (int i = 1; i >= 0; i--) {
        MUST(ek_moe_layer_forward(l, 0, x[i], 9, 1, y));
        MUST(ek_moe_layer_backward(l, 0, x[1 - i], NULL));
    }
    memcpy(in_turn, gradient, sizeof(in_turn));
    MUST(ek_moe_layer_zero_gradients(l));
    for (int i = 0; i < 2; i++)
        MUST(ek_moe_layer_forward(l, i, x[i], 9, 1, y));
    REFUSED(ek_moe_layer_pack(l), EK_ESTATE, "is due");
    for (int i = 1; i >= 0; i--)
        MUST(ek_moe_layer_backward(l, i, x[1 - i], NULL));
    CHECK(memcmp(in_turn, gradient, sizeof(in_turn)) == 0);
    ek_moe_layer_destroy(&l);
}

/* --- misuse ----------------------------------------------------------------------------------- */

static void calls_out_of_order(void)
{
    ek_moe_layer_config c = small_config();
    ek_moe_layer *l = create(&c);
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer_weight w;

    REFUSED(ek_moe_layer_backward(l, 0, x, y), EK_ESTATE, "without a forward");
    MUST(ek_moe_layer_forward(l, 0, x, 1, 1, y));
    REFUSED(ek_moe_layer_forward(l, 0, x, 1, 1, y), EK_ESTATE,
            "backward of the last forward in activation slot 0 is due");
    REFUSED(ek_moe_layer_pack(l), EK_ESTATE,
            "backward of the last forward in activation slot 0 is due");
    REFUSED(ek_moe_layer_backward(l, 0, NULL, y), EK_EINVAL, "dy must not be NULL");
    MUST(ek_moe_layer_backward(l, 0, x, NULL));
    REFUSED(ek_moe_layer_backward(l, 0, x, y), EK_ESTATE, "without a forward");
    REFUSED(ek_moe_layer_forward(l, 1, x, 1, 1, y), EK_EINVAL, "slot 1 of a layer with 1");
    REFUSED(ek_moe_layer_backward(l, -1, x, y), EK_EINVAL, "slot -1 of a layer with 1");
    REFUSED(ek_moe_layer_forward(l, 0, x, TOKENS_MAX + 1, 1, y), EK_EINVAL, "at most 64");
    REFUSED(ek_moe_layer_forward(l, 0, x, -1, 1, y), EK_EINVAL, "-1 tokens");
    REFUSED(ek_moe_layer_forward(l, 0, NULL, 1, 1, y), EK_EINVAL, "x must not be NULL");
    REFUSED(ek_moe_layer_param(l, "norm", 0, &w), EK_EINVAL, "no weight norm");
    REFUSED(ek_moe_layer_param(l, "bias", 0, &w), EK_EINVAL, "no weight bias");
    REFUSED(ek_moe_layer_param(l, "up", EXPERTS, &w), EK_EINVAL, "expert 5 of 5");
    MUST(ek_moe_layer_forward(l, 0, NULL, 0, 1, NULL));
    MUST(ek_moe_layer_backward(l, 0, NULL, NULL));
    ek_moe_layer_destroy(&l);
    CHECK(l == NULL);
}

static void settings_that_do_not_fit(void)
{
    const char *const persistent[] = {"auto", "place", "replicate", "eplb"};
    ek_moe_layer_config c = small_config();
    ek_moe_layer *l = NULL;

    for (int i = 0; i < 4; i++) {
        c.balance = persistent[i];
        REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "moves experts between steps");
        CHECK(l == NULL);
    }
    c.balance = "best";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "no balance policy best");
    c = small_config();
    c.gate = "top";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "no gate top");
    c.gate = "sigmoid";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "aux_coef 0.3");
    c = small_config();
    c.top_k = EXPERTS + 1;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "top_k 6 of 5 experts");
    c = small_config();
    c.dtype = "fp8";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "unknown dtype fp8");
    c = small_config();
    c.act_slots = 0;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "act_slots 0: from 1");
    c.act_slots = 1;
    c.z_coef = (double)NAN;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "not finite");
}

typedef struct {
    ek_moe_layer *l;
    ek_status st;
} created;

static void *create_in_thread(void *arg)
{
    ek_moe_layer_config c = small_config();
    created *out = arg;

    c.world = world;
    out->st = ek_moe_layer_create(&c, &out->l);
    return NULL;
}

/* Creates a layer in a thread whose stack is too small for it. */
static created create_on_small_stack(void)
{
    created out = {NULL, EK_OK};
    pthread_attr_t small;
    pthread_t thread;

    CHECK_INT(pthread_attr_init(&small), 0);
    CHECK_INT(pthread_attr_setstacksize(&small, 640 << 10), 0);
    CHECK_INT(pthread_create(&thread, &small, create_in_thread, &out), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&small);
    return out;
}

/* Create fails on rank 1 alone; the others are told why, and the world stays usable. */
static void one_rank_cannot_create(void)
{
    ek_moe_layer_config c = small_config();
    int me = rank == 1;
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.top_k = me ? EXPERTS + 1 : TOP_K;
    REFUSED(ek_moe_layer_create(&c, &l), me ? EK_EINVAL : EK_EPEER, "top_k 6 of 5 experts");
    c.top_k = TOP_K;
    c.watchdog = me ? -1 : 300;
    REFUSED(ek_moe_layer_create(&c, &l), me ? EK_EINVAL : EK_EPEER, "watchdog is negative");
    c.watchdog = 300;
    REFUSED(ek_moe_layer_create(&c, me ? NULL : &l), me ? EK_EINVAL : EK_EPEER,
            "out must not be NULL");
    if (me)
        CHECK_INT(create_on_small_stack().st, EK_ENOMEM);
    else
        REFUSED(ek_moe_layer_create(&c, &l), EK_EPEER, "the stack of this thread has");
    CHECK(l == NULL);
    l = create(&c);
    ek_moe_layer_destroy(&l);
}

/* Threads and watchdog are a rank's own. */
static void some_settings_may_differ(void)
{
    ek_moe_layer_config c = small_config();
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.threads = rank == 1;
    c.watchdog = 300 + rank;
    l = create(&c);
    MUST(ek_moe_layer_forward(l, 0, x, 1, 0, y));
    ek_moe_layer_destroy(&l);
}

/* What one rank gets wrong, all learn; a refused forward has no effect. */
static void one_rank_is_wrong(void)
{
    ek_moe_layer_config c = small_config();
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.act_slots = 2;
    c.seed += rank == ranks - 1;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "has another ek_moe_layer_config than rank 0");
    c.seed = 7;
    l = create(&c);
    REFUSED(ek_moe_layer_forward(l, 0, x, rank == 1 ? TOKENS_MAX + 1 : 1, 1, y),
            rank == 1 ? EK_EINVAL : EK_EPEER, "65 tokens: this layer was created for at most 64");
    REFUSED(ek_moe_layer_forward(l, 0, x, 1, rank == 1, y), EK_EINVAL, "training is 0 on rank 0");
    REFUSED(ek_moe_layer_forward(l, rank == 1, x, 1, 1, y), EK_EINVAL, "act_slot is 0 on rank 0");
    MUST(ek_moe_layer_forward(l, 0, x, 1, 1, y));
    MUST(ek_moe_layer_forward(l, 1, x, 1, 1, y));
    REFUSED(ek_moe_layer_backward(l, 0, rank == 1 ? NULL : x, y), rank == 1 ? EK_EINVAL : EK_EPEER,
            "dy must not be NULL");
    REFUSED(ek_moe_layer_backward(l, rank == 1, x, y), EK_EINVAL, "act_slot is 0 on rank 0");
    MUST(ek_moe_layer_backward(l, 0, x, y));
    REFUSED(rank == 1 ? ek_moe_layer_backward(l, 1, x, y) : ek_moe_layer_forward(l, 0, x, 1, 1, y),
            EK_EINVAL, "forward on rank 0 and backward on rank 1");
    MUST(ek_moe_layer_backward(l, 1, x, y));
    ek_moe_layer_destroy(&l);
}

static const ek_case cases[] = {EK_CASE(one_process_against_plain_loops),
                                EK_CASE(capacity_drops_rows),
                                EK_CASE(types_agree),
                                EK_CASE(calls_out_of_order),
                                EK_CASE(settings_that_do_not_fit),
                                EK_CASE(ranks_compute_what_one_process_does),
                                EK_CASE(replicas_relieve_the_busiest_rank),
                                EK_CASE(policies_change_no_result),
                                EK_CASE(planners_that_fail_are_named),
                                EK_CASE(backwards_come_in_any_order),
                                EK_CASE(backwards_come_in_any_order_in_bf16),
                                EK_CASE(one_rank_cannot_create),
                                EK_CASE(some_settings_may_differ),
                                EK_CASE(one_rank_is_wrong)};

int main(int argc, char **argv)
{
    int status;

    if (getenv("PMI_RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL) {
        MUST(ek_job_join(&world));
        rank = ek_job_rank(world);
        ranks = ek_job_size(world);
    }
    status = ek_test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    ek_job_leave(&world);
    return status;
}
