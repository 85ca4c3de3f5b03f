/* store/tensor_slices: any slice of a tensor can be read from any distribution of it over slices
 * and files; what is missing, duplicate, or does not match its name is refused by name. */
#include "base/random.h"
#include "ek_test.h"
#include "store/tensor_slices.h"

enum { FILES = 3, PARTS_MAX = 64 };

static ek_path root;
static uint64_t drawn; /* numbers drawn so far */

static int64_t below(int64_t n)
{
    return (int64_t)(ek_random_bits(7, 7, drawn++) % (uint64_t)n);
}

static const char *at(const char *name)
{
    static ek_path p[4];
    static int next;
    ek_path *q = &p[next++ % 4];

    CHECK(ek_path_set(q, "%s/%s", root.s, name) == EK_OK);
    return q->s;
}

static void begin(void)
{
    CHECK(ek_path_set(&root, "/tmp/ek_t_boxes_XXXXXX") == EK_OK);
    CHECK(mkdtemp(root.s) != NULL);
}

static void end(void)
{
    CHECK(ek_folder_remove(NULL, root.s) == EK_OK);
}

static int says(const char *text)
{
    if (strstr(ek_err_message(), text) != NULL)
        return 1;
    fprintf(stderr, "message: %s\n", ek_err_message());
    return 0;
}

/* A tensor cut into slices, each with the file that stores it (-1: none). */
typedef struct {
    const char *name;
    int dims;
    int64_t shape[2], n;
    ek_tensor_slice slice[PARTS_MAX];
    int file[PARTS_MAX];
} cut;

static double value(int64_t row, int64_t col)
{
    return (double)(row * 1000 + col);
}

/* Cuts one slice in two, by rows or by columns, if possible. */
static void cut_one(cut *c)
{
    int64_t i = below(c->n);
    int by_rows = c->dims == 1 || below(2) == 0;
    ek_tensor_slice *a = &c->slice[i], *b = &c->slice[c->n];
    int64_t length = by_rows ? a->rows : a->cols, keep;

    if (length < 2 || c->n == PARTS_MAX)
        return;
    keep = 1 + below(length - 1);
    *b = *a;
    if (by_rows) {
        b->row += keep;
        b->rows -= keep;
        a->rows = keep;
    } else {
        b->col += keep;
        b->cols -= keep;
        a->cols = keep;
    }
    c->n++;
}

static void make_cut(cut *c, int64_t cuts)
{
    c->n = 1;
    c->slice[0] = (ek_tensor_slice){0, c->shape[0], 0, c->dims > 1 ? c->shape[1] : 1};
    while (cuts-- > 0)
        cut_one(c);
    for (int64_t i = 0; i < c->n; i++)
        c->file[i] = (int)below(FILES);
}

/* Writes one file with its slices of all tensors; `twist` may corrupt a declaration. */
static ek_status write_file(const char *path, const cut *cuts, int n, int file, ek_dtype dtype,
                            void (*twist)(ek_tensor_decl *d))
{
    static char names[2 * PARTS_MAX][200];
    ek_tensor_decl decls[2 * PARTS_MAX];
    const ek_tensor_slice *slices[2 * PARTS_MAX];
    ek_safetensors_writer *w = NULL;
    int64_t count = 0, i;
    ek_status st;

    for (int t = 0; t < n; t++)
        for (int64_t k = 0; k < cuts[t].n; k++) {
            const cut *c = &cuts[t];

            if (c->file[k] != file)
                continue;
            ek_tensor_slice_name(names[count], sizeof(names[0]), c->name, &c->slice[k], c->dims,
                                 c->shape);
            decls[count] = (ek_tensor_decl){
                names[count], dtype, c->dims, {c->slice[k].rows, c->slice[k].cols}};
            if (twist != NULL)
                twist(&decls[count]);
            slices[count++] = &c->slice[k];
        }
    EK_TRY_OUT(ek_safetensors_create(NULL, path, EK_WRITE_REPLACE, decls, count, &w));
    while ((i = ek_safetensors_next(w)) >= 0)
        for (int64_t e = 0; e < slices[i]->rows * slices[i]->cols; e++) {
            double x =
                value(slices[i]->row + e / slices[i]->cols, slices[i]->col + e % slices[i]->cols);

            EK_TRY_OUT(ek_safetensors_append(w, decls[i].name, 1, &x, EK_F64));
        }
    EK_TRY_OUT(ek_safetensors_finish(&w, NULL));
out:
    ek_safetensors_abort(&w);
    return st;
}

/* All files and their index, open. */
static ek_status write_and_open(const cut *cuts, int n, ek_dtype dtype, ek_slice_set **out)
{
    static const char *const names[FILES] = {"a.safetensors", "b.safetensors", "c.safetensors"};
    const char *used[FILES];
    int64_t n_used = 0;
    char *text = NULL;
    ek_status st;

    for (int f = 0; f < FILES; f++) {
        int any = 0;

        for (int t = 0; t < n; t++)
            for (int64_t k = 0; k < cuts[t].n; k++)
                any |= cuts[t].file[k] == f;
        if (any)
            used[n_used++] = names[f];
        if (any)
            EK_TRY(write_file(at(names[f]), cuts, n, f, dtype, NULL));
    }
    EK_TRY(ek_safetensors_index_text(root.s, used, n_used, &text));
    st = ek_file_replace(NULL, at("x.safetensors.index.json"), text, strlen(text));
    free(text);
    EK_TRY(st);
    return ek_slice_set_open_in(root.s, "x", out);
}

static int same(ek_status st)
{
    if (st < 0)
        EK_T_FAIL("%s", ek_err_text());
    return st >= 0;
}

/* Reads random slices into rows with a stride larger than their length. */
static void read_slices(const ek_sliced_tensor *x, const cut *c, ek_dtype to)
{
    for (int k = 0; k < 20; k++) {
        int64_t row = below(c->shape[0]), rows = below(c->shape[0] - row + 1);
        int64_t width = c->dims > 1 ? c->shape[1] : 1, col = below(width);
        int64_t cols = below(width - col + 1), ld = cols + below(3);
        ek_tensor_slice want = {row, rows, col, cols};
        double *got = calloc((size_t)(rows * ld + 1), sizeof(*got));
        int wrong = 0;

        if (same(ek_sliced_tensor_read(x, &want, got, ld, to)))
            for (int64_t i = 0; i < rows * ld; i++) {
                double v = to == EK_F64 ? got[i] : (double)((float *)got)[i];

                wrong += v != (i % ld < cols ? value(row + i / ld, col + i % ld) : 0);
            }
        CHECK_INT(wrong, 0);
        free(got);
    }
}

static void any_cut(void)
{
    for (int round = 0; round < 60; round++) {
        cut cuts[2] = {{"w", 2, {1 + below(12), 1 + below(12)}, 0, {{0}}, {0}},
                       {"w.b", 1, {1 + below(20), 0}, 0, {{0}}, {0}}};
        ek_slice_set *b = NULL;

        begin();
        for (int t = 0; t < 2; t++)
            make_cut(&cuts[t], below(12));
        if (same(write_and_open(cuts, 2, round % 2 ? EK_F32 : EK_F64, &b))) {
            CHECK_INT(ek_slice_set_count(b), 2);
            for (int t = 0; t < 2; t++) {
                const ek_sliced_tensor *x = ek_slice_set_find(b, cuts[t].name);

                CHECK(x != NULL && x->n == cuts[t].n);
                if (x == NULL)
                    continue;
                same(ek_sliced_tensor_check(x, cuts[t].dims, cuts[t].shape));
                read_slices(x, &cuts[t], EK_F64);
                read_slices(x, &cuts[t], EK_F32);
            }
        }
        CHECK(b == NULL || ek_slice_set_find(b, "w[0:1,0:1]") == NULL);
        ek_slice_set_close(&b);
        end();
    }
}

/* One slice is in no file: the tensor is incomplete, and reads that intersect the gap are
 * refused. */
static void a_hole(void)
{
    for (int round = 0; round < 40; round++) {
        cut c = {"w", 2, {2 + below(9), 2 + below(9)}, 0, {{0}}, {0}};
        ek_slice_set *b = NULL;
        const ek_sliced_tensor *x;
        double room[100];
        int64_t lost;
        ek_tensor_slice one;
        char text[80];

        begin();
        make_cut(&c, 8);
        lost = below(c.n);
        c.file[lost] = -1;
        if (c.n > 1 && same(write_and_open(&c, 1, EK_F32, &b))) {
            x = ek_slice_set_get(b, 0);
            CHECK_INT(ek_sliced_tensor_check(x, 2, c.shape), EK_EFORMAT);
            snprintf(text, sizeof(text), "of tensor w, row %lld from column %lld on",
                     (long long)c.slice[lost].row, (long long)c.slice[lost].col);
            CHECK(says(text));
            CHECK_INT(ek_sliced_tensor_read(x, &(ek_tensor_slice){0, c.shape[0], 0, c.shape[1]},
                                            room, c.shape[1], EK_F64),
                      EK_EFORMAT);
            for (int64_t i = 0; i < c.n; i++) {
                one = c.slice[i];
                CHECK_INT(ek_sliced_tensor_read(x, &one, room, one.cols, EK_F64),
                          i == lost ? EK_EFORMAT : EK_OK);
            }
        }
        ek_slice_set_close(&b);
        end();
    }
}

static void overlaps(void)
{
    static const ek_tensor_slice pairs[][2] = {
        {{0, 4, 0, 4}, {3, 1, 3, 1}}, /* the whole tensor, and a slice */
        {{0, 3, 0, 4}, {2, 2, 0, 4}},
        {{0, 4, 0, 3}, {0, 4, 2, 2}},
        {{0, 2, 0, 2}, {1, 2, 1, 2}},
    };
    ek_slice_set *b = NULL;

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        cut c = {"w", 2, {4, 4}, 2, {pairs[i][0], pairs[i][1]}, {0, 1}};

        begin();
        CHECK_INT(write_and_open(&c, 1, EK_F32, &b), EK_EFORMAT);
        CHECK(b == NULL && says("overlaps") && says("a.safetensors") && says("b.safetensors"));
        end();
    }
    begin(); /* the same slice in two files */
    CHECK_INT(write_and_open(&(cut){"w", 1, {4, 0}, 2, {{0, 2, 0, 1}, {0, 2, 0, 1}}, {0, 2}}, 1,
                             EK_F32, &b),
              EK_EFORMAT);
    CHECK(says("'w[0:2]' is both in"));
    end();
}

static void lie(ek_tensor_decl *d)
{
    int64_t rows = d->shape[0];

    d->shape[0] = d->shape[1];
    d->shape[1] = rows;
}

static void flatten(ek_tensor_decl *d)
{
    d->shape[0] *= d->shape[1];
    d->dims = 1;
}

static void names(void)
{
    static const char *const plain[] = {"w[",         "w[0:1",   "w[1:1]",        "w[-1:2]",
                                        "w[00:1]",    "[0:2]",   "w[0:1,0:1]x",   "w[0:2,0:1,0:1]",
                                        "w[0:2,1:1]", "w[ 0:2]", "w[0:2][0:2,0]", "w[+0:2]"};
    int64_t shape[2] = {6, 4};
    cut c = {"w", 2, {6, 4}, 1, {{2, 3, 1, 2}}, {0}};
    ek_slice_set *b = NULL;
    double room[24];
    char name[60];

    ek_tensor_slice_name(name, sizeof(name), "x", &(ek_tensor_slice){2, 3, 1, 2}, 2, shape);
    CHECK(strcmp(name, "x[2:5,1:3]") == 0);
    ek_tensor_slice_name(name, sizeof(name), "x", &(ek_tensor_slice){2, 3, 0, 1}, 1, shape);
    CHECK(strcmp(name, "x[2:5]") == 0);
    ek_tensor_slice_name(name, sizeof(name), "x", &(ek_tensor_slice){0, 6, 0, 4}, 2, shape);
    CHECK(strcmp(name, "x") == 0);
    begin();
    CHECK(write_file(at("x.safetensors"), &c, 1, 0, EK_F32, lie) == EK_OK);
    CHECK_INT(ek_slice_set_open(at("x.safetensors"), &b), EK_EFORMAT);
    CHECK(says("'w[2:5,1:3]' has shape [2, 3]"));
    CHECK(write_file(at("x.safetensors"), &c, 1, 0, EK_F32, flatten) == EK_OK);
    CHECK_INT(ek_slice_set_open(at("x.safetensors"), &b), EK_EFORMAT);
    CHECK(write_file(at("x.safetensors"), &c, 1, 0, EK_F32, NULL) == EK_OK);
    CHECK(ek_slice_set_open_in(root.s, "x", &b) == EK_OK);
    CHECK_INT(ek_sliced_tensor_check(ek_slice_set_get(b, 0), 2, (int64_t[]){4, 4}), EK_EFORMAT);
    CHECK(says("the config says [4, 4]")); /* the slice exceeds the tensor */
    CHECK_INT(ek_sliced_tensor_check(ek_slice_set_get(b, 0), 1, (int64_t[]){6}), EK_EFORMAT);
    CHECK_INT(ek_sliced_tensor_read(ek_slice_set_get(b, 0), &(ek_tensor_slice){0, 1, 0, -1}, room,
                                    1, EK_F64),
              EK_EINVAL);
    ek_slice_set_close(&b);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        cut one = {plain[i], 2, {6, 4}, 1, {{0, 6, 0, 4}}, {0}};

        CHECK(write_file(at("x.safetensors"), &one, 1, 0, EK_F32, NULL) == EK_OK);
        CHECK(ek_slice_set_open_in(root.s, "x", &b) == EK_OK);
        CHECK(ek_slice_set_find(b, plain[i]) != NULL);
        ek_slice_set_close(&b);
    }
    CHECK_INT(ek_slice_set_open_in(root.s, "y", &b), EK_ENOENT);
    CHECK(says("y.safetensors"));
    end();
}

/* [2][3][4]: rows are those of the two leading dimensions. */
static void three_dimensions(void)
{
    ek_tensor_decl d = {"e", EK_BF16, 3, {2, 3, 4}};
    ek_safetensors_writer *w = NULL;
    float x[24], got[8];
    ek_slice_set *b = NULL;

    for (int i = 0; i < 24; i++)
        x[i] = (float)i;
    begin();
    CHECK(ek_safetensors_create(NULL, at("e.safetensors"), EK_WRITE_NEW, &d, 1, &w) == EK_OK);
    CHECK(ek_safetensors_append(w, "e", 24, x, EK_F32) == EK_OK);
    CHECK(ek_safetensors_finish(&w, NULL) == EK_OK);
    CHECK(ek_slice_set_open_in(root.s, "e", &b) == EK_OK);
    CHECK(ek_sliced_tensor_check(ek_slice_set_get(b, 0), 3, d.shape) == EK_OK);
    CHECK(ek_sliced_tensor_read(ek_slice_set_get(b, 0), &(ek_tensor_slice){4, 2, 1, 2}, got, 2,
                                EK_F32) == EK_OK);
    CHECK(got[0] == 17 && got[1] == 18 && got[2] == 21 && got[3] == 22);
    CHECK_INT(ek_sliced_tensor_read(ek_slice_set_get(b, 0), &(ek_tensor_slice){5, 2, 0, 4}, got, 4,
                                    EK_F32),
              EK_EFORMAT);
    CHECK(says("row 6"));
    ek_slice_set_close(&b);
    end();
}

static const ek_case cases[] = {
    EK_CASE(any_cut), EK_CASE(a_hole), EK_CASE(overlaps), EK_CASE(names), EK_CASE(three_dimensions),
};

EK_TEST_MAIN(cases)
