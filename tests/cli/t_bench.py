"""evenkeel bench: each benchmark runs on a tiny model and prints what is documented, with finite
numbers.  No speed is asserted."""

import json
import math
import re

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, run

NAMES = ["gemm", "kernels", "step", "generate"]
COMMON = {"bench", "model", "dtype", "device", "kernels", "threads", "library", "ceilings"}
CEILINGS = {"onednn_bf16_gflops", "onednn_fp32_gflops", "copy_gbs", "read_gbs"}
SIZES = {"start_s", "steps", "batch", "seq", "micro_batch", "model_gflop_per_step", "step_ms",
         "expert_max_over_mean"}

# Sizes of short measurements.
BATCH = ("--batch", 2, "--seq", 16)
SHORT = {"gemm": (*BATCH, "--repeats", 1), "kernels": (*BATCH, "--steps", 1),
         "step": (*BATCH, "--steps", 1),
         "generate": ("--prompt", 4, "--tokens", 8, "--repeats", 1)}


class Bench(ek_cli.Case):
    def bench(self, name, *more, config=None):
        r = run("bench", name, "--model", config or self.config, "--threads", 1, "--seconds", 0.001,
                *SHORT[name], *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(r.stderr, "")
        return r.stdout

    def bench_json(self, name, *more, config=None):
        out = json.loads(self.bench(name, "--json", *more, config=config))
        self.assertFalse(COMMON - set(out), "missing keys")
        self.assertEqual((out["bench"], out["threads"]), (name, 1))
        self.assertEqual(set(out["ceilings"]), CEILINGS)
        for ceiling in out["ceilings"].values():
            self.check_stat(ceiling, at_least=2)  # before and after
        return out

    def check_positive(self, x):
        self.assertTrue(math.isfinite(x) and x > 0, x)

    def check_stat(self, s, at_least=1):
        self.assertEqual(set(s), {"median", "min", "max", "n"})
        self.check_positive(s["min"])
        self.assertLessEqual(s["min"], s["median"])
        self.assertLessEqual(s["median"], s["max"])
        self.assertTrue(math.isfinite(s["max"]))
        self.assertGreaterEqual(s["n"], at_least)

    def check_ratio(self, part, figure, ceiling):
        """A ratio is the quotient of medians."""
        self.check_positive(part)
        self.assertLess(abs(part * ceiling["median"] / figure["median"] - 1), 1e-3)


class Gemm(Bench):
    def test_every_product(self):
        out = self.bench_json("gemm")
        c = out["ceilings"]
        for p in out["products"]:
            self.check_stat(p["gflops"])
            self.check_positive(p["ratio"])
            self.check_ratio(p["ratio_onednn_bf16"], p["gflops"], c["onednn_bf16_gflops"])
            self.check_ratio(p["ratio_onednn_fp32"], p["gflops"], c["onednn_fp32_gflops"])
        kinds = [(p["product"], p["direction"], p["split"]) for p in out["products"]]
        self.assertEqual(len(kinds), len(set(kinds)))
        # 3 products of all rows, 2 of experts evenly and skewed, 3 directions
        self.assertEqual(len(kinds), (3 + 2 * 2) * 3)
        up = [p for p in out["products"] if p["product"] == "expert up"]
        self.assertEqual({(p["groups"], p["rows"], p["out"], p["in"]) for p in up},
                         {(4, 2 * 32, 48, 16)})
        self.assertEqual([(p["product"], p["rows"]) for p in out["skinny"]][:4],
                         [("query, key, value", n) for n in (1, 2, 4, 8)])
        for p in out["skinny"]:
            self.check_stat(p["gbs"])
            self.check_ratio(p["ratio"], p["gbs"], c["copy_gbs"])

    def test_shared_expert(self):
        config = ek_cli.write_config(
            self.path("qwen.json"), architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe",
            num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=40,
            norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[])
        out = self.bench_json("gemm", "--dtype", "fp32", config=config)
        self.assertEqual(out["dtype"], "fp32")
        shared = {(p["product"], p["out"], p["in"]) for p in out["products"]
                  if p["product"].startswith("shared")}
        self.assertEqual(shared, {("shared expert up", 80, 16), ("shared expert down", 16, 40)})


class Steps(Bench):
    def test_step(self):
        for dtype in "bf16", "fp32":
            out = self.bench_json("step", "--steps", 2, "--dtype", dtype)
            self.assertFalse(SIZES - set(out), "missing keys")
            self.assertEqual((out["steps"], out["batch"], out["seq"]), (2, 2, 16))
            c = out["ceilings"]
            self.assertEqual(c["copy_gbs"]["n"], 3)
            for key in "tokens_per_s", "model_gflops", "step_ms":
                self.check_stat(out[key], at_least=2)
            both = out["ratio_onednn_bf16"], out["ratio_onednn_fp32"]
            self.check_ratio(both[0], out["model_gflops"], c["onednn_bf16_gflops"])
            self.check_ratio(both[1], out["model_gflops"], c["onednn_fp32_gflops"])
            # bf16 work is held against the larger ceiling, fp32 work against that of fp32
            want = min(both) if dtype == "bf16" else both[1]
            self.assertLess(abs(out["ratio"] / want - 1), 1e-3)
            # of two steps medians are means, so the shares add up
            self.assertLess(abs(sum(g["share"] for g in out["groups"]) - 1), 1e-3)
            self.assertNotIn("other", [g["name"] for g in out["groups"]])

    def test_kernels(self):
        out = self.bench_json("kernels", "--micro-batch", 1, "--steps", 2)
        self.assertFalse(SIZES - set(out), "missing keys")
        ops = {(p["name"], p["recompute"]): p for p in out["ops"]}
        self.assertEqual(len(ops), len(out["ops"]))
        for p in ops.values():
            self.check_stat(p["ms"])
            self.check_positive(p["ratio"])
            self.check_positive(p["gbs"])
            self.assertIn(p["bound"], ("matrix", "copy"))
        for name in "qkv", "attention", "attention backward", "expert up", "adamw", "norm":
            self.assertIn((name, False), ops)
        self.assertEqual(ops["attention", False]["calls"], 2 * 2)  # layers, micro-batches
        self.assertEqual(ops["gradient norm", False]["calls"], 1)
        self.check_positive(ops["attention", False]["gflops"])
        self.assertEqual(ops["norm", False]["gflops"], 0)
        # recomputed work is shown but not counted
        again = self.bench_json("kernels", "--micro-batch", 1, "--recompute", "full")
        self.assertEqual(out["model_gflop_per_step"], again["model_gflop_per_step"])
        self.assertIn(("qkv", True), {(p["name"], p["recompute"]) for p in again["ops"]})
        self.assertNotIn(("qkv", True), ops)


class Generate(Bench):
    def test_generate(self):
        out = self.bench_json("generate", "--repeats", 2)
        self.assertEqual((out["prompt"], out["tokens"], out["repeats"]), (4, 8, 2))
        self.check_stat(out["tokens_per_s"], at_least=2)
        self.check_stat(out["gbs"], at_least=2)
        self.check_ratio(out["ratio"], out["gbs"], out["ceilings"]["copy_gbs"])
        self.check_ratio(out["active_mb_per_token"] / 1e3, out["gbs"], out["tokens_per_s"])


class Command(Bench):
    def test_text(self):
        for name in NAMES:
            text = self.bench(name)
            for word in "oneDNN bf16 products", "oneDNN fp32 products", "copy", "min", "max":
                self.assertIn(word, text)
            figures = re.findall(r"([\d.]+) [numkMGT]?(?:s|B|B/s|FLOP|FLOP/s)(?![\w/])", text)
            self.assertGreater(len(figures), 12)
            for figure in figures:  # however small or large
                self.assertRegex(figure, r"^(0|\d\.\d\d|\d\d\.\d|\d\d\d)$", text)

    def test_usage(self):
        for args in ([], ["flops"], ["step", "gemm"], ["step", "--steps", 0],
                     ["step", "--threads", "two"], ["step", "--dtype", "fp64"],
                     ["gemm", "--repeats", 1001], ["gemm", "--seconds", 0], ["gemm", "--no"]):
            r = run("bench", *args)
            self.assertEqual((r.returncode, r.stdout), (USAGE, ""), args)
            self.assertTrue(r.stderr.startswith("evenkeel bench: "), r.stderr)

    def test_options_of_other_benchmarks(self):
        """They are refused, with the benchmarks that have them, from the command line and a file."""
        config = ek_cli.write(self.path("options.json"), '{"past": 3}')
        for args, text in (
                (("gemm", "--past", 3), "`bench gemm` has no option `--past`, which is an option of bench "
                 "balance (see `evenkeel bench gemm --help`)"),
                (("--steps", 5, "a2a"), "`bench a2a` has no option `--steps`, which is an option of bench "
                 "kernels, step, moe and balance (see `evenkeel bench a2a --help`)"),
                (("disk", "--ranks", 2), "`--ranks`, which is an option of bench moe, balance, a2a, "
                 "collectives and costs ("),
                (("moe", "--device", "cpu"), "`--device`, which is an option of bench kernels, step and "
                 "generate ("),
                (("gemm", "--config", config), config + ": `bench gemm` has no option `past`, which")):
            r = run("bench", *args)
            self.assertEqual((r.returncode, r.stdout), (USAGE, ""), args)
            self.assertIn(text, r.stderr)

    def test_too_many_positions(self):
        r = run("bench", "generate", "--model", self.config, "--prompt", 60, "--tokens", 60)
        self.assertEqual(r.returncode, USAGE)
        self.assertIn("max_position_embeddings", r.stderr)

    def test_bad_model(self):
        r = run("bench", "step", "--model", self.path("none"))
        self.assertEqual((r.returncode, r.stdout), (BAD_INPUT, ""))

    def test_help(self):
        r = run("bench", "--help")
        self.assertEqual(r.returncode, DONE)
        for name in NAMES:
            self.assertIn(name, r.stdout)

    def test_help_of_one_benchmark(self):
        """Every option is of some benchmark, and says in the common help of which."""
        common = self.options_of(run("bench", "--help").stdout)
        names = re.match(r"usage: evenkeel bench (\S+) ", run("bench", "--help").stdout)[1].split("|")
        having = {option: [] for option in common}
        for name in names:
            r = run("bench", name, "--help")
            self.assertEqual(r.returncode, DONE)
            self.assertTrue(r.stdout.startswith("usage: evenkeel bench %s [options]\n" % name))
            for option in self.options_of(r.stdout):
                having[option].append(name)
        for option, text in common.items():
            if having[option] != names:
                self.assertIn(" %s: " % ", ".join(having[option]), text)
        self.assertEqual(having["--file-size"], ["disk"])
        self.assertEqual(having["--ep"], ["moe", "balance"])
        self.assertEqual(having["--ranks"], ["moe", "balance", "a2a", "collectives", "costs"])

    @staticmethod
    def options_of(text):
        """Options of a help text, with their descriptions."""
        parts = re.split(r"^  (--[a-z0-9-]+)", text.split("\n\nbenchmarks")[0], flags=re.M)[1:]
        return {name: " " + " ".join(said.split()) for name, said in zip(parts[::2], parts[1::2])}


if __name__ == "__main__":
    ek_cli.main()
