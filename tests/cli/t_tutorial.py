"""docs/tutorial.md: all of its commands, in order, in one shell, as they stand but for these: fewer
steps; other names of runs, so that it kills no worker of another run; `make build` is only looked
at (make -n), as it builds for minutes; transformers' snippet is only parsed, as it needs packages
of another index."""

import ast
import json
import os
import re
import shutil
import subprocess

import ek_cli

ROOT = os.path.dirname(ek_cli.TEST_DATA)
FEWER = 10
STEPS = re.compile(r'(--steps |--eval-every |--save-every |"step": |% )(\d+)')


def snippets(text):
    """The indented commands, without the indentation; output is fenced."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = re.findall(r"^    (.*)$", text, re.M)
    return [c.lstrip("\n") for c in re.findall(r"(?:.*\\\n)*.*\n?", "\n".join(lines)) if c]


class Tutorial(ek_cli.Case):
    def setUp(self):
        super().setUp()
        if "asan" in ek_cli.COMMAND or "tsan" in ek_cli.COMMAND:
            self.skipTest("nobody learns with a build with sanitizers")
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec: the tutorial trains with two ranks")
        if shutil.which("pgrep") is None:
            self.skipTest("no pgrep (package procps)")
        for name in ("docs", "include", "src", "Makefile", "tools", "CMakePresets.json"):
            os.symlink(os.path.join(ROOT, name), self.path(name))
        for name in ("build", "tests/unit"):
            os.makedirs(self.path(name))
        os.symlink(ek_cli.COMMAND, self.path("build", "evenkeel"))
        shutil.copy(os.path.join(ROOT, "tests", "unit", "t_base_arena.c"), self.path("tests/unit"))

    def changed(self, command):
        """The command with fewer steps, and with names of its own for its runs."""
        command = STEPS.sub(lambda m: m[1] + str(int(m[2]) // FEWER), command)
        return re.sub(r"\b(lesson|steady)\b", r"\1-%d" % os.getpid(), command)

    def lines(self, *parts):
        with open(self.path(*parts)) as f:
            return [json.loads(line) for line in f]

    def test_all_commands_in_order(self):
        text = ek_cli.read(os.path.join(ROOT, "docs", "tutorial.md")).decode()
        text, optional = text.split("## Optional: open it in transformers")
        code = re.search(r'^    python3 -c "(.*?)"$', optional.split("```")[0], re.M | re.S)[1]
        ast.parse(code.replace("\\\n", ""))
        commands = [self.changed(c) for c in snippets(text)]
        self.assertGreater(len(commands), 14)
        self.assertEqual(commands[0].strip(), "make build")
        commands[0] = "make -n build"
        script = "set -e\n" + "\n".join("echo 'run: %d' >&2\n%s" % x for x in enumerate(commands))
        with ek_cli.Process(["bash"], cwd=self.folder, text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
            out, err = shell.communicate(script, timeout=5 * ek_cli.TIMEOUT_S)
        last = commands[int(re.findall(r"^run: (\d+)$", err, re.M)[-1])]
        self.assertEqual(shell.returncode, 0, "%s: %s" % (last, err))
        self.assertNotIn("error", err)
        self.check_results(out, err)

    def check_results(self, out, err):
        lesson, steady = (self.changed(name) for name in ("lesson", "steady"))
        self.assertEqual(len(re.findall(r"^\d+ \d\.\d+ \S+ \S+ \d+$", out, re.M)), 6)  # metrics
        self.assertEqual(out.count("  max/mean "), 3)  # plans
        self.assertIn("cmake --build", out)
        self.assertTrue(os.path.exists(self.path(lesson, "best", "config.json")))
        first, second = self.lines(steady, "generations.jsonl")[:2]
        self.assertEqual((first["from"], second["from"]), ("start", "memory"))
        self.assertIn("was killed by signal 9", second["after"])
        self.assertRegex(out, r"(?m)^0 start 0 0 None\n1 memory \d+ 0 \d")
        self.assertIn("continuing from memory after step", err)
        steps = [m["step"] for m in self.lines(steady, "metrics.jsonl")]
        self.assertEqual(steps, list(range(1600 // FEWER)))
        self.assertIn("sizes and checksums verified", out)
        self.assertTrue(os.path.exists(self.path(steady + "-hf", "config.json")))


if __name__ == "__main__":
    ek_cli.main()
