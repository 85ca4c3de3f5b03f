"""evenkeel fit: what it predicts against what train and generate take, and what it says."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, run

BIG_MODEL = pathlib.Path(__file__).resolve().parent.parent / "big_model.py"
SHAPE = ["--layers", 4, "--hidden", 512, "--inner", 512, "--heads", 8, "--vocab", 4096, "--top-k", 2]


class Fit(ek_cli.Case):
    big = None

    def fit(self, model, *more):
        r = run("fit", "--model", model, "--json", *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def modes(self, report, kind, **want):
        found = [m for m in report["modes"] if m["mode"] == kind and all(m[k] == v for k, v in want.items())]
        self.assertTrue(found, (kind, want))
        return found

    @classmethod
    def big_model(cls):
        """60 experts in each of four layers, made once."""
        if cls.big is None:
            cls.big = tempfile.mkdtemp(prefix="ek_big_", dir="/var/tmp")
            cls.addClassCleanup(shutil.rmtree, cls.big, True)
            subprocess.run([sys.executable, BIG_MODEL, "--out", os.path.join(cls.big, "model"), "--experts", "60",
                            *map(str, SHAPE)], check=True, stdout=subprocess.DEVNULL)
        return os.path.join(cls.big, "model")

    def peak_mb(self, *args):
        return self.peak_bytes(*args) / 1e6

    def near(self, predicted, measured, bound=0.02):
        self.assertLess(abs(predicted / measured - 1), bound, "predicted %.1f MB, measured %.1f" %
                        (predicted, measured))

    def without_sanitizer(self):
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")

    def test_generation(self):
        self.without_sanitizer()
        model = self.big_model()  # up to 6 MB of buffers are counted that are not always full
        report = self.fit(model, "--context", 64, "--threads", 2)
        for dtype in ("bf16", "fp32"):
            took = self.peak_mb("generate", "--model", model, "--tokenizer", "bytes", "--prompt", "x" * 60,
                                "--tokens", 4, "--dtype", dtype, "--threads", 2)
            self.assertGreater(took, 250)
            self.near(self.modes(report, "inference", dtype=dtype)[0]["memory_mb"], took)

    def test_training(self):
        self.without_sanitizer()
        config = ek_cli.write_config(self.path("config.json"), hidden_size=256, intermediate_size=256,
                                     num_hidden_layers=4, num_attention_heads=4, head_dim=64,
                                     num_local_experts=12, max_position_embeddings=512)
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))
        report = self.fit(config, "--batch", 8, "--seq", 128, "--threads", 2)
        for dtype, recompute in (("bf16", "off"), ("bf16", "full"), ("fp32", "off")):
            took = self.peak_mb("train", "--model", config, "--data", data, "--out", self.path("run"),
                                "--overwrite", "--batch", 8, "--seq", 128, "--steps", 3, "--threads", 2,
                                "--dtype", dtype, "--recompute", recompute, "--quiet")
            self.near(self.modes(report, "training", dtype=dtype, recompute=recompute)[0]["memory_mb"], took)

    def test_ranks(self):
        """The same as --dry-run of that many ranks; --zero shards experts on disk, too."""
        report = self.fit("small", "--ranks", 3, "--batch", 6, "--threads", 1)
        for zero in range(4):
            r = run("train", "--model", "small", "--data", self.data, "--batch", 6, "--seq", 256, "--micro-batch", 6,
                    "--tokenizer", "bytes", "--out", self.path("run"), "--ranks", 3, "--threads", 1, "--dtype", "bf16",
                    "--zero", zero, "--dry-run", "--json")
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.near(self.modes(report, "training", dtype="bf16", recompute="off", zero=zero)[0]["memory_mb"],
                      json.loads(r.stdout)["memory"]["most_mb"], 0.01)
        sharded = [self.modes(report, "training-offload", dtype="bf16", recompute="off", zero=z)[0] for z in range(3)]
        self.near(sharded[0]["disk_mb"] / 3, sharded[1]["disk_mb"], 0.02)
        self.assertGreater(sharded[1]["memory_least_mb"], sharded[2]["memory_least_mb"])

    def test_experts_on_disk(self):
        """The same as --dry-run with the same limit: with the least memory, and with enough."""
        config = ek_cli.write_config(self.path("config.json"), hidden_size=256, intermediate_size=1024,
                                     num_hidden_layers=3, num_attention_heads=4, head_dim=64, num_local_experts=20)
        os.mkdir(self.path("disk"))
        shape = ["--batch", 8, "--micro-batch", 4, "--seq", 64, "--threads", 2]
        least = self.modes(self.fit(config, *shape), "training-offload", dtype="fp32", recompute="off")[0]
        self.assertGreater(least["memory_comfortable_mb"], least["memory_least_mb"])
        for limit, entries in ((least["memory_least_mb"] + 7, 3), (16e3, 12)):
            report = self.fit(config, *shape, "--memory-limit", int(limit * 1e6), "--offload-dir", self.path("disk"))
            mode = self.modes(report, "training-offload", dtype="fp32", recompute="off")[0]
            r = run("train", "--model", config, "--data", self.data, *shape, "--tokenizer", "bytes", "--dtype", "fp32",
                    "--out", self.path("run"), "--offload", "experts", "--memory-limit", int(limit * 1e6), "--dry-run",
                    "--json")
            self.assertEqual(r.returncode, DONE, r.stderr)
            plan = json.loads(r.stdout)
            self.assertEqual((mode["fits"], mode["entries"], mode["buckets"]), (True, entries, 12))
            self.near(mode["memory_mb"], plan["memory"]["most_mb"], 0.03)
            self.assertEqual(plan["offload"]["entries"], entries)
            self.assertEqual([mode[k] for k in ("disk_mb", "read_mb", "written_mb", "tokens_of_expert")],
                             [plan["offload"][k] for k in ("scratch_most_mb", "read_mb", "written_mb", "tokens_of_expert")])
            self.assertEqual(os.listdir(self.path("disk")), [])
            self.assertGreater(min(report["scratch_%s_gbs" % x] for x in ("read", "write", "both")), 0)
            self.assertGreater(mode["tokens_to_hide"], 0)
            self.assertGreater(mode["tokens_per_s"], 0)
        small = self.fit(config, *shape, "--memory-limit", int(least["memory_least_mb"] * 0.9e6))
        self.assertFalse(self.modes(small, "training-offload", dtype="fp32", recompute="off")[0]["fits"])
        text = run("fit", "--model", config, *shape, "--memory-limit", "16G", "--offload-dir", self.path("disk")).stdout
        self.assertRegex(text, r"\nfp32 .*B to .*B  fits --recompute full: .*B on disk; 12 of 12 buckets in memory: a step "
                               r"reads 0 B, writes .*B, at most [\d.]+( [kM])? tokens/s; hidden with [\d.]+( [kMG])? tokens for an expert\n")
        self.assertIn("measured    a scratch file in " + self.path("disk"), text)
        self.assertNotEqual(run("fit", "--model", config, "--offload-dir", self.path("none")).returncode, DONE)

    def test_counts(self):
        report = self.fit(ek_cli.write_config(self.path("c.json")))
        self.assertEqual(report["params_of"], {
            "experts": 2 * 4 * 3 * 16 * 24, "shared": 0, "attention": 2 * (2 * 16 * 16 + 2 * 8 * 16),
            "embedding": 300 * 16, "head": 300 * 16, "other": 2 * (2 * 16 + 4 * 16) + 16})
        self.assertEqual(report["params"], sum(report["params_of"].values()))
        self.assertEqual(report["context"], 64)
        for mode in self.modes(report, "inference"):
            self.assertGreater(mode["tokens_per_s"], 0)
            self.assertEqual(mode["kv_bytes_per_token"], 2 * 2 * 8 * (4 if mode["dtype"] == "fp32" else 2))
            self.assertTrue(mode["fits"])
            # a prompt multiplies the output matrix for its last token alone
            flops = 2 * (report["active_params"] - report["params_of"]["head"])
            rate = max(report["fp32_gflops"], report[mode["dtype"] + "_gflops"])  # bf16 products may convert to fp32
            self.assertAlmostEqual(mode["prefill_tokens_per_s"] * flops / (rate * 1e9), 1, places=9)
            self.assertEqual((mode["missed_bytes_per_token"], mode["expert_slots"]), (0, 8))

    def test_a_limit(self):
        model = self.big_model()
        whole = self.modes(self.fit(model, "--context", 8), "inference", dtype="bf16")[0]
        limit = int(whole["memory_mb"] * 0.8e6)
        report = self.fit(model, "--context", 8, "--memory-limit", limit)
        part = self.modes(report, "inference", dtype="bf16")[0]
        self.assertEqual((report["limit_mb"], report["limit_source"]), (limit / 1e6, "--memory-limit"))
        self.assertEqual((whole["fits"], part["fits"], whole["disk_mb"]), (True, False, 0))
        self.assertAlmostEqual(part["disk_mb"], part["memory_mb"] - limit / 1e6, places=3)
        self.assertLess(part["expert_slots"], 240)
        self.assertGreater(part["expert_slots"], 8)
        self.assertGreater(report["disk_read_gbs"], 0)
        self.assertLess(part["disk_tokens_per_s"], part["tokens_per_s"])
        share = 1 - part["expert_slots"] / 240
        self.assertAlmostEqual(part["missed_bytes_per_token"] / (4 * 2 * 3 * 512 * 512 * 2), share, delta=1e-6)
        text = run("fit", "--model", model, "--context", 8, "--memory-limit", limit).stdout
        slots = int(re.search(r"with (\d+) of 240 experts in memory it fits", text).group(1))
        self.assertLess(abs(slots - part["expert_slots"]), 3)
        r = run("generate", "--model", model, "--tokenizer", "bytes", "--prompt", "xyz", "--tokens", 5, "--dtype", "bf16",
                "--memory-limit", limit)
        self.assertEqual(r.returncode, DONE, r.stderr)

    def test_weights_are_not_read(self):
        """A model that is much larger than memory, of which there is only a config."""
        subprocess.run([sys.executable, BIG_MODEL, "--out", self.path("tiny"), "--layers", "1", "--hidden", "64",
                        "--inner", "64", "--heads", "2", "--experts", "2", "--top-k", "1", "--vocab", "512"],
                       check=True, stdout=subprocess.DEVNULL)
        config = json.loads(ek_cli.read(self.path("tiny", "config.json")))
        config.update(hidden_size=8240, intermediate_size=16384, num_experts=128, num_hidden_layers=32)
        report = self.fit(ek_cli.write(self.path("huge.json"), json.dumps(config)))
        self.assertGreater(report["params"], 1e12)
        self.assertFalse(any(m["fits"] for m in report["modes"]))

    def test_refused(self):
        self.assertEqual(run("fit").returncode, USAGE)
        self.assertEqual(run("fit", "--model", self.path("none")).returncode, BAD_INPUT)
        self.assertEqual(run("fit", "--model", "tiny", "--memory-limit", "much").returncode, USAGE)
        self.assertFalse(os.path.exists("run"))


if __name__ == "__main__":
    ek_cli.main()
