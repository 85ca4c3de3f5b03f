"""evenkeel bench balance, on several ranks with each installed MPI: figures are consistent, all
policies do the same work, bytes follow the type of products, and invalid arguments are refused.
Also bench/balance.py: its table and checks for synthetic results, the type that it passes on, the
traces it cuts, the loads they give ranks, and the least traffic under such loads; the sums of
bench/balance_ops.py, the table of bench/balance_shares.py, and the plans of
bench/balance_even_plans.py.  No speed is asserted."""

import argparse
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import unittest

import ek_cli
from ek_cli import DONE, USAGE

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

import balance  # noqa: E402
import balance_bound  # noqa: E402
import balance_ops  # noqa: E402
import balance_routing  # noqa: E402

FLAVOURS = [f for f in ("MPICH", "OPENMPI") if os.environ.get("EK_MPIEXEC_" + f)]
HEAD = {
    "settings": {"mpi": "mpich", "nodes": 4, "cpu": "0.5", "layers": 1, "experts": 32,
                 "batch": 320, "seq": 256, "rounds": 2, "policies": [], "spare_slots": 1,
                 "plan_every": 10, "seed": 0, "trace": "t.npy"},
    "trace_first": 76, "mbit": 200.0,
    "best": {"mbit": 200.0, "net_ms": 2750.0, "experts_ms": 5500.0, "compute_ms": 5600.0}}


class Bench(ek_cli.Case):
    def loads(self):
        """4 iterations of one layer, in which few experts have most of the load."""
        path = self.path("loads.npy")
        r = ek_cli.run("workload", "--name", "W7", "--ranks", 4, "--experts", 4, "--layers", 2,
                       "--iterations", 4, "--tokens", 64, "--out", path)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return path

    def args(self, *more):
        return [str(a) for a in ("bench", "balance", "--model", self.config, "--threads", 1,
                                 "--ep", 2, "--batch", 4, "--seq", 16, "--steps", 3, *more)]

    def on_ranks(self, flavour, *more):
        return subprocess.run(
            [os.environ["EK_MPIEXEC_" + flavour], "-n", "2", os.environ["EK_COMMAND_" + flavour],
             *self.args(*more)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            timeout=ek_cli.TIMEOUT_S, check=False)

    def check(self, out, policies):
        of = {p["policy"]: p for p in out["policies"]}
        self.assertEqual(list(of), [*policies, "force-balance"])
        for name, p in of.items():
            self.assertEqual(len(p["rounds"]), 3)
            for i, r in enumerate(p["rounds"]):
                self.assertGreater(r["ms"], 0)
                self.assertGreater(r["sent_mb"], 0)
                if name != "force-balance":
                    self.assertLess(abs(r["loss"] / of["off"]["rounds"][i]["loss"] - 1), 1e-3)
                    self.assertEqual(r["before"], of["off"]["rounds"][i]["before"])
            self.assertEqual(p["moved"] > 0, p["move_ms"] > 0)
        for r in of["off"]["rounds"]:
            self.assertEqual((r["replicas"], r["after"]), (0, r["before"]))
            self.assertGreater(r["before"], 1.2)
        for r in of["force-balance"]["rounds"]:
            self.assertEqual((r["before"], r["after"], r["replicas"]), (1, 1, 0))
        for r in of["exact"]["rounds"]:
            self.assertGreater(r["replicas"], 0)
            self.assertLess(r["after"], 1.05)
        self.assertTrue(all(r["replicas"] > 0 for r in of["replicate"]["rounds"]))
        self.assertGreater(of["replicate"]["moved"], 0)
        self.assertGreater(out["cpu_s"], 0)
        self.assertEqual(out["tokens"], 64)

    def check_timelines(self, path):
        """Of two ranks and three rounds of two policies and even loads, and a third of a run before:
        steps with the ops of their policy, and no move between them."""
        ek_cli.write(path.replace(".json", "-rank2.json"), "{}")
        names, ranks = balance_ops.read_ranks(path, False)
        self.assertEqual(len(ranks), 2)
        self.assertEqual(sorted(names),
                         sorted(3 * ["exact", "replicate", balance_ops.EVEN]))
        for steps in ranks:
            for name, step in zip(names, steps, strict=True):
                self.assertGreater(step["expert up"][0], 0)
                self.assertEqual("pack replicas" in step, name != "replicate")
                self.assertNotIn("install experts", step)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_policies_take_turns(self):
        policies = ["off", "shadow", "place", "prophet", "replicate", "exact", "auto"]
        for flavour in FLAVOURS:
            r = self.on_ranks(flavour, "--replay-routing", self.loads(), "--json")
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.check(json.loads(r.stdout), policies)
            path = self.path(flavour + ".json")
            text = self.on_ranks(flavour, "--replay-routing", self.loads(), "--policies",
                                 "exact,replicate", "--timeline", path)
            self.assertEqual(text.returncode, DONE, text.stderr)
            self.check_timelines(path)
            rows = [line.split()[0] for line in text.stdout.splitlines() if " .. " in line]
            self.assertEqual(rows[1:], ["exact", "replicate", "force-balance"])

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_bytes_by_type(self):
        """A replica has its weights in the type of products and gradients in fp32; rows leave and
        return twice in it, as bench/balance_bound.py counts them."""
        sizes = json.loads(ek_cli.read(self.config))
        weights = 3 * sizes["hidden_size"] * sizes["intermediate_size"]
        leave = 64 * 2 * sizes["num_hidden_layers"] / 2  # of 64 tokens with two experts each
        for flavour in FLAVOURS:
            sent = {}
            for dtype, each in balance_bound.TYPES.items():
                r = self.on_ranks(flavour, "--replay-routing", self.loads(), "--policies", "exact",
                                  "--dtype", dtype, "--json")
                self.assertEqual(r.returncode, DONE, r.stderr)
                out = json.loads(r.stdout)
                self.assertEqual(out["dtype"], dtype)
                size = out["costs"]["replica_bytes"]
                self.assertEqual(size, weights * (each + 4))
                self.assertAlmostEqual(size * balance_bound.weight_share(dtype), weights * each)
                sent[dtype] = out["policies"][1]["rounds"][0]["sent_mb"]
            self.assertAlmostEqual(sent["fp32"] - sent["bf16"],
                                   leave * 4 * sizes["hidden_size"] * (4 - 2) * 1e-6, 6)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_results_without_a_timeline(self):
        """A timeline that cannot be written fails the command after its results."""
        for flavour in FLAVOURS:
            r = self.on_ranks(flavour, "--replay-routing", self.loads(), "--policies", "off",
                              "--json", "--timeline", self.path("nowhere/timeline.json"))
            self.assertNotIn(r.returncode, (DONE, USAGE))
            self.assertIn("nowhere/timeline", r.stderr)
            self.assertEqual(len(json.loads(r.stdout)["policies"]), 2)

    def test_refused(self):
        loads = self.loads()
        for more, why in (([], "--replay-routing FILE"),
                          (["--replay-routing", loads, "--policies", "off,best"], "policy best"),
                          (["--replay-routing", loads, "--policies", "off,off"], "off twice"),
                          (["--replay-routing", loads, "--policies", ","], "policy"),
                          (["--replay-routing", loads, "--ep", "1"], "--ep 2 or more"),
                          (["--replay-routing", loads, "--ep", "1", "--past", "5"],
                           "--past 5: the trace has 4 iterations")):
            r = ek_cli.run(*self.args(*more))
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn(why, r.stderr)


def rounds(times, **more):
    return [{"ms": ms, "loss": 5.0 + i, "before": 2.0, "after": 1.25, "plan_ms": 0.125,
             "replicas": 3, "replica_mb": 3.5, "wait_ms": 7.5, "sent_mb": 4.0, **more}
            for i, ms in enumerate(times)]


def start(policies, repeat=0, workload="trace", **more):
    """A start whose steps take these times, by policy."""
    of = [{"policy": p, "moved": 0, "move_ms": 0.0, "rounds": rounds(times)}
          for p, times in policies.items()]
    return {"workload": workload, "bandwidth": 1, "repeat": repeat, "program": "a", "others": 0.01,
            "seconds": 10, "tokens": 1000, "policies": of, **more}


class Table(ek_cli.Case):
    def table(self, rows, status, head=HEAD, tail=""):
        path = ek_cli.write(self.path("results.jsonl"),
                            "".join(json.dumps(r) + "\n" for r in [head, *rows]) + tail)
        r = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "balance.py"), "--table",
                            "--results", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, check=False, timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r.stdout

    def test_row(self):
        out = self.table([start({"exact": [450, 900, 500], "force-balance": [400, 450, 900]})], 0,
                         tail='{"torn')
        self.assertIn("| trace | x 1 | `exact` | 2000 | 0.900 (0.500 .. 1.000) | 2.000 | 1.250 | "
                      "3.5 | 4.0 | 0.125 | 7.5 | 0 | 0 |", out)
        self.assertIn("auto was not measured", out)
        self.assertIn("exact/force-balance on the recorded trace, bandwidth x 1: 0.900", out)

    def test_starts(self):
        out = self.table([start({"off": [800, 800], "force-balance": [400, 400]}),
                          start({"off": [500, 500], "force-balance": [500, 500]}, 1)], 0)
        self.assertIn("`off` | 1625 | 0.750 (0.500 .. 1.000) |", out)
        self.assertIn("2 starts a row", out)

    def test_moves_are_charged(self):
        moved = start({"place": [500, 500], "force-balance": [500, 500]})
        moved["policies"][0].update(moved=6, move_ms=1000.0)
        out = self.table([moved], 0)
        self.assertIn("`place` | 1667 | 0.833 (0.833 .. 0.833) |", out)
        self.assertIn("| 6 | 100 |", out)
        moved["past"], moved["policies"][0]["past_moved"] = 50, 12
        out = self.table([moved], 0)
        self.assertIn("`place` | 1852 | 0.926 (0.926 .. 0.926) |", out)
        self.assertIn("| 6 | 40 |", out)
        moved["costs"] = {"migrate_s_per_expert": 0.25}  # they moved back
        moved["policies"][0].update(moved=0, move_ms=0.0)
        self.assertIn("| 0 | 60 |", self.table([moved], 0))

    def test_auto_behind(self):
        others = {"off": [900, 900], "exact": [500, 500], "force-balance": [400, 400]}
        out = self.table([start({**others, "auto": [505, 505]}, workload="W1")], 1)
        self.assertIn("W1, bandwidth x 1: auto 0.792 is behind exact 0.800", out)
        out = self.table([start({**others, "auto": [400, 640]}, workload="W1")], 0)
        self.assertIn("nowhere by more than the spread", out)

    def test_auto_on_the_trace(self):
        self.assertIn("0.930, at least 0.92 is wanted\n",
                      self.table([start({"auto": [500, 500], "force-balance": [465, 465]})], 0))
        self.assertIn("0.912, at least 0.92 is wanted: missed",
                      self.table([start({"auto": [510, 510], "force-balance": [465, 465]})], 1))

    def test_bound(self):
        """Of 122,880 rows that even loads send, a quarter is saved, less the bytes of two replicas:
        687.5 of 2750 ms."""
        least = {"workload": "W1", "replica_bytes": 1080 * 4104.0,
                 "least": [[90000, 2], [90000, 2]]}
        times = {"exact": [2062.5, 2062.5], "force-balance": [2750, 2750]}
        good = start(times, workload="W1")
        for r in good["policies"][1]["rounds"]:
            r["sent_mb"] = 531.5
        out = self.table([good, least], 0)
        self.assertIn("| W1 | x 1 | 531.5 | 405.4 | 2 | 1.333 | 1.000 | 0.750 |", out)
        self.assertIn("no policy is above the bound", out)
        times["exact"] = [2000, 2000]
        out = self.table([start(times, workload="W1"), least], 0)
        self.assertIn("exact 1.375 is above the bound 1.333 by more than the spreads", out)
        self.assertNotIn("| least |", self.table([start(times, workload="W1")], 0))
        del least["replica_bytes"]  # of an older program
        self.assertNotIn("| least |", self.table([start(times, workload="W1"), least], 0))

    def test_type(self):
        """In fp32 rows have twice the bytes; results without a type are of bf16."""
        head = {**HEAD, "settings": {**HEAD["settings"], "dtype": "fp32"}}
        least = {"workload": "W1", "replica_bytes": 1080 * 8200.0, "least": 2 * [[90000, 2]]}
        even = start({"exact": [2062.5, 2062.5], "force-balance": [2750, 2750]}, workload="W1")
        for r in even["policies"][1]["rounds"]:
            r["sent_mb"] = 1062.0
        out = self.table([even, least], 0, head)
        self.assertIn("`small` in fp32 with 32 experts", out)
        self.assertIn("| W1 | x 1 | 1062.0 | 810.1 | 2 | 1.333 | 1.000 | 0.750 |", out)
        self.assertIn("`small` in bf16 with 32 experts", self.table([even], 0))

    def test_results_of_another_type(self):
        path = self.path("results.jsonl")
        for old, now in (("fp32", "bf16"), (None, "fp32")):
            settings = {**HEAD["settings"], **({"dtype": old} if old else {})}
            ek_cli.write(path, json.dumps({**HEAD, "settings": settings}) + "\n")
            r = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "balance.py"), "--bounds",
                                "--results", path, "--workloads", "W1", "--dtype", now],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               check=False, timeout=ek_cli.TIMEOUT_S)
            self.assertEqual(r.returncode, 1)
            self.assertIn("was measured with dtype %s, and now it is %s" % (old or "bf16", now),
                          r.stderr)

    def test_failed_start(self):
        good = {"exact": [400, 400], "force-balance": [400, 400]}
        failed = {"workload": "W1", "bandwidth": 1, "repeat": 0, "program": "a",
                  "failed": "ended with status 3: no memory"}
        out = self.table([start(good), failed], 1)
        self.assertIn("`exact` | 2500 |", out)
        self.assertIn("failed: W1, bandwidth x 1, start 1: ended with status 3: no memory", out)
        self.assertIn("| W1 | x 1 | `exact` | 2500 |",
                      self.table([start(good), failed, start(good, workload="W1")], 0))

    def test_results_of_another_layout(self):
        old = {**HEAD, "settings": {"steps": 5}}
        path = ek_cli.write(self.path("results.jsonl"), json.dumps(old) + "\n")
        r = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "balance.py"), "--table",
                            "--results", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, check=False, timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(r.returncode, 1)
        self.assertIn("is of an older bench/balance.py: remove it", r.stderr)

    def test_other_work(self):
        other = start({"off": [400, 400], "exact": [400, 400]})
        other["policies"][1]["rounds"][1]["loss"] += 0.1
        other["policies"].append({"policy": "force-balance", "moved": 0, "move_ms": 0.0,
                                  "rounds": rounds([400, 400])})
        out = self.table([other], 1)
        self.assertIn("round 2: losses from 6.000000 to 6.100000: not the same work", out)

    def test_busy_machine(self):
        out = self.table([start({"off": [400, 400], "force-balance": [400, 400]}, others=0.5)], 0)
        self.assertIn("`off` | 2500 | 1.000 (1.000 .. 1.000) * |", out)
        self.assertIn("other programs used more than 0.1 cores", out)


class Shares(ek_cli.Case):
    def files(self):
        """Of one layer, twice, and of four: `auto` takes as long as even loads, then longer."""
        for i, (layers, ms) in enumerate(((1, 5000), (1, 8000), (4, 6250))):
            head = {**HEAD, "settings": {**HEAD["settings"], "layers": layers}}
            least = {"workload": "W0", "replica_bytes": 1e6, "least": 2 * [[122880 * layers, 0]]}
            row = start({"auto": [ms, ms], "force-balance": [5000, 5000]},
                        workload="W0")
            yield ek_cli.write(self.path("shares%d.jsonl" % i),
                               "".join(json.dumps(r) + "\n" for r in (head, row, least)))

    def test_last_counts(self):
        r = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "balance_shares.py"),
                            *self.files()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, check=False, timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("\n| W0 |  | 0.625 * |  |  |  | 0.800 |  |  |\n", r.stdout)


class Words(unittest.TestCase):
    def test_type(self):
        """Both benchmarks get the type."""
        said = []

        class Nodes:
            @staticmethod
            def words(*args):
                return list(args)

            mpiexec = words

            @staticmethod
            def bench(_, *args):
                said.append(list(args))
                return {"ways": [{}]}

        work = object.__new__(balance.Work)
        work.cluster, work.config = Nodes, "config.json"
        work.routing = argparse.Namespace(past=lambda _: 1, file=lambda name: name)
        work.o = argparse.Namespace(dtype="fp32", nodes=4, batch=64, seq=256, rounds=3,
                                    policies=["off"], spare_slots=1, plan_every=10)
        balance.bench_moe(work)
        said.append(work.words("W1", None))
        for args, name in zip(said, ("moe", "balance")):
            self.assertIn(name, args)
            self.assertEqual(args[args.index("--dtype") + 1], "fp32")


class EvenPlans(unittest.TestCase):
    """Two ranks, expert 0 with 30 assignments of each and expert 1 with 10: a replica of expert 0
    levels, and then 10 rows leave each rank; one of each expert keeps all rows."""
    COUNTS = [[30, 10], [30, 10]]

    def setUp(self):
        try:
            from scipy.optimize import milp  # noqa: F401
        except ImportError:
            self.skipTest("bench/balance_even_plans.py needs scipy 1.9 or later")
        import balance_even_plans
        self.of, self.row = balance_even_plans, balance_bound.row_bytes("bf16")

    def least(self, replica, replicas=None, primary=(0, 1), dtype="bf16"):
        size = self.of.bytes_of(dtype, replica)
        plans = self.of.EvenPlans(self.COUNTS, 1, size, primary, replicas)
        return plans.least_sum(10, 0)[2], plans.p.solve([(plans.busiest, 1)], 10, 0)[2]

    def near(self, got, wanted):
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a / b, 1, 5)

    def test_least(self):
        self.near(self.least(3e5), (20 * self.row + 3e5, 10 * self.row + 2e5))
        self.near(self.least(3e5, primary=None), (20 * self.row + 3e5, 10 * self.row + 2e5))
        self.near(self.least(3e3), (6e3, 3e3))
        self.near(self.least(3e3, 1), (20 * self.row + 3e3, 10 * self.row + 2e3))
        row = balance_bound.row_bytes("fp32")
        self.near(self.least(4e5, dtype="fp32"), (20 * row + 4e5, 10 * row + 2e5))
        plans = self.of.EvenPlans(self.COUNTS, 1, self.of.bytes_of("bf16", 3e3), (0, 1), 0)
        self.assertIsNone(plans.least_sum(10, 0)[0])

    def test_no_plan(self):
        """Products that cannot be even without replicas."""
        plans = self.of.EvenPlans(self.COUNTS, 1, self.of.bytes_of("bf16", 3e3), (0, 1), 0)
        none, found = self.of.Column(), self.of.Column()
        none.add(*plans.least_sum(10, 0))
        self.assertEqual(none.text(), "-")
        found.add([1], 3e6, 3e6)
        self.assertEqual(found.text(), "3.0")
        found.add(None, 1e6, None)
        self.assertEqual(found.text(), "4.0 (-)")

    def test_traffic(self):
        """Of the plan with one replica, and of a chain of two, of which the giver comes last."""
        rows = [[[30, 0], [0, 10]], [[10, 20], [0, 10]]]
        of = self.of.Traffic(self.COUNTS, [0, 1], [(0, 1)], rows, self.of.bytes_of("bf16", 3e5))
        self.assertEqual((of.replicas, of.uneven), (1, 1))
        self.near((of.sum, of.link), (20 * self.row + 3e5, 10 * self.row + 2e5))
        stay = [[[9 * (r == s) for r in range(3)]] * 2 for s in range(3)]
        of = self.of.Traffic([[9, 9]] * 3, [0, 1], [(0, 1), (0, 2), (1, 0)], stay,
                             self.of.bytes_of("bf16", 3e5))
        self.assertEqual((of.sum, of.link), (9e5, 3e5))


class Ops(unittest.TestCase):
    def test_runs_and_waits(self):
        """Two steps; a wait at the start of each counts, and ops on another layer are apart."""
        ops = [(1.0, 3.0, "qkv", {"layer": 0}), (4.0, 5.0, "qkv", {"layer": 1}),
               (12.5, 13.0, "losses", {"layer": -1})]
        self.assertEqual(balance_ops.steps_of([0.0, 10.0], ops, False),
                         [{"qkv": [3.0, 2.0]}, {"losses": [0.5, 2.5]}])
        self.assertEqual(balance_ops.steps_of([0.0, 10.0], ops, True)[0],
                         {"qkv 0": [2.0, 1.0], "qkv 1": [1.0, 1.0]})

    def test_totals(self):
        ranks = [[{"expert up": [4.0, 1.0], "qkv 1": [3.0, 0.0]}], [{"expert up": [6.0, 3.0]}]]
        of = balance_ops.sums(ranks, ["exact"], "exact")
        self.assertEqual(of["expert up", "runs"], (5.0, 6.0))
        out = balance_ops.totals(of)
        self.assertEqual((out["products of experts", "runs"], out["the same work", "runs"],
                          out["all", "waits"], out["all", "runs and waits"]), (5.0, 1.5, 2.0, 8.5))


class Cut(ek_cli.Case):
    def test_layers_and_iterations(self):
        """Of 3 iterations and 4 layers, from the last iteration on round to the first."""
        whole, part = self.path("whole.npy"), self.path("part.npy")
        text = "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4, 2, 5), }"
        text += " " * (-(len(text) + 11) % 64) + "\n"
        numbers = range(3 * 4 * 2 * 5)
        ek_cli.write(whole, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() +
                     struct.pack("<120H", *numbers))
        balance_routing.cut_trace(whole, 2, 2, 2, part)
        data = ek_cli.read(part)
        self.assertEqual(len(data) % 64, 2 * 40 % 64)
        self.assertIn(b"'shape': (2, 2, 2, 5)", data[:128])
        got = struct.unpack("<40H", data[-80:])
        at = [(2 * 4 + 1) * 10, (2 * 4 + 3) * 10, 1 * 10, 3 * 10]
        self.assertEqual(list(got), [n for a in at for n in range(a, a + 10)])

    def test_past(self):
        """Rounds follow the past, around a change of the workload if it has any; of a recorded
        trace they are always the same."""
        o = argparse.Namespace(past=100, rounds=3, trace_first=76)
        of = balance_routing.Routing(o, None)
        self.assertEqual((of.past("W2"), of.first("W2")), (100, 100))
        self.assertEqual((of.past("trace"), of.first("trace")), (77, 77))
        for name, (change, period) in balance_routing.CHANGES.items():
            self.assertGreaterEqual(of.first(name), 100)
            self.assertLess(of.first(name), 100 + period)
            self.assertEqual((of.first(name) + 1 - change) % period, 0)
        o.past = 1
        self.assertEqual(of.first("switching"), 19)
        self.assertEqual((of.past("trace"), of.first("trace")), (1, 77))


class Loads(ek_cli.Case):
    def test_of_ranks(self):
        """4 sources on 2 ranks of 8 tokens: blocks of 4 tokens, 8 assignments, 4 of an expert."""
        path = self.path("loads.npy")
        text = "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 1, 4, 3), }"
        text += " " * (-(len(text) + 11) % 64) + "\n"
        numbers = (2, 1, 1, 9, 1, 0, 0, 0, 0, 10, 0, 0)
        ek_cli.write(path, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() +
                     struct.pack("<12I", *numbers))
        # 4 2 2 and 4 4 0; 4 3 1 (the layer's 21 2 1) and 4 2 2
        self.assertEqual(balance_routing.replayed_loads(path, 2, 8), [[[[8, 6, 2], [8, 5, 3]]]])
        self.assertIsNone(balance_routing.replayed_loads(path, 3, 8))


class Least(unittest.TestCase):
    @staticmethod
    def tried(counts, slots, row_bytes, replica_bytes):
        """Bytes of the best of all placements."""
        experts = range(len(counts[0]))
        held = [s for n in range(slots + 1) for s in itertools.combinations(experts, n)]
        best = None
        for of in itertools.product(held, repeat=len(counts)):
            if set().union(*of) != set(experts):
                continue
            sent = sum(map(sum, counts)) - sum(c[e] for c, s in zip(counts, of) for e in s)
            size = sent * row_bytes + (sum(map(len, of)) - len(experts)) * replica_bytes
            best = size if best is None else min(best, size)
        return best

    def test_of_all_placements(self):
        draw = random.Random(5)
        for spare in (0, 1):
            for replica_bytes in (0, 30, 1000):
                counts = [[draw.choice((0, 2, 10, 40)) for _ in range(6)] for _ in range(3)]
                rows, replicas = balance_bound.least_of_layer(counts, 2 + spare, replica_bytes, 4)
                self.assertEqual(rows * 4 + replicas * replica_bytes,
                                 self.tried(counts, 2 + spare, 4, replica_bytes))

    def test_rounds_and_layers(self):
        """Two experts of two ranks: each rank asks for one, then both ask for the same."""
        apart, same = [[50000, 0], [0, 50000]], [[50000, 0], [50000, 0]]
        for dtype in balance_bound.TYPES:
            def least(loads, spare, size):
                return balance_bound.least_traffic(loads, spare, size, dtype)

            rows = 50000 * balance_bound.row_bytes(dtype)
            self.assertEqual(least([[apart], [same], [apart, same]], 1, rows - 1),
                             [[0, 0], [0, 1], [0, 1]])
            self.assertEqual(least([[apart, same]], 1, rows + 1), [[50000, 0]])
            self.assertEqual(least([[apart, same]], 0, 1), [[50000, 0]])

    def test_bound_by_all_to_alls_of_its_bandwidth(self):
        """Even steps of 10 s, no row needs to leave its rank: all of the all-to-alls is saved, as
        measured at the bandwidth, else as scaled from bandwidth 1."""
        even = {"policy": "force-balance", "rounds": [{"ms": 10000.0, "sent_mb": 500.0}]}
        start = {"bandwidth": 0.5, "policies": [even]}
        for at, ratio in (({"1": 2750.0, "0.5": 5000.0}, 2.0), ({"1": 2750.0}, 1 / 0.45)):
            head = {**HEAD, "net_ms_at": at}
            bound = balance_bound.Bound(head, [start], [[0, 0]], 1000)
            self.assertAlmostEqual(bound.ratio, ratio)
            bound = balance_bound.Bound(head, [{**start, "bandwidth": 1.0}], [[0, 0]], 1000)
            self.assertAlmostEqual(bound.ratio, 10 / 7.25)


if __name__ == "__main__":
    ek_cli.main()
