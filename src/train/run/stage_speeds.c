/* Slowest ranks, medians and thresholds. */
#include "train/run/stage_speeds.h"

static const double differs = 9.0 / 8, each_differs = 17.0 / 16;

/* The k-th smallest of x [n], from 0. */
static double smallest(const double *x, int n, int k)
{
    for (int i = 0; i < n; i++) {
        int less = 0;

        for (int j = 0; j < n; j++)
            less += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (less == k)
            return x[i];
    }
    return 0;
}

static double median_of_rounds(const double *x)
{
    return smallest(x, EK_SPEED_ROUNDS, EK_SPEED_ROUNDS / 2);
}

/* Of the slowest of n ranks. */
static double slowest(const double *speed, int n)
{
    double least = speed[0];

    for (int i = 1; i < n; i++)
        least = speed[i] < least ? speed[i] : least;
    return least;
}

static double relative_speed(const double *x)
{
    double median = median_of_rounds(x), least = smallest(x, EK_SPEED_ROUNDS, 0);
    double most = smallest(x, EK_SPEED_ROUNDS, EK_SPEED_ROUNDS - 1);
    int faster = median > differs && least > each_differs;
    int slower = median * differs < 1 && most * each_differs < 1;

    return faster || slower ? median : 1;
}

int ek_stage_speeds(const double *speed, int ranks, int stages, double *stage, double *relative)
{
    int size = ranks / stages, differ = 0;
    double reference[EK_SPEED_ROUNDS];

    for (int i = 0; i < EK_SPEED_ROUNDS; i++) {
        for (int s = 0; s < stages; s++)
            stage[s] = slowest(speed + (int64_t)i * ranks + (int64_t)s * size, size);
        reference[i] = smallest(stage, stages, stages / 2);
    }
    for (int s = 0; s < stages; s++) {
        double rounds[EK_SPEED_ROUNDS], compared[EK_SPEED_ROUNDS];

        for (int i = 0; i < EK_SPEED_ROUNDS; i++) {
            rounds[i] = slowest(speed + (int64_t)i * ranks + (int64_t)s * size, size);
            compared[i] = rounds[i] / reference[i];
        }
        stage[s] = median_of_rounds(rounds);
        relative[s] = relative_speed(compared);
        differ |= relative[s] != 1;
    }
    return differ;
}
