/* A pool of layouts: read as written, applied to settings, refused with the name of what is
 * wrong. */
#include "ek_test.h"
#include "train/layout_pool.h"

#include <math.h>
#include <unistd.h>

static const char whole[] =
    "{\"evenkeel_pool\": 1, \"cluster\": \"toy\", \"ranks\": 8, \"batch\": 32, \"seq\": 256,\n"
    " \"dtype\": \"bf16\", \"params\": 5000000000, \"active_params\": 7, \"memory_limit_mb\": "
    "9.5,\n"
    " \"layouts\": [\n"
    "  {\"options\": {\"pp\": 2, \"pp-chunks\": 2, \"tp\": 1, \"ep\": 4, \"etp\": 1, \"zero\": 3,\n"
    "    \"micro-batch\": 16, \"recompute\": \"full\", \"balance\": \"exact\"},\n"
    "   \"step_ms\": 12.5, \"tokens_per_s\": 1, \"mfu\": 0.5, \"memory_mb\": 100},\n"
    "  {\"options\": {\"micro-batch\": 8}, \"step_ms\": 20, \"memory_mb\": 50}]}";

static char *edited(const char *from, const char *to)
{
    const char *at = strstr(whole, from);
    size_t room = sizeof(whole) + strlen(to);
    char *out = calloc(room, 1);

    if (at == NULL)
        EK_T_FAIL("there is no %s in the file", from);
    else
        snprintf(out, room, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    return out;
}

static void refused(const char *from, const char *to, const char *said)
{
    char *text = edited(from, to);
    ek_layout_pool p;

    CHECK_INT(ek_layout_pool_parse(text, strlen(text), "p.json", &p), EK_EFORMAT);
    if (strstr(ek_err_message(), said) == NULL || strstr(ek_err_message(), "p.json") == NULL)
        EK_T_FAIL("%s: no %s", ek_err_message(), said);
    CHECK(p.n == 0);
    free(text);
}

static void read_and_applied(void)
{
    static ek_layout_pool p;
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    char text[256];

    CHECK(ek_layout_pool_read(whole, &p) == EK_OK);
    CHECK(p.ranks == 8 && p.batch == 32 && p.seq == 256 && p.params == 5000000000 && p.n == 2);
    CHECK(fabs(p.layout[0].step_s - 0.0125) < 1e-15);
    CHECK(p.layout[1].memory == 50e6);
    ek_pool_layout_apply(&p.layout[0], &c);
    CHECK(c.pp == 2 && c.chunks == 2 && c.tp == 1 && c.ep == 4 && c.etp == 1 && c.zero == 3);
    CHECK(c.micro_batch == 16 && strcmp(c.recompute, "full") == 0);
    CHECK(strcmp(c.balance, "exact") == 0);
    CHECK(strcmp(ek_layout_words(&p.layout[0].choice, p.layout[0].balance, text, sizeof(text)),
                 "--pp 2 --pp-chunks 2 --ep 4 --zero 3 --micro-batch 16 --recompute full "
                 "--balance exact") == 0);
    ek_pool_layout_apply(&p.layout[1], &c); /* the defaults of train, and the policy in use */
    CHECK(c.pp == 1 && c.chunks == 1 && c.ep == 1 && c.zero == 0 && c.micro_batch == 8);
    CHECK(strcmp(c.recompute, "off") == 0 && strcmp(c.balance, "exact") == 0);
}

static void read_from_a_file(void)
{
    char path[] = "/tmp/ek_pool_XXXXXX";
    static ek_layout_pool p;
    int fd = mkstemp(path);

    CHECK(fd >= 0 && write(fd, whole, strlen(whole)) == (ssize_t)strlen(whole));
    close(fd);
    CHECK(ek_layout_pool_read(path, &p) == EK_OK && p.n == 2);
    unlink(path);
    CHECK_INT(ek_layout_pool_read(path, &p), EK_ENOENT);
    CHECK(strstr(ek_err_message(), path) != NULL && p.n == 0);
}

static void malformed(void)
{
    refused("\"evenkeel_pool\": 1, ", "", "is no pool of layouts");
    refused("\"evenkeel_pool\": 1", "\"evenkeel_pool\": 2", "key `evenkeel_pool`");
    refused("\"ranks\": 8, ", "", "key `ranks`");
    refused("\"seq\": 256", "\"seq\": 0", "key `seq`");
    refused("\"cluster\"", "\"clusters\"", "clusters");
    refused("\"params\": 5000000000", "\"params\": \"many\"", "key `params`");
    refused("\"step_ms\": 20", "\"step_ms\": 0", "layouts[1]: key `step_ms`");
    refused("\"step_ms\": 20, ", "", "layouts[1]: key `step_ms`");
    refused("\"memory_mb\": 50", "\"memory_mb\": -1", "layouts[1]: key `memory_mb`");
    refused("\"options\": {\"micro-batch\": 8}", "\"options\": {}", "key `micro-batch`");
    refused("\"options\": {\"micro-batch\": 8}", "\"options\": 8", "key `options`");
    refused("\"ep\": 4", "\"ep\": 0", "layouts[0]: key `ep`");
    refused("\"zero\": 3", "\"zero\": 4", "layouts[0]: key `zero`");
    refused("\"full\"", "\"some\"", "layouts[0]: key `recompute` is none of off");
    refused("\"recompute\": \"full\"", "\"recompute\": 2", "layouts[0]: key `recompute` is none");
    refused("\"balance\": \"exact\"", "\"balance\": \"best\"", "there is no policy best");
    refused("\"balance\"", "\"lr\"", "lr");
}

static void empty_pools(void)
{
    static const char none[] = "{\"evenkeel_pool\": 1, \"ranks\": 8, \"batch\": 32, \"seq\": 256, "
                               "\"params\": 5, \"layouts\": []}";
    static ek_layout_pool p;

    CHECK_INT(ek_layout_pool_parse(none, strlen(none), "p.json", &p), EK_EFORMAT);
    CHECK(strstr(ek_err_message(), "0 layouts are not between 1 and 256") != NULL);
    CHECK_INT(ek_layout_pool_parse("[]", 2, "p.json", &p), EK_EFORMAT);
    CHECK_INT(ek_layout_pool_parse("{", 1, "p.json", &p), EK_EFORMAT);
}

static const ek_case cases[] = {
    EK_CASE(read_and_applied),
    EK_CASE(read_from_a_file),
    EK_CASE(malformed),
    EK_CASE(empty_pools),
};
EK_TEST_MAIN(cases)
