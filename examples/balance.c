/* The planners as a library: one layer of 8 experts on 4 ranks, of which expert 0 takes half.
 *
 *   cc examples/balance.c -Iinclude -Lbuild -levenkeel -Wl,-rpath,build -o balance && ./balance */
#include "evenkeel/balance.h"

#include <stdio.h>

enum { RANKS = 4, EXPERTS = 8, SPARE = 1, SLOTS = EXPERTS / RANKS + SPARE };

static void print_plan(const ek_balance_plan_result *p)
{
    printf("%s\n", p->reason);
    for (int r = 0; r < RANKS; r++) {
        printf("rank %d:", r);
        for (int s = r * p->slots; s < (r + 1) * p->slots; s++)
            if (p->expert_of[s] >= 0)
                printf("  expert %d%s serves %lld", (int)p->expert_of[s],
                       p->primary[p->expert_of[s]] == s ? "" : " (replica)", (long long)p->quota[s]);
        printf("\n");
    }
}

static ek_status plan(ek_balance *b)
{
    int64_t counts[RANKS][EXPERTS], rows[RANKS][RANKS * SLOTS], away = 0;
    ek_balance_plan_result p;

    for (int r = 0; r < RANKS; r++)
        for (int e = 0; e < EXPERTS; e++)
            counts[r][e] = e == 0 ? 700 : 100;
    if (ek_balance_plan(b, counts[0], &p) < 0 || ek_balance_split(b, counts[0], rows[0]) < 0)
        return EK_EINVAL;
    print_plan(&p);
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < RANKS * SLOTS; s++)
            away += s / SLOTS != r ? rows[r][s] : 0;
    printf("%lld of %d assignments leave their rank\n", (long long)away, RANKS * 1400);
    return EK_OK;
}

int main(void)
{
    ek_balance_config cfg = {
        .size = sizeof(cfg), .experts = EXPERTS, .ranks = RANKS, .spare_slots = SPARE};
    ek_balance *b = NULL;
    ek_status st = ek_balance_create(&cfg, &b);

    if (st == EK_OK)
        st = plan(b);
    if (st < 0)
        fprintf(stderr, "%s\n", ek_err_text());
    ek_balance_destroy(&b);
    return st < 0;
}
