/* A main for fuzz targets without libFuzzer: runs LLVMFuzzerTestOneInput once on every file
 * given, and on every file below every folder given.  Status 0 if all were run (a finding ends
 * the process), 1 if an argument cannot be read, 2 without arguments. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int runs;

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = -1;
    int good = 0;

    if (f != NULL && fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size >= 0 && fseek(f, 0, SEEK_SET) == 0)
        data = malloc(size > 0 ? (size_t)size : 1); /* exact, so that a sanitizer sees its end */
    if (data != NULL && fread(data, 1, (size_t)size, f) == (size_t)size) {
        LLVMFuzzerTestOneInput(data, (size_t)size);
        runs++;
        good = 1;
    }
    free(data);
    if (f != NULL)
        fclose(f);
    if (!good)
        fprintf(stderr, "cannot read %s\n", path);
    return good;
}

static int run_path(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int good = 1;

    if (d == NULL)
        return run_file(path);
    while ((e = readdir(d)) != NULL) {
        char below[4096];

        if (e->d_name[0] == '.')
            continue;
        snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
        good &= run_path(below);
    }
    closedir(d);
    return good;
}

int main(int argc, char **argv)
{
    int good = 1;

    for (int i = 1; i < argc; i++)
        good &= run_path(argv[i]);
    printf("%d inputs\n", runs);
    return argc < 2 ? 2 : good && runs > 0 ? 0 : 1;
}
