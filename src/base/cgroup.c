/* The folders of this process's cgroups, from /proc/self/cgroup. */
#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

enum { PATH_CAP = 4096, FILE_CAP = 4352 };

const ek_cgroups ek_cgroups_system = {"/proc/self/cgroup", "/sys/fs/cgroup"};

int ek_cgroup_line(const char *folder, const char *name, char *line, int cap)
{
    char path[FILE_CAP];
    FILE *f;
    int ok;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return 0;
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    ok = fgets(line, cap, f) != NULL;
    fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* root + path and every folder above it down to root. */
static void visit_along(const char *root, const char *path,
                        void (*visit)(void *context, const char *folder), void *context)
{
    char folder[PATH_CAP];
    size_t base = strlen(root);

    if (snprintf(folder, sizeof(folder), "%s%s", root, path) >= (int)sizeof(folder))
        return;
    for (;;) {
        char *slash;

        visit(context, folder);
        slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < base)
            return;
        *slash = '\0';
    }
}

/* Whether a comma-separated list of controllers holds a name. */
static int has_controller(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return 1;
    }
    return 0;
}

void ek_cgroup_visit(const ek_cgroups *g, const char *controller,
                     void (*visit)(void *context, const char *folder), void *context)
{
    char line[PATH_CAP], mount[PATH_CAP];
    FILE *f = fopen(g->membership, "re");

    if (f == NULL)
        return;
    while (fgets(line, sizeof(line), f) != NULL) { /* "id:controllers:path" */
        char *list = strchr(line, ':');
        char *path = list != NULL ? strchr(list + 1, ':') : NULL;

        if (path == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *path++ = '\0';
        list++;
        if (*list == '\0') /* version 2 */
            visit_along(g->root, path, visit, context);
        else if (has_controller(list, controller) &&
                 snprintf(mount, sizeof(mount), "%s/%s", g->root, controller) < (int)sizeof(mount))
            visit_along(mount, path, visit, context);
    }
    fclose(f);
}
