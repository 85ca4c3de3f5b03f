/* An input buffer, refilled by read(2), and a decoder chosen by the file name. */
#include "data/byte_stream.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { INPUT_BYTES = 1 << 18, GZIP_ONLY = 15 + 16 };

typedef enum { PLAIN, GZIP, ZSTANDARD } coding;

struct ek_byte_stream {
    char *path;
    int fd;
    coding coding;
    unsigned char *input; /* [INPUT_BYTES]; at, n: the range that is not consumed yet */
    size_t at, n;
    int64_t read_bytes; /* of the file */
    int file_ended;
    int inside; /* inside a member or frame */
    int member; /* a member or frame has been completed */
    int gzip_ready;
    z_stream gzip;
    ZSTD_DStream *zstd;
};

static coding coding_of(const char *path, size_t *stem)
{
    size_t n = strlen(path);

    *stem = n;
    if (n > 3 && strcmp(path + n - 3, ".gz") == 0) {
        *stem = n - 3;
        return GZIP;
    }
    if (n > 4 && strcmp(path + n - 4, ".zst") == 0) {
        *stem = n - 4;
        return ZSTANDARD;
    }
    return PLAIN;
}

size_t ek_byte_stream_stem(const char *path)
{
    size_t stem;

    (void)coding_of(path, &stem);
    return stem;
}

static ek_status open_file(ek_byte_stream *s, const char *path)
{
    struct stat info;

    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0)
        return ek_fail_errno(errno, "open", path);
    EK_REQUIRE(fstat(s->fd, &info) == 0, EK_EIO, "%s: %s", path, strerror(errno));
    EK_REQUIRE(S_ISREG(info.st_mode), EK_EFORMAT, "%s: not a regular file", path);
    return EK_OK;
}

static ek_status open_decoder(ek_byte_stream *s)
{
    size_t n;

    if (s->coding == GZIP) {
        EK_REQUIRE(inflateInit2(&s->gzip, GZIP_ONLY) == Z_OK, EK_ENOMEM,
                   "no memory to decompress %s", s->path);
        s->gzip_ready = 1;
    } else if (s->coding == ZSTANDARD) {
        s->zstd = ZSTD_createDStream();
        EK_REQUIRE(s->zstd != NULL, EK_ENOMEM, "no memory to decompress %s", s->path);
        n = ZSTD_initDStream(s->zstd);
        EK_REQUIRE(!ZSTD_isError(n), EK_ENOMEM, "%s: %s", s->path, ZSTD_getErrorName(n));
    }
    return EK_OK;
}

ek_status ek_byte_stream_open(const char *path, ek_byte_stream **out)
{
    ek_byte_stream *s = calloc(1, sizeof(*s));
    size_t stem;
    ek_status st;

    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory to read %s", path);
    s->fd = -1;
    s->path = strdup(path);
    s->input = malloc(INPUT_BYTES);
    EK_REQUIRE_OUT(s->path != NULL && s->input != NULL, EK_ENOMEM, "no memory to read %s", path);
    s->coding = coding_of(path, &stem);
    EK_TRY_OUT(open_file(s, path));
    EK_TRY_OUT(open_decoder(s));
    *out = s;
    s = NULL;
out:
    ek_byte_stream_close(&s);
    return st;
}

void ek_byte_stream_close(ek_byte_stream **ps)
{
    ek_byte_stream *s = *ps;

    if (s == NULL)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (s->gzip_ready)
        inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    free(s->path);
    free(s->input);
    free(s);
    *ps = NULL;
}

int64_t ek_byte_stream_position(const ek_byte_stream *s)
{
    return s->read_bytes - (int64_t)s->n;
}

static ek_status read_file(ek_byte_stream *s, void *buf, size_t want, size_t *got)
{
    ssize_t n;

    do
        n = read(s->fd, buf, want);
    while (n < 0 && errno == EINTR);
    EK_REQUIRE(n >= 0, EK_EIO, "%s: %s", s->path, strerror(errno));
    s->file_ended = n == 0;
    s->read_bytes += n;
    *got = (size_t)n;
    return EK_OK;
}

static ek_status refill_input(ek_byte_stream *s)
{
    if (s->n > 0 || s->file_ended)
        return EK_OK;
    s->at = 0;
    return read_file(s, s->input, INPUT_BYTES, &s->n);
}

/* A gzip member may be followed by another, by zeros that fill a block, or by nothing. */
static ek_status begin_member(ek_byte_stream *s)
{
    while (s->member && s->n > 0 && s->input[s->at] == 0) {
        s->at++;
        s->n--;
        EK_TRY(refill_input(s));
    }
    if (s->n == 0)
        return EK_OK;
    EK_REQUIRE(!s->member || s->input[s->at] == 0x1f, EK_EFORMAT,
               "%s: byte %lld: the gzip stream is followed by other data", s->path,
               (long long)ek_byte_stream_position(s));
    EK_REQUIRE(inflateReset(&s->gzip) == Z_OK, EK_EINTERNAL, "zlib: cannot begin a stream");
    s->inside = 1;
    return EK_OK;
}

static ek_status inflate_some(ek_byte_stream *s, unsigned char *buf, size_t want, size_t *got)
{
    int code;

    *got = 0;
    if (!s->inside)
        EK_TRY(begin_member(s));
    if (!s->inside)
        return EK_OK;
    s->gzip.next_in = s->input + s->at;
    s->gzip.avail_in = (uInt)s->n;
    s->gzip.next_out = buf;
    s->gzip.avail_out = (uInt)want;
    code = inflate(&s->gzip, Z_NO_FLUSH);
    s->at += s->n - s->gzip.avail_in;
    s->n = s->gzip.avail_in;
    *got = want - s->gzip.avail_out;
    EK_REQUIRE(code != Z_MEM_ERROR, EK_ENOMEM, "no memory to decompress %s", s->path);
    EK_REQUIRE(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, EK_EFORMAT,
               "%s: byte %lld: the gzip stream is damaged (%s)", s->path,
               (long long)ek_byte_stream_position(s),
               s->gzip.msg != NULL ? s->gzip.msg : "no such stream");
    if (code == Z_STREAM_END) {
        s->inside = 0;
        s->member = 1;
    }
    return EK_OK;
}

static ek_status expand_some(ek_byte_stream *s, unsigned char *buf, size_t want, size_t *got)
{
    ZSTD_inBuffer in = {s->input + s->at, s->n, 0};
    ZSTD_outBuffer out = {buf, want, 0};
    size_t code = ZSTD_decompressStream(s->zstd, &out, &in);

    s->at += in.pos;
    s->n -= in.pos;
    *got = out.pos;
    EK_REQUIRE(!ZSTD_isError(code), EK_EFORMAT, "%s: byte %lld: the zstd stream is damaged (%s)",
               s->path, (long long)ek_byte_stream_position(s), ZSTD_getErrorName(code));
    if (in.pos > 0 || out.pos > 0) {
        s->inside = code != 0;
        s->member |= code == 0;
    }
    return EK_OK;
}

/* One step of the decoder; *ended: the stream is complete. */
static ek_status decode_some(ek_byte_stream *s, unsigned char *buf, size_t want, size_t *got,
                             int *ended)
{
    size_t limit = want < INPUT_BYTES ? want : INPUT_BYTES;

    EK_TRY(refill_input(s));
    EK_TRY(s->coding == GZIP ? inflate_some(s, buf, limit, got) : expand_some(s, buf, limit, got));
    *ended = *got == 0 && s->n == 0 && s->file_ended;
    EK_REQUIRE(!*ended || (s->member && !s->inside), EK_EFORMAT,
               "%s: the %s stream ends early, after byte %lld: the file is cut short", s->path,
               s->coding == GZIP ? "gzip" : "zstd", (long long)ek_byte_stream_position(s));
    return EK_OK;
}

ek_status ek_byte_stream_read(ek_byte_stream *s, void *buf, size_t want, size_t *got)
{
    unsigned char *p = buf;
    int ended = 0;

    *got = 0;
    while (*got < want && !ended) {
        size_t n = 0;

        if (s->coding == PLAIN) {
            EK_TRY(read_file(s, p + *got, want - *got, &n));
            ended = n == 0;
        } else {
            EK_TRY(decode_some(s, p + *got, want - *got, &n, &ended));
        }
        *got += n;
    }
    return EK_OK;
}
