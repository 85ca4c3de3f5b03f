"""evenkeel plan: replays a routing trace through every planner; what it prints and emits."""

import itertools
import json
import random
import struct

import ek_cli
from ek_cli import machine, run, write

POLICIES = ("off", "fastermoe", "shadow", "place", "prophet", "replicate", "eplb", "exact", "auto")
KEYS = {"policy", "ranks", "slots", "max_over_mean_before", "max_over_mean_mean",
        "max_over_mean_worst", "plan_us_median", "plan_us_p99", "bytes_moved", "plans",
        "predicted_speedup", "rb_median", "persistent_us_mean", "survives", "survival"}

# Micro-batches in which the homes of `rotated` pay for themselves twice over.
PAYS_IN = 8


def write_npy(path, shape, numbers):
    head = "{'descr': '<u4', 'fortran_order': False, 'shape': %r, }" % (tuple(shape),)
    head = head.ljust(117) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack("<%dI" % len(numbers), *numbers))
    return path


class Plan(ek_cli.Case):
    def skewed(self, iterations=6, layers=2, sources=4, experts=10, times=1):
        """A few experts have most of the load, and drift slowly."""
        rng, numbers = random.Random(3), []
        for i in range(iterations):
            for _ in range(layers * sources):
                numbers += [times * rng.randrange(1 + 3000 // (1 + ((e + i // 3) % experts) ** 2))
                            for e in range(experts)]
        return write_npy(self.path("trace.npy"), (iterations, layers, sources, experts), numbers)

    def plan(self, trace, *more, status=0):
        r = run("plan", "--trace", trace, *more)
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def result(self, trace, *more):
        return json.loads(self.plan(trace, "--json", *more).stdout)

    def test_every_policy(self):
        trace, got = self.skewed(), {}
        for policy in POLICIES:
            with self.subTest(policy):
                r = got[policy] = self.result(trace, "--policy", policy, "--ranks", 4,
                                              "--spare-slots", 2)
                self.assertEqual(set(r), KEYS)
                self.assertEqual((r["policy"], r["ranks"], r["slots"], r["plans"]),
                                 (policy, 4, 5, 12))
                self.assertLessEqual(1, r["max_over_mean_mean"])
                self.assertLessEqual(r["max_over_mean_mean"], r["max_over_mean_worst"])
                self.assertLessEqual(r["max_over_mean_mean"], r["max_over_mean_before"] + 1e-9)
                self.assertLessEqual(r["plan_us_median"], r["plan_us_p99"])
        self.assertEqual(got["off"]["bytes_moved"], 0)
        self.assertEqual(got["off"]["max_over_mean_mean"], got["off"]["max_over_mean_before"])
        self.assertEqual(got["off"]["predicted_speedup"], 1)
        self.assertGreater(got["off"]["max_over_mean_before"], 1.5)
        self.assertLess(got["exact"]["max_over_mean_worst"], 1.01)
        self.assertGreater(got["exact"]["predicted_speedup"], 1.4)
        self.assertGreater(got["exact"]["rb_median"], 10)
        self.assertEqual(got["off"]["rb_median"], 1)
        self.assertIn("deviation   of rank loads %.4g times" % got["exact"]["rb_median"],
                      self.plan(trace, "--policy", "exact", "--ranks", 4, "--spare-slots", 2).stdout)
        self.assertGreaterEqual(got["auto"]["predicted_speedup"],
                                max(r["predicted_speedup"] for r in got.values()) * 0.999)
        for policy in POLICIES[2:]:
            self.assertLess(got[policy]["max_over_mean_mean"], got["off"]["max_over_mean_mean"])
            self.assertGreater(got[policy]["bytes_moved"], 0)

    def test_a_lag_costs_balance(self):
        trace = self.skewed()
        now = self.result(trace, "--policy", "exact", "--ranks", 4)
        late = self.result(trace, "--policy", "exact", "--ranks", 4, "--lag", 3)
        self.assertEqual(late["plans"], 6)
        self.assertGreater(late["max_over_mean_mean"], now["max_over_mean_mean"] + 0.05)

    def rotated(self, name, by, iterations=2):
        """Two layers: experts `by` and `by` + 1, which start on one rank, are hot; none is."""
        numbers = [50000 if e in (by, by + 1) else 2000 for e in range(12)] + [2000] * 12
        return write_npy(self.path(name), (iterations, 2, 12), numbers * iterations)

    def emitted(self, trace, *more):
        """The result, and the emitted plans by layer and iteration."""
        lines = self.path("plans.jsonl")
        r = self.result(trace, "--ranks", 4, "--emit", lines, *more)
        with open(lines, encoding="utf-8") as f:
            plans = [json.loads(line) for line in f]
        return r, plans[::2], plans[1::2]

    def stayed(self, r, plan):
        return [s // r["slots"] for s in plan["primary"]] == [e // 3 for e in range(12)]

    def test_homes_by_another_trace(self):
        past, now = self.rotated("past.npy", 0), self.rotated("now.npy", 6)
        for policy, judged, low, high in (("place", past, 1, 1.8), ("place", now, 1.8, 3),
                                          ("eplb", past, 1, 1.3), ("eplb", now, 1.5, 3),
                                          ("auto", past, 1, 1.01), ("auto", now, 1, 1.01)):
            with self.subTest((policy, judged)):
                r, hot, even = self.emitted(judged, "--policy", policy, "--history", past)
                self.assertTrue(low <= r["max_over_mean_worst"] <= high, r)
                self.assertGreater(r["persistent_us_mean"], 0)
                self.assertEqual(hot[0]["primary"], hot[1]["primary"])  # they last
                self.assertFalse(self.stayed(r, hot[0]))
                if policy == "auto":
                    self.assertRegex(hot[0]["primary_reason"],
                                     "^2 of 12 experts move: 16.5 ms -> .* ms per micro-batch, ")
                    self.assertRegex(even[0]["primary_reason"], "^no move, ")
                    self.assertRegex(hot[0]["reason"], r"^\d+ replicas, at most \d per link: ")
                else:
                    self.assertNotEqual(hot[0]["reason"], even[0]["reason"])
                    self.assertEqual(hot[0]["primary_reason"], "")

    def test_homes_stay_where_they_do_not_pay(self):
        past = self.rotated("past.npy", 0)
        for horizon, stay in ((1, True), (PAYS_IN - 1, True), (PAYS_IN, False)):
            with self.subTest(horizon):
                r, hot, _ = self.emitted(past, "--policy", "auto", "--history", past, "--horizon",
                                         horizon)
                self.assertEqual(self.stayed(r, hot[0]), stay)
                self.assertEqual(hot[0]["primary_reason"].startswith("no move, "), stay)

    def test_homes_by_the_iterations_before(self):
        r, hot, _ = self.emitted(self.rotated("t.npy", 0, 13), "--policy", "auto", "--horizon",
                                 PAYS_IN)
        self.assertEqual([p["primary_reason"] != "" for p in hot], [False] + [True] * 12)
        self.assertEqual([self.stayed(r, p) for p in hot], [True] + [False] * 12)

    def test_auto_on_several_nodes_has_both_kinds_of_replicas(self):
        trace, lines, over, late = self.skewed(times=200), self.path("plans.jsonl"), {}, 0
        for policy in "auto", "replicate":
            for least in 1, 2:
                r = self.result(trace, "--policy", policy, "--ranks", 6, "--nodes", 3,
                                "--spare-slots", 3, "--replicas-min", least, "--emit", lines)
                self.assertEqual(r["policy"], policy)
                plans = list(map(json.loads, ek_cli.read(lines).splitlines()))
                over[policy, least] = r["max_over_mean_mean"]
                both = (policy, least) == ("auto", 2)  # the last slots are for transient replicas
                for p in plans:
                    kept = [e if not both or s % r["slots"] < r["slots"] - 1 else -1
                            for s, e in enumerate(p["expert_of"])]
                    hosts = [{s // (2 * r["slots"]) for s, e in enumerate(kept) if e == x}
                             for x in range(10)]
                    self.assertGreaterEqual(min(map(len, hosts)), least)
                    late += kept != p["expert_of"]
        self.assertGreater(late, 0)
        self.assertLess(over["auto", 2], over["replicate", 2])
        r = self.plan(trace, "--policy", "auto", "--ranks", 6, "--replicas-min", 2)
        self.assertRegex(r.stdout, "^auto: .* as replicate, split by the counts")

    def test_what_cannot_be_kept_is_said(self):
        """As train says it."""
        trace = self.skewed()
        for words, said in ((("replicate", 5, 8, 4, 9), "some experts will be on 4 nodes only: their ranks are on 4, and "
                                                        "have 88 slots for 10 experts"),
                            (("auto", 5, 8, 4, 9), "some experts will be on 4 nodes only"),
                            (("replicate", 3, 8, 4, 1), "some experts will be on 2 nodes only: their ranks are on 4, and "
                                                        "have 24 slots for 10 experts"),
                            (("replicate", 3, 8, 4, 9, "--racks", 2), "some experts will be on 2 racks only: their ranks are on 2"),
                            (("exact", 2, 8, 4, 9), "has no effect with --policy exact")):
            policy, least, ranks, nodes, spare, *more = words
            r = self.plan(trace, "--policy", policy, "--replicas-min", least, "--ranks", ranks, "--nodes", nodes,
                          "--spare-slots", spare, *more)
            self.assertRegex(r.stderr, r"^warning: --replicas-min %d:? %s.*\n$" % (least, said))
        for policy, least in ("replicate", 4), ("exact", 1):
            r = self.plan(trace, "--policy", policy, "--replicas-min", least, "--ranks", 8, "--nodes", 4, "--spare-slots", 9)
            self.assertEqual(r.stderr, "")

    def test_what_the_last_placements_outlive(self):
        """Checked against every loss of nodes, from the emitted plans."""
        trace, lines = self.skewed(), self.path("plans.jsonl")
        how = ("--policy", "replicate", "--ranks", 8, "--nodes", 4, "--spare-slots", 2,
               "--replicas-min", 2)
        r = self.result(trace, *how, "--emit", lines)
        last = list(map(json.loads, ek_cli.read(lines).splitlines()))[-2:]
        holders = [{s // (2 * r["slots"]) for s, e in enumerate(p["expert_of"]) if e == x}
                   for p in last for x in range(10)]
        self.assertEqual(r["survives"], min(map(len, holders)) - 1)
        for k, chance in enumerate(r["survival"], 1):
            lost = list(itertools.combinations(range(4), k))
            outlived = [all(h.difference(f) for h in holders) for f in lost]
            self.assertAlmostEqual(chance, sum(outlived) / len(lost), 7)
        self.assertEqual(len(r["survival"]), 3)
        self.assertEqual(r["survival"][0], 1)
        self.assertRegex(self.plan(trace, *how).stdout,
                         r"failures +survives any 1 of 4 nodes; any 2 with probability 0\.\d\d; ")

    def test_preferring_survival(self):
        """GPT-L of Lazarus on 10 nodes of 6 slots, strongly skewed: 13 experts have 2 replicas, which
        fit on 3 pairs of nodes, so 3 of 45 losses of two nodes and 24 of 120 of three are fatal."""
        loads = [1 if e < 13 else 4000 for e in range(16)]
        trace = write_npy(self.path("gpt_l.npy"), (1, 16), loads)
        how = ("--policy", "replicate", "--ranks", 10, "--spare-slots", 4, "--replicas-min", 2)
        speed = self.result(trace, *how)
        survival = self.result(trace, *how, "--prefer", "survival")
        self.assertEqual(survival["survival"][0], 1)
        self.assertAlmostEqual(survival["survival"][1], 42 / 45, 7)
        self.assertAlmostEqual(survival["survival"][2], 96 / 120, 7)
        self.assertLess(speed["survival"][1], 0.9)
        self.assertLess(speed["max_over_mean_mean"], 0.95 * survival["max_over_mean_mean"])
        said = self.plan(trace, *how).stdout
        self.assertRegex(said, r"survival +--prefer survival: max/mean %.4f, .*\n +survives any 1 of 10 "
                               r"nodes; any 2 with probability 0\.93; any 3 with probability 0\.80"
                         % survival["max_over_mean_mean"])
        self.assertNotIn("--prefer", self.plan(trace, *how, "--prefer", "survival").stdout)
        lines = self.path("plans.jsonl")
        self.plan(trace, *how, "--emit", lines)
        self.assertRegex(ek_cli.read(lines), b"; for survival [0-9]+, any 2 with 0.93")
        self.plan(trace, *how, "--prefer", "luck", status=2)

    def test_ranks_that_differ(self):
        """With one of four ranks at half speed all take the same time, which is 8/7 of that of four."""
        trace = self.skewed(experts=4, times=100)
        how = ["--policy", "exact", "--ranks", 4]
        r = self.result(trace, *how, "--rank-speeds", "1,1,0.5,1")
        self.assertLess(r["max_over_mean_worst"], 1.002)
        lines = self.path("plans.jsonl")
        self.plan(trace, *how, "--rank-speeds", "2,2,1,2", "--emit", lines)
        for p in map(json.loads, ek_cli.read(lines).splitlines()):
            loads = [0] * 4
            for _, slot, n in p["split"]:
                loads[slot // r["slots"]] += n
            for i in (0, 1, 3):
                self.assertAlmostEqual(loads[i], 2 * loads[2], delta=0.002 * loads[i] + 2)
        self.assertIn("of time by rank speeds", self.plan(trace, *how, "--rank-speeds", "1,1,0.5,1").stdout)
        equal = self.result(trace, *how)
        of_equal = self.result(trace, *how, "--rank-speeds", "3,3,3,3")
        self.assertEqual({k: v for k, v in equal.items() if not k.startswith("plan_us")},
                         {k: v for k, v in of_equal.items() if not k.startswith("plan_us")})
        for bad, said in (("1,1,1", "fewer than the 4 ranks"), ("1,1,1,0", "number 4 of `1,1,1,0` is not"),
                          ("1,1,1,1,1", "more than the 4 ranks"), ("1,1,1,x", "number 4"),
                          ("1,1,1,nan", "number 4"), ("1,1,,1", "number 3"), ("1,1;1,1", "number 2")):
            self.assertIn(said, self.plan(trace, *how, "--rank-speeds", bad, status=2).stderr)

    def test_racks(self):
        """Two nodes of a rack may be all that two of its nodes survive; two racks are better."""
        trace, lines = self.skewed(), self.path("plans.jsonl")
        how = ("--policy", "replicate", "--ranks", 8, "--nodes", 8, "--spare-slots", 1,
               "--replicas-min", 2)
        alone = []
        for more in (), ("--racks", 3):
            r = self.result(trace, *how, *more, "--emit", lines)
            racks = [{s // r["slots"] * 3 // 8 for s, e in enumerate(p["expert_of"]) if e == x}
                     for p in map(json.loads, ek_cli.read(lines).splitlines()) for x in range(10)]
            alone.append(sum(len(x) < 2 for x in racks))
            self.assertEqual(r["survives"], 1)
        self.assertGreater(alone[0], 0)
        self.assertEqual(alone[1], 0)
        out = self.plan(trace, *how, "--racks", 3).stdout
        self.assertRegex(out, r"failures +survives any 1 of 8 nodes; .*\n +survives any 1 of 3 racks; ")
        self.assertNotIn("racks", self.plan(trace, *how, "--racks", 1).stdout)
        r = self.plan(trace, *how, "--racks", 9, status=2)
        self.assertIn("--racks 9 is more than the 8 nodes", r.stderr)

    def test_missing_axes_and_more_ranks_than_experts(self):
        trace = write_npy(self.path("two.npy"), (1, 3), (700, 70, 0))
        r = self.result(trace, "--ranks", 7)
        self.assertEqual((r["slots"], r["plans"]), (2, 1))
        self.assertAlmostEqual(r["max_over_mean_before"], 700 / 110, 6)
        self.assertEqual(r["max_over_mean_mean"], 1)

    def test_emitted_plans_serve_every_assignment(self):
        trace = self.skewed(2, 1, 3, 5)
        lines = self.path("plans.jsonl")
        self.plan(trace, "--ranks", 3, "--policy", "exact", "--nodes", 2, "--emit", lines)
        with open(trace, "rb") as f:
            numbers = struct.unpack("<30I", f.read()[128:])
        with open(lines, encoding="utf-8") as f:
            plans = [json.loads(line) for line in f]
        self.assertEqual([(p["iteration"], p["layer"]) for p in plans], [(0, 0), (1, 0)])
        for i, p in enumerate(plans):
            self.assertEqual([p["expert_of"][s] for s in p["primary"]], list(range(5)))
            served = [0] * 15
            for source, slot, n in p["split"]:
                served[source * 5 + p["expert_of"][slot]] += n
            self.assertEqual(served, list(numbers[15 * i:15 * (i + 1)]))
            self.assertRegex(p["reason"], r"^\d+ replicas bring the busiest rank from ")

    def test_text(self):
        out = self.plan(self.skewed(), "--ranks", 4).stdout
        self.assertRegex(out, r"^exact: ")
        self.assertRegex(out, r"trace +6 iterations, 2 layers, 4 sources, 10 experts\n")
        self.assertIn(", 2 layers, 1 source, ", self.plan(self.skewed(sources=1), "--ranks", 4).stdout)
        self.assertRegex(out, r"max/mean +[\d.]+ before, [\d.]+ with 12 plans, worst [\d.]+\n")

    def one_hot(self):
        """One of two experts has all the load, so `exact` makes one replica per layer."""
        return write_npy(self.path("hot.npy"), (1, 1, 2, 2), (100000, 0, 100000, 0))

    def write_machine(self, **how):
        return write(self.path("machine.json"), json.dumps(machine(**how)))

    def test_sizes_of_a_model(self):
        trace = self.one_hot()
        expert = 3 * 512 * 1024  # numbers of `small`
        built_in = self.result(trace, "--ranks", 2)
        self.assertEqual(built_in["bytes_moved"], 3 * 2048 * 1024 * 4)
        self.assertEqual(self.result(trace, "--ranks", 2, "--model", "small")["bytes_moved"],
                         expert * 4)
        for dtype, size in (("bf16", 2 + 4), ("fp32", 2 * 4), ("fp64", 2 * 8)):
            with self.subTest(dtype):
                file = self.write_machine(dtype=dtype)
                r = self.result(trace, "--ranks", 2, "--model", "small", "--machine", file)
                self.assertEqual(r["bytes_moved"], expert * size)
                r = self.result(trace, "--ranks", 2, "--machine", file)
                self.assertAlmostEqual(r["bytes_moved"] / (3 * 2048 * 1024 * size), 1, 7)

    def test_times_of_a_machine(self):
        """One rank serves 200000 rows, half of them from the other; or each serves its own."""
        file = self.write_machine()
        r = self.result(self.one_hot(), "--ranks", 2, "--model", "small", "--machine", file)
        row = 18 * 512 * 1024 / 1e12 + (8 * 512 + 9 * 1024) * 2 / 1e12
        send = (4 * 512 * 2 + 2 * 4) / 1e9
        replica = 3 * 512 * 1024 * 6 / 1e9
        before, after = 200000 * row + 100000 * send, 100000 * row + replica
        self.assertAlmostEqual(r["predicted_speedup"] / (before / after), 1, 4)

    def test_a_slow_link_is_not_worth_it(self):
        dear = self.write_machine(flops=1e16, link=1e5)
        r = self.result(write_npy(self.path("even.npy"), (1, 1, 2, 2), (110, 100, 110, 100)),
                        "--policy", "shadow", "--ranks", 2, "--model", "small", "--machine", dear)
        self.assertEqual(r["bytes_moved"], 0)

    def test_text_with_reasons(self):
        file = self.write_machine(links=("node",))
        out = self.plan(self.one_hot(), "--ranks", 2, "--model", "small", "--machine", file).stdout
        self.assertIn("predicted for made by hand:\n", out)
        self.assertRegex(out, r"expert row +9\.46 us +=.* 100000 rows an expert\n")
        self.assertRegex(out, r"forward +3\.15 us +=.*3\.15 MFLOP at 1\.00 TFLOP/s\n")
        self.assertIn("the other class, as this was not measured", out)

    def test_bad_machines(self):
        trace, good = self.one_hot(), machine()
        for change, text in (({"evenkeel_machine": 3}, "version 3"), ({"dtype": "int8"}, "int8"),
                             ({"more": 1}, "key `more` is unknown"), ({"expert": 1}, "an object")):
            with self.subTest(change):
                file = write(self.path("bad.json"), json.dumps({**good, **change}))
                r = self.plan(trace, "--ranks", 2, "--machine", file, status=3)
                self.assertIn("bad.json: ", r.stderr)
                self.assertIn(text, r.stderr)
        self.plan(trace, "--ranks", 2, "--machine", self.path("missing.json"), status=3)
        self.plan(trace, "--ranks", 2, "--model", "enormous", status=3)
        alone = self.write_machine(links=())
        r = self.plan(trace, "--ranks", 2, "--machine", alone, status=2)
        self.assertIn("was measured with one rank", r.stderr)

    def test_mistakes(self):
        trace = self.skewed()
        one_layer = write_npy(self.path("one.npy"), (1, 1, 10), range(10))
        for more, status, text in (
                (("--ranks", 4, "--policy", "best"), 2, "off, shadow, fastermoe, place, prophet, replicate, eplb, exact, auto"),
                (("--ranks", 4, "--lag", 6), 2, "a lag of 6 iterations, and the trace has 6"),
                (("--ranks", 4, "--nodes", 5), 2, "--nodes 5 is more than --ranks 4"),
                (("--ranks", 4, "--policy", "auto", "--history", self.rotated("h.npy", 0)), 2,
                 "the history has 2 layers of 12 experts, the trace 2 of 10"),
                (("--ranks", 4, "--policy", "auto", "--history", one_layer), 2,
                 "the history has 1 layers of 10 experts, the trace 2 of 10"),
                (("--ranks", 4, "--history", self.path("none.npy")), 3, "none.npy"),
                ((), 2, "--ranks"),
                (("--ranks", 4, "--emit", self.path("no/such")), 3, "no/such"),
                (("--ranks", 4, "--emit", "/dev/full"), 1, "cannot write the plans")):
            with self.subTest(more):
                r = self.plan(trace, *more, status=status)
                self.assertEqual(r.stdout, "")
                self.assertIn(text, r.stderr)
        broken = self.path("broken.npy")
        with open(broken, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00")
        self.assertIn("broken.npy", self.plan(broken, "--ranks", 2, status=3).stderr)
        self.plan(self.path("missing.npy"), "--ranks", 2, status=3)


if __name__ == "__main__":
    ek_cli.main()
