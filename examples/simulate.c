/* The time of a training step on a described cluster, and the layout with the shortest one: options
 * of `evenkeel simulate` and `evenkeel search` in, what they print with --json out.
 *
 *   cc examples/simulate.c -o simulate $(pkg-config --cflags --libs evenkeel)
 *   ./simulate examples/clusters/h100-64.json */
#include <evenkeel/simulate.h>
#include <stdio.h>
#include <stdlib.h>

static int show(const char *what, ek_status st, char *answer)
{
    if (st < 0)
        fprintf(stderr, "%s: %s\n", what, ek_err_message());
    else
        printf("%s: %s\n", what, answer);
    free(answer);
    return st < 0;
}

/* The options as JSON; the path must need no escapes in it. */
static int write_settings(char *settings, size_t cap, const char *cluster, const char *more)
{
    int n = snprintf(settings, cap,
                     "{\"cluster\": \"%s\", \"ranks\": 16, \"model\": \"small\", \"batch\": 64, %s}",
                     cluster, more);

    if (n >= 0 && (size_t)n < cap)
        return 0;
    fprintf(stderr, "simulate: the path of the cluster file is too long\n");
    return 1;
}

int main(int argc, char **argv)
{
    char settings[1024], *answer = NULL;
    ek_status st;

    if (argc != 2) {
        fprintf(stderr, "usage: simulate CLUSTER.json\n");
        return 2;
    }
    if (write_settings(settings, sizeof(settings), argv[1], "\"ep\": 8, \"zero\": 1") != 0)
        return 1;
    st = ek_simulate_json(settings, &answer);
    if (show("simulate", st, answer) != 0)
        return 1;
    if (write_settings(settings, sizeof(settings), argv[1],
                       "\"top\": 3, \"fix\": \"etp=1,recompute=off\"") != 0)
        return 1;
    st = ek_search_json(settings, &answer);
    return show("search", st, answer);
}
