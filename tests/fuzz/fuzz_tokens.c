/* Any bytes as a token file, as a cache file, and as a text.  The first byte chooses the width of
 * an id and the vocabulary. */
#include "data/tokens_priv.h"
#include "data/windows.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n%s\n", what, ek_err_text());
        abort();
    }
}

static void as_token_file(const void *data, size_t size, int token_bytes, int64_t vocab)
{
    int32_t inputs[4], targets[4];
    ek_tokens *t = NULL;
    ek_windows s;

    if (ek_tokens_wrap(data, size, token_bytes, vocab, "fuzz.bin", &t) < 0) {
        check(t == NULL && ek_err_message()[0] != '\0', "a failure has a message and no object");
        return;
    }
    for (int64_t w = 0; w < ek_eval_windows(t, 4); w++) {
        int64_t n = 0;

        check(ek_eval_window(t, 4, w, inputs, targets, &n) == EK_OK, "windows can be read");
        check(n >= 1 && n <= 4, "a window has 1 to seq tokens");
        for (int64_t i = 0; i < n; i++)
            check(inputs[i] >= 0 && inputs[i] < vocab && targets[i] >= 0 && targets[i] < vocab,
                  "ids are in the vocabulary");
    }
    if (ek_windows_init(&s, t, 3, 4, EK_ORDER_SHUFFLED, size) == EK_OK)
        check(ek_windows_row(&s, (int64_t)size, 2, inputs, targets) == EK_OK, "rows, too");
    ek_tokens_close(&t);
}

static void as_cache_file(const void *data, size_t size)
{
    ek_cache_record record;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size, "a file in memory");
    (void)ek_cache_valid(fd, (int64_t)size, 0, 0, &record);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ek_tokenizer *bytes;
    ek_encoder *e = NULL;
    ek_ids ids = {0};
    uint8_t *aligned;

    if (size == 0)
        return 0;
    aligned = malloc(size);
    check(aligned != NULL, "memory");
    memcpy(aligned, data + 1, size - 1);
    as_token_file(aligned, size - 1, data[0] & 1 ? 4 : 2, data[0] & 2 ? 70000 : 257);
    as_cache_file(aligned, size - 1);

    if (bytes == NULL)
        check(ek_tokenizer_open("bytes", &bytes) == EK_OK, "the bytes tokenizer opens");
    check(ek_encoder_create(bytes, &e) == EK_OK, "an encoder can be created");
    check(ek_encode(e, aligned, size - 1, &ids) == EK_OK, "any bytes can be encoded");
    free(ids.ids);
    ek_encoder_destroy(&e);
    free(aligned);
    return 0;
}
