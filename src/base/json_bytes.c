/* Escapes texts that need not be UTF-8, such as paths, for JSON, and back. */
#include "base/json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ESCAPE = 4 }; /* bytes of "\xHH" */

static int is_escape(const char *s)
{
    return s[0] == '\\' && s[1] == 'x' && isxdigit((unsigned char)s[2]) &&
           isxdigit((unsigned char)s[3]);
}

/* Bytes of the character at the start of s that jansson accepts as UTF-8; 0: none. */
static size_t character_bytes(const char *s)
{
    unsigned char c = (unsigned char)s[0];
    size_t n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    json_t *one;

    if (n > strnlen(s, n))
        return 0;
    one = json_stringn(s, n);
    json_decref(one);
    return one != NULL ? n : 0;
}

json_t *ek_json_text_of(const char *text)
{
    json_t *value = strstr(text, "\\x") == NULL ? json_string(text) : NULL;
    size_t used = 0;
    char *out;

    if (value != NULL)
        return value;
    out = malloc(ESCAPE * strlen(text) + 1);
    while (out != NULL && *text != '\0') {
        size_t n = is_escape(text) ? 0 : character_bytes(text);

        if (n == 0) {
            snprintf(out + used, ESCAPE + 1, "\\x%02x", (unsigned char)*text);
            n = 1;
            used += ESCAPE;
        } else {
            memcpy(out + used, text, n);
            used += n;
        }
        text += n;
    }
    value = out != NULL ? json_stringn(out, used) : NULL;
    free(out);
    return value;
}

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

static json_t *unescape_text(const char *text)
{
    char *out = malloc(strlen(text) + 1);
    size_t used = 0;
    json_t *value;

    while (out != NULL && *text != '\0') {
        int escaped = is_escape(text),
            c = escaped ? hex_digit(text[2]) * 16 + hex_digit(text[3]) : *text;

        out[used++] = (char)c;
        text += escaped ? ESCAPE : 1;
    }
    value = out != NULL ? json_stringn_nocheck(out, used) : NULL;
    free(out);
    return value;
}

/* A deep copy in which each string is replaced by change(string). */
static json_t *copy_with(const json_t *value, json_t *(*change)(const char *text))
{
    const char *key;
    json_t *copy, *item;
    size_t at;
    int bad = 0;

    if (json_is_string(value))
        return change(json_string_value(value));
    if (json_is_array(value)) {
        copy = json_array();
        json_array_foreach(value, at, item) bad |=
            json_array_append_new(copy, copy_with(item, change));
    } else if (json_is_object(value)) {
        copy = json_object();
        json_object_foreach((json_t *)(uintptr_t)value, key, item) bad |=
            json_object_set_new(copy, key, copy_with(item, change));
    } else {
        return json_deep_copy(value);
    }
    if (bad == 0)
        return copy;
    json_decref(copy);
    return NULL;
}

json_t *ek_json_escaped(const json_t *value)
{
    return copy_with(value, ek_json_text_of);
}

json_t *ek_json_unescaped(const json_t *value)
{
    return copy_with(value, unescape_text);
}
