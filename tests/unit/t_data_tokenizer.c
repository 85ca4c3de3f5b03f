/* Tokenizers against golden ids made by Hugging Face tokenizers, and every way to refuse a file. */
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer.h"
#include "ek_test.h"

#include <stdio.h>

static const char *const golden[] = {
    "gpt2",    "llama3",        "qwen2",      "olmoe",       "flags",
    "mixtral", "mistral_first", "spm_always", "spm_phrases", "spm_prepend_token"};
enum { N_GOLDEN = sizeof(golden) / sizeof(golden[0]) };

static ek_tokenizer *open_golden(const char *name)
{
    ek_tokenizer *t = NULL;
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/golden/tokenizers/%s.json", EK_TEST_DATA, name);
    if (ek_tokenizer_open(path, &t) != EK_OK) {
        EK_T_FAIL("%s", ek_err_text());
        exit(1);
    }
    return t;
}

static json_t *load_cases(void)
{
    json_t *cases;

    cases = json_load_file(EK_TEST_DATA "/golden/tokenizers/cases.json", JSON_ALLOW_NUL, NULL);
    if (!json_is_array(cases)) {
        EK_T_FAIL("cases.json cannot be read");
        exit(1);
    }
    return cases;
}

static ek_ids encode(const ek_tokenizer *t, const void *text, size_t n)
{
    ek_encoder *e = NULL;
    ek_ids ids = {0};

    if (ek_encoder_create(t, &e) != EK_OK || ek_encode(e, text, n, &ids) != EK_OK)
        EK_T_FAIL("%s", ek_err_text());
    ek_encoder_destroy(&e);
    return ids;
}

/* Whether the ids decode to exactly these bytes. */
static int decodes_to(const ek_tokenizer *t, const ek_ids *ids, const void *text, size_t n)
{
    const unsigned char *want = text, *bytes;
    size_t at = 0, len;
    int64_t strip = ek_tokenizer_strip(t);

    for (int64_t i = 0; i < ids->n; i++) {
        if (ek_tokenizer_decode(t, ids->ids[i], &bytes, &len) != EK_OK)
            return 0;
        for (; strip > 0 && len > 0 && bytes[0] == ' '; strip--, len--)
            bytes++;
        strip = len > 0 ? 0 : strip;
        if (len > n - at || memcmp(want + at, bytes, len) != 0)
            return 0;
        at += len;
    }
    return at == n;
}

static void check_case(const ek_tokenizer *t, const char *name, ek_encoder *e, json_t *item,
                       size_t k)
{
    const json_t *text = json_object_get(item, "text"), *want = json_object_get(item, name);
    const json_t *decoded = json_object_get(json_object_get(item, "decoded"), name);
    const json_t *back = decoded != NULL ? decoded : text;
    ek_ids ids = {0};
    int64_t n = (int64_t)json_array_size(want), i = 0;

    if (ek_encode(e, json_string_value(text), json_string_length(text), &ids) != EK_OK)
        EK_T_FAIL("%s", ek_err_text());
    while (i < n && i < ids.n &&
           ids.ids[i] == (int32_t)json_integer_value(json_array_get(want, (size_t)i)))
        i++;
    if (i != n || i != ids.n)
        EK_T_FAIL("%s, text %zu \"%.40s\": differs at token %lld (%lld tokens, expected %lld)",
                  name, k, json_string_value(text), (long long)i, (long long)ids.n, (long long)n);
    if (!decodes_to(t, &ids, json_string_value(back), json_string_length(back)))
        EK_T_FAIL("%s, text %zu \"%.40s\": decodes to something else", name, k,
                  json_string_value(text));
    free(ids.ids);
}

static void ids_and_decoding_are_those_of_hugging_face(void)
{
    json_t *cases = load_cases(), *item;
    size_t k;

    for (size_t i = 0; i < N_GOLDEN; i++) {
        ek_tokenizer *t = open_golden(golden[i]);
        ek_encoder *e = NULL;

        CHECK_INT(ek_encoder_create(t, &e), EK_OK);
        for (int twice = 0; twice < 2; twice++) /* without and with the cache of words */
            json_array_foreach(cases, k, item) check_case(t, golden[i], e, item, k);
        ek_encoder_destroy(&e);
        ek_tokenizer_destroy(&t);
    }
    CHECK(json_array_size(cases) > 100);
    json_decref(cases);
}

static void vocabulary_and_end_token(void)
{
    static const struct {
        const char *name;
        int64_t vocab, end;
    } want[] = {{"gpt2", 800, 0},
                {"llama3", 905, 901},
                {"qwen2", 853, 850},
                {"olmoe", 724, 0},
                {"mixtral", 901, 2}};

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        ek_tokenizer *t = open_golden(want[i].name);

        CHECK_INT(ek_tokenizer_vocab(t), want[i].vocab);
        CHECK_INT(ek_tokenizer_end(t), want[i].end);
        CHECK_INT(ek_tokenizer_set_end(t, 5), EK_OK);
        CHECK_INT(ek_tokenizer_end(t), 5);
        CHECK_INT(ek_tokenizer_set_end(t, want[i].vocab), EK_EINVAL);
        CHECK_INT(ek_tokenizer_set_end(t, -1), EK_EINVAL);
        ek_tokenizer_destroy(&t);
        CHECK(t == NULL);
    }
}

static void bytes_are_their_own_ids(void)
{
    unsigned char all[512];
    ek_tokenizer *t = NULL, *again = NULL;
    const unsigned char *end;
    const char *json;
    size_t n;
    ek_ids a, b;

    for (size_t i = 0; i < sizeof(all); i++)
        all[i] = (unsigned char)(i * 7 + i / 256);
    CHECK_INT(ek_tokenizer_open("bytes", &t), EK_OK);
    CHECK_INT(ek_tokenizer_vocab(t), 257);
    CHECK_INT(ek_tokenizer_end(t), 256);
    a = encode(t, all, sizeof(all));
    CHECK_INT(a.n, sizeof(all));
    for (int64_t i = 0; i < a.n; i++)
        CHECK_INT(a.ids[i], all[i]);
    CHECK(decodes_to(t, &a, all, sizeof(all)));
    CHECK_INT(ek_tokenizer_decode(t, 256, &end, &n), EK_OK);
    CHECK(n == 13 && memcmp(end, "<|endoftext|>", 13) == 0);

    /* the saved tokenizer.json behaves the same */
    json = ek_tokenizer_json(t, &n);
    CHECK_INT(ek_tokenizer_parse(json, n, "saved", &again), EK_OK);
    CHECK_INT(ek_tokenizer_vocab(again), 257);
    CHECK_INT(ek_tokenizer_end(again), 256);
    b = encode(again, all, sizeof(all));
    CHECK(b.n == a.n && memcmp(a.ids, b.ids, (size_t)a.n * sizeof(a.ids[0])) == 0);
    free(a.ids);
    free(b.ids);
    a = encode(t, "a<|endoftext|>\xff", 15);
    CHECK_INT(a.n, 3);
    CHECK(a.n == 3 && a.ids[0] == 'a' && a.ids[1] == 256 && a.ids[2] == 255);
    free(a.ids);
    ek_tokenizer_destroy(&t);
    ek_tokenizer_destroy(&again);
}

static void saving_keeps_the_file(void)
{
    ek_tokenizer *t = open_golden("qwen2");
    char path[64] = "/tmp/ek_tokenizer_XXXXXX", *text = NULL;
    size_t n, read = 0;
    const char *json = ek_tokenizer_json(t, &n);
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    CHECK_INT(ek_tokenizer_save(t, path), EK_OK);
    CHECK_INT(ek_file_read(path, 1 << 20, &text, &read), EK_OK);
    CHECK(read == n && memcmp(text, json, n) == 0);
    free(text);
    unlink(path);
    CHECK_INT(ek_tokenizer_save(t, "/nowhere/at/all"), EK_ENOENT);
    ek_tokenizer_destroy(&t);
}

/* Bytes that are not UTF-8 are decoded unchanged and do not affect the text around them. */
static void any_bytes_round_trip(void)
{
    static const char *const broken[] = {"\xff",
                                         "caf\xc3",
                                         "\xc3 x",
                                         "a\xe4\xb8",
                                         "\xf0\x9f\x98",
                                         "\xed\xa0\x80 surrogate",
                                         "\xc0\xaf overlong",
                                         "\xf4\x90\x80\x80",
                                         "\x80\x80\x80",
                                         "ok \xfe\xff ok",
                                         "e\xcc\x81\xcc"};
    uint32_t state = 1;

    for (size_t g = 0; g < N_GOLDEN; g++) {
        ek_tokenizer *t = g == 4 || g == 7 ? NULL : open_golden(golden[g]);
        int nfc = g == 2 || g == 3;

        if (t == NULL) /* NFC and a space before words */
            continue;
        for (size_t i = 0; i + (nfc ? 1 : 0) < sizeof(broken) / sizeof(broken[0]); i++) {
            ek_ids ids = encode(t, broken[i], strlen(broken[i]));

            CHECK(decodes_to(t, &ids, broken[i], strlen(broken[i])));
            free(ids.ids);
        }
        for (int round = 0; round < 50; round++) {
            unsigned char noise[300];
            ek_ids ids;

            for (size_t i = 0; i < sizeof(noise); i++) {
                state = state * 1664525u + 1013904223u;
                noise[i] = (unsigned char)(state >> 24);
            }
            ids = encode(t, noise, sizeof(noise));
            if (!nfc)
                CHECK(decodes_to(t, &ids, noise, sizeof(noise)));
            free(ids.ids);
        }
        ek_tokenizer_destroy(&t);
    }
}

static void threads_give_the_ids_of_one(void)
{
    json_t *cases = load_cases();
    size_t n = json_array_size(cases), differ = 0;
    ek_tokenizer *t = open_golden("llama3");
    ek_ids *alone = calloc(n, sizeof(*alone));

    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text");

        alone[i] = encode(t, json_string_value(text), json_string_length(text));
    }
#pragma omp parallel num_threads(4) reduction(+ : differ)
    {
        ek_encoder *e = NULL;
        ek_ids ids = {0};

        differ += ek_encoder_create(t, &e) != EK_OK;
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < 4 * n; i++) {
            const json_t *text = json_object_get(json_array_get(cases, i % n), "text");

            ids.n = 0;
            differ +=
                ek_encode(e, json_string_value(text), json_string_length(text), &ids) != EK_OK;
            differ += ids.n != alone[i % n].n ||
                      (ids.n > 0 && memcmp(ids.ids, alone[i % n].ids, (size_t)ids.n * 4) != 0);
        }
        free(ids.ids);
        ek_encoder_destroy(&e);
    }
    CHECK_INT(differ, 0);
    for (size_t i = 0; i < n; i++)
        free(alone[i].ids);
    free(alone);
    json_decref(cases);
    ek_tokenizer_destroy(&t);
}

/* Texts joined by newlines, cut wherever allowed: the ids of both sides are those of the whole. */
static void cuts_do_not_change_ids(void)
{
    static const char *const between[] = {"x\ny", "\n1",    " \nz",
                                          ".\nA", ")\n\nb", "<|endoftext|>\nc"};
    json_t *texts = load_cases();
    size_t n = 0, k, cuts = 0;
    const json_t *item;
    char *all = malloc(1 << 20);

    json_array_foreach(texts, k, item)
    {
        const json_t *text = json_object_get(item, "text");
        const char *joint = between[k % (sizeof(between) / sizeof(between[0]))];

        memcpy(all + n, json_string_value(text), json_string_length(text));
        n += json_string_length(text);
        memcpy(all + n, joint, strlen(joint));
        n += strlen(joint);
    }
    for (size_t g = 0; g < N_GOLDEN; g++) {
        ek_tokenizer *t = open_golden(golden[g]);
        ek_ids whole = encode(t, all, n), parts = {0};
        ek_encoder *e = NULL;

        CHECK_INT(ek_encoder_create(t, &e), EK_OK);
        for (size_t from = 0, to = 0; from < n; from = to) {
            to = ek_tokenizer_cut(t, all, n, from + 1);
            CHECK(to > from && to <= n);
            CHECK_INT(from == 0 ? ek_encode(e, all, to, &parts)
                                : ek_encode_rest(e, all + from, to - from, &parts),
                      EK_OK);
            cuts += to < n;
        }
        CHECK(parts.n == whole.n &&
              memcmp(parts.ids, whole.ids, (size_t)whole.n * sizeof(*whole.ids)) == 0);
        CHECK_INT(ek_tokenizer_cut(t, all, n, n), n);
        if (strcmp(golden[g], "flags") == 0) /* a prefix space, and a token that takes newlines */
            CHECK_INT(ek_tokenizer_cut(t, all, n, 0), n);
        ek_encoder_destroy(&e);
        ek_tokenizer_destroy(&t);
        free(parts.ids);
        free(whole.ids);
    }
    CHECK(cuts > 200);
    free(all);
    json_decref(texts);
}

/* A copy of a text with the first `from` replaced by `to`; frees the text. */
static char *changed(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from), *out = malloc(strlen(text) + strlen(to) + 1);

    if (at == NULL || out == NULL) {
        EK_T_FAIL("\"%s\" is not in the file", from);
        exit(1);
    }
    (void)sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

/* The file of the bytes tokenizer. */
static char *bytes_file(void)
{
    ek_tokenizer *bytes = NULL;
    char *text;
    size_t n;

    if (ek_tokenizer_open("bytes", &bytes) != EK_OK)
        exit(1);
    text = strdup(ek_tokenizer_json(bytes, &n));
    ek_tokenizer_destroy(&bytes);
    return text;
}

static ek_status parse(const char *text, ek_tokenizer **out)
{
    return ek_tokenizer_parse(text, strlen(text), "t.json", out);
}

static ek_status parse_changed(const char *from, const char *to)
{
    ek_tokenizer *t = NULL;
    char *text = changed(bytes_file(), from, to);
    ek_status st = parse(text, &t);

    free(text);
    ek_tokenizer_destroy(&t);
    return st;
}

static int encodes_to(const ek_tokenizer *t, const char *text, const int32_t *want, int64_t n)
{
    ek_ids ids = encode(t, text, strlen(text));
    int same = ids.n == n && memcmp(ids.ids, want, (size_t)n * sizeof(*want)) == 0;

    free(ids.ids);
    return same;
}

/* A token that no merge produces is found only as a whole word. */
static void ignore_merges_takes_whole_words(void)
{
    static const int32_t apart[] = {'a', 'b'}, whole[] = {300}, longer[] = {'a', 'b', 'c'};
    char *file = changed(bytes_file(), "\"vocab\":{", "\"vocab\":{\"ab\":300,");
    ek_tokenizer *t = NULL;

    CHECK_INT(parse(file, &t), EK_OK);
    CHECK(encodes_to(t, "ab", apart, 2));
    ek_tokenizer_destroy(&t);
    file = changed(file, "\"ignore_merges\":false", "\"ignore_merges\":true");
    CHECK_INT(parse(file, &t), EK_OK);
    CHECK(encodes_to(t, "ab", whole, 1));
    CHECK(encodes_to(t, "abc", longer, 3));
    ek_tokenizer_destroy(&t);
    free(file);
}

/* With the GPT-2 pattern two newlines before a letter are two words, at the end of a text one. */
static void cuts_keep_away_from_what_they_would_change(void)
{
    static const int32_t inside[] = {'a', '\n', '\n', 'b'}, at_end[] = {'a', 300};
    char *file = changed(bytes_file(), "\"use_regex\":false", "\"use_regex\":true");
    ek_tokenizer *t = NULL;

    file = changed(file, "\"vocab\":{", "\"vocab\":{\"\u010a\u010a\":300,");
    file = changed(file, "\"merges\":[]", "\"merges\":[\"\u010a \u010a\"]");
    CHECK_INT(parse(file, &t), EK_OK);
    CHECK(encodes_to(t, "a\n\nb", inside, 4));
    CHECK(encodes_to(t, "a\n\n", at_end, 2));
    CHECK_INT(ek_tokenizer_cut(t, "a\n\nb", 4, 0), 4);
    CHECK_INT(ek_tokenizer_cut(t, "a \nb", 4, 0), 4);
    CHECK_INT(ek_tokenizer_cut(t, "a\nb", 3, 0), 2);
    CHECK_INT(ek_tokenizer_cut(t, "a\nb", 3, 3), 3);
    ek_tokenizer_destroy(&t);

    file = changed(file, "\"lstrip\":false", "\"lstrip\":true"); /* would take the newline */
    CHECK_INT(parse(file, &t), EK_OK);
    CHECK_INT(ek_tokenizer_cut(t, "a\nb", 3, 0), 3);
    ek_tokenizer_destroy(&t);
    free(file);
    file = changed(bytes_file(), "<|endoftext|>", "a\\nb");
    CHECK_INT(parse(file, &t), EK_OK);
    CHECK_INT(ek_tokenizer_cut(t, "a\nb", 3, 0), 3);
    ek_tokenizer_destroy(&t);
    free(file);
}

static char *golden_text(const char *name)
{
    ek_tokenizer *t = open_golden(name);
    size_t n;
    char *text = strdup(ek_tokenizer_json(t, &n));

    ek_tokenizer_destroy(&t);
    return text;
}

/* Texts without a space take time in proportion to n log n, whether they are one word or many. */
static void long_words_by_characters(void)
{
    static const char *const repeated[] = {
        "e", "th", "\xe4\xb8\x93\xe5\xae\xb6", "\xf0\x9f\x98\x80", "\xe2\x96\x81", " "};
    enum { N = 1 << 20 };
    char *text = malloc(N + 8);

    for (size_t g = 5; g < N_GOLDEN; g++) {
        ek_tokenizer *t = open_golden(golden[g]);

        for (size_t i = 0; i < sizeof(repeated) / sizeof(repeated[0]); i++) {
            size_t len = strlen(repeated[i]), n = 0;
            ek_ids ids;

            for (; n < N; n += len)
                memcpy(text + n, repeated[i], len);
            ids = encode(t, text, n);
            CHECK(ids.n > 0);
            if (i < 4) /* marks decode to spaces, and a text's first space is dropped */
                CHECK(decodes_to(t, &ids, text, n));
            free(ids.ids);
        }
        ek_tokenizer_destroy(&t);
    }
    free(text);
}

/* After a cut no mark is prepended, nor after bytes that are not UTF-8. */
static void only_a_beginning_is_begun(void)
{
    ek_tokenizer *t = open_golden("mixtral");
    const char *newline = "one\ntwo";
    ek_encoder *e = NULL;
    ek_ids ids = {0};

    CHECK_INT(ek_tokenizer_cut(t, newline, 7, 0), 4);
    CHECK_INT(ek_tokenizer_strip(t), 1);
    CHECK_INT(ek_encoder_create(t, &e), EK_OK);
    CHECK_INT(ek_encode_rest(e, " x", 2, &ids), EK_OK);
    ids.n = 0;
    CHECK_INT(ek_encode(e, "\xff two", 5, &ids), EK_OK);
    CHECK(decodes_to(t, &ids, "\xff two", 5));
    free(ids.ids);
    ek_encoder_destroy(&e);
    ek_tokenizer_destroy(&t);
    t = open_golden("spm_phrases"); /* whole words: a part may be a token where the text is not */
    CHECK_INT(ek_tokenizer_cut(t, newline, 7, 0), 7);
    ek_tokenizer_destroy(&t);
}

static void files_by_characters_are_refused_by_name(void)
{
    static const struct {
        const char *name, *from, *to;
        ek_status st;
        const char *says;
    } bad[] = {
        {"mixtral", "\"byte_fallback\":true", "\"byte_fallback\":false", EK_EUNSUPPORTED,
         "no byte_fallback"},
        {"mistral_first", "\"byte_fallback\":true", "\"byte_fallback\":false", EK_EUNSUPPORTED,
         "`Metaspace` without byte_fallback"},
        {"mixtral", "\"<0x0A>\":", "\"<0xa>\":", EK_EFORMAT, "no token <0x0A>"},
        {"mixtral", "\"type\":\"Prepend\"", "\"type\":\"Lowercase\"", EK_EUNSUPPORTED,
         "normalizer `Lowercase`"},
        {"mixtral", "\"pattern\":{\"String\":\" \"}", "\"pattern\":{\"Regex\":\" +\"}",
         EK_EUNSUPPORTED, "Replace of the normalizer"},
        {"mixtral", "{\"type\":\"ByteFallback\"},", "", EK_EUNSUPPORTED, "no ByteFallback"},
        {"mixtral", "{\"type\":\"ByteFallback\"}", "{\"type\":\"CTC\"}", EK_EUNSUPPORTED, "`CTC`"},
        {"mixtral", "{\"type\":\"Fuse\"}",
         "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0},{\"type\":\"Fuse\"}",
         EK_EUNSUPPORTED, "`Fuse` is not supported in this position"},
        {"mixtral", "\"stop\":0", "\"stop\":1", EK_EUNSUPPORTED, "`Strip`"},
        {"mixtral", "\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Digits\"}",
         EK_EUNSUPPORTED, "Split and Digits without ByteLevel"},
        {"mistral_first", "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"last\"",
         EK_EUNSUPPORTED, "prepend_scheme `last`"},
        {"mistral_first", "\"replacement\":\"\xe2\x96\x81\"", "\"replacement\":\"ab\"", EK_EFORMAT,
         "not one character"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *text = changed(golden_text(bad[i].name), bad[i].from, bad[i].to);
        ek_tokenizer *t = NULL;
        ek_status st = parse(text, &t);

        if (st != bad[i].st || strstr(ek_err_message(), bad[i].says) == NULL)
            EK_T_FAIL("%s: status %d, expected %d with \"%s\", got \"%s\"", bad[i].to, st,
                      bad[i].st, bad[i].says, ek_err_message());
        ek_tokenizer_destroy(&t);
        free(text);
    }
}

static void utf8_is_well_formed_or_not(void)
{
    static const struct {
        const char *text;
        size_t valid;
    } texts[] = {
        {"plain", 5},
        {"a\xc3\xa9", 3},
        {"\xed\x9f\xbf", 3},
        {"\xed\xa0\x80", 0},
        {"\xee\x80\x80", 3},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xf4\x90\x80\x80", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"ab\xe4\xb8", 2},
        {"12345678\x80", 8},
        {"\xf5\x80\x80\x80", 0},
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        CHECK_INT(ek_utf8_valid((const unsigned char *)texts[i].text, strlen(texts[i].text)),
                  texts[i].valid);
}

static void malformed_files_are_refused_by_name(void)
{
    static const char byte_level[] =
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false,\"trim_offsets\":true,\"use_regex\":false}";
    static const struct {
        const char *from, *to;
        ek_status st;
        const char *says;
    } bad[] = {
        {"{\"version\"", "\"version\"", EK_EFORMAT, "not valid JSON: line 1"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", EK_EUNSUPPORTED, "model is `Unigram`"},
        {"\"model\":", "\"modell\":", EK_EFORMAT, "key `model` is missing"},
        {"\"dropout\":null", "\"dropout\":0.1", EK_EUNSUPPORTED, "`dropout` 0.1"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", EK_EUNSUPPORTED,
         "`end_of_word_suffix` is \"</w>\""},
        {"\"vocab\":{", "\"vocab\":[{", EK_EFORMAT, "not valid JSON"},
        {"\"vocab\":{", "\"vocab\":3,\"v\":{", EK_EFORMAT, "key `vocab`"},
        {"\"merges\":[]", "\"merges\":{}", EK_EFORMAT, "key `merges`"},
        {"\"merges\":[]", "\"merges\":[\"ab\"]", EK_EFORMAT, "merges[0] is neither"},
        {"\"merges\":[]", "\"merges\":[\"a b c\"]", EK_EFORMAT, "merges[0] is neither"},
        {"\"merges\":[]", "\"merges\":[[\"a\"]]", EK_EFORMAT, "merges[0] is neither"},
        {"\"merges\":[]", "\"merges\":[[\"a\", 7]]", EK_EFORMAT, "merges[0] is neither"},
        {"\"merges\":[]", "\"merges\":[\"a b\"]", EK_EFORMAT, "merges[0] of \"a\" and \"b\""},
        {"\"\\u0061\":97", "\"a\":98", EK_EFORMAT, "id 98 belongs to two tokens"},
        {"\"\\u0061\":97", "\"a\":-1", EK_EFORMAT, "\"a\" is out of range"},
        {"\"\\u0061\":97", "\"a\":99999999999", EK_EFORMAT, "\"a\" is out of range"},
        {"\"\\u0061\":97", "\"a\":1000000", EK_EFORMAT, "id 1000000 is far beyond"},
        {"\"\\u0061\":97", "\"a\":\"97\"", EK_EFORMAT, "\"a\" is a string"},
        {"\"\\u0061\":97", "\"ab\":97", EK_EFORMAT, "no token for byte 0x61"},
        {"\"id\":256", "\"id\":97", EK_EFORMAT, "id 97 belongs to two tokens"},
        {"\"id\":256,\"content\":\"<|endoftext|>\"", "\"id\":256,\"content\":\"a\"", EK_EFORMAT,
         "\"a\" has id 256 there and 97"},
        {"\"content\":", "\"contents\":", EK_EFORMAT, "content"},
        {"\"single_word\":false", "\"single_word\":0", EK_EFORMAT, "single_word"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", EK_EUNSUPPORTED,
         "normalizer `NFKC`"},
        {byte_level, "\"pre_tokenizer\":{\"type\":\"Metaspace\"}", EK_EUNSUPPORTED, "`Metaspace`"},
        {byte_level, "\"pre_tokenizer\":null", EK_EUNSUPPORTED, "no ByteLevel"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
         EK_EUNSUPPORTED, "decoder `WordPiece`"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ek_status st = parse_changed(bad[i].from, bad[i].to);

        if (st != bad[i].st || strstr(ek_err_message(), bad[i].says) == NULL)
            EK_T_FAIL("%s: status %d, expected %d with \"%s\", got \"%s\"", bad[i].to, st,
                      bad[i].st, bad[i].says, ek_err_message());
    }
    CHECK_INT(parse_changed("\"type\":\"BPE\",", ""), EK_OK); /* older files have no type */
    CHECK_INT(parse_changed("\"normalizer\":null,", ""), EK_OK);
}

/* The bytes file with a Split by `pattern` (JSON text) before ByteLevel. */
static ek_status parse_split(const char *pattern, const char *behavior)
{
    char section[2000];

    (void)snprintf(
        section, sizeof(section),
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"%s\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]},"
        "\"unused\":{\"type\":\"ByteLevel\"",
        pattern, behavior);
    return parse_changed("\"pre_tokenizer\":{\"type\":\"ByteLevel\"", section);
}

static void patterns_are_understood_or_refused(void)
{
    static const struct {
        const char *pattern;
        ek_status st;
        const char *says;
    } patterns[] = {
        {"\\\\s+|[^\\\\s\\\\w]+", EK_OK, ""},
        {"[\\u4e00-\\u9fa5]+|\\\\p{Han}", EK_OK, ""},
        {"(?i:'s)|(?<=x)y|\\\\x{41}", EK_OK, ""},
        {"", EK_EFORMAT, "has 0 bytes"},
        {"(a", EK_EFORMAT, "cannot be compiled"},
        {"a\\\\", EK_EFORMAT, "single backslash"},
        {"\\\\p{L", EK_EFORMAT, "unclosed \\p{"},
        {"\\\\p{Nonsense}", EK_EFORMAT, "cannot be compiled"},
        {"\\\\pL", EK_EUNSUPPORTED, "without braces"},
        {"\\\\h+", EK_EUNSUPPORTED, "escape \\h"},
        {"(a)\\\\1", EK_EUNSUPPORTED, "escape \\1"},
        {"[a[bc]]", EK_EUNSUPPORTED, "a class inside a class"},
        {"[a-z&&[^b]]", EK_EUNSUPPORTED, "class intersection"},
        {"(?m:.)", EK_EUNSUPPORTED, "a group (?"},
        {"(*UTF)a", EK_EUNSUPPORTED, "a group (*"},
        {"a{,3}", EK_EUNSUPPORTED, "{,m}"},
        {"a{1,3}+", EK_EUNSUPPORTED, "{n,m}+"},
    };

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        ek_status st = parse_split(patterns[i].pattern, "Isolated");

        if (st != patterns[i].st || (st < 0 && strstr(ek_err_message(), patterns[i].says) == NULL))
            EK_T_FAIL("%s: status %d, expected %d with \"%s\", got \"%s\"", patterns[i].pattern, st,
                      patterns[i].st, patterns[i].says, ek_err_message());
    }
    CHECK_INT(parse_split("a", "MergedWithNext"), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "`MergedWithNext`") != NULL);
    CHECK_INT(parse_split("a", "Removed"), EK_OK);
}

static void missing_files_and_ids(void)
{
    ek_tokenizer *t = NULL;
    const unsigned char *bytes;
    size_t n;

    CHECK_INT(ek_tokenizer_open("/nowhere/tokenizer.json", &t), EK_ENOENT);
    CHECK(t == NULL);
    CHECK_INT(ek_tokenizer_open("bytes", &t), EK_OK);
    CHECK_INT(ek_tokenizer_decode(t, 257, &bytes, &n), EK_EINVAL);
    CHECK_INT(ek_tokenizer_decode(t, -1, &bytes, &n), EK_EINVAL);
    ek_tokenizer_destroy(&t);
}

static const ek_case cases[] = {
    EK_CASE(ids_and_decoding_are_those_of_hugging_face),
    EK_CASE(vocabulary_and_end_token),
    EK_CASE(bytes_are_their_own_ids),
    EK_CASE(saving_keeps_the_file),
    EK_CASE(any_bytes_round_trip),
    EK_CASE(threads_give_the_ids_of_one),
    EK_CASE(cuts_do_not_change_ids),
    EK_CASE(malformed_files_are_refused_by_name),
    EK_CASE(patterns_are_understood_or_refused),
    EK_CASE(missing_files_and_ids),
    EK_CASE(ignore_merges_takes_whole_words),
    EK_CASE(cuts_keep_away_from_what_they_would_change),
    EK_CASE(long_words_by_characters),
    EK_CASE(only_a_beginning_is_begun),
    EK_CASE(files_by_characters_are_refused_by_name),
    EK_CASE(utf8_is_well_formed_or_not),
};

EK_TEST_MAIN(cases)
