/* Plans a run with ranks as threads, which lay out their memory without using it. */
#include "train/dry_run.h"

#include "base/c_locale.h"
#include "base/threads.h"
#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_CAP = 1024 };

typedef struct {
    ek_train_config cfg;
    const ek_train_hooks *hooks;
    ek_train_summary summary;
    pthread_t thread;
    int started;
    ek_status status;
    char message[MESSAGE_CAP];
} dry_rank;

static void *dry_rank_main(void *self)
{
    dry_rank *r = self;

    EK_C_LOCALE;
    r->status = ek_train(&r->cfg, r->hooks, &r->summary);
    if (r->status < 0)
        snprintf(r->message, sizeof(r->message), "%s", ek_err_message());
    return NULL;
}

/* Whether a rank only reports the failure of another one. */
static int is_reported_by_peer(ek_status st)
{
    return ek_status_class(st) == EK_CLASS_RANK || st == EK_ECOMM;
}

/* The failure of the rank that detected it, rather than of ranks that only saw that rank fail. */
static ek_status first_failure(const dry_rank *r, int n)
{
    const dry_rank *first = NULL;

    for (int i = 0; i < n; i++)
        if (r[i].status < 0 && (first == NULL || (is_reported_by_peer(first->status) &&
                                                  !is_reported_by_peer(r[i].status))))
            first = &r[i];
    return first == NULL ? EK_OK : EK_FAIL(first->status, "%s", first->message);
}

ek_status ek_train_dry_run(const ek_train_config *cfg, const ek_train_hooks *hooks, int ranks,
                           const int *host_of, ek_train_summary *out)
{
    dry_rank *r;
    ek_comm **worlds;
    ek_status st = EK_OK;

    if (ranks == 1)
        return ek_train(cfg, hooks, out);
    r = calloc((size_t)ranks, sizeof(*r));
    worlds = calloc((size_t)ranks, sizeof(*worlds));
    EK_REQUIRE_OUT(r != NULL && worlds != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    EK_TRY_OUT(ek_comm_open_threads(ranks, worlds));
    for (int i = 0; i < ranks && host_of != NULL; i++)
        ek_comm_set_nodes(worlds[i], host_of);
    for (int i = 0; i < ranks; i++) {
        r[i] = (dry_rank){.cfg = *cfg, .hooks = i == 0 ? hooks : NULL};
        r[i].cfg.world = worlds[i];
        r[i].started = ek_thread_start(&r[i].thread, dry_rank_main, &r[i]);
        if (!r[i].started) {
            r[i].status = EK_ENOMEM;
            snprintf(r[i].message, sizeof(r[i].message), "cannot start a thread for rank %d", i);
            ek_comm_give_up(worlds[i]); /* releases ranks that wait for this one */
        }
    }
    for (int i = 0; i < ranks; i++)
        if (r[i].started)
            pthread_join(r[i].thread, NULL);
    *out = r[0].summary;
    st = first_failure(r, ranks);
out:
    for (int i = 0; worlds != NULL && i < ranks; i++)
        ek_comm_close(&worlds[i]);
    free(worlds);
    free(r);
    return st;
}
