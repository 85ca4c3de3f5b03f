"""--memory-limit of train, eval and generate: what is refused, with what would fit; and the peak of
a cgroup, page cache included, while a model is read."""

import json
import os
import pathlib
import re
import subprocess
import sys

import ek_cli
from ek_cli import DONE, FAILED, USAGE, run

BIG_MODEL = pathlib.Path(__file__).resolve().parent.parent / "big_model.py"
SHAPE = ["--layers", 4, "--hidden", 512, "--inner", 512, "--heads", 8, "--vocab", 4096,
         "--experts", 48, "--top-k", 2]  # 330 MB


class Cgroup:
    """A cgroup of version 1 or 2 below the root, and how its files are called."""

    def __init__(self):
        self.folder = None
        for root, peak, limit in (("/sys/fs/cgroup/memory", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
                                  ("/sys/fs/cgroup", "memory.peak", "memory.max")):
            folder = os.path.join(root, "evenkeel-test-%d" % os.getpid())
            try:
                os.mkdir(folder)
            except OSError:
                continue
            self.folder, self.peak_name, self.limit_name = folder, peak, limit
            if os.path.exists(os.path.join(folder, peak)):
                return
            self.remove()

    def remove(self):
        if self.folder is not None:
            os.rmdir(self.folder)
        self.folder = None

    def set_limit(self, size):
        ek_cli.write(os.path.join(self.folder, self.limit_name), str(size))

    def run(self, *args):
        """The command in this cgroup."""
        procs = os.path.join(self.folder, "cgroup.procs")
        return subprocess.run(["sh", "-c", 'echo $$ >"$0" && exec "$@"', procs, ek_cli.COMMAND, *map(str, args)],
                              capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              check=False, timeout=ek_cli.TIMEOUT_S)

    def forget_peak(self):
        """So that the next peak is of the next command (not in every version of Linux)."""
        try:
            ek_cli.write(os.path.join(self.folder, self.peak_name), "0")
        except OSError:
            pass

    def peak(self):
        return int(ek_cli.read(os.path.join(self.folder, self.peak_name)))


class MemoryLimit(ek_cli.Case):
    def big_model(self):
        subprocess.run([sys.executable, BIG_MODEL, "--out", self.path("big"), *map(str, SHAPE)], check=True,
                       stdout=subprocess.DEVNULL)
        return self.path("big")

    def forget_pages(self, model):
        """Written back, and not in the page cache."""
        for f in pathlib.Path(model).glob("*.safetensors"):
            with open(f, "rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def cgroup(self):
        group = Cgroup()
        if group.folder is None:
            self.skipTest("needs the right to create a cgroup with a memory controller")
        self.addCleanup(group.remove)
        return group

    def generate(self, model, *more):
        return ["generate", "--model", model, "--tokenizer", "bytes", "--prompt", "x", "--tokens", 4,
                "--dtype", "bf16", *more]

    def said(self, r, pattern):
        self.assertEqual(r.returncode, FAILED, r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
        self.assertRegex(r.stderr, pattern)

    def test_sizes(self):
        for size in ("8", "8X", "-1G", ""):
            r = run("generate", "--model", "none", "--prompt", "x", "--memory-limit", size)
            self.assertNotEqual(r.returncode, DONE)
            if size != "8":
                self.assertEqual(r.returncode, USAGE)
                self.assertIn("--memory-limit", r.stderr)

    def test_training(self):
        config = ek_cli.write_config(self.path("c.json"), hidden_size=256, head_dim=128, intermediate_size=256,
                                     max_position_embeddings=512)
        train = self.train_args("run", "--model", config, "--batch", 64, "--seq", 256)
        train[train.index("--data") + 1] = ek_cli.write_tokens(self.path("d.bin"), ek_cli.token_ids(70000))
        r = run(*train, "--dry-run", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        memory = json.loads(r.stdout)["memory"]
        self.assertGreater(memory["limit_mb"], memory["most_mb"])
        limit = int(memory["most_mb"] * 0.75e6)
        r = run(*train, "--memory-limit", limit)
        self.said(r, r"the run needs about [\d.]+ [MG]B of memory, and [\d.]+ [MG]B are allowed \(--memory-limit\); "
                     r"--micro-batch \d+ would fit$")
        micro = re.search(r"--micro-batch (\d+)", r.stderr).group(1)
        r = run(*train, "--memory-limit", limit, "--micro-batch", micro, "--dry-run", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        memory = json.loads(r.stdout)["memory"]
        self.assertLessEqual(memory["most_mb"] * 1e6, limit)
        self.assertEqual((memory["limit_mb"], memory["limit_source"]), (limit / 1e6, "--memory-limit"))
        self.said(run(*train, "--memory-limit", "1M"), "no --micro-batch and no --recompute makes it fit")
        self.assertFalse(os.path.exists(self.path("run")))

    def test_it_is_a_setting_of_the_run(self):
        self.train("run", "--memory-limit", "3G", steps=2)
        settings = ek_cli.read(self.path("run", "run.json"))
        self.assertIn(b'"memory-limit": "3G"', settings)

    def test_use(self):
        self.train("run", steps=2)
        model = self.path("run")
        for command in (self.generate(model)[:-2], ["eval", "--model", model, "--data", self.data]):
            self.said(run(*command, "--memory-limit", "1M"),
                      r"the model needs about [\d.]+ [MG]B of memory, and 1\.\d+ MB are allowed \(--memory-limit\); "
                      r"weights take")
            self.assertEqual(run(*command, "--memory-limit", "2G").returncode, DONE)

    def test_other_types(self):
        """Between what bf16 and what fp32 take."""
        model = self.big_model()
        self.said(run(*self.generate(model)[:-1], "fp32", "--memory-limit", "500M", "--expert-store", "memory"),
                  r"--dtype bf16 would fit, with [\d.]+ MB$")
        r = run(*self.generate(model, "--memory-limit", "250M", "--expert-store", "memory"))
        self.said(r, r"--expert-slots \d+ would fit, with the other experts on disk$")
        slots = re.search(r"--expert-slots (\d+)", r.stderr).group(1)
        r = run(*self.generate(model, "--memory-limit", "250M", "--expert-slots", slots))
        self.assertEqual(r.returncode, DONE, r.stderr)

    def test_peak_of_a_cgroup(self):
        """Weights and the page cache of their file stay below a limit of which only the command knows."""
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        group, model = self.cgroup(), self.big_model()
        weights = sum(f.stat().st_size for f in pathlib.Path(model).glob("*.safetensors"))
        self.forget_pages(model)
        limit = int(weights * 1.5)
        r = group.run(*self.generate(model, "--memory-limit", limit))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertGreater(group.peak(), weights)
        self.assertLess(group.peak(), limit)

    def test_a_model_larger_than_the_limit_runs_from_its_files(self):
        """The text is that from memory, and the cgroup's peak, page cache included, below the limit."""
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        group, model = self.cgroup(), self.big_model()
        weights = sum(f.stat().st_size for f in pathlib.Path(model).glob("*.safetensors"))
        want = run(*self.generate(model, "--seed", 3, "--tokens", 90))
        self.assertNotIn("experts:", want.stderr)
        for store, share in ("auto", 0.75), ("ring", 1.1):
            limit = int(weights * share)
            self.forget_pages(model)
            group.forget_peak()
            r = group.run(*self.generate(model, "--seed", 3, "--tokens", 90, "--memory-limit", limit,
                                         "--expert-store", store))
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(r.stdout, want.stdout)
            self.assertIn("experts:", r.stderr)
            self.assertLess(group.peak(), limit)
            self.assertGreater(group.peak(), limit / 2)

    def test_a_long_prompt_beside_slots(self):
        """Slots leave room for it, though the weights are read before its length is known."""
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        group, model = self.cgroup(), self.big_model()
        limit = 200 << 20
        for tokens in 1000, 4000:
            prompt = self.path("prompt")
            ek_cli.write(prompt, "x y" * (tokens // 3))
            args = self.generate(model, "--memory-limit", limit)
            args[args.index("--prompt"):args.index("--prompt") + 2] = ["--prompt-file", prompt]
            r = group.run(*args)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertIn("experts:", r.stderr)
            self.assertLess(group.peak(), limit)

    def test_limit_of_a_cgroup(self):
        group = self.cgroup()
        self.train("run", steps=2)
        group.set_limit(64 << 20)
        model = self.big_model()
        self.said(group.run(*self.generate(model, "--expert-store", "memory")),
                  r"[\d.]+ [kM]?B are available \(the cgroup /\S+/evenkeel-test-\d+, limited to [\d.]+ MB\)")
        self.assertEqual(run(*self.generate(self.path("run"))).returncode, DONE)


if __name__ == "__main__":
    ek_cli.main()
