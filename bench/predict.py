#!/usr/bin/python3
"""Predicted step times against measured ones, on emulated clusters of this machine.

For every group (bench/predict_groups.py: a cluster, a model, a load, and its layouts) `bench costs --cluster-out` measures the machine and its
links; `simulate` predicts the step of every layout from that file, and what a change of the bandwidth would make of some; the predictions
are written, and their SHA-256 printed, before the first step is measured.  Then layouts are trained, in a drawn order, the first --again ones
once more at the end, and the steps after the first --skip are compared: their median, or, with loads that change from step to step, their
mean.  For what-ifs the bandwidth is changed while a run trains.  At the end the machine is measured again, and the same layouts
are predicted from that, which tells how far two calibrations differ.
Nothing is fitted to a step time.  A group of 13 layouts of 0.3 s a step takes about three minutes, two of them after the predictions.

    bench/predict.py --comparison NAME --results FILE [--traces DIR]   measures the groups of a comparison; as root (tools/cluster)
    bench/predict.py --table --results FILE                            prints the tables of results
    bench/predict.py --table --comparison NAME                         those of the results that are stored in bench/results/predict
    bench/predict.py --check                                           whether these are what bench/results/predict.md says of them
    bench/predict.py --tables DIR ...                                  against public measurements of other programs: bench/public.py
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import public
from nodes import Cluster, add_options
from predict_groups import COMPARISONS, GROUPS
from predict_tables import ENGINES, Results, faults, sha256, stored_results, tables

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(p, None)
    p.add_argument("--comparison", choices=list(COMPARISONS), help="one of bench/results/predict.md: its groups, or with --table its results")
    p.add_argument("--groups", nargs="*", choices=list(GROUPS), metavar="GROUP", help="these groups (default: those of --comparison)")
    p.add_argument("--layouts", nargs="*", help="names of layouts (default: all of a group)")
    p.add_argument("--traces", metavar="DIR", help="folder of recorded traces, for groups with a trace (gpt_moe_e32_r16.npy)")
    p.add_argument("--cores", type=float, default=1.6, help="of all nodes together, where a group says nothing else (default: %(default)s)")
    p.add_argument("--period", type=int, default=1000, help="microseconds in which a node gets its share of the cores (default: %(default)s)")
    p.add_argument("--budget", type=float, default=1.6, help="seconds of bench costs for links and experts (default: %(default)s)")
    p.add_argument("--steps", type=int, default=9, help="measured steps of a layout (default: %(default)s)")
    p.add_argument("--skip", type=int, default=4, help="steps before them (default: %(default)s)")
    p.add_argument("--what-ifs", type=int, default=3, help="layouts of a group whose bandwidth is changed (default: %(default)s)")
    p.add_argument("--again", type=int, default=1, help="layouts of a group that are started a second time (default: %(default)s)")
    p.add_argument("--longest", type=float, default=15, help="seconds of steps: layouts of which more are predicted are left out (default: %(default)s)")
    p.add_argument("--engine", choices=ENGINES, default="flow", help="whose predictions are compared (default: %(default)s)")
    p.add_argument("--keep", metavar="DIR", help="keep cluster files and timelines there")
    p.add_argument("--results", metavar="FILE", help="JSON Lines: a line a layout; predictions go to FILE.predictions")
    p.add_argument("--table", action="store_true", help="only print the tables of --results, or of a stored --comparison")
    p.add_argument("--check", action="store_true", help="only compare stored results with bench/results/predict.md; status 1 if they differ")
    o = p.parse_args()
    if o.table and o.comparison and not o.results:
        o.results = stored_results(o.comparison)
    o.groups = o.groups or COMPARISONS.get(o.comparison)
    if not o.check and not (o.results and (o.table or o.groups)):
        p.error("give --results, and --comparison or --groups")
    return o


def cut_iterations(path, out, first, n):
    """Writes n iterations of a trace."""
    with open(path, "rb") as f:
        start = f.read(10)
        header = f.read(start[8] + 256 * start[9]).decode()
        shape = [int(x) for x in header.split("(")[1].split(")")[0].split(",") if x.strip()]
        rest = f.read()
    cut = header.replace("(%d," % shape[0], "(%d," % n, 1)
    cut = cut.rstrip("\n").ljust(len(header) - 1)[:len(header) - 1] + "\n"
    with open(out, "wb") as f:
        each = len(rest) // shape[0]
        f.write(start + cut.encode() + rest[each * first:each * (first + n)])


class Group:
    """A group that is predicted and measured on a cluster that is up."""

    def __init__(self, o, name, folder, cluster):
        self.o, self.name, self.folder, self.cluster = o, name, folder, cluster
        self.of = GROUPS[name]
        self.ranks = self.of["nodes"] * self.of["ppn"]
        self.model, self.file, self.file_again = self.path("model.json"), self.path("cluster.json"), self.path("cluster_again.json")
        with open(self.model, "w", encoding="utf-8") as f:
            json.dump(self.of["model"], f)
        self.layouts = [l for l in self.of["layouts"] if not o.layouts or l[0] in o.layouts]
        self.random = random.Random(name)

    def path(self, name):
        return os.path.join(self.folder, name)

    def evenkeel(self, *words):
        r = subprocess.run([self.o.command, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit("evenkeel %s: %s" % (words[0], r.stderr))
        return r.stdout

    def trace(self):
        """A file with the loads of the group."""
        path, load, of = self.path("load.npy"), self.of["load"], self.of["model"]
        if load == "trace" and not os.path.exists(path):
            if not self.o.traces:
                sys.exit("group %s has a recorded trace: give its folder by --traces" % self.name)
            cut_iterations(os.path.join(self.o.traces, "gpt_moe_e32_r16.npy"), path, 0, self.o.skip + self.o.steps)
        if not os.path.exists(path):
            self.evenkeel("workload", "--name", load, "--ranks", self.ranks, "--experts", of["num_local_experts"], "--layers",
                          of["num_hidden_layers"], "--iterations", self.o.skip + self.o.steps, "--tokens",
                          self.of["batch"] * self.of["seq"] // self.ranks, "--out", path)
        return path

    def counted_trace(self, layout):
        """Its iterations of the steps that count, after those that a policy plans from, or places by: auto does both."""
        before = 1 * ("--balance prophet" in layout[1]) + 2 * ("--balance auto" in layout[1])
        if before > self.o.skip:
            sys.exit("prophet and auto plan from steps before the first that counts: --skip 2 or more")
        path = self.path("counted%d.npy" % before)
        cut_iterations(self.trace(), path, self.o.skip - before, self.o.steps + before)
        return path

    def words(self, layout):
        """What simulate and train share."""
        words = [str(self.of["batch"] // int(w[1:])) if w[0] == "M" else w for w in layout[1].split()]
        for name, value in (("--micro-batch", self.of["batch"]), ("--pipeline-degree", 1), ("--recompute", "off"), ("--balance", "off")):
            words += [] if name in words else [name, value]
        return ["--model", self.model, "--batch", self.of["batch"], "--seq", self.of["seq"], "--dtype", "fp32", "--a2a", "linear", *words]

    def load_words(self, command, layout):
        if not self.of["load"]:
            return ["--force-balance"] if command == "train" else []
        return ["--replay-routing", self.trace()] if command == "train" else ["--trace", self.counted_trace(layout)]

    def typical(self, steps_ms):
        """The median step; of loads that change between steps the mean, which `simulate` predicts: a change may make some steps slow."""
        return (statistics.mean if self.of["load"] else statistics.median)(steps_ms)

    def calibrate(self, file):
        self.cluster.call(*self.cluster.mpiexec("bench", "costs", "--model", self.model, "--dtype", "fp32", "--threads", 1, "--budget",
                                                self.o.budget, "--cluster-out", file, ppn=self.of["ppn"]), what="bench costs")

    def predict(self, layout, engine, *more, file=None):
        steps = ["--steps", self.o.steps] if self.of["load"] else []
        return json.loads(self.evenkeel("simulate", "--cluster", file or self.file, "--ranks", self.ranks, "--engine", engine, *self.words(layout),
                                        *self.load_words("simulate", layout), *steps, "--json", *more))

    def predict_all(self):
        """Layouts that are short enough, and {name: {engine: ms, "where": parts, "what_if": ratio}}."""
        predictions, n = {}, self.o.skip + self.o.steps + 1
        self.cluster.set_bandwidth(self.of["mbit"])
        self.calibrate(self.file)
        for layout in self.layouts:
            p = {e: self.predict(layout, e) for e in ENGINES}
            predictions[layout[0]] = dict({e: p[e]["step_ms"] for e in ENGINES}, where=p[self.o.engine]["where_ms"])
        self.layouts = [l for l in self.layouts if n * predictions[l[0]][self.o.engine] <= 1000 * self.o.longest]
        self.random.shuffle(self.layouts)
        for layout in self.layouts[:self.o.what_ifs]:
            changed = self.predict(layout, self.o.engine, "--what-if", "bandwidth[net] x%g" % self.of["change"])["what_if"][0]["step_ms"]
            predictions[layout[0]]["what_if"] = changed / predictions[layout[0]][self.o.engine]
        return {l[0]: predictions[l[0]] for l in self.layouts}

    def freeze(self, predictions):
        text = json.dumps({"group": self.name, "predictions": predictions}, sort_keys=True)
        digest = sha256(text)
        with open(self.o.results + ".predictions", "a", encoding="utf-8") as f:
            f.write(text + "\n")
        print("%s: %d predictions, SHA-256 %s" % (self.name, len(predictions), digest), flush=True)
        return digest

    def start(self, layout, steps):
        words = self.cluster.mpiexec("train", *self.words(layout), *self.load_words("train", layout), "--tokenizer", "bytes", "--data", DATA, "--threads", 1,
                                     "--lr", "1e-9", "--steps", steps, "--out", self.path("run"), "--overwrite", "--quiet", ppn=self.of["ppn"])
        return subprocess.Popen(self.cluster.words(*words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def steps_so_far(self):
        try:
            with open(self.path("run/metrics.jsonl"), encoding="utf-8") as f:
                return [json.loads(line)["step_ms"] for line in f if line.endswith("\n")]
        except OSError:
            return []

    def finish(self, run, layout):
        _, errors = run.communicate()
        if run.returncode:
            sys.exit("training of %s ended with status %d: %s" % (layout[0], run.returncode, errors.strip()))
        return self.steps_so_far()

    def measure(self, layout):
        """Milliseconds of the counted steps."""
        subprocess.run(["rm", "-rf", self.path("run")], check=True)
        return self.finish(self.start(layout, self.o.skip + self.o.steps), layout)[self.o.skip:]

    def measure_change(self, layout):
        """Milliseconds of steps before and after the bandwidth changes."""
        n, most = self.o.skip + self.o.steps, 3 * (self.o.skip + self.o.steps)
        subprocess.run(["rm", "-rf", self.path("run")], check=True)
        run = self.start(layout, most)
        while run.poll() is None and len(self.steps_so_far()) < n:
            time.sleep(0.05)
        self.cluster.set_bandwidth(self.of["mbit"] * self.of["change"])
        at = len(self.steps_so_far())
        steps = self.finish(run, layout)
        self.cluster.set_bandwidth(self.of["mbit"])
        return steps[self.o.skip:at], steps[at + 2:at + 2 + self.o.steps]

    def run(self):
        predictions = self.predict_all()
        digest = self.freeze(predictions)
        with open(self.o.results, "a", encoding="utf-8") as f:
            for i, layout in enumerate(self.layouts + self.layouts[:self.o.again]):
                p, row = predictions[layout[0]], {"group": self.name, "layout": layout[0], "sha256": digest}
                first = i < len(self.layouts)
                changes = first and "what_if" in p
                before, after = self.measure_change(layout) if changes else (self.measure(layout), None)
                row.update(again=not first, steps_ms=before, measured_ms=self.typical(before))
                if changes:
                    row.update(changed_ms=after, measured_ratio=self.typical(after) / row["measured_ms"])
                f.write(json.dumps(row) + "\n")
                f.flush()
            self.calibrate(self.file_again)
            for layout in self.layouts:
                row = {"group": self.name, "layout": layout[0], "recalibrated_ms": self.predict(layout, self.o.engine, file=self.file_again)["step_ms"]}
                f.write(json.dumps(row) + "\n")


def main():
    if "--tables" in sys.argv:
        sys.exit(public.main())
    o = options()
    if o.check:
        found = list(faults())
        sys.exit("\n".join(found) if found else 0)
    for name in [] if o.table else o.groups:
        of = GROUPS[name]
        o.nodes, o.ranks_a_node, o.cpu = of["nodes"], of["ppn"], "%.3f" % ((of["cores"] or o.cores) / of["nodes"])
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
            Group(o, name, o.keep or folder, cluster).run()
    try:
        print("\n".join(tables(Results(o.results, o.engine))))
    except (OSError, ValueError) as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
