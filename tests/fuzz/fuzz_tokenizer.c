/* Any bytes as a tokenizer.json: refused with a message, or a tokenizer whose ids are within its
 * vocabulary and which encodes texts, its own file among them, without a crash. */
#include "data/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n%s\n", what, ek_err_text());
        abort();
    }
}

static void encode(const ek_tokenizer *t, const void *text, size_t n)
{
    ek_encoder *e = NULL;
    ek_ids ids = {0};
    ek_status st;

    check(ek_encoder_create(t, &e) == EK_OK, "an encoder can be created");
    st = ek_encode(e, text, n, &ids);
    check(st == EK_OK || st == EK_EFORMAT, "a text is encoded, or its pattern gives up");
    for (int64_t i = 0; i < ids.n; i++) {
        const unsigned char *bytes;
        size_t len;

        check(ids.ids[i] >= 0 && ids.ids[i] < ek_tokenizer_vocab(t), "ids are in the vocabulary");
        check(ek_tokenizer_decode(t, ids.ids[i], &bytes, &len) == EK_OK, "ids can be decoded");
    }
    free(ids.ids);
    ek_encoder_destroy(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "It's 1234  <|endoftext|>\n\n caf\xc3\xa9 e\xcc\x81 "
                               "\xff\xe4\xb8\xad x<s> the  [T] \xe2\x96\x81 ab";
    ek_tokenizer *t = NULL;
    ek_status st = ek_tokenizer_parse((const char *)data, size, "fuzz.json", &t);

    if (st < 0) {
        check(t == NULL && ek_err_message()[0] != '\0', "a failure has a message and no object");
        return 0;
    }
    encode(t, text, sizeof(text) - 1);
    encode(t, data, size < 2000 ? size : 2000);
    ek_tokenizer_destroy(&t);
    return 0;
}
