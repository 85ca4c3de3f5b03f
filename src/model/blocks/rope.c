/* Frequencies of each type of rope scaling, and the table.  All in double, whatever R is. */
#include "model/blocks/rope.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925286766559;

/* theta^(2 i / head_dim): positions per radian of pair i. */
static double radian_length(const ek_model_spec *s, double theta, int64_t i)
{
    return pow(theta, 2.0 * (double)i / (double)s->head_dim);
}

/* The base of the dynamic type for a sequence of `length`. */
static double dynamic_theta(const ek_model_spec *s, int64_t length)
{
    double longest = (double)(length > s->max_positions ? length : s->max_positions);
    double stretch = s->rope.factor * longest / (double)s->max_positions - (s->rope.factor - 1);

    return s->rope_theta * pow(stretch, (double)s->head_dim / (double)(s->head_dim - 2));
}

static double llama3_frequency(const ek_rope_scaling *r, double f)
{
    double turns = (double)r->original_positions * f / two_pi; /* O / wavelength */
    double smooth = (turns - r->low_freq) / (r->high_freq - r->low_freq);

    if (turns > r->high_freq)
        return f;
    if (turns < r->low_freq)
        return f / r->factor;
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The (real) pair index that makes `rotations` turns within the original positions. */
static double yarn_pair(const ek_model_spec *s, double rotations)
{
    double positions = (double)s->rope.original_positions;

    return (double)s->head_dim * log(positions / (rotations * two_pi)) / (2 * log(s->rope_theta));
}

static double yarn_frequency(const ek_model_spec *s, int64_t i)
{
    const ek_rope_scaling *r = &s->rope;
    double low = yarn_pair(s, r->beta_fast), high = yarn_pair(s, r->beta_slow), ramp;
    double radian = radian_length(s, s->rope_theta, i);

    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)s->head_dim - 1);
    if (low == high)
        high += 0.001; /* as transformers does: no division by 0 */
    ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return ramp / (r->factor * radian) + (1 - ramp) / radian;
}

double ek_rope_frequency(const ek_model_spec *s, int64_t length, int64_t i)
{
    switch (s->rope.type) {
    case EK_ROPE_LINEAR: return 1 / radian_length(s, s->rope_theta, i) / s->rope.factor;
    case EK_ROPE_DYNAMIC: return 1 / radian_length(s, dynamic_theta(s, length), i);
    case EK_ROPE_LLAMA3: return llama3_frequency(&s->rope, 1 / radian_length(s, s->rope_theta, i));
    case EK_ROPE_YARN: return yarn_frequency(s, i);
    case EK_ROPE_DEFAULT: break;
    }
    return pow(s->rope_theta, -2.0 * (double)i / (double)s->head_dim);
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double ek_rope_attention_factor(const ek_model_spec *s)
{
    const ek_rope_scaling *r = &s->rope;

    if (r->type != EK_ROPE_YARN)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_magnitude(r->factor, r->mscale) / yarn_magnitude(r->factor, r->mscale_all_dim);
    return yarn_magnitude(r->factor, 1);
}

int ek_rope_differs(const ek_model_spec *s, int64_t length, int64_t other)
{
    return s->rope.type == EK_ROPE_DYNAMIC && length != other &&
           (length > s->max_positions || other > s->max_positions);
}

void ek_rope_fill(const ek_model_spec *s, int64_t length, int64_t first, int64_t n, ek_dtype real,
                  void *cos_sin)
{
    int64_t half = s->head_dim / 2;
    double scale = ek_rope_attention_factor(s);

    for (int64_t i = 0; i < half; i++) {
        double f = ek_rope_frequency(s, length, i);

        for (int64_t t = first; t < first + n; t++) {
            double c = scale * cos((double)t * f), v = scale * sin((double)t * f);
            int64_t at = t * s->head_dim + i;

            if (real == EK_F64) {
                ((double *)cos_sin)[at] = c;
                ((double *)cos_sin)[at + half] = v;
            } else {
                ((float *)cos_sin)[at] = (float)c;
                ((float *)cos_sin)[at + half] = (float)v;
            }
        }
    }
}
