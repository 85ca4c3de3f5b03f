/* base/utf8.h - UTF-8, one code point at a time.
 *
 * Well-formed means Unicode's table 3-7: no overlong forms, no surrogates, nothing above
 * U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the well-formed sequence at p (1 to 4) and its code point; 0 where there is none. */
static inline size_t ek_utf8_next(const unsigned char *p, size_t n, uint32_t *cp)
{
    uint32_t c, low;
    size_t len;

    if (n == 0)
        return 0;
    c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xC2 || c > 0xF4)
        return 0;
    len = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    low = len == 2 ? 0x80 : len == 3 ? 0x800 : 0x10000;
    if (n < len)
        return 0;
    c &= 0x7Fu >> len;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (c < low || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *cp = c;
    return len;
}

/* Writes a code point to out, of capacity 4; returns its length. */
static inline size_t ek_utf8_put(uint32_t cp, unsigned char *out)
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (unsigned char)(0xC0 | cp >> 6);
        out[1] = (unsigned char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (unsigned char)(0xE0 | cp >> 12);
        out[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (unsigned char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (unsigned char)(0xF0 | cp >> 18);
    out[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (unsigned char)(0x80 | (cp & 0x3F));
    return 4;
}

/* Bytes of the longest well-formed prefix of a text. */
static inline size_t ek_utf8_valid(const unsigned char *p, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t word;
        uint32_t cp;
        size_t len;

        if (n - i >= 8) {
            memcpy(&word, p + i, 8);
            if ((word & 0x8080808080808080u) == 0) {
                i += 8;
                continue;
            }
        }
        len = ek_utf8_next(p + i, n - i, &cp);
        if (len == 0)
            break;
        i += len;
    }
    return i;
}

/* Start of the code point that ends before p[end] of a well-formed text, end > 0. */
static inline size_t ek_utf8_back(const unsigned char *p, size_t end)
{
    do
        end--;
    while (end > 0 && (p[end] & 0xC0) == 0x80);
    return end;
}

#endif
