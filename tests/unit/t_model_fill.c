/* Filling weights: the packed forms of a model without masters are those of one with them, from
 * the disk and from the page cache; failures; progress. */
#include "ek_test.h"
#include "faulty_disk_io.h"
#include "model/hf/init.h"
#include "model/hf/io.h"
#include "model/param_buckets.h"
#include "unit/kernel_tables.h"

#include <fcntl.h>
#include <stdatomic.h>

enum { THREADS = 3 };

/* No size is a multiple of a panel; embedding and head take several jobs. */
static ek_model_spec odd_spec(int tied)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = 9001;
    s.hidden = 70;
    s.layers = 2;
    s.heads = 7;
    s.kv_heads = 7;
    s.head_dim = 10;
    s.experts = 3;
    s.top_k = 2;
    s.ff = 37;
    s.tie_embeddings = tied;
    return s;
}

static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};

/* All modes and instruction sets of this CPU; with sanitizers the slowest and the fastest. */
static void each_kernels(void (*run)(const ek_kernels *k, int tied))
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        for (int isa = EK_ISA_REF; isa <= (int)ek_cpu_isa(); isa++) {
            int fastest = isa == (int)ek_cpu_isa();
            ek_kernels *k = NULL;

            if (has_same_next(modes[i], isa) || (EK_T_SLOW && !fastest && isa > EK_ISA_REF))
                continue;
            CHECK(ek_kernels_create(modes[i], (ek_isa)isa, THREADS, &k) == EK_OK);
            for (int tied = 0; k != NULL && tied < 2; tied++)
                if (!EK_T_SLOW || tied == (fastest && modes[i] != EK_MODE_FP32))
                    run(k, tied);
            ek_kernels_destroy(&k);
        }
}

static int form_differs(const ek_kernels *k, const ek_weight *x, const ek_weight *y)
{
    size_t bytes = k->packed_bytes(k, x->out, x->in, EK_PACKED_FORWARD);

    return memcmp(x->forward, y->forward, bytes) != 0;
}

/* b has no master exactly where its kernels read packed forms only, and all that they read is as
 * in a. */
static void same_forms(const ek_model *a, const ek_model *b)
{
    const ek_kernels *k = a->k;
    int64_t without = 0, packed = 0;

    for (int64_t i = 0; i < a->n_params; i++) {
        const ek_weight *x = a->params[i].w, *y = b->params[i].w;
        int form = a->params[i].forms && k->packed_bytes(k, x->out, x->in, EK_PACKED_FORWARD) > 0;

        packed += form && a->params[i].module != EK_MODULE_EMBED;
        without += y->p == NULL;
        if (form && form_differs(k, x, y))
            EK_T_FAIL("%s: the packed form of weight %lld differs", k->name, (long long)i);
        if (y->p != NULL &&
            memcmp(x->p, y->p, (size_t)ek_weight_elements(x) * ek_dtype_size(k->real)) != 0)
            EK_T_FAIL("%s: master %lld differs", k->name, (long long)i);
    }
    CHECK_INT(without, packed);
}

static void compare_with_masters(const ek_kernels *k, int tied)
{
    ek_model_spec s = odd_spec(tied);
    ek_model *a = NULL, *b = NULL;

    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 1}, &a) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 0}, &b) == EK_OK);
    CHECK(ek_model_init(a, 5) == EK_OK && ek_model_init(b, 5) == EK_OK);
    CHECK(ek_model_pack(a) == EK_OK && ek_model_pack(b) == EK_OK);
    same_forms(a, b);
    ek_model_destroy(&a);
    ek_model_destroy(&b);
}

static void packed_forms_without_masters_are_those_of_masters(void)
{
    each_kernels(compare_with_masters);
}

/* Writes dirty pages to the disk, and drops them from the page cache. */
static void drop_file(const char *path)
{
    int fd = open(path, O_RDONLY);

    CHECK(fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 &&
          close(fd) == 0);
}

/* The same through a file. */
static void compare_after_reading(const ek_kernels *k, int tied)
{
    ek_model_spec s = odd_spec(tied);
    ek_owned_tensors owned = {0};
    ek_model *a = NULL, *b = NULL;
    char folder[] = "/var/tmp/ek_fill_XXXXXX";
    ek_slice_set *files = NULL;
    ek_path path;

    CHECK(mkdtemp(folder) != NULL);
    CHECK(ek_path_set(&path, "%s/model.safetensors", folder) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 1}, &a) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 0}, &b) == EK_OK);
    CHECK(ek_model_init(a, 9) == EK_OK && ek_model_pack(a) == EK_OK);
    CHECK(ek_model_list_owned(a, EK_ARRAYS_MASTER, &owned) == EK_OK);
    CHECK(ek_owned_tensors_write(&owned, k->real, NULL, path.s, EK_WRITE_REPLACE, NULL, NULL) ==
          EK_OK);
    CHECK(ek_slice_set_open(path.s, &files) == EK_OK);
    for (int cached = 0; cached < 3; cached++) {
        ek_load_options how = {.files = {.through_cache = cached == 1}};

        if (cached < 2)
            drop_file(path.s);
        CHECK(ek_model_load(b, files, EK_ARRAYS_MASTER, &how) == EK_OK);
        CHECK(ek_model_pack(b) == EK_OK);
        same_forms(a, b);
    }
    CHECK(truncate(path.s, 100000) == 0);
    CHECK_INT(ek_model_load(b, files, EK_ARRAYS_MASTER, NULL), EK_EFORMAT);
    CHECK(strstr(ek_err_message(), "the file was cut short") != NULL);
    ek_slice_set_close(&files);
    ek_owned_tensors_free(&owned);
    ek_model_destroy(&a);
    ek_model_destroy(&b);
    CHECK(unlink(path.s) == 0 && rmdir(folder) == 0);
}

static void packed_forms_read_from_a_file_are_those_of_masters(void)
{
    each_kernels(compare_after_reading);
}

/* --- memory of an accelerator ----------------------------------------------------------------- */

/* Counts bytes that move to each user. */
typedef struct {
    ek_memory is;
    atomic_llong moved[2];
} other_memory;

static ek_status other_alloc(const ek_memory *m, size_t bytes, size_t likely, const char *what,
                             void **out)
{
    (void)m;
    (void)likely;
    (void)what;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *out != NULL ? EK_OK : EK_ENOMEM;
}

static void other_free(const ek_memory *m, void *memory, size_t likely)
{
    (void)m;
    (void)likely;
    free(memory);
}

static void other_clear(const ek_memory *m, void *memory, size_t bytes)
{
    (void)m;
    memset(memory, 0, bytes);
}

static void other_move(const ek_memory *m, void *memory, size_t bytes, ek_memory_user next)
{
    (void)memory;
    atomic_fetch_add(&((other_memory *)(uintptr_t)m)->moved[next], (long long)bytes);
}

/* Values are the same as in system memory; what the host writes in place comes to it before, and
 * goes to the accelerator after. */
static void weights_in_other_memory_are_the_same_and_move(void)
{
    other_memory o = {.is = {other_alloc, other_free, NULL, other_clear, other_move}};
    ek_model_spec s = odd_spec(0);
    ek_kernels *k = NULL, other;

    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), THREADS, &k) == EK_OK);
    other = *k;
    other.memory = &o.is;
    for (int trained = 0; trained < 2; trained++) {
        ek_model *a = NULL, *b = NULL;
        int64_t bytes = 0;

        memset(o.moved, 0, sizeof(o.moved));
        CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 1}, &a) == EK_OK);
        CHECK(ek_model_create(&s, &other, &(ek_model_config){.trained = trained}, &b) == EK_OK);
        CHECK(ek_model_init(a, 5) == EK_OK && ek_model_init(b, 5) == EK_OK);
        CHECK(ek_model_pack(a) == EK_OK && ek_model_pack(b) == EK_OK);
        for (int64_t i = 0; i < a->n_params; i++) {
            const ek_weight *x = a->params[i].w, *y = b->params[i].w;
            size_t of_weight = (size_t)ek_weight_elements(x) * ek_dtype_size(k->real);

            if (y->p != NULL)
                bytes += (int64_t)of_weight;
            if (y->p != NULL ? memcmp(x->p, y->p, of_weight) != 0 : form_differs(k, x, y))
                EK_T_FAIL("weight %lld differs", (long long)i);
        }
        CHECK(bytes > 0);
        CHECK_INT(o.moved[EK_USED_BY_HOST], bytes);
        CHECK_INT(o.moved[EK_USED_BY_ACCELERATOR], bytes);
        ek_model_destroy(&a);
        ek_model_destroy(&b);
    }
    ek_kernels_destroy(&k);
}

/* --- failures and progress -------------------------------------------------------------------- */

typedef struct {
    atomic_llong calls, fails_from; /* calls from this number on fail */
    int64_t last, all, shrank;
} counted;

static ek_status read_counted(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                              const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type,
                              void *dst, int64_t ld)
{
    counted *c = context;
    long long call = atomic_fetch_add(&c->calls, 1);

    (void)a;
    (void)in;
    for (int64_t r = 0; r < slice->rows; r++)
        memset((char *)dst + r * ld * (int64_t)ek_dtype_size(type), 0,
               (size_t)slice->cols * ek_dtype_size(type));
    EK_REQUIRE(call < atomic_load(&c->fails_from), EK_EIO, "no %s", t->name);
    return EK_OK;
}

static void count_progress(void *context, int64_t done, int64_t all)
{
    counted *c = context;

    c->shrank += done < c->last || done > all;
    c->last = done;
    c->all = all;
}

static ek_status fill_counted(ek_model *m, counted *c)
{
    return ek_model_fill(
        m, EK_ARRAYS_MASTER,
        &(ek_value_source){.read = read_counted, .context = c, .progress = {count_progress, c}});
}

static void a_failing_read_ends_the_fill_with_its_message(void)
{
    ek_model_spec s = odd_spec(0);
    counted c = {.fails_from = 1LL << 60};
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    long long calls;

    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), THREADS, &k) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 0}, &m) == EK_OK);
    CHECK(fill_counted(m, &c) == EK_OK);
    CHECK(c.all > 0 && c.last == c.all && c.shrank == 0);
    calls = c.calls;
    for (long long n = 0; n < calls; n += 1 + calls / 20) {
        counted f = {.fails_from = n};

        CHECK_INT(fill_counted(m, &f), EK_EIO);
        CHECK(strncmp(ek_err_message(), "no ", 3) == 0);
        CHECK(f.calls <= n + THREADS + 2); /* the rest is not read */
    }
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
}

/* Each call for a file fails, and all from there on: one sentence with its name. */
static void a_failing_disk_ends_the_fill_with_one_sentence(void)
{
    ek_model_spec s = odd_spec(0);
    ek_load_options how = {.files = {.backend = EK_DISK_POOL, .io = &faulty_disk_io}};
    char folder[] = "/var/tmp/ek_fill_XXXXXX";
    ek_owned_tensors owned = {0};
    ek_slice_set *files = NULL;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_path path;
    int calls = 1, failed = 0;

    CHECK(mkdtemp(folder) != NULL);
    CHECK(ek_path_set(&path, "%s/model.safetensors", folder) == EK_OK);
    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), THREADS, &k) == EK_OK);
    CHECK(ek_model_create(&s, k, &(ek_model_config){.trained = 1}, &m) == EK_OK);
    CHECK(ek_model_init(m, 9) == EK_OK);
    CHECK(ek_model_list_owned(m, EK_ARRAYS_MASTER, &owned) == EK_OK);
    CHECK(ek_owned_tensors_write(&owned, EK_BF16, NULL, path.s, EK_WRITE_REPLACE, NULL, NULL) ==
          EK_OK);
    CHECK(ek_slice_set_open(path.s, &files) == EK_OK);
    for (int at = 1; at <= calls + 1; at++) { /* the last one lets all succeed */
        ek_status st;

        drop_file(path.s);
        arm_disk_fault(at, EIO, 1);
        st = ek_model_load(m, files, EK_ARRAYS_MASTER, &how);
        calls = atomic_load(&faulty_disk.calls);
        CHECK(st == EK_OK || st == EK_EIO);
        failed += st == EK_EIO && strstr(ek_err_message(), path.s) != NULL &&
                  strchr(ek_err_message(), '\n') == NULL;
        CHECK(st == EK_OK || failed > 0);
    }
    arm_disk_fault(0, 0, 0);
    CHECK(failed >= 3); /* opening, and reading at least two batches */
    ek_slice_set_close(&files);
    ek_owned_tensors_free(&owned);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    CHECK(unlink(path.s) == 0 && rmdir(folder) == 0);
}

static const ek_case cases[] = {
    EK_CASE(packed_forms_without_masters_are_those_of_masters),
    EK_CASE(packed_forms_read_from_a_file_are_those_of_masters),
    EK_CASE(weights_in_other_memory_are_the_same_and_move),
    EK_CASE(a_failing_read_ends_the_fill_with_its_message),
    EK_CASE(a_failing_disk_ends_the_fill_with_one_sentence),
};
EK_TEST_MAIN(cases)
