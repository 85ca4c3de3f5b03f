/* The time of MoE layers, from made-up events. */
#include "ek_test.h"
#include "train/timing/layer_times.h"

#include <math.h>

static ek_event event(ek_op_kind kind, int32_t layer, int64_t start_ms, int64_t end_ms)
{
    return (ek_event){
        .kind = kind, .layer = layer, .start_ns = start_ms * 1000000, .end_ns = end_ms * 1000000};
}

static int is_ms(double seconds, double ms)
{
    return fabs(seconds * 1e3 - ms) < 1e-9;
}

/* Whatever their order, overlaps count once and gaps not at all. */
static void overlaps_count_once(void)
{
    const ek_event events[] = {
        event(EK_OP_DISPATCH_A2A, 0, 0, 10),   event(EK_OP_DISPATCH_A2A, 0, 5, 20),
        event(EK_OP_COMBINE_A2A, 0, 50, 60),   event(EK_OP_DISPATCH_A2A, 1, 21, 22),
        event(EK_OP_EXPERT_UP, 0, 12, 14),     event(EK_OP_EXPERT_UP, 0, 18, 30),
        event(EK_OP_EXPERT_DOWN, 1, 100, 104), event(EK_OP_UNPERMUTE, 0, 60, 61),
    };
    double seconds[3] = {0};

    CHECK(ek_layer_times(events, 8, 0, seconds) == EK_OK);
    CHECK(is_ms(seconds[0], 30 + 11));
    CHECK(is_ms(seconds[1], 1 + 4));
    CHECK(seconds[2] == 0);
}

/* Nor does what is before the steps that count, in no layer, or not of its experts. */
static void others_do_not_count(void)
{
    const ek_event events[] = {
        event(EK_OP_EXPERT_UP, 0, 0, 10),        event(EK_OP_EXPERT_UP, -1, 20, 30),
        event(EK_OP_ATTENTION, 0, 20, 30),       event(EK_OP_SHARED_EXPERT_ADD, 0, 20, 30),
        event(EK_OP_REPLICAS, 0, 20, 30),        event(EK_OP_WAIT_REPLICAS, 0, 30, 31),
        event(EK_OP_SWIGLU_BACKWARD, 0, 10, 12),
    };
    double seconds[1] = {0};

    CHECK(ek_layer_times(events, 7, 10000000, seconds) == EK_OK);
    CHECK(is_ms(seconds[0], 3));
}

static void no_events(void)
{
    double seconds[1] = {0};

    CHECK(ek_layer_times(NULL, 0, 0, seconds) == EK_OK);
    CHECK(seconds[0] == 0);
}

static const ek_case cases[] = {
    EK_CASE(overlaps_count_once),
    EK_CASE(others_do_not_count),
    EK_CASE(no_events),
};
EK_TEST_MAIN(cases)
