"""generate and eval with experts that stay in the model's files: the same results as from memory,
less memory, what is reported, and what is refused."""

import json
import pathlib
import re
import subprocess
import sys

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, run

BIG_MODEL = pathlib.Path(__file__).resolve().parent.parent / "big_model.py"
LAYERS, EXPERTS = 3, 6


class ExpertStore(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        subprocess.run([sys.executable, BIG_MODEL, "--out", self.model, "--layers", str(LAYERS), "--experts",
                        str(EXPERTS), "--top-k", "2", "--hidden", "64", "--inner", "40", "--heads", "4", "--vocab",
                        "300"], check=True, stdout=subprocess.DEVNULL)

    def generate(self, *args, status=DONE):
        r = run("generate", "--model", self.model, "--tokenizer", "bytes", "--prompt", "keel and hull", "--tokens",
                40, "--seed", 3, *args)
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def evaluate(self, *args):
        r = run("eval", "--model", self.model, "--data", self.data, "--seq", 32, "--json", *args)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def test_text_is_that_from_memory(self):
        want = self.generate("--expert-store", "memory").stdout
        for slots in 1, 4, LAYERS * EXPERTS, 1000:
            for eviction in "auto", "lru", "lfu":
                r = self.generate("--expert-slots", slots, "--expert-eviction", eviction)
                self.assertEqual(r.stdout, want)

    def test_lookahead_is_counted_and_changes_no_text(self):
        want = self.generate("--expert-store", "memory").stdout
        for slots in 1, 5:
            r = self.generate("--expert-slots", slots, "--expert-lookahead", "on")
            self.assertEqual(r.stdout, want)
            self.assertRegex(r.stderr, r"experts: .*; [\d.]+ % of predictions right\n")
        self.assertNotIn("predictions", self.generate("--expert-slots", 5).stderr)

    def test_loss_and_loads_are_those_from_memory(self):
        self.data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(3000, vocab=250))
        want = self.evaluate()
        for slots in 1, 7:
            self.assertEqual(self.evaluate("--expert-slots", slots), want)
        self.assertEqual(self.evaluate("--expert-store", "mmap"), want)
        for ring in 2, LAYERS, LAYERS + 3:
            self.assertEqual(self.evaluate("--expert-store", "ring", "--ring", ring), want)

    def test_a_ring_and_mapped_files_give_the_text_from_memory(self):
        want = self.generate("--expert-store", "memory").stdout
        uses = {}
        for ring in "2", "3", "9", None:
            for eviction in "auto", "lru":
                args = ["--expert-store", "ring", "--expert-eviction", eviction]
                r = self.generate(*args, *(["--ring", ring] if ring else []))
                self.assertEqual(r.stdout, want)
                uses[ring, eviction] = self.uses(r)
        r = self.generate("--expert-store", "mmap")
        self.assertEqual(r.stdout, want)
        uses["mmap", ""] = self.uses(r)
        self.assertEqual(len({u for u, _ in uses.values()}), 1)
        self.assertGreater(uses["9", "auto"][1], uses["2", "auto"][1])

    def test_hits_and_bytes_are_reported(self):
        found = {}
        for slots in 2, 1000:
            found[slots] = self.uses(self.generate("--expert-slots", slots))
        self.assertEqual(found[2][0], found[1000][0])
        self.assertLess(found[2][1], found[2][0] / 2)
        self.assertLess(found[1000][0] - found[1000][1], LAYERS * EXPERTS + 1)
        self.assertNotIn("experts:", self.generate().stderr)
        self.assertNotIn("experts:", self.generate("--expert-slots", 3, "--quiet").stderr)

    def test_a_memory_limit_sets_the_slots(self):
        """Without a number of slots a cache has what fits, all experts at most."""
        want = self.generate("--expert-store", "memory").stdout
        r = self.generate("--expert-store", "cache")
        self.assertEqual(r.stdout, want)
        uses, hits = self.uses(r)
        self.assertLessEqual(uses - hits, LAYERS * EXPERTS + 1)

    def uses(self, r):
        line = re.search(r"experts: ([0-9.]+) % of (\d+) uses were in memory; [0-9.]+ .?B read \([0-9.]+ .?B of them for the "
                         r"prompt\)", r.stderr)
        self.assertIsNotNone(line, r.stderr)
        return int(line[2]), int(line[2]) * float(line[1]) / 100

    def test_contradictions_are_wrong_usage(self):
        self.assertIn("--expert-store cache",
                      self.generate("--expert-store", "memory", "--expert-slots", 3, status=USAGE).stderr)
        self.generate("--expert-slots", 0, status=USAGE)
        self.generate("--expert-store", "disc", status=USAGE)
        self.assertIn("--expert-store ring", self.generate("--ring", 3, status=USAGE).stderr)
        self.generate("--expert-store", "ring", "--ring", 1, status=USAGE)
        for store in "ring", "mmap":
            self.generate("--expert-store", store, "--expert-slots", 3, status=USAGE)

    def test_a_short_file_is_named(self):
        shard = sorted(pathlib.Path(self.model).glob("*.safetensors"))[-1]
        with open(shard, "r+b") as f:
            f.truncate(shard.stat().st_size - 100)
        for args in ("--expert-slots", 2), ("--expert-store", "ring"), ("--expert-store", "mmap"):
            self.assertIn(shard.name, self.generate(*args, status=BAD_INPUT).stderr)


if __name__ == "__main__":
    ek_cli.main()
