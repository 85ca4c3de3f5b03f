/* model/offload_priv.h - state of offloaded buckets, shared by offload.c (memory, file, access
 * outside of steps), offload_plan.c (what each use in a step reads, and where to), offload_demand.c
 * (buckets that rest) and offload_ops.c (the ops). */
#ifndef MODEL_OFFLOAD_PRIV_H
#define MODEL_OFFLOAD_PRIV_H

#include "model/offload.h"

enum {
    EK_PARTS = 4,
    EK_WHOLE_GRADIENTS = 2 /* one is reduced while products add to the other */
};

/* A bucket's record.  Its state is as of the uses planned so far. */
typedef struct {
    ek_param_bucket *bucket;
    int64_t at;             /* in the file */
    size_t part_bytes;      /* of one part, a multiple of EK_DISK_ALIGN; but */
    size_t gradient_bytes;  /* of gradients that are not yet summed over the bucket's ranks */
    size_t form_bytes[2];   /* of the packed forms by direction (EK_PACKED_*); 0: there is none */
    int64_t generation;     /* how often it was written */
    uint64_t sum[EK_PARTS]; /* of the parts as they were last written */
    int32_t entry;          /* that holds it; -1: none */
    int32_t form[2];        /* form buffers that hold its forms; -1: none */
    int pending;            /* updates that it has missed: the first has its gradient */
    int has_gradient;       /* its gradient part counts; else it is zero */
    int is_reduced;         /* it is summed over the bucket's ranks */
    int32_t last_adding;    /* use that completes its gradient; -1: none */
    int32_t written;        /* op of the graph being built that writes it; -1: none */
    int32_t next_use;       /* while a plan is made */
    int32_t next_form[2];   /* likewise: the next use that needs the form */
    int32_t first_use;      /* in the plan; its length, if there is none */

    int rests;  /* in the graph being built or run: it comes into memory where it has rows */
    int routed; /* had rows in the last step that trained; */
    int rested; /* had none in so many steps before that one */
} ek_record;

/* Memory for one record: likewise. */
typedef struct {
    unsigned char *base;
    int32_t holds;  /* record; -1: none */
    unsigned parts; /* EK_PART_* that are present */
    /* once the ops appended so far are done */
    int gathered;     /* the masters of all ranks are present */
    int32_t reserved; /* planned uses of which not all ops that need it have been appended yet */
    int32_t next_use; /* that needs its record, in the plan; beyond it: of the next step */

    /* ops of the graph being built; -1: none */
    int32_t used;
    int32_t sent;   /* sends what products have read, or reduces into its gradients; */
    int32_t before; /* writes what it held before its record */
} ek_offload_entry;

/* Memory for the packed forms of one record in one direction: likewise. */
typedef struct {
    unsigned char *base;
    int32_t record;   /* that it holds a form of; -1: none */
    int direction;    /* EK_PACKED_* */
    int32_t reserved; /* planned uses of which not all ops that need it have been appended yet */
    int32_t next_use; /* that reads the form before its record is updated; INT32_MAX: none */
    int32_t used;     /* last op of the graph being built that writes or reads it; -1: none; */
    int32_t sent;     /* likewise, sends it */
} ek_form_buffer;

/* One use of a record by products. */
typedef struct {
    int32_t record;
    ek_wave_use use;
    int direction;        /* of the form that the products read, EK_PACKED_*; -1: none */
    int32_t next;         /* use of the same record */
    int32_t next_form[2]; /* next use that needs each form before the record is updated; INT32_MAX:
                             none */

    /* set when it is planned */
    int32_t entry;                     /* -1: forms alone are needed, and they are in memory */
    int32_t form[2];                   /* buffers that hold the record's forms then; -1: none */
    unsigned packs;                    /* EK_USE_*: forms to pack, for it and for later uses */
    unsigned reads;                    /* EK_PART_* */
    int updates;                       /* how many of the optimizer come before the products */
    int adds;                          /* the products add to gradients on disk */
    int begins;                        /* these are zero before, and not read */
    int reads_reduced;                 /* those that are read are summed over ranks */
    int reduces;                       /* they are summed over ranks after the products */
    int32_t whole;                     /* buffer that the products add to; -1: the entry */
    int32_t read_op;                   /* reads what is missing; -1: nothing is */
    int32_t before;                    /* writes what the entry held before; -1: none */
    int32_t dep;                       /* op after which its record is ready, but for packing */
    ek_disk_request read, write, keep; /* keep: of gradients */
    ek_slot_rows rows;                 /* of the call; NULL: not known */
    const void *owner;
    int32_t micro, chunk;
    int idle; /* of a record that rests: there are no rows; set when the graph is run */
} ek_record_use;

/* The plan of the graph being built or run. */
typedef struct {
    ek_record_use *uses;
    int32_t n_uses, cap_uses;
    /* uses whose products, whose update and gather, and whose reads have been appended */
    int32_t used, ready, planned;
    int32_t reducing;  /* a use whose gradients are being summed over ranks; -1: none */
    int32_t reduction; /* the op of that */
    int32_t n_whole;   /* uses so far that add to a buffer for whole gradients, in turn */
    int32_t resting;   /* records that rest in it, in turn in entry 0 and form buffer 0 */
    int trains;        /* whether the graph has a backward */
} ek_offload_plan;

/* Counted since the model was created. */
typedef struct {
    int64_t uses, hits, updates, deferred;
    int64_t stall_now; /* that the executor adds the wait for a use's record to */
    int64_t stall_ns, entry_stall_ns;
    int64_t *layer_stall_ns; /* [layers][2]: forward, backward */
} ek_offload_counts;

typedef struct ek_offload {
    ek_offload_config cfg;
    char *dir;
    ek_disk *disk;
    ek_disk_file *file;
    ek_record *records;
    int32_t n; /* records */
    int64_t file_bytes;
    size_t entry_bytes;
    size_t whole_at; /* in an entry, behind the record: gathered masters */
    size_t form_buffer_bytes;
    ek_offload_entry *entries;                 /* [cfg.entries] */
    ek_form_buffer *forms;                     /* [cfg.forms] */
    void *whole_gradients[EK_WHOLE_GRADIENTS]; /* buffers for a sharded bucket's gradients before
                                                  they are reduce-scattered (ZeRO 2 and 3), R [n];
                                                  zero when products begin to add; not needed: of */
    size_t whole_gradient_bytes;               /* 0 */
    ek_expert_waves *waves;                    /* [layers] */
    int32_t *wave_first;                       /* storage of their `first` */
    int32_t *first_record;                     /* [layers + 1] */
    double *squares; /* [params], of gradients on disk; NULL: they are in memory */

    int32_t loaded; /* the record that ek_offload_load has read into entry 0; -1: none */
    int observed;   /* since a graph with a backward was run, `routed` of records is known */
    int64_t steps;  /* that gave every bucket an update */
    ek_offload_plan plan;
    ek_offload_counts stats;

    void (*update)(void *context, const ek_param_bucket *u, int n);
    void *context;
} ek_offload;

/* Sets the functions of all layers' waves. */
void ek_offload_set_waves(ek_model *m);

/* Whether whole gradients of a bucket have memory of their own, as the record has the kept range
 * alone. */
int ek_offload_has_whole(const ek_model *m, const ek_param_bucket *u);

/* Points a bucket's weights at an entry, and at forms.  e: NULL: masters and moments stay where
 * they are; forms: buffers by direction, -1: none; whole: buffer for whole gradients, -1: these
 * stay where they are. */
void ek_offload_attach(ek_model *m, const ek_record *r, const ek_offload_entry *e,
                       const int32_t forms[2], int32_t whole);

/* Bytes of a part.  reduced: gradients are summed over the bucket's ranks. */
size_t ek_offload_part_bytes(const ek_record *r, int part, int reduced);

/* The range in a record from the first of these parts to the last. */
typedef struct {
    size_t first, bytes;
} ek_part_range;

ek_part_range ek_offload_range(const ek_record *r, unsigned parts, int reduced);

/* The transfer of that range between the file and an entry's memory; without bytes if the record
 * has none. */
ek_disk_request ek_offload_request(const ek_offload *o, const ek_record *r, int write,
                                   unsigned parts, int reduced, unsigned char *base);

/* An entry holds nothing from now on; so do the buffers of a record's forms. */
void ek_offload_empty(ek_offload *o, ek_offload_entry *e);
void ek_offload_drop_forms(ek_offload *o, ek_record *r);

/* Sets what a use does with its record, from what the uses before it leave; returns the parts that
 * it needs.  has_form: the form that the products read is in memory. */
unsigned ek_offload_parts_of(const ek_model *m, ek_record_use *use, int has_form);
/* Sets which of these it reads into an entry, and what it leaves there and in the record. */
void ek_offload_take_parts(ek_record_use *use, ek_record *r, ek_offload_entry *e, unsigned needed);
/* Whether products add to gradients on disk. */
int ek_offload_adds(const ek_model *m, ek_wave_use use);

/* Once all uses of a graph are known: which records rest in it, if they may. */
void ek_offload_set_resting(ek_model *m, int may_rest);
/* Plans a use of such a record. */
void ek_offload_plan_demand(ek_model *m, ek_record_use *use);
/* While the graph runs, once the rows of such a use are known: what it does. */
void ek_offload_decide_use(ek_model *m, ek_record_use *use);
/* Notes whether the record of a use has rows, if that is known. */
void ek_offload_note_rows(ek_offload *o, const ek_record_use *use);

/* Appends a use to the plan. */
EK_CHECKED ek_status ek_offload_add_use(ek_model *m, int32_t record, ek_wave_use use, int forms);
/* Whether products of this kind are a use of a record. */
int ek_offload_is_use(const ek_model *m, ek_wave_use use);
/* Whether its products read masters, not packed forms. */
int ek_offload_reads_masters(const ek_model *m, const ek_record_use *use);
/* Once all uses are added: when each record and form is needed next. */
void ek_offload_link_uses(ek_model *m);
/* Plans the next use: memory for it, and what it reads, updates and packs.  NULL: all are planned,
 * or there is no memory for it until an entry or buffer is released. */
ek_record_use *ek_offload_plan_use(ek_model *m);
/* Dep, sent: after which ops a use no longer needs its entry; its form buffers. */
void ek_offload_release_entry(ek_offload *o, const ek_record_use *use, int32_t dep, int32_t sent);
void ek_offload_release_form(ek_offload *o, int32_t buffer, int32_t dep, int32_t sent);

/* Set and check the sums of parts in memory. */
void ek_offload_sum(ek_record *r, const ek_offload_entry *e, unsigned parts, int reduced);
EK_CHECKED ek_status ek_offload_check(const ek_model *m, const ek_record *r,
                                      const ek_offload_entry *e, unsigned parts, int reduced);

#endif
