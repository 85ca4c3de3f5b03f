/* A progress line that is redrawn in place on a terminal. */
#include "base/live_line.h"

#include "base/command.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>

enum { LINE_CAP = 512, FIELDS_MAX = 16, FIELDS_LEAST = 3 };

static _Atomic int drawn;

/* --- widths ----------------------------------------------------------------------------------- */

static size_t width_of(uint32_t cp)
{
    static const struct {
        uint32_t from, to;
        size_t width;
    } ranges[] = {
        {0x0300, 0x036F, 0},   {0x200B, 0x200F, 0}, {0x20D0, 0x20FF, 0}, {0xFE00, 0xFE0F, 0},
        {0x1100, 0x115F, 2},   {0x2E80, 0xA4CF, 2}, {0xAC00, 0xD7A3, 2}, {0xF900, 0xFAFF, 2},
        {0xFE30, 0xFE6F, 2},   {0xFF00, 0xFF60, 2}, {0xFFE0, 0xFFE6, 2}, {0x1F300, 0x1FAFF, 2},
        {0x20000, 0x3FFFD, 2},
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (cp >= ranges[i].from && cp <= ranges[i].to)
            return ranges[i].width;
    return 1;
}

/* Width of a text in columns, up to `most`; *end: bytes that fit. */
static size_t columns_of(const char *text, size_t n, size_t most, size_t *end)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0, columns = 0;

    while (at < n) {
        uint32_t cp = 0;
        size_t len = ek_utf8_next(p + at, n - at, &cp);
        size_t width = len > 0 ? width_of(cp) : 1;

        if (columns + width > most)
            break;
        columns += width;
        at += len > 0 ? len : 1;
    }
    *end = at;
    return columns;
}

/* --- fitting to the width --------------------------------------------------------------------- */

typedef struct {
    const char *at;
    size_t bytes, columns;
} field;

static size_t split_fields(const char *text, size_t n, field *fields)
{
    const char *end = text + n;
    size_t count = 0;

    while (count < FIELDS_MAX) {
        const char *gap = memmem(text, (size_t)(end - text), "  ", 2);
        const char *stop = gap != NULL && count + 1 < FIELDS_MAX ? gap : end;
        size_t unused;

        fields[count].at = text;
        fields[count].bytes = (size_t)(stop - text);
        fields[count].columns = columns_of(text, fields[count].bytes, SIZE_MAX, &unused);
        count++;
        if (stop == end)
            break;
        text = stop + 2;
    }
    return count;
}

static size_t total_columns(const field *fields, size_t count)
{
    size_t sum = 2 * (count - 1);

    for (size_t i = 0; i < count; i++)
        sum += fields[i].columns;
    return sum;
}

size_t ek_live_line_fit(const char *text, size_t n, size_t columns, char *out, size_t cap)
{
    field fields[FIELDS_MAX];
    size_t count = split_fields(text, n, fields), used = 0;

    for (; count > 1 && total_columns(fields, count) > columns; count--)
        if (count > FIELDS_LEAST)
            fields[count - 2] = fields[count - 1];
    if (count == 1)
        (void)columns_of(fields[0].at, fields[0].bytes, columns, &fields[0].bytes);
    for (size_t i = 0; i < count; i++) {
        size_t gap = i > 0 ? 2 : 0;

        if (used + gap + fields[i].bytes >= cap)
            break;
        memcpy(out + used, "  ", gap);
        memcpy(out + used + gap, fields[i].at, fields[i].bytes);
        used += gap + fields[i].bytes;
    }
    out[used] = '\0';
    return used;
}

/* --- drawing ---------------------------------------------------------------------------------- */

void ek_live_line_draw(FILE *f, const char *text, size_t n)
{
    enum { USUAL = 80 };
    struct winsize size = {0};
    char line[LINE_CAP];
    size_t columns;

    if (ioctl(fileno(f), TIOCGWINSZ, &size) != 0) { /* a pipe to the supervisor, or a file */
        fprintf(f, "\r%.*s", (int)n, text);
        fflush(f);
        return;
    }
    columns = size.ws_col > 0 ? size.ws_col : USUAL;
    /* a full row would move the cursor to the next one on some terminals */
    ek_live_line_fit(text, n, columns - 1, line, sizeof(line));
    fprintf(f, "\r%s\033[K", line);
    fflush(f);
}

void ek_live_line_show(const char *fmt, ...)
{
    char line[LINE_CAP];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    ek_live_line_draw(ek_command_err(), line, strlen(line));
    atomic_store(&drawn, 1);
}

const char *ek_live_line_end(void)
{
    return atomic_exchange(&drawn, 0) ? "\n" : "";
}
