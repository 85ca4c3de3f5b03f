/* fit/report.h - the answers of `evenkeel fit`: what a model needs in each mode, what of it fits,
 * and the speeds that follow from the rates of this machine. */
#ifndef FIT_REPORT_H
#define FIT_REPORT_H

#include "base/memory_limit.h"
#include "fit/fit.h"

enum { EK_FIT_TRAIN_MODES_MAX = 24, EK_FIT_DTYPES = 2 };

/* Sizes to answer for.  memory_limit as in base/memory_limit.h; batch and micro_batch in sequences,
 * over all ranks. */
typedef struct {
    int64_t memory_limit, context, batch, seq, micro_batch;
    int ranks, threads;
    const char *offload_dir; /* for experts on disk; NULL: the current folder */
} ek_fit_request;

/* Everything that is known of a model: cfg and spec are set by the caller, who keeps them. */
typedef struct {
    const ek_fit_request *cfg;
    const ek_model_spec *spec;
    ek_memory_limit limit;
    int64_t params[EK_FIT_CLASSES], all, active;
    ek_fit_inference inference[EK_FIT_DTYPES];
    struct {
        ek_fit_mode mode;
        int64_t bytes;
        ek_fit_offload offload; /* with experts on disk instead */
    } training[EK_FIT_TRAIN_MODES_MAX];
    int n_training;
    ek_fit_rates rates;
} ek_fit_report;

/* Fills in the rest; weights: the path of the model's files, whose disk is measured, or "". */
EK_CHECKED ek_status ek_fit_report_make(ek_fit_report *r, const char *weights);

/* Whether so many bytes fit in the limit. */
int ek_fit_fits(const ek_fit_report *r, int64_t bytes);

int64_t ek_fit_inference_bytes(const ek_fit_inference *i);

/* Speeds that the machine's rates bound, tokens/s; 0: unknown. */
typedef struct {
    double decode, prefill;
    double missed; /* bytes of experts a token that the limit leaves on disk */
    double disk;   /* decoding, if they are read from there */
} ek_fit_speed;

/* Experts are taken to be routed to evenly: the worst case for those that stay in memory. */
ek_fit_speed ek_fit_speed_of(const ek_fit_report *r, const ek_fit_inference *i);

/* What the disk allows for training with experts there. */
typedef struct {
    double tokens_per_s;     /* of a step that does nothing but read and write; 0: not measured */
    double tokens_of_expert; /* mean of a step */
    double tokens_to_hide;   /* of an expert in a step, whose products take as long as that */
} ek_fit_disk_speed;

/* i: of r->training.  Each rank has such a disk of its own. */
ek_fit_disk_speed ek_fit_disk_speed_of(const ek_fit_report *r, int i);

#endif
