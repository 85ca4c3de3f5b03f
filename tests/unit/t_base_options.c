/* The options table: command line, config file, messages, help, dump. */
#include "base/option_value.h"
#include "base/options.h"
#include "ek_test.h"

#include <stddef.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const ek_option rows[] = {
    {"data", EK_OPTION_LIST, .unit = "PATH", .required = 1, .help = "text files or folders"},
    {"batch", EK_OPTION_INT, .fallback = "8", .unit = "sequences", .allowed = "[1,1000]",
     .help = "sequences a step"},
    {"lr", EK_OPTION_REAL, .fallback = "1e-3", .allowed = "(0,)", .help = "learning rate"},
    {"capacity-factor", EK_OPTION_REAL, .fallback = "0",
     .help = "assignments that an expert of a sequence takes, as a factor on the even share; 0: "
             "all of them"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 where fast", .allowed = "bf16|fp32|fp64",
     .help = "compute type"},
    {"degree", EK_OPTION_CHOICE, .fallback = "auto", .allowed = "1|2|4|auto",
     .help = "pipeline degree"},
    {"out", EK_OPTION_TEXT, .fallback = "run", .unit = "DIR", .help = "folder of the results"},
    {"seed", EK_OPTION_INT, .fallback = "0", .help = "random seed"},
    {"quiet", EK_OPTION_FLAG, .help = "no progress"},
    {"draw", EK_OPTION_UINT, .fallback = "0", .field = EK_FIELD_UINT64, .offset = 0,
     .help = "another seed"},
    {"save-every", EK_OPTION_EVERY, .fallback = "0", .unit = "N|TIME", .allowed = "[0,1000]",
     .help = "steps or time"},
    {"limit", EK_OPTION_SIZE, .fallback = "auto", .help = "most bytes"},
};
static const ek_option_table train = {
    .command = "train", .summary = "trains a model", .options = rows, .n_options = COUNT(rows)};
static const ek_option_table loose = {.command = "bench",
                                      .summary = "measures",
                                      .options = rows + 1,
                                      .n_options = COUNT(rows) - 1,
                                      .positional = "gemm|step",
                                      .positional_max = 2};

static ek_status parse(const ek_option_table *t, ek_options **o, int n, const char **args)
{
    char *argv[24];

    for (int i = 0; i < n; i++)
        argv[i] = (char *)(uintptr_t)args[i];
    return ek_options_parse(t, n, argv, o);
}

#define PARSE(t, o, ...)                                                                           \
    parse((t), (o), (int)COUNT(((const char *[]){__VA_ARGS__})), (const char *[]){__VA_ARGS__})

/* A command line that must fail: status, and texts that the message must contain. */
static void refused(const ek_option_table *t, ek_status want, const char *has, const char *has2,
                    int n, const char **args)
{
    ek_options *o = NULL;

    CHECK_INT(parse(t, &o, n, args), want);
    CHECK(o == NULL);
    if (strstr(ek_err_message(), has) == NULL || strstr(ek_err_message(), has2) == NULL)
        EK_T_FAIL("message is \"%s\", expected \"%s\" and \"%s\"", ek_err_message(), has, has2);
}

#define REFUSED(t, want, has, has2, ...)                                                           \
    refused((t), (want), (has), (has2), (int)COUNT(((const char *[]){__VA_ARGS__})),               \
            (const char *[]){__VA_ARGS__})

static void defaults(void)
{
    ek_options *o = NULL;

    CHECK_INT(PARSE(&train, &o, "--data", "a"), EK_OK);
    if (o == NULL)
        return;
    CHECK_INT(ek_options_int(o, "batch"), 8);
    CHECK(ek_options_real(o, "lr") == 1e-3);
    CHECK(ek_options_text(o, "dtype") == NULL);
    CHECK(strcmp(ek_options_text(o, "degree"), "auto") == 0);
    CHECK(strcmp(ek_options_text(o, "out"), "run") == 0);
    CHECK(!ek_options_flag(o, "quiet"));
    CHECK(!ek_options_given(o, "batch") && ek_options_given(o, "data"));
    CHECK(ek_options_int(o, "nonsense") == 0 && ek_options_text(o, "nonsense") == NULL);
    ek_options_destroy(o);
}

static void steps_or_time(void)
{
    static const char *const times[] = {"1s", "90s", "10m", "2h"};
    static const int64_t seconds[] = {1, 90, 600, 7200};
    static const char *const wrong[] = {
        "0s", "m", "-1m", "1d", "1.5h", "10 m", "10m ", "", "1001", "-1", "99999999999999999999s"};
    ek_options *o = NULL;
    int64_t s = 0;

    for (size_t i = 0; i < COUNT(times); i++) {
        CHECK_INT(PARSE(&train, &o, "--data", "a", "--save-every", times[i]), EK_OK);
        CHECK(strcmp(ek_options_text(o, "save-every"), times[i]) == 0);
        CHECK(ek_option_seconds(times[i], &s));
        CHECK_INT(s, seconds[i]);
        ek_options_destroy(o);
    }
    CHECK_INT(PARSE(&train, &o, "--data", "a", "--save-every", "12"), EK_OK);
    CHECK_INT(ek_options_int(o, "save-every"), 12);
    ek_options_destroy(o);
    for (size_t i = 0; i < COUNT(wrong); i++)
        REFUSED(&train, EK_EINVAL, "--save-every", "a time (90s, 10m, 2h) or an integer", "--data",
                "a", "--save-every", wrong[i]);
}

static void sizes(void)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } right[] = {{"auto", 0},
                 {"1", 1},
                 {"4096", 4096},
                 {"8G", INT64_C(8) << 30},
                 {"8g", INT64_C(8) << 30},
                 {"512M", 512 << 20},
                 {"1.5GiB", INT64_C(3) << 29},
                 {"64KiB", 65536},
                 {"2TB", 2000000000000},
                 {"0.5kb", 500},
                 {"1T", INT64_C(1) << 40}};
    static const char *const wrong[] = {"0",   "-1",   "G",         "8 G",  " 8G", "8G ",
                                        "1e9", "0x10", "1.2.3",     "8GBi", "8X",  "",
                                        "inf", "nan",  "99999999T", ".5G",  "Auto"};
    ek_options *o = NULL;
    int64_t bytes;

    for (size_t i = 0; i < COUNT(right); i++) {
        CHECK_INT(PARSE(&train, &o, "--data", "a", "--limit", right[i].text), EK_OK);
        CHECK(strcmp(ek_options_text(o, "limit"), right[i].text) == 0);
        CHECK(ek_option_size(right[i].text, &bytes));
        CHECK_INT(bytes, right[i].bytes);
        ek_options_destroy(o);
    }
    for (size_t i = 0; i < COUNT(wrong); i++)
        REFUSED(&train, EK_EINVAL, "--limit", "a size (8G, 512M, 1.5GiB) or auto", "--data", "a",
                "--limit", wrong[i]);
}

static void both_spellings(void)
{
    ek_options *o = NULL;

    CHECK_INT(PARSE(&train, &o, "--batch=3", "--lr", "2e-4", "--capacity-factor", "-1.5", "--data",
                    "a", "b c", "--quiet", "--dtype", "fp64", "--data=d", "--seed",
                    "-9223372036854775808", "--out=x=y"),
              EK_OK);
    if (o == NULL)
        return;
    CHECK_INT(ek_options_int(o, "batch"), 3);
    CHECK(ek_options_real(o, "lr") == 2e-4);
    CHECK(ek_options_real(o, "capacity-factor") == -1.5);
    CHECK(strcmp(ek_options_text(o, "dtype"), "fp64") == 0);
    CHECK(ek_options_flag(o, "quiet"));
    CHECK(ek_options_int(o, "seed") == INT64_MIN);
    CHECK(strcmp(ek_options_text(o, "out"), "x=y") == 0);
    CHECK_INT(ek_options_count(o, "data"), 3);
    CHECK(strcmp(ek_options_list(o, "data", 1), "b c") == 0);
    CHECK(strcmp(ek_options_list(o, "data", 2), "d") == 0);
    CHECK(ek_options_list(o, "data", 3) == NULL);
    ek_options_destroy(o);
}

/* All 64 bits, from the command line and from JSON, where numbers from 2^63 on are strings. */
/* The only field of the rows. */
static uint64_t draw_of(const ek_options *o)
{
    uint64_t draw = 1;

    CHECK_INT(ek_options_store(o, &draw), EK_OK);
    return draw;
}

static void unsigned_numbers(void)
{
    static const char *const wrong[] = {"18446744073709551616", "-1", "+1", "", " 1", "1x", "0x1"};
    ek_options *o = NULL, *again = NULL;
    char path[] = "/tmp/ek_options_XXXXXX";
    int fd = mkstemp(path);
    json_t *dump;

    CHECK_INT(PARSE(&train, &o, "--data", "a", "--draw", "18446744073709551615"), EK_OK);
    CHECK(o != NULL && draw_of(o) == UINT64_MAX);
    dump = o != NULL ? ek_options_dump(o) : NULL;
    CHECK(json_is_string(json_object_get(dump, "draw")));
    CHECK(fd >= 0 && json_dump_file(dump, path, 0) == 0);
    CHECK_INT(PARSE(&train, &again, "--config", path), EK_OK);
    CHECK(again != NULL && draw_of(again) == UINT64_MAX);
    ek_options_destroy(again);
    ek_options_destroy(o);
    json_decref(dump);
    CHECK_INT(PARSE(&train, &o, "--data", "a", "--draw", "9223372036854775807"), EK_OK);
    CHECK(o != NULL && draw_of(o) == INT64_MAX);
    dump = o != NULL ? ek_options_dump(o) : NULL;
    CHECK(json_is_integer(json_object_get(dump, "draw")));
    json_decref(dump);
    ek_options_destroy(o);
    for (size_t i = 0; i < COUNT(wrong); i++)
        refused(&train, EK_EINVAL, "--draw", "an integer from 0 to 18446744073709551615", 4,
                (const char *[]){"--data", "a", "--draw", wrong[i]});
    close(fd);
    unlink(path);
}

static void last_one_counts(void)
{
    ek_options *o = NULL;

    CHECK_INT(PARSE(&train, &o, "--data", "a", "--batch", "1", "--batch", "2", "--quiet",
                    "--quiet=false"),
              EK_OK);
    CHECK(o != NULL && ek_options_int(o, "batch") == 2 && !ek_options_flag(o, "quiet"));
    ek_options_destroy(o);
}

static void positional(void)
{
    ek_options *o = NULL;

    CHECK_INT(PARSE(&loose, &o, "gemm", "--batch", "2", "--", "--odd"), EK_OK);
    CHECK(o != NULL && ek_options_count(o, NULL) == 2);
    CHECK(o != NULL && strcmp(ek_options_list(o, NULL, 1), "--odd") == 0);
    ek_options_destroy(o);
    REFUSED(&loose, EK_EINVAL, "`bench`", "`c`", "a", "b", "c");
    REFUSED(&train, EK_EINVAL, "`train`", "`stray`", "stray", "--data", "a");
}

static void bad_values(void)
{
    REFUSED(&train, EK_EINVAL, "`--batch` is 0", "an integer from 1 to 1000", "--batch", "0");
    REFUSED(&train, EK_EINVAL, "`--batch` is 1001", "to 1000", "--batch=1001");
    REFUSED(&train, EK_EINVAL, "`--batch` is 3.5", "an integer", "--batch=3.5");
    REFUSED(&train, EK_EINVAL, "`--batch` is 12x", "an integer", "--batch=12x");
    REFUSED(&train, EK_EINVAL, "`--batch` is empty", "an integer", "--batch=");
    REFUSED(&train, EK_EINVAL, "`--batch`", "an integer", "--batch=99999999999999999999");
    REFUSED(&train, EK_EINVAL, "`--lr` is 0", "above 0", "--lr", "0");
    REFUSED(&train, EK_EINVAL, "`--lr` is nan", "finite", "--lr", "nan");
    REFUSED(&train, EK_EINVAL, "`--lr` is inf", "finite", "--lr", "inf");
    REFUSED(&train, EK_EINVAL, "`--lr` is 1e999", "finite", "--lr", "1e999");
    REFUSED(&train, EK_EINVAL, "`--lr` is  1", "above 0", "--lr", " 1");
    REFUSED(&train, EK_EINVAL, "`--capacity-factor` is -nan", "finite", "--capacity-factor=-nan");
    REFUSED(&train, EK_EINVAL, "`--capacity-factor` is inf", "finite", "--capacity-factor=inf");
    REFUSED(&train, EK_EINVAL, "`--seed` is 9223372036854775808", "", "--seed=9223372036854775808");
    REFUSED(&train, EK_EINVAL, "`--dtype` is fp16", "one of bf16, fp32, fp64", "--dtype", "fp16");
    REFUSED(&train, EK_EINVAL, "`--quiet` is maybe", "true or false", "--quiet=maybe");
    REFUSED(&train, EK_EINVAL, "`--out` is empty", "not empty", "--out=");
    REFUSED(&train, EK_EINVAL, "`--batch` needs a value", "", "--batch");
    REFUSED(&train, EK_EINVAL, "`--batch` needs a value", "", "--batch", "--quiet");
    REFUSED(&train, EK_EINVAL, "`--data` needs a value", "", "--data", "--quiet");
    REFUSED(&train, EK_EINVAL, "needs `--data`", "text files", "--quiet");
}

static void unknown_names(void)
{
    REFUSED(&train, EK_EINVAL, "`--bacth`", "nearest is `--batch`", "--bacth", "3");
    REFUSED(&train, EK_EINVAL, "`--seeds`", "nearest is `--seed`", "--seeds=1");
    REFUSED(&train, EK_EINVAL, "`--hepl`", "nearest is `--help`", "--hepl");
    REFUSED(&train, EK_EINVAL, "`--confg`", "nearest is `--config`", "--confg=x");
    REFUSED(&train, EK_EINVAL, "no option `--`", "nearest", "--=x");
    REFUSED(&train, EK_EINVAL, "no option `--dat`", "`--data`", "--dat", "x");
    REFUSED(
        &train, EK_EINVAL, "aaaaaaaaaaaaaaaa", "nearest",
        "--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
}

static char config_path[] = "/tmp/ek_options_XXXXXX";

static void write_config(const char *text)
{
    FILE *f = fopen(config_path, "w");

    CHECK(f != NULL);
    if (f != NULL) {
        fputs(text, f);
        fclose(f);
    }
}

static void config_file(void)
{
    int fd = mkstemp(config_path);
    ek_options *o = NULL;

    CHECK(fd >= 0);
    write_config("{\"data\": [\"x\", \"y\"], \"batch\": 5, \"lr\": 1, \"degree\": 4,"
                 " \"quiet\": true, \"seed\": 7}");
    CHECK_INT(PARSE(&train, &o, "--config", config_path, "--seed", "9"), EK_OK);
    if (o != NULL) {
        CHECK_INT(ek_options_int(o, "batch"), 5);
        CHECK_INT(ek_options_int(o, "seed"), 9);
        CHECK(ek_options_real(o, "lr") == 1.0);
        CHECK(strcmp(ek_options_text(o, "degree"), "4") == 0);
        CHECK(ek_options_flag(o, "quiet") && ek_options_given(o, "quiet"));
        CHECK_INT(ek_options_count(o, "data"), 2);
    }
    ek_options_destroy(o);
    CHECK_INT(PARSE(&train, &o, "--data", "z", "--config", config_path, "--quiet=false"), EK_OK);
    CHECK(o != NULL && ek_options_count(o, "data") == 1 && !ek_options_flag(o, "quiet"));
    ek_options_destroy(o);
    write_config("{\"data\": 5}");
    CHECK_INT(PARSE(&train, &o, "--config", config_path), EK_OK);
    CHECK(o != NULL && strcmp(ek_options_list(o, "data", 0), "5") == 0);
    ek_options_destroy(o);
    write_config("{\"data\": [\"x\", -3]}");
    CHECK_INT(PARSE(&train, &o, "--config", config_path), EK_OK);
    CHECK(o != NULL && strcmp(ek_options_list(o, "data", 1), "-3") == 0);
    ek_options_destroy(o);
    write_config("{\"data\": [\"x\", 1.5]}");
    REFUSED(&train, EK_EINVAL, "key `data` is a number", "texts", "--config", config_path);
    write_config("{\"bacth\": 5}");
    REFUSED(&train, EK_EINVAL, config_path, "nearest is `batch`", "--config", config_path);
    write_config("{\"batch\": \"5\"}");
    REFUSED(&train, EK_EINVAL, "key `batch` is a string", "an integer", "--config", config_path);
    write_config("{\"batch\": 0}");
    REFUSED(&train, EK_EINVAL, "key `batch` is 0", "from 1", "--config", config_path);
    write_config("{\"batch\": 2.5}");
    REFUSED(&train, EK_EINVAL, "key `batch` is a number", "an integer", "--config", config_path);
    write_config("{\"data\": []}");
    REFUSED(&train, EK_EINVAL, "key `data` is empty", "one or more", "--config", config_path);
    write_config("{\"data\": [\"a\", true]}");
    REFUSED(&train, EK_EINVAL, "key `data` is true", "texts", "--config", config_path);
    write_config("{\"batch\": 5, \"batch\": 6}");
    REFUSED(&train, EK_EFORMAT, config_path, "line 1", "--config", config_path);
    write_config("[1]");
    REFUSED(&train, EK_EFORMAT, "expected an object", "an array", "--config", config_path);
    unlink(config_path);
    REFUSED(&train, EK_ENOENT, config_path, "", "--config", config_path);
}

static void help_is_complete(void)
{
    char *text = ek_options_help(&train, EK_HELP_TEXT, NULL);
    ek_options *o = NULL;

    CHECK(text != NULL);
    for (size_t i = 0; text != NULL && i < COUNT(rows); i++) {
        char flag[64], start[12]; /* a help text may be wrapped */

        snprintf(flag, sizeof(flag), "  --%s", rows[i].name);
        snprintf(start, sizeof(start), "%.11s", rows[i].help);
        if (strstr(text, flag) == NULL || strstr(text, start) == NULL)
            EK_T_FAIL("--help lacks %s:\n%s", rows[i].name, text);
    }
    CHECK(text != NULL && strstr(text, "(default: 1e-3)") != NULL);
    CHECK(text != NULL && strstr(text, "(default: bf16 where fast)") != NULL);
    CHECK(text != NULL && strstr(text, "[sequences]") != NULL);
    CHECK(text != NULL && strstr(text, "--data PATH...") != NULL);
    for (const char *line = text; line != NULL && *line != '\0';) {
        size_t n = strcspn(line, "\n");

        CHECK(n <= 100);
        line += n + (line[n] == '\n');
    }
    free(text);
    CHECK_INT(PARSE(&train, &o, "--batch", "0", "--help"), EK_OK);
    CHECK(o != NULL && ek_options_help_wanted(o));
    ek_options_destroy(o);
}

static const char *describe_word(const char *word)
{
    return strcmp(word, "gemm") == 0 ? "products" : "steps";
}

static const ek_option of_words[] = {
    {"all", EK_OPTION_INT, .help = "for all"},
    {"repeats", EK_OPTION_INT, .only = "gemm|step|disk", .help = "how often"},
    {"shape", EK_OPTION_TEXT, .only = "gemm", .help = "of a product"},
    {"batch", EK_OPTION_INT, .fallback = "8", .only = "step", .help = "of a step"},
};
static const ek_option_table word_table = {.command = "bench",
                                           .summary = "measures",
                                           .options = of_words,
                                           .n_options = COUNT(of_words),
                                           .positional = "gemm|step|disk|a2a",
                                           .positional_max = 1,
                                           .describe = describe_word};

static void help_of_one_word(void)
{
    char *all = ek_options_help(&word_table, EK_HELP_TEXT, NULL);
    char *gemm = ek_options_help(&word_table, EK_HELP_TEXT, "gemm");
    char *listed = ek_options_help(&word_table, EK_HELP_OPTIONS, "gemm");
    ek_options *o = NULL;

    CHECK(all != NULL && strstr(all, "usage: evenkeel bench gemm|step|disk|a2a [") != NULL);
    CHECK(all != NULL && strstr(all, " gemm, step, disk: how often\n") != NULL &&
          strstr(all, " gemm: of a product\n") != NULL &&
          strstr(all, " step: of a step (default: 8)\n") != NULL);
    CHECK(gemm != NULL &&
          strstr(gemm, "usage: evenkeel bench gemm [options]\n\nproducts\n") != NULL);
    CHECK(gemm != NULL && strstr(gemm, "--all") != NULL && strstr(gemm, "--help") != NULL &&
          strstr(gemm, " how often\n") != NULL && strstr(gemm, " of a product\n") != NULL);
    CHECK(gemm != NULL && strstr(gemm, "gemm:") == NULL && strstr(gemm, "--batch") == NULL);
    free(all);
    free(gemm);
    CHECK(listed != NULL && strcmp(listed, "--all\tvalue\n--repeats\tvalue\n--shape\tvalue\n"
                                           "--config\tfile\n--help\tflag\n") == 0);
    free(listed);
    CHECK_INT(PARSE(&word_table, &o, "--all", "1", "step", "--help"), EK_OK);
    CHECK(o != NULL && ek_options_help_word(o) != NULL &&
          strcmp(ek_options_help_word(o), "step") == 0);
    ek_options_destroy(o);
    CHECK_INT(PARSE(&word_table, &o, "--shape", "gemm", "step", "--help"), EK_OK);
    CHECK(o != NULL && ek_options_help_word(o) != NULL &&
          strcmp(ek_options_help_word(o), "step") == 0); /* not a value */
    ek_options_destroy(o);
    CHECK_INT(PARSE(&word_table, &o, "--help", "flops"), EK_OK);
    CHECK(o != NULL && ek_options_help_word(o) == NULL);
    ek_options_destroy(o);
}

static void options_of_other_words_are_refused(void)
{
    char path[] = "/tmp/ek_options_XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    ek_options *o = NULL;

    CHECK_INT(PARSE(&word_table, &o, "gemm", "--repeats", "1", "--all", "2"), EK_OK);
    ek_options_destroy(o);
    CHECK_INT(PARSE(&word_table, &o, "--shape", "x", "--batch", "1"), EK_OK); /* no word */
    ek_options_destroy(o);
    CHECK_INT(PARSE(&word_table, &o, "flops", "--batch", "1"), EK_OK); /* not a word of its list */
    ek_options_destroy(o);
    CHECK_INT(PARSE(&word_table, &o, "--batch", "8", "gemm"), EK_EINVAL);
    CHECK(strcmp(ek_err_message(),
                 "`bench gemm` has no option `--batch`, which is an option of bench "
                 "step (see `evenkeel bench gemm --help`)") == 0);
    CHECK_INT(PARSE(&word_table, &o, "a2a", "--repeats=1"), EK_EINVAL);
    CHECK(strstr(ek_err_message(),
                 "`--repeats`, which is an option of bench gemm, step and disk (") != NULL);
    CHECK(f != NULL && fputs("{\"shape\": \"x\"}", f) > 0 && fclose(f) == 0);
    CHECK_INT(PARSE(&word_table, &o, "step", "--config", path), EK_EINVAL);
    CHECK(strstr(ek_err_message(), path) != NULL &&
          strstr(ek_err_message(),
                 ": `bench step` has no option `shape`, which is an option of bench "
                 "gemm (") != NULL);
    CHECK_INT(PARSE(&word_table, &o, "gemm", "--config", path), EK_OK);
    ek_options_destroy(o);
    unlink(path);
}

static void dump_repeats_the_run(void)
{
    ek_options *a = NULL, *b = NULL;
    json_t *first, *second;
    char path[] = "/tmp/ek_options_XXXXXX";
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    CHECK_INT(PARSE(&train, &a, "--data", "a", "b", "--lr", "0.1", "--quiet", "--degree=2"), EK_OK);
    if (a == NULL)
        return;
    first = ek_options_dump(a);
    CHECK(first != NULL && json_dump_file(first, path, 0) == 0);
    CHECK(json_real_value(json_object_get(first, "lr")) == 0.1);
    CHECK(json_object_get(first, "dtype") == NULL);
    CHECK_INT(PARSE(&train, &b, "--config", path), EK_OK);
    second = b != NULL ? ek_options_dump(b) : NULL;
    CHECK(second != NULL && json_equal(first, second));
    json_decref(first);
    json_decref(second);
    ek_options_destroy(a);
    ek_options_destroy(b);
    close(fd);
    unlink(path);
}

typedef struct {
    const char *const *paths;
    int64_t n_paths;
    int quiet, degree, type;
    int64_t batch, save_steps, save_seconds, limit;
    uint64_t draw;
    double rate, small, large;
    const char *out, *dtype;
} fields;

static const ek_option field_rows[] = {
    {"paths", EK_OPTION_LIST, .field = EK_FIELD_LIST, .offset = offsetof(fields, paths),
     .help = "."},
    {"quiet", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(fields, quiet),
     .help = "."},
    {"degree", EK_OPTION_CHOICE, .allowed = "1|2|4|auto", .field = EK_FIELD_INT,
     .offset = offsetof(fields, degree), .help = "."},
    {"type", EK_OPTION_CHOICE, .allowed = "bf16|fp32|fp64", .field = EK_FIELD_INDEX,
     .offset = offsetof(fields, type), .help = "."},
    {"batch", EK_OPTION_INT, .fallback = "8", .field = EK_FIELD_INT64,
     .offset = offsetof(fields, batch), .help = "."},
    {"save-every", EK_OPTION_EVERY, .field = EK_FIELD_EVERY, .offset = offsetof(fields, save_steps),
     .seconds_offset = offsetof(fields, save_seconds), .help = "."},
    {"limit", EK_OPTION_SIZE, .field = EK_FIELD_SIZE, .offset = offsetof(fields, limit),
     .help = "."},
    {"draw", EK_OPTION_UINT, .field = EK_FIELD_UINT64, .offset = offsetof(fields, draw),
     .help = "."},
    {"rate", EK_OPTION_REAL, .field = EK_FIELD_REAL, .offset = offsetof(fields, rate), .help = "."},
    {"small", EK_OPTION_REAL, .field = EK_FIELD_REAL, .offset = offsetof(fields, small),
     .help = "."},
    {"large", EK_OPTION_REAL, .field = EK_FIELD_REAL, .offset = offsetof(fields, large),
     .help = "."},
    {"out", EK_OPTION_TEXT, .field = EK_FIELD_TEXT, .offset = offsetof(fields, out), .help = "."},
    {"dtype", EK_OPTION_CHOICE, .shown = "the fastest", .allowed = "bf16|fp32",
     .field = EK_FIELD_TEXT, .offset = offsetof(fields, dtype), .help = "."},
};
static const fields field_defaults = {
    .type = 1, .batch = 3, .save_seconds = 600, .rate = 1e-3, .small = 0.14, .large = 300};
static const ek_option_table into_fields = {.command = "fields",
                                            .summary = "fills a struct",
                                            .options = field_rows,
                                            .n_options = COUNT(field_rows),
                                            .defaults = &field_defaults};

static void values_are_stored_in_fields(void)
{
    fields f = {.batch = 7, .dtype = "as before"};
    ek_options *o = NULL;

    CHECK_INT(PARSE(&into_fields, &o, "--paths", "a", "b", "--quiet", "--degree", "4", "--type",
                    "fp64", "--save-every", "20", "--limit", "3G", "--draw", "18446744073709551615",
                    "--rate", "0.5", "--out", "c"),
              EK_OK);
    CHECK(o != NULL && ek_options_store(o, &f) == EK_OK);
    CHECK(f.n_paths == 2 && strcmp(f.paths[1], "b") == 0);
    CHECK(f.quiet == 1 && f.degree == 4 && f.type == 2 && f.batch == 8);
    CHECK_INT(f.limit, INT64_C(3) << 30);
    CHECK(f.save_steps == 20 && f.save_seconds == 0 && f.draw == UINT64_MAX);
    CHECK(fabs(f.rate - 0.5) <= 0 && fabs(f.small - 0.14) <= 0);
    CHECK(f.out != NULL && strcmp(f.out, "c") == 0 && strcmp(f.dtype, "as before") == 0);
    ek_options_destroy(o);
}

/* A row whose unit has the word: -1 in the field, which may be its default. */
static void steps_time_or_auto(void)
{
    static const ek_option every[] = {
        {"save-every", EK_OPTION_EVERY, .unit = "N|TIME|auto", .allowed = "[0,1000]",
         .field = EK_FIELD_EVERY, .offset = offsetof(fields, save_steps),
         .seconds_offset = offsetof(fields, save_seconds), .help = "."}};
    static const fields automatic = {.save_steps = -1};
    static const ek_option_table table = {.command = "every",
                                          .summary = "saves",
                                          .options = every,
                                          .n_options = COUNT(every),
                                          .defaults = &automatic};
    static const struct {
        const char *word;
        int64_t steps, seconds;
    } given[] = {{"auto", -1, 0}, {"7", 7, 0}, {"0", 0, 0}, {"2m", 0, 120}};
    char *help = ek_options_help(&table, EK_HELP_TEXT, NULL);
    ek_options *o = NULL;
    fields f = {.save_steps = 5, .save_seconds = 5};

    CHECK(help != NULL && strstr(help, "--save-every N|TIME|auto") != NULL &&
          strstr(help, "(default: auto)") != NULL);
    free(help);
    CHECK(ek_options_parse(&table, 0, NULL, &o) == EK_OK && ek_options_store(o, &f) == EK_OK);
    CHECK(f.save_steps == -1 && f.save_seconds == 0);
    ek_options_destroy(o);
    for (size_t i = 0; i < COUNT(given); i++) {
        CHECK_INT(PARSE(&table, &o, "--save-every", given[i].word), EK_OK);
        CHECK(o != NULL && ek_options_store(o, &f) == EK_OK);
        CHECK(f.save_steps == given[i].steps && f.save_seconds == given[i].seconds);
        ek_options_destroy(o);
    }
    REFUSED(&table, EK_EINVAL, "--save-every", "auto, a time (90s, 10m, 2h) or an integer",
            "--save-every", "automatic");
    REFUSED(&train, EK_EINVAL, "--save-every", "a time", "--data", "a", "--save-every", "auto");
}

static void defaults_of_a_struct_hold_and_are_shown(void)
{
    static const char *const shown[] = {
        "--degree 1|2|4|auto       . (default: auto)",
        "--type bf16|fp32|fp64     . (default: fp32)",
        "--batch N                 . (default: 8)",
        "--save-every N            . (default: 10m)",
        "--limit SIZE|auto         . (default: auto)",
        "--draw N                  . (default: 0)",
        "--rate X                  . (default: 1e-3)",
        "--small X                 . (default: 0.14)",
        "--large X                 . (default: 300)",
        "--out TEXT                .\n",
        "--dtype bf16|fp32         . (default: the fastest)",
    };
    char *help = ek_options_help(&into_fields, EK_HELP_TEXT, NULL);
    fields f = {.limit = 5};
    ek_options *o = NULL;

    for (size_t i = 0; i < COUNT(shown); i++)
        if (help == NULL || strstr(help, shown[i]) == NULL)
            EK_T_FAIL("--help lacks \"%s\":\n%s", shown[i], help != NULL ? help : "");
    free(help);
    CHECK_INT(PARSE(&into_fields, &o, "--quiet"), EK_OK);
    CHECK(o != NULL && ek_options_store(o, &f) == EK_OK);
    CHECK(f.limit == 0 && f.type == 1 && f.batch == 8 && f.save_steps == 0 &&
          f.save_seconds == 600);
    CHECK(fabs(f.rate - 1e-3) <= 0 && fabs(f.large - 300) <= 0);
    CHECK(f.paths == NULL && f.out == NULL && f.dtype == NULL && f.degree == 0);
    ek_options_destroy(o);
}

static const ek_case cases[] = {
    EK_CASE(defaults),
    EK_CASE(steps_or_time),
    EK_CASE(sizes),
    EK_CASE(both_spellings),
    EK_CASE(last_one_counts),
    EK_CASE(unsigned_numbers),
    EK_CASE(positional),
    EK_CASE(bad_values),
    EK_CASE(unknown_names),
    EK_CASE(config_file),
    EK_CASE(help_is_complete),
    EK_CASE(help_of_one_word),
    EK_CASE(options_of_other_words_are_refused),
    EK_CASE(dump_repeats_the_run),
    EK_CASE(values_are_stored_in_fields),
    EK_CASE(steps_time_or_auto),
    EK_CASE(defaults_of_a_struct_hold_and_are_shown),
};
EK_TEST_MAIN(cases)
