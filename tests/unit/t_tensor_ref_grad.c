/* Every gradient of the reference kernels, in double, against central differences of the forward
 * kernel under the loss sum(weight * output); gather and combine against their adjointness. */
#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/ref/ref.h"

#include <omp.h>

enum { ROOM = 4096 };

static ek_kernels K;
static uint64_t Stream;

/* Fills x with values in (-1, 1), different in every call. */
static void fill(double *x, int64_t n)
{
    Stream++;
    for (int64_t i = 0; i < n; i++)
        x[i] = 2 * ek_random_uniform(7, Stream, (uint64_t)i) - 1;
}

static double inner(const double *a, const double *b, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

static int near(double got, double want)
{
    return fabs(got - want) <= 2e-8 * (1 + fabs(want));
}

/* gradient[i] is dloss/dx[i], all n of them. */
static void check_gradient(const char *what, double (*loss)(void), double *x,
                           const double *gradient, int64_t n)
{
    const double step = 1e-5;

    for (int64_t i = 0; i < n; i++) {
        double keep = x[i], up, down;

        x[i] = keep + step;
        up = loss();
        x[i] = keep - step;
        down = loss();
        x[i] = keep;
        if (!near(gradient[i], (up - down) / (2 * step))) {
            EK_T_FAIL("%s[%lld] is %.12g, differences give %.12g", what, (long long)i, gradient[i],
                      (up - down) / (2 * step));
            return;
        }
    }
}

/* --- linear ----------------------------------------------------------------------------------- */

/* Three groups, one empty; rows 0, 1 and 7 are in none. */
enum { L_ROWS = 14, L_OUT = 6, L_IN = 261, L_LDX = 263, L_LDY = 7, L_GROUPS = 4 };

static double L_x[L_ROWS * L_LDX], L_w[L_GROUPS][L_OUT * L_IN], L_dy[L_ROWS * L_LDY];
static ek_group L_g[L_GROUPS];

static void linear_setup(void)
{
    static const int64_t row[L_GROUPS] = {8, 2, 2, 13}, rows[L_GROUPS] = {5, 5, 0, 1};

    fill(L_x, L_ROWS * L_LDX);
    fill(L_dy, L_ROWS * L_LDY);
    for (int e = 0; e < L_GROUPS; e++) {
        fill(L_w[e], L_OUT * L_IN);
        L_g[e] = (ek_group){.row = row[e], .rows = rows[e], .w = L_w[e]};
    }
}

static double linear_loss(void)
{
    static double y[L_ROWS * L_LDY];

    memset(y, 0, sizeof(y));
    CHECK_INT(
        K.linear_forward(&K, L_g, L_GROUPS, L_OUT, L_IN, L_x, L_LDX, y, L_LDY, EK_OUT_REAL, NULL),
        EK_OK);
    return inner(y, L_dy, L_ROWS * L_LDY);
}

static void linear_gradients(void)
{
    static double dx[L_ROWS * L_LDX], dw[L_GROUPS][L_OUT * L_IN];

    linear_setup();
    memset(dx, 0, sizeof(dx));
    memset(dw, 0, sizeof(dw));
    for (int e = 0; e < L_GROUPS; e++)
        L_g[e].dw = dw[e];
    CHECK_INT(K.linear_backward_input(&K, L_g, L_GROUPS, L_OUT, L_IN, L_dy, L_LDY, dx, L_LDX,
                                      EK_OUT_REAL, NULL),
              EK_OK);
    CHECK_INT(
        K.linear_backward_weight(&K, L_g, L_GROUPS, L_OUT, L_IN, L_dy, L_LDY, L_x, L_LDX, NULL),
        EK_OK);
    check_gradient("dx", linear_loss, L_x, dx, L_ROWS * L_LDX);
    for (int e = 0; e < L_GROUPS; e++)
        check_gradient("dw", linear_loss, L_w[e], dw[e], L_OUT * L_IN);
    for (int64_t i = 0; i < L_OUT * L_IN; i++)
        CHECK(dw[2][i] == 0);
}

/* EK_OUT_ADD adds what EK_OUT_REAL stores, dw is accumulated, rows in no group are unchanged. */
static void linear_adds(void)
{
    static double y[L_ROWS * L_LDY], sum[L_ROWS * L_LDY], dw[L_OUT * L_IN];

    linear_setup();
    for (int64_t i = 0; i < L_ROWS * L_LDY; i++)
        sum[i] = y[i] = 3;
    CHECK_INT(
        K.linear_forward(&K, L_g, L_GROUPS, L_OUT, L_IN, L_x, L_LDX, y, L_LDY, EK_OUT_COMP, NULL),
        EK_OK);
    CHECK_INT(
        K.linear_forward(&K, L_g, L_GROUPS, L_OUT, L_IN, L_x, L_LDX, sum, L_LDY, EK_OUT_ADD, NULL),
        EK_OK);
    for (int64_t i = 0; i < L_ROWS; i++) {
        int owned = i != 0 && i != 1 && i != 7;

        for (int64_t o = 0; o < L_LDY; o++)
            CHECK(owned && o < L_OUT ? sum[i * L_LDY + o] == 3 + y[i * L_LDY + o]
                                     : y[i * L_LDY + o] == 3 && sum[i * L_LDY + o] == 3);
    }
    for (int64_t i = 0; i < L_OUT * L_IN; i++)
        dw[i] = 5;
    L_g[3].dw = dw;
    CHECK_INT(K.linear_backward_weight(&K, L_g + 3, 1, L_OUT, L_IN, L_dy, L_LDY, L_x, L_LDX, NULL),
              EK_OK);
    CHECK(near(dw[2], 5 + L_dy[13 * L_LDY] * L_x[13 * L_LDX + 2]));
}

/* All four transpositions against the definition. */
static void matmul_real(void)
{
    enum { M = 5, N = 270, KK = 7, LDA = 9, LDB = 271, LDC = 272 };
    static double a[LDA * LDA], b[LDB * LDB], c[M * LDC];

    fill(a, LDA * LDA);
    fill(b, LDB * LDB);
    for (int mode = 0; mode < 8; mode++) {
        int ta = mode & 1, tb = mode >> 1 & 1, add = mode >> 2;

        for (int64_t i = 0; i < M * LDC; i++)
            c[i] = 2;
        K.matmul_real(ta, tb, M, N, KK, a, LDA, b, LDB, add, c, LDC);
        for (int64_t i = 0; i < M; i++) {
            for (int64_t j = 0; j < N; j++) {
                double want = add ? 2 : 0;

                for (int64_t t = 0; t < KK; t++)
                    want += a[ta ? t * LDA + i : i * LDA + t] * b[tb ? j * LDB + t : t * LDB + j];
                CHECK(near(c[i * LDC + j], want));
            }
            CHECK(c[i * LDC + N] == 2);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

/* combine is the transpose of gather when row_of inverts idx: <gather x, y> = <x, combine y>. */
static void gather_combine_adjoint(void)
{
    enum { N = 5, TOP = 3, D = 7, ROWS = 12 };
    /* Row j of the gathered ones is token idx[j]; the other way round each token has up to TOP
     * rows.  Row 4 is padding; token 3 has one row only, token 4 none. */
    static const int32_t idx[ROWS] = {0, 2, 1, 3, -1, 0, 2, 1, 2, 0, 1, -1};
    static const int32_t row_of[N * TOP] = {0, 5, 9, 2, 7, 10, 1, 6, 8, -1, 3, -1, -1, -1, -1};
    double x[N * D], y[ROWS * D], ax[ROWS * D], aty[N * D], more[N * D];

    fill(x, N * D);
    fill(y, ROWS * D);
    K.gather_comp(ROWS, D, idx, x, D, ax, D);
    for (int64_t c = 0; c < D; c++)
        CHECK(ax[4 * D + c] == 0 && ax[D + c] == x[2 * D + c]);
    K.combine(N, D, TOP, row_of, y, D, 0, aty);
    CHECK(near(inner(ax, y, ROWS * D), inner(x, aty, N * D)));
    memcpy(more, x, sizeof(x));
    K.combine(N, D, TOP, row_of, y, D, 1, more);
    for (int64_t i = 0; i < N * D; i++)
        CHECK(more[i] == x[i] + aty[i]);
    K.gather_real(ROWS, D, idx, x, D, y, D);
    for (int64_t i = 0; i < ROWS * D; i++)
        CHECK(y[i] == ax[i]);
}

enum { E_N = 9, E_D = 70, E_V = 5 };

static const int32_t E_ids[E_N] = {4, 0, 4, 2, 4, 0, 1, 2, 2};
static double E_table[E_V * E_D], E_bias[E_D], E_x[E_N * E_D], E_dx[E_N * E_D];

static double embed_loss(void)
{
    K.embed_forward(E_N, E_D, E_ids, E_table, E_x);
    K.bias_forward(E_N, E_D, E_bias, E_x, E_D);
    return inner(E_x, E_dx, E_N * E_D);
}

static void embed_bias_gradients(void)
{
    static double dtable[E_V * E_D], db[E_D];

    fill(E_table, E_V * E_D);
    fill(E_bias, E_D);
    fill(E_dx, E_N * E_D);
    K.embed_backward(E_N, E_D, E_ids, E_dx, dtable);
    K.bias_backward(E_N, E_D, E_dx, E_D, db);
    check_gradient("dtable", embed_loss, E_table, dtable, E_V * E_D);
    check_gradient("db", embed_loss, E_bias, db, E_D);
}

/* --- norms ------------------------------------------------------------------------------------ */

enum { N_N = 6, N_D = 67 };

static double N_x[N_N * N_D], N_w[N_D], N_dy[N_N * N_D], N_rstd[N_N];

static double rmsnorm_loss(void)
{
    static double y[N_N * N_D];

    K.rmsnorm_forward(N_N, N_D, 1e-3, N_x, N_w, NULL, y, N_rstd);
    return inner(y, N_dy, N_N * N_D);
}

static void rmsnorm_gradients(void)
{
    static double y[N_N * N_D], dx[N_N * N_D], dw[N_D], ws[ROOM];

    fill(N_x, N_N * N_D);
    fill(N_w, N_D);
    fill(N_dy, N_N * N_D);
    CHECK(K.rmsnorm_workspace(&K, N_D) <= sizeof(ws));
    K.rmsnorm_forward(N_N, N_D, 1e-3, N_x, N_w, y, NULL, N_rstd);
    CHECK(near(inner(y, N_dy, N_N * N_D), rmsnorm_loss()));
    CHECK(near(N_rstd[0], 1 / sqrt(inner(N_x, N_x, N_D) / N_D + 1e-3)));
    K.rmsnorm_backward(N_N, N_D, N_x, N_w, N_rstd, N_dy, dx, dw, ws);
    check_gradient("dx", rmsnorm_loss, N_x, dx, N_N * N_D);
    check_gradient("dw", rmsnorm_loss, N_w, dw, N_D);
    y[0] = dx[0];
    K.rmsnorm_backward(N_N, N_D, N_x, N_w, N_rstd, N_dy, dx, dw, ws);
    CHECK(near(dx[0], 2 * y[0]));
}

/* Three heads of 6 at the start of rows of 20. */
enum { H_N = 4, H_HEADS = 3, H_DIM = 6, H_LD = 20, H_ALL = H_HEADS * H_DIM };

static double H_x[H_N * H_LD], H_w[H_DIM], H_dy[H_N * H_LD];
static double H_raw[H_N * H_ALL], H_rstd[H_N * H_HEADS];

static double headnorm_loss(void)
{
    static double y[H_N * H_LD];

    memcpy(y, H_x, sizeof(y));
    K.headnorm_forward(H_N, H_HEADS, H_DIM, 1e-3, H_w, y, H_LD, H_raw, H_rstd);
    return inner(y, H_dy, H_N * H_LD);
}

static void headnorm_gradients(void)
{
    static double dx[H_N * H_LD], dw[H_DIM], ws[ROOM];

    fill(H_x, H_N * H_LD);
    fill(H_w, H_DIM);
    fill(H_dy, H_N * H_LD);
    (void)headnorm_loss();
    memcpy(dx, H_dy, sizeof(dx)); /* outside the heads dx = dy */
    K.headnorm_backward(H_N, H_HEADS, H_DIM, H_w, H_raw, H_rstd, dx, H_LD, dw, ws);
    check_gradient("dx", headnorm_loss, H_x, dx, H_N * H_LD);
    check_gradient("dw", headnorm_loss, H_w, dw, H_DIM);
}

/* --- attention -------------------------------------------------------------------------------- */

/* The inverse is the transpose, and reverses the rotation. */
static void rope_inverse(void)
{
    enum { SEQ = 5, N = 10, POS = 3 };
    double table[(SEQ + POS) * H_DIM], x[N * H_LD], y[N * H_LD], rx[N * H_LD], ry[N * H_LD];

    fill(x, N * H_LD);
    fill(y, N * H_LD);
    memcpy(rx, x, sizeof(x));
    memcpy(ry, y, sizeof(y));
    for (int p = 0; p < SEQ + POS; p++) {
        for (int i = 0; i < H_DIM / 2; i++) {
            table[p * H_DIM + i] = cos(p * pow(0.01, i));
            table[p * H_DIM + H_DIM / 2 + i] = sin(p * pow(0.01, i));
        }
    }
    K.rope(N, SEQ, POS, H_HEADS, H_DIM, table, 0, rx, H_LD);
    K.rope(N, SEQ, POS, H_HEADS, H_DIM, table, 1, ry, H_LD);
    CHECK(near(inner(rx, y, N * H_LD), inner(x, ry, N * H_LD)));
    /* Row 7 is at position 5: pair (1, 4) of head 2. */
    CHECK(near(rx[7 * H_LD + 13], x[7 * H_LD + 13] * cos(0.05) - x[7 * H_LD + 16] * sin(0.05)));
    CHECK(near(rx[7 * H_LD + 16], x[7 * H_LD + 16] * cos(0.05) + x[7 * H_LD + 13] * sin(0.05)));
    CHECK(rx[7 * H_LD + H_ALL] == x[7 * H_LD + H_ALL]);
    K.rope(N, SEQ, POS, H_HEADS, H_DIM, table, 1, rx, H_LD);
    for (int64_t i = 0; i < N * H_LD; i++)
        CHECK(near(rx[i], x[i]));
}

static ek_attention A;
static double A_qkv[ROOM], A_o[ROOM], A_do[ROOM], A_lse[ROOM], A_ws[ROOM];

static double attention_loss(void)
{
    K.attention_forward(&A, A_qkv, A_o, A_lse, A_ws);
    return inner(A_o, A_do, A.batch * A.seq * A.heads * A.head_dim);
}

static void attention_gradients(void)
{
    static const int32_t documents[2 * 7] = {0, 0, 0, 3, 4, 4, 4, 0, 1, 1, 3, 3, 5, 6};
    static const ek_attention shape[] = {
        {.batch = 2, .seq = 7, .heads = 6, .kv_heads = 2, .head_dim = 5, .ld = 53, .scale = 0.7},
        {.batch = 1, .seq = 9, .heads = 3, .kv_heads = 3, .head_dim = 4, .ld = 36, .scale = 0.5},
        {.batch = 3, .seq = 1, .heads = 5, .kv_heads = 1, .head_dim = 8, .ld = 56, .scale = 2},
        {.batch = 2,
         .seq = 7,
         .heads = 6,
         .kv_heads = 2,
         .head_dim = 5,
         .ld = 53,
         .scale = 0.7,
         .starts = documents}};
    static double d[ROOM];

    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        int64_t n;

        A = shape[i];
        n = A.batch * A.seq * A.ld;
        CHECK(K.attention_workspace(&K, &A) <= sizeof(A_ws));
        fill(A_qkv, n);
        fill(A_do, A.batch * A.seq * A.heads * A.head_dim);
        (void)attention_loss();
        memset(d, 0, sizeof(d));
        K.attention_backward(&A, A_qkv, A_o, A_lse, A_do, d, A_ws);
        check_gradient("dqkv", attention_loss, A_qkv, d, n);
    }
}

/* --- experts and loss ------------------------------------------------------------------------- */

enum { S_N = 4, S_F = 9 };

static double S_gu[S_N * 2 * S_F], S_scale[S_N], S_dh[S_N * S_F];
static const double *S_factor;

static double swiglu_loss(void)
{
    double h[S_N * S_F];

    K.swiglu_forward(S_N, S_F, S_gu, S_factor, h);
    return inner(h, S_dh, S_N * S_F);
}

static void swiglu_gradients(void)
{
    double dgu[S_N * 2 * S_F], dscale[S_N], h[S_N * S_F], again[S_N * S_F];

    fill(S_gu, S_N * 2 * S_F);
    fill(S_scale, S_N);
    fill(S_dh, S_N * S_F);
    for (int scaled = 0; scaled < 2; scaled++) {
        S_factor = scaled ? S_scale : NULL;
        K.swiglu_forward(S_N, S_F, S_gu, S_factor, h);
        K.swiglu_backward(S_N, S_F, S_gu, S_factor, S_dh, dgu, again, scaled ? dscale : NULL);
        check_gradient("dgu", swiglu_loss, S_gu, dgu, S_N * 2 * S_F);
        for (int64_t i = 0; i < S_N * S_F; i++)
            CHECK(near(again[i], h[i]));
    }
    check_gradient("dscale", swiglu_loss, S_scale, dscale, S_N);
    /* In place: dgu over gu, h over dh. */
    K.swiglu_backward(S_N, S_F, S_gu, S_factor, S_dh, S_gu, S_dh, dscale);
    for (int64_t i = 0; i < S_N * 2 * S_F; i++)
        CHECK(S_gu[i] == dgu[i]);
    for (int64_t i = 0; i < S_N * S_F; i++)
        CHECK(S_dh[i] == again[i]);
}

enum { X_N = 5, X_V = 11, X_LD = 12 };

static const int32_t X_target[X_N] = {3, 0, -1, 10, 5};
static double X_logits[X_N * X_LD], X_loss[X_N];

static double cross_entropy_loss(void)
{
    static double copy[X_N * X_LD];
    double sum = 0;

    memcpy(copy, X_logits, sizeof(copy));
    K.cross_entropy(X_N, X_V, copy, X_LD, X_target, 0, X_loss, NULL, 0);
    for (int i = 0; i < X_N; i++)
        sum += 0.25 * X_loss[i];
    return sum;
}

static void cross_entropy_gradient(void)
{
    static double copy[X_N * X_LD], d[X_N * X_LD];

    fill(X_logits, X_N * X_LD);
    for (int c = 0; c < X_V; c++)
        X_logits[4 * X_LD + c] *= 1000; /* far beyond what exp can take */
    memcpy(copy, X_logits, sizeof(copy));
    K.cross_entropy(X_N, X_V, copy, X_LD, X_target, 0.25, X_loss, d, X_LD);
    check_gradient("dlogits", cross_entropy_loss, X_logits, d, X_N * X_LD);
    CHECK(X_loss[2] == 0);
    for (int c = 0; c < X_V; c++)
        CHECK(d[2 * X_LD + c] == 0);
}

static const ek_case Cases[] = {
    EK_CASE(linear_gradients),       EK_CASE(linear_adds),           EK_CASE(matmul_real),
    EK_CASE(gather_combine_adjoint), EK_CASE(embed_bias_gradients),  EK_CASE(rmsnorm_gradients),
    EK_CASE(headnorm_gradients),     EK_CASE(rope_inverse),          EK_CASE(attention_gradients),
    EK_CASE(swiglu_gradients),       EK_CASE(cross_entropy_gradient)};

int main(int argc, char **argv)
{
    ek_kernels_ref(&K, EK_MODE_FP64);
    K.threads = omp_get_max_threads();
    return ek_test_main(argc, argv, Cases, sizeof(Cases) / sizeof(Cases[0]));
}
