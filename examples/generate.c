/* Continues a text with a trained model.
 *
 *   cc examples/generate.c -o generate $(pkg-config --cflags --libs evenkeel)
 *   ./generate MODEL "some words" */
#include <evenkeel/lm.h>

#include <stdio.h>

static int print(void *context, const char *text, size_t bytes)
{
    (void)context;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return 0; /* true would end the text here */
}

int main(int argc, char **argv)
{
    const ek_lm_generate_config cfg = {
        .size = sizeof(cfg), .tokens = 100, .temperature = 0.8, .top_p = 0.95, .seed = 1};
    ek_lm *lm = NULL;
    ek_status st;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    st = ek_lm_open(argv[1], NULL, &lm);
    if (st == EK_OK)
        st = ek_lm_generate(lm, argv[2], &cfg, print, NULL, NULL);
    printf("\n");
    if (st < 0)
        fprintf(stderr, "%s\n", ek_err_message());
    ek_lm_close(&lm);
    return st < 0;
}
