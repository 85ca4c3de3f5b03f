/* The first step of a run, and its folder --out: what may be continued, and what is replaced. */
#include "base/file.h"
#include "base/log.h"
#include "comm/agree.h"
#include "train/output/folder.h"
#include "train/output/run_file.h"
#include "train/run/state.h"
#include "train/settings/settings.h"

#include <string.h>
#include <unistd.h>

/* On rank 0: compares settings with those stored in run.json, if any, and logs differences. */
static ek_status compare_settings(ek_run *r)
{
    enum { CHANGES_CAP = 1000 };
    char changes[CHANGES_CAP];
    json_t *stored = NULL;
    ek_path path;
    ek_status st;

    if (r->rank != 0)
        return EK_OK;
    EK_TRY(ek_run_file_find(r->cfg->out, &path));
    if (path.s[0] == '\0')
        return EK_OK;
    EK_TRY_OUT(ek_run_file_read(path.s, &stored));
    EK_TRY_OUT(ek_train_settings_compare(stored, r->options.all_settings, r->cfg->override, changes,
                                         sizeof(changes)));
    if (changes[0] != '\0')
        ek_log("train", EK_LOG_INFO, "the run continues with other settings: %s", changes);
out:
    json_decref(stored);
    return st;
}

ek_status ek_run_find_checkpoint(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_mesh *mesh = r->mesh != NULL ? r->mesh : &ek_mesh_one;
    ek_checkpoint_check check = r->memory.step >= 0 ? EK_CHECK_SIZES : EK_CHECK_SUMS;
    /* with a least step a start from the beginning fails as one from an old checkpoint does */
    int needed = c->resume && r->memory.step < 0 && ek_supervised_least_step(c->supervised) == 0;
    ek_status st = ek_train_latest(mesh, c->out, check, needed, &r->saves.found);

    r->saves.checkpoint_step = 0;
    if (st == EK_ENOENT)
        return ek_out_no_checkpoint(c->out);
    EK_TRY(st);
    if (r->saves.found.path.s[0] == '\0')
        return EK_OK;
    if (r->saves.found.warning[0] != '\0' && r->rank == 0)
        ek_log("train", EK_LOG_WARN, "%s", r->saves.found.warning);
    return ek_agree(r->world, "read the checkpoint's state",
                    ek_train_state(r->saves.found.path.s, c->override ? NULL : r->options.settings,
                                   r->kernels, &r->source.spec, &r->saves.checkpoint_step));
}

ek_status ek_run_find_start(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_status st = EK_OK;

    if (!c->resume && !c->elastic)
        return EK_OK;
    if (r->rank == 0 && !c->elastic && r->folder.lock < 0 &&
        ek_file_kind_of(c->out) == EK_FILE_FOLDER)
        st = ek_folder_lock(c->out, &r->folder.lock);
    EK_TRY(ek_agree(r->world, "lock --out", st));
    EK_TRY(ek_run_find_checkpoint(r));
    EK_TRY(ek_agree(r->world, "compare the settings", compare_settings(r)));
    if (r->memory.step < r->saves.checkpoint_step)
        r->memory.step = -1;
    r->first_step = r->memory.step >= 0 ? r->memory.step : r->saves.checkpoint_step;
    return ek_run_check_least_step(r, "the newest state");
}

/* Whether this start continues, or may continue, a run in --out. */
static int may_continue(const ek_run *r)
{
    return r->first_step > 0 || r->cfg->resume || r->cfg->elastic;
}

ek_status ek_run_check_out(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_path found;
    int lock = -1;

    EK_REQUIRE(!c->overwrite || !may_continue(r), EK_EINVAL,
               "--overwrite starts a new run, and --%s continues the one in --out: leave one out",
               c->resume ? "resume" : "elastic");
    if (r->rank != 0)
        return EK_OK;
    if (c->overwrite || c->elastic || c->resume)
        return ek_out_check_own(c->out, c->resume);
    EK_TRY(ek_out_find(c->out, &found));
    if (found.s[0] != '\0' && r->folder.lock < 0) { /* a running run has a message of its own */
        EK_TRY(ek_folder_lock(c->out, &lock));
        close(lock);
    }
    EK_REQUIRE(found.s[0] == '\0', EK_EINVAL,
               "--out %s: %s exists already; continue that run (--resume), replace it "
               "(--overwrite), or give another --out",
               c->out, found.s);
    return EK_OK;
}

ek_status ek_run_open_out(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_path path;

    if (r->rank != 0)
        return EK_OK;
    if (r->first_step == 0 && !c->resume) {
        EK_TRY(ek_folder_make(NULL, c->out));
        if (!c->elastic)
            EK_TRY(ek_folder_lock(c->out, &r->folder.lock));
        EK_TRY(ek_run_check_out(r)); /* again, now that the lock is held */
        EK_TRY(ek_out_clear(c->out, c->elastic, &r->folder.replaces));
    }
    ek_out_clear_temporaries(c->out);
    EK_TRY(ek_run_write_eval_state(r));
    EK_TRY(ek_path_set(&path, "%s/" EK_RUN_FILE, c->out));
    return ek_file_replace(NULL, path.s, r->options.run_file, strlen(r->options.run_file));
}
