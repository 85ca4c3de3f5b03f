"""The command lines of README.md and docs/: every option that they name exists, and the ones that
are complete and quick run as they stand, in their order (with fewer steps).  Those of docs/tutorial.md
run in t_tutorial.py."""

import glob
import os
import re
import shlex

import ek_cli
from ek_cli import DONE, run

ROOT = os.path.dirname(ek_cli.TEST_DATA)
COMMANDS = ("train", "eval", "generate", "export", "check", "clean", "plan", "workload", "simulate",
            "search", "fit", "bench", "info")
RUN = {"README.md": COMMANDS, "docs/balance.md": ("workload", "plan", "train"),
       "docs/training.md": ("train", "eval"), "docs/simulate.md": ("workload", "simulate"),
       "docs/search.md": ("workload", "search")}
PLACEHOLDER = re.compile(r"^(?!README)[A-Z]+(\.\w+)?$|\.\.\.|\|")
# Options of scripts of this repository, of other programs, and old names that are still accepted.
FOREIGN = ("--version", "--single", "--failures", "--reset-attention-mask", "--eod-mask-loss", "--lasts")
MEGATRON = ("--pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank", "--tensor-model-parallel-size",
            "--sequence-parallel", "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--use-distributed-optimizer",
            "--overlap-grad-reduce", "--overlap-param-gather", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
            "--no-gradient-accumulation-fusion", "--ckpt-format",
            "--global-batch-size", "--micro-batch-size", "--recompute-granularity", "--recompute-method",
            "--recompute-num-layers", "--recompute-modules", "--seq-length", "--moe-router-topk", "--bf16",
            "--moe-expert-capacity-factor")  # in docs/search.md
OF_SCRIPTS = ("docs/benchmarks.md", "docs/cluster.md")
LINE = re.compile(r"^    (?:\$ )?(?P<before>.*?)(?:build/)?\bevenkeel (?P<line>[a-z]+( .*)?)$")


def documents():
    names = ["README.md"] + sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))
    return [(os.path.relpath(os.path.join(ROOT, n), ROOT),
             ek_cli.read(os.path.join(ROOT, n)).decode()) for n in names]


def blocks(text):
    """(text before the command, its words) of each indented line."""
    for line in re.sub(r"\\\n +", "", text).splitlines():
        m = LINE.match(line)
        if m and m["line"].split()[0].split("|")[0] in COMMANDS:
            yield m["before"], shlex.split(re.split(r" {2,}", m["line"])[0].rstrip("&"))


def shortened(words):
    """A search of a large model takes 20 s: here it looks at 84 layouts of its 47,880, with a trace at few."""
    if words[0] != "search" or "examples/models/olmoe-1b-7b.json" not in words or "--fix" in words:
        return words
    few = "pp=1,tp=1,etp=1,zero=1"
    return words + (["--fix", few + ",ep=8,micro-batch=512", "--steps", 1] if "--trace" in words else ["--fix", few])


def inline_code(text):
    return [code.split() for code in re.findall(r"`([^`\n]+)`", text)]


def inline(text):
    """The words of `evenkeel ...` and of `train --option ...` inside a paragraph."""
    for words in inline_code(text):
        if words[0] == "evenkeel":
            words = words[1:]
        if len(words) > 1 and words[0] in COMMANDS:
            yield words


class Documents(ek_cli.Case):
    def options(self, command):
        if command not in self.known:
            help_text = run(command, "--help").stdout
            self.known[command] = set(re.findall(r"^  (--[a-z][a-z0-9-]*)", help_text, re.M))
        return self.known[command]

    def setUp(self):
        super().setUp()
        self.known = {}

    def test_options_exist(self):
        checked = 0
        for name, text in documents():
            for words in [w for _, w in blocks(text)] + list(inline(text)):
                for word in words[1:]:
                    option = re.match(r"--[a-z][a-z0-9-]*", word)
                    if option:
                        checked += 1
                        self.assertIn(option[0], self.options(words[0]),
                                      "%s: %s" % (name, " ".join(words)))
        self.assertGreater(checked, 100)

    def test_options_without_a_command_exist(self):
        known = set(FOREIGN + MEGATRON).union(*map(self.options, COMMANDS))
        checked = 0
        for name, text in documents():
            for words in inline_code(text) if name not in OF_SCRIPTS else ():
                for word in words if words[0].startswith("--") else ():
                    option = re.match(r"--[a-z][a-z0-9-]*", word)
                    if option:
                        checked += 1
                        self.assertIn(option[0], known, "%s: %s" % (name, " ".join(words)))
        self.assertGreater(checked, 300)

    def test_options_of_the_table(self):
        """README's table of train's options has all options and no others."""
        text = dict(documents())["README.md"]
        rows = re.findall(r"^\| [a-z]+ \| (`--.*`) \|$", text, re.M)
        named = [o for row in rows for o in re.findall(r"--[a-z][a-z0-9-]*", row)]
        self.assertEqual(len(named), len(set(named)), sorted(named))
        known = self.options("train")
        self.assertEqual(sorted(known - {"--config", "--help", "--model", "--init", "--tokenizer"}),
                         sorted(set(named) - {"--model", "--init", "--tokenizer", "--config"}))

    def test_commands_run(self):
        for name in ("README.md", "docs", "src", "include", "tests", "examples"):
            os.symlink(os.path.join(ROOT, name), self.path(name))
        ran = 0
        for name, text in documents():
            steps = 1
            for before, words in blocks(text):
                if before or words[0] not in RUN.get(name, ()) or words[0] == "bench":
                    continue
                if any(PLACEHOLDER.search(w) for w in words[1:]):
                    continue
                words = shortened(words)
                if "--ranks" in words and words[0] == "train" and ek_cli.mpiexec() is None:
                    continue
                if words[0] == "train":
                    steps += 1
                    words = words + ["--steps", steps]
                    if "--resume" not in words:
                        words += ["--batch", 4, "--seq", 32, "--micro-batch", 2]
                elif words[0] == "generate":
                    words = words + ["--tokens", 4]
                elif words[0] == "eval":
                    words = [w if w != "tests/unit" else "README.md" for w in words]
                with self.subTest("%s: %s" % (name, " ".join(map(str, words)))):
                    r = run(*words, cwd=self.folder)
                    self.assertEqual(r.returncode, DONE, r.stderr)
                    ran += 1
        self.assertGreater(ran, 12)


class Errors(ek_cli.Case):
    def test_status_codes_are_those_of_the_header(self):
        """docs/errors.md against include/evenkeel/err.h: the same codes with the same values."""
        header = ek_cli.read(os.path.join(ROOT, "include", "evenkeel", "err.h")).decode()
        listed = ek_cli.read(os.path.join(ROOT, "docs", "errors.md")).decode()
        codes = dict(re.findall(r"^    (EK_E[A-Z]+) = (-\d+)", header, re.M))
        self.assertGreater(len(codes), 10)
        self.assertEqual(dict(re.findall(r"\| `(EK_E[A-Z]+)` \| (-\d+) \|", listed)), codes)


if __name__ == "__main__":
    ek_cli.main()
