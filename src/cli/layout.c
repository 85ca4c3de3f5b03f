/* Chooses a layout for workers, as options. */
#include "cli/layout.h"

#include "base/command.h"
#include "base/log.h"
#include "cli/cli.h"
#include "supervisor/elastic_default.h"
#include "supervisor/worker.h"
#include "train/settings/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_WORDS = 4 };

static ek_run_layout_word from_pool[] = {"--layout", "pool", "--layout-pool"};

static ek_status search(cli_layout *x, const ek_options *o, int elastic)
{
    int *host_of = NULL, *rack_of = NULL, ranks = (int)ek_options_int(o, "ranks");
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    ek_status st;

    EK_TRY(ek_options_store(o, &cfg));
    cfg.elastic = elastic;
    cfg.dry_run = ek_options_flag(o, "dry-run");
    EK_REQUIRE(ek_options_text(o, "discover") == NULL, EK_EINVAL,
               "a layout that survives the loss of a host can only be chosen for known hosts: give "
               "--hosts instead of --discover, or the options of a layout of evenkeel search");
    st = ek_elastic_places(o, &ranks, &host_of, &rack_of);
    ranks = ranks > 0 ? ranks : 1;
    if (st == EK_OK)
        st = ek_search_layout_for_run(&cfg, ranks, host_of, x->stop, &x->layout);
    free(host_of);
    free(rack_of);
    return st;
}

static ek_status choose(cli_layout *x, const ek_options *o, int elastic)
{
    char *pool[POOL_WORDS] = {from_pool[0], from_pool[1], from_pool[2], x->layout.pool.s};
    int quiet = ek_options_flag(o, "quiet");

    ek_log_set_sink(cli_log, NULL, quiet ? EK_LOG_WARN : EK_LOG_INFO);
    EK_TRY(search(x, o, elastic));
    x->own = calloc((size_t)(x->argc + x->layout.n) + POOL_WORDS + 1, sizeof(*x->own));
    EK_REQUIRE(x->own != NULL, EK_ENOMEM, "no memory for the command line");
    memcpy(x->own, x->argv, (size_t)x->argc * sizeof(*x->own));
    x->argv = x->own;
    for (int i = 0; i < POOL_WORDS && x->layout.pool.s[0] != '\0'; i++)
        x->argv[x->argc++] = pool[i];
    for (int i = 0; i < x->layout.n; i++)
        x->argv[x->argc++] = x->layout.word[i];
    if (!quiet)
        fprintf(ek_command_err(), "info: the run's layout: %s\n", x->layout.shown);
    return EK_OK;
}

/* ek_train_config.elastic of the run. */
static int elastic_of(const ek_options *o)
{
    char why[EK_ELASTIC_WHY];

    if (ek_options_flag(o, "elastic"))
        return 1;
    return ek_elastic_by_default(o, why) ? EK_ELASTIC_BY_DEFAULT : 0;
}

/* --layout given, as chosen here, is without a choice. */
static int is_to_be_chosen(const ek_options *o)
{
    return strcmp(ek_options_text(o, "layout"), "auto") == 0 ||
           (ek_options_text(o, "layout-pool") != NULL &&
            (!ek_options_given(o, "layout") || strcmp(ek_options_text(o, "layout"), "pool") == 0));
}

int cli_layout_choose(cli_layout *x)
{
    ek_options *o = NULL;
    ek_status st = EK_OK;
    int elastic;

    if (ek_worker_environment_read().inside ||
        ek_options_parse(&ek_train_options, x->argc - 1, x->argv + 1, &o) < 0) {
        ek_options_destroy(o);
        return -1; /* the command itself reports mistakes */
    }
    elastic = ek_options_help_wanted(o) == EK_HELP_NONE && is_to_be_chosen(o) ? elastic_of(o) : 0;
    if (elastic)
        st = choose(x, o, elastic);
    ek_options_destroy(o);
    ek_log_set_sink(NULL, NULL, EK_LOG_ERROR);
    return st < 0 ? ek_command_fail("train", st) : -1;
}
