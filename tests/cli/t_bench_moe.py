"""evenkeel bench moe, on one rank and on several with each installed MPI: figures are consistent,
every degree does the same work, policies balance the loads of a trace, and invalid arguments are
refused.  No speed is asserted."""

import json
import math
import os
import subprocess
import unittest

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE

FLAVOURS = [f for f in ("MPICH", "OPENMPI") if os.environ.get("EK_MPIEXEC_" + f)]
TIMES = ("ms", "compute_ms", "experts_ms", "net_ms", "exposed_ms")


class Moe(ek_cli.Case):
    def args(self, *more):
        return ["bench", "moe", "--model", self.config, "--threads", "1", "--steps", "2",
                "--batch", "3", "--seq", "16", *more]

    def on_ranks(self, flavour, ranks, *more):
        return subprocess.run(
            [os.environ["EK_MPIEXEC_" + flavour], "-n", str(ranks),
             os.environ["EK_COMMAND_" + flavour], *self.args(*more)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            timeout=ek_cli.TIMEOUT_S, check=False)

    def check_ways(self, out, names, network):
        self.assertEqual([w["way"] for w in out["ways"]], names)
        self.assertIn(out["best"], names)
        first = out["ways"][0]
        rows = 3 * 16 * out["layers"] * 2  # top-2
        for w in out["ways"]:
            for name in TIMES:
                t = w[name]
                self.assertEqual(t["n"], 2)
                self.assertTrue(0 <= t["min"] <= t["median"] <= t["max"] < math.inf, t)
            self.assertGreater(w["compute_ms"]["min"], 0)
            self.assertGreater(w["experts_ms"]["min"], 0)
            self.assertLessEqual(w["experts_ms"]["max"], w["compute_ms"]["max"])
            self.assertLessEqual(w["exposed_ms"]["max"], w["net_ms"]["max"])
            self.assertLessEqual(w["compute_ms"]["median"], w["ms"]["median"])
            self.assertEqual(w["net_ms"]["min"] > 0, network)
            self.assertEqual(w["bytes"] > 0, network)
            for what, is_now in ((w["rows_per_s"], 1e3 * rows / w["ms"]["median"]),
                                 (w["speed"], first["ms"]["median"] / w["ms"]["median"]),
                                 (w["ratio"], max(w["compute_ms"]["median"], w["net_ms"]["median"])
                                  / w["ms"]["median"])):
                self.assertLess(abs(what / is_now - 1), 1e-3)

    def test_one_rank(self):
        r = ek_cli.run(*self.args("--degrees", "2,1", "--json"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        out = json.loads(r.stdout)
        self.assertEqual((out["bench"], out["ranks"], out["ep"], out["steps"]), ("moe", 1, 1, 2))
        self.check_ways(out, ["degree 2", "degree 1"], False)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_ranks(self):
        for flavour in FLAVOURS:
            timeline = self.path("timeline-%s.json" % flavour)
            r = self.on_ranks(flavour, 3, "--ep", "3", "--degrees", "1,3", "--smart-groups", "1",
                              "--a2a", "pairwise", "--json", "--timeline", timeline)
            self.assertEqual(r.returncode, DONE, r.stderr)
            out = json.loads(r.stdout)
            self.assertEqual((out["ranks"], out["nodes"], out["ep"]), (3, 1, 3))
            self.check_ways(out, ["degree 1", "degree 3", "groups of 1"], True)
            # The rows are the same whatever the way; what differs is the counts told beforehand.
            per_row = out["layers"] * 3 * 16 * 2
            for w in out["ways"]:
                self.assertLess(abs(w["bytes"] - out["ways"][0]["bytes"]) / per_row, 64)
            with open(timeline) as f:
                events = json.load(f)["traceEvents"]
            names = {e["name"] for e in events}
            self.assertTrue({"dispatch a2a", "expert up", "unpermute"} <= names or
                            any("expert up" in n for n in names), names)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_results_without_a_timeline(self):
        """A timeline that cannot be written fails the command after its results."""
        for flavour in FLAVOURS:
            r = self.on_ranks(flavour, 2, "--ep", "2", "--degrees", "1", "--json", "--timeline", self.path("nowhere/timeline.json"))
            self.assertNotIn(r.returncode, (DONE, ek_cli.USAGE))
            self.assertIn("nowhere/timeline", r.stderr)
            self.check_ways(json.loads(r.stdout), ["degree 1"], True)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_text(self):
        r = self.on_ranks(FLAVOURS[0], 2, "--ep", "2", "--degrees", "1,2")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(r.stdout.count("\ndegree 1 "), 1, r.stdout)
        self.assertEqual(r.stdout.count("\ndegree 2 "), 1, r.stdout)
        self.assertIn("2 ranks on 1 node, ep 2", r.stdout)

    def hot_expert(self, experts=4):
        path = self.path("loads-%d.npy" % experts)
        r = ek_cli.run("workload", "--name", "W1", "--ranks", 2, "--experts", experts, "--layers", 2,
                       "--iterations", 1, "--tokens", 64, "--out", path)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return path

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_policies_skewed_trace_balance_as_the_plan_says(self):
        for flavour in FLAVOURS:
            r = self.on_ranks(flavour, 2, "--batch", "4", "--ep", "2", "--degrees", "1",
                              "--replay-routing", self.hot_expert(), "--policies",
                              "off,prophet,place,exact,auto", "--budget", "0.1", "--json")
            self.assertEqual(r.returncode, DONE, r.stderr)
            of = {w["way"]: w for w in json.loads(r.stdout)["ways"]}
            # place moves experts between steps only
            self.assertEqual(list(of), ["degree 1", "off", "prophet", "exact", "auto"])
            self.assertEqual((of["degree 1"]["max_over_mean"], of["off"]["replicas"]), (1, 0))
            self.assertGreater(of["off"]["max_over_mean"], 1.1)
            self.assertEqual(of["exact"]["max_over_mean"], 1)
            self.assertGreaterEqual(of["exact"]["replicas"], 2)  # one or more a layer
            self.assertLessEqual(of["auto"]["max_over_mean"], of["off"]["max_over_mean"])

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_refused_policies_and_traces(self):
        for more, status, what in (
                (("--policies", "off,none"), USAGE, "none"),
                (("--policies", "off,off"), USAGE, "twice"),
                (("--policies", ""), USAGE, "empty"),
                (("--replay-routing", self.hot_expert(8)), BAD_INPUT, "8 experts")):
            r = self.on_ranks(FLAVOURS[0], 2, "--batch", "4", "--ep", "2", "--replay-routing",
                              self.hot_expert(), *more)
            self.assertEqual(r.returncode, status, r.stderr)
            self.assertIn(what, r.stderr)
        r = ek_cli.run(*self.args("--replay-routing", self.hot_expert()))
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--ep 2", r.stderr)

    def test_refused(self):
        for degrees in ("", "0", "1,", "1,x", "65", "1,2,3,4,5,6,7,8"):
            r = ek_cli.run(*self.args("--degrees", degrees))
            self.assertEqual(r.returncode, USAGE, degrees + r.stderr)
            self.assertIn("--degrees", r.stderr)
        r = ek_cli.run(*self.args("--ep", "2"))
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--ep", r.stderr)


if __name__ == "__main__":
    ek_cli.main()
