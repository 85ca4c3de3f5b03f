/* fit/fit.h - what a model needs, from its config and the headers of its files alone: parameters by
 * class, memory of inference and of training in each mode, bytes of a generated token; and the
 * rates of this machine that bound its speed (`evenkeel fit`).
 *
 * All bytes come from the arenas of models, sessions and passes that are laid out without touching
 * memory: the code that runs them measures them. */
#ifndef FIT_FIT_H
#define FIT_FIT_H

#include "fit/scratch_rates.h"
#include "model/hf/source.h"
#include "model/offload.h"
#include "tensor/kernels.h"

/* Parameters by what they belong to. */
typedef enum {
    EK_FIT_EXPERTS,
    EK_FIT_SHARED, /* shared experts and dense layers */
    EK_FIT_ATTENTION,
    EK_FIT_EMBEDDING,
    EK_FIT_HEAD,
    EK_FIT_OTHER, /* routers and norms */
    EK_FIT_CLASSES
} ek_fit_class;

extern const char *const ek_fit_class_names[EK_FIT_CLASSES];

/* Adds to of[] the parameters of each class. */
void ek_fit_count(const ek_model_spec *spec, int64_t of[EK_FIT_CLASSES]);

/* Bytes of inference with a type of matrix products.  The process needs base + weights + session.
 */
typedef struct {
    const char *dtype; /* "bf16" */
    int64_t base;      /* resident bytes of this program before the model */
    int64_t weights, session;
    int64_t bytes_a_token; /* of session: keys and values of one more token of context */
    int64_t experts;       /* of all layers */
    int64_t slots;         /* of them, those that the limit has room for; 0: too few for a token */
    double active;         /* read for a generated token at the end of the context */
} ek_fit_inference;

/* context: tokens, prompt and generated ones.  limit: bytes; 0: auto. */
EK_CHECKED ek_status ek_fit_inference_of(const ek_model_spec *spec, ek_mode mode, int threads,
                                         int64_t context, int64_t limit, ek_fit_inference *out);

/* A mode of training. */
typedef struct {
    ek_mode mode;
    const char *recompute; /* "off", "attention" or "full" */
    int zero, ranks;       /* data parallel ranks */
    int64_t batch, seq, micro_batch;
} ek_fit_mode;

/* Bytes of the process of the rank that needs most. */
EK_CHECKED ek_status ek_fit_training_of(const ek_model_spec *spec, const ek_fit_mode *mode,
                                        int threads, int64_t *bytes);

/* Training with experts on disk: bytes of the process and of the scratch file of the rank that
 * needs most. */
typedef struct {
    int64_t least;       /* with the fewest parameter buckets in memory, and, with one rank, with
                            gradients on disk */
    int64_t comfortable; /* with gradients and the forms of a pass in memory, and the buckets of two
                            layers, of which one is read while the other computes */
    int64_t bytes;       /* with what the limit has room for; least, if it does not fit */
    int32_t entries, buckets; /* then: buckets in memory, of this many */
    int gradients;            /* 1: gradients are on disk */
    int64_t scratch;
    ek_offload_traffic step;
} ek_fit_offload;

EK_CHECKED ek_status ek_fit_offload_of(const ek_model_spec *spec, const ek_fit_mode *mode,
                                       int threads, int64_t limit, ek_fit_offload *out);

/* What this machine reaches, measured in one or two seconds. */
typedef struct {
    double memory_read; /* bytes/s */
    double bf16, fp32;  /* FLOP/s of matrix products */
    double disk_read;   /* bytes/s from the model's files, past the page cache; 0: not measured */
    ek_scratch_rates scratch; /* of the folder for experts on disk */
} ek_fit_rates;

/* folder: of the weights; "": none.  offload_dir: of the scratch file; NULL: the current folder,
 * where it may be impossible to make one. */
EK_CHECKED ek_status ek_fit_measure_rates(const char *folder, const char *offload_dir,
                                          ek_fit_rates *out);

#endif
