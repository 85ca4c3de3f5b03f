#!/usr/bin/python3
"""Predicted step times against measured ones, on emulated clusters of this machine.

For every group (bench/predict_groups.py: a cluster, a model, a load, and its layouts) `bench costs --cluster-out` measures the machine and its
links; `simulate` predicts the step of every layout from that file, and what a change of the bandwidth would make of some; the predictions
are written, and their SHA-256 printed, before the first step is measured.  Then layouts are trained, in a drawn order, the first --again ones
once more at the end, and the steps after the first --skip are compared: their median, or, with loads that change from step to step, their
mean.  For what-ifs the bandwidth is changed while a run trains.  At the end the machine is measured again, and the same layouts
are predicted from that, which tells how far two calibrations differ.
Nothing is fitted to a step time.  A group of 13 layouts of 0.3 s a step takes about three minutes, two of them after the predictions.

    bench/predict.py --command build/evenkeel --results FILE        as root (tools/cluster)
    bench/predict.py --table --results FILE                          prints the tables of stored results
    bench/predict.py --tables DIR ...                                against public measurements of other programs: bench/public.py
"""

import argparse
import hashlib
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
from predict_groups import COUNTED, TUNING

ENGINES = ("replay", "flow")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(p, None)
    p.add_argument("--groups", nargs="*", help="names of groups (default: all that count)")
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
    p.add_argument("--results", required=True, help="JSON Lines: a line a layout")
    p.add_argument("--table", action="store_true", help="only print the tables of --results")
    return p.parse_args()


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
        self.of = dict(COUNTED, **TUNING)[name]
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
        """Its iterations of the steps that count, after one more for a policy that plans or places from it."""
        before = any("--balance " + policy in layout[1] for policy in ("prophet", "auto"))
        if before > self.o.skip:
            sys.exit("prophet and auto plan from the step before the first that counts: --skip 1 or more")
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
        digest = hashlib.sha256(text.encode()).hexdigest()
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
                row.update(again=not first, predicted_ms=p[self.o.engine], predicted=p, steps_ms=before, measured_ms=self.typical(before))
                if changes:
                    row.update(predicted_ratio=p["what_if"], changed_ms=after, measured_ratio=self.typical(after) / row["measured_ms"])
                f.write(json.dumps(row) + "\n")
                f.flush()
            self.calibrate(self.file_again)
            for layout in self.layouts:
                row = {"group": self.name, "layout": layout[0], "recalibrated_ms": self.predict(layout, self.o.engine, file=self.file_again)["step_ms"]}
                f.write(json.dumps(row) + "\n")


def percentile(errors, share):
    return sorted(errors)[int(share * (len(errors) - 1) + 0.5)]


def summary(title, errors):
    if errors:
        print("%s: %d, mean error %.1f %%, 90 %% within %.1f %%, largest %.1f %%" % (
            title, len(errors), 100 * statistics.mean(errors), 100 * percentile(errors, 0.9), 100 * max(errors)))


def spreads(rows):
    """{group: how far two starts of a layout are apart, in the mean of the layouts that were started twice}."""
    first = {(r["group"], r["layout"]): r["measured_ms"] for r in rows if not r["again"]}
    apart = {}
    for r in rows:
        if r["again"]:
            apart.setdefault(r["group"], []).append(abs(r["measured_ms"] / first[r["group"], r["layout"]] - 1))
    return {group: statistics.mean(x) for group, x in apart.items()}


def error_of(row, engine):
    return abs(row["predicted"][engine] / row["measured_ms"] - 1)


def beyond(error, group, spread):
    """An error, but none if it is not larger than two starts of a layout of the group are apart in the mean."""
    return error if error > spread.get(group, 0) else 0


def cells_table(rows, engine, recalibrated):
    print("| group | layout | predicted ms | measured ms | error | measured again | predicted again |\n|---|---|---|---|---|---|---|")
    again = {(r["group"], r["layout"]): r["measured_ms"] for r in rows if r["again"]}
    for r in rows:
        if not r["again"]:
            second, other = again.get((r["group"], r["layout"])), recalibrated.get((r["group"], r["layout"]))
            print("| %s | %s | %.0f | %.0f | %+.1f %% | %s | %s |" % (
                r["group"], r["layout"], r["predicted"][engine], r["measured_ms"], 100 * (r["predicted"][engine] / r["measured_ms"] - 1),
                "" if second is None else "%+.1f %%" % (100 * (second / r["measured_ms"] - 1)),
                "" if other is None else "%+.1f %%" % (100 * (other / r["predicted"][engine] - 1))))


def regret_table(rows, engine, spread):
    """Of each group: the layout that the prediction chooses against the fastest one."""
    print("\n| group | layouts | chosen | fastest | regret | within the spread as none |\n|---|---|---|---|---|---|")
    regrets = []
    for group in dict.fromkeys(r["group"] for r in rows):
        cells = [r for r in rows if r["group"] == group and not r["again"]]
        chosen, best = min(cells, key=lambda r: r["predicted"][engine]), min(cells, key=lambda r: r["measured_ms"])
        regret = chosen["measured_ms"] / best["measured_ms"] - 1
        regrets.append((regret, beyond(regret, group, spread)))
        print("| %s | %d | %s | %s | %.1f %% | %.1f %% |" % (group, len(cells), chosen["layout"], best["layout"], 100 * regrets[-1][0], 100 * regrets[-1][1]))
    for i, title in enumerate(("regret", "regret, within the spread as none")):
        print("\n%s: %d groups, mean %.1f %%, worst %.1f %%" % (
            title, len(regrets), 100 * statistics.mean(x[i] for x in regrets), 100 * max(x[i] for x in regrets)))


def what_if_table(rows):
    changes = [r for r in rows if "measured_ratio" in r]
    if not changes:
        return
    print("\n| group | layout | predicted ratio | measured ratio | error |\n|---|---|---|---|---|")
    for r in changes:
        print("| %s | %s | %.3f | %.3f | %+.1f %% |" % (r["group"], r["layout"], r["predicted_ratio"], r["measured_ratio"],
                                                      100 * (r["predicted_ratio"] / r["measured_ratio"] - 1)))
    print()
    summary("what-ifs", [abs(r["predicted_ratio"] / r["measured_ratio"] - 1) for r in changes])


def tables(o):
    with open(o.results, encoding="utf-8") as f:
        every = [json.loads(line) for line in f]
    rows = [r for r in every if "measured_ms" in r]
    recalibrated = {(r["group"], r["layout"]): r["recalibrated_ms"] for r in every if "recalibrated_ms" in r}
    real = [name for name, of in dict(COUNTED, **TUNING).items() if of["load"] == "trace"]
    cells, spread = [r for r in rows if not r["again"]], spreads(rows)
    cells_table(rows, o.engine, recalibrated)
    print()
    for engine in ENGINES:
        summary("%s, all cells" % engine, [error_of(r, engine) for r in cells])
        summary("%s, those within the spread of starts as none" % engine, [beyond(error_of(r, engine), r["group"], spread) for r in cells])
        for group in dict.fromkeys(r["group"] for r in rows):
            summary("%s, %s" % (engine, group), [error_of(r, engine) for r in cells if r["group"] == group])
        summary("%s, real loads" % engine, [error_of(r, engine) for r in cells if r["group"] in real])
    for group, x in spread.items():
        print("%s: two starts of a layout are %.1f %% apart in the mean" % (group, 100 * x))
    summary("predictions of two calibrations", [abs(recalibrated[r["group"], r["layout"]] / r["predicted_ms"] - 1) for r in cells
                                                 if (r["group"], r["layout"]) in recalibrated])
    regret_table(rows, o.engine, spread)
    what_if_table(rows)


def main():
    if "--tables" in sys.argv:
        sys.exit(public.main())
    o = options()
    for name in [] if o.table else o.groups or COUNTED:
        of = dict(COUNTED, **TUNING)[name]
        o.nodes, o.ranks_a_node, o.cpu = of["nodes"], of["ppn"], "%.3f" % ((of["cores"] or o.cores) / of["nodes"])
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
            Group(o, name, o.keep or folder, cluster).run()
    tables(o)


if __name__ == "__main__":
    main()
