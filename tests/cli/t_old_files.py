"""Files that version 0.1.0 wrote are read by this version, with the same results."""

import glob
import json
import os
import shutil

import ek_cli
from ek_cli import DONE, losses, metrics, read, run

OLD = os.path.join(ek_cli.TEST_DATA, "golden", "written_by_0.1")
# Keys that have been renamed since: old name -> current name.
KEYS = {"home": "primary"}


def old(*names):
    return os.path.join(OLD, *names)


class Runs(ek_cli.Case):
    """A run of two ranks, with a trace of its routing, its plans and evaluations."""

    def setUp(self):
        super().setUp()
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec")
        shutil.copytree(old("trained"), self.path("run"), symlinks=True)

    def resume(self, *more):
        r = run("train", "--out", self.path("run"), "--resume", "--steps", 8, "--model",
                old("config.json"), "--data", old("data.bin"), "--eval-data", old("held_out.bin"),
                *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return r

    def test_goes_on_with_the_losses_that_it_had(self):
        self.resume()
        expected = json.loads(read(old("losses.json")))
        got = losses(self.path("run"))
        self.assertEqual(len(got), len(expected))
        for g, e in zip(got, expected):
            self.assertAlmostEqual(g, e, delta=1e-9 * e)
        steps = metrics(self.path("run"))
        self.assertEqual([m["lr"] for m in steps], [3e-3] * 8)
        self.assertEqual([m["step"] for m in steps if "eval_loss" in m], [1, 3, 5, 7])
        self.assertGreater(min(m["replicas"] for m in steps[4:]), 0)  # `exact` was kept, too

    def test_goes_on_with_another_layout(self):
        self.resume("--ranks", 1, "--record-plans=false")
        for g, e in zip(losses(self.path("run")), json.loads(read(old("losses.json")))):
            self.assertAlmostEqual(g, e, delta=1e-9 * e)

    def test_checkpoint_is_checked_and_evaluated(self):
        r = run("check", "--checkpoint", self.path("run"), "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(json.loads(r.stdout)["step"], 4)
        r = run("eval", "--model", self.path("run"), "--data", old("held_out.bin"), "--seq", 16,
                "--dtype", "fp64", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        expected = json.loads(read(old("trained", "evaluation.json")))
        self.assertEqual(expected["step"], 4)
        self.assertAlmostEqual(json.loads(r.stdout)["loss"], expected["loss"],
                               delta=1e-9 * expected["loss"])

    def test_routing_is_replayed(self):
        r = run("train", "--model", old("config.json"), "--data", old("data.bin"), "--batch", 4,
                "--seq", 16, "--steps", 3, "--out", self.path("again"), "--replay-routing",
                old("trained", "routing.npy"))
        self.assertEqual(r.returncode, DONE, r.stderr)


class Plans(ek_cli.Case):
    MORE = {"replicate": ("--replicas-min", 2, "--nodes", 2, "--spare-slots", 4),
            "auto": ("--history", old("trace.npy"), "--lasts", 4)}
    REASONS = ("why", "why_homes", "reason", "primary_reason")

    def lines(self, path):
        """Plans under their current keys, without reasons, whose wording may change."""
        plans = [json.loads(line) for line in read(path).splitlines()]
        return [{KEYS.get(k, k): v for k, v in p.items() if k not in self.REASONS} for p in plans]

    def test_the_same_trace_and_machine_give_the_same_plans(self):
        files = sorted(glob.glob(old("plans-*.jsonl")))
        self.assertEqual(len(files), 9)
        for file in files:
            policy = os.path.basename(file)[len("plans-"):-len(".jsonl")]
            with self.subTest(policy):
                r = run("plan", "--trace", old("trace.npy"), "--ranks", 4, "--policy", policy,
                        "--machine", old("machine.json"), "--model", old("config.json"), "--emit",
                        self.path("plans.jsonl"), *self.MORE.get(policy, ()))
                self.assertEqual(r.returncode, DONE, r.stderr)
                self.assertEqual(self.lines(self.path("plans.jsonl")), self.lines(file))


if __name__ == "__main__":
    ek_cli.main()
