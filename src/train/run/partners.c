/* Whose state is copied to which rank, and laying out, filling and closing these copies. */
#include "train/run/partners.h"

#include "base/count_text.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/fake.h"
#include "cost/cost.h"
#include "placement/partners.h"
#include "train/batch.h"
#include "train/run/balance.h"
#include "train/run/copies.h"
#include "train/run/partner_times.h"
#include "train/run/state.h"

#include <stdio.h>
#include <stdlib.h>

enum { TIME_CAP = 128 };

/* --- who needs a copy ------------------------------------------------------------------------- */

static ek_status choose_partners(ek_run *r)
{
    const ek_mesh *m = r->mesh;
    size_t n = (size_t)r->ranks;
    ek_run_partners *p = &r->partners;
    int32_t *partner = NULL, *copies = NULL;
    unsigned char *needs = NULL;
    ek_partner_layout l;
    int *host_of = NULL;
    ek_status st = EK_OK;

    l = (ek_partner_layout){
        r->ranks, m->dp, m->tp, m->edp, m->ep, m->etp, r->cfg->zero > 0 || r->cfg->embed_columns};
    host_of = calloc(n, sizeof(*host_of));
    partner = calloc(n, sizeof(*partner));
    copies = calloc(n, sizeof(*copies));
    needs = calloc(n, sizeof(*needs));
    EK_REQUIRE_OUT(host_of != NULL && partner != NULL && copies != NULL && needs != NULL, EK_ENOMEM,
                   "no memory for the partners of %d ranks", r->ranks);
    for (int i = 0; i < r->ranks; i++)
        host_of[i] = r->host_of != NULL ? r->host_of[i] : ek_comm_node(r->world, i);
    if (!ek_partners_choose_ranks(&l, host_of, r->options.rack_of, needs, partner, copies))
        goto out;
    for (int i = 0; i < r->ranks; i++)
        p->most = copies[i] > p->most ? copies[i] : p->most;
    p->partner = partner;
    partner = NULL;
out:
    free(host_of);
    free(partner);
    free(copies);
    free(needs);
    return st;
}

/* --- memory ----------------------------------------------------------------------------------- */

static int32_t count_copies(const int32_t *partner, int ranks, int of)
{
    int32_t n = 0;

    for (int i = 0; i < ranks; i++)
        n += partner[i] == of;
    return n;
}

/* The place of the owner in the layout. */
static ek_status open_place(const ek_run *r, int owner, ek_copied_rank *x)
{
    const ek_mesh *m = r->mesh;
    ek_mesh_sizes sizes = {m->pp, m->tp, m->ep, m->etp};

    EK_TRY(ek_fake_open(owner, r->ranks, &x->world));
    return ek_mesh_open(x->world, &sizes, &x->mesh);
}

/* addresses: instead of shared memory. */
static ek_status layout_copy(const ek_run *r, const ek_model_config *like, int owner, int addresses,
                             ek_copied_rank *x)
{
    const ek_rank_state *own = &r->memory.state;
    ek_model_config mc = *like;
    ek_segment_id id = own->id;

    EK_TRY(open_place(r, owner, x));
    id.rank = r->ranks + owner;
    mc.mesh = x->mesh;
    mc.partner_copies = 0;
    mc.never_touched = 1; /* but the state */
    if (addresses) {
        ek_state_addresses_init(&x->addresses);
        mc.state = &x->addresses.memory;
    } else {
        ek_state_reserve(&x->state, &id, r->ranks, own->fingerprint, own->supervisor_id, own->out);
        mc.state = &x->state.memory;
    }
    return ek_model_create(&r->source.spec, r->kernels, &mc, &x->model);
}

static ek_status layout_copies(ek_run *r, const ek_model *model, const ek_model_config *like,
                               int addresses)
{
    ek_run_partners *p = &r->partners;
    ek_rank_copies *c = &p->copies;
    int32_t n = 0;

    c->n = count_copies(p->partner, r->ranks, r->rank);
    c->model = model;
    c->partner = p->partner[r->rank];
    c->copy = calloc((size_t)c->n + 1, sizeof(*c->copy));
    p->copied = calloc((size_t)c->n + 1, sizeof(*p->copied));
    EK_REQUIRE(c->copy != NULL && p->copied != NULL, EK_ENOMEM, "no memory for %d copies", c->n);
    for (int owner = 0; owner < r->ranks; owner++) {
        ek_copied_rank *x = &p->copied[n];

        if (p->partner[owner] != r->rank)
            continue;
        EK_TRY(layout_copy(r, like, owner, addresses, x));
        c->copy[n++] = (ek_rank_copy){.owner = owner, .model = x->model};
    }
    c->flight = calloc((size_t)ek_rank_copies_messages(c) + 1, sizeof(*c->flight));
    EK_REQUIRE(c->flight != NULL, EK_ENOMEM, "no memory for messages to partners");
    return EK_OK;
}

ek_status ek_run_layout_copies(ek_run *r, const ek_model_config *like)
{
    EK_TRY(layout_copies(r, r->model, like, r->cfg->dry_run != 0));
    r->training.copies = &r->partners.copies;
    return EK_OK;
}

double ek_run_copies_bytes(const ek_run_partners *p)
{
    double bytes = 0;

    for (int32_t i = 0; p->copied != NULL && i < p->copies.n; i++)
        if (p->copied[i].model != NULL)
            bytes += (double)p->copied[i].model->state.bytes;
    return bytes;
}

/* --- whether there is room for them ----------------------------------------------------------- */

/* Lays out model and copies at addresses that are not touched, with experts that stay where they
 * are; the caller destroys them. */
static ek_status lay_out_addresses(ek_run *r, const ek_model_config *like,
                                   ek_state_addresses *state, ek_model **m)
{
    ek_model_config mc = *like;
    size_t activations;

    ek_state_addresses_init(state);
    mc.never_touched = 1;
    mc.state = &state->memory;
    if (r->mesh->ep == 1)
        r->training.moe.planner = NULL;
    if (r->training.moe.planner != NULL) {
        (void)ek_run_keep_primaries(r);
        ek_run_set_slots(r, &mc);
    }
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, &mc, m));
    EK_TRY(layout_copies(r, *m, &mc, 1));
    EK_TRY(ek_trainer_measure(*m, &r->training, &activations));
    r->out->info.predicted_bytes = (size_t)r->room.base_rss + (*m)->arena.bytes +
                                   (*m)->state.bytes + activations +
                                   (size_t)ek_run_copies_bytes(&r->partners);
    return EK_OK;
}

/* Whether memory holds copies of an earlier start. */
static int were_copied(const ek_run *r)
{
    return r->memory.step >= 0 && ek_recover_copies(&r->memory.recovery) > 0;
}

/* Measures what copies take of a step, and weighs it, while they are laid out.  Collective. */
static ek_status weigh(ek_run *r)
{
    ek_run_partners *p = &r->partners;
    double micros = (double)ek_batch_micros(r->training.batch, r->training.micro_batch);
    double chunks = r->mesh->pp > 1 ? (double)r->options.stages / r->mesh->pp : 1;
    double part_of_experts, step_s;

    if (r->cfg->dry_run || were_copied(r))
        return EK_OK;
    EK_TRY(ek_run_time_copies(r, &p->seconds));
    EK_TRY(ek_run_predict_copies(r, 1, &part_of_experts, &step_s)); /* of experts: none */
    step_s *= 1 + (r->mesh->pp - 1) / (micros * chunks);            /* a pipeline's idle time */
    return ek_run_weigh_copies(r, step_s > 0 ? p->seconds / step_s : -1, step_s, &p->costs);
}

/* *fits: 1, else 0; the same on all ranks.  Also weighs what the copies cost.  Collective. */
static ek_status find_room(ek_run *r, const ek_model_config *like, double *fits)
{
    ek_trainer_config training = r->training;
    int32_t replicas_min = r->options.replicas_min;
    ek_state_addresses state = {0};
    ek_model *m = NULL;
    ek_status st;

    EK_TRY_OUT(ek_agree(r->world, "measure copies", lay_out_addresses(r, like, &state, &m)));
    r->model = m;
    r->partners.no_room = ek_run_copies_bytes(&r->partners);
    EK_TRY_OUT(ek_maximum(r->world, &r->partners.no_room));
    EK_TRY_OUT(weigh(r));
    st = ek_run_fits_memory(r, fits);
out:
    r->model = NULL;
    r->training = training;
    r->options.replicas_min = replicas_min;
    ek_run_forget_copies(&r->partners, 0);
    ek_model_destroy(&m);
    ek_state_addresses_fini(&state);
    return st;
}

ek_status ek_run_choose_partners(ek_run *r, const ek_model_config *like)
{
    ek_run_partners *p = &r->partners;
    double fits = 1;
    char text[32];

    if (!r->cfg->elastic || r->mesh == NULL)
        return EK_OK;
    EK_TRY(ek_agree(r->world, "choose partners", choose_partners(r)));
    if (!ek_run_has_partners(p) || !ek_run_is_executed(r))
        return EK_OK;
    EK_TRY(find_room(r, like, &fits));
    if (fits > 0)
        p->no_room = 0;
    else
        p->costs.left_out = 0;
    p->costs.kept = fits > 0 && !p->costs.left_out;
    if (p->costs.kept)
        return EK_OK;
    free(p->partner);
    p->partner = NULL;
    p->most = 0;
    if (fits <= 0 && r->cfg->dry_run && r->rank == 0)
        ek_log("elastic", EK_LOG_WARN,
               "a shard of --tp or --pp is on one host only, and a copy of all that its ranks keep "
               "takes %s a rank, for which there is no memory: " EK_RUN_HELP_OF_ROOM,
               ek_bytes_text(text, sizeof(text), p->no_room));
    return EK_OK;
}

/* --- state ------------------------------------------------------------------------------------ */

ek_status ek_run_start_copies(ek_run *r)
{
    for (int32_t i = 0; i < r->partners.copies.n; i++) {
        ek_copied_rank *x = &r->partners.copied[i];
        ek_rank_copy *c = &r->partners.copies.copy[i];

        EK_TRY(ek_state_start(&x->state, x->model, r->first_step));
        c->journal = &x->state.journal;
        c->extents_of = x->state.extents_of;
    }
    return EK_OK;
}

ek_status ek_run_create_copies(ek_run *r)
{
    for (int32_t i = 0; i < r->partners.copies.n; i++)
        EK_TRY(ek_recover_create_blocks(&r->memory.recovery, &r->partners.copied[i].state));
    return EK_OK;
}

ek_rank_state *ek_run_copy_state(const ek_run_partners *p, int32_t i)
{
    return i < p->copies.n ? &p->copied[i].state : NULL;
}

ek_status ek_run_commit_copies(ek_run *r)
{
    int32_t n = r->partners.copies.n;
    ek_rank_state **s = calloc((size_t)n + 1, sizeof(*s));
    ek_status st;

    EK_TRY_OUT(
        ek_agree(r->world, "commit its state",
                 s != NULL ? EK_OK : EK_FAIL(EK_ENOMEM, "no memory for the list of states")));
    s[0] = &r->memory.state;
    for (int32_t i = 0; i < n; i++)
        s[1 + i] = &r->partners.copied[i].state;
    st = ek_recover_commit(&r->memory.recovery, s, 1 + n);
out:
    free(s);
    return st;
}

/* "31.0 ms of each step (2.3 % of what one is predicted to take)"; without the part where steps
 * are not predicted.  text [cap]. */
static void describe_time(const ek_run_partners *p, char *text, size_t cap)
{
    char took[EK_COST_QUANTITY], part[16];
    int n = snprintf(text, cap, "%s of each step", ek_cost_quantity(took, p->seconds, "s"));

    if (p->costs.lengthen >= 0 && n > 0 && (size_t)n < cap)
        snprintf(text + n, cap - (size_t)n, " (%s %% of what one is predicted to take)",
                 ek_number_text(part, sizeof(part), 100 * p->costs.lengthen));
}

ek_status ek_run_tell_copies(ek_run *r)
{
    double most = ek_run_copies_bytes(&r->partners);
    char memory[32], of_step[TIME_CAP];

    if (!ek_run_has_partners(&r->partners) || were_copied(r))
        return EK_OK;
    EK_TRY(ek_maximum(r->world, &most));
    describe_time(&r->partners, of_step, sizeof(of_step));
    if (r->rank == 0)
        ek_log("elastic", EK_LOG_INFO,
               "with --pp %d --tp %d one host alone has a part of the weights: a rank of another "
               "host keeps a copy of all that its ranks keep, and updates it, too, for %s of "
               "memory of the rank with the most and about %s; experts stay where they are",
               r->mesh->pp, r->mesh->tp, ek_bytes_text(memory, sizeof(memory), most), of_step);
    return EK_OK;
}

void ek_run_forget_copies(ek_run_partners *p, int removes)
{
    for (int32_t i = 0; p->copied != NULL && i < p->copies.n; i++) {
        ek_copied_rank *x = &p->copied[i];
        ek_segment_id id = x->state.id;
        int made = x->state.segment.head != NULL;

        ek_model_destroy(&x->model);
        ek_state_close(&x->state);
        ek_state_addresses_fini(&x->addresses);
        ek_mesh_close(&x->mesh);
        ek_comm_close(&x->world);
        if (made && removes)
            (void)!ek_segment_remove(&id);
    }
    free(p->copied);
    free(p->copies.copy);
    free(p->copies.flight);
    p->copied = NULL;
    p->copies = (ek_rank_copies){.partner = -1};
}

void ek_run_close_copies(ek_run_partners *p, int removes)
{
    ek_run_forget_copies(p, removes);
    free(p->partner);
    *p = (ek_run_partners){0};
}
