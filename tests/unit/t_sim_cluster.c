/* The cluster file: read as written, and refused with the name of what is wrong; the tree of
 * levels. */
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/cluster.h"
#include "sim/what_if.h"

static const char whole[] =
    "{\"evenkeel_cluster\": 1, \"name\": \"made up\", \"note\": \"free text\",\n"
    " \"rank\": {\"memory\": \"80G\", \"cores\": 8,\n"
    "  \"machine\": {\"peak\": 8e12, \"memory_bytes_s\": 3e12, \"efficiency\": 0.5}},\n"
    " \"levels\": [{\"name\": \"node\", \"ranks\": 8, \"gbytes_s\": 450, \"us\": 3.5},\n"
    "  {\"name\": \"leaf\", \"ranks\": 256, \"gbytes_s\": 50, \"us\": 2.5, \"rails\": 8,\n"
    "   \"shared_by\": 2, \"collective_us\": 20},\n"
    "  {\"name\": \"spine\", \"ranks\": 8192, \"gbytes_s\": 25, \"us\": 4, \"message_us\": 1, "
    "\"byte_ns\": 2, \"peer_gbytes_s\": 14, \"gap_us\": 2.5, \"ring_step_us\": 9, "
    "\"burst_kbytes\": 50, \"arrival_skew_us\": 900}],\n"
    " \"slow\": {\"ranks\": [3, 700], \"factor\": 0.9},\n"
    " \"failures\": {\"node_mtbf_h\": 4000, \"rack_nodes\": 4, \"rack_share\": 0.25, \"back_s\": "
    "600,\n"
    "  \"recover_s\": 2, \"restart_s\": 30, \"save_s\": 4},\n"
    " \"price\": {\"node_hour\": 90}}";

/* The text of `whole` with its first `from` made `to`. */
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

static ek_status read_edited(const char *from, const char *to, ek_cluster *c)
{
    char *text = edited(from, to);
    ek_status st = ek_cluster_parse(text, strlen(text), "c.json", c);

    free(text);
    return st;
}

/* --- what is read ----------------------------------------------------------------------------- */

static void read_in_units(void)
{
    ek_cluster c;

    CHECK(ek_cluster_parse(whole, strlen(whole), "c.json", &c) == EK_OK);
    CHECK(strcmp(c.name, "made up") == 0 && c.memory == 80.0 * (1 << 30) && c.cores == 8);
    CHECK_INT(c.n_levels, 3);
    CHECK(strcmp(c.level[1].name, "leaf") == 0 && c.level[1].ranks == 256);
    CHECK_NEAR(c.level[1].bytes_s, 50e9);
    CHECK_NEAR(c.level[1].latency_s, 2.5e-6);
    CHECK(c.level[1].shared_by == 2 && c.level[2].shared_by == 1);
    CHECK(c.level[2].burst == 50e3 && fabs(c.level[2].arrival_skew_s - 900e-6) < 1e-9);
    CHECK(c.level[1].burst == 0 && c.level[1].arrival_skew_s == 0);
    CHECK(c.level[1].overhead_s == 0 && c.level[1].rails == 8 && c.level[0].rails == 1);
    CHECK_NEAR(c.level[2].overhead_s, 1e-6);
    CHECK_NEAR(c.level[1].collective_s, 20e-6);
    CHECK(c.level[2].collective_s == 0);
    CHECK_NEAR(c.level[2].byte_s, 2e-9);
    CHECK_NEAR(c.level[2].peer_bytes_s, 14e9);
    CHECK_NEAR(c.level[2].gap_s, 2.5e-6);
    CHECK_NEAR(c.level[2].ring_step_s, 9e-6);
    CHECK(c.level[1].peer_bytes_s == 0 && c.level[1].gap_s == 0);
    CHECK(c.n_slow == 2 && c.slow[1] == 700 && c.slow_factor == 0.9);
    CHECK(c.node_mtbf_s == 4000 * 3600.0 && c.rack_nodes == 4 && c.back_s == 600);
    CHECK(c.rack_share == 0.25 && c.recover_s == 2 && c.restart_s == 30 && c.save_s == 4);
    CHECK_NEAR(c.node_s_price, 0.025);
}

static void constant_machine(void)
{
    ek_cluster c;

    CHECK(ek_cluster_parse(whole, strlen(whole), "c.json", &c) == EK_OK);
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        CHECK(ek_cost_rate_at(&c.machine.rate[p], 1) == 4e12);
        CHECK(ek_cost_rate_at(&c.machine.rate[p], 1e9) == 4e12);
    }
    CHECK(c.machine.copy == 3e12 && strcmp(c.machine.dtype, "bf16") == 0);
    CHECK(strcmp(c.machine.name, "made up") == 0);
    CHECK(read_edited("\"peak\"", "\"dtype\": \"fp32\", \"peak\"", &c) == EK_OK);
    CHECK(strcmp(c.machine.dtype, "fp32") == 0);
}

/* The object itself, or a file beside the cluster file, whatever the working folder. */
static void measured_machine(void)
{
    char folder[] = "/tmp/ek_cluster_XXXXXX", path[64], cluster[64];
    static const char object[] = "{\"peak\": 8e12, \"memory_bytes_s\": 3e12, \"efficiency\": 0.5}";
    ek_machine m = by_hand();
    char *text = NULL;
    size_t bytes = 0;
    ek_cluster c;
    FILE *f;

    CHECK(ek_machine_text(&m, &text, &bytes) == EK_OK);
    CHECK(read_edited(object, text, &c) == EK_OK);
    CHECK(memcmp(&c.machine, &m, sizeof(m)) == 0);
    free(text);

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/m.json", folder);
    snprintf(cluster, sizeof(cluster), "%s/c.json", folder);
    CHECK(ek_machine_write(&m, path) == EK_OK);
    text = edited(object, "\"m.json\"");
    f = fopen(cluster, "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
    free(text);
    CHECK(ek_cluster_read(cluster, &c) == EK_OK);
    CHECK(memcmp(&c.machine, &m, sizeof(m)) == 0);
    unlink(path);
    CHECK_INT(ek_cluster_read(cluster, &c), EK_ENOENT);
    CHECK(strstr(ek_err_message(), "m.json") != NULL && c.n_levels == 0);
    unlink(cluster);
    CHECK_INT(ek_cluster_read(cluster, &c), EK_ENOENT);
    rmdir(folder);
}

static void optional_keys(void)
{
    static const char least[] =
        "{\"evenkeel_cluster\": 1, \"name\": \"\", \"rank\": {\"machine\":\n"
        " {\"peak\": 1, \"memory_bytes_s\": 1, \"efficiency\": 1}},\n"
        " \"levels\": [{\"name\": \"net\", \"ranks\": 1, \"gbytes_s\": 1, \"us\": 0}]}";
    ek_cluster c;

    CHECK(ek_cluster_parse(least, strlen(least), "c.json", &c) == EK_OK);
    CHECK(c.memory == 0 && c.cores == 0 && c.n_slow == 0 && c.node_mtbf_s == 0 &&
          c.rack_nodes == 0 && c.node_s_price == 0);
    CHECK(read_edited("\"80G\"", "64000000000", &c) == EK_OK && c.memory == 64e9);
    CHECK(read_edited("\"cores\": 8", "\"device\": \"cuda\"", &c) == EK_OK &&
          strcmp(c.device, "cuda") == 0);
    CHECK(read_edited("{\"name\": \"leaf\"", "{\"note\": \"x\", \"name\": \"leaf\"", &c) == EK_OK);
}

static void example_files(void)
{
    ek_cluster c;

    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/h100-64.json", &c) == EK_OK);
    CHECK(ek_cluster_ranks(&c) == 64 && ek_cluster_node_ranks(&c) == 8);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/h100-16384.json", &c) == EK_OK);
    CHECK(ek_cluster_ranks(&c) == 16384);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/h100-eos.json", &c) == EK_OK);
    CHECK(ek_cluster_node_ranks(&c) == 8 && strcmp(c.device, "cuda") == 0);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/a100-dgx.json", &c) == EK_OK);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/a100-vtrain.json", &c) == EK_OK);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/a100-pcie-4.json", &c) == EK_OK);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/b200-8.json", &c) == EK_OK);
    CHECK(ek_cluster_read(EK_TEST_DATA "/../examples/clusters/cpu-4x1.json", &c) == EK_OK);
    CHECK(ek_cluster_ranks(&c) == 4 && ek_cluster_node_ranks(&c) == 1);
}

/* --- what is written -------------------------------------------------------------------------- */

static void check_same(const ek_cluster *a, const ek_cluster *b)
{
    CHECK(strcmp(a->name, b->name) == 0 && a->memory == b->memory && a->cores == b->cores &&
          strcmp(a->device, b->device) == 0);
    CHECK(memcmp(&a->machine, &b->machine, sizeof(a->machine)) == 0);
    CHECK_INT(a->n_levels, b->n_levels);
    for (int l = 0; l < a->n_levels; l++) {
        CHECK(strcmp(a->level[l].name, b->level[l].name) == 0);
        CHECK(a->level[l].ranks == b->level[l].ranks && a->level[l].rails == b->level[l].rails);
        CHECK(a->level[l].shared_by == b->level[l].shared_by);
        CHECK(a->level[l].burst == b->level[l].burst);
        CHECK(a->level[l].arrival_skew_s == b->level[l].arrival_skew_s);
        CHECK_NEAR(a->level[l].bytes_s, b->level[l].bytes_s);
        CHECK_NEAR(a->level[l].latency_s, b->level[l].latency_s);
        CHECK_NEAR(a->level[l].overhead_s, b->level[l].overhead_s);
        CHECK_NEAR(a->level[l].collective_s, b->level[l].collective_s);
        CHECK_NEAR(a->level[l].byte_s, b->level[l].byte_s);
        CHECK_NEAR(a->level[l].peer_bytes_s, b->level[l].peer_bytes_s);
        CHECK_NEAR(a->level[l].gap_s, b->level[l].gap_s);
        CHECK_NEAR(a->level[l].ring_step_s, b->level[l].ring_step_s);
    }
    CHECK(a->n_slow == b->n_slow && a->slow_factor == b->slow_factor);
    CHECK(memcmp(a->slow, b->slow, sizeof(a->slow)) == 0);
    CHECK_NEAR(a->node_mtbf_s, b->node_mtbf_s);
    CHECK(a->rack_nodes == b->rack_nodes && a->back_s == b->back_s);
    CHECK(a->rack_share == b->rack_share && a->recover_s == b->recover_s);
    CHECK(a->restart_s == b->restart_s && a->save_s == b->save_s);
    CHECK_NEAR(a->node_s_price, b->node_s_price);
}

static void written_and_read_again(void)
{
    char folder[] = "/tmp/ek_cluster_XXXXXX", path[64];
    ek_cluster c, back;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/c.json", folder);
    CHECK(ek_cluster_parse(whole, strlen(whole), "c.json", &c) == EK_OK);
    CHECK(ek_cluster_write(&c, path) == EK_OK);
    CHECK(ek_cluster_read(path, &back) == EK_OK);
    check_same(&c, &back);
    c.level[1].ranks = 12; /* is never written */
    CHECK_INT(ek_cluster_write(&c, path), EK_EFORMAT);
    CHECK(ek_cluster_read(path, &back) == EK_OK && back.level[1].ranks == 256);
    unlink(path);
    rmdir(folder);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refused(const char *from, const char *to, const char *message)
{
    ek_cluster c;

    memset(&c, 1, sizeof(c));
    CHECK_INT(read_edited(from, to, &c), EK_EFORMAT);
    if (strstr(ek_err_message(), message) == NULL || strncmp(ek_err_message(), "c.json: ", 8) != 0)
        EK_T_FAIL("%s -> %s: \"%s\", expected \"%s\"", from, to, ek_err_message(), message);
    CHECK(c.n_levels == 0 && c.memory == 0 && c.machine.ranks == 0); /* nothing is left of it */
}

static void malformed_root(void)
{
    refused("{", "[", "not valid JSON");
    refused(whole, "7", "expected an object with key `evenkeel_cluster`, found an integer");
    refused("\"evenkeel_cluster\": 1", "\"evenkeel_cluster\": 2", "version 2; this program reads");
    refused("\"evenkeel_cluster\": 1,", "",
            "c.json: not a cluster file, as key `evenkeel_cluster` is missing");
    refused("\"name\": \"made up\",", "", "key `name` is missing");
    refused("\"made up\"", "7", "key `name`: expected a string, found an integer");
    refused("\"free text\"", "7", "key `note`: expected a string, found an integer");
    refused("\"price\"", "\"prize\"", "key `prize` is unknown; the nearest is `price`");
    refused("\"rank\"", "\"note2\"", "key `note2` is unknown");
    refused("\"levels\": [", "\"levels\": [], \"note\": [", "not valid JSON");
}

static void malformed_rank(void)
{
    refused("\"80G\"", "\"80X\"", "c.json: rank: key `memory`: \"80X\" is not a size");
    refused("\"80G\"", "\"auto\"", "key `memory`: \"auto\" is not a size");
    refused("\"80G\"", "-1", "key `memory`: -1 is not between");
    refused("\"80G\"", "[]", "key `memory`: expected a number, found an array");
    refused("\"cores\": 8", "\"cores\": 0", "c.json: rank: key `cores`: 0 is not between");
    refused("\"cores\": 8", "\"device\": \"tpu\"",
            "c.json: rank: key `device`: \"tpu\" is neither cpu nor cuda");
    refused("\"cores\": 8", "\"gpus\": 8", "c.json: rank: key `gpus` is unknown");
    refused("\"machine\"", "\"note\"", "c.json: rank: key `note`: expected a string");
    refused("{\"peak\": 8e12, \"memory_bytes_s\": 3e12, \"efficiency\": 0.5}", "7",
            "c.json: rank: key `machine`: expected a file's name or an object, found an integer");
    refused("\"peak\": 8e12, ", "", "c.json: rank.machine: key `peak` is missing");
    refused("8e12", "-8e12", "rank.machine: key `peak`: -8e+12 is not between");
    refused("3e12", "\"fast\"", "key `memory_bytes_s`: expected a number, found a string");
    refused("0.5", "1.5", "key `efficiency`: 1.5 is not between 0 and 1");
    refused("\"efficiency\": 0.5", "\"efficiency\": 0.5, \"cpu\": 1", "key `cpu` is unknown");
    refused("\"peak\"", "\"dtype\": \"fp8\", \"peak\"", "\"fp8\" is none of bf16, fp32 and fp64");
    refused("\"peak\": 8e12", "\"evenkeel_machine\": 1",
            "c.json: rank.machine: key `memory_bytes_s` is unknown");
}

static void malformed_levels(void)
{
    refused("{\"name\": \"node\"", "7, {\"name\": \"node\"", "levels[0]: expected an object");
    refused("\"name\": \"node\", ", "", "c.json: levels[0]: key `name` is missing");
    refused("\"node\"", "\"\"", "levels[0]: key `name`: the text is empty");
    refused("\"leaf\"", "\"node\"", "levels[1]: key `name`: there is a level \"node\" already");
    refused("\"ranks\": 8,", "\"ranks\": 0,", "levels[0]: key `ranks`: 0 is not between");
    refused("\"ranks\": 8,", "\"ranks\": 8.5,", "levels[0]: key `ranks`: expected an integer");
    refused("\"ranks\": 256", "\"ranks\": 4",
            "c.json: levels[1]: key `ranks`: 4 are fewer than the 8 of the level below, \"node\"");
    refused("\"ranks\": 256", "\"ranks\": 12",
            "levels[1]: key `ranks`: 12 is not a multiple of the 8 of the level below, \"node\"");
    refused("\"gbytes_s\": 50,", "", "levels[1]: key `gbytes_s` is missing");
    refused("\"gbytes_s\": 50", "\"gbytes_s\": 0", "levels[1]: key `gbytes_s`: 0 is not between");
    refused("\"gbytes_s\": 50", "\"gbytes_s\": -50", "key `gbytes_s`: -50 is not between");
    refused("\"us\": 2.5", "\"us\": -2.5", "levels[1]: key `us`: -2.5 is not between");
    refused(", \"us\": 2.5", "", "levels[1]: key `us` is missing");
    refused("\"message_us\": 1", "\"message_us\": -1", "levels[2]: key `message_us`: -1 is not");
    refused("\"collective_us\": 20", "\"collective_us\": -1", "levels[1]: key `collective_us`");
    refused("\"byte_ns\": 2", "\"byte_ns\": -2", "levels[2]: key `byte_ns`: -2 is not");
    refused("\"burst_kbytes\": 50", "\"burst_kbytes\": -2",
            "levels[2]: key `burst_kbytes`: -2 is not");
    refused("\"arrival_skew_us\": 900", "\"arrival_skew_us\": -2",
            "levels[2]: key `arrival_skew_us`: -2 is not");
    refused("\"peer_gbytes_s\": 14", "\"peer_gbytes_s\": 0",
            "levels[2]: key `peer_gbytes_s`: 0 is");
    refused("\"gap_us\": 2.5", "\"gap_us\": -1", "levels[2]: key `gap_us`: -1 is not");
    refused("\"ring_step_us\": 9", "\"ring_step_us\": -9", "levels[2]: key `ring_step_us`: -9");
    refused("\"shared_by\": 2", "\"shared_by\": 0", "levels[1]: key `shared_by`: 0 is not between");
    refused(
        "\"shared_by\": 2", "\"shared_by\": 3",
        "c.json: levels[1]: key `shared_by`: the 8 ranks below a switch of the level below cannot "
        "share links by 3");
    refused("\"us\": 3.5", "\"us\": 3.5, \"shared_by\": 2",
            "levels[0]: key `shared_by`: the 1 rank below a switch of the level below cannot");
    refused("\"rails\": 8", "\"rails\": 0", "levels[1]: key `rails`: 0 is not between");
    refused("\"rails\"", "\"rail\"", "levels[1]: key `rail` is unknown; the nearest is `rails`");
}

static void number_of_levels(void)
{
    char list[1024] = "";

    refused("\"levels\": [", "\"levels\": 7, \"note\": \"\", \"x\": [", "not valid JSON");
    for (int i = 0; i < EK_CLUSTER_LEVELS; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list),
                 "{\"name\": \"%d\", \"ranks\": 1, \"gbytes_s\": 1, \"us\": 1}, ", i);
    strcat(list, "{\"name\": \"node\"");
    refused("{\"name\": \"node\"", list, "key `levels`: 11 levels; 1 to 8 are allowed");
}

static void malformed_rest(void)
{
    refused("[3, 700]", "[]", "c.json: slow: key `ranks`: 0 ranks; 1 to 256 are allowed");
    refused("[3, 700]", "[3, 8192]", "slow: key `ranks`: 8192 is not one of the 8192 ranks");
    refused("[3, 700]", "[-1]", "slow: key `ranks`: -1 is not one of the 8192 ranks");
    refused("[3, 700]", "[\"3\"]", "slow: key `ranks`: expected an integer, found a string");
    refused("[3, 700]", "3", "slow: key `ranks`: expected an array, found an integer");
    refused(", \"factor\": 0.9", "", "slow: key `factor` is missing");
    refused("\"factor\": 0.9", "\"factor\": -1", "slow: key `factor`: -1 is not between");
    refused("\"node_mtbf_h\": 4000", "\"node_mtbf_h\": -1", "failures: key `node_mtbf_h`: -1 is");
    refused("0.25", "1.5", "failures: key `rack_share`: 1.5 is not a probability");
    refused("\"rack_nodes\": 4, ", "", "key `rack_share`: 0.25 is not a probability of losing one");
    refused("\"save_s\": 4", "\"save_s\": -4", "failures: key `save_s`: -4 is not between");
    refused("\"rack_nodes\"", "\"racks\"", "c.json: failures: key `racks` is unknown");
    refused("\"back_s\": 600", "\"back_s\": null, \"rack\": 1", "failures: key `rack` is unknown");
    refused("\"node_hour\": 90", "\"node_hour\": \"90\"",
            "price: key `node_hour`: expected a numb");
    refused("\"price\": {\"node_hour\": 90}", "\"price\": 90", "key `price`: expected an object");
}

/* --- the tree --------------------------------------------------------------------------------- */

static void level_between_ranks(void)
{
    ek_cluster c;

    CHECK(ek_cluster_parse(whole, strlen(whole), "c.json", &c) == EK_OK);
    CHECK_INT(ek_cluster_level_between(&c, 0, 7), 0);
    CHECK_INT(ek_cluster_level_between(&c, 7, 8), 1);
    CHECK_INT(ek_cluster_level_between(&c, 0, 255), 1);
    CHECK_INT(ek_cluster_level_between(&c, 255, 256), 2);
    CHECK_INT(ek_cluster_level_between(&c, 8192, 0), 2); /* beyond the last level: through it */
    CHECK_INT(ek_cluster_ranks(&c), 8192);
    CHECK_INT(ek_cluster_node_ranks(&c), 8);
    snprintf(c.level[0].name, sizeof(c.level[0].name), "island");
    CHECK_INT(ek_cluster_node_ranks(&c), 1);
}

/* Also what a message of a level reaches, and what a step of a ring takes. */
static void changed_links(void)
{
    ek_cluster c;

    CHECK(ek_cluster_parse(whole, strlen(whole), "c.json", &c) == EK_OK);
    CHECK(ek_cluster_change(&c, "bandwidth[spine] x0.5") == EK_OK);
    CHECK_NEAR(c.level[2].peer_bytes_s, 7e9);
    CHECK_NEAR(c.level[1].bytes_s, 50e9);
    CHECK(ek_cluster_change(&c, "bandwidth[*] x2") == EK_OK);
    CHECK_NEAR(c.level[2].peer_bytes_s, 14e9);
    CHECK_NEAR(c.level[1].bytes_s, 100e9);
    CHECK(c.level[1].peer_bytes_s == 0);
    CHECK(ek_cluster_change(&c, "latency[*] x0.5") == EK_OK);
    CHECK_NEAR(c.level[2].ring_step_s, 4.5e-6);
    CHECK_NEAR(c.level[2].latency_s, 2e-6);
    CHECK(c.level[1].ring_step_s == 0);
}

static const ek_case cases[] = {
    EK_CASE(read_in_units),    EK_CASE(constant_machine), EK_CASE(measured_machine),
    EK_CASE(optional_keys),    EK_CASE(example_files),    EK_CASE(written_and_read_again),
    EK_CASE(malformed_root),   EK_CASE(malformed_rank),   EK_CASE(malformed_levels),
    EK_CASE(number_of_levels), EK_CASE(malformed_rest),   EK_CASE(level_between_ranks),
    EK_CASE(changed_links),
};
EK_TEST_MAIN(cases)
