/* Escaping of control characters and of bytes that are not UTF-8. */
#include "base/printable.h"

#include "base/c_locale.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT_CAP = 1024 };

/* Bytes of the valid UTF-8 character at the start of s, and its code point *c; 0: none. */
static size_t decode_utf8(const unsigned char *s, size_t n, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;

    if (len == 1) {
        *c = s[0];
        return 1;
    }
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
        return 0;
    *c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        *c = *c << 6 | (s[i] & 0x3f);
    }
    return *c < least[len] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000) ? 0 : len;
}

static int acts_on_terminal(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

/* Writes the next character of the text, or its escape, to `escaped`; returns the bytes read. */
static size_t escape_character(const unsigned char *s, size_t n, const char *keep, char escaped[8])
{
    uint32_t c = 0;
    size_t len = decode_utf8(s, n, &c);
    const char *kept = len == 1 && c != 0 ? strchr(keep, (int)c) : NULL;

    if (len == 0)
        snprintf(escaped, 8, "\\x%02x", s[0]);
    else if (kept != NULL || !acts_on_terminal(c))
        snprintf(escaped, 8, "%.*s", (int)len, (const char *)s);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(escaped, 8, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else
        snprintf(escaped, 8, c < 0x80 ? "\\x%02x" : "\\u%04x", (unsigned)c);
    return len == 0 ? 1 : len;
}

size_t ek_printable_bytes(char *out, size_t cap, const char *text, size_t bytes, const char *keep)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0, used = 0;
    char escaped[8];

    while (at < bytes) {
        size_t taken = escape_character(s + at, bytes - at, keep, escaped), n = strlen(escaped);

        if (used + n >= cap)
            break;
        memcpy(out + used, escaped, n);
        used += n;
        at += taken;
    }
    out[used] = '\0';
    return used;
}

const char *ek_printable(char *out, size_t cap, const char *text)
{
    ek_printable_bytes(out, cap, text != NULL ? text : "", text != NULL ? strlen(text) : 0, "");
    return out;
}

void ek_printable_write(FILE *f, const char *text, size_t bytes, const char *keep)
{
    char escaped[8];

    for (size_t at = 0; at < bytes;) {
        at += escape_character((const unsigned char *)text + at, bytes - at, keep, escaped);
        fputs(escaped, f);
    }
}

/* The length of a text that was cut at n bytes, without a partial last character. */
static size_t whole_characters(const char *text, size_t n)
{
    size_t start = n;
    uint32_t c;

    while (start > 0 && n - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0 || (unsigned char)text[start - 1] < 0xc0)
        return n;
    start--;
    return decode_utf8((const unsigned char *)text + start, n - start, &c) == 0 ? start : n;
}

void ek_printable_format(char *out, size_t cap, const char *fmt, va_list ap)
{
    EK_C_LOCALE; /* also in threads of the host */
    char raw[FORMAT_CAP];
    int n = vsnprintf(raw, sizeof(raw), fmt, ap);
    size_t bytes = n < 0 ? 0 : (size_t)n;

    if (bytes >= sizeof(raw))
        bytes = whole_characters(raw, sizeof(raw) - 1);
    ek_printable_bytes(out, cap, raw, bytes, "");
}
