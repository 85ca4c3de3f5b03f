/* base/cgroup.h - the control groups of this process: their folders and what stands in them. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

/* Where to look; tests give files of their own. */
typedef struct {
    const char *membership; /* a file like /proc/self/cgroup */
    const char *root;       /* the mount point of the cgroups */
} ek_cgroups;

/* Those of the system. */
extern const ek_cgroups ek_cgroups_system;

/* Calls `visit` for the folder of this process's cgroup with a controller ("cpu", "memory"), of
 * version 1 (root/controller) and 2 (root), and for every folder above it up to the mount point.
 * Folders may not exist: in a container the path is that of the host. */
void ek_cgroup_visit(const ek_cgroups *g, const char *controller,
                     void (*visit)(void *context, const char *folder), void *context);

/* The first line of folder/name, without its newline.  False if it cannot be read. */
int ek_cgroup_line(const char *folder, const char *name, char *line, int cap);

#endif
