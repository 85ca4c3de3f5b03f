#!/usr/bin/env python3
"""Makes the golden data of the tokenizer tests, with the tokenizers library itself.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3
    VENV/bin/python tests/golden/make_tokenizers.py          writes tests/golden/tokenizers/*.json
    python3 tests/golden/make_tokenizers.py --nfc            writes src/data/nfc_table.h

Small byte-level BPE tokenizers with the pre-tokenizer settings of GPT-2, Llama 3, Qwen 2 and
OLMoE (GPT-NeoX), and one that sets every flag of added tokens, are trained on the text below; so are
SentencePiece-style ones with byte fallback (Mixtral, and the variants of Metaspace).
cases.json holds awkward texts and what each tokenizer makes of them.
"""
import json
import pathlib
import sys
import textwrap
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent / "tokenizers"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

PROSE = """
A mixture of experts holds many small networks and asks, for every token, only a few of them. The
router is a matrix: it scores the experts, the best two are taken, and their answers are added with
weights that sum to one. It isn't hard to say; it's hard to keep in balance. We've seen that one
expert may draw a third of all tokens while others don't see any. They'll starve, and I'd call that
a waste: you're paying for memory that doesn't learn. That's why the placement of experts is changed
while the model trains, and why replicas of the busy ones are made where there's room for them.

There were 8 experts in 1 layer, 64 in the next, 128 after that; 2048 tokens, 4096 positions, 32000
words. In 2017, 2021 and 2024 the numbers grew: 1.5 billion, 137 billion, 1600 billion parameters.
Prices went from $3.50 to $12.99 (that is +271 %), on 01/02/2023 at 10:45:30.

The shortest way home is the longest way round. Whether the weather be fine, or whether the weather
be not, we'll weather the weather whatever the weather, whether we like it or not. The theatre is
there; the other brother gathers feathers together. Nothing is lost, nothing is dropped silently.

Le café est à côté de l'hôtel ; l'été dernier, nous étions déjà là. Où est la bibliothèque ? Ça va.
Der Fluß fließt über große Steine; die Bäche, Wälder und Dörfer schlafen. Müßiggang für Könige.
El niño comió una manzana en España. ¿Dónde está el baño? ¡Qué mañana más pequeña! Mañana será.
Съешь же ещё этих мягких французских булок, да выпей чаю. Эксперты и маршрутизатор. Привет, мир.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Καλημέρα κόσμε. Tiếng Việt có nhiều dấu thanh điệu.
専門家の混合モデルは、トークンごとに少数の専門家だけを使います。今日は天気がいいです。
混合专家模型只为每个词元激活少数专家。路由器选择最好的两个。今天天气很好。
전문가 혼합 모델은 토큰마다 소수의 전문가만 사용합니다. 안녕하세요 세계.
مرحبا بالعالم. הלום עולם. नमस्ते दुनिया, यह एक परीक्षण है। สวัสดีชาวโลก นี่คือการทดสอบ
"""

CODE = """
static ek_status merge_words(const ek_bpe *b, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i + 1 < n; i++) {
        if (ids[i] == 0 || b->merges[i].rank != UINT32_MAX)
            return EK_FAIL(EK_EFORMAT, "merge %zu of %zu", i, n);
        ids[i] <<= 2;
    }
\treturn EK_OK; /* done */
}

def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
    if not text:
        return []
    return [self.vocab[t] for t in self.split(text)]  # one id for each token

#include <stdio.h>
int main(void) { printf("hello, world\\n"); return 0; }
SELECT name, COUNT(*) FROM experts WHERE load > 1.5 GROUP BY name ORDER BY 2 DESC;
{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}, "version": "1.0"}
<html><body class="main"><p>text</p></body></html>
$ cmake -S . -B build && ninja -C build -j2 && ctest --test-dir build --output-on-failure
"""

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "  a", "a  b", "\u00a0", "\u3000x",
    "Hello, world!", "hello world", " hello  world   again    ", "The experts' answers aren't lost.",
    "it's IT'S It'S we'LL WE'll I'M i'd I'D you'Re they'VE don'T 'tis '' ' 's's 'S",
    "it\u017f '\u017f it'\u017f \u212a '\u212a", "rock'n'roll o'clock 'em",
    "1", "12", "123", "1234", "12345", "1234567890", "1 22 333 4444", "3.14159e-10", "x1y22z333w4444",
    "\u0661\u0662\u0663\u0664 \u096a\u096b \uff11\uff12\uff13\uff14 \u00bd \u2167\u216b \u00b2\u00b3",
    "line one\nline two\n\nline four\n\n\n\nend", "a\r\nb\r\n\r\nc\rd\r\r", "trailing  \n  leading",
    "a \n b\t\n\tc  \n\n  d\n ", "\n\n  \n", "   \n", "x\n   y", "x   \n\n\n   y", "\t\tindent\t \tx",
    "tab\tseparated\tvalues\n1\t2\t3\n", "\x0b\x0c\x1c\x1d\x85\u2028\u2029 end", "nul\x00byte\x01\x7f",
    "a  \u180eb   \u180e\u180e  c", "\u180emongolian \u180e vowel \u200b zero \u200d width \ufeff bom \u00ad soft",
    "\u1680ogham\u2000quad\u2003em\u2009thin\u200ahair\u202fnarrow\u205fmath\u3000ideographic",
    CODE, "if (a<b&&c>=d) { x[i++] ^= ~0xFFu; }  // ok?", "path/to/file.c:12:3: error: 'x'",
    "https://example.org/a?b=c&d=%20#e", "foo_bar fooBar FooBar FOO_BAR foo-bar foo.bar",
    "...!!!???---===***###", "(((a)))[[b]]{{c}}<<d>>", "\"quoted\" \u201ccurly\u201d \u2018single\u2019",
    "$12.99 \u20ac5 \u00a33 100% \u00b15\u00b0C \u2212\u221e \u2248\u03c0",
    "caf\u00e9 cafe\u0301 CAF\u00c9 CAFE\u0301", "\u1ebft e\u0302\u0301t ê\u0301 e\u0301\u0302",
    "\u00c5 A\u030a \u212b \u2126 \u03a9 \u1e9b\u0323 q\u0307\u0323 q\u0323\u0307 \u1e0b\u0323",
    "a\u0315\u0300\u05ae\u0062 \u0344 \u0308\u0301 \u0958 \u09c7\u09be \u2adc",
    "\u0301starts with a mark", "z\u0335\u0321\u0308\u0301\u0300a\u0336\u0322l\u0334g\u0337o\u0338",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \uac00\u11a8 \u1100\u1161\u11a8\u11a8",
    "\u0344\u0344 \ufb1d \ufb2a \uf900 \U0002f800 \U0001d15e \U000110ab",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964 \u0915\u094d\u0937",
    "\u0627\u0644\u0633\u0651\u0644\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0652\u0643\u064f\u0645",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u4e13\u5bb6123\u4e2a\u3002", "\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8\u30ab\u3099\u304b\u3099",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0439 \u0438\u0306 \u0401\u0436\u0438\u043a",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5 \u1f85 \u03b1\u0313\u0301\u0345",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea",
    "\u2764\ufe0f \U0001f3f4\u200d\u2620\ufe0f x\U0001f680\U0001f680y 5\ufe0f\u20e3",
    "\U0001d54f \U00010348 \U0001e943 \U0010ffff \ue000 \ufffd \uffff",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>\n",
    "<|endoftext", "<|endoftext|", "endoftext|>", "<<|endoftext|>>", "text\n\n<|endoftext|>\n\ntext",
    "<|begin_of_text|>hi<|eot_id|> <|start_header_id|>user<|end_header_id|>\n\nhi",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|padding|>x|||EMAIL_ADDRESS|||y",
    "<lone> xlone>y <lone>z <lone>, \u00e9<lone>\u0301 _<lone> (<lone>)", " \t <left>x\n <left> <left>y",
    "x<right> \n y<right><right>  z <right>\u3000\u00a0", "a  <both>  b<both> <left> <both>",
    "<\u1e69> <s\u0323\u0307> x<s\u0307\u0323>", "<le <left <left><left> <<left>", "<ab><abc><abcd>",
    "a" * 300, "ab" * 200 + "c" * 50, "the" * 120, "Donaudampfschifffahrtsgesellschaftskapit\u00e4n" * 4,
    " " * 70 + "x" + " " * 33, "\n" * 40 + "y", "!" * 100, "9" * 100, "\u00e9" * 60, "e\u0301" * 60,
    "\u4e13\u5bb6" * 40, "\U0001f600" * 30, "a\u0300" + "\u0316\u0301" * 40,
    "<s>", "<s>a", "<s> a</s>", " <s>a</s> b", "a<s><s>b</s>", "x </s>\n<s> y", "<unk>", "a<unk>b",
    "\u2581", "\u2581a", " \u2581 a\u2581b", "\u2581\u2581 \u2581", "a\u2581 ", "<0x41>", "x<0x0A>y<0x0a>",
    "[T]", "a[T]b", " [T] ", "[T][T] x", "x [T]", "[T]\u2581x",
] + [" " * n + "x" for n in range(2, 26, 3)] + [s for s in PROSE.strip().split("\n") if s][::2]


def bpe(special, size, **settings):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE(ignore_merges=settings.pop("ignore_merges", False)))
    t.pre_tokenizer = settings.pop("pre")
    t.normalizer = settings.pop("normalizer", None) or t.normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        [PROSE, PROSE, CODE],
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


BYTES = ["<0x%02X>" % b for b in range(256)]
MARK = "\u2581"


def chars_bpe(name, size, normalizer=None, pre=None, train_pre=None, strip=True, added=(), **model):
    """SentencePiece-style, as JSON: rare characters are left to the bytes."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = train_pre or pre_tokenizers.Metaspace(split=True)
    if train_pre:
        t.normalizer = normalizers.Replace(" ", MARK)
    special = ["<unk>", "<s>", "</s>"]
    texts = [line for text in (PROSE, PROSE, CODE) for line in text.split("\n")]
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special + BYTES, limit_alphabet=150, show_progress=False))
    t.add_tokens(list(added))
    data = json.loads(t.to_str())
    data["added_tokens"] = [a for a in data["added_tokens"] if a["content"] not in BYTES]
    data["model"].update(model)
    data["normalizer"], data["pre_tokenizer"] = normalizer, pre
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}] + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * strip}
    data["post_processor"] = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return name, data


def chars_tokenizers():
    from tokenizers import AddedToken, pre_tokenizers

    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, replace]}

    def metaspace(scheme, split):
        return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}

    return dict([
        chars_bpe("mixtral", 900, normalizer=prepend, added=[AddedToken("[T]", normalized=False)]),
        chars_bpe("mistral_first", 800, pre=metaspace("first", False),
                  added=[AddedToken("[T]", normalized=True, rstrip=True)]),
        chars_bpe("spm_always", 800, normalizer={"type": "NFC"}, pre=metaspace("always", True),
                  added=[AddedToken("[T]", lstrip=True), AddedToken("  ", normalized=True)]),
        # tokens go over spaces: nothing but rare pairs can be cut
        chars_bpe("spm_phrases", 900, normalizer=replace, strip=False, ignore_merges=True,
                  train_pre=pre_tokenizers.Split("|", "isolated"),
                  added=[AddedToken("[T]", normalized=True)]),
        chars_bpe("spm_prepend_token", 700, normalizer=prepend,
                  added=[AddedToken("[T]", normalized=True)]),
    ])


def tokenizers():
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors

    def level(prefix=False, regex=True):
        return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)

    def split(pattern):
        return pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"), level(regex=False)])

    gpt2 = bpe(["<|endoftext|>"], 800, pre=level())
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)

    llama3 = bpe([], 900, pre=split(LLAMA3), ignore_merges=True)
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                               "<|end_header_id|>", "<|eot_id|>"])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A $B",
                                      [("<|begin_of_text|>", 900)])])

    qwen2 = bpe([], 850, pre=split(QWEN2), normalizer=normalizers.NFC())
    qwen2.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen2.post_processor = processors.ByteLevel(trim_offsets=False)

    olmoe = bpe(["<|endoftext|>", "<|padding|>"], 700, pre=level(), normalizer=normalizers.NFC())
    olmoe.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)]
                     + [AddedToken("|||EMAIL_ADDRESS|||", normalized=True)])

    flags = bpe([], 400, normalizer=normalizers.Sequence([normalizers.NFC()]),
                pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                             level(prefix=True)]))
    flags.add_tokens([AddedToken("<lone>", single_word=True), AddedToken("<left>", lstrip=True),
                      AddedToken("<right>", rstrip=True), AddedToken("<ab>"), AddedToken("<abc"),
                      AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
                      AddedToken("<\u1e69>", normalized=True)])
    flags.add_special_tokens(["<|endoftext|>"])
    return {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "olmoe": olmoe, "flags": flags}


def file_text(name, tokenizer):
    """Compact; the merges of one file in the older form, "a b"."""
    data = tokenizer if isinstance(tokenizer, dict) else json.loads(tokenizer.to_str())
    if name == "gpt2":
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def golden():
    from tokenizers import Tokenizer

    HERE.mkdir(exist_ok=True)
    cases = [{"text": t} for t in TEXTS]
    for name, trained in {**tokenizers(), **chars_tokenizers()}.items():
        path = HERE / f"{name}.json"
        path.write_text(file_text(name, trained), encoding="utf-8")
        t = Tokenizer.from_file(str(path))
        for case in cases:
            ids = t.encode(case["text"], add_special_tokens=False).ids
            case[name] = ids
            decoded = t.decode(ids, skip_special_tokens=False)
            if decoded != case["text"]:
                case.setdefault("decoded", {})[name] = decoded
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (HERE / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


# The tokenizers library (0.23.3) normalises by Unicode 9: these marks and composites are later.
NEWER = """7FD 898-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27
10EAB-10EAC 10F46-10F50 10F82-10F85 11070 1133B 1145E 11839-1183A 11938 1193D-1193E 11943 119E0
11A34 11A47 11A99 11D42 11D44-11D45 11D97 16FF0-16FF1 1E130-1E136 1E2AE 1E2EC-1E2EF"""


def nfc_table():
    """src/data/nfc_table.h from Python's Unicode database."""
    newer = set()
    for item in NEWER.split():
        first, _, last = item.partition("-")
        newer |= set(range(int(first, 16), int(last or first, 16) + 1))
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c not in newer]
    hangul = range(0xAC00, 0xD7A4)
    decomposed = []
    for c in points:
        text = unicodedata.decomposition(chr(c))
        if text and not text.startswith("<") and c not in hangul:
            parts = [int(x, 16) for x in text.split()] + [0]
            decomposed.append((c, parts[0], parts[1]))
    number = {c: i for i, (c, _, _) in enumerate(decomposed)}
    assert not any(b in number for _, _, b in decomposed)
    kept = [d for d in decomposed if d[2] and unicodedata.normalize("NFC", chr(d[0])) == chr(d[0])]
    composed = [number[c] for c, a, b in sorted(kept, key=lambda d: d[1:])]
    second = {b for _, _, b in kept} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    classes = ranges((c, unicodedata.combining(chr(c))) for c in points)
    doubtful = ranges((c, int(c in second or unicodedata.combining(chr(c)) != 0
                              or unicodedata.normalize("NFC", chr(c)) != chr(c))) for c in points)
    head = """/* data/nfc_table.h - Unicode 9, what form C needs of it.
 *
 * Written by tests/golden/make_tokenizers.py --nfc; do not edit.  Hangul syllables are computed,
 * not listed. */
#ifndef DATA_NFC_TABLE_H
#define DATA_NFC_TABLE_H

#include <stdint.h>

/* clang-format off */
"""
    out = head + "/* Code point and its canonical decomposition (second 0: a single one), by code point. */\n"
    out += table("struct { uint32_t cp, first, second; }", "nfc_decomposed",
                 ["{%d,%d,%d}" % d for d in decomposed])
    out += "/* Those that composition makes: places in nfc_decomposed, by (first, second). */\n"
    out += table("uint16_t", "nfc_composed", map(str, composed))
    out += "/* Canonical combining classes other than 0: first and last code point, class. */\n"
    out += table("struct { uint32_t first, last, ccc; }", "nfc_class",
                 ["{%d,%d,%d}" % r for r in classes])
    out += "/* Code points that may change, or change their neighbours: first and last. */\n"
    out += table("struct { uint32_t first, last; }", "nfc_doubtful",
                 ["{%d,%d}" % r[:2] for r in doubtful])
    return out + "/* clang-format on */\n#endif\n"


def ranges(pairs):
    """(code point, value) -> [(first, last, value)] for values other than 0."""
    out = []
    for c, v in pairs:
        if v and out and out[-1][1] == c - 1 and out[-1][2] == v:
            out[-1] = (out[-1][0], c, v)
        elif v:
            out.append((c, c, v))
    return out


def table(kind, name, items):
    return f"static const {kind} {name}[] = {{\n" + textwrap.fill(
        " ".join(i + "," for i in items), 98, break_long_words=False) + "\n};\n\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--nfc"]:
        (ROOT / "src/data/nfc_table.h").write_text(nfc_table())
    else:
        golden()
