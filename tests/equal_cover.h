/* equal_cover.h - a covering array of layouts, made greedily: every compatible pair of choices, and
 * every factorisation of the ranks with every ZeRO stage, occurs in at least one layout. */
#ifndef EQUAL_COVER_H
#define EQUAL_COVER_H

#include "equal_cases.h"

enum {
    COVER_RANKS,
    COVER_PP,
    COVER_CHUNKS,
    COVER_TP,
    COVER_EP,
    COVER_ETP,
    COVER_ZERO,
    COVER_DEGREE,
    COVER_GROUP,
    COVER_A2A,
    COVER_RECOMPUTE,
    COVER_MODEL,
    COVER_SHAPE,
    COVER_MODE,
    COVER_WORKER,
    COVER_COLUMNS,
    COVER_BALANCE,
    COVER_GATHER,
    COVER_FACTORS,
    COVER_ZEROS = 4,
    COVER_LEVELS = 16,  /* largest number of levels of a factor */
    COVER_MESHES = 1024 /* largest number of factorisations */
};

/* A layout as the level of each factor. */
typedef struct {
    int level[COVER_FACTORS];
} cover_row;

typedef struct {
    uint64_t seed, draws;
    cover_row mesh[COVER_MESHES]; /* its first factors, up to COVER_ETP */
    int meshes;
    unsigned char fits[COVER_MESHES][EQUAL_MODELS];
    unsigned char mesh_left[COVER_MESHES][COVER_ZEROS]; /* 1: not covered yet */
    unsigned char left[COVER_FACTORS][COVER_LEVELS][COVER_FACTORS][COVER_LEVELS];
    int64_t n_left;
} cover;

static const int cover_sizes[] = {1, 2, 3, 4, 6, 8}; /* numbers of ranks, and values of factors */

static inline int cover_levels(int factor)
{
    static const int levels[COVER_FACTORS] = {
        6, 6, 3, 6, 6, 6, 4, 5, 3, 4, 3, EQUAL_MODELS, EQUAL_SHAPES, 2, 2, 2, EQUAL_DRAWN, 3};

    return levels[factor];
}

static inline equal_layout cover_layout(const cover_row *r)
{
    static const int degrees[] = {1, 2, 3, 4, 8};
    const int *v = r->level;

    equal_layout l = {
        .ranks = cover_sizes[v[COVER_RANKS]],
        .pp = cover_sizes[v[COVER_PP]],
        .model_chunks = 1 + v[COVER_CHUNKS],
        .tp = cover_sizes[v[COVER_TP]],
        .ep = cover_sizes[v[COVER_EP]],
        .etp = cover_sizes[v[COVER_ETP]],
        .zero = v[COVER_ZERO],
        .degree = degrees[v[COVER_DEGREE]],
        .group = v[COVER_GROUP],
        .a2a = v[COVER_A2A] < 2 ? (ek_a2a)v[COVER_A2A] : EK_A2A_2DH,
        .nodes = v[COVER_A2A] < 2 ? EQUAL_ONE_NODE : (equal_nodes)(v[COVER_A2A] - 1),
        .recompute = (ek_recompute)v[COVER_RECOMPUTE],
        .model = v[COVER_MODEL],
        .shape = v[COVER_SHAPE],
        .mode = v[COVER_MODE] == 0 ? EK_MODE_FP64 : EK_MODE_FP32,
        .worker = v[COVER_WORKER],
        .columns = v[COVER_COLUMNS],
        .balance = v[COVER_BALANCE],
    };

    if (equal_moves(&l) && !equal_legal(&l)) /* experts cannot move there */
        l.balance = 1;
    l.gather = (int[]){0, l.etp, EK_GATHER_ALL}[v[COVER_GATHER]];
    if (equal_horizon(&l))
        l.gather = 0;
    return l;
}

static inline int cover_legal(const cover_row *r)
{
    equal_layout l = cover_layout(r);

    return equal_legal(&l);
}

/* The number of uncovered pairs in a row of a factorisation; take: marks them as covered. */
static inline int64_t cover_gain(cover *c, const cover_row *r, int mesh, int take)
{
    unsigned char *zero = &c->mesh_left[mesh][r->level[COVER_ZERO]];
    int64_t gain = *zero;

    if (take)
        *zero = 0;
    for (int f = 0; f < COVER_FACTORS; f++)
        for (int g = f + 1; g < COVER_FACTORS; g++) {
            unsigned char *left = &c->left[f][r->level[f]][g][r->level[g]];

            gain += *left;
            if (take)
                *left = 0;
        }
    return gain;
}

/* --- pairs to be covered ---------------------------------------------------------------------- */

/* All factorisations, and the models that each can train. */
static inline void cover_list_meshes(cover *c)
{
    cover_row r = {{0}};
    int *v = r.level;

    for (;;) {
        int f = 0, some = 0;

        for (v[COVER_MODEL] = 0; v[COVER_MODEL] < EQUAL_MODELS; v[COVER_MODEL]++)
            some += c->fits[c->meshes][v[COVER_MODEL]] = (unsigned char)cover_legal(&r);
        v[COVER_MODEL] = 0;
        if (some > 0) {
            CHECK(c->meshes < COVER_MESHES - 1);
            c->mesh[c->meshes++] = r;
        }
        while (f <= COVER_ETP && ++v[f] == cover_levels(f))
            v[f++] = 0;
        if (f > COVER_ETP)
            return;
    }
}

static inline void cover_mark(cover *c, int f, int i, int g, int j)
{
    c->n_left += !c->left[f][i][g][j];
    c->left[f][i][g][j] = 1;
}

/* Pairs of factors of a factorisation, and of these with the model, must occur in a legal layout;
 * all other pairs may be combined freely. */
static inline void cover_open(cover *c, uint64_t seed)
{
    memset(c, 0, sizeof(*c));
    c->seed = seed;
    cover_list_meshes(c);
    memset(c->mesh_left, 1, (size_t)c->meshes * COVER_ZEROS);
    c->n_left = (int64_t)c->meshes * COVER_ZEROS;
    for (int m = 0; m < c->meshes; m++)
        for (int f = 0; f <= COVER_ETP; f++) {
            int i = c->mesh[m].level[f];

            for (int g = f + 1; g <= COVER_ETP; g++)
                cover_mark(c, f, i, g, c->mesh[m].level[g]);
            for (int g = COVER_ETP + 1; g < COVER_FACTORS; g++)
                for (int j = 0; j < cover_levels(g); j++)
                    if (g != COVER_MODEL || c->fits[m][j])
                        cover_mark(c, f, i, g, j);
        }
    for (int f = COVER_ETP + 1; f < COVER_FACTORS; f++)
        for (int g = f + 1; g < COVER_FACTORS; g++)
            for (int i = 0; i < cover_levels(f); i++)
                for (int j = 0; j < cover_levels(g); j++)
                    cover_mark(c, f, i, g, j);
}

/* --- the next row ----------------------------------------------------------------------------- */

static inline int cover_draw(cover *c, int below)
{
    return (int)((ek_random_bits(c->seed, 9, c->draws++) >> 11) % (uint64_t)below);
}

/* Sets a free factor to the level that covers most pairs with the factors already set. */
static inline void cover_choose(cover *c, cover_row *r, int mesh, int f)
{
    int start = cover_draw(c, cover_levels(f)), best = -1;
    int64_t most = -1;

    for (int k = 0; k < cover_levels(f); k++) {
        int i = (start + k) % cover_levels(f);
        int64_t gain = 0;

        for (int g = 0; g < f; g++)
            gain += c->left[g][r->level[g]][f][i];
        if (f == COVER_ZERO)
            gain += c->mesh_left[mesh][i] * COVER_FACTORS;
        r->level[f] = i;
        if (gain > most && (f != COVER_MODEL || cover_legal(r))) {
            most = gain;
            best = i;
        }
    }
    r->level[f] = best;
}

static inline cover_row cover_try(cover *c, int mesh)
{
    cover_row r = c->mesh[mesh];

    for (int f = COVER_ETP + 1; f < COVER_FACTORS; f++)
        cover_choose(c, &r, mesh, f);
    return r;
}

/* The best of many attempts; 0: all pairs are covered. */
static inline int cover_next(cover *c, equal_layout *out)
{
    cover_row best = {{0}};
    int64_t most = 0;
    int from = 0;

    for (int k = 0; c->n_left > 0 && (k < 60 || most == 0); k++) {
        int mesh = cover_draw(c, c->meshes);
        cover_row r = cover_try(c, mesh);
        int64_t gain = cover_gain(c, &r, mesh, 0);

        if (gain > most) {
            most = gain;
            best = r;
            from = mesh;
        }
    }
    if (most == 0)
        return 0;
    c->n_left -= cover_gain(c, &best, from, 1);
    *out = cover_layout(&best);
    return 1;
}

#endif
