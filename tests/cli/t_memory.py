"""Predicted against measured peak memory, in fresh processes, for models of
100 to 300 MB."""

import json
import pathlib
import subprocess
import sys

import ek_cli
from ek_cli import DONE, run

BIG_MODEL = pathlib.Path(__file__).resolve().parent.parent / "big_model.py"


class Memory(ek_cli.Case):
    def check(self, dtype, *more, **changes):
        sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4,
                 "num_attention_heads": 4, "head_dim": 64, "num_local_experts": 8,
                 "max_position_embeddings": 512}
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        config = ek_cli.write_config(self.path("config.json"), **{**sizes, **changes})
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))
        r = run("train", "--model", config, "--data", data, "--out", self.path("run"), "--overwrite", "--batch",
                8, "--seq", 128, "--steps", 3, "--threads", 2, "--dtype", dtype, "--json",
                "--quiet", *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        s = json.loads(r.stdout)
        self.assertGreater(s["params"] * 16, 90e6)
        self.assertGreaterEqual(s["peak_rss_mb"], s["params"] * 16 / 1e6)
        ratio = s["predicted_rss_mb"] / s["peak_rss_mb"]
        self.assertTrue(0.95 <= ratio <= 1.05, "%s %s: predicted %.1f MB, measured %.1f" %
                        (dtype, more, s["predicted_rss_mb"], s["peak_rss_mb"]))

    def test_bf16(self):
        self.check("bf16")
        self.check("bf16", "--recompute", "full")

    def test_fp32(self):
        self.check("fp32", "--micro-batch", 3)

    def test_vocabulary(self):
        """Embeddings and head are most of the model."""
        self.check("bf16", vocab_size=8000, num_local_experts=4)

    def test_measuring_counts(self):
        """A run that needs less than what measuring costs at its start."""
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND) or ek_cli.mpiexec() is None:
            self.skipTest("two ranks, without sanitizers, which hold memory of their own")
        run = {}
        for balance in ("off", "exact"): # off measures nothing
            run[balance] = json.loads(self.train("small", "--ranks", 2, "--ep", 2, "--balance", balance,
                                                 "--recalibrate", "--overwrite", "--json", steps=2).stdout)
        self.assertGreater(run["exact"]["peak_rss_mb"], run["off"]["peak_rss_mb"] + 10)
        self.assertLessEqual(abs(run["exact"]["predicted_rss_mb"] / run["exact"]["peak_rss_mb"] - 1), 0.05)

    def test_generation_holds_one_form_of_each_weight(self):
        """Resident memory of `generate`: the bytes of the folder, what a small model takes, 5 %; with
        a cache of experts, those of its slots."""
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        shape = ["--layers", 4, "--hidden", 512, "--inner", 512, "--heads", 8, "--vocab", 4096]
        peak, folder, slots = {}, {}, 4 * 48 // 4
        for name, experts in (("small", 2), ("large", 48)):
            subprocess.run([sys.executable, BIG_MODEL, "--out", self.path(name), "--experts", str(experts),
                            "--top-k", "2", *map(str, shape)], check=True, stdout=subprocess.DEVNULL)
            folder[name] = sum(f.stat().st_size for f in pathlib.Path(self.path(name)).glob("*.safetensors"))
            peak[name] = self.peak_of_generation(name)
        peak["cache"] = self.peak_of_generation("large", "--expert-slots", slots)
        grown, weights = peak["large"] - peak["small"], folder["large"] - folder["small"]
        self.assertGreater(weights, 280e6)
        self.assertTrue(0.9 * weights <= grown <= 1.05 * weights, "%d bytes of experts took %d" % (weights, grown))
        saved, experts = peak["large"] - peak["cache"], weights / 46 * 48
        self.assertGreater(saved, 0.9 * experts * 3 / 4, "%d of %d bytes of experts saved" % (saved, experts))

    def peak_of_generation(self, name, *args):
        return self.peak_bytes("generate", "--model", self.path(name), "--tokenizer", "bytes", "--prompt", "x" * 100,
                               "--tokens", 3, "--dtype", "bf16", *args)


if __name__ == "__main__":
    ek_cli.main()
