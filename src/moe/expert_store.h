/* moe/expert_store.h - experts whose weights are not all in memory: a pool of slots, filled from a
 * source when a layer needs them.
 *
 * One store serves all layers of a model (ek_moe_weights.store).  A layer's products run in waves:
 * first the experts that are in slots, while the source starts to fetch the others; then the
 * others, a few at a time, no more than there are slots.  Rows are sorted by expert and every
 * expert's rows are multiplied as without a store, so results are the same bits for any number of
 * slots, and whatever is fetched in advance.
 *
 * Fetched in advance, into the source's buffers (never into slots, so that a wrong guess evicts
 * nothing):
 *   passes     a batch that needs more than 0.8 of a layer's experts will need most of the next
 *              layer's, too: these are fetched whole while this layer computes, those that are
 *              predicted first.
 *   ring       every layer is run as such a pass, in a circle: after the last layer the first one
 *              (SE-MoE's ring memory, for large batches).
 *   predicted  else, what the caller expects the next layer to need is fetched while the disk is
 *              idle: while attention computes, say.  Many tokens, as of a prompt, make this certain
 *              for enough experts; for single ones it is an option, as wrong guesses cost bytes.
 * What a layer turns out not to need is dropped.  In a pass `kept` experts, evenly spread over the
 * layers, keep their slots (store/slot_pool.h), and memory of most others is lent to the source: so
 * much is on its way that the disk is busy under attention, too.
 *
 * Memory       slots, from the kernels' memory.  The host's is touched by threads (base/populate.h)
 *              ahead of reads, as far as experts that are being fetched are expected to need it.
 * Forms        an expert may arrive as values, which costs no time.  Products of packed weights are
 *              faster, so it is packed when it is needed a second time.
 * Threads      one at a time.
 * Only for models that are not trained, on one rank. */
#ifndef MOE_EXPERT_STORE_H
#define MOE_EXPERT_STORE_H

#include "moe/layer.h"
#include "store/slot_pool.h"

/* Experts that are multiplied together: while they are, the next ones arrive. */
enum { EK_EXPERT_WAVE = 8 };

typedef struct ek_expert_store ek_expert_store;

/* One expert of a layer, in a slot: its two weights are in the slot's memory, packed in the form
 * that forward reads; or as values, C as files have them, for linear_forward_values. */
typedef struct {
    const ek_weight *up, *down;
    void *memory; /* [slot_bytes]; NULL: no slot */
    void *to_up, *to_down;
    void *to_rest; /* values: to_up has the first ff rows of `up`, the gate's, and this the others;
                      NULL: packed */
} ek_expert_form;

/* Where experts come from. */
typedef struct {
    /* Starts to fetch an expert that will be read soon (again: nothing more happens); idle: only
     * while nothing else is to be fetched.  NULL: not wanted. */
    void (*prefetch)(void *context, const ek_expert_form *expert, int idle);
    /* An expert will not be read, if it was prefetched; expert NULL: none will. */
    void (*drop)(void *context, const ek_expert_form *expert);
    /* Reads n experts: packs them, or says where their values are.  May exchange a slot's memory
     * for other memory of its size. */
    ek_status (*read)(void *context, int64_t n, ek_expert_form *experts);
    /* Packs an expert that was read as values, if there is memory to do so; may exchange the slot's
     * memory, too.  NULL: all are packed. */
    ek_status (*pack)(void *context, ek_expert_form *expert);
    /* Lends memory of a slot as one more buffer, and takes memory of a slot back. */
    void (*lend)(void *context, void *memory);
    void *(*take_back)(void *context);
    void *context;
    int32_t buffers;  /* experts that it holds when they are prefetched; 0: none of its own, and a
                         few are prefetched at a time */
    int32_t lendable; /* buffers that can be lent to it; 0: none */
} ek_expert_source;

/* A MoE layer of the model. */
typedef struct {
    const ek_moe_weights *w;
    const ek_weight *norm; /* [d], before its router */
} ek_expert_layer;

typedef struct {
    const ek_kernels *k;
    const ek_expert_layer *layer; /* [layers], in order */
    int32_t layers, experts;      /* of each layer */
    int32_t slots;                /* at least one; more than layers * experts is too many */
    int32_t kept;                 /* fewer than slots, unless all experts have one */
    int ring;
    size_t up_bytes, down_bytes; /* of the forms of an expert's weights */
    size_t slot_bytes;           /* at least ek_expert_store_slot_bytes of these */
    ek_eviction eviction;
    ek_expert_source source;
    struct ek_expert_lookahead *lookahead; /* moe/expert_lookahead.h; NULL: none.  Borrowed */
    int predict_tokens;                    /* also for few tokens */
} ek_expert_store_config;

/* What a store has done since it was made. */
typedef struct {
    int64_t uses, hits; /* experts that layers needed; those that were in a slot */
    int64_t packed;     /* experts that were read as values, and packed when needed again */
    int64_t read_bytes; /* of experts' forms */
    int64_t read_ns;    /* time in the source's read */
    int64_t passes;     /* layers that were run as part of a pass */
    int64_t lent;       /* slots that were lent at once, at most */
    int64_t predicted, confirmed; /* experts predicted for a layer; those that it needed */
    int64_t touched_bytes;        /* of slots, ahead of their use (base/populate.h) */
} ek_expert_store_stats;

/* Bytes of a slot for an expert with packed forms of these sizes. */
size_t ek_expert_store_slot_bytes(size_t up_bytes, size_t down_bytes);

/* The config's kernels, layers and source context are borrowed.  EK_ENOMEM, EK_EINVAL. */
EK_CHECKED ek_status ek_expert_store_create(const ek_expert_store_config *cfg,
                                            ek_expert_store **out);
void ek_expert_store_destroy(ek_expert_store **s);

ek_expert_store_stats ek_expert_store_get_stats(const ek_expert_store *s);

/* That of the config, for a layer with so many tokens; NULL: it is not to be used. */
struct ek_expert_lookahead *ek_expert_store_lookahead(const ek_expert_store *s, int64_t tokens);

/* A layer's products: slots of the placement have rows of the experts that they hold, and what to
 * do once experts are in memory. */
typedef struct {
    const ek_moe_weights *w;
    const int32_t *held;   /* [slots], the expert of a slot, each once; negative: none */
    const int64_t *offset; /* [slots + 1], first row of each */
    int32_t slots;
    /* Called for every wave with n placement slots that have rows, and the forms of their experts,
     * which are valid during the call. */
    ek_status (*run)(void *context, int32_t n, const int32_t *slot, const ek_expert_form *forms);
    /* Called once this layer's reads have started: gives the experts [at most experts] that the
     * next layer is expected to need, each once, the likeliest first, and returns their number.
     * NULL: not wanted. */
    int32_t (*predict)(void *context, const ek_expert_layer *next, int32_t *expert);
    void *context;
} ek_expert_wave;

/* Runs all waves.  After a failure no slot holds what it does not. */
EK_CHECKED ek_status ek_expert_store_run(ek_expert_store *s, const ek_expert_wave *call);

#endif
