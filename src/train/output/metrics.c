/* Writing, trimming and refilling metrics.jsonl. */
#include "train/output/metrics.h"

#include "base/file.h"
#include "base/log.h"
#include "train/output/spikes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_CAP = 2048, STEP_CAP = 48, BLOCK_BYTES = 1 << 16 };

/* --- trimming --------------------------------------------------------------------------------- */

/* A file is read from its end, so the cost depends on the lines removed only. */

/* One block of a file at a time. */
typedef struct {
    int fd;
    off_t at; /* of the block's first byte */
    ssize_t n;
    char data[BLOCK_BYTES];
} block_reader;

/* Reads the block that ends at `end`; false: the file cannot be read there. */
static int read_block(block_reader *b, off_t end)
{
    b->at = end > BLOCK_BYTES ? end - BLOCK_BYTES : 0;
    do
        b->n = pread(b->fd, b->data, (size_t)(end - b->at), b->at);
    while (b->n < 0 && errno == EINTR);
    return b->n == end - b->at;
}

/* Finds the end of the last complete line among the first `end` bytes: the offset behind its
 * newline, or 0 where there is none; -1: the file cannot be read. */
static off_t find_line_end(block_reader *b, off_t end)
{
    while (end > 0) {
        const char *newline;

        if ((b->at >= end || end > b->at + b->n) && !read_block(b, end))
            return -1;
        newline = memrchr(b->data, '\n', (size_t)(end - b->at));
        if (newline != NULL)
            return b->at + (newline - b->data) + 1;
        end = b->at;
    }
    return 0;
}

/* The step of the line at `at`; -1: it is not a line of metrics. */
static int64_t read_step(int fd, off_t at)
{
    char text[STEP_CAP];
    int64_t step;
    ssize_t n = pread(fd, text, sizeof(text) - 1, at);

    if (n <= 0)
        return -1;
    text[n] = '\0';
    return sscanf(text, "{\"step\": %" SCNd64, &step) == 1 ? step : -1;
}

/* Bytes of the file up to the end of the last line of a step below first_step; -1: it cannot be
 * read.  *next: the step after that line's. */
static off_t bytes_before(block_reader *b, off_t size, int64_t first_step, int64_t *next)
{
    off_t end = find_line_end(b, size);

    while (end > 0) {
        off_t begin = find_line_end(b, end - 1);
        int64_t step;

        if (begin < 0)
            return -1;
        step = read_step(b->fd, begin);
        if (step >= 0 && step < first_step) {
            *next = step + 1;
            return end;
        }
        end = begin;
    }
    return end;
}

/* --- lines that are removed ------------------------------------------------------------------- */

/* Takes one line, with its newline if it is complete. */
typedef ek_status (*line_fn)(void *context, const char *line, size_t bytes);

/* Calls fn with each line of [begin, end). */
static ek_status for_lines(int fd, off_t begin, off_t end, line_fn fn, void *context)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *f = own >= 0 ? fdopen(own, "r") : NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    ek_status st = EK_OK;

    if (f == NULL && own >= 0)
        close(own);
    EK_REQUIRE_OUT(f != NULL && fseeko(f, begin, SEEK_SET) == 0, EK_EIO,
                   "cannot read lines of metrics: %s", strerror(errno));
    while (begin < end && st == EK_OK && (n = getline(&line, &cap, f)) > 0) {
        st = fn(context, line, (size_t)n);
        begin += n;
    }
    EK_REQUIRE_OUT(st < 0 || begin >= end, EK_EIO, "cannot read lines of metrics");
out:
    free(line);
    if (f != NULL)
        fclose(f);
    return st;
}

/* The step of a complete line; -1: it is none. */
static int64_t step_of(const char *line, size_t bytes)
{
    int64_t step;

    return line[bytes - 1] == '\n' && sscanf(line, "{\"step\": %" SCNd64, &step) == 1 ? step : -1;
}

static ek_status copy_line(void *to, const char *line, size_t bytes)
{
    return step_of(line, bytes) >= 0 ? ek_file_out_write(to, line, bytes) : EK_OK;
}

/* The file of removed lines, for reading. */
typedef struct {
    block_reader *b; /* b->fd: -1 if there is no such file */
    ek_path path;
    off_t size;
} undone_file;

static ek_status open_undone(const ek_metrics *m, undone_file *u)
{
    struct stat s;

    u->b = calloc(1, sizeof(*u->b));
    EK_REQUIRE(u->b != NULL, EK_ENOMEM, "no memory to read %s", m->path);
    u->b->fd = -1;
    EK_TRY(ek_path_set(&u->path, "%.*s-undone.jsonl", (int)(strlen(m->path) - strlen(".jsonl")),
                       m->path));
    u->b->fd = open(u->path.s, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (u->b->fd >= 0 && fstat(u->b->fd, &s) == 0 && S_ISREG(s.st_mode))
        u->size = s.st_size;
    return EK_OK;
}

static void close_undone(undone_file *u)
{
    if (u->b != NULL && u->b->fd >= 0)
        close(u->b->fd);
    free(u->b);
}

/* Writes the lines [begin, end), of steps before `next`, and those of later steps that were removed
 * before. */
static ek_status write_undone(const ek_metrics *m, const undone_file *u, off_t begin, off_t end,
                              int64_t next)
{
    ek_file_out f;
    int64_t before;
    off_t later = bytes_before(u->b, u->size, next, &before);
    ek_status st;

    EK_REQUIRE(later >= 0, EK_EIO, "cannot read %s: %s", u->path.s, strerror(errno));
    EK_TRY(ek_file_out_open(NULL, u->path.s, EK_WRITE_REPLACE, &f));
    st = for_lines(m->fd, begin, end, copy_line, &f);
    if (st == EK_OK && later < u->size)
        st = for_lines(u->b->fd, later, u->size, copy_line, &f);
    if (st == EK_OK)
        st = ek_file_out_close(&f);
    if (st < 0)
        ek_file_out_discard(&f);
    return st;
}

/* Copies lines of completed steps aside that are about to be removed, those behind `keep`.  On a
 * full disk they are lost. */
static ek_status keep_undone(const ek_metrics *m, block_reader *b, off_t keep, off_t size)
{
    undone_file u = {0};
    int64_t next = 0;
    off_t end = bytes_before(b, size, INT64_MAX, &next);
    ek_status st;

    EK_REQUIRE(end >= 0, EK_EIO, "cannot read %s: %s", m->path, strerror(errno));
    if (end <= keep)
        return EK_OK;
    st = open_undone(m, &u);
    if (st == EK_OK)
        st = write_undone(m, &u, keep, end, next);
    close_undone(&u);
    if (st != EK_ENOSPC)
        return st;
    ek_log("train", EK_LOG_WARN, "removed lines of metrics.jsonl are not kept: %s",
           ek_err_message());
    return EK_OK;
}

/* Removes lines of steps from first_step on, and incomplete lines, from the end of the file. */
static ek_status trim_metrics(const ek_metrics *m, int64_t first_step, int64_t *next)
{
    block_reader *b = calloc(1, sizeof(*b));
    struct stat s;
    off_t keep;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(b != NULL, EK_ENOMEM, "no memory to read %s", m->path);
    b->fd = m->fd;
    EK_REQUIRE_OUT(fstat(m->fd, &s) == 0 && S_ISREG(s.st_mode), EK_EFORMAT,
                   "%s is not a regular file", m->path);
    keep = bytes_before(b, s.st_size, first_step, next);
    EK_REQUIRE_OUT(keep >= 0, EK_EIO, "cannot read %s: %s", m->path, strerror(errno));
    if (keep < s.st_size)
        EK_TRY_OUT(keep_undone(m, b, keep, s.st_size));
    EK_REQUIRE_OUT(keep == s.st_size || ftruncate(m->fd, keep) == 0, EK_EIO,
                   "cannot shorten %s: %s", m->path, strerror(errno));
out:
    free(b);
    return st;
}

ek_status ek_metrics_open(const char *out_dir, int64_t first_step, ek_metrics *m)
{
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;

    m->fd = -1;
    m->next = 0;
    snprintf(m->path, sizeof(m->path), "%s/metrics.jsonl", out_dir);
    m->fd = open(m->path, flags, 0644);
    EK_REQUIRE(m->fd >= 0, EK_EIO, "cannot write %s: %s", m->path, strerror(errno));
    return trim_metrics(m, first_step, &m->next);
}

/* --- filling in ------------------------------------------------------------------------------- */

static ek_status check_line(void *context, const char *line, size_t bytes)
{
    int64_t *step = context;

    *step = step_of(line, bytes) == *step ? *step + 1 : -2; /* which no line has */
    return EK_OK;
}

static ek_status append_line(void *context, const char *line, size_t bytes)
{
    const ek_metrics *m = context;
    ssize_t done = write(m->fd, line, bytes);

    EK_REQUIRE(done == (ssize_t)bytes, done < 0 && errno != ENOSPC ? EK_EIO : EK_ENOSPC,
               "cannot write %s: %s", m->path, done < 0 ? strerror(errno) : "the disk is full");
    return EK_OK;
}

/* Appends the lines of steps from m->next to end_step - 1, if they are all there. */
static ek_status append_undone(ek_metrics *m, const undone_file *u, int64_t end_step)
{
    int64_t last = 0, before = 0, step = m->next;
    off_t end = bytes_before(u->b, u->size, end_step, &last), begin;

    if (end <= 0 || last != end_step)
        return EK_OK;
    begin = bytes_before(u->b, end, m->next, &before);
    if (begin < 0)
        return EK_OK;
    EK_TRY(for_lines(u->b->fd, begin, end, check_line, &step));
    if (step != end_step)
        return EK_OK;
    EK_TRY(for_lines(u->b->fd, begin, end, append_line, m));
    m->next = end_step;
    return EK_OK;
}

ek_status ek_metrics_fill(ek_metrics *m, int64_t end_step)
{
    undone_file u = {0};
    ek_status st;

    if (m->next >= end_step)
        return EK_OK;
    st = open_undone(m, &u);
    if (st == EK_OK && u.size > 0)
        st = append_undone(m, &u, end_step);
    close_undone(&u);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* One number of each of n records of `size` bytes. */
typedef struct {
    const void *first;
    int n;
    size_t size, offset;
} column;

/* `"name": [1, 2, 3]`, scaled. */
static size_t put_list(char *at, size_t cap, const char *name, column c, double scale, int digits)
{
    size_t n = (size_t)snprintf(at, cap, "\"%s\": [", name);

    for (int i = 0; i < c.n && n < cap; i++) {
        double x;

        memcpy(&x, (const char *)c.first + (size_t)i * c.size + c.offset, sizeof(x));
        n += (size_t)snprintf(at + n, cap - n, "%s%.*f", i > 0 ? ", " : "", digits, x * scale);
    }
    if (n < cap)
        n += (size_t)snprintf(at + n, cap - n, "]");
    return n;
}

static column of_ranks(const ek_metrics_step *s, size_t offset)
{
    return (column){s->of_rank, s->of_rank != NULL ? s->ranks : 0, sizeof(*s->of_rank), offset};
}

static ek_status reserve_line(ek_metrics *m, const ek_metrics_step *s)
{
    size_t cap =
        LINE_CAP + 160 * (size_t)s->ranks + 96 * (size_t)s->layers + 48 * (size_t)s->n_layers;

    if (m->cap >= cap)
        return EK_OK;
    free(m->line);
    m->line = malloc(cap);
    m->cap = m->line != NULL ? cap : 0;
    EK_REQUIRE(m->line != NULL, EK_ENOMEM, "no memory for a line of metrics");
    return EK_OK;
}

/* One list of an object of lists. */
typedef struct {
    const char *name;
    size_t offset;
    double scale;
    int digits;
} list_row;

/* `, "name": {"...": [...], ...}`; c: the records, whose offset each row sets. */
static size_t put_lists(char *at, size_t cap, const char *name, column c, const list_row *rows,
                        size_t n_rows)
{
    size_t n = (size_t)snprintf(at, cap, ", \"%s\": {", name);

    for (size_t i = 0; i < n_rows; i++) {
        c.offset = rows[i].offset;
        n += (size_t)snprintf(at + n, cap - n, "%s", i == 0 ? "" : ", ");
        n += put_list(at + n, cap - n, rows[i].name, c, rows[i].scale, rows[i].digits);
    }
    return n + (size_t)snprintf(at + n, cap - n, "}");
}

/* In the order of the layers. */
static size_t put_layers(char *at, size_t cap, const ek_metrics_step *s)
{
    static const list_row rows[] = {
        {"rank_max_over_mean", offsetof(ek_layer_balance, after.max_over_mean), 1, 3},
        {"rank_max_over_mean_before", offsetof(ek_layer_balance, before.max_over_mean), 1, 3},
        {"rank_deviation", offsetof(ek_layer_balance, after.deviation), 1, 4},
        {"rank_deviation_before", offsetof(ek_layer_balance, before.deviation), 1, 4},
        {"experts_moved", offsetof(ek_layer_balance, experts_moved), 1, 0},
        {"replicas", offsetof(ek_layer_balance, replicas), 1, 0},
        {"replicas_ahead", offsetof(ek_layer_balance, replicas_ahead), 1, 0},
        {"replica_mb", offsetof(ek_layer_balance, replica_bytes), 1e-6, 3},
    };
    column c = {s->of_layer, s->layers, sizeof(*s->of_layer), 0};

    return s->layers == 0 ? 0
                          : put_lists(at, cap, "layers", c, rows, sizeof(rows) / sizeof(rows[0]));
}

static size_t put_disk(char *at, size_t cap, const ek_metrics_step *s)
{
    static const list_row rows[] = {
        {"read_mb", offsetof(ek_rank_metrics, disk.read_bytes), 1e-6, 1},
        {"written_mb", offsetof(ek_rank_metrics, disk.written_bytes), 1e-6, 1},
        {"uses", offsetof(ek_rank_metrics, disk.uses), 1, 0},
        {"hits", offsetof(ek_rank_metrics, disk.hits), 1, 0},
        {"deferred", offsetof(ek_rank_metrics, disk.deferred), 1, 0},
        {"reads", offsetof(ek_rank_metrics, disk.reads), 1, 0},
        {"writes", offsetof(ek_rank_metrics, disk.writes), 1, 0},
        {"wait_ms", offsetof(ek_rank_metrics, disk.wait_s), 1e3, 1},
        {"memory_wait_ms", offsetof(ek_rank_metrics, disk.entry_wait_s), 1e3, 1},
    };
    static const list_row of_layers[] = {
        {"forward_wait_ms", 0, 1e3, 1},
        {"backward_wait_ms", sizeof(double), 1e3, 1},
    };
    column layers = {s->layer_waits, s->n_layers, 2 * sizeof(*s->layer_waits), 0};
    size_t n;

    if (!s->offloads)
        return 0;
    n = put_lists(at, cap, "disk", of_ranks(s, 0), rows, sizeof(rows) / sizeof(rows[0]));
    return n + put_lists(at + n, cap - n, "disk_layers", layers, of_layers,
                         sizeof(of_layers) / sizeof(of_layers[0]));
}

/* Pro-Prophet's RB; null where no difference is left. */
static size_t put_rb(char *at, size_t cap, const ek_losses *l)
{
    double rb = ek_moe_rb(l->primaries.deviation, l->ranks.deviation);

    if (!isfinite(rb))
        return (size_t)snprintf(at, cap, "\"rb\": null, ");
    return (size_t)snprintf(at, cap, "\"rb\": %.6g, ", rb);
}

/* Members that only some steps have. */
static size_t put_rest(char *at, size_t cap, const ek_metrics_step *s)
{
    static const char *const spikes[] = {[EK_SPIKE_LOSS] = ", \"spike\": [\"loss\"]",
                                         [EK_SPIKE_NORM] = ", \"spike\": [\"grad_norm\"]",
                                         [EK_SPIKE_LOSS | EK_SPIKE_NORM] =
                                             ", \"spike\": [\"loss\", \"grad_norm\"]",
                                         [0] = ""};
    const ek_losses *l = &s->result->losses;
    size_t n = put_disk(at, cap, s);

    if (s->save_interval > 0)
        n += (size_t)snprintf(at + n, cap - n, ", \"save_interval\": %" PRId64, s->save_interval);
    if (l->masked)
        n += (size_t)snprintf(at + n, cap - n, ", \"loss_tokens\": %.0f", l->loss_tokens);
    return n + (size_t)snprintf(at + n, cap - n, "%s%s}\n",
                                s->of_rank == NULL ? ", \"recovered\": true" : "",
                                spikes[s->spikes & 3]);
}

static size_t put_line(ek_metrics *m, const ek_metrics_step *s)
{
    static const char *const a2a[] = {"linear", "pairwise", "2dh"};
    const ek_step_result *r = s->result;
    const ek_losses *l = &r->losses;
    int degree = r->traffic.degree;
    double bytes = 0, flops = 0;
    size_t n;

    for (int i = 0; i < s->ranks && s->of_rank != NULL; i++) {
        bytes += s->of_rank[i].comm_bytes;
        flops += s->of_rank[i].flops;
    }
    n = (size_t)snprintf(
        m->line, m->cap,
        "{\"step\": %" PRId64 ", \"tokens\": %" PRId64 ", \"loss\": %.17g, \"aux_loss\": %.17g, "
        "\"grad_norm\": %.17g, \"lr\": %.17g, \"step_ms\": %.3f, \"tokens_per_s\": %.1f, "
        "\"expert_max_over_mean\": %.6g, \"rank_max_over_mean\": %.6g, \"dropped\": %" PRId64
        ", \"ranks\": %d, \"comm_bytes\": %.0f, \"rank_max_over_mean_before\": %.6g, "
        "\"rank_deviation\": %.6g, \"rank_deviation_before\": %.6g, "
        "\"plans\": %" PRId64 ", \"experts_moved\": %" PRId64 ", \"replicas\": %" PRId64
        ", \"replicas_ahead\": %" PRId64 ", \"replica_mb\": %.3f, "
        "\"plan_ms\": %.3f, \"replica_wait_ms\": %.3f, \"balance_saved_ms\": %.3f, "
        "\"slowest_rank\": %.4g, ",
        r->step, r->tokens, l->loss, l->aux_loss, r->grad_norm, r->lr, s->step_ms,
        (double)r->tokens / s->step_ms * 1e3, l->expert_max_over_mean, l->ranks.max_over_mean,
        l->dropped, s->ranks, bytes, l->primaries.max_over_mean, l->ranks.deviation,
        l->primaries.deviation, l->plans, l->experts_moved, l->replicas, l->replicas_ahead,
        l->replica_bytes / 1e6, l->plan_s * 1e3, l->replica_wait_s * 1e3, l->saved_s * 1e3,
        l->slowest_rank > 0 ? 1 / l->slowest_rank : 1);
    n += put_rb(m->line + n, m->cap - n, l);
    n += put_list(m->line + n, m->cap - n, "peak_rss_mb",
                  of_ranks(s, offsetof(ek_rank_metrics, peak_rss_bytes)), 1e-6, 1);
    n += (size_t)snprintf(m->line + n, m->cap - n, ", ");
    n += put_list(m->line + n, m->cap - n, "params_held",
                  of_ranks(s, offsetof(ek_rank_metrics, params_held)), 1, 0);
    n += put_layers(m->line + n, m->cap - n, s);
    n += (size_t)snprintf(m->line + n, m->cap - n,
                          ", \"z_loss\": %.17g, \"model_gflops\": %.3f, \"pipeline_degree\": %d, "
                          "\"a2a\": \"%s\", \"adaptive_r\": %d",
                          l->z_loss, flops / 1e9, degree > 0 ? degree : 1,
                          degree > 0 ? a2a[r->traffic.a2a] : "none", r->adaptive_r);
    return n + put_rest(m->line + n, m->cap - n, s);
}

ek_status ek_metrics_write(ek_metrics *m, const ek_metrics_step *s)
{
    ssize_t n, done;

    EK_TRY(reserve_line(m, s));
    n = (ssize_t)put_line(m, s);
    done = write(m->fd, m->line, (size_t)n);

    if (done > 0 && done < n && ftruncate(m->fd, lseek(m->fd, 0, SEEK_END) - done) != 0)
        done = -1; /* the incomplete line stays; a resumed run removes it */
    EK_REQUIRE(done == n, done < 0 && errno != ENOSPC ? EK_EIO : EK_ENOSPC, "cannot write %s: %s",
               m->path, done < 0 ? strerror(errno) : "the disk is full");
    return EK_OK;
}

/* `, "eval_loss": ...}`, in place of a line's end. */
static int put_eval(char *at, size_t cap, const ek_metrics_eval *e)
{
    double perplexity = exp(e->loss);
    char text[40] = "null"; /* JSON has no infinity */

    if (isfinite(perplexity))
        snprintf(text, sizeof(text), "%.17g", perplexity);
    return snprintf(at, cap,
                    ", \"eval_loss\": %.17g, \"eval_perplexity\": %s, \"eval_tokens\": %" PRId64
                    ", \"eval_s\": %.3f}\n",
                    e->loss, text, e->tokens, e->seconds);
}

/* Whether the line [begin, end) is of this step and has no evaluation. */
static int wants_eval(const ek_metrics *m, off_t begin, off_t end, int64_t step)
{
    char *text = malloc((size_t)(end - begin) + 1);
    int wants = text != NULL && read_step(m->fd, begin) == step &&
                pread(m->fd, text, (size_t)(end - begin), begin) == end - begin;

    if (wants) {
        text[end - begin] = '\0';
        wants = strstr(text, "\"eval_loss\"") == NULL && end - begin > 2 &&
                strcmp(text + (end - begin) - 2, "}\n") == 0;
    }
    free(text);
    return wants;
}

/* Writes over the last two bytes of the file; m->fd only appends. */
static ek_status write_over_end(const ek_metrics *m, off_t end, const char *text, size_t bytes)
{
    int fd = open(m->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t done;
    int error;

    EK_REQUIRE(fd >= 0, EK_EIO, "cannot write %s: %s", m->path, strerror(errno));
    done = pwrite(fd, text, bytes, end - 2);
    error = errno;
    if (done >= 0 && done < (ssize_t)bytes && pwrite(fd, "}\n", 2, end - 2) == 2)
        (void)!ftruncate(fd, end); /* the line stays as it was */
    close(fd);
    EK_REQUIRE(done == (ssize_t)bytes, done < 0 && error != ENOSPC ? EK_EIO : EK_ENOSPC,
               "cannot write %s: %s", m->path, done < 0 ? strerror(error) : "the disk is full");
    return EK_OK;
}

ek_status ek_metrics_add_eval(ek_metrics *m, int64_t step, const ek_metrics_eval *e)
{
    block_reader *b = calloc(1, sizeof(*b));
    char text[256];
    struct stat s;
    off_t begin;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(b != NULL, EK_ENOMEM, "no memory to read %s", m->path);
    b->fd = m->fd;
    EK_REQUIRE_OUT(fstat(m->fd, &s) == 0, EK_EIO, "cannot read %s: %s", m->path, strerror(errno));
    begin = s.st_size > 0 ? find_line_end(b, s.st_size - 1) : 0;
    EK_REQUIRE_OUT(begin >= 0, EK_EIO, "cannot read %s: %s", m->path, strerror(errno));
    if (wants_eval(m, begin, s.st_size, step))
        EK_TRY_OUT(write_over_end(m, s.st_size, text, (size_t)put_eval(text, sizeof(text), e)));
out:
    free(b);
    return st;
}

ek_status ek_metrics_sync(const ek_metrics *m)
{
    EK_REQUIRE(fsync(m->fd) == 0, errno == ENOSPC ? EK_ENOSPC : EK_EIO, "cannot sync %s: %s",
               m->path, strerror(errno));
    return EK_OK;
}

void ek_metrics_close(ek_metrics *m)
{
    if (m->fd >= 0)
        close(m->fd);
    free(m->line);
    *m = (ek_metrics){.fd = -1};
}
