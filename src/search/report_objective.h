/* search/report_objective.h - what the answer of a search says of failures and money, and of other
 * numbers of ranks. */
#ifndef SEARCH_REPORT_OBJECTIVE_H
#define SEARCH_REPORT_OBJECTIVE_H

#include "search/search.h"

#include <jansson.h>
#include <stdio.h>

/* A search for a number of ranks; search NULL: it failed, as refusal says. */
typedef struct {
    int ranks;
    ek_search *search;
    char refusal[512];
} ek_search_ranks;

/* Which of n has the best layout by the objective; -1: none has any. */
int64_t ek_search_best_ranks(const ek_search_ranks *at, int64_t n);

/* What the best layouts are, for people: "the shortest steps". */
const char *ek_search_best_title(const ek_search *s);

/* Columns of a table of layouts, each preceded by blanks: their heads, and those of a layout;
 * nothing with EK_OBJECTIVE_STEP. */
void ek_search_put_heads(const ek_search *s, FILE *out);
void ek_search_put_columns(const ek_search *s, const ek_search_layout *l, FILE *out);

/* Which failures there are, and why the layout with the shortest step is not the best. */
void ek_search_put_failures(const ek_search *s, FILE *out);

/* The best layout of each number of ranks. */
void ek_search_put_ranks(const ek_search_ranks *at, int64_t n, FILE *out);

/* "recovers" or "restarts". */
const char *ek_search_after_loss(const ek_search_failures *f);

/* Adds keys of failures and price to the object of a layout. */
void ek_search_add_json(const ek_search *s, const ek_search_layout *l, json_t *layout);

/* What the command that trains with the best layout has of --elastic, with a blank behind it. */
const char *ek_search_elastic_words(const ek_search *s);

#endif
