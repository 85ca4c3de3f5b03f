"""train --layout auto, --layout-pool, --layout-every: which layout a run has, how it changes it, that losses do not
depend on it, and what is refused."""

import json
import os
import signal

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, INTERRUPTED, USAGE, run, start

RANKS = 2


def cluster(us):
    """Latency of a message in microseconds: it is what a step takes here, by simulation."""
    return {"evenkeel_cluster": 1, "name": "toy",
            "rank": {"memory": "1G", "machine": {"peak": 2e13, "memory_bytes_s": 1e13, "efficiency": 0.5}},
            "levels": [{"name": "net", "ranks": RANKS, "gbytes_s": 1000, "us": us}]}


def layout(step_ms, **options):
    return {"options": {k.replace("_", "-"): v for k, v in options.items()}, "step_ms": step_ms, "memory_mb": 1}


class Layout(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.cluster = ek_cli.write(self.path("cluster.json"), json.dumps(cluster(1e5)))

    def pool(self, *layouts, **more):
        params = run("train", "--model", self.config, "--data", self.data, "--out", self.path("none"), "--seq", 16,
                     "--dry-run", "--json")
        self.assertEqual(params.returncode, DONE, params.stderr)
        pool = {"evenkeel_pool": 1, "ranks": RANKS, "batch": 4, "seq": 16,
                "params": json.loads(params.stdout)["params"], "layouts": list(layouts), **more}
        return ek_cli.write(self.path("pool.json"), json.dumps(pool))

    def ranks(self, out, *more, status=DONE, **kw):
        """A run of several ranks; returns its messages and its summary."""
        r = run(*self.train_args(out, "--threads", 1, "--ranks", RANKS, "--json", *more, **kw))
        self.assertEqual(r.returncode, status, r.stderr)
        return r.stderr, json.loads(r.stdout) if status == DONE else None

    def settings(self, out):
        return json.loads(ek_cli.read(self.path(out, "run.json")))["settings"]

    def near(self, a, b):
        a, b = ek_cli.losses(self.path(a)), ek_cli.losses(self.path(b))
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=1e-9 * y)

    def test_auto_takes_the_layout_that_search_finds(self):
        found = run("search", "--cluster", self.cluster, "--ranks", RANKS, "--model", self.config, "--batch", 4,
                    "--seq", 16, "--dtype", "fp32", "--json")
        self.assertEqual(found.returncode, DONE, found.stderr)
        best = json.loads(found.stdout)["best"][0]["options"]
        err, summary = self.ranks("auto", "--layout", "auto", "--cluster", self.cluster)
        self.assertIn("layouts searched in", err)
        settings = self.settings("auto")
        for name, value in best.items():
            self.assertEqual(str(settings[name]), str(value), name)
        self.assertEqual(settings["layout"], "auto")
        self.assertNotIn("layout-pool", settings)
        self.assertEqual(summary["layout"]["changes"], 0)
        self.assertIn("--micro-batch %d" % best["micro-batch"], summary["layout"]["options"])
        self.train("one", "--micro-batch", best["micro-batch"], dtype="fp64")
        self.ranks("again", "--layout", "auto", "--cluster", self.cluster, "--micro-batch", best["micro-batch"],
                   dtype="fp64")
        self.near("one", "again")
        text = run(*self.train_args("dry", "--ranks", RANKS, "--dry-run", "--layout", "auto", "--cluster",
                                    self.cluster)).stdout
        self.assertIn("layout      2 ranks: pp %d" % best["pp"], text)

    def test_the_first_layout_with_the_micro_batch_is_taken(self):
        pool = self.pool(layout(1, ep=2, zero=1, micro_batch=4), layout(2, zero=3, micro_batch=2))
        err, summary = self.ranks("first", "--layout-pool", pool)
        self.assertIn("layout --ep 2 --zero 1 --micro-batch 4: number 1 of 2 in the pool, 1 with this", err)
        self.assertEqual(summary["layout"], {"options": "--ep 2 --zero 1 --micro-batch 4", "changes": 0})
        err, _ = self.ranks("second", "--layout-pool", pool, "--micro-batch", 2)
        self.assertIn("layout --zero 3 --micro-batch 2: number 2 of 2", err)
        settings = self.settings("second")
        self.assertEqual((settings["zero"], settings["ep"], settings["layout-pool"]), ("3", 1, pool))
        self.train("one", "--micro-batch", 2, dtype="fp64")
        self.ranks("third", "--layout-pool", pool, "--micro-batch", 2, dtype="fp64")
        self.near("one", "third")

    def test_a_run_changes_its_layout_and_computes_the_same(self):
        """By simulation messages alone take time, of which --ep 2 has many more; what these steps save is a multiple of
        what a change needs to pay."""
        every = 500 if b"__asan_init" in ek_cli.read(ek_cli.COMMAND) else 1000
        pool = self.pool(layout(1, ep=2, micro_batch=4), layout(2, micro_batch=4), layout(3, zero=3, micro_batch=4),
                         layout(4, pp=2, micro_batch=2))
        words = ["--layout-pool", pool, "--layout-every", every, "--cluster", self.cluster, "--eval-data", self.data,
                 "--eval-every", 300, "--lr-schedule", "constant", "--warmup", 0, "--lr", 1e-4]
        out = self.path("run")
        args = self.train_args("run", "--threads", 1, "--ranks", RANKS, *words, dtype="fp64", steps=100000)
        with start(*args) as p:
            said = []
            for line in p.stderr:
                said.append(line)
                if "the run continues with other settings" in line:
                    break
                self.assertLess(ek_cli.lines_of(os.path.join(out, "metrics.jsonl")), 30000, "".join(said))
            done = ek_cli.lines_of(os.path.join(out, "metrics.jsonl"))
            ek_cli.wait_for_steps(p, out, done + 5)
            p.send_signal(signal.SIGINT)
            said = "".join(said) + p.communicate(timeout=ek_cli.TIMEOUT_S)[1]
        self.assertEqual(p.returncode, INTERRUPTED, said)
        self.assertIn("changing to the layout --micro-batch 4: by simulation", said)
        settings = self.settings("run")
        self.assertEqual((settings["ep"], settings["layout-every"]), (1, every))
        metrics = ek_cli.metrics(out)
        self.assertEqual([m["step"] for m in metrics], list(range(len(metrics))))
        bytes_ = [m["comm_bytes"] for m in metrics]  # layouts without --ep send as many in all steps
        changed = next(i for i in range(len(bytes_)) if bytes_[i:] == bytes_[-1:] * (len(bytes_) - i))
        self.assertEqual(changed % every, 0)
        self.assertGreater(changed, 0)
        self.train("one", "--micro-batch", 4, *words[-10:], dtype="fp64", steps=len(metrics))
        self.near("one", "run")
        for a, b in zip(metrics[:-1], ek_cli.metrics(self.path("one"))):
            self.assertEqual("eval_loss" in a, "eval_loss" in b, a["step"])
        err, _ = self.ranks("run", "--resume", "--steps", len(metrics) + 3, dtype="fp64")
        self.assertIn("layout --micro-batch 4: number 2 of 4", err)  # the one that it had
        self.assertEqual(self.settings("run")["ep"], 1)
        err, _ = self.ranks("run", "--resume", "--steps", len(metrics) + 6, "--zero", 1, dtype="fp64")
        self.assertNotIn("in the pool", err)  # options of a layout end its choice
        self.assertEqual(self.settings("run")["zero"], "1")
        self.assertNotIn("layout-pool", self.settings("run"))

    def test_faults_are_one_sentence(self):
        pool = self.pool(layout(1, ep=2, micro_batch=4))
        other = ek_cli.write(self.path("other.json"), json.dumps({**json.loads(ek_cli.read(pool)), "params": 7}))
        long = ek_cli.write(self.path("long.json"), json.dumps({**json.loads(ek_cli.read(pool)), "seq": 17}))
        four = ek_cli.write(self.path("four.json"), json.dumps({**json.loads(ek_cli.read(pool)), "ranks": 4}))
        bad = ek_cli.write(self.path("bad.json"), "{}")
        for status, said, words in (
                (USAGE, "--layout auto: give --cluster", ["--layout", "auto"]),
                (USAGE, "--layout auto chooses --ep: leave one of them out",
                 ["--layout", "auto", "--cluster", self.cluster, "--ep", 2]),
                (USAGE, "--layout-pool chooses --zero", ["--layout-pool", pool, "--zero", 1]),
                (USAGE, "--layout pool: give --layout-pool", ["--layout", "pool"]),
                (USAGE, "--layout-every: give --layout-pool", ["--layout-every", 5]),
                (USAGE, "--layout-every: give --cluster", ["--layout-pool", pool, "--layout-every", 5]),
                (USAGE, "--layout-every does not work with --timeline, --record-routing",
                 ["--layout-pool", pool, "--layout-every", 5, "--cluster", self.cluster, "--timeline"]),
                (USAGE, "--layout-every does not work with --reroute topology",
                 ["--layout-pool", pool, "--layout-every", 5, "--cluster", self.cluster, "--reroute", "topology"]),
                (USAGE, "none of its 1 layouts has --micro-batch 2", ["--layout-pool", pool, "--micro-batch", 2]),
                (USAGE, "for a model of 7 parameters", ["--layout-pool", other]),
                (USAGE, "steps of 4 sequences of 17 tokens", ["--layout-pool", long]),
                (USAGE, "its layouts are of 4 ranks, and there are 2", ["--layout-pool", four]),
                (BAD_INPUT, "bad.json is no pool of layouts", ["--layout-pool", bad]),
                (BAD_INPUT, "missing.json", ["--layout-pool", self.path("missing.json")]),
                (BAD_INPUT, "missing.json", ["--layout-pool", pool, "--layout-every", 5, "--cluster",
                                             self.path("missing.json")]),
                (FAILED, "fits in", ["--layout", "auto", "--cluster", self.cluster, "--memory-limit", "10K"])):
            r = run(*self.train_args("bad", "--threads", 1, "--ranks", RANKS, *words))
            self.assertEqual(r.returncode, status, (words, r.stderr))
            self.assertIn(said, r.stderr)
            lines = [s for s in ek_cli.without_waits(r.stderr).splitlines() if not s.startswith(("info:", "Try "))]
            self.assertEqual(len(lines), 1, r.stderr)
            self.assertFalse(os.path.exists(self.path("bad")))


if __name__ == "__main__":
    ek_cli.main()
