"""`evenkeel plan`: a routing trace played through every planner, what it prints and emits."""

import json
import random
import struct

import ek_cli
from ek_cli import run

POLICIES = ("off", "shadow", "place", "prophet", "replicate", "eplb", "exact")
KEYS = {"policy", "ranks", "slots", "max_over_mean_before", "max_over_mean_mean",
        "max_over_mean_worst", "plan_us_median", "plan_us_p99", "bytes_moved", "plans",
        "predicted_speedup", "rb_median"}


def write_npy(path, shape, numbers):
    head = "{'descr': '<u4', 'fortran_order': False, 'shape': %r, }" % (tuple(shape),)
    head = head.ljust(117) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack("<%dI" % len(numbers), *numbers))
    return path


class Plan(ek_cli.Case):
    def skewed(self, iterations=6, layers=2, sources=4, experts=10):
        """A few experts take most, and drift slowly."""
        rng, numbers = random.Random(3), []
        for i in range(iterations):
            for _ in range(layers * sources):
                numbers += [rng.randrange(1 + 3000 // (1 + ((e + i // 3) % experts) ** 2))
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
        for policy in POLICIES[1:]:
            self.assertLess(got[policy]["max_over_mean_mean"], got["off"]["max_over_mean_mean"])
            self.assertGreater(got[policy]["bytes_moved"], 0)

    def test_a_lag_costs_balance(self):
        trace = self.skewed()
        now = self.result(trace, "--policy", "exact", "--ranks", 4)
        late = self.result(trace, "--policy", "exact", "--ranks", 4, "--lag", 3)
        self.assertEqual(late["plans"], 6)
        self.assertGreater(late["max_over_mean_mean"], now["max_over_mean_mean"] + 0.05)

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
            self.assertEqual([p["expert_of"][s] for s in p["home"]], list(range(5)))
            served = [0] * 15
            for source, slot, n in p["split"]:
                served[source * 5 + p["expert_of"][slot]] += n
            self.assertEqual(served, list(numbers[15 * i:15 * (i + 1)]))
            self.assertRegex(p["why"], r"^\d+ replicas bring the busiest rank from ")

    def test_text(self):
        out = self.plan(self.skewed(), "--ranks", 4).stdout
        self.assertRegex(out, r"^exact: ")
        self.assertRegex(out, r"trace +6 iterations, 2 layers, 4 sources, 10 experts\n")
        self.assertRegex(out, r"max/mean +[\d.]+ before, [\d.]+ with 12 plans, worst [\d.]+\n")

    def test_mistakes(self):
        trace = self.skewed()
        for more, status, text in (
                (("--ranks", 4, "--policy", "best"), 2, "off, shadow, place, prophet, replicate, eplb, exact"),
                (("--ranks", 4, "--lag", 6), 2, "a lag of 6 iterations, and the trace has 6"),
                (("--ranks", 4, "--nodes", 5), 2, "--nodes 5 is more than --ranks 4"),
                ((), 2, "--ranks"),
                (("--ranks", 4, "--emit", self.path("no/such")), 1, "no/such"),
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
