/* tokenizer.json -> ek_tokenizer: every section is either implemented or refused by name.
 *
 * post_processor, truncation and padding are ignored: they apply to a single example, not to a
 * stream of text. */
#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer_priv.h"

#include <stdlib.h>
#include <string.h>

/* Ids must be nearly dense: at most SPARSE_MAX for each token, plus a constant.  So a malicious
 * file cannot cause large tables. */
enum { SPARSE_MAX = 8, SPARSE_FREE = 65536 };

/* The GPT-2 pattern, which ByteLevel applies with use_regex. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* The patterns of Llama 3 and Qwen 2. */
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* State of the parser. */
typedef struct {
    ek_tokenizer *t;
    const char *file;
    const json_t *root, *model;
    int bytelevel; /* the pre-tokenizer was seen */
    int byte_fallback;
    int known_pattern;      /* matches of the last split end at line ends */
    unsigned char *text[3]; /* scratch: token, second half of a merge, both joined */
    size_t cap;             /* capacity of each */
} reader;

static const char *type_of(const json_t *section)
{
    const char *type = json_string_value(json_object_get(section, "type"));

    return type != NULL ? type : "without a type";
}

static int is_type(const json_t *section, const char *type)
{
    return strcmp(type_of(section), type) == 0;
}

static ek_status reserve_scratch(reader *r, size_t n)
{
    if (n <= r->cap)
        return EK_OK;
    for (int i = 0; i < 3; i++) {
        unsigned char *grown = realloc(r->text[i], 2 * n);

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a token of %zu bytes", n);
        r->text[i] = grown;
    }
    r->cap = 2 * n;
    return EK_OK;
}

/* Converts characters of the byte-level alphabet to bytes in out; 0 if one is not in it. */
static int to_bytes(const char *token, size_t n, unsigned char *out, size_t *out_n)
{
    const unsigned char *p = (const unsigned char *)token;
    size_t k = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int byte;

        i += ek_utf8_next(p + i, n - i, &cp);
        byte = ek_char_to_byte(cp);
        if (byte < 0)
            return 0;
        out[k++] = (unsigned char)byte;
    }
    *out_n = k;
    return 1;
}

static ek_status read_model_options(reader *r)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(r->model, "type");
    double dropout = 0;

    EK_REQUIRE(json_is_object(r->model), EK_EFORMAT, "%s: key `model` is missing or not an object",
               r->file);
    EK_REQUIRE(type == NULL || is_type(r->model, "BPE"), EK_EUNSUPPORTED,
               "%s: the model is `%s`; only BPE is supported, byte-level or with byte_fallback",
               r->file, type_of(r->model));
    EK_TRY(ek_json_real(r->model, r->file, "dropout", EK_JSON_OPTIONAL, &dropout));
    EK_REQUIRE(dropout == 0, EK_EUNSUPPORTED,
               "%s: `dropout` %g is not supported: the same text would get other tokens each time",
               r->file, dropout);
    for (int i = 0; i < 2; i++) {
        const char *affix = "";

        EK_TRY(ek_json_text(r->model, r->file, affixes[i], EK_JSON_OPTIONAL, &affix));
        EK_REQUIRE(affix[0] == '\0', EK_EUNSUPPORTED, "%s: `%s` is \"%s\"; byte-level BPE has none",
                   r->file, affixes[i], affix);
    }
    EK_TRY(ek_json_bool(r->model, r->file, "byte_fallback", EK_JSON_OPTIONAL, &r->byte_fallback));
    return ek_json_bool(r->model, r->file, "ignore_merges", EK_JSON_OPTIONAL,
                        &r->t->bpe.whole_words);
}

/* Checks an id and sets *n_ids above it. */
static ek_status check_id(const reader *r, const char *token, const json_t *id, int64_t *n_ids)
{
    json_int_t v = json_integer_value(id);

    EK_REQUIRE(json_is_integer(id) && v >= 0 && v < EK_IDS_MAX, EK_EFORMAT,
               "%s: the id of token \"%.80s\" is %s; ids are integers from 0 to %d", r->file, token,
               json_is_integer(id) ? "out of range" : ek_json_type_name(id), EK_IDS_MAX - 1);
    if (v >= *n_ids)
        *n_ids = v + 1;
    return EK_OK;
}

static ek_status count_ids(const reader *r, json_t *vocab, const json_t *added, int64_t *n_ids)
{
    const char *key;
    json_t *value;
    int64_t n_tokens;
    size_t i;

    json_object_foreach(vocab, key, value) EK_TRY(check_id(r, key, value, n_ids));
    json_array_foreach(added, i, value)
    {
        const char *content = NULL;

        EK_REQUIRE(json_is_object(value), EK_EFORMAT, "%s: added_tokens[%zu] is %s, not an object",
                   r->file, i, ek_json_type_name(value));
        EK_TRY(ek_json_text(value, r->file, "content", EK_JSON_REQUIRED, &content));
        EK_TRY(check_id(r, content, json_object_get(value, "id"), n_ids));
    }
    n_tokens = (int64_t)(json_object_size(vocab) + json_array_size(added));
    EK_REQUIRE(*n_ids <= SPARSE_MAX * n_tokens + SPARSE_FREE, EK_EFORMAT,
               "%s: id %lld is far beyond the number of tokens, %lld", r->file,
               (long long)*n_ids - 1, (long long)n_tokens);
    return EK_OK;
}

static ek_status read_vocab(reader *r)
{
    json_t *vocab = json_object_get(r->model, "vocab"), *value;
    const json_t *merges = json_object_get(r->model, "merges");
    const json_t *added = json_object_get(r->root, "added_tokens");
    ek_bpe *b = &r->t->bpe;
    int whole_words = b->whole_words;
    int64_t n_ids = 0;
    const char *key;

    EK_REQUIRE(json_is_object(vocab), EK_EFORMAT,
               "%s: key `vocab` of the model is missing or not an object", r->file);
    EK_REQUIRE(json_is_array(merges), EK_EFORMAT,
               "%s: key `merges` of the model is missing or not an array", r->file);
    EK_REQUIRE(added == NULL || json_is_null(added) || json_is_array(added), EK_EFORMAT,
               "%s: key `added_tokens` is %s, not an array", r->file, ek_json_type_name(added));
    EK_TRY(count_ids(r, vocab, added, &n_ids));
    EK_TRY(
        ek_bpe_begin(b, n_ids, (int64_t)json_object_size(vocab), (int64_t)json_array_size(merges)));
    b->whole_words = whole_words;
    json_object_foreach(vocab, key, value)
    {
        int64_t id = json_integer_value(value);
        size_t len = strlen(key), n;
        int known;

        EK_REQUIRE(!b->tokens[id].used, EK_EFORMAT,
                   "%s: id %lld belongs to two tokens, one of them \"%.80s\"", r->file,
                   (long long)id, key);
        if (r->t->by_chars) {
            EK_TRY(ek_bpe_add(b, id, (const unsigned char *)key, len, 0));
            continue;
        }
        EK_TRY(reserve_scratch(r, len + 1));
        known = to_bytes(key, len, r->text[0], &n);
        EK_TRY(ek_bpe_add(b, id, known ? r->text[0] : (const unsigned char *)key, known ? n : len,
                          !known));
    }
    return r->t->by_chars ? EK_OK : ek_bpe_finish(b, r->file);
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static int merge_halves(const json_t *merge, const char *half[2], size_t len[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');

        if (space == NULL || strchr(space + 1, ' ') != NULL)
            return 0;
        half[0] = text;
        half[1] = space + 1;
        len[0] = (size_t)(space - text);
        len[1] = strlen(half[1]);
        return 1;
    }
    if (json_array_size(merge) != 2)
        return 0;
    for (size_t i = 0; i < 2; i++) {
        half[i] = json_string_value(json_array_get(merge, i));
        if (half[i] == NULL)
            return 0;
        len[i] = strlen(half[i]);
    }
    return 1;
}

/* The bytes of a half of a merge, in out; 0 if it cannot be a token. */
static int half_bytes(const reader *r, const char *half, size_t len, unsigned char *out, size_t *n)
{
    if (!r->t->by_chars)
        return to_bytes(half, len, out, n);
    memcpy(out, half, len);
    *n = len;
    return 1;
}

static ek_status read_merges(reader *r)
{
    const json_t *merges = json_object_get(r->model, "merges");
    const json_t *merge;
    size_t rank;

    json_array_foreach(merges, rank, merge)
    {
        const char *half[2] = {NULL, NULL};
        size_t len[2] = {0, 0}, n[2] = {0, 0};
        int64_t id[3] = {-1, -1, -1};

        EK_REQUIRE(merge_halves(merge, half, len), EK_EFORMAT,
                   "%s: merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", r->file, rank);
        EK_TRY(reserve_scratch(r, len[0] + len[1] + 1));
        for (int i = 0; i < 2; i++)
            if (half_bytes(r, half[i], len[i], r->text[i], &n[i]))
                id[i] = ek_bpe_find(&r->t->bpe, r->text[i], n[i]);
        memcpy(r->text[2], r->text[0], n[0]);
        memcpy(r->text[2] + n[0], r->text[1], n[1]);
        id[2] = ek_bpe_find(&r->t->bpe, r->text[2], n[0] + n[1]);
        EK_REQUIRE(id[0] >= 0 && id[1] >= 0 && id[2] >= 0, EK_EFORMAT,
                   "%s: merges[%zu] of \"%.*s\" and \"%.*s\" names a token that is not in the "
                   "vocabulary",
                   r->file, rank, (int)(len[0] < 80 ? len[0] : 80), half[0],
                   (int)(len[1] < 80 ? len[1] : 80), half[1]);
        ek_bpe_merge(&r->t->bpe, (uint32_t)id[0], (uint32_t)id[1], (uint32_t)rank, (uint32_t)id[2]);
    }
    return EK_OK;
}

/* Adds a token to the raw or the normalised set; in the latter its text, also for decoding, is
 * normalised. known: the vocabulary has it, too. */
static ek_status add_added(reader *r, const ek_added *token, int normalized, int known)
{
    ek_normalize_work work = {0};
    const unsigned char *text = token->text;
    ek_added copy = *token;
    ek_status st;

    if (normalized)
        EK_TRY_OUT(
            ek_normalize(&r->t->normalizer, &work, 1, token->text, token->n, &text, &copy.n));
    copy.text = (unsigned char *)(uintptr_t)text; /* copied; the member is not const */
    if (!known)
        EK_TRY_OUT(ek_bpe_add(&r->t->bpe, token->id, text, copy.n, 1));
    EK_TRY_OUT(ek_added_add(normalized ? &r->t->normal : &r->t->raw, &copy));
out:
    ek_normalize_work_release(&work);
    return st;
}

static ek_status read_added_token(reader *r, const json_t *entry)
{
    const json_t *vocab = json_object_get(r->model, "vocab");
    const char *content = json_string_value(json_object_get(entry, "content"));
    int64_t id = json_integer_value(json_object_get(entry, "id"));
    const json_t *known = json_object_get(vocab, content);
    unsigned char *text;
    ek_added token = {.n = strlen(content), .id = (uint32_t)id};
    int special = 0, normalized;
    ek_status st;

    EK_REQUIRE(known != NULL || !r->t->bpe.tokens[id].used, EK_EFORMAT,
               "%s: id %lld belongs to two tokens, one of them the added token \"%.80s\"", r->file,
               (long long)id, content);
    EK_REQUIRE(known == NULL || json_integer_value(known) == id, EK_EFORMAT,
               "%s: the added token \"%.80s\" has id %lld there and %lld in the vocabulary",
               r->file, content, (long long)id, (long long)json_integer_value(known));
    EK_TRY(ek_json_bool(entry, r->file, "special", EK_JSON_OPTIONAL, &special));
    normalized = !special;
    EK_TRY(ek_json_bool(entry, r->file, "normalized", EK_JSON_OPTIONAL, &normalized));
    EK_TRY(ek_json_bool(entry, r->file, "lstrip", EK_JSON_OPTIONAL, &token.lstrip));
    EK_TRY(ek_json_bool(entry, r->file, "rstrip", EK_JSON_OPTIONAL, &token.rstrip));
    EK_TRY(ek_json_bool(entry, r->file, "single_word", EK_JSON_OPTIONAL, &token.single_word));
    text = (unsigned char *)strdup(content); /* copied; the member is not const */
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for an added token");
    token.text = text;
    EK_TRY_OUT(add_added(r, &token, normalized, known != NULL));
out:
    free(text);
    return st;
}

static ek_status read_added(reader *r)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(r->root, "added_tokens"), i, entry)
        EK_TRY(read_added_token(r, entry));
    ek_added_sort(&r->t->raw);
    ek_added_sort(&r->t->normal);
    return EK_OK;
}

/* Adds a Replace by a plain string, of the normaliser or the decoder. */
static ek_status read_replace(reader *r, const json_t *section, const char *where,
                              ek_normalizer *out)
{
    const json_t *pattern = json_object_get(section, "pattern");
    const char *from = json_string_value(json_object_get(pattern, "String"));
    const char *to = NULL;
    ek_status st;

    EK_REQUIRE(from != NULL && from[0] != '\0', EK_EUNSUPPORTED,
               "%s: a Replace of the %s has no String as pattern; regular expressions are not "
               "supported there",
               r->file, where);
    EK_TRY(ek_json_text(section, r->file, "content", EK_JSON_REQUIRED, &to));
    st = ek_normalizer_add(out, from, to);
    if (st < 0)
        return EK_FAIL(st, "%s: %s: %s", r->file, where, ek_err_message());
    return EK_OK;
}

static ek_status read_prepend(reader *r, const json_t *section)
{
    const char *to = NULL;
    ek_status st;

    EK_TRY(ek_json_text(section, r->file, "prepend", EK_JSON_REQUIRED, &to));
    st = ek_normalizer_add(&r->t->normalizer, "", to);
    if (st < 0)
        return EK_FAIL(st, "%s: normalizer: %s", r->file, ek_err_message());
    return EK_OK;
}

static ek_status read_normalizer(reader *r, const json_t *section, int depth)
{
    const json_t *list = json_object_get(section, "normalizers");
    const json_t *part;
    size_t i;

    if (section == NULL || json_is_null(section))
        return EK_OK;
    if (is_type(section, "NFC")) {
        EK_REQUIRE(r->t->normalizer.n == 0, EK_EUNSUPPORTED,
                   "%s: the normalizer NFC after others is not supported", r->file);
        r->t->normalizer.nfc = 1;
        return EK_OK;
    }
    if (is_type(section, "Replace"))
        return read_replace(r, section, "normalizer", &r->t->normalizer);
    if (is_type(section, "Prepend"))
        return read_prepend(r, section);
    EK_REQUIRE(
        is_type(section, "Sequence") && json_is_array(list) && depth < 4, EK_EUNSUPPORTED,
        "%s: the normalizer `%s` is not supported; NFC, Prepend, Replace and a Sequence of them "
        "are",
        r->file, type_of(section));
    json_array_foreach(list, i, part) EK_TRY(read_normalizer(r, part, depth + 1));
    return EK_OK;
}

static ek_status add_split(reader *r, const char *pattern, int literal, ek_split split)
{
    ek_status st;

    EK_REQUIRE(!r->bytelevel, EK_EUNSUPPORTED,
               "%s: a pre_tokenizer after ByteLevel is not supported", r->file);
    EK_REQUIRE(r->t->n_splits < EK_SPLITS_MAX, EK_EUNSUPPORTED,
               "%s: more than %d pre_tokenizers in a row are not supported", r->file,
               EK_SPLITS_MAX);
    st = ek_pattern_create(pattern, strlen(pattern), literal, &split.pattern);
    if (st < 0)
        return EK_FAIL(st, "%s: pre_tokenizer: %s", r->file, ek_err_message());
    r->known_pattern =
        !literal && (strcmp(pattern, gpt2_pattern) == 0 || strcmp(pattern, llama3_pattern) == 0 ||
                     strcmp(pattern, qwen2_pattern) == 0);
    r->t->splits[r->t->n_splits++] = split;
    return EK_OK;
}

static ek_status read_split(reader *r, const json_t *section)
{
    const json_t *pattern = json_object_get(section, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *string = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = NULL;
    int invert = 0, removed;
    ek_split split = {0};

    EK_REQUIRE(regex != NULL || string != NULL, EK_EFORMAT,
               "%s: the pre_tokenizer Split has neither a Regex nor a String as pattern", r->file);
    EK_TRY(ek_json_text(section, r->file, "behavior", EK_JSON_REQUIRED, &behavior));
    EK_TRY(ek_json_bool(section, r->file, "invert", EK_JSON_OPTIONAL, &invert));
    removed = strcmp(behavior, "Removed") == 0;
    EK_REQUIRE(removed || strcmp(behavior, "Isolated") == 0, EK_EUNSUPPORTED,
               "%s: the behavior `%s` of Split is not supported; Isolated and Removed are", r->file,
               behavior);
    split.drop_matches = removed && !invert;
    split.drop_gaps = removed && invert;
    return add_split(r, regex != NULL ? regex : string, regex == NULL, split);
}

static ek_status read_bytelevel(reader *r, const json_t *section)
{
    int use_regex = 1, prefix = 0;

    EK_TRY(ek_json_bool(section, r->file, "use_regex", EK_JSON_OPTIONAL, &use_regex));
    EK_TRY(ek_json_bool(section, r->file, "add_prefix_space", EK_JSON_REQUIRED, &prefix));
    if (prefix)
        r->t->prefix_at = r->t->n_splits;
    if (use_regex)
        EK_TRY(add_split(r, gpt2_pattern, 0, (ek_split){0}));
    EK_REQUIRE(!r->bytelevel, EK_EUNSUPPORTED, "%s: a second ByteLevel is not supported", r->file);
    r->bytelevel = 1;
    return EK_OK;
}

static ek_status read_metaspace(reader *r, const json_t *section)
{
    static const char *const schemes[] = {"never", "first", "always"};
    ek_metaspace *m = &r->t->metaspace;
    const char *mark = NULL, *scheme = "always";
    int add_prefix = -1, where = -1;
    uint32_t cp = 0;

    EK_REQUIRE(
        r->byte_fallback, EK_EUNSUPPORTED,
        "%s: the pre_tokenizer `Metaspace` without byte_fallback is not supported: not every "
        "text could be encoded",
        r->file);
    EK_REQUIRE(m->to_mark.n == 0, EK_EUNSUPPORTED, "%s: a second Metaspace is not supported",
               r->file);
    EK_TRY(ek_json_text(section, r->file, "replacement", EK_JSON_REQUIRED, &mark));
    EK_TRY(ek_json_text(section, r->file, "prepend_scheme", EK_JSON_OPTIONAL, &scheme));
    if (json_object_get(section, "add_prefix_space") != NULL)
        EK_TRY(ek_json_bool(section, r->file, "add_prefix_space", EK_JSON_OPTIONAL, &add_prefix));
    for (int i = 0; i < 3; i++)
        if (strcmp(scheme, schemes[i]) == 0)
            where = i;
    EK_REQUIRE(where >= 0 && (add_prefix != 0 || where == EK_PREFIX_NEVER), EK_EUNSUPPORTED,
               "%s: the prepend_scheme `%s` of Metaspace is not supported%s; never, first and "
               "always are",
               r->file, scheme, add_prefix == 0 ? " without add_prefix_space" : "");
    EK_REQUIRE(mark[0] != '\0' &&
                   ek_utf8_next((const unsigned char *)mark, strlen(mark), &cp) == strlen(mark),
               EK_EFORMAT, "%s: the replacement of Metaspace is not one character", r->file);
    m->where = (ek_prefix)where;
    m->split = 1;
    EK_TRY(ek_json_bool(section, r->file, "split", EK_JSON_OPTIONAL, &m->split));
    EK_TRY(ek_normalizer_add(&m->to_mark, " ", mark));
    return ek_normalizer_add(&m->prefix, "", mark);
}

static ek_status read_pre_tokenizer(reader *r, const json_t *section, int depth)
{
    const json_t *list = json_object_get(section, "pretokenizers");
    const json_t *part;
    size_t i;

    if (is_type(section, "ByteLevel"))
        return read_bytelevel(r, section);
    if (is_type(section, "Metaspace"))
        return read_metaspace(r, section);
    if (is_type(section, "Split"))
        return read_split(r, section);
    if (is_type(section, "Digits")) {
        int each = 0;

        EK_TRY(ek_json_bool(section, r->file, "individual_digits", EK_JSON_OPTIONAL, &each));
        return add_split(r, each ? "\\p{N}" : "\\p{N}+", 0, (ek_split){0});
    }
    EK_REQUIRE(is_type(section, "Sequence") && json_is_array(list) && depth < 4, EK_EUNSUPPORTED,
               "%s: the pre_tokenizer `%s` is not supported; ByteLevel, Metaspace, Split, Digits "
               "and a Sequence of them are",
               r->file, type_of(section));
    json_array_foreach(list, i, part) EK_TRY(read_pre_tokenizer(r, part, depth + 1));
    return EK_OK;
}

/* Strip: decoding drops spaces at the beginning of a text. */
static ek_status read_strip(reader *r, const json_t *section)
{
    const char *content = NULL;
    int64_t start = 0, stop = 0;

    EK_TRY(ek_json_text(section, r->file, "content", EK_JSON_REQUIRED, &content));
    EK_TRY(ek_json_int(section, r->file, "start", EK_JSON_REQUIRED, 0, 64, &start));
    EK_TRY(ek_json_int(section, r->file, "stop", EK_JSON_REQUIRED, 0, 64, &stop));
    EK_REQUIRE(strcmp(content, " ") == 0 && stop == 0, EK_EUNSUPPORTED,
               "%s: the decoder `Strip` of other than leading spaces is not supported", r->file);
    r->t->strip = start;
    return EK_OK;
}

/* [Replace ...] ByteFallback Fuse [Strip], as SentencePiece-style files have it. */
static ek_status read_chars_decoder(reader *r, const json_t *section)
{
    static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const json_t *list = json_object_get(section, "decoders"), *part;
    int at = 0, seen[4] = {0};
    size_t i;

    EK_REQUIRE(is_type(section, "Sequence") && json_is_array(list), EK_EUNSUPPORTED,
               "%s: the decoder `%s` is not supported with byte_fallback; a Sequence of Replace, "
               "ByteFallback, Fuse and Strip is",
               r->file, section == NULL || json_is_null(section) ? "null" : type_of(section));
    json_array_foreach(list, i, part)
    {
        int k = 0;

        while (k < 4 && !is_type(part, order[k]))
            k++;
        EK_REQUIRE(k < 4 && k >= at && (k == 0 || !seen[k]), EK_EUNSUPPORTED,
                   "%s: the decoder `%s` is not supported in this position; Replace, ByteFallback, "
                   "Fuse and Strip in this order are",
                   r->file, type_of(part));
        at = k;
        seen[k] = 1;
        if (k == 0)
            EK_TRY(read_replace(r, part, "decoder", &r->t->decoder));
        else if (k == 3)
            EK_TRY(read_strip(r, part));
    }
    EK_REQUIRE(seen[1] && seen[2], EK_EUNSUPPORTED,
               "%s: the decoder has no ByteFallback and Fuse, which byte_fallback needs", r->file);
    return EK_OK;
}

static ek_status read_stages(reader *r)
{
    const json_t *pre = json_object_get(r->root, "pre_tokenizer");
    const json_t *decoder = json_object_get(r->root, "decoder");
    int has_metaspace;

    r->t->prefix_at = -1;
    EK_TRY(read_normalizer(r, json_object_get(r->root, "normalizer"), 0));
    if (pre != NULL && !json_is_null(pre))
        EK_TRY(read_pre_tokenizer(r, pre, 0));
    has_metaspace = r->t->metaspace.to_mark.n > 0;
    EK_REQUIRE(r->bytelevel || r->byte_fallback, EK_EUNSUPPORTED,
               "%s: the pre_tokenizer has no ByteLevel and the model no byte_fallback; only BPE "
               "with one of them is supported",
               r->file);
    if (!r->bytelevel) {
        EK_REQUIRE(r->t->n_splits == 0, EK_EUNSUPPORTED,
                   "%s: the pre_tokenizers Split and Digits without ByteLevel are not supported",
                   r->file);
        r->t->by_chars = 1;
        return read_chars_decoder(r, decoder);
    }
    EK_REQUIRE(!has_metaspace, EK_EUNSUPPORTED,
               "%s: the pre_tokenizers Metaspace and ByteLevel together are not supported",
               r->file);
    EK_REQUIRE(is_type(decoder, "ByteLevel"), EK_EUNSUPPORTED,
               "%s: the decoder `%s` is not supported; ByteLevel is", r->file,
               decoder == NULL || json_is_null(decoder) ? "null" : type_of(decoder));
    return EK_OK;
}

/* The byte of a token "<0x0A>", -1 for other tokens. */
static int byte_of_token(const unsigned char *text, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    int value = 0;

    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const char *at = memchr(digits, text[i] | 0x20, 16);

        if (at == NULL || (text[i] < '0'))
            return -1;
        value = 16 * value + (int)(at - digits);
    }
    return value;
}

/* Decoded bytes of each id of a SentencePiece-style tokenizer. */
static ek_status build_decoded(ek_tokenizer *t)
{
    ek_bpe *b = &t->bpe;
    ek_normalize_work work = {0};
    size_t used = 0, cap = 0;
    ek_status st = EK_OK;

    t->plain = calloc((size_t)b->n_ids + 1, sizeof(*t->plain));
    EK_REQUIRE_OUT(t->plain != NULL, EK_ENOMEM, "no memory for a vocabulary");
    for (int64_t id = 0; id < b->n_ids; id++) {
        const unsigned char *text = b->blob + b->tokens[id].at;
        size_t n = b->tokens[id].n;
        int byte = b->tokens[id].used ? byte_of_token(text, n) : -1;
        unsigned char one = (unsigned char)byte, *grown;

        if (!b->tokens[id].used)
            continue;
        if (byte >= 0) {
            text = &one;
            n = 1;
        } else {
            EK_TRY_OUT(ek_normalize(&t->decoder, &work, 0, text, n, &text, &n));
        }
        if (cap - used < n + 1) {
            cap = 2 * cap + n + 4096;
            grown = realloc(t->plain_blob, cap);
            EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "no memory for %zu bytes of tokens", cap);
            t->plain_blob = grown;
        }
        memcpy(t->plain_blob + used, text, n);
        t->plain[id] = (ek_token){.at = used, .n = (uint32_t)n, .used = 1};
        used += n;
    }
out:
    ek_normalize_work_release(&work);
    return st;
}

static void find_end(reader *r)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        "<|im_end|>"};
    const json_t *entry;
    size_t k;

    r->t->end_id = -1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && r->t->end_id < 0; i++) {
        json_array_foreach(json_object_get(r->root, "added_tokens"), k, entry)
        {
            if (strcmp(json_string_value(json_object_get(entry, "content")), names[i]) == 0)
                r->t->end_id = json_integer_value(json_object_get(entry, "id"));
        }
    }
}

/* Whether an added token could match across the end of a line. */
static int crosses_lines(const ek_added_set *s)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->tokens[i].lstrip || memchr(s->tokens[i].text, '\n', s->tokens[i].n) != NULL)
            return 1;
    return 0;
}

/* Whether a replacement involves a newline. */
static int changes_lines(const ek_normalizer *z)
{
    for (int i = 0; i < z->n; i++)
        if (memchr(z->list[i].from, '\n', z->list[i].from_n) != NULL ||
            memchr(z->list[i].to, '\n', z->list[i].to_n) != NULL)
            return 1;
    return 0;
}

static int allows_line_cuts(const reader *r)
{
    const ek_tokenizer *t = r->t;
    int known = t->n_splits == 1 && r->known_pattern && !t->splits[0].drop_gaps &&
                !t->splits[0].drop_matches && t->prefix_at < 0;

    if (t->by_chars)
        known = !t->bpe.whole_words && ek_chars_end_at_lines(&t->chars, &t->bpe) &&
                !changes_lines(&t->normalizer);
    else if (t->normalizer.n > 0)
        known = 0;
    return (known || t->identity) && !crosses_lines(&t->raw) && !crosses_lines(&t->normal);
}

/* Whether ids are the bytes themselves: the vocabulary is exactly the 256 bytes. */
static int is_identity(const ek_tokenizer *t, size_t n_vocab)
{
    if (n_vocab != 256 || t->by_chars || t->normalizer.nfc || t->normalizer.n > 0 ||
        t->prefix_at >= 0)
        return 0;
    for (uint32_t b = 0; b < 256; b++)
        if (t->bpe.byte_id[b] != b)
            return 0;
    for (int i = 0; i < t->n_splits; i++)
        if (t->splits[i].drop_gaps || t->splits[i].drop_matches)
            return 0;
    return 1;
}

ek_status ek_tokenizer_build(ek_tokenizer *t, const char *name)
{
    reader r = {.t = t, .file = name};
    json_t *root = NULL;
    ek_status st;

    EK_TRY_OUT(ek_json_parse_as(EK_JSON_VOCABULARY, t->json, t->json_bytes, name, &root));
    EK_REQUIRE_OUT(json_is_object(root), EK_EFORMAT,
                   "%s: a tokenizer must be a JSON object, not %s", name, ek_json_type_name(root));
    r.root = root;
    r.model = json_object_get(root, "model");
    EK_TRY_OUT(read_model_options(&r));
    EK_TRY_OUT(read_stages(&r));
    EK_TRY_OUT(read_vocab(&r));
    EK_TRY_OUT(read_merges(&r));
    EK_TRY_OUT(read_added(&r));
    if (t->by_chars) {
        EK_TRY_OUT(ek_chars_build(&t->chars, &t->bpe, name));
        EK_TRY_OUT(build_decoded(t));
    }
    find_end(&r);
    t->identity = is_identity(t, json_object_size(json_object_get(r.model, "vocab")));
    t->line_cuts = allows_line_cuts(&r);
out:
    for (int i = 0; i < 3; i++)
        free(r.text[i]);
    json_decref(root);
    return st;
}
