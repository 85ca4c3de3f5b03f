/* The user's cache folder. */
#include "cli/cli.h"

#include <stdlib.h>

const char *cli_cache_folder(ek_path *p)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    ek_status st;

    /* XDG Base Directory Specification: a relative path counts as not set. */
    if (cache != NULL && cache[0] == '/')
        st = ek_path_set(p, "%s/evenkeel", cache);
    else if (home != NULL && home[0] == '/')
        st = ek_path_set(p, "%s/.cache/evenkeel", home);
    else
        return NULL;
    return st == EK_OK ? p->s : NULL;
}
