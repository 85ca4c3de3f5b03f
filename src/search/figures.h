/* search/figures.h - figures of layouts in the answer of a search. */
#ifndef SEARCH_FIGURES_H
#define SEARCH_FIGURES_H

#include "search/search.h"
#include "sim/report.h"

double ek_search_tokens_per_s(const ek_search *s, const ek_search_layout *l);
double ek_search_mfu(const ek_search *s, const ek_search_layout *l);

/* Sequences of a micro-batch on each data-parallel rank, in the mean. */
double ek_search_sequences(const ek_search *s, const ek_search_layout *l);

/* The share of the memory that a rank may need; 0: there is no limit. */
double ek_search_memory_share(const ek_search *s, const ek_search_layout *l);

enum { EK_SEARCH_WORDS = 256 };

/* Options of train: those of the choice, and a policy that was found to be better.  text [cap];
 * returned. */
const char *ek_search_words(const ek_search_layout *l, char *text, size_t cap);

/* The part of a step that grew most from the best layout to another; and if it is less than half of
 * what the step grew by, the next one, too.  Parts that grew by less than 0.05 % of the step do not
 * count.  To parts [EK_SEARCH_GROWN]; returns how many. */
enum { EK_SEARCH_GROWN = 2 };
typedef struct {
    char name[EK_SIM_PART_NAME];
    double seconds;
} ek_search_part;

int ek_search_grown_parts(const ek_search *s, const ek_search_layout *l, ek_search_part *parts);

/* Seconds of a step of a layout, or with failures of a run for each completed step. */
double ek_search_seconds(const ek_search_layout *l);

#endif
