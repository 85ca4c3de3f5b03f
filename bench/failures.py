#!/usr/bin/python3
"""Many random failures of `evenkeel train --elastic` on defaults, over many runs.

Creates a cluster (tools/cluster; needs root), and on it starts run after run of a small model with
--elastic on all nodes and no other option of balance or survival.  In each, workers and nodes are
killed, stopped and cut off at random instants, a part of them while the run still recovers from
the one before.  Then all nodes come back, the run is interrupted, and the script checks that

  * no completed step was lost or repeated while reachable nodes still held a copy of every tensor
    (read from their memory: bench/state_copies.py); where they did not, the run may go back to its
    newest checkpoint, or to the start, and says so: that is counted apart;
  * every step is in metrics.jsonl once, with the loss of an undisturbed run of one rank, up to
    --tolerance;
  * all nodes are used again, no run hangs, and it ends as after any interrupt: with status 130,
    one message, no process and no shared memory left on any node.

It reports the recovery time beside the step (from the failure to the end of the next step, less
that step), and the ETTR: the time that the steps would have taken at the run's own median step on
all nodes, over the time taken.  The time lost to a failure also gives the ETTR at one a minute.

Results are appended to --results, one line for each run; a second call with the same file goes on
behind its last run, until it holds --failures in all.  Without it nothing is kept.  --table prints
the results of such files.

Kinds of failures (tools/chaos --help) are drawn with these weights by default: worker 3, node 3,
two-nodes 1, freeze 3, cut 3, freeze-node 1, recovery 1.

Examples:

    bench/failures.py --failures 10
    bench/failures.py --failures 1000 --results failures.jsonl --minutes 30
    bench/failures.py --table failures.jsonl

Exit status: 0 done, 1 a check failed (the run's folder is kept, and named), 2 wrong usage, 77 no
cluster can be created here.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import state_copies
from harm import (INTERRUPTED, KINDS, Run, Wrong, check_steps, recoveries, say,
                  worst_difference)
from nodes import MIXTRAL, Cluster, add_options

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WEIGHTS = "worker:3,node:3,two-nodes:1,freeze:3,cut:3,freeze-node:1,recovery:1"
NEED_WORKERS = ("worker", "freeze", "recovery")
UNNOTICED = 30  # steps after which a failure counts as survived without a restart
MODEL = {**MIXTRAL, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}

EXPERT_TENSORS = 3 * MODEL["num_hidden_layers"] * MODEL["num_local_experts"]


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter,
                                epilog="Arguments after -- are passed to evenkeel train.")
    add_options(p, "0.5")
    p.add_argument("--slots", type=int, default=1, help="ranks of a node (default: %(default)s)")
    p.add_argument("--bandwidth", default="1gbit", help="of a node (default: %(default)s)")
    p.add_argument("--failures", type=int, default=10, help="in all (default: %(default)s)")
    p.add_argument("--a-run", type=int, default=10, metavar="N",
                   help="failures of one run (default: %(default)s)")
    p.add_argument("--minutes", type=float, help="begin no second run after this time")
    p.add_argument("--kinds", default=WEIGHTS, help="KIND:WEIGHT,... (default: %(default)s)")
    p.add_argument("--again", type=float, default=0.25, metavar="P", help="probability that the "
                   "next failure comes while the run recovers (default: %(default)s)")
    p.add_argument("--every", type=float, metavar="S",
                   help="seconds between failures; default: up to --pause after a recovery")
    p.add_argument("--pause", type=float, default=2, metavar="S", help="(default: %(default)s)")
    p.add_argument("--down", type=float, default=4, metavar="S",
                   help="seconds until a node or link returns (default: %(default)s)")
    p.add_argument("--seed", type=int, default=1, help="of the first run; the next has the next")
    p.add_argument("--tolerance", type=float, default=1e-9, help="relative (default: %(default)s)")
    p.add_argument("--patience", type=float, default=150, metavar="S",
                   help="a run hangs if no step ends for this time (default: %(default)s)")
    p.add_argument("--results", metavar="FILE")
    p.add_argument("--keep-in", metavar="DIR", default=tempfile.gettempdir(),
                   help="where folders of runs that failed a check go (default: %(default)s)")
    p.add_argument("--table", nargs="+", metavar="FILE", help="print the results in these files")
    p.add_argument("--show", action="store_true", help="print progress")
    p.add_argument("--json", action="store_true", help="print results as JSON")
    p.add_argument("train", nargs="*", help="options of evenkeel train")
    o = p.parse_args()
    o.weights = {k: float(w or 1) for k, _, w in (x.partition(":") for x in o.kinds.split(","))}
    if not set(o.weights) <= set(KINDS):
        p.error("unknown kinds of failures; known: %s" % ", ".join(KINDS))
    o.keep = o.script = o.trace = None
    return o


# ---- a run --------------------------------------------------------------------------------------


class Defaults(Run):
    """A run of the small model with --elastic, and random failures in it."""

    def __init__(self, o, cluster, folder, seed):
        super().__init__(o, cluster, folder, None)
        self.rng = random.Random(seed)
        self.tensors = set()  # of the whole model
        self.newest = -1      # generation that was valid at the last failure
        self.window = None    # (begin, end) of the failures: (seconds, steps)
        self.longest_gap = 0.0

    def name_hosts(self, nodes):
        with open(self.hosts, "w") as f:
            f.write("".join("%s slots=%d\n" % (n, self.o.slots) for n in nodes))

    def words(self):
        return [*train_words(self.o), "--ep", str(self.o.nodes * self.o.slots), "--out", self.out,
                "--hosts", self.hosts, "--elastic", "--quiet"]

    def taken(self):
        return len(self.lines("metrics.jsonl"))

    # ---- copies of the state

    def unreachable(self):
        """Nodes that are dead, stopped or cut off now; of two that do not reach each other both."""
        return {n for _, (_, of) in self.due for n in ([of] if isinstance(of, str) else of)}

    def folders_of(self, nodes):
        """/dev/shm of nodes."""
        return ["/proc/%d/root/dev/shm" % pid for node in nodes for pid in self.holders_of(node)]

    def held(self):
        """What reachable nodes hold of the newest generation, an older one being no copy; new
        processes run on a node whose others are stopped."""
        stopped = {node for _, (what, node) in self.due if what == "continue"}
        away = self.unreachable() - stopped
        return state_copies.held(self.folders_of(n for n in self.nodes if n not in away),
                                 self.newest)

    def note_newest(self):
        """Before memory becomes unreachable."""
        self.newest = max(self.newest, state_copies.newest(self.folders_of(self.nodes)))

    def holders_of(self, node):
        nodes, self.nodes = self.nodes, [node]
        try:
            return self.holders()
        finally:
            self.nodes = nodes

    # ---- failures

    def act(self, what, node):
        super().act(what, node)
        if what == "lost":
            self.note_copies()

    def note_copies(self):
        """After memory has become unreachable: whether the rest still has the whole model."""
        if self.failures and not self.held() >= self.tensors:
            self.failures[-1]["copies"] = False

    def recovered(self):
        last = self.failures[-1]
        return super().recovered() or (not self.due and
                                       self.taken() >= last["steps"] + UNNOTICED)

    def draw(self):
        kinds = list(self.o.weights)
        return self.rng.choices(kinds, [self.o.weights[k] for k in kinds])[0]

    def strike(self):
        """Injects one failure, as soon as there is a node for it; False if the run has ended."""
        kind = self.draw()
        while self.running():
            up = [n for n in self.nodes if n not in self.unreachable()]
            if kind in NEED_WORKERS:
                up = [n for n in up if self.workers(n)]
            pending = bool(self.failures) and not self.recovered()
            self.note_newest()
            if len(up) > 1 and self.fail(kind, self.rng.choice(up), self.rng):
                self.failures[-1].setdefault("copies", True)
                self.failures[-1]["while_recovering"] = pending
                self.note_copies()
                return True
            self.wait(lambda: True)
            time.sleep(0.02)
        return False

    def pause(self):
        o = self.o
        if o.every:
            then = self.window[0][0] + o.every * (len(self.failures) + 1)
        elif self.failures and self.rng.random() < o.again:
            then = time.monotonic() + self.rng.random() * 1.5
        else:
            if self.failures:
                self.wait(self.recovered)
            then = time.monotonic() + self.rng.random() * o.pause
        self.wait(lambda: time.monotonic() >= then)

    def wait(self, until, nap=0.01):
        since, steps = time.monotonic(), self.taken()

        def watched():
            nonlocal since, steps
            if self.taken() != steps:
                since, steps = time.monotonic(), self.taken()
            self.longest_gap = max(self.longest_gap, time.monotonic() - since)
            return until()

        super().wait(watched, nap)

    def strike_often(self, n):
        """n failures; then all nodes come back, and the run is interrupted."""
        self.start()
        self.wait(lambda: self.taken() >= 20)
        if self.running():
            self.tensors = self.held()
            if len(self.tensors) <= EXPERT_TENSORS:
                raise Wrong("the nodes' memory has only %d tensors" % len(self.tensors))
            self.window = [(time.monotonic(), self.taken())]
        for _ in range(n):
            self.pause()
            if not self.strike():
                break
        self.wait(self.recovered)
        self.wait(self.is_whole)
        if not self.running():
            raise Wrong("the run ended by itself with status %d" % self.process.returncode)
        self.window.append((time.monotonic(), self.taken()))

    def is_whole(self):
        last = self.generations()[-1]
        return (not self.due and last["ranks"] == self.o.nodes * self.o.slots and
                self.taken() >= last["first_step"] + 4)

    # ---- its end

    def check_no_step_lost(self):
        """Returns how often the run went back without copies, and the steps that this has cost."""
        back = steps = 0
        for k, g in enumerate(self.generations()):
            if k == 0 or g["steps_again"] == 0:
                continue
            if all(f["copies"] for f in self.failures if f["generation"] <= k <= f["until"]):
                raise Wrong("%d completed steps are repeated, from step %d on, although every "
                            "tensor had a copy" % (g["steps_again"], g["first_step"]))
            back, steps = back + 1, steps + g["steps_again"]
        return back, steps

    def note_until(self):
        """The generations that each failure may have caused: up to that of the next one."""
        all_of = len(self.generations())
        for f, after in zip(self.failures, [*self.failures[1:], {"generation": all_of}]):
            f["until"] = after["generation"]


def train_words(o):
    """Options of evenkeel train, but for those of the layout."""
    return ["--model", o.model, "--data", os.path.join(TOP, "docs"), "--tokenizer",
            "bytes", "--steps", "100000", "--batch", "8", "--micro-batch", "1", "--seq", "32",
            "--dtype", "fp64", "--lr", "1e-4", "--threads", "1", *o.train]


# ---- the reference ------------------------------------------------------------------------------


class Reference:
    """The losses of an undisturbed run of one rank, as far as they are needed."""

    def __init__(self, o, folder):
        self.o, self.out = o, os.path.join(folder, "reference")
        self.path = os.path.join(self.out, "metrics.jsonl")

    def count(self):
        try:
            with open(self.path, "rb") as f:
                return f.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def metrics(self, n):
        if self.count() < n:
            resume = ["--resume"] if self.count() else []
            with subprocess.Popen([os.path.realpath(self.o.command), "train",
                                   *train_words(self.o), "--out", self.out, "--quiet", *resume],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True) as p:
                while p.poll() is None and self.count() < n:
                    time.sleep(0.05)
                p.send_signal(signal.SIGINT)
                said = p.communicate()[1]
            if p.returncode != INTERRUPTED:
                raise Wrong("the run without failures ended with status %d: %s" %
                            (p.returncode, said))
        with open(self.path) as f:
            return [json.loads(line) for _, line in zip(range(n), f)]


# ---- results ------------------------------------------------------------------------------------


def step_s(run):
    """The run's median step on all nodes, without the first of each start."""
    first = {g["first_step"] for g in run.generations()}
    times = [m["step_ms"] / 1e3 for m in map(json.loads, run.lines("metrics.jsonl"))
             if m["step"] not in first and not m.get("recovered") and
             m["ranks"] == run.o.nodes * run.o.slots]
    return statistics.median(times)


def one(o, cluster, folder, reference, seed, n):
    """One run with n failures; returns its row of results."""
    place = os.path.join(folder, "run%d" % seed)
    os.mkdir(place)
    cluster.end_all()
    run = Defaults(o, cluster, place, seed)
    row = {"seed": seed, "nodes": o.nodes, "slots": o.slots, "mpi": o.mpi}
    try:
        try:
            run.strike_often(n)
            run.interrupt()
        finally:
            end_run(run)
            run.note_until()
            row["failures"] = run.failures
            with open(run.errors, errors="replace") as f:
                row["said"] = f.read()
        check_steps(run)
        back, again = run.check_no_step_lost()
        got = [json.loads(line) for line in run.lines("metrics.jsonl")]
        row["worst"] = worst_difference(got, reference.metrics(len(got)), o.tolerance)
        (begin, first), (end, last) = run.window
        row.update(steps=len(got), went_back=back, steps_again=again, step_s=step_s(run),
                   seconds=end - begin, window_steps=last - first, longest_gap=run.longest_gap,
                   recoveries=recoveries(run))
    except Wrong as wrong:
        row["wrong"] = str(wrong)
        kept = tempfile.mkdtemp(prefix="evenkeel-failures-seed%d-" % seed, dir=o.keep_in)
        shutil.copytree(place, kept, dirs_exist_ok=True)
        say("seed %d: %s\n%s\nthe run is kept in %s" % (seed, wrong, row["said"], kept))
        if not run.failures:
            raise
    shutil.rmtree(place)
    return row


def end_run(run):
    if run.process is not None and run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def at_95(values):
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def summary(rows):
    """What all runs have shown."""
    good = [r for r in rows if "wrong" not in r]
    failures = [f for r in rows for f in r["failures"]]
    beside = [x["total"] - x["first_step"] for r in good for x in r["recoveries"]]
    struck = sum(len(r["failures"]) for r in good)
    lost = sum(r["seconds"] - r["window_steps"] * r["step_s"] for r in good)
    return {"runs": len(rows), "wrong": len(rows) - len(good), "failures": len(failures),
            "while_recovering": sum(f.get("while_recovering", False) for f in failures),
            "without_copies": sum(not f.get("copies", True) for f in failures),
            "went_back": sum(r["went_back"] for r in good),
            "steps": sum(r["steps"] for r in good),
            "steps_again": sum(r["steps_again"] for r in good),
            "worst": max((r["worst"] for r in good), default=0.0),
            "longest_gap": max((r["longest_gap"] for r in good), default=0.0),
            "beside_median": statistics.median(beside) if beside else None,
            "beside_95": at_95(beside) if beside else None,
            "lost_a_failure": lost / struck if struck else None,
            "ettr": 1 - lost / sum(r["seconds"] for r in good) if good else None,
            "ettr_a_minute": 1 - lost / struck / 60 if struck else None}


def print_table(rows):
    s = summary(rows)
    good = [r for r in rows if "wrong" not in r]
    print("| kind | failures | while recovering | no copy left | recoveries | beside the step, "
          "median | 95 % | longest |\n|---|---|---|---|---|---|---|---|")
    found = [x for r in good for x in r["recoveries"]]
    failures = [f for r in rows for f in r["failures"]]
    for kind in [*sorted({f["kind"] for f in failures}), "all"]:
        some = [f for f in failures if kind in (f["kind"], "all")]
        beside = [x["total"] - x["first_step"] for x in found if kind in (x["kind"], "all")]
        print("| %s | %d | %d | %d | %d | %s |" % (
            kind, len(some), sum(f.get("while_recovering", False) for f in some),
            sum(not f.get("copies", True) for f in some), len(beside),
            "%.2f | %.2f | %.2f" % (statistics.median(beside), at_95(beside), max(beside))
            if beside else " | | "))
    print("%d failures in %d runs, %d of which failed a check; %d steps, losses within %.2g of an "
          "undisturbed run; %d times back to earlier steps, %d steps, where no copy was left; the "
          "longest time without a step %.1f s" %
          (s["failures"], s["runs"], s["wrong"], s["steps"], s["worst"], s["went_back"],
           s["steps_again"], s["longest_gap"]))
    if s["ettr"] is not None:
        print("ETTR %.3f; %.2f s lost to a failure: %.3f at one a minute" %
              (s["ettr"], s["lost_a_failure"], s["ettr_a_minute"]))


def read_rows(paths):
    rows = []
    for path in paths:
        if os.path.exists(path):
            with open(path) as f:
                rows += [json.loads(line) for line in f]
    return rows


def run_all(o):
    rows = read_rows([o.results] if o.results else [])
    begin = time.monotonic()
    folder = tempfile.mkdtemp(prefix="evenkeel-failures-")
    o.model = os.path.join(folder, "config.json")
    with open(o.model, "w") as f:
        json.dump(MODEL, f)
    try:
        with Cluster(o) as cluster:
            cluster.call("bandwidth", "all", o.bandwidth)
            reference = Reference(o, folder)
            before = len(rows)
            while sum(len(r["failures"]) for r in rows) < o.failures and \
                    (o.minutes is None or len(rows) == before or
                     time.monotonic() - begin < 60 * o.minutes):
                n = min(o.a_run, o.failures - sum(len(r["failures"]) for r in rows))
                rows.append(one(o, cluster, folder, reference, o.seed + len(rows), n))
                if o.results:
                    with open(o.results, "a") as f:
                        f.write(json.dumps(rows[-1]) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes cluster and folder on the way out
    try:
        rows = read_rows(o.table) if o.table else run_all(o)
    except Wrong:  # before the first failure; it was reported
        return 1
    if o.json:
        print(json.dumps({"summary": summary(rows), "runs": rows}))
    else:
        print_table(rows)
    return 1 if any("wrong" in r for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
