/* Weighted loads, capacities, and the level that equals them out.
 *
 * Complexity   O(ranks); the level where ranks differ O(ranks log(ranks EK_ROW_COST_MAX)). */
#include "balance/row_costs.h"

#include <math.h>
#include <stdlib.h>

int ek_row_costs_of_speeds(int32_t ranks, const double *speed, int32_t *cost)
{
    double fastest = 0;
    int differ = 0;

    for (int32_t r = 0; r < ranks; r++)
        fastest = fmax(fastest, speed[r]);
    for (int32_t r = 0; r < ranks; r++) {
        double c = fmin(EK_ROW_COST_ONE * (fastest / speed[r]), EK_ROW_COST_MAX);

        cost[r] = (int32_t)(c + 0.5);
        differ |= cost[r] != EK_ROW_COST_ONE;
    }
    return differ;
}

static ek_status read_speeds(const char *text, int32_t ranks, double *speed)
{
    const char *at = text;

    for (int32_t r = 0; r < ranks; r++) {
        char *end = NULL;

        speed[r] = strtod(at, &end);
        EK_REQUIRE(end != at && isfinite(speed[r]) && speed[r] > 0 && (*end == ',' || *end == '\0'),
                   EK_EINVAL,
                   "speeds of ranks: number %d of `%.80s` is not one above 0; numbers are "
                   "separated by commas",
                   (int)r + 1, text);
        EK_REQUIRE((*end == ',') == (r + 1 < ranks), EK_EINVAL,
                   "speeds of ranks: `%.80s` has %s than the %d ranks: give one number for each, "
                   "separated by commas",
                   text, *end == ',' ? "more" : "fewer", (int)ranks);
        at = end + 1;
    }
    return EK_OK;
}

ek_status ek_row_costs_read(const char *text, int32_t ranks, int32_t *cost, int *differ)
{
    double *speed = calloc((size_t)ranks, sizeof(*speed));
    ek_status st;

    EK_REQUIRE(speed != NULL, EK_ENOMEM, "no memory for the speeds of %d ranks", (int)ranks);
    st = read_speeds(text, ranks, speed);
    if (st == EK_OK)
        *differ = ek_row_costs_of_speeds(ranks, speed, cost);
    free(speed);
    return st;
}

int64_t ek_row_cost_least(const ek_plan_limits *l)
{
    int64_t least = ek_row_cost(l, 0);

    for (int32_t r = 1; r < l->ranks && l->row_cost != NULL; r++)
        least = l->row_cost[r] < least ? l->row_cost[r] : least;
    return least;
}

void ek_row_costs_capacities(const ek_plan_limits *l, int64_t weighted, int64_t *capacity)
{
    int32_t ranks = l->ranks;

    if (l->row_cost == NULL) {
        for (int32_t r = 0; r < ranks; r++)
            capacity[r] = weighted;
        return;
    }
    for (int32_t r = 0; r < ranks; r++)
        capacity[r] = weighted / l->row_cost[r];
}

static int64_t largest_equal(const int64_t *load, int32_t ranks)
{
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++)
        most = load[r] > most ? load[r] : most;
    return most;
}

int64_t ek_row_costs_largest(const ek_plan_limits *l, const int64_t *load)
{
    int64_t most = 0;

    if (l->row_cost == NULL)
        return largest_equal(load, l->ranks);
    for (int32_t r = 0; r < l->ranks; r++)
        most = load[r] * l->row_cost[r] > most ? load[r] * l->row_cost[r] : most;
    return most;
}

/* --- the level -------------------------------------------------------------------------------- */

static int is_counted(const unsigned char *has, int32_t rank)
{
    return has == NULL || has[rank] != 0;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

static int64_t equal_level(const ek_plan_limits *l, const unsigned char *has, int64_t assignments)
{
    int64_t n = has == NULL ? l->ranks : 0;

    for (int32_t r = 0; r < l->ranks && has != NULL; r++)
        n += has[r] != 0;
    return divide_up(assignments, n);
}

/* Whether the capacities within a weighted load suffice. */
static int suffices(const ek_plan_limits *l, const unsigned char *has, int64_t weighted,
                    int64_t assignments)
{
    int64_t sum = 0;

    for (int32_t r = 0; r < l->ranks && sum < assignments; r++)
        sum += is_counted(has, r) ? weighted / l->row_cost[r] : 0;
    return sum >= assignments;
}

/* Bisection: not below what divisible assignments would need, as far as a double is exact, and not
 * above what is left if each rank wastes less than one assignment. */
int64_t ek_row_costs_level(const ek_plan_limits *l, const unsigned char *has, int64_t assignments)
{
    double speed = 0;
    int64_t low, high, step = 1;

    if (l->row_cost == NULL)
        return equal_level(l, has, assignments);
    for (int32_t r = 0; r < l->ranks; r++)
        speed += is_counted(has, r) ? 1.0 / l->row_cost[r] : 0;
    low = (int64_t)((double)assignments / speed * (1 - 1e-9)) - 1;
    low = low > 0 ? low : 0;
    if (suffices(l, has, low, assignments))
        return low;
    while (!suffices(l, has, low + step, assignments))
        step *= 2;
    high = low + step;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (suffices(l, has, middle, assignments))
            high = middle;
        else
            low = middle;
    }
    return high;
}

double ek_row_costs_mean(const ek_plan_limits *l, int64_t assignments)
{
    double speed = l->ranks;

    if (l->row_cost != NULL) {
        speed = 0;
        for (int32_t r = 0; r < l->ranks; r++)
            speed += 1.0 / l->row_cost[r];
    }
    return (double)assignments / speed;
}

double ek_row_costs_seconds(const ek_plan_limits *l, int64_t weighted)
{
    const ek_plan_costs *c = &l->costs;

    if (l->row_cost == NULL)
        return (double)weighted * (c->compute_s_per_row + c->comm_s_per_row);
    return (double)weighted * (c->compute_s_per_row / EK_ROW_COST_ONE +
                               c->comm_s_per_row / (double)ek_row_cost_least(l));
}
