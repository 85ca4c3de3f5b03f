/* Times llama.cpp over given tokens: bench/compare_inference.py compares it with evenkeel on the
 * same ids.
 *
 *     llama_tokens MODEL.gguf mmap|read THREADS PROMPT < ids
 *
 * Reads ids as decimal numbers.  The first PROMPT of them are one batch, each following one a batch
 * of its own, whatever the model would choose.  Prints "opened", then "prompt N SECONDS", then
 * "token N SECONDS" after each, as it goes, for a caller that ends it. */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_IDS = 1 << 16 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void fail(const char *what)
{
    fprintf(stderr, "llama_tokens: %s\n", what);
    exit(1);
}

static struct llama_context *open_model(const char *path, int read, int threads, int ids,
                                        int prompt)
{
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    struct llama_model *model;
    struct llama_context *ctx;

    mp.load_mode = read ? LLAMA_LOAD_MODE_NONE : LLAMA_LOAD_MODE_MMAP;
    model = llama_model_load_from_file(path, mp);
    if (model == NULL)
        fail("the model cannot be read");
    cp.n_ctx = (uint32_t)ids;
    cp.n_batch = cp.n_ubatch = (uint32_t)prompt;
    cp.n_threads = cp.n_threads_batch = threads;
    ctx = llama_init_from_model(model, cp);
    if (ctx == NULL)
        fail("no context");
    return ctx;
}

static void run(struct llama_context *ctx, llama_token *ids, int n)
{
    if (llama_decode(ctx, llama_batch_get_one(ids, n)) != 0)
        fail("a batch failed");
    if (llama_get_logits_ith(ctx, -1) == NULL)
        fail("no logits");
}

int main(int argc, char **argv)
{
    static llama_token ids[MOST_IDS];
    int n = 0, prompt = argc == 5 ? atoi(argv[4]) : 0;
    struct llama_context *ctx;
    double start;

    while (n < MOST_IDS && scanf("%d", &ids[n]) == 1)
        n++;
    if (prompt < 1 || prompt > n)
        fail("usage: llama_tokens MODEL.gguf mmap|read THREADS PROMPT < ids");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    ctx = open_model(argv[1], strcmp(argv[2], "read") == 0, atoi(argv[3]), n, prompt);
    printf("opened\n");
    fflush(stdout);
    start = now();
    run(ctx, ids, prompt);
    printf("prompt %d %.6f\n", prompt, now() - start);
    fflush(stdout);
    start = now();
    for (int i = prompt; i < n; i++) {
        run(ctx, ids + i, 1);
        printf("token %d %.6f\n", i - prompt + 1, now() - start);
        fflush(stdout);
    }
    return 0;
}
