/* cost/compare.h - predicted against measured, per op: sums by op, and a flag where they part.
 *
 * Ops are summed up by a key of the caller, such as their kind.  An op without a prediction is
 * counted, and its row says so. */
#ifndef COST_COMPARE_H
#define COST_COMPARE_H

#include <stddef.h>
#include <stdint.h>

enum { EK_COMPARE_ROWS = 128 };

/* Ops of less than this part of all that was measured part unseen: they cost nobody anything. */
#define EK_COMPARE_LEAST 0.01
/* Predicted and measured part when they differ by more than this part of the predicted. */
#define EK_COMPARE_PART 0.2

typedef struct {
    int key;
    const char *name; /* static text */
    int64_t count;
    double predicted_s, measured_s; /* of all; predicted_s: 0 where it is not predicted */
    int predicted;                  /* 0: some of them were not predicted */
} ek_compare_row;

typedef struct {
    int n;
    int64_t lost; /* ops of more keys than there are rows */
    double measured_s;
    ek_compare_row row[EK_COMPARE_ROWS];
} ek_compare;

void ek_compare_begin(ek_compare *c);

/* An op that ran; predicted_s negative: nobody predicted it. */
void ek_compare_add(ek_compare *c, int key, const char *name, double predicted_s,
                    double measured_s);

/* Longest measured first, equal ones by name. */
void ek_compare_sort(ek_compare *c);

/* Measured over predicted; 0: not predicted. */
double ek_compare_ratio(const ek_compare_row *r);

/* Whether a row's two times part by more than EK_COMPARE_PART and it matters. */
int ek_compare_parts(const ek_compare *c, const ek_compare_row *r);

/* How many rows part; *worst: that with the most seconds between (NULL: none does). */
int ek_compare_parted(const ek_compare *c, const ek_compare_row **worst);

/* The warning, one line: "predicted and measured part by more than 20 % in 3 ops, most in ...";
 * returns text, "" when none parts. */
const char *ek_compare_warning(const ek_compare *c, char *text, size_t cap);

/* A row as text, under ek_compare_head. */
extern const char ek_compare_head[];
const char *ek_compare_row_text(const ek_compare *c, const ek_compare_row *r, char *text,
                                size_t cap);

#endif
