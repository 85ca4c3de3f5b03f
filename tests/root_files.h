/* root_files.h - a made-up tree of files, such as /sys and /proc have. */
#ifndef ROOT_FILES_H
#define ROOT_FILES_H

#include "ek_test.h"

#include <sys/stat.h>

/* Writes root/name, and makes the folders that it is in; root exists. */
static inline void write_file_under(const char *root, const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = '\0';
        mkdir(path, 0700);
    }
    f = fopen(path, "w");
    CHECK(f != NULL);
    if (f != NULL) {
        fputs(text, f);
        fclose(f);
    }
}

#endif
