/* Trains a small model from C, with its progress, and stops early on a signal.
 *
 *   cc examples/train.c -o train $(pkg-config --cflags --libs evenkeel)
 *   ./train OUT DATA... */
#include <evenkeel/train.h>

#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void started(void *context, const ek_train_info *info)
{
    (void)context;
    printf("%lld parameters, %lld tokens of data, kernels %s\n", (long long)info->params,
           (long long)info->tokens, info->kernels);
}

static void step(void *context, const ek_train_progress *p)
{
    (void)context;
    if (p->step % 10 == 0 || p->step == p->steps)
        printf("step %lld of %lld: loss %.4f, %.0f tokens/s\n", (long long)p->step,
               (long long)p->steps, p->loss, p->tokens_per_s);
}

static int stop(void *context)
{
    (void)context;
    return interrupted; /* ek_train then writes a checkpoint and returns EK_ECANCELED */
}

int main(int argc, char **argv)
{
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    const ek_train_hooks hooks = {.started = started, .step = step, .stop = stop};
    static ek_train_summary summary;
    ek_status st;

    if (argc < 3) {
        fprintf(stderr, "usage: %s OUT DATA...\n", argv[0]);
        return 2;
    }
    signal(SIGINT, interrupt);
    cfg.model = "tiny";
    cfg.out = argv[1];
    cfg.data = (const char *const *)argv + 2;
    cfg.n_data = argc - 2;
    cfg.batch = 4;
    cfg.seq = 64;
    cfg.steps = 30;
    cfg.lr = 3e-3;
    st = ek_train(&cfg, &hooks, &summary);
    if (st < 0 && st != EK_ECANCELED) {
        fprintf(stderr, "%s\n", ek_err_message());
        return 1;
    }
    printf("checkpoint: %s\n", summary.checkpoint);
    return 0;
}
