/* Reads the last line of metrics.jsonl. */
#include "supervisor/run_steps.h"

#include "base/file.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

int64_t ek_run_steps(const char *out, time_t since)
{
    ek_path path;
    ek_file_map m;
    struct stat s;
    const char *text, *line;
    size_t n;
    json_t *last;
    int64_t done = 0;

    if (out == NULL || ek_path_set(&path, "%s/metrics.jsonl", out) < 0 || stat(path.s, &s) != 0 ||
        s.st_mtim.tv_sec < since || ek_file_map_open(path.s, &m) < 0)
        return 0;
    text = m.data;
    for (n = m.bytes; n > 0 && text[n - 1] != '\n';) /* an incomplete line */
        n--;
    line = n > 0 ? memrchr(text, '\n', n - 1) : NULL;
    line = line != NULL ? line + 1 : text;
    last = json_loadb(line, (size_t)(text + n - line), 0, NULL);
    if (json_is_integer(json_object_get(last, "step")))
        done = (int64_t)json_integer_value(json_object_get(last, "step")) + 1;
    json_decref(last);
    ek_file_map_close(&m);
    return done;
}
