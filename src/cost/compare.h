/* cost/compare.h - predicted against measured times: sums by op, and which differ too much.
 *
 * Ops are summed up by a key of the caller, such as their kind.  An op without a prediction is
 * counted and marked. */
#ifndef COST_COMPARE_H
#define COST_COMPARE_H

#include <stddef.h>
#include <stdint.h>

enum { EK_COMPARE_ROWS = 128 };

/* Ops of less than this fraction of the total measured time are not reported. */
#define EK_COMPARE_LEAST 0.01
/* Predicted and measured times differ too much beyond this fraction of the predicted. */
#define EK_COMPARE_PART 0.2

typedef struct {
    int key;
    const char *name; /* static text */
    int64_t count;
    double predicted_s, measured_s; /* sums; without a prediction an op adds 0 to the former */
    int predicted;                  /* 0: some ops of this key were not predicted */
} ek_compare_row;

typedef struct {
    int n;
    int64_t lost; /* ops left out, as there were more keys than rows */
    double measured_s;
    ek_compare_row row[EK_COMPARE_ROWS];
} ek_compare;

void ek_compare_begin(ek_compare *c);

/* Adds an op that ran; predicted_s negative: no prediction. */
void ek_compare_add(ek_compare *c, int key, const char *name, double predicted_s,
                    double measured_s);

/* Adds `count` ops of a key that were summed up already. */
void ek_compare_add_sum(ek_compare *c, int key, const char *name, int64_t count, double predicted_s,
                        double measured_s);

/* Sorts rows by measured time, longest first, ties by name. */
void ek_compare_sort(ek_compare *c);

/* Measured over predicted; 0: not predicted. */
double ek_compare_ratio(const ek_compare_row *r);

/* Whether a row's times differ by more than EK_COMPARE_PART and it is above EK_COMPARE_LEAST. */
int ek_compare_parts(const ek_compare *c, const ek_compare_row *r);

/* Number of such rows; *worst: the one that differs by the most seconds (NULL: none). */
int ek_compare_parted(const ek_compare *c, const ek_compare_row **worst);

/* The warning, one line: "predicted and measured times differ by more than 20 % in 3 ops, most in
 * ..."; "" if there are none.  Returns text [cap]. */
const char *ek_compare_warning(const ek_compare *c, char *text, size_t cap);

/* A row as text [cap], in columns under ek_compare_head.  Returns text. */
extern const char ek_compare_head[];
const char *ek_compare_row_text(const ek_compare *c, const ek_compare_row *r, char *text,
                                size_t cap);

#endif
