/* Memory for experts on disk: how many entries and forms. */
#include "train/offload_room.h"

#include "comm/agree.h"
#include "model/offload.h"

#include <math.h>

/* What is taken of the memory that is left: other processes, and the page cache, need some. */
static const double entries_share = 0.9;

/* Entries beyond the fewest that let reads and writes run ahead of and behind the products. */
enum { ENTRIES_AHEAD = 5 };

/* How many pieces of `each` bytes fit in *room, at most `useful`, on the rank that has least room.
 * Takes them from *room.  Collective. */
static ek_status take_pieces(ek_comm *world, double each, double useful, double *room,
                             int32_t *count)
{
    double n = each > 0 && *room > 0 ? floor(*room / each) : 0;

    n = n >= useful || each == 0 ? HUGE_VAL : n; /* all: this rank limits no other */
    EK_TRY(ek_minimum(world, &n));
    n = n > useful ? useful : n;
    *room -= n * each;
    *count += (int32_t)n;
    return EK_OK;
}

/* Forms that a step can use again: those of backward, and where a micro-batch follows, or backward
 * runs the forward again, also those of forward. */
static double useful_forms(const ek_model *m, const ek_trainer_config *c)
{
    int again = c->micro_batch < c->batch || c->recompute == EK_RECOMPUTE_FULL;

    return (again && !m->k->one_form ? 2.0 : 1.0) * ek_offload_buckets(m);
}

/* A form of 2 bytes a parameter spares 4 to be read, once or with each micro-batch; an entry of 12
 * spares 12 once a step.  So forms come first. */
ek_status ek_offload_fill_room(ek_comm *world, const ek_model *m, const ek_trainer_config *cfg,
                               double room, ek_offload_config *o)
{
    double entry = (double)ek_offload_entry_bytes(m), form = (double)ek_offload_form_bytes(m);

    room *= entries_share;
    o->forms = o->entries;
    EK_TRY(take_pieces(world, entry + form, ENTRIES_AHEAD, &room, &o->entries));
    o->forms = o->entries;
    EK_TRY(take_pieces(world, form, useful_forms(m, cfg), &room, &o->forms));
    return take_pieces(world, entry, ek_offload_buckets(m), &room, &o->entries);
}
