#!/usr/bin/python3
"""Samples trained with --elastic on spot instances, against restarts from checkpoints.

Creates a cluster (tools/cluster; needs root) and trains on it, for the same time of the same trace of
spot instances, once with --elastic and once for each value of --save-every without.  In the latter,
the loss of a node ends the run, which is restarted at once, with --resume, on all available nodes (the
script knows which).  Returning nodes join at the next restart, as joining earlier would cost the
steps since the last checkpoint.

The run with --elastic also saves, as often as the first of the others: for state without a replica.

The result of a run is its last step, saved or not.  It is printed beside a prediction from the trace
and the times of steps, saves and starts (`predicted`).

Arguments after -- are passed to `evenkeel train`; a run of n nodes has --ep n.

Example:

    bench/spot.py --seconds 600 --lost 75 --away 30 --wanted 3 -- --model small --data docs src \\
        --batch 8 --micro-batch 2 --seq 64 --dtype bf16 --threads 1 --balance replicate \\
        --replicas-min 2 --spare-slots 3 --plan-every 10

Exit status: 0 done, 1 a run failed, or --elastic trained less than --wanted times the samples of
the first of --save-every, or (without --wanted) a ratio differs from the predicted one by more than
--close; 2 wrong usage; 77: no cluster can be created here.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time

from harm import Run, Wrong, make_trace, read_trace, say
from nodes import Cluster, add_options


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                epilog="Arguments after -- are passed to evenkeel train.")
    add_options(p, "0.5")
    p.add_argument("--bandwidth", default="1gbit", help="of a node (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=600, help="of a run (default: %(default)s)")
    p.add_argument("--trace", metavar="FILE", help="lines \"SECONDS NODE up|down\"; "
                   "default: a random one")
    p.add_argument("--lost", type=float, default=75, metavar="S",
                   help="mean seconds between losses of a node (default: %(default)s)")
    p.add_argument("--away", type=float, default=30, metavar="S",
                   help="mean seconds until it returns (default: %(default)s)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--save-every", default="50,250", metavar="STEPS", help="of the runs without "
                   "--elastic (default: %(default)s)")
    p.add_argument("--wanted", type=float, metavar="X", help="smallest acceptable ratio")
    p.add_argument("--close", type=float, default=0.1, metavar="X",
                   help="accepted relative error of predicted ratios (default: %(default)s)")
    p.add_argument("--json", action="store_true")
    p.add_argument("train", nargs="*", help="options of evenkeel train")
    o = p.parse_args()
    for word in ("--ep", "--steps", "--save-every", "--out", "--hosts", "--resume", "--elastic"):
        if word in o.train:
            p.error("%s is set by this script" % word)
    o.save_every = [int(n) for n in o.save_every.split(",")]
    o.keep, o.show, o.script, o.patience = None, False, None, 600
    return o


# ---- the runs -----------------------------------------------------------------------------------


class Elastic(Run):
    """A run with --elastic, for a given time."""

    def __init__(self, o, cluster, folder):
        super().__init__(o, cluster, folder, None)
        self.times = {}  # seconds of each step, by number of ranks, lost steps included

    def words(self):
        return [*self.o.train, "--ep", str(self.o.nodes), "--steps", "1000000", "--save-every",
                str(self.o.save_every[0]), "--out", self.out, "--hosts", self.hosts, "--elastic",
                "--quiet"]

    def stands_at(self):
        return len(self.lines("metrics.jsonl"))

    def note_times(self):
        """Records the times of the steps in metrics.jsonl, without the first."""
        for m in map(json.loads, self.lines("metrics.jsonl")[1:]):
            if not m.get("recovered"):
                self.times.setdefault(m["ranks"], {})[m["step"]] = m["step_ms"] / 1e3

    def step_s(self):
        return {n: statistics.median(of.values()) for n, of in self.times.items()}

    def recoveries(self, joined):
        """Seconds until the first step of each restart: after hosts joined, or after other events."""
        return [g["total_s"] - g["first_step_s"] for g in self.generations()
                if "after" in g and (g["after"] == "more hosts can take part") == joined]

    def starts(self):
        """Seconds of restarts after losses, and after returns."""
        return self.recoveries(False), self.recoveries(True)

    def live(self, events):
        """Applies the events from the third step on; returns the number of steps taken meanwhile."""
        self.start()
        self.wait(lambda: self.stands_at() >= 3)
        begin, first = time.monotonic(), self.stands_at()
        self.harm_by_list(events)
        self.wait(lambda: time.monotonic() >= begin + self.o.seconds)
        if not self.running():
            raise Wrong("the run has ended")
        steps = self.stands_at() - first
        self.note_times()
        self.process.kill()
        self.process.wait()
        return steps


class Restarted(Elastic):
    """A run that is restarted from its checkpoint, on the available nodes."""

    def __init__(self, o, cluster, folder, every):
        super().__init__(o, cluster, folder)
        self.every = every
        self.away, self.used, self.took = set(), set(), []
        self.began, self.first = None, 0  # time of the loss; the step that it continues from

    def saved(self):
        folder = os.path.join(self.out, "checkpoint")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return max([int(n[5:]) for n in names if n[:5] == "step-" and n[5:].isdigit()], default=0)

    def words(self):
        there = [n for n in self.nodes if n not in self.away]
        self.name_hosts(there)
        self.used = set(there)
        return [*self.o.train, "--ep", str(len(there)), "--steps", "1000000", "--save-every",
                str(self.every), "--out", self.out, "--hosts", self.hosts, "--quiet",
                *["--resume"] * (self.saved() > 0)]

    def act(self, what, node):
        if what == "lost":
            self.away.add(node)
            if node in self.used:
                self.began = time.monotonic()
                self.process.kill()
                self.process.wait()
        else:
            self.away.discard(node)
        super().act(what, node)

    def stands_at(self):
        n = super().stands_at()
        return self.first if self.began is not None and n <= self.first else n

    def running(self):
        """Always true: restarts the run if it has ended."""
        if self.process.poll() is not None:
            self.began = self.began or time.monotonic()
            self.note_times()
            self.first = self.saved()
            if self.first == 0:
                shutil.rmtree(self.out, ignore_errors=True)
            else:  # as the run itself does later
                self.cut_metrics()
            self.start()
        elif self.began is not None and len(self.lines("metrics.jsonl")) > self.first:
            last = json.loads(self.lines("metrics.jsonl")[-1])["step_ms"] / 1e3
            self.took.append(time.monotonic() - self.began - last)
            self.began = None
        return True

    def starts(self):
        return self.took, []

    def cut_metrics(self):
        lines = self.lines("metrics.jsonl")[:self.first]
        with open(os.path.join(self.out, "metrics.jsonl"), "wb") as f:
            f.write(b"".join(line + b"\n" for line in lines))


# ---- prediction ---------------------------------------------------------------------------------


def step_of(seconds, n):
    """Seconds of a step of n ranks; if not measured, scaled from the nearest number of ranks."""
    near = min(seconds, key=lambda m: abs(m - n))
    return seconds[n] if n in seconds else seconds[near] * near / n


def predicted(events, o, step_s, lost_s, back_s, every):
    """Predicted number of steps.  lost_s, back_s: seconds from a loss, or from a return that causes a
    restart, to the first step.  every: steps between saves; 0: no step is lost."""
    if not step_s:
        return 0
    nodes = {"node%d" % (i + 1) for i in range(o.nodes)}
    there, used, steps, now = set(nodes), set(nodes), 0, 0.0
    for at, what, node in [*events, (o.seconds, "end", None)]:
        (there.discard if what == "lost" else there.add)(node)
        interrupted = node in used if what == "lost" else what == "end" or not every
        if not interrupted:
            continue
        if at > now:  # else it is still starting
            steps += int((at - now) / step_of(step_s, len(used)))
        if what == "end":
            break
        if what == "lost" and every:
            steps = steps // every * every
        used, now = set(there), at + (lost_s if what == "lost" else back_s)
    return steps


# ---- main ---------------------------------------------------------------------------------------


def trace_of(o, folder, nodes):
    path = o.trace
    if path is None:
        path = os.path.join(folder, "trace")
        with open(path, "w") as f:
            f.write("".join(line + "\n" for line in
                            make_trace(nodes, o.seconds, o.lost, o.away, o.seed)))
    events = [e for e in read_trace(path, nodes) if e[0] < o.seconds]
    there = set(nodes)
    for at, what, node in events:
        (there.discard if what == "lost" else there.add)(node)
        if not there:
            sys.exit("%s: no node is up at %g s" % (path, at))
    return events


def one(o, cluster, folder, events, every):
    """Runs once and returns its row; every: steps between saves, 0 for --elastic."""
    place = os.path.join(folder, "every%d" % every)
    os.mkdir(place)
    cluster.end_all()
    run = Restarted(o, cluster, place, every) if every else Elastic(o, cluster, place)
    try:
        steps = run.live(events)
    except Wrong as wrong:
        with open(run.errors) as f:
            raise Wrong("%s\n%s" % (wrong, f.read())) from None
    finally:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    step_s, (lost, back) = run.step_s(), run.starts()
    lost_s, back_s = (statistics.median(x) if x else 0.0 for x in (lost, back))
    row = {"save_every": every, "steps": steps, "step_s": step_s, "starts": len(lost) + len(back),
           "lost_s": lost_s, "back_s": back_s,
           "predicted": predicted(events, o, step_s, lost_s, back_s, every)}
    say("%s: %d steps, predicted %d; %d starts, %.2f s after a loss, %.2f s after a return; "
        "steps %s" % ("every %d steps" % every if every else "--elastic", steps, row["predicted"],
                      row["starts"], lost_s, back_s,
                      ", ".join("of %d ranks %.2f s" % x for x in sorted(step_s.items()))))
    return row


def judge(o, rows):
    """Adds ratios to the rows; returns whether they meet the requirements."""
    good = True
    for k, r in enumerate(rows[1:]):
        r["ratio"] = rows[0]["steps"] / max(1, r["steps"])
        r["expected"] = rows[0]["predicted"] / max(1, r["predicted"])
        if o.wanted is None:
            good &= abs(r["ratio"] / r["expected"] - 1) <= o.close
        elif k == 0:
            good &= r["ratio"] >= o.wanted
    return good


def print_table(rows):
    print("| restart from checkpoint, every | steps | --elastic | ratio | predicted |")
    print("|---|---|---|---|---|")
    for r in rows[1:]:
        print("| %d steps | %d | %d | %.2f | %.2f |" % (r["save_every"], r["steps"],
                                                       rows[0]["steps"], r["ratio"], r["expected"]))


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes cluster and folder on the way out
    folder = tempfile.mkdtemp(prefix="evenkeel-spot-")
    try:
        with Cluster(o) as cluster:
            cluster.call("bandwidth", "all", o.bandwidth)
            events = trace_of(o, folder, ["node%d" % (i + 1) for i in range(o.nodes)])
            rows = [one(o, cluster, folder, events, every) for every in (0, *o.save_every)]
    except Wrong as wrong:
        say("spot: %s" % wrong)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    good = judge(o, rows)
    if o.json:
        print(json.dumps({"events": events, "rows": rows}))
    else:
        print_table(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
