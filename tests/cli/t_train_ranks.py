"""Training on several ranks from the command line: losses, what each rank stores and sends, and
predicted memory."""

import json
import os
import re
import shutil
import subprocess

import ek_cli
from ek_cli import DONE, USAGE, mpiexec, run

QUIET = ("--quiet", "--threads", 1)


class Ranks(ek_cli.Case):
    def setUp(self):
        super().setUp()
        if mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")

    def train(self, name, *more, **sizes):
        config = ek_cli.write_config(self.path("config.json"), **sizes)
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))
        out = self.path(name)
        r = run("train", "--model", config, "--data", data, "--out", out, "--overwrite",
                "--json", *QUIET, *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            return json.loads(r.stdout), [json.loads(line) for line in f]

    def refused(self, *more):
        """The message for wrong options."""
        config = ek_cli.write_config(self.path("config.json"))
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))
        r = run("train", "--model", config, "--data", data, "--out", self.path("none"), *QUIET,
                *more)
        self.assertEqual((r.returncode, r.stdout), (USAGE, ""), r.stderr)
        return r.stderr

    def test_shares_and_losses(self):
        steps = ("--batch", 5, "--seq", 32, "--micro-batch", 2, "--steps", 4, "--dtype", "fp64")
        alone, want = self.train("one", *steps)
        layout = ("--tp", 2, "--ep", 2, "--etp", 2, "--zero", 3, "--pipeline-degree", 2)
        _, got = self.train("four", *steps, "--ranks", 4, *layout)
        self.assertEqual(len(got), len(want))
        self.assert_same_steps(got, want)
        for a, b in zip(want, got):
            self.assertEqual((a["ranks"], a["comm_bytes"]), (1, 0))
            self.assertEqual((b["ranks"], len(b["peak_rss_mb"])), (4, 4))
            # with ZeRO 3 every parameter lies on one rank alone
            self.assertEqual(sum(b["params_held"]), alone["params"])
            self.assertLess(max(b["params_held"]), 0.5 * alone["params"])
            # attention, embedding and head alone gather and scatter every token's row often
            self.assertGreater(b["comm_bytes"], 5 * 32 * 16 * 8 * 10)
            self.assertGreaterEqual(b["rank_max_over_mean"], 1)

    def test_layers_of_pipeline_stages(self):
        steps = ("--batch", 4, "--micro-batch", 1, "--seq", 32, "--steps", 3, "--dtype", "fp64")
        sizes = {"num_hidden_layers": 5, "vocab_size": 2000}
        _, want = self.train("one", *steps, **sizes)
        held = {}
        for layers in ("even", "4,1", "auto"):
            _, got = self.train("two", *steps, "--ranks", 2, "--pp", 2, "--pp-layers", layers, **sizes)
            self.assert_same_steps(got, want)
            held[layers] = got[0]["params_held"]
        self.assertLess(held["even"][0], held["4,1"][0])
        self.assertEqual(held["auto"], held["4,1"])  # the head costs more than three layers
        # measured: whatever else the machine does decides it, and each start anew
        for chunks in (1, 2):
            s, got = self.train("two", *steps, "--ranks", 2, "--pp", 2, "--pp-layers", "measured", "--pp-chunks", chunks,
                                **sizes)
            self.assert_same_steps(got, want)
            layers = list(map(int, s["pp_layers"].split(",")))
            self.assertEqual((len(layers), sum(layers)), (2 * chunks, 5))
        r = run("train", "--out", self.path("two"), "--resume", "--steps", 4)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertRegex(r.stderr, r"--pp-layers measured: \d,\d,\d,\d layers of virtual stages; matrix products on the "
                         r"slowest ranks of the stages: [\d.]+ [kMGT]?FLOP/s, [\d.]+ [kMGT]?FLOP/s")
        # another layout does not take the list over, and --resume keeps it
        r = run("train", "--out", self.path("two"), "--resume", "--steps", 4, "--ranks", 1)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.train("two", *steps, "--ranks", 2, "--pp", 2, "--pp-layers", "4,1", **sizes)
        r = run("train", "--out", self.path("two"), "--resume", "--steps", 4, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(ek_cli.metrics(self.path("two"))[3]["params_held"], held["4,1"])

    def test_layers_of_pipeline_stages_that_do_not_fit(self):
        for layers, message in (
                ("2,1", "has 3 layers, and the model has 2"),
                ("1,1,1", "is of 3 stages, and --pp 2 with --pp-chunks 1 has 2"),
                ("2,0", "is neither even, nor auto, nor measured, nor a list of layers"),
                ("2,", "is neither even"), ("1;1", "is neither even")):
            with self.subTest(layers):
                err = self.refused("--seq", 32, "--ranks", 2, "--pp", 2, "--pp-layers", layers)
                self.assertTrue(err.startswith("evenkeel train: --pp-layers %s " % layers), err)
                self.assertIn(message, err)
                self.assertEqual(err.count("\n"), 1)

    def test_shares_of_a_batch(self):
        steps = ("--batch", 8, "--micro-batch", 4, "--seq", 32, "--steps", 3, "--dtype", "fp64")
        _, want = self.train("one", *steps)
        for shares in ("3,1", "0.001,1", "measured"):
            _, got = self.train("two", *steps, "--ranks", 2, "--ep", 2, "--batch-shares", shares)
            self.assert_same_steps(got, want)
        self.train("two", *steps, "--ranks", 2, "--batch-shares", "3,1")
        r = run("train", "--out", self.path("two"), "--resume", "--steps", 4, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn('"batch-shares": "3,1"', ek_cli.read(self.path("two", "run.json")).decode())
        # another layout does not take the list over
        r = run("train", "--out", self.path("two"), "--resume", "--steps", 5, "--ranks", 1)
        self.assertEqual(r.returncode, DONE, r.stderr)
        # what is left of --ep after losses need not be two ranks
        r = run("train", "--model", self.config, "--data", self.data, *steps, "--out", self.path("left"), "--ranks", 1,
                "--ep", 2, "--elastic", "--batch-shares", "measured", "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)

    def test_shares_of_a_batch_that_do_not_fit(self):
        for shares, more, message in (
                ("1,1,1", (), "one for each of the 2 data-parallel ranks"), ("1", (), "one for each of the 2"),
                ("1,0", (), "is neither even, nor measured, nor a list"), ("1,nan", (), "is neither even"),
                ("1;1", (), "is neither even"), ("1,1001", (), "is neither even"),
                ("measured", (), "give --ep of at least 2"),
                ("measured", ("--ep", 2, "--rank-speeds", "equal"), "give --ep of at least 2"),
                ("2,1", ("--elastic",), "changes with --elastic")):
            with self.subTest(shares + " ".join(map(str, more))):
                err = self.refused("--seq", 32, "--ranks", 2, "--batch-shares", shares, *more)
                self.assertTrue(err.startswith("evenkeel train: --batch-shares %s " % shares), err)
                self.assertIn(message, err)
                self.assertEqual(err.count("\n"), 1)

    def test_rerouting(self):
        steps = ("--batch", 4, "--seq", 32, "--steps", 3, "--dtype", "fp64")
        _, off = self.train("off", *steps)
        _, one = self.train("one", *steps, "--reroute", "swipe")
        _, two = self.train("two", *steps, "--reroute", "swipe", "--ranks", 2, "--ep", 2)
        self.assertGreater(off[2]["expert_max_over_mean"], one[2]["expert_max_over_mean"])
        self.assertLessEqual(one[2]["expert_max_over_mean"], 1.0001)
        for a, b, c in zip(off, one, two):
            self.assertLess(abs(c["loss"] / b["loss"] - 1), 1e-9)
            self.assertNotEqual(a["loss"], b["loss"])
        # one node, so nothing leaves it
        _, near = self.train("near", *steps, "--reroute", "topology", "--reroute-limit", 0,
                             "--ranks", 2, "--ep", 2)
        for a, b in zip(off, near):
            self.assertLess(abs(b["loss"] / a["loss"] - 1), 1e-9)

    def test_rerouting_is_not_silent(self):
        config = ek_cli.write_config(self.path("config.json"))
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))
        args = ("train", "--model", config, "--data", data, "--batch", 2, "--seq", 32, "--steps",
                1, "--out", self.path("out"), "--overwrite")
        r = run(*args, "--reroute", "topology")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertRegex(r.stderr, "warning: --reroute topology changes the model.*losses depend")
        r = run(*args, "--reroute", "swipe", "--force-balance")
        self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
        self.assertRegex(r.stderr, "--reroute and --force-balance exclude each other")

    def test_tuning(self):
        config = ek_cli.write_config(self.path("config.json"))
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(20000))

        def ways(*more):
            r = run("train", "--model", config, "--data", data, "--batch", 4, "--seq", 16, "--out",
                    self.path("out"), "--overwrite", *more)
            self.assertEqual(r.returncode, DONE, r.stderr)
            with open(self.path("out/metrics.jsonl"), encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            return r.stderr, {(m["pipeline_degree"], m["a2a"]) for m in lines}

        two = ("--ranks", 2, "--ep", 2)
        said, tried = ways(*two, "--steps", 60)
        self.assertEqual(tried, {(d, "linear") for d in (1, 2, 4, 8)})
        self.assertRegex(said, r"(?m)^info: pipeline degree [1248], all-to-all linear: [0-9.]+ [mu]?s a step")
        said, tried = ways(*two, "--steps", 6, "--pipeline-degree", 2)
        self.assertEqual((tried, "info:" in said), ({(2, "linear")}, False))
        _, tried = ways(*two, "--steps", 6, "--a2a", "pairwise")
        self.assertEqual(tried, {(d, "pairwise") for d in (1, 2, 4, 8)})
        _, tried = ways(*two, "--steps", 6, "--smart-groups", 1)
        self.assertEqual(tried, {(1, "linear")})
        for nothing in (), ("--ranks", 2):
            self.assertEqual(ways("--steps", 2, *nothing)[1], {(1, "none")})

    def test_adaptive_r(self):
        steps = ("--batch", 4, "--seq", 32, "--steps", 3, "--dtype", "fp64", "--balance", "off")
        ranks = ("--ranks", 4, "--ep", 2, "--etp", 2, "--pipeline-degree", 1, "--a2a", "linear")
        _, want = self.train("one", *steps)
        brought = []
        for r, number in (("etp", 2), ("1", 1), ("0", 0)):
            _, got = self.train("r" + r, *steps, *ranks, "--adaptive-r", r)
            self.assertEqual({m["adaptive_r"] for m in got}, {number})
            for a, b in zip(want, got):
                self.assertLess(abs(b["loss"] / a["loss"] - 1), 1e-9)
            brought.append(got[0]["replica_mb"])
        self.assertEqual(brought[0], 0)
        self.assertTrue(0 < brought[1] < brought[2], brought)
        _, got = self.train("auto", *steps[:4], *steps[6:], "--steps", 8, *ranks, "--adaptive-r",
                            "auto")
        self.assertEqual({m["adaptive_r"] for m in got}, {0, 1, 2})
        for r in "3", "-1", "one", "2.0":
            said = self.refused(*steps, *ranks, "--adaptive-r", r)
            self.assertRegex(said, r"--adaptive-r %s is not 0, a divisor of --etp 2, etp or auto" % r)
        said = self.refused(*steps[:-2], *ranks, "--adaptive-r", "0", "--record-plans")
        self.assertRegex(said, "--record-plans: there are no plans with .* --adaptive-r 0")
        said = self.refused(*steps, "--ranks", 4, "--ep", 2, "--etp", 2, "--adaptive-r", "auto",
                            "--smart-groups", 1)
        self.assertRegex(said, "--smart-groups 1: its steps are not tuned, so --adaptive-r cannot")
        # with persistent replicas, which have state in spare slots
        moves = (*steps[:4], "--steps", 6, *steps[6:-2], "--plan-every", 2, *ranks)
        _, want = self.train("one", *moves[:8])
        for r, numbers in ("1", {1}), ("auto", {1, 2}):
            _, got = self.train("moves", *moves, "--adaptive-r", r, "--balance", "replicate")
            self.assertEqual({m["adaptive_r"] for m in got}, numbers)
            self.assertGreater(sum(m["experts_moved"] for m in got), 0)
            for a, b in zip(want, got):
                self.assertLess(abs(b["loss"] / a["loss"] - 1), 1e-9)

    def test_stages_hold_their_layers(self):
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 1, "--steps", 2, "--dtype", "fp64")
        alone, want = self.train("one", *steps)
        _, got = self.train("two", *steps, "--ranks", 2, "--pp", 2)
        self.assertEqual(sum(got[0]["params_held"]), alone["params"])
        # the residual stream of each micro-batch forward and its gradient back, and small sums
        stream = 2 * 4 * 32 * 16 * 8
        self.assertTrue(stream < got[0]["comm_bytes"] < 1.5 * stream, got[0]["comm_bytes"])
        self.assertLess(abs(got[1]["loss"] / want[1]["loss"] - 1), 1e-9)

    def test_embedding_in_columns(self):
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 2, "--steps", 3, "--dtype", "fp64")
        alone, want = self.train("one", *steps)
        _, whole = self.train("whole", *steps, "--ranks", 3)
        _, got = self.train("columns", *steps, "--ranks", 3, "--embed-columns")
        for a, b in zip(want, got):
            self.assertLess(abs(b["loss"] / a["loss"] - 1), 1e-9)
        self.assertEqual(whole[0]["params_held"], [alone["params"]] * 3)
        # 16 columns are 6, 5 and 5 of them
        missing = [alone["params"] - n for n in got[0]["params_held"]]
        rows = missing[0] // 10
        self.assertGreater(rows, 200)
        self.assertEqual(missing, [10 * rows, 11 * rows, 11 * rows])
        config = ek_cli.write_config(self.path("tied.json"), tie_word_embeddings=True)
        r = ek_cli.run("train", "--model", config, "--data", self.data, "--out",
                       self.path("refused"), "--seq", 32, "--ranks", 2, "--embed-columns")
        self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
        self.assertRegex(r.stderr, "--embed-columns: this model's embedding is its head as well")

    def trace(self, name, *more, ranks=2):
        """The path of made-up loads of four experts."""
        path = self.path("trace.npy")
        r = run("workload", "--name", name, "--ranks", ranks, "--experts", 4, *more, "--out", path)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return path

    def assert_same_steps(self, got, want, *of):
        self.assertEqual(len(got), len(want))
        for a, b in zip(want, got):
            for key in "loss", "aux_loss", "grad_norm":
                self.assertLess(abs(b[key] / a[key] - 1), 1e-9, (*of, key))

    def test_replayed_loads(self):
        trace = self.trace("W6", "--iterations", 8, "--tokens", 50, ranks=3)
        steps = ("--batch", 5, "--seq", 32, "--micro-batch", 2, "--steps", 6, "--dtype", "fp64",
                 "--replay-routing", trace)
        _, want = self.train("one", *steps)
        _, got = self.train("three", *steps, "--ranks", 3, "--ep", 3, "--pipeline-degree", 2)
        self.assert_same_steps(got, want)
        hot = [m["rank_max_over_mean_before"] for m in got]
        self.assertLess(max(hot[:4]), 1.6)  # 4 experts on 3 ranks
        self.assertGreater(min(hot[4:]), 1.6)

    def test_balance(self):
        """Policies change the placement, not the results; their statistics are reported."""
        trace = self.trace("W2", "--iterations", 4, "--tokens", 50)
        steps = ("--batch", 4, "--seq", 32, "--steps", 6, "--dtype", "fp64", "--ranks", 2, "--ep", 2,
                 "--replay-routing", trace)
        _, want = self.train("off", *steps, "--balance", "off")
        self.assertEqual({m["replicas"] + m["plans"] for m in want}, {0})
        self.assertEqual({m["rb"] for m in want}, {1})
        for policy in "exact", "eplb", "prophet", "auto":
            summary, got = self.train(policy, *steps, "--balance", policy, "--plan-every", 2)
            self.assert_same_steps(got, want, policy)
            self.assertEqual([m["rank_max_over_mean_before"] for m in got],
                             [m["rank_max_over_mean"] for m in want])
            told = summary["balance"]
            self.assertEqual(told["policy"], policy)
            self.assertGreater(told["rank_max_over_mean_before"], 1.3)
            ahead = [m["replicas_ahead"] for m in got]
            if policy == "prophet":  # from the first counts on
                self.assertEqual(ahead, [m["replicas"] for m in got])
                self.assertGreater(told["replicas_ahead"], 0)
            elif policy != "auto":
                self.assertEqual(sum(ahead), 0)
            # of two ranks the deviation is what the busiest one has more than the mean
            for m in got + [told]:
                for key in "rank_%s", "rank_%s_before":
                    self.assertAlmostEqual(m[key % "deviation"], m[key % "max_over_mean"] - 1,
                                           delta=1e-5)
                self.assertTrue(m["rb"] is None if m["rank_deviation"] == 0 else abs(
                    m["rb"] * m["rank_deviation"] / m["rank_deviation_before"] - 1) < 2e-5, m)
            if policy not in ("auto", "prophet"):  # which may find that nothing pays
                self.assertTrue(told["rb"] is None or told["rb"] > 2, told)
                self.assertLess(told["rank_max_over_mean"], 1.15)
                self.assertEqual(told["slowest_rank"], 1)  # too little work to tell
                self.assertGreater(told["replicas"], 0)
                self.assertGreater(told["replica_mb"], 0)
        self.assertEqual(got[-1]["rank_max_over_mean_before"], want[-1]["rank_max_over_mean"])
        self.assertGreater(sum(m["experts_moved"] for m in ek_cli.metrics(self.path("eplb"))), 0)

    def test_sharded_experts_move(self):
        """Two ranks hold each expert and shard its state; a resumed run places them anew."""
        trace = self.trace("W2", "--layers", 2, "--tokens", 64)
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 2, "--steps", 6, "--dtype", "fp64",
                 "--replay-routing", trace)
        _, want = self.train("off", *steps, "--balance", "off")

        def check(name):
            got = ek_cli.metrics(self.path(name))
            self.assert_same_steps(got, want, name)
            return got

        for zero, policy in ek_cli.some(((1, "place"), (2, "replicate"), (3, "eplb")), 2):
            summary, _ = self.train(policy, *steps, "--ranks", 4, "--ep", 2, "--zero", zero, "--balance", policy,
                                    "--plan-every", 2, "--save-every", 3, "--keep", 2)
            self.assertEqual(summary["balance"]["policy"], policy)
            moved = [m["experts_moved"] for m in check(policy)]
            self.assertEqual(moved[0], 0)  # before there are loads to go by
            self.assertGreater(sum(moved[1:]), 0, policy)
            shutil.rmtree(self.path(policy, "checkpoint", "step-00000006"))
            r = run("train", "--data", self.path("data.bin"), "--out", self.path(policy), "--resume", *QUIET)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertGreater(sum(m["experts_moved"] for m in check(policy)[3:]), 0, policy)

    def check_layers(self, step, layers):
        """Figures of a step are those of the worst layer, or sums over layers."""
        of = step["layers"]
        self.assertEqual(set(of), {"rank_max_over_mean", "rank_max_over_mean_before",
                                   "rank_deviation", "rank_deviation_before", "experts_moved", "replicas", "replicas_ahead", "replica_mb"})
        for name, values in of.items():
            self.assertEqual(len(values), layers, name)
            together = max(values) if "_mean" in name or "_deviation" in name else sum(values)
            self.assertAlmostEqual(together, step[name], delta=2e-3, msg=name)

    def test_balance_of_layers(self):
        """Every layer with experts, of all stages; the others are not in the lists."""
        trace = self.trace("W7", "--layers", 3, "--iterations", 4, "--tokens", 64)
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 2, "--steps", 4, "--dtype", "fp32",
                 "--replay-routing", trace)
        ranks = ("--ep", 2, "--plan-every", 2)
        model = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                 "moe_intermediate_size": 24, "num_hidden_layers": 4, "mlp_only_layers": [1]}
        for policy in ek_cli.some(("off", "eplb", "exact"), 2):
            _, stages = self.train("stages", *steps, *ranks, "--ranks", 4, "--pp", 2, "--balance",
                                   policy, **model)
            _, one = self.train("one", *steps, *ranks, "--ranks", 2, "--balance", policy, **model)
            for a, b in zip(stages, one):
                self.check_layers(a, 3)
                # routing is replayed, so stages make no difference
                self.assertEqual(a["layers"], b["layers"], policy)
                self.assertEqual(len(set(a["layers"]["rank_max_over_mean_before"])), 3)
        self.assertGreater(max(one[0]["layers"]["replicas"]), 0)
        _, alone = self.train("alone", *steps, "--ranks", 2, **model)
        self.assertNotIn("layers", alone[0])

    def test_means_of_the_summary(self):
        """The text has three significant digits of the means of all steps but the first, or whole numbers.  What a policy
        does depends on measured costs: of the same run."""
        self.train("config", "--ranks", 2, "--batch", 2, "--seq", 32, "--steps", 1)
        means = []
        for policy in "prophet", "place", "replicate":
            r = run("train", "--model", self.path("config.json"), "--data", self.path("data.bin"), "--out", self.path("text"),
                    "--overwrite", "--threads", 1, "--batch", 4, "--seq", 32, "--steps", 8, "--dtype", "fp64", "--lr", 0.02,
                    "--ranks", 2, "--ep", 2, "--balance", policy, "--plan-every", 2)
            self.assertEqual(r.returncode, DONE, r.stderr)
            said = re.search(r"; per step (?P<replicas>\S+) replicas \((?P<replicas_ahead>\S+) sent before the gate, .*\), "
                             r"(?P<experts_moved>\S+) experts moved, ", r.stdout)
            self.assertTrue(said, r.stdout)
            for key in "replicas", "replicas_ahead", "experts_moved":
                means.append(sum(m[key] for m in ek_cli.metrics(self.path("text"))[1:]) / 7)
                self.assertEqual(said[key], "%.0f" % means[-1] if means[-1] % 1 == 0 else "%#.3g" % means[-1], policy)
        self.assertTrue(any(m % 1 for m in means), means)

    def test_replicas_on_hosts(self):
        """One host alone is too few, which is said; else tests/unit/t_train_replicas_min.c."""
        steps = ("--batch", 4, "--seq", 32, "--steps", 4, "--dtype", "fp64", "--ranks", 2, "--ep", 2)
        _, want = self.train("off", *steps, "--balance", "off")
        did = {}
        for policy, spare in ("auto", 3), ("replicate", 2):
            summary, got = self.train(policy, *steps, "--balance", policy, "--replicas-min", 2,
                                      "--spare-slots", spare)
            self.assertEqual(summary["balance"]["policy"], policy)
            for a, b in zip(want, got):
                self.assertLess(abs(b["loss"] / a["loss"] - 1), 1e-9, policy)
            did[policy] = [m["layers"]["replicas"] for m in got]
        self.assertEqual(did["replicate"][0], [0, 0])
        self.assertIn(4, did["replicate"][1])  # every slot of a layer, and they stay
        self.assertEqual(did["replicate"][1:], 3 * did["replicate"][1:2])

        def said(*more, status=DONE):
            r = run("train", "--model", self.path("config.json"), "--data", self.path("data.bin"),
                    "--out", self.path("run"), "--overwrite", *steps, *more)
            self.assertEqual(r.returncode, status, r.stderr)
            return r.stderr

        text = said("--replicas-min", 2)
        self.assertRegex(text, "info: --replicas-min 2: auto makes persistent replicas, as replicate does, "
                         "and no transient ones")
        self.assertRegex(said("--replicas-min", 2, "--spare-slots", 3), "info: --replicas-min 2: auto makes "
                         "persistent replicas, as replicate does, and transient ones in the last slot")
        self.assertRegex(text, "warning: --replicas-min 2: some experts will be on 1 host only: their ranks "
                         "are on 1, and have 6 slots for 4 experts")
        self.assertRegex(said("--replicas-min", 2, "--balance", "exact"),
                         "warning: --replicas-min 2 has no effect with --balance exact")
        self.assertNotIn("replicas-min", said("--replicas-min", 1))
        self.assertRegex(said("--replicas-min", 2, "--plan-every", 0, status=USAGE),
                         "--replicas-min 2: with --plan-every 0 no replicas are placed")

    def plans(self, *names):
        """Lines of these files of the run."""
        lines = []
        for name in names:
            with open(self.path("run", name), encoding="utf-8") as f:
                lines += [json.loads(line) for line in f]
        return lines

    def check_plan(self, plan):
        """Slots hold what serves, homes their experts; the quotas, by slot."""
        served = {}
        for _, slot, rows in plan["split"]:
            self.assertGreater(rows, 0)
            self.assertGreaterEqual(plan["expert_of"][slot], 0)
            served[slot] = served.get(slot, 0) + rows
        self.assertEqual([plan["expert_of"][s] for s in plan["primary"]], list(range(4)))
        return served

    def test_recorded_plans(self):
        trace = self.trace("W2", "--layers", 2, "--iterations", 4, "--tokens", 64)
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 2, "--steps", 4, "--dtype", "fp32",
                 "--replay-routing", trace, "--record-plans", "--ep", 2, "--plan-every", 2)
        # of a transient plan, and of the persistent placement, from the second step on
        why = {"exact": (".", "^$"), "eplb": ("^$", "."), "auto": ("replica", "^no move|move")}
        for policy in ek_cli.some(list(why), 2):
            # two runs of expert ranks; below, two stages
            _, told = self.train("run", *steps, "--ranks", 4, "--balance", policy)
            lines = self.plans("plans.jsonl")
            self.assertEqual({(p["iteration"], p["layer"], p["micro"], p["ep_group"]) for p in lines},
                             {(i, l, m, n) for i in range(4) for l in range(2) for m in range(2)
                              for n in range(2)})
            self.assertEqual(len(lines), 32)
            for step in told:
                for l in range(2):
                    of = [p for p in lines if (p["iteration"], p["layer"]) == (step["step"], l)]
                    rows = [0] * 4
                    replicas = 0
                    for p in of:
                        ranks = len(p["expert_of"]) // 2
                        replicas += sum(e >= 0 and p["primary"][e] // ranks != s // ranks
                                        for s, e in enumerate(p["expert_of"]))
                        for slot, n in self.check_plan(p).items():
                            rows[2 * p["ep_group"] + slot // ranks] += n
                    self.assertEqual(sum(rows), 4 * 32 * 2)
                    self.assertAlmostEqual(max(rows) * 4 / sum(rows),
                                           step["layers"]["rank_max_over_mean"][l], delta=1e-3)
                    self.assertEqual(replicas, step["layers"]["replicas"][l])
            for p in lines:
                once, lasting = p["reason"], p["primary_reason"]
                if policy == "eplb":
                    once, lasting = lasting, once  # which has one reason alone
                self.assertRegex(once, why[policy][0])
                self.assertRegex(lasting, why[policy][1] if p["iteration"] > 0 else "^$")
        self.train("run", *steps, "--ranks", 4, "--pp", 2)
        self.assertEqual([(p["iteration"], p["layer"], p["micro"], p["ep_group"]) for p in
                          self.plans("plans.jsonl", "plans-stage1.jsonl")],
                         [(i, l, m, 0) for l in range(2) for i in range(4) for m in range(2)])
        self.train("run", *steps[:-5], "--ranks", 2)
        self.assertEqual([name for name in os.listdir(self.path("run")) if "plans" in name], [])
        os.symlink("/dev/full", self.path("run", "plans.jsonl"))
        r = run("train", "--model", self.path("config.json"), "--data", self.path("data.bin"),
                "--out", self.path("run"), "--resume", *steps, "--steps", 6, "--ranks", 2, *QUIET)
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        self.assertRegex(r.stderr, "cannot write the plans to .*/plans.jsonl: No space left")
        for nobody in ("--ranks", 2, "--ep", 2, "--balance", "off"), ("--ranks", 2), ():
            r = ek_cli.run("train", "--data", self.data, "--model", self.config, "--out",
                           self.path("refused"), "--seq", 32, "--record-plans", *nobody)
            self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
            self.assertRegex(r.stderr, "there are no plans with --balance off, --ep 1")

    def assert_ranks_differ(self, what, *of_ranks):
        """One rank with each of these command lines."""
        command = [mpiexec()]
        for args in of_ranks:
            command += ["-n", "1", ek_cli.COMMAND, *map(str, args), ":"]
        r = subprocess.run(command[:-1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           stdin=subprocess.DEVNULL, text=True, timeout=ek_cli.TIMEOUT_S,
                           check=False)
        self.assertEqual(r.returncode, USAGE, r.stdout)
        self.assertIn("has other %s than rank 0" % what, r.stdout)

    def test_ranks_replay_the_same_trace(self):
        traces = [self.path("%d.npy" % seed) for seed in (1, 2)]
        for seed, trace in enumerate(traces):
            r = run("workload", "--name", "W7", "--ranks", 2, "--experts", 4, "--out", trace,
                    "--seed", seed)
            self.assertEqual(r.returncode, DONE, r.stderr)
        self.assert_ranks_differ("loads to replay", *(
            self.train_args("run", "--quiet", "--replay-routing", t) for t in traces))

    def test_ranks_read_the_same_data(self):
        """Of as many tokens, or of fewer: the data are named, not the settings."""
        for n in 1500, 1400:
            other = ek_cli.write_tokens(self.path("other.bin"), ek_cli.token_ids(n, seed=5))
            self.assert_ranks_differ("data", *(
                self.train_args("run", "--quiet", data=d) for d in (self.data, other)))
            self.assert_ranks_differ("held-out data", *(
                self.train_args("run", "--quiet", "--eval-data", d) for d in (self.data, other)))

    def check_point(self, point):
        self.assertGreater(point["r_cc"], 0)
        self.assertLessEqual(point["semi_ideal_gflops"], point["ideal_gflops"] * (1 + 1e-9))
        self.assertLessEqual(point["ideal_gflops"], point["peak_gflops"])
        self.assertGreater(point["achieved_gflops"], 0)
        if not point["measured"]:
            self.assertLessEqual(point["achieved_gflops"],
                                 point["semi_ideal_gflops"] * (1 + 1e-9))

    def test_roofline(self):
        trace = self.trace("W2", "--layers", 2, "--tokens", 32)
        steps = ("--batch", 4, "--seq", 32, "--steps", 4, "--dtype", "fp32", "--replay-routing",
                 trace)
        ranks = ("--ranks", 2, "--ep", 2)
        exact, _ = self.train("exact", *steps, *ranks, "--balance", "exact")
        # no move pays in no steps, and without spare slots there are no replicas
        homes, _ = self.train("homes", *steps, *ranks, "--plan-every", 0, "--spare-slots", 0)
        for summary in exact, homes:
            self.assertEqual([p["layer"] for p in summary["roofline"]], [0, 1])
            self.assertNotIn("costs", summary)
            for point in summary["roofline"]:
                self.assertFalse(point["measured"])
                self.check_point(point)
        # how far under the curve of balance: by the busiest rank's rows over the mean
        for summary, worst in (exact, 1), (homes, homes["balance"]["rank_max_over_mean"]):
            far = [p["semi_ideal_gflops"] / p["achieved_gflops"] for p in summary["roofline"]]
            self.assertAlmostEqual(max(far), worst, delta=0.05)
        self.assertGreater(homes["balance"]["rank_max_over_mean"], 1.3)

        # nothing was measured to go by where nobody plans
        for layout in ranks + ("--balance", "off"), ():
            summary, _ = self.train("off", *steps, *layout, "--timeline")
            self.assertFalse({"roofline", "costs"} & set(summary))
        once, _ = self.train("once", *steps, *ranks, "--steps", 1, "--timeline")
        self.assertFalse({"roofline", "costs"} & set(once))

    def test_predicted_and_measured(self):
        steps = ("--batch", 4, "--seq", 32, "--micro-batch", 2, "--steps", 4, "--dtype", "fp32",
                 "--pp", 2, "--ep", 2, "--ranks", 4, "--pipeline-degree", 1)
        summary, _ = self.train("run", *steps, "--timeline")
        self.assertEqual([p["layer"] for p in summary["roofline"]], [0, 1])
        for point in summary["roofline"]:  # of both stages
            self.assertTrue(point["measured"])
            self.check_point(point)
        costs = {c["op"]: c for c in summary["costs"]}
        self.assertEqual(len(costs), len(summary["costs"]))
        for name in "expert up", "expert down weight", "dispatch a2a", "swiglu", "attention":
            c = costs[name]
            self.assertEqual(c["count"], 3 * 2, name)  # steps but the first, micro-batches
            self.assertGreater(c["predicted_ms"], 0)
            self.assertAlmostEqual(c["ratio"], c["measured_ms"] / c["predicted_ms"])
        self.assertEqual((costs["send"]["predicted_ms"], costs["send"]["ratio"]), (None, None))
        longest = [c["measured_ms"] for c in summary["costs"]]
        self.assertEqual(longest, sorted(longest, reverse=True))

    def test_what_the_summary_says_of_layers(self):
        config = ek_cli.write_config(self.path("config.json"))
        args = ("train", "--model", config, "--data", self.data, "--batch", 2, "--seq", 32,
                "--steps", 3, "--ranks", 2, "--ep", 2, "--threads", 1, "--timeline")
        r = run(*args, "--out", self.path("few"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        point = r"layer \d: [\d.e+-]+ [kMGT]?FLOP/s a rank, \d+ % of its products' rate; "
        self.assertEqual([line[:7] for line in r.stdout.splitlines() if re.match(point, line)],
                         ["layer 0", "layer 1"])
        r = run(*args, "--out", self.path("few"), "--overwrite", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        costs = json.loads(r.stdout)["costs"]
        least = 0.01 * sum(c["measured_ms"] for c in costs)
        parted = [c for c in costs if c["predicted_ms"] is not None
                  and abs(c["measured_ms"] - c["predicted_ms"]) > 0.2 * c["predicted_ms"]
                  and max(c["measured_ms"], c["predicted_ms"]) > least]
        self.assertEqual(r.stderr.count("predicted and measured times differ by more than 20 %"),
                         len(parted) > 0)
        config = ek_cli.write_config(self.path("config.json"), num_hidden_layers=9)
        r = run(*args, "--out", self.path("many"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertNotIn("FLOP/s a rank", r.stdout)

    def check_memory(self, *layout):
        sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4,
                 "num_attention_heads": 4, "head_dim": 64, "num_local_experts": 16,
                 "max_position_embeddings": 512}
        if b"__asan_init" in ek_cli.read(ek_cli.COMMAND):
            self.skipTest("a sanitizer holds memory of its own")
        s, lines = self.train("run", "--ranks", 2, "--batch", 8, "--seq", 128, "--steps", 3,
                              "--dtype", "bf16", "--force-balance", *layout, **sizes)
        ratio = s["predicted_rss_mb"] / max(lines[-1]["peak_rss_mb"])
        self.assertTrue(0.95 <= ratio <= 1.05, "%s: predicted %.1f MB, measured %s" %
                        (layout, s["predicted_rss_mb"], lines[-1]["peak_rss_mb"]))

    def test_memory(self):
        self.check_memory("--ep", 2)
        self.check_memory("--zero", 1)
        self.check_memory("--zero", 3)
        self.check_memory("--pp", 2, "--micro-batch", 4)


if __name__ == "__main__":
    ek_cli.main()
