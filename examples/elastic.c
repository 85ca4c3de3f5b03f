/* Trains a small model elastically: this program supervises its own workers, which continue when one
 * of them is lost.  Try it: kill -9 one of them (pgrep elastic; not the first, which supervises).
 *
 *   cc examples/elastic.c -o elastic $(pkg-config --cflags --libs evenkeel)
 *   ./elastic OUT RANKS STEPS DATA... */
#include <evenkeel/elastic.h>

#include <stdio.h>
#include <stdlib.h>

static void step(void *context, const ek_train_progress *p)
{
    if (ek_elastic_rank(context) == 0) {
        printf("step %lld of %lld: loss %.4f\n", (long long)p->step, (long long)p->steps, p->loss);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    ek_elastic_config elastic = {.size = sizeof(elastic), .name = "elastic", .watchdog_s = 60};
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    static ek_train_summary summary;
    ek_train_hooks hooks = {.step = step};
    ek_elastic *worker;
    int status;

    if (argc > 4) {
        elastic.out = cfg.out = argv[1];
        elastic.ranks = atoi(argv[2]);
        cfg.steps = atoi(argv[3]);
        cfg.data = (const char *const *)argv + 4;
        cfg.n_data = argc - 4;
    }
    status = ek_elastic_enter(&elastic, argc, argv, &worker);
    if (status >= 0) /* the supervisor, once the job has ended */
        return status;
    cfg.model = "tiny";
    cfg.batch = 4;
    cfg.seq = 64;
    cfg.ep = 2;
    cfg.lr = 3e-3;
    hooks.context = worker;
    return ek_elastic_leave(&worker, ek_elastic_train(worker, &cfg, &hooks, &summary));
}
