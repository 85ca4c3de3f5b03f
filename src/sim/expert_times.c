/* Keeps times of products by rows, each computed when it is first asked for. */
#include "sim/expert_times.h"

#include "sim/price_compute.h"

#include <math.h>
#include <stdlib.h>

enum { SHAPES = 16, OCTAVES = 40, PARTS = 16 }; /* of the two matrices and their passes; of rows */

typedef struct {
    ek_product of;                       /* rows and groups are not set */
    double seconds[OCTAVES * PARTS + 1]; /* at rows_at(i); 0: not known yet */
} times;

struct ek_expert_times {
    const ek_machine *machine;
    int32_t n;
    times shape[SHAPES]; /* [n] */
};

ek_status ek_expert_times_open(const ek_machine *m, ek_expert_times **out)
{
    *out = calloc(1, sizeof(**out));
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for the times of expert products");
    (*out)->machine = m;
    return EK_OK;
}

void ek_expert_times_close(ek_expert_times **t)
{
    free(*t);
    *t = NULL;
}

/* NULL: there are too many shapes. */
static times *find(ek_expert_times *t, const ek_product *p)
{
    for (int32_t i = 0; i < t->n; i++) {
        const ek_product *x = &t->shape[i].of;

        if (x->out == p->out && x->in == p->in && x->passes == p->passes)
            return &t->shape[i];
    }
    if (t->n == SHAPES)
        return NULL;
    t->shape[t->n].of = (ek_product){.out = p->out, .in = p->in, .passes = p->passes};
    return &t->shape[t->n++];
}

static double compute(const ek_machine *m, const ek_product *p, double rows)
{
    ek_product one = *p;

    one.rows = rows;
    one.groups = 1;
    return ek_price_product(m, &one);
}

static double rows_at(int32_t i)
{
    return ldexp(1 + (double)(i % PARTS) / PARTS, i / PARTS);
}

static double known_at(const ek_machine *m, times *of, int32_t i)
{
    if (of->seconds[i] == 0)
        of->seconds[i] = compute(m, &of->of, rows_at(i));
    return of->seconds[i];
}

double ek_expert_time(ek_expert_times *t, const ek_product *p, double rows)
{
    times *of = find(t, p);
    double part, from;
    int32_t i;
    int octave;

    if (rows < 1)
        return rows > 0 ? rows * ek_expert_time(t, p, 1) : 0;
    part = (2 * frexp(rows, &octave) - 1) * PARTS; /* of the octave from 2^(octave - 1) on */
    i = (octave - 1) * PARTS + (int32_t)part;
    if (of == NULL || i >= OCTAVES * PARTS)
        return compute(t->machine, p, rows);
    from = known_at(t->machine, of, i);
    return from + (part - floor(part)) * (known_at(t->machine, of, i + 1) - from);
}
