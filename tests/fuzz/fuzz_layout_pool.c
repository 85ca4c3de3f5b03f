/* Any bytes as a pool of layouts: refused with a message that names it, or layouts whose numbers
 * are in range. */
#include "train/layout_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_layout(const ek_pool_layout *l)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    char text[256];

    require(isfinite(l->step_s) && l->step_s > 0 && isfinite(l->memory) && l->memory > 0);
    ek_pool_layout_apply(l, &c);
    require(c.pp >= 1 && c.chunks >= 1 && c.tp >= 1 && c.ep >= 1 && c.etp >= 1);
    require(c.zero >= 0 && c.zero <= 3 && c.micro_batch >= 1);
    require(strlen(ek_layout_words(&l->choice, l->balance, text, sizeof(text))) < sizeof(text) - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ek_layout_pool p;

    if (ek_layout_pool_parse((const char *)data, size, "input", &p) < 0) {
        require(strstr(ek_err_message(), "input") != NULL && p.n == 0);
        return 0;
    }
    require(p.ranks >= 1 && p.batch >= 1 && p.seq >= 1 && p.params >= 1);
    require(p.n >= 1 && p.n <= EK_LAYOUT_POOL_MAX);
    for (int64_t i = 0; i < p.n; i++)
        check_layout(&p.layout[i]);
    return 0;
}
