/* store/safetensors: round trips, sharded sets, every kind of malformed file with a message of
 * its own, and a writer that fails at every call. */
#include "ek_test.h"
#include "faulty_io.h"
#include "store/convert.h"
#include "store/safetensors.h"

#include <inttypes.h>
#include <stdint.h>
#include <xxhash.h>

static ek_path root;

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
    CHECK(ek_path_set(&root, "/tmp/ek_t_safetensors_XXXXXX") == EK_OK);
    CHECK(mkdtemp(root.s) != NULL);
}

static void end(void)
{
    CHECK(ek_folder_remove(NULL, root.s) == EK_OK);
}

static int says(const char *text)
{
    return strstr(ek_err_message(), text) != NULL;
}

/* --- round trips ------------------------------------------------------------------------------ */

static const ek_tensor_decl decls[] = {
    {"z.vector", EK_F32, 1, {5}},  {"a.matrix", EK_BF16, 2, {3, 7}}, {"scalar", EK_F64, 0, {0}},
    {"empty", EK_F32, 2, {0, 4}},  {"half", EK_F16, 3, {1, 2, 3}},   {"big", EK_BF16, 1, {1000003}},
    {"b.double", EK_F64, 1, {11}},
};
enum { N_DECLS = sizeof(decls) / sizeof(decls[0]) };

static int64_t elements(const ek_tensor_decl *d)
{
    int64_t n = 1;

    for (int i = 0; i < d->dims; i++)
        n *= d->shape[i];
    return n;
}

/* Element i of tensor t: a small number, exact in every type. */
static double element(int64_t t, int64_t i)
{
    return (double)((t * 31 + i * 7) % 255 - 127) / 4;
}

/* Writes all of `decls` in chunks. */
static ek_status write_all(const ek_io *io, const char *path, ek_write_mode mode, ek_dtype from,
                           int64_t chunk, ek_file_sum *sum)
{
    static double d[1000003], cut[1000003];
    ek_safetensors_writer *w = NULL;
    ek_status st;
    int64_t t, last = -1;

    EK_TRY_OUT(ek_safetensors_create(io, path, mode, decls, N_DECLS, &w));
    while ((t = ek_safetensors_next(w)) >= 0) {
        int64_t n = elements(&decls[t]);

        CHECK(t != last);
        last = t;
        for (int64_t i = 0; i < n; i++)
            d[i] = element(t, i);
        for (int64_t i = 0, m; i < n; i += m) {
            m = n - i < chunk ? n - i : chunk;
            ek_convert(m, d + i, EK_F64, cut, from);
            EK_TRY_OUT(ek_safetensors_append(w, decls[t].name, m, cut, from));
        }
    }
    EK_TRY_OUT(ek_safetensors_finish(&w, sum));
out:
    ek_safetensors_abort(&w);
    return st;
}

static void check_all(const ek_safetensors *st)
{
    static double d[1000003];

    CHECK_INT(ek_safetensors_count(st), N_DECLS);
    for (int64_t t = 0; t < N_DECLS; t++) {
        const ek_safetensor *x = ek_safetensors_find(st, decls[t].name);
        int64_t n = elements(&decls[t]), bad = 0;

        CHECK(x != NULL);
        if (x == NULL)
            continue;
        CHECK(x->readable && x->dtype == decls[t].dtype && x->dims == decls[t].dims);
        CHECK_INT(x->elements, n);
        CHECK(x->at % (int64_t)ek_dtype_size(x->dtype) == 0);
        CHECK(ek_safetensor_read(x, 0, n, d, EK_F64) == EK_OK);
        for (int64_t i = 0; i < n; i++)
            bad += d[i] != element(t, i);
        CHECK_INT(bad, 0);
    }
}

/* Names in the folder. */
static int64_t entries(void)
{
    ek_names l = {0};
    int64_t n;

    CHECK(ek_folder_entries(root.s, &l) == EK_OK);
    n = l.n;
    ek_names_free(&l);
    return n;
}

static void round_trips(void)
{
    static const ek_dtype from[] = {EK_F64, EK_F32, EK_F64};
    static const int64_t chunks[] = {1000003, 1000, 77777};
    ek_file_sum sum[3];
    ek_safetensors *st = NULL;
    ek_file_map m;
    int64_t size = 0;
    float f[3];

    begin();
    for (int i = 0; i < 3; i++) {
        CHECK(ek_file_remove(NULL, at("x.safetensors")) == EK_OK);
        CHECK(write_all(NULL, at("x.safetensors"), i == 1 ? EK_WRITE_NEW : EK_WRITE_REPLACE,
                        from[i], chunks[i], &sum[i]) == EK_OK);
        CHECK(ek_safetensors_open(at("x.safetensors"), &st) == EK_OK);
        if (st != NULL)
            check_all(st);
        ek_safetensors_close(&st);
        CHECK(sum[i].xxh64 == sum[0].xxh64); /* the same bytes for all chunk sizes */
        CHECK(ek_file_map_open(at("x.safetensors"), &m) == EK_OK);
        CHECK(XXH64(m.data, m.bytes, 0) == sum[i].xxh64);
        CHECK(memcmp((const char *)m.data + 8, "{\"__metadata__\":{\"format\":\"pt\"}", 31) == 0);
        CHECK((*(const unsigned char *)m.data & 7) == 0); /* header length */
        ek_file_map_close(&m);
        CHECK(ek_file_size(at("x.safetensors"), &size) == EK_OK && size == sum[i].bytes);
        CHECK_INT(entries(), 1);
    }
    CHECK(ek_safetensors_open(at("x.safetensors"), &st) == EK_OK);
    CHECK(strcmp(ek_safetensors_get(st, 0)->name, "a.matrix") == 0);
    CHECK(ek_safetensors_get(st, -1) == NULL && ek_safetensors_get(st, N_DECLS) == NULL);
    CHECK(ek_safetensors_find(st, "a.matri") == NULL);
    CHECK(ek_safetensor_read(ek_safetensors_find(st, "a.matrix"), 18, 3, f, EK_F32) == EK_OK);
    CHECK(f[2] == (float)element(1, 20));
    CHECK_INT(ek_safetensor_read(ek_safetensors_find(st, "a.matrix"), 19, 3, f, EK_F32), EK_EINVAL);
    CHECK(says("leave tensor 'a.matrix' of 21"));
    CHECK_INT(ek_safetensor_read(ek_safetensors_find(st, "a.matrix"), -1, 1, f, EK_F32), EK_EINVAL);
    ek_safetensors_close(&st);
    ek_safetensors_close(&st);
    end();
}

static void writer_misuse(void)
{
    static const ek_tensor_decl two[] = {{"b", EK_F32, 1, {2}}, {"a", EK_F32, 1, {2}}};
    static const ek_tensor_decl twice[] = {{"b", EK_F32, 1, {2}}, {"b", EK_BF16, 1, {2}}};
    static const ek_tensor_decl huge[] = {{"b", EK_F32, 2, {INT64_MAX / 2, 3}}};
    static const ek_tensor_decl meta[] = {{"__metadata__", EK_F32, 1, {2}}};
    static const ek_tensor_decl bytes[] = {{"\xff", EK_F32, 1, {2}}};
    ek_safetensors_writer *w = NULL;
    float f[4] = {1, 2, 3, 4};

    begin();
    CHECK_INT(ek_safetensors_create(NULL, at("f"), EK_WRITE_REPLACE, twice, 2, &w), EK_EINVAL);
    CHECK(says("'b' is taken"));
    CHECK_INT(ek_safetensors_create(NULL, at("f"), EK_WRITE_REPLACE, huge, 1, &w), EK_EINVAL);
    CHECK(says("out of range"));
    CHECK_INT(ek_safetensors_create(NULL, at("f"), EK_WRITE_REPLACE, meta, 1, &w), EK_EINVAL);
    CHECK_INT(ek_safetensors_create(NULL, at("f"), EK_WRITE_REPLACE, bytes, 1, &w), EK_EINVAL);
    CHECK(says("UTF-8"));
    CHECK_INT(ek_safetensors_create(NULL, at("no/f"), EK_WRITE_REPLACE, two, 2, &w), EK_ENOENT);
    CHECK(ek_safetensors_create(NULL, at("f"), EK_WRITE_REPLACE, two, 2, &w) == EK_OK);
    CHECK_INT(ek_safetensors_next(w), 1);
    CHECK_INT(ek_safetensors_append(w, "b", 1, f, EK_F32), EK_EINVAL);
    CHECK(says("out of order, next is 'a'"));
    CHECK_INT(ek_safetensors_append(w, "a", 3, f, EK_F32), EK_EINVAL);
    CHECK(says("which has 2 left"));
    CHECK(ek_safetensors_append(w, "a", 2, f, EK_F32) == EK_OK);
    CHECK_INT(ek_safetensors_finish(&w, NULL), EK_ESTATE);
    CHECK(w == NULL && says("tensor 'b' are not complete"));
    CHECK_INT(entries(), 0);
    CHECK(ek_safetensors_create(NULL, at("f"), EK_WRITE_NEW, two, 0, &w) == EK_OK);
    CHECK(ek_safetensors_finish(&w, NULL) == EK_OK); /* no tensors at all */
    end();
}

/* Whatever call fails, the final name holds a whole file or nothing. */
static void writer_at_every_call(void)
{
    ek_safetensors *st = NULL;
    int failed = 0;

    for (int mode = FAULTY_ONCE; mode <= FAULTY_CRASH; mode++)
        for (int64_t n = 1, last = 0; !last; n++) {
            ek_status got;

            begin();
            faulty_arm((faulty_mode)mode, n, ENOSPC);
            got = write_all(&faulty_io, at("f"), EK_WRITE_REPLACE, EK_F32, 1 << 20, NULL);
            last = faulty.calls < n;
            CHECK(got == EK_OK || got == EK_ENOSPC);
            failed += got != EK_OK;
            if (ek_file_kind_of(at("f")) != EK_FILE_NONE) {
                CHECK(ek_safetensors_open(at("f"), &st) == EK_OK);
                if (st != NULL)
                    check_all(st);
                ek_safetensors_close(&st);
            } else {
                CHECK(got != EK_OK);
            }
            CHECK(mode != FAULTY_ONCE || entries() == (ek_file_kind_of(at("f")) != EK_FILE_NONE));
            end();
        }
    CHECK(failed >= 20);
}

/* --- malformed files -------------------------------------------------------------------------- */

/* A file from a header text and `data` bytes of zeros. */
static ek_status parse(const char *header, size_t data)
{
    size_t n = strlen(header);
    unsigned char *p = calloc(8 + n + data, 1);
    ek_safetensors *st = NULL;
    ek_status got;

    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(n >> (8 * i));
    memcpy(p + 8, header, n);
    got = ek_safetensors_parse(p, 8 + n + data, "lie.safetensors", &st);
    ek_safetensors_close(&st);
    free(p);
    return got;
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    const char *message; /* part of the message; NULL: the file is valid */
} files[] = {
    {"{}", 0, NULL},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}  ", 8, NULL},
    {"{\"a\":" T("\"I64\"", "[0,9]", "[0,0]") ",\"b\":" T("\"F4\"", "[4]", "[0,2]") "}", 2, NULL},
    {"", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"{\"a\":", 0, "not valid JSON"},
    {"{} x", 0, "not valid JSON"},
    {"{\"a\":1,\"a\":1}", 0, "duplicate"},
    {"{\"\xff\":1}", 0, "unable to decode byte 0xff"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "duplicate"},
    {"{\"a\":3}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":{}}", 0, "dtype is missing"},
    {"{\"a\":" T("7", "[2]", "[0,8]") "}", 8, "dtype is missing or not a string"},
    {"{\"a\":" T("\"F31\"", "[2]", "[0,8]") "}", 8, "dtype 'F31' is unknown"},
    {"{\"a\":" T("\"F32\"", "2", "[0,8]") "}", 8, "shape is missing or not a list"},
    {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "9 dimensions"},
    {"{\"a\":" T("\"F32\"", "[2.0]", "[0,8]") "}", 8, "dimension 0 of its shape is not an integer"},
    {"{\"a\":" T("\"F32\"", "[1,-2]", "[0,8]") "}", 8, "dimension 1 of its shape is negative: -2"},
    {"{\"a\":" T("\"F32\"", "[4294967296,4294967296]", "[0,8]") "}", 8, "elements of its shape ov"},
    {"{\"a\":" T("\"F32\"", "[4611686018427387904]", "[0,8]") "}", 8, "bytes of its shape over"},
    {"{\"a\":" T("\"F32\"", "[99999999999999999999]", "[0,8]") "}", 8, "too big integer"},
    {"{\"a\":" T("\"F6_E2M3\"", "[3]", "[0,2]") "}", 2, "do not fill whole bytes"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0]") "}", 8, "data_offsets are missing or not two integers"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,\"8\"]") "}", 8, "not two integers"},
    {"{\"a\":" T("\"F32\"", "[2]", "[8,0]") "}", 8, "data_offsets [8, 0] are not a range"},
    {"{\"a\":" T("\"F32\"", "[2]", "[-8,0]") "}", 8, "data_offsets [-8, 0] are not a range"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", 7, "end at byte 8, but the file has only 7"},
    {"{\"a\":" T("\"F32\"", "[3]", "[0,8]") "}", 8, "need 12 bytes, data_offsets hold 8"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", 9, "1 bytes after the last tensor"},
    {"{\"a\":" T("\"F32\"", "[2]", "[4,12]") "}", 12, "a hole of 4 bytes before tensor 'a'"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"F32\"", "[2]", "[4,12]") "}", 12,
     "tensor 'b' overlaps 'a'"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"F32\"", "[2]", "[0,8]") "}", 8,
     "overlaps"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k' is not a string"},
};

static void malformed(void)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        ek_status got = parse(files[i].header, files[i].data);

        CHECK_INT(got, files[i].message != NULL ? EK_EFORMAT : EK_OK);
        if (files[i].message == NULL || got == EK_OK)
            continue;
        CHECK(says("lie.safetensors: "));
        if (!says(files[i].message))
            EK_T_FAIL("case %zu: \"%s\" lacks \"%s\"", i, ek_err_message(), files[i].message);
    }
}

/* Defects before the JSON. */
static void malformed_lengths(void)
{
    static const struct {
        uint64_t length;
        size_t bytes;
        const char *message;
    } c[] = {
        {0, 0, "0 bytes are too few"},
        {2, 7, "7 bytes are too few"},
        {3, 10, "takes 3 bytes, but only 2 follow"},
        {100000001, 10, "over the limit"},
        {UINT64_MAX, 10, "over the limit"},
        {UINT64_MAX - 7, 10, "over the limit"},
        {0, 10, "does not begin"},
    };
    unsigned char p[10] = "........{}";
    ek_safetensors *st = NULL;

    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        for (int k = 0; k < 8; k++)
            p[k] = (unsigned char)(c[i].length >> (8 * k));
        CHECK_INT(ek_safetensors_parse(p, c[i].bytes, "lie", &st), EK_EFORMAT);
        CHECK(says(c[i].message));
    }
}

/* A known type that is not readable as weights. */
static void unreadable_type(void)
{
    static const char header[] =
        "{\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    unsigned char p[8 + sizeof(header) - 1 + 8] = {sizeof(header) - 1};
    ek_safetensors *st = NULL;
    const ek_safetensor *t;
    float f;

    memcpy(p + 8, header, sizeof(header) - 1);
    CHECK(ek_safetensors_parse(p, sizeof(p), "m", &st) == EK_OK);
    t = ek_safetensors_find(st, "ids");
    CHECK(t != NULL && !t->readable && strcmp(t->type, "I64") == 0 && t->bytes == 8);
    CHECK_INT(ek_safetensor_read(t, 0, 1, &f, EK_F32), EK_EFORMAT);
    CHECK(says("m: tensor 'ids' has elements of type I64, which cannot be read"));
    ek_safetensors_close(&st);
}

/* --- sharded sets ----------------------------------------------------------------------------- */

static void put_shard(const char *file, const char *tensor, float value)
{
    ek_tensor_decl d = {tensor, EK_F32, 1, {1}};
    ek_safetensors_writer *w = NULL;

    CHECK(ek_safetensors_create(NULL, at(file), EK_WRITE_REPLACE, &d, 1, &w) == EK_OK);
    CHECK(ek_safetensors_append(w, tensor, 1, &value, EK_F32) == EK_OK);
    CHECK(ek_safetensors_finish(&w, NULL) == EK_OK);
}

static ek_status open_with_index(const char *index)
{
    ek_safetensors *st = NULL;
    ek_status got;
    float f = 0;

    CHECK(ek_file_replace(NULL, at("model.safetensors.index.json"), index, strlen(index)) == EK_OK);
    got = ek_safetensors_open(root.s, &st);
    if (got == EK_OK) {
        CHECK_INT(ek_safetensors_count(st), 2);
        CHECK(ek_safetensor_read(ek_safetensors_find(st, "y"), 0, 1, &f, EK_F32) == EK_OK);
        CHECK(f == 2);
    }
    ek_safetensors_close(&st);
    return got;
}

static void sharded(void)
{
    static const struct {
        const char *index;
        ek_status status;
        const char *message;
    } c[] = {
        {"{\"metadata\":{},\"weight_map\":{\"x\":\"1.st\",\"y\":\"2.st\"}}", EK_OK, ""},
        {"{\"weight_map\":{\"x\":\"1.st\",\"y\":\"3.st\"}}", EK_ENOENT,
         "3.st of tensor 'y' is mis"},
        {"{\"weight_map\":{\"x\":\"2.st\",\"y\":\"1.st\"}}", EK_EFORMAT, "'x' is in "},
        {"{\"weight_map\":{\"x\":\"1.st\",\"y\":\"1.st\"}}", EK_EFORMAT, "'y' is not in its file "},
        {"{\"weight_map\":{\"x\":\"1.st\",\"y\":\"2.st\",\"z\":\"2.st\"}}", EK_EFORMAT,
         "'z' is not"},
        {"{\"weight_map\":{\"y\":\"2.st\",\"q\":\"1.st\"}}", EK_EFORMAT, "'q' is not in its file"},
        {"{\"weight_map\":{\"x\":\"1.st\",\"y\":\"2.st\",\"w\":\"4.st\"}}", EK_EFORMAT,
         "lacks tensor 'v'"},
        {"{\"weight_map\":{\"x\":\"1.st\",\"y\":\"5.st\"}}", EK_EFORMAT, "'x' is both in "},
        {"{\"weight_map\":{\"x\":\"../1.st\"}}", EK_EFORMAT, "leaves the folder"},
        {"{\"weight_map\":{\"x\":\"/1.st\"}}", EK_EFORMAT, "leaves the folder"},
        {"{\"weight_map\":{\"x\":1}}", EK_EFORMAT, "is not a file name"},
        {"{\"weight_map\":{}}", EK_EFORMAT, "weight_map is empty"},
        {"{\"weight_map\":[]}", EK_EFORMAT, "weight_map is missing"},
        {"[]", EK_EFORMAT, "weight_map is missing"},
        {"{", EK_EFORMAT, "not valid JSON"},
    };
    static const ek_tensor_decl two[] = {{"w", EK_F32, 1, {0}}, {"v", EK_F32, 1, {0}}};
    ek_safetensors_writer *w = NULL;
    ek_safetensors *st = NULL;

    begin();
    CHECK_INT(ek_safetensors_open(root.s, &st), EK_ENOENT);
    CHECK(says("holds neither model.safetensors nor model.safetensors.index.json"));
    put_shard("1.st", "x", 1);
    put_shard("2.st", "y", 2);
    put_shard("5.st", "x", 3);
    CHECK(ek_safetensors_create(NULL, at("4.st"), EK_WRITE_NEW, two, 2, &w) == EK_OK);
    CHECK(ek_safetensors_finish(&w, NULL) == EK_OK);
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        CHECK_INT(open_with_index(c[i].index), c[i].status);
        if (c[i].status != EK_OK && !says(c[i].message))
            EK_T_FAIL("case %zu: \"%s\" lacks \"%s\"", i, ek_err_message(), c[i].message);
    }
    CHECK(open_with_index(c[0].index) == EK_OK);
    CHECK(ek_safetensors_open(at("model.safetensors.index.json"), &st) == EK_OK);
    ek_safetensors_close(&st);
    put_shard("model.safetensors", "alone", 5); /* goes before an index */
    CHECK(ek_safetensors_open(root.s, &st) == EK_OK && ek_safetensors_count(st) == 1);
    ek_safetensors_close(&st);
    CHECK_INT(ek_safetensors_open(at("gone.safetensors"), &st), EK_ENOENT);
    CHECK(says("gone.safetensors"));
    end();
}

static const ek_case cases[] = {
    EK_CASE(round_trips), EK_CASE(writer_misuse),     EK_CASE(writer_at_every_call),
    EK_CASE(malformed),   EK_CASE(malformed_lengths), EK_CASE(unreadable_type),
    EK_CASE(sharded),
};

EK_TEST_MAIN(cases)
