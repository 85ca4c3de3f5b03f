/* State of a rank at addresses that are never touched. */
#include "train/run/state_addresses.h"

#include "elastic/segment.h"

static ek_status take(void *context, const ek_model *m, size_t bytes, void **memory)
{
    ek_arena *a = context;

    (void)m;
    ek_arena_measure(a);
    (void)!ek_arena_alloc(a, (int64_t)bytes, 1);
    a->never_touched = 1;
    EK_TRY(ek_arena_reserve(a, "the state of a rank"));
    *memory = a->base;
    return EK_OK;
}

static void ignore_slot(void *context, int32_t layer, int32_t slot, int32_t expert)
{
    (void)context, (void)layer, (void)slot, (void)expert;
}

void ek_state_addresses_init(ek_state_addresses *x)
{
    *x = (ek_state_addresses){
        .memory = {
            .take = take, .holds = ignore_slot, .context = &x->arena, .align = EK_SEGMENT_ALIGN}};
}

void ek_state_addresses_fini(ek_state_addresses *x)
{
    ek_arena_fini(&x->arena);
}
