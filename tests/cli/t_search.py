"""search: the layouts with the shortest steps as text, JSON and pool; what it refuses."""

import json
import re

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, USAGE, run

CLUSTER = {"evenkeel_cluster": 1, "name": "toy",
           "rank": {"memory": "1G", "machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}},
           "levels": [{"name": "node", "ranks": 4, "gbytes_s": 10, "us": 2},
                      {"name": "net", "ranks": 64, "gbytes_s": 1, "us": 10}]}
FEW = "etp=1,zero=0,zero=1,micro-batch=8,micro-batch=32,recompute=off,recompute=full"


class Search(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.cluster = ek_cli.write(self.path("toy.json"), json.dumps(CLUSTER))

    def search(self, ranks, *words, status=DONE, model="small", cluster=None):
        r = run("search", "--cluster", cluster or self.cluster, "--model", model, "--ranks", ranks, *words)
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def json(self, *words, **kw):
        return json.loads(self.search(*words, "--json", **kw).stdout)

    def simulate(self, ranks, options, *words):
        flags = [w for name, value in options.items() for w in ("--" + name, value)]
        r = run("simulate", "--engine", "flow", "--cluster", self.cluster, "--model", "small", "--ranks", ranks, "--json", *flags, *words)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def test_the_best_layout_is_as_simulate_says(self):
        s = self.json(8, "--fix", FEW, "--top", 4)
        counts = s["layouts"]
        self.assertEqual(sum(counts[k] for k in ("refused", "too_large", "dropped", "simulated")), counts["all"])
        self.assertGreater(counts["dropped"], 0)
        self.assertEqual(len(s["best"]), 4)
        steps = [b["step_ms"] for b in s["best"]]
        self.assertEqual(steps, sorted(steps))
        best = s["best"][0]
        again = self.simulate(8, best["options"])
        self.assertAlmostEqual(again["step_ms"], best["step_ms"], delta=1e-9 * best["step_ms"])
        self.assertAlmostEqual(again["memory_mb"]["all"], best["memory_mb"], delta=1e-3)
        self.assertAlmostEqual(again["mfu"], best["mfu"], delta=1e-9)
        self.assertLess(best["memory_mb"], s["memory_limit_mb"])
        self.assertEqual(s["machine"], {"measured": False, "peak_tflops": 0.2, "efficiency": 0.5, "kernels": 0})
        for x in s["best"] + s["pool"]:
            self.assertAlmostEqual(x["memory_share"], x["memory_mb"] / s["memory_limit_mb"], delta=1e-9)
            ranks = 8 / x["options"]["pp"] / x["options"]["tp"]  # data-parallel ones
            self.assertEqual(x["sequences_a_rank"], x["options"]["micro-batch"] / ranks)
        values = {(c["choice"], c["value"]) for c in s["corners"]}
        for wanted in (("pp", 1), ("pp", 2), ("tp", 2), ("ep", 8), ("zero", 1), ("recompute", "full")):
            self.assertIn(wanted, values)
        for c in s["corners"]:
            self.check_reasons(best, c)
            self.assertEqual(c["layout"]["options"][c["choice"]], c["value"])
            self.assertGreaterEqual(c["layout"]["step_ms"], steps[0])

    def check_reasons(self, best, c):
        """A second part is named where the first explains less than half."""
        longer = c["layout"]["step_ms"] - best["step_ms"]
        if longer > 0.01 * best["step_ms"]:
            self.assertIn("most_grown", c)
            self.assertEqual(2 * c["grown_ms"] < longer, "also_grown" in c)
            self.assertLessEqual(c.get("also_grown_ms", 0), c["grown_ms"])

    def test_a_reason_that_is_less_than_half_has_a_second_one(self):
        c = json.loads(json.dumps(CLUSTER))
        c["rank"]["machine"].update(peak=2e13, memory_bytes_s=1e12)  # exchanges decide
        path = ek_cli.write(self.path("quick.json"), json.dumps(c))
        s, text = self.json(8, "--fix", FEW, cluster=path), self.search(8, "--fix", FEW, cluster=path).stdout
        two = [c for c in s["corners"] if "also_grown" in c]
        self.assertTrue(two, s["corners"])
        for c in s["corners"]:
            self.check_reasons(s["best"][0], c)
        for c in two:
            self.assertRegex(text, r"  %s \+[\d.]+ .?s and %s \+[\d.]+ .?s\n" % (re.escape(c["most_grown"]), re.escape(c["also_grown"])))

    def test_what_is_listed_once_is_not_again(self):
        s, text = self.json(8, "--fix", FEW, "--top", 1), self.search(8, "--fix", FEW, "--top", 1).stdout
        self.assertEqual(s["pool"][0], s["best"][0])
        less = text.split("\nthe best with less memory\n")[1].split("\n\n")[0]
        self.assertEqual(less.count(" GB ") + less.count(" MB "), len(s["pool"]) - 1)

    def test_gpus_are_for_other_programs(self):
        few = ["--fix", "pp=1,tp=1,etp=1,ep=8,zero=0,micro-batch=32"]
        c = json.loads(json.dumps(CLUSTER))
        c["rank"]["device"] = "cuda"
        path, page = ek_cli.write(self.path("gpus.json"), json.dumps(c)), self.path("page.html")
        text = self.search(8, *few, "--report", page, cluster=path).stdout
        self.assertIn("--micro-batch counts the sequences of all data-parallel ranks, here 4 a rank.", text)
        self.assertIn("does so through the host, without NCCL: on several GPUs the layout is for other programs.", text)
        self.assertIn(b"without NCCL: on several GPUs the layout is for other programs.", ek_cli.read(page))
        self.assertNotIn("NCCL", self.search(8, *few).stdout)
        few[1] = few[1].replace("ep=8", "ep=1")
        self.assertNotIn("NCCL", self.search(1, *few, "--memory-limit", "4G", cluster=path).stdout)

    def test_a_price_is_said_whatever_the_objective(self):
        few = ["--fix", "pp=1,tp=1,etp=1,ep=8,zero=0,zero=1,micro-batch=32"]
        s, text = self.json(8, *few, cluster=self.failing()), self.search(8, *few, cluster=self.failing()).stdout
        self.assertIn("\nprice     %#.3g a step with the best, at 10 for a node and hour\n" % s["best"][0]["step_price"], text)
        self.assertNotIn("price", self.search(8, *few).stdout)

    def test_text_names_layouts_and_reasons(self):
        text = self.search(8, "--fix", FEW).stdout
        for wanted in ("toy: 8 ranks on 2 nodes; 1.07 GB (1 GiB) of memory a rank\nmachine   by data sheet: 0.5 of 200 GFLOP/s assumed, ", "32 sequences of 256 tokens",
                       "cannot be better than others", "the shortest steps", "the best layout with each value",
                       "the best\n", "bubble) +", " %  ", "--recompute full", "Loads of experts are even",
                       "evenkeel train --model small --ranks 8 --batch 32 --seq 256 "):
            self.assertIn(wanted, text)

    def test_what_cannot_be_told_apart_is_said(self):
        s = self.json(8, "--fix", FEW, "--top", 100)
        near, best = s["near"], s["best"]
        flows = best[:s["layouts"]["simulated_by_flow"]]
        apart = 1.05 * best[0]["step_ms"]
        within = [b for b in flows if b["step_ms"] <= apart]
        self.assertEqual((near["error"], near["layouts"]), (0.05, len(within)))
        self.assertGreater(near["layouts"], 1)
        self.assertLess(near["layouts"], len(flows))
        self.assertEqual(near["least_memory"], min(within, key=lambda b: b["memory_mb"]))
        self.assertLess(near["least_memory"]["memory_mb"], best[0]["memory_mb"])
        page = self.path("page.html")
        text = self.search(8, "--fix", FEW, "--top", 100, "--report", page).stdout
        least = near["least_memory"]
        said = (r"The best and %d others? are within 5 %%, the mean error of simulated steps: they cannot be told apart\.BETWEEN"
                r"Of these --.*--micro-batch %d.* has least memory: " % (near["layouts"] - 1, least["options"]["micro-batch"]))
        self.assertRegex(text, said.replace("BETWEEN", r"\n"))
        self.assertRegex(ek_cli.read(page).decode(), said.replace("BETWEEN", " "))
        self.assertRegex(text, r"step   tokens/s    MFU    memory  of limit  seqs/rank  options of train\n.* MB +%.0f %% +%d  --"
                         % (100 * best[0]["memory_share"], best[0]["sequences_a_rank"]))
        one = self.json(8, "--fix", "etp=1,pp=1,tp=1,ep=8,zero=0,micro-batch=32,recompute=off")["near"]
        self.assertEqual(one["layouts"], 1)
        text = self.search(8, "--fix", "etp=1,pp=1,tp=1,ep=8,zero=0,micro-batch=32,recompute=off").stdout
        self.assertIn("\nNo other is within 5 % of the best, the mean error of simulated steps.\n", text)

    def test_without_a_limit_memory_has_no_share(self):
        c = json.loads(json.dumps(CLUSTER))
        del c["rank"]["memory"]
        words = ["--fix", "etp=1,pp=1,tp=1,zero=0,micro-batch=32"]
        path = ek_cli.write(self.path("unlimited.json"), json.dumps(c))
        self.assertNotIn("memory_share", self.json(8, *words, cluster=path)["best"][0])
        self.assertNotIn("of limit", self.search(8, *words, cluster=path).stdout)

    def test_a_limit_of_memory_refuses_layouts(self):
        free = self.json(8, "--fix", FEW)
        least = min(p["memory_mb"] for p in free["pool"])
        most = free["best"][0]["memory_mb"]
        self.assertLess(least, most)
        limit = int((least + most) / 2 * 1e6)
        s = self.json(8, "--fix", FEW, "--memory-limit", limit)
        self.assertGreater(s["layouts"]["too_large"], 0)
        self.assertLessEqual(s["best"][0]["memory_mb"] * 1e6, limit)
        err = self.search(8, "--fix", FEW, "--memory-limit", "1M", status=FAILED).stderr
        self.assertRegex(err, r"none of \d+ layouts fits in 1.05 MB \(1 MiB\) of memory a rank: the smallest needs [\d.]+ MB")
        self.assertEqual(err.count("\n"), 1)
        corners = {(c["choice"], c["value"]): c for c in self.json(8, "--memory-limit", limit, "--fix", FEW)["corners"]}
        refused = [c for c in corners.values() if "needs_mb" in c]
        for c in refused:
            self.assertGreater(c["needs_mb"] * 1e6, limit)

    def test_a_pool_has_what_nothing_beats_and_the_best_of_each_value(self):
        path = self.path("pool.json")
        self.search(8, "--fix", FEW, "--pool", path)
        pool = json.loads(ek_cli.read(path))
        self.assertEqual((pool["evenkeel_pool"], pool["cluster"], pool["ranks"], pool["batch"], pool["seq"]),
                         (1, "toy", 8, 32, 256))
        self.assertGreater(len(pool["layouts"]), 1)
        steps = [p["step_ms"] for p in pool["layouts"]]
        self.assertEqual(steps, sorted(steps))
        s = self.json(8, "--fix", FEW)
        least = [p["options"] for p in s["pool"]]
        corners = [c["layout"]["options"] for c in s["corners"] if c["layout"]["step_ms"] <= 1.5 * steps[0]]
        self.assertTrue(any(c not in least for c in corners), corners)
        self.assertEqual(sorted(map(str, (p["options"] for p in pool["layouts"]))),
                         sorted({str(o) for o in least + corners}))
        for a, b in zip(s["pool"], s["pool"][1:]):
            self.assertLessEqual(a["step_ms"], b["step_ms"])
            self.assertGreater(a["memory_mb"], b["memory_mb"])

    def test_a_trace_decides_which_layout_and_policy_are_best(self):
        trace = self.path("hot.npy")
        r = run("workload", "--name", "W1", "--ranks", 8, "--experts", 8, "--layers", 4, "--iterations", 10,
                "--out", trace)
        self.assertEqual(r.returncode, DONE, r.stderr)
        words = [8, "--fix", "etp=1,zero=1,micro-batch=64,recompute=off,tp=1", "--batch", 64, "--trace", trace,
                 "--steps", 2]
        s = self.json(*words, "--balance", "off")
        even = self.json(*words[:-4])
        self.assertGreater(s["layouts"]["simulated_with_trace"], 0)
        self.assertEqual(even["layouts"]["simulated_with_trace"], 0)
        self.assertGreater(s["best"][0]["step_ms"], 0.9 * even["best"][0]["step_ms"])
        policies = {b["options"].get("balance") for b in s["best"]}
        self.assertTrue(policies & {"exact", "auto"}, policies)  # a hot expert: balancing pays
        for b in s["best"]:
            again = self.simulate(8, {"balance": "off", **b["options"]}, "--batch", 64, "--trace", trace, "--steps", 2)
            self.assertAlmostEqual(again["step_ms"], b["step_ms"], delta=1e-6 * b["step_ms"])
        self.check_loads(s, [*words, "--balance", "off"], trace)
        self.assertNotIn("loads", even)
        model = ek_cli.write_config(self.path("model.json"))
        # Steps of several numbers of ranks are of one engine, though 512 are too many for this cluster.
        self.assertGreater(s["layouts"]["simulated_by_flow"], 0)
        self.assertEqual(self.json(8, 512, *words[1:])["layouts"]["simulated_by_flow"], 0)
        err = self.search(4, "--seq", 16, "--trace", trace, "--fix", "ep=4", status=BAD_INPUT, model=model).stderr
        self.assertIn("the trace is of 8 experts, and the model has 4", err)

    def check_loads(self, s, words, trace):
        """What the answer says of the trace's loads, as simulate has it of the best layout."""
        best, loads = s["best"][0], s["loads"]
        options = {"balance": "off", **best["options"]}
        self.assertEqual((loads["steps"], loads["policy"], loads["best_policy"]), (2, "off", options["balance"]))
        again = self.simulate(8, options, "--batch", 64, "--trace", trace, "--steps", 2)["balance"]
        for key in ("max_over_mean_before", "max_over_mean"):
            self.assertAlmostEqual(loads[key], again[key], delta=1e-9)
        self.assertGreater(loads["max_over_mean_before"], 1.2 * loads["max_over_mean"])
        even = self.simulate(8, options, "--batch", 64)
        self.assertAlmostEqual(loads["even_step_ms"], even["step_ms"], delta=1e-6 * even["step_ms"])
        self.assertLess(loads["even_step_ms"], best["step_ms"])
        off = self.simulate(8, {**options, "balance": "off"}, "--batch", 64, "--trace", trace, "--steps", 2)
        self.assertAlmostEqual(loads["off_step_ms"], off["step_ms"], delta=1e-6 * off["step_ms"])
        self.assertLess(best["step_ms"], loads["off_step_ms"])
        page = self.path("page.html")
        lines = ["2 steps of the trace, with --balance off where a layout has no other;",
                 "the best: ranks have max/mean %.3f rows with primary copies only, %.3f as planned by %s;"
                 % (loads["max_over_mean_before"], loads["max_over_mean"], loads["best_policy"]),
                 "its step takes "]
        text = self.search(*words, "--report", page).stdout
        self.assertIn("\nloads     " + "\n          ".join(lines), text)
        self.assertIn("Loads: " + " ".join(lines), ek_cli.read(page).decode())
        self.assertRegex(text, r"its step takes [\d.]+ .?s, with even loads [\d.]+ .?s, with --balance off [\d.]+ .?s\n")

    def test_faults_are_one_sentence(self):
        for status, said, ranks, words in (
                (USAGE, "--ranks 100: cluster toy has 64", 100, []),
                (USAGE, "no layout of 8 ranks", 8, ["--fix", "pp=3"]),
                (USAGE, "pq is none of pp", 8, ["--fix", "pq=3"]),
                (USAGE, "--adaptive-r 3", 8, ["--adaptive-r", 3, "--fix", "etp=2"])):
            err = self.search(ranks, *words, status=status).stderr
            self.assertIn(said, err)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("`search` has no option `--pp`", self.search(8, "--pp", 2, status=USAGE).stderr)
        err = self.search(2, status=BAD_INPUT, cluster=self.path("missing.json")).stderr
        self.assertIn("missing.json", err)
        err = self.search(2, status=BAD_INPUT, model=self.path("none")).stderr
        self.assertEqual(err.count("\n"), 1)

    # --- objectives -----------------------------------------------------------------------------

    def failing(self, **more):
        """The cluster with failures and a price: restarts are costly."""
        c = dict(CLUSTER, failures={"node_mtbf_h": 5, "back_s": 60, "recover_s": 1, "restart_s": 3000, "save_s": 5}, price={"node_hour": 10})
        c.update(more)
        return ek_cli.write(self.path("failing.json"), json.dumps(c))

    def test_goodput_prefers_what_recovers(self):
        words = [16, "--fix", "pp=1,tp=1,etp=1,ep=8,zero=0,zero=1,micro-batch=64,recompute=off", "--batch", 64]
        step = self.json(*words, cluster=self.failing())
        best = self.json(*words, "--objective", "goodput", cluster=self.failing())
        self.assertEqual((step["objective"], best["objective"]), ("step", "goodput"))
        self.assertEqual((step["best"][0]["options"]["zero"], best["best"][0]["options"]["zero"]), (1, 0))  # what nodes may do is the difference
        first, second = best["best"][0]["failures"], best["best"][1]["failures"]
        self.assertEqual((first["on_failure"], first["recovers"]), ("recover", True))
        self.assertEqual((second["on_failure"], second["recovers"]), ("recover", True))  # shards have partners
        self.assertEqual((first["copies"], second["copies"]), (1, 1))  # experts are in two groups of ranks
        self.assertLess(first["completed_step_ms"], second["completed_step_ms"])
        self.assertGreater(second["restarts"], first["restarts"])  # after a second loss
        again = self.fails_as_simulated(best["best"][0])
        self.assertAlmostEqual(again["failures"]["goodput"], first["goodput"], delta=1e-9)
        text = self.search(*words, "--objective", "goodput", cluster=self.failing()).stdout
        for wanted in ("the most completed steps under failures", "failures of a node every 5.00 h", "recovers          4  --ep 8", "recovers          4  --ep 8 --zero 1",
                       "the shortest step without failures has --ep 8 --zero 1", "the best layout with each value, time for each completed step, ",
                       "--micro-batch 64 --elastic --data"):
            self.assertIn(wanted, text)
        both = self.json(*words, "--objective", "goodput", "--on-failure", "restart", cluster=self.failing())
        self.assertEqual(both["best"][0]["options"]["zero"], 1)
        self.assertEqual({b["failures"]["on_failure"] for b in both["best"]}, {"restart"})
        self.assertLess(1.1 * both["best"][0]["failures"]["goodput"], first["goodput"])
        self.assertIn("every loss restarts", self.search(*words, "--objective", "goodput", "--on-failure", "restart", cluster=self.failing()).stdout)

    def test_copies_are_kept_where_they_pay(self):
        """Experts that one node alone has: by default copies are left out, as they lengthen a step too much."""
        words = [16, "--fix", "pp=1,tp=1,etp=1,ep=16,zero=0,micro-batch=64,recompute=off", "--batch", 64, "--objective", "goodput"]
        often = self.failing(failures={"node_mtbf_h": 0.5, "back_s": 60, "recover_s": 1, "restart_s": 3000, "save_s": 5})
        f = self.json(*words, cluster=often)["best"][0]["failures"]
        self.assertEqual((f["on_failure"], f["copies"], f["copies_would_lengthen"]), ("recover", 2, 0))
        text = self.search(*words, cluster=often).stdout
        self.assertIn("; every expert is on 2 nodes with --elastic\n", text)
        self.assertIn("--micro-batch 64 --elastic --data", text)
        f = self.json(*words, "--on-failure", "recover", cluster=often)["best"][0]["failures"]
        self.assertEqual(f["copies"], 1)
        self.assertGreater(f["copies_would_lengthen"], 0.05)
        self.assertIn("two copies of experts would lengthen a step by", self.search(*words, "--on-failure", "recover", cluster=often).stdout)

    def test_layouts_of_a_run_that_survives_have_its_copies(self):
        words = [16, "--fix", "pp=1,tp=1,etp=1,ep=8,zero=1,micro-batch=64,recompute=off", "--batch", 64]
        plain, elastic = self.json(*words), self.json(*words, "--elastic")
        self.assertGreater(elastic["best"][0]["step_ms"], plain["best"][0]["step_ms"])
        self.assertGreater(elastic["best"][0]["memory_mb"], 1.05 * plain["best"][0]["memory_mb"])
        s = self.simulate(16, elastic["best"][0]["options"], "--batch", 64, "--elastic")
        self.assertAlmostEqual(s["step_ms"], elastic["best"][0]["step_ms"], places=6)
        page = self.path("page.html")
        self.assertIn("--micro-batch 64 --elastic --data", self.search(*words, "--elastic", "--report", page).stdout)
        self.assertIn(b"--micro-batch 64 --elastic --data", ek_cli.read(page))

    def test_copies_are_left_out_where_they_do_not_fit_the_limit(self):
        words = [16, "--fix", "pp=1,tp=1,etp=1,ep=16,zero=0,micro-batch=64,recompute=off", "--batch", 64, "--seq", 64]
        many = ek_cli.write_config(self.path("many.json"), num_local_experts=64, intermediate_size=5000)
        plain, elastic = self.json(*words, model=many), self.json(*words, "--elastic", model=many)
        least, most = plain["best"][0]["memory_mb"], elastic["best"][0]["memory_mb"]
        limited = self.json(*words, "--elastic", "--memory-limit", int(0.97 * most * 1e6), model=many)["best"][0]
        self.assertLess(limited["memory_mb"], 0.97 * most)
        self.assertGreater(limited["memory_mb"], 1.05 * least)  # memory for experts that arrive

    def fails_as_simulated(self, layout):
        flags = [w for name, value in layout["options"].items() for w in ("--" + name, value)]
        r = run("simulate", "--cluster", self.failing(), "--model", "small", "--ranks", 16, "--batch", 64, "--failures", "cluster", "--on-failure",
                layout["failures"]["on_failure"], "--json", *flags)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def test_cost_chooses_the_number_of_ranks(self):
        words = ["--fix", "pp=1,tp=1,etp=1,zero=0,micro-batch=64,recompute=off", "--batch", 64]
        r = run("search", "--cluster", self.failing(), "--model", "small", "--ranks", 16, 4, 1000, *words, "--objective", "cost", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        s = json.loads(r.stdout)
        by = {x["ranks"]: x for x in s["by_ranks"]}
        self.assertEqual([x["ranks"] for x in s["by_ranks"]], [16, 4, 1000])
        self.assertIn("cluster toy has 64", by[1000]["refusal"])
        for ranks, nodes in ((16, 4), (4, 1)):
            x = by[ranks]["layout"]
            self.assertAlmostEqual(x["step_price"], x["step_ms"] / 1e3 * nodes * 10 / 3600, delta=1e-9)
        self.assertLess(by[4]["layout"]["step_price"], by[16]["layout"]["step_price"])
        self.assertEqual((s["ranks"], s["best"][0]), (4, by[4]["layout"]))
        text = run("search", "--cluster", self.failing(), "--model", "small", "--ranks", 16, 4, *words, "--objective", "cost", "--failures", 5).stdout
        # a single node that fails loses all that is not in a checkpoint
        for wanted in ("the best layout of each number of ranks", "of 16 ranks, the best of these", "the cheapest steps", "price"):
            self.assertIn(wanted, text)

    def test_pools_and_pages_of_objectives(self):
        pool, page = self.path("pool.json"), self.path("page.html")
        words = ["--fix", "pp=1,tp=1,etp=1,zero=0,zero=1,recompute=off,micro-batch=32", "--objective", "goodput"]
        self.search(8, *words, "--pool", pool, "--report", page, cluster=self.failing())
        layouts = json.loads(ek_cli.read(pool))["layouts"]
        completed = [x["failures"]["completed_step_ms"] for x in layouts]
        self.assertEqual(completed, sorted(completed))
        for wanted in (b"The most completed steps under failures", b'>value</th><th scope="col" class="n">completed step</th>'):
            self.assertIn(wanted, ek_cli.read(page))
        r = run("train", "--model", "small", "--ranks", 8, "--layout-pool", pool, "--dry-run", "--data", ek_cli.write(self.path("text"), "text " * 4000))
        self.assertEqual(r.returncode, DONE, r.stderr)

    def test_objectives_say_what_they_lack(self):
        for said, words in (("cluster toy has no key `price`", ["--objective", "cost"]),
                            ("cluster: toy has no key `failures`", ["--objective", "goodput"]),
                            ("give --objective goodput or cost", ["--failures", 5])):
            err = self.search(8, *words, status=USAGE).stderr
            self.assertIn(said, err)
            self.assertEqual(err.count("\n"), 1, err)
        for ranks, said in ((["8", "8"], "given twice"), (["x"], "--ranks x"), (["0"], "--ranks 0"), (["8x"], "--ranks 8x")):
            r = run("search", "--cluster", self.cluster, "--model", "small", "--ranks", *ranks)
            self.assertEqual(r.returncode, USAGE)
            self.assertIn(said, r.stderr)


if __name__ == "__main__":
    ek_cli.main()
