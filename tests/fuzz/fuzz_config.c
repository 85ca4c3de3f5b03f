/* libFuzzer target: any bytes as a config.json.  What is accepted must make a model whose tensors
 * have names, and must survive being written and read again, where its family can say it. */
#include "model/hf/config.h"
#include "model/hf/names.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int holds)
{
    if (!holds)
        abort();
}

static void check_names(const ek_model_spec *m)
{
    int64_t count = ek_hf_count(m);
    int64_t step = 1 + count / 100; /* models may have millions of tensors */

    for (int64_t i = 0; i < count; i += step) {
        ek_hf_tensor t;
        ek_hf_source s;

        ek_hf_tensor_at(m, i, &t);
        check(t.shape[0] > 0 && (t.dims == 1 || t.shape[1] > 0));
        if (ek_hf_alternative(m, &t, &s))
            check(s.first >= 0 && s.count == t.shape[0] * (t.dims == 2 ? t.shape[1] : 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *once = NULL, *twice = NULL;
    ek_model_spec m, back;

    if (ek_hf_config_parse((const char *)data, bytes, "input", &m) < 0) {
        check(ek_err_message()[0] != '\0');
        return 0;
    }
    check(ek_model_check(&m) == EK_OK);
    check_names(&m);
    check(ek_hf_config_text(&m, &once) == EK_OK);
    check(ek_hf_config_parse(once, strlen(once), "written", &back) == EK_OK);
    check(ek_hf_config_text(&back, &twice) == EK_OK);
    check(strcmp(once, twice) == 0);
    free(once);
    free(twice);
    return 0;
}
