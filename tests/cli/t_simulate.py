"""simulate: the step of a layout on a described cluster, as text, JSON and timeline; what it refuses."""

import json
import os
import struct

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, run

CLUSTER = {"evenkeel_cluster": 1, "name": "toy",
           "rank": {"memory": "1G", "machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}},
           "levels": [{"name": "node", "ranks": 4, "gbytes_s": 10, "us": 2},
                      {"name": "net", "ranks": 4096, "gbytes_s": 1, "us": 10}]}


class Simulate(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.cluster = ek_cli.write(self.path("toy.json"), json.dumps(CLUSTER))

    def simulate(self, ranks, *words, status=DONE, model="small", cluster=None):
        r = run("simulate", "--cluster", cluster or self.cluster, "--model", model, "--ranks", ranks, *words)
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def json(self, *words, **kw):
        return json.loads(self.simulate(*words, "--json", **kw).stdout)

    @staticmethod
    def all_parts(where):
        return sum(sum(x.values()) if isinstance(x, dict) else x for x in where.values())

    def test_parts_of_a_step_add_up_to_it(self):
        for words in ((1,), (8, "--ep", 8), (16, "--pp", 4, "--ep", 2, "--tp", 2, "--micro-batch", 8, "--zero", 1),
                      (32, "--ep", 8, "--zero", 3, "--every-rank")):
            with self.subTest(words=words):
                s = self.json(*words)
                self.assertAlmostEqual(self.all_parts(s["where_ms"]), s["step_ms"], delta=1e-6 * s["step_ms"])
                self.assertEqual(sum(c["ranks"] for c in s["classes"]), words[0])
                self.assertAlmostEqual(s["tokens_per_s"], s["step_tokens"] / s["step_ms"] * 1e3, places=2)
                self.assertTrue(0.01 < s["mfu"] < 0.5, s["mfu"])
                self.assertEqual(s["dtype"], "bf16")  # the machine's

    def test_the_answer_says_where_the_machine_is_from(self):
        s, text = self.json(8, "--ep", 8), self.simulate(8, "--ep", 8).stdout
        self.assertEqual(s["machine"], {"measured": False, "peak_tflops": 0.2, "efficiency": 0.5, "kernels": 0})
        self.assertRegex(text, r"\nmachine   by data sheet: 0\.5 of 200 GFLOP/s assumed, 10(\.0)? GB/s of memory; no kernels measured\n")
        eos = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "examples", "clusters", "h100-eos.json")
        with open(eos, encoding="utf-8") as f:
            kernels = len(json.load(f)["rank"]["machine"]["kernels"])
        s, text = self.json(8, "--ep", 8, cluster=eos), self.simulate(8, "--ep", 8, cluster=eos).stdout
        self.assertEqual(s["machine"], {"measured": True, "kernels": kernels})
        self.assertIn("\nmachine   measured: %d tables of kernels, of H100\n" % kernels, text)

    def test_layout_and_memory_are_those_of_a_dry_run(self):
        words = ["--pp", 2, "--ep", 2, "--tp", 2, "--zero", 1, "--seq", 16]
        memory = []
        for batch in (8, 256):
            more = [*words, "--batch", batch, "--micro-batch", batch]
            model = ek_cli.write_config(self.path("model.json"), hidden_size=256, intermediate_size=512,
                                        num_hidden_layers=4)
            r = run("train", "--dry-run", "--json", "--ranks", 8, "--model", model, "--data", self.data,
                    "--out", self.path("run"), *more)
            self.assertEqual(r.returncode, DONE, r.stderr)
            plan, s = json.loads(r.stdout), self.json(8, *more, model=model)
            for key, n in s["layout"].items():
                self.assertEqual(n, plan["layout"][key], key)
            self.assertEqual(s["params"], plan["params"])
            memory.append((plan["memory"]["most_mb"], s["memory_mb"]["all"]))
        # of a dry run, what the process itself takes is a part
        self.assertAlmostEqual(memory[1][0] - memory[0][0], memory[1][1] - memory[0][1], delta=8)  # a process varies
        self.assertGreater(memory[1][1] - memory[0][1], 30)
        self.assertTrue(0 < memory[0][0] - memory[0][1] < 400, memory)  # with sanitizers most

    def test_bytes_are_those_that_training_sends(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("this build has no MPI")
        model = ek_cli.write_config(self.path("model.json"))
        few = ["--ep", 2, "--micro-batch", 1]  # sequences: of some ranks, and a group of experts, none
        copies, eplb = ["--balance", "replicate", "--replicas-min", 2, "--spare-slots", 2], ["--balance", "eplb", "--spare-slots", 2]
        for words in (["--ep", 4], ["--ep", 2, "--zero", 1], ["--tp", 2, "--ep", 2], ["--pp", 2, "--ep", 2],
                      ["--zero", 3], ["--ep", 2, "--etp", 2, "--recompute", "full"], few, [*few, "--tp", 2], [*few, *copies],
                      [*few, *copies, "--zero", 3], [*few, *eplb, "--zero", 2], ["--ep", 4, *eplb, "--micro-batch", 3],
                      ["--ep", 2, "--etp", 2, *eplb, "--micro-batch", 2]):
            with self.subTest(words=words):
                words = ["--batch", 8, "--micro-batch", 4, "--seq", 16, "--dtype", "fp32", "--pipeline-degree", 1,
                         "--a2a", "linear", "--balance", "off", *words]
                r = run("train", "--ranks", 4, "--model", model, "--data", self.data, "--out", self.path("run"), "--overwrite",
                        "--steps", 12 if "eplb" in words else 3, "--threads", 1, "--quiet", "--force-balance", *words)
                self.assertEqual(r.returncode, DONE, r.stderr)
                sent = 4 * sum(self.json(4, *words, "--every-rank", model=model)["sent_mb"].values())
                for m in ek_cli.metrics(self.path("run"))[-2:]:  # before, eplb makes copies
                    self.assertAlmostEqual(sent, m["comm_bytes"] / 1e6, delta=1e-6)

    def write_hot(self, iterations, sources, experts, hot):
        """A trace in which one expert of each layer has all rows: hot[layer][iteration]."""
        rows = [100 * (e == layer[i]) for i in range(iterations) for layer in hot for _ in range(sources) for e in range(experts)]
        shape = (iterations, len(hot), sources, experts)
        header = ("{'descr': '<u4', 'fortran_order': False, 'shape': %r, }" % (shape,)).ljust(117) + "\n"
        path = self.path("hot.npy")
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<%dI" % len(rows), *rows))
        return path

    def test_replicas_are_those_that_training_makes(self):
        """How many, of `auto` those that are sent before the gate and those added after it, and their bytes; an expert has all
        rows of a layer, and then another one, so that it does not matter what exactly a replica costs."""
        if ek_cli.mpiexec() is None:
            self.skipTest("this build has no MPI")
        model = ek_cli.write_config(self.path("model.json"), num_local_experts=8, num_hidden_layers=4, num_experts_per_tok=1,
                                    hidden_size=32, intermediate_size=64)
        trace = self.write_hot(12, 4, 8, [[0] * 5 + [5] * 7, [3] * 7 + [6] * 2 + [2] * 3])
        quick = ek_cli.write(self.path("quick.json"), json.dumps(dict(CLUSTER, levels=[dict(CLUSTER["levels"][1], gbytes_s=100, us=0.1)])))
        for words in (["--ep", 4], ["--ep", 4, "--micro-batch", 16], ["--ep", 2, "--pp", 2], ["--ep", 4, "--balance", "exact"],
                      ["--ep", 4, "--balance", "prophet"], ["--ep", 2, "--etp", 2]):
            with self.subTest(words=words):
                words = ["--batch", 32, "--micro-batch", 32, "--seq", 64, "--dtype", "fp32", "--balance", "auto", "--plan-every", 0, *words]
                r = run("train", "--ranks", 4, "--model", model, "--data", self.data, "--out", self.path("run"), "--overwrite",
                        "--steps", 12, "--threads", 1, "--quiet", "--replay-routing", trace, *words)
                self.assertEqual(r.returncode, DONE, r.stderr)
                b = self.json(4, *words, "--trace", trace, "--steps", 12, model=model, cluster=quick)["balance"]
                steps = ek_cli.metrics(self.path("run"))[12 - b["steps"]:]
                for key, digits in (("replicas", 9), ("replicas_ahead", 9), ("replica_mb", 3)):
                    self.assertAlmostEqual(b[key], sum(m[key] for m in steps) / len(steps), places=digits, msg=key)
                self.assertGreater(b["replicas"], 3)
                if "exact" not in words and "prophet" not in words:
                    self.assertLess(0, b["replicas_ahead"])
                    self.assertLess(b["replicas_ahead"], b["replicas"])

    def test_text_says_what_a_step_takes_and_where_it_goes(self):
        text = self.simulate(8, "--pp", 2, "--ep", 4, "--micro-batch", 8).stdout
        for wanted in ("toy: 8 ranks on 2 nodes", "pp 2, dp 4, tp 1; experts edp 1, ep 4, etp 1; zero 0",
                       "tokens/s", "of 200 GFLOP/s (peak)", "expert products", "exposed: ", "(bubble)",
                       "stage   ranks", "a rank has 1.07 GB", "Loads of experts are even"):
            self.assertIn(wanted, text)
        slow = (8, "--pp", 2, "--ep", 4, "--batch", 8, "--seq", 8)
        mfu = self.json(*slow)["mfu"]
        self.assertLess(mfu, 0.0995)
        self.assertIn("\nMFU       %#.3g of " % mfu, self.simulate(*slow).stdout)
        self.assertNotIn("which is too little", text)
        self.assertIn("which is too little", self.simulate(1, "--model", "base").stdout)

    def test_a_trace_loads_ranks_and_policies_level_them(self):
        trace = self.path("hot.npy")
        r = run("workload", "--name", "W1", "--ranks", 8, "--experts", 8, "--layers", 4, "--iterations", 20,
                "--out", trace)
        self.assertEqual(r.returncode, DONE, r.stderr)
        words = [8, "--ep", 8, "--batch", 64, "--micro-batch", 64]
        even = self.json(*words)
        off, exact = (self.json(*words, "--trace", trace, "--balance", b, "--steps", 5) for b in ("off", "exact"))
        self.assertNotIn("balance", even)
        self.assertGreater(off["balance"]["max_over_mean"], 2)
        self.assertLess(exact["balance"]["max_over_mean"], off["balance"]["max_over_mean"])
        self.assertEqual((off["balance"]["policy"], off["balance"]["steps"]), ("off", 5))
        self.assertGreater(exact["balance"]["replicas_a_layer"], 0)
        self.assertLess(0.9 * even["step_ms"], exact["step_ms"])  # replicas also keep rows where they are
        self.assertLess(1.2 * exact["step_ms"], off["step_ms"])
        self.assertGreater(off["where_ms"]["skew"], even["where_ms"]["skew"])
        for s in (off, exact):
            self.assertAlmostEqual(self.all_parts(s["where_ms"]), s["step_ms"], delta=1e-6 * s["step_ms"])
            self.assertLessEqual(s["balance"]["step_ms_p10"], s["balance"]["step_ms_p90"])
        text = self.simulate(*words, "--trace", trace).stdout
        for wanted in ("balance   auto: max/mean", "steps     8 of the trace", "\nSimulated in"):
            self.assertIn(wanted, text)
        model = ek_cli.write_config(self.path("model.json"))
        err = self.simulate(4, "--ep", 4, "--seq", 16, "--trace", trace, status=BAD_INPUT, model=model).stderr
        self.assertIn("the trace is of 8 experts, and the model has 4", err)
        err = self.simulate(4, "--ep", 2, "--etp", 2, "--trace", trace, "--dialect", "etp-gather", status=USAGE).stderr
        self.assertIn("--dialect etp-gather simulates even loads only", err)
        self.simulate(4, "--ep", 2, "--etp", 2, "--dialect", "etp-gather", "--report", self.path("etp.html"))
        err = self.simulate(4, "--ep", 2, "--trace", trace, "--dialect", "node-once", status=USAGE).stderr
        self.assertIn("--dialect node-once simulates even loads only", err)

    def test_a_timeline_has_the_ops_of_the_step(self):
        path = self.path("step.json")
        s = self.json(8, "--ep", 8, "--timeline", path, "--timeline-rank", 5)
        events = json.loads(ek_cli.read(path))["traceEvents"]
        ops = [e for e in events if e["ph"] == "X"]
        self.assertEqual(len(ops), s["classes"][0]["ops"])
        self.assertEqual({e["pid"] for e in events}, {5})
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in ops), s["step_ms"] * 1e3, delta=1)
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        compute = sorted((e["ts"], e["ts"] + e["dur"]) for e in ops if lanes[e["tid"]] == "compute")
        self.assertGreater(len(compute), 50)
        for a, b in zip(compute, compute[1:]):
            self.assertLessEqual(a[1], b[0] + 0.01)

    def test_what_if_tells_what_a_change_would_give(self):
        changes = ["bandwidth[net] x2", "bandwidth[*] x2", "latency[node] x 0.5", "compute x2", "compute x1"]
        words = [8, "--ep", 8, "--pp", 1]
        s = self.json(*words, "--what-if", *changes)
        self.assertEqual([x["change"] for x in s["what_if"]], changes)
        net, both, latency, compute, same = (x["step_ms"] for x in s["what_if"])
        self.assertEqual(same, s["step_ms"])
        self.assertLessEqual(both, net)
        self.assertLess(net, latency)
        self.assertLessEqual(latency, s["step_ms"])
        twice = {**CLUSTER, "rank": {**CLUSTER["rank"], "machine": {"peak": 4e11, "memory_bytes_s": 2e10, "efficiency": 0.5}}}
        self.assertAlmostEqual(compute, self.json(*words, cluster=ek_cli.write(
            self.path("twice.json"), json.dumps(twice)))["step_ms"], places=6)
        self.assertIn("what if\n  compute x2 ", self.simulate(*words, "--what-if", "compute x2").stdout)
        for bad in ("compute", "compute x0", "compute xx2", "bandwidth[leaf] x2", "bandwidth x2", "speed x2", "x2"):
            err = self.simulate(*words, "--what-if", bad, status=USAGE).stderr
            self.assertIn("LEVEL *, or one of node, net", err)

    def test_ranks_share_links_with_the_flow_engine(self):
        words = (8, "--pp", 2, "--ep", 2, "--batch", 64, "--micro-batch", 8)
        steps = {}
        for shared in (1, 4):  # of an adapter that carries as much in all
            levels = [CLUSTER["levels"][0], {**CLUSTER["levels"][1], "gbytes_s": 4 / shared, "shared_by": shared}]
            cluster = ek_cli.write(self.path("shared.json"), json.dumps({**CLUSTER, "levels": levels}))
            for engine in ("replay", "flow", "messages"):
                s = self.json(*words, "--engine", engine, cluster=cluster)
                self.assertEqual(s["engine"], engine)
                self.assertAlmostEqual(self.all_parts(s["where_ms"]), s["step_ms"], delta=1e-6 * s["step_ms"])
                steps[engine, shared] = s["step_ms"]
        self.assertLess(steps["flow", 1], steps["flow", 4])
        self.assertLessEqual(steps["flow", 4], steps["replay", 4] * 1.1)
        text = self.simulate(*words, "--engine", "flow", "--timeline", self.path("step.json"), "--what-if", "compute x2").stdout
        self.assertIn(", with links that ranks share.", text)
        self.assertGreater(len(json.loads(ek_cli.read(self.path("step.json")))["traceEvents"]), 50)
        self.assertLess(steps["messages", 1], steps["messages", 4])
        self.assertLess(abs(steps["messages", 4] / steps["flow", 4] - 1), 0.1)
        self.assertIn(", message by message.", self.simulate(*words, "--engine", "messages").stdout)
        self.assertIn("one of replay, flow, messages", self.simulate(1, "--engine", "fast", status=USAGE).stderr)

    def test_thousands_of_ranks_are_one_class_a_stage(self):
        s = self.json(4096, "--pp", 4, "--ep", 32, "--zero", 1, "--batch", 8192, "--micro-batch", 1024)
        self.assertEqual(s["layout"]["dp"], 1024)
        self.assertEqual([c["ranks"] for c in s["classes"]], 4 * [1024])

    def test_a_report_names_what_is_done_as_other_programs(self):
        words = [8, "--tp", 2, "--dialect", "ring-steps", "low-messages"]
        self.assertEqual(self.json(*words)["dialect"], ["low-messages", "ring-steps"])
        self.assertIn("\nas other programs: low-messages, ring-steps\n", self.simulate(*words).stdout)
        self.assertNotIn("dialect", self.json(8))
        self.assertNotIn("as other programs", self.simulate(8).stdout)

    def test_only_loads_of_a_trace_are_padded(self):
        self.assertIn("--dialect padded: fills up loads of --trace", self.simulate(8, "--dialect", "padded", status=USAGE).stderr)

    def test_rows_cross_nodes_once_where_ranks_of_an_expert_gather_them(self):
        words = [16, "--ep", 8, "--etp", 2, "--batch", 64]  # 4 ranks a node
        each, once = self.json(*words), self.json(*words, "--dialect", "etp-gather")
        self.assertLess(once["sent_mb"]["net"], 0.75 * each["sent_mb"]["net"])  # gradients, too, are sent
        self.assertLess(once["step_ms"], each["step_ms"])

    def test_rows_cross_nodes_once_for_each_node(self):
        words = [16, "--ep", 8, "--batch", 64]  # 4 ranks a node
        for engine in ("replay", "flow", "messages"):
            each, once = self.json(*words, "--engine", engine), self.json(*words, "--engine", engine, "--dialect", "node-once")
            self.assertLess(once["sent_mb"]["net"], each["sent_mb"]["net"])
            self.assertLess(once["step_ms"], each["step_ms"])

    def test_copies_of_a_run_that_survives_cost(self):
        words = [8, "--ep", 4, "--zero", 1, "--batch", 64]  # 4 ranks a node
        plain, partners = self.json(*words), self.json(*words, "--elastic")
        self.assertEqual(("copies to partners" in plain["where_ms"]["transfer"], partners["layout"]), (False, plain["layout"]))
        self.assertGreater(partners["where_ms"]["transfer"]["copies to partners"], 0)
        more = {x: partners["sent_mb"][x] - plain["sent_mb"][x] for x in ("node", "net")}
        self.assertAlmostEqual(more["net"], 4 * plain["params"] / 8e6, delta=0.01 * more["net"])  # gradients, fp32
        self.assertEqual(more["node"], 0)
        self.assertAlmostEqual(partners["memory_mb"]["all"] - plain["memory_mb"]["all"], 4 * more["net"],
                               delta=0.05 * 4 * more["net"])
        self.assertGreater(partners["step_ms"], plain["step_ms"])
        words = [8, "--ep", 8, "--batch", 64]
        one, two = self.json(*words), self.json(*words, "--elastic")
        self.assertEqual(two["copies"], {"nodes": 2, "replicas_min": 2, "spare_slots": 2})
        self.assertNotIn("copies", one)
        experts = 4 * 8 * 3 * 512 * 1024  # numbers; each but the first copy receives the sum
        self.assertAlmostEqual(two["sent_mb"]["net"] - one["sent_mb"]["net"], 4 * experts / 8e6, delta=0.1)
        self.assertGreater(two["step_ms"], one["step_ms"])
        self.assertIn("\ncopies    every expert is on 2 nodes: --replicas-min 2 --spare-slots 2\n",
                      self.simulate(*words, "--elastic").stdout)
        few = (*words, "--balance", "replicate", "--replicas-min", 3, "--spare-slots")
        self.assertIn("\ncopies    some experts are only on 2 nodes: --replicas-min 3 --spare-slots 2, for which nodes or "
                      "slots do not suffice\n", self.simulate(*few, 2).stdout)
        self.assertEqual(self.json(*few, 0)["copies"], {"nodes": 1, "replicas_min": 3, "spare_slots": 0})
        flow = self.json(*words, "--elastic", "--engine", "flow")
        self.assertAlmostEqual(flow["step_ms"] / two["step_ms"], 1, delta=0.2)
        messages = self.json(*words, "--elastic", "--engine", "messages")
        self.assertAlmostEqual(flow["step_ms"] / messages["step_ms"], 1, delta=0.1)
        self.assertEqual(flow["sent_mb"], messages["sent_mb"])
        words = [8, "--ep", 8, "--balance", "place", "--spare-slots", 1, "--engine"]  # one copy of each
        self.assertAlmostEqual(self.json(*words, "messages")["step_ms"] / self.json(*words, "flow")["step_ms"], 1, delta=0.03)

    def test_copies_serve_by_what_rows_and_sums_cost(self):
        """Rows in fp32, of which the machine file has no products, are dear enough that all copies serve, unless sums are dear, too."""
        model = ek_cli.write_config(self.path("model.json"))
        words = [4, "--ep", 2, "--batch", 4, "--micro-batch", 4, "--seq", 64, "--dtype", "fp32", "--a2a", "linear", "--elastic", "--replicas-min", 2]
        sent = []
        for us in (0.001, 1000):
            cluster = {**CLUSTER, "levels": [{"name": "net", "ranks": 4, "gbytes_s": 0.01, "us": us}]}
            file = ek_cli.write(self.path("nodes.json"), json.dumps(cluster))
            sent.append(self.json(*words, "--every-rank", model=model, cluster=file)["sent_mb"]["net"])
        self.assertLess(sent[0], 0.95 * sent[1])

    def test_few_of_many_experts_have_copies_with_the_flow_engine(self):
        model = ek_cli.write_config(self.path("many.json"), hidden_size=512, intermediate_size=1024, num_local_experts=64, max_position_embeddings=256)
        words = [8, "--ep", 8, "--batch", 8, "--balance", "eplb", "--spare-slots", 2]  # one is for transient copies
        replay, flow = (self.json(*words, "--engine", e, model=model)["step_ms"] for e in ("replay", "flow"))
        self.assertAlmostEqual(flow / replay, 1, delta=0.03)

    def failing(self, *words, failures=None, **kw):
        f = {"node_mtbf_h": 100, "back_s": 60, "recover_s": 5, "restart_s": 50, "save_s": 2}
        cluster = ek_cli.write(self.path("failing.json"), json.dumps(
            {**CLUSTER, "failures": failures or f, "price": {"node_hour": 36}}))
        return self.json(*words, cluster=cluster, **kw)

    def test_runs_under_failures(self):
        words = [8, "--ep", 8, "--batch", 64, "--failures"]
        left_out = self.failing(8, "--ep", 8, "--batch", 8, "--failures", "1")
        self.assertGreater(left_out["copies"]["would_lengthen"], 0.05)
        self.assertEqual(left_out["failures"]["survival"], "survives any 1 of 2 nodes with probability 0.00")
        words.insert(1, "--elastic")
        f = self.failing(*words, "1")["failures"]
        self.assertEqual((f["nodes"], f["node_mtbf_s"], f["recover_s"], f["recovers"]), (2, 3600, 5, True))
        self.assertTrue(f["survival"].startswith("survives any 1 of 2 nodes"), f["survival"])
        self.assertEqual([f[x + "_assumed"] for x in ("recover", "restart", "save")], 3 * [False])
        self.assertTrue(0.5 < f["goodput"] < f["ettr"] < 1, f)
        self.assertGreater(f["recoveries"], 10 * f["restarts"])
        self.assertAlmostEqual(f["step_price"], 0.01 * f["node_s"] / f["steps"], places=9)
        self.assertEqual(f, self.failing(*words, "1")["failures"])  # the seed is fixed
        restart = self.failing(*words, "1", "--on-failure", "restart")["failures"]
        self.assertEqual((restart["recovers"], restart["recoveries"], restart["survival"]), (False, 0, ""))
        self.assertTrue(0 < restart["goodput"] < f["goodput"])
        self.assertGreater(restart["saves"], f["saves"])  # each loss needs one
        one = self.failing(*words, "1", "--replicas-min", 1)["failures"]
        self.assertEqual(one["survival"], "survives any 1 of 2 nodes with probability 0.00")
        self.assertEqual(self.failing(*words, "cluster")["failures"]["node_mtbf_s"], 360000)
        never = self.failing(*words, "1e9", "--save-every", 0)["failures"]
        self.assertEqual((never["save_every"], never["saves"]), (0, 0))
        self.assertGreater(never["goodput"], 0.9999)

    def test_parts_that_partners_copy(self):
        """Two nodes have a range of --zero, columns of the embedding, or a stage of one node; all have the rest."""
        words = [12, "--batch", 96, "--failures", "1"]
        for more, any_of in ([], 2), (["--zero", 1], 1), (["--embed-columns"], 1), (["--pp", 3], 1), (["--pp", 3, "--zero", 1], 1):
            with self.subTest(more):
                f = self.failing(*words, *more)["failures"]
                self.assertTrue(f["survival"].startswith("survives any %d of 3 nodes" % any_of), f["survival"])

    def test_slots_stay_idle_where_no_ep_fits(self):
        s = self.failing(17, "--ep", 2, "--batch", 272, "--failures", "1e9")
        self.assertEqual(s["layout"]["ep"], 2)  # a world of 17 ranks has --ep 17
        self.assertEqual(sum(c["ranks"] for c in s["classes"]), 16)

    def test_a_recorded_loss(self):
        record = ek_cli.write(self.path("record.csv"), "0,add,a\n0,add,b\n10000000,remove,b\n20000000,add,c\n")
        words = [8, "--ep", 4, "--batch", 64, "--save-every", 0, "--failures", record]
        s = self.failing(*words)
        half = self.failing(4, "--ep", 4, "--batch", 64)["step_ms"]
        f = s["failures"]
        self.assertEqual((f["losses"], f["recoveries"], f["restarts"], f["seconds"]), (1, 1, 0, 20000))
        self.assertAlmostEqual(f["steps"], 1e7 / s["step_ms"] + 9.995e6 / half, delta=2)
        self.assertEqual(f["node_s"], 30000)
        groups = self.failing(8, "--ep", 8, "--batch", 64, "--failures", record, "--on-failure", "groups")["failures"]
        self.assertEqual((groups["wait_s"], groups["restarts"]), (9950, 1))  # half of a group waits
        text = self.simulate(*words).stdout
        for wanted in ("failures  recorded, 2 of 2 instances", "experts   survives any 1 of 2 nodes", "none is made",
                       "2 instances, 5.56 h: ", "goodput   0.7",
                       "recovery 910 ms (assumed), restart 3.09 s (assumed)", "; waits for nodes 0 s"):
            self.assertIn(wanted, text)

    def test_faults_are_one_sentence(self):
        record = ek_cli.write(self.path("record.csv"), "0,add,a\n0,add,b\n10000,remove,b\n20000,add,c\n")
        for status, said, ranks, words in (
                (USAGE, "--ranks 5000: cluster toy has 4096 (`ranks` of its last level)", 5000, []),
                (USAGE, "--ep 3 does not divide", 8, ["--ep", 3]),
                (USAGE, "--dialect nccl is unknown: ", 8, ["--dialect", "nccl"]),
                (USAGE, "--timeline-rank 8: there are ranks 0 to 7", 8, ["--timeline", "x", "--timeline-rank", 8]),
                (USAGE, "--timeline-rank 8: there are ranks 0 to 7", 9,  # of which failures leave 8
                 ["--pp", 2, "--ep", 2, "--batch", 64, "--failures", "1e9", "--timeline", "x", "--timeline-rank", 8]),
                (BAD_INPUT, "--adaptive-r 0 cannot be simulated", 8, ["--ep", 8, "--adaptive-r", 0]),
                (BAD_INPUT, "--engine messages simulates up to 64 ranks, not 65", 65, ["--engine", "messages"]),
                (BAD_INPUT, "--engine messages does not simulate the copies that --elastic keeps of ranks", 8,
                 ["--pp", 2, "--elastic", "--engine", "messages"]),
                (USAGE, "toy has no key `failures`", 8, ["--failures", "cluster"]),
                (USAGE, "between 1e-6 and 1e12", 8, ["--failures", "0"]),
                (BAD_INPUT, "none.csv", 8, ["--failures", "none.csv"]),
                (USAGE, "--failures: with 1 of 2 nodes, 4 ranks: --batch-shares", 8,
                 ["--failures", record, "--on-failure", "restart", "--batch-shares", "1,1,1,1,1,1,1,2"]),
                (USAGE, "--on-failure", 8, ["--failures", "1", "--on-failure", "hope"]),
                (USAGE, "`simulate` has no option `--resume`", 8, ["--resume"])):
            err = self.simulate(ranks, *words, status=status).stderr
            self.assertIn(said, err)
        err = self.simulate(2, status=BAD_INPUT, cluster=self.path("missing.json")).stderr
        self.assertIn("missing.json", err)
        self.assertEqual(err.count("\n"), 1)
        broken = ek_cli.write(self.path("broken.json"), json.dumps({**CLUSTER, "levels": []}))
        self.assertIn("broken.json", self.simulate(2, status=BAD_INPUT, cluster=broken).stderr)
        err = self.simulate(2, status=BAD_INPUT, model=self.path("none")).stderr
        self.assertEqual(err.count("\n"), 1)
        self.assertFalse(os.path.exists("x"))


if __name__ == "__main__":
    ek_cli.main()
