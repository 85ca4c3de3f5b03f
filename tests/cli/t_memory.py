"""Predicted against measured peak memory, in fresh processes, for a model whose weights,
gradients and moments are about 100 MB."""

import json

import ek_cli
from ek_cli import DONE, run


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


if __name__ == "__main__":
    ek_cli.main()
