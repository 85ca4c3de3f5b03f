#!/usr/bin/python3
"""Predicted step times against measured ones, on emulated clusters of this machine.

For every cluster: `bench costs --cluster-out` measures the machine and its links; `simulate` predicts every cell (layout, loads) from that
file; the predictions are written, and their SHA-256 printed, before the first step is measured.  Then cells are trained, in turns, and the
medians of the steps after the first --skip are compared.  Nothing is fitted to a step time.

    bench/predict.py --command build/evenkeel --results FILE        as root (tools/cluster); about 20 minutes
    bench/predict.py --table --results FILE                          prints the table of stored results
    bench/predict.py --tables DIR ...                                against public measurements of other programs: bench/public.py
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

import public
from nodes import MIXTRAL, Cluster, add_options

LAYERS, EXPERTS, SEQ = 4, 16, 256

# Name, words; 4 ranks.  Loads are even with --force-balance; names that end in a workload have its loads.
CELLS = (
    ("dp4", ""),
    ("dp4 zero1", "--zero 1"),
    ("dp4 zero3", "--zero 3"),
    ("ep2", "--ep 2"),
    ("ep4", "--ep 4"),
    ("ep4 micro 8", "--ep 4 --micro-batch 8"),
    ("ep4 recompute full", "--ep 4 --recompute full"),
    ("ep4 degree 2", "--ep 4 --pipeline-degree 2"),
    ("tp2 ep2", "--tp 2 --ep 2"),
    ("pp2", "--pp 2 --micro-batch 4"),
    ("pp2 ep2", "--pp 2 --ep 2 --micro-batch 4"),
    ("pp4", "--pp 4 --micro-batch 2"),
    ("ep4 off W2", "--ep 4 --balance off"),
    ("ep4 exact W2", "--ep 4 --balance exact"),
    ("ep4 off W5", "--ep 4 --balance off"),
)


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.45")
    p.add_argument("--mbit", type=float, nargs="+", default=[1000, 4000], help="bandwidths of a node")
    p.add_argument("--cells", nargs="*", help="names of cells; default: all")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=9, help="measured steps of a cell, in all turns (default: %(default)s)")
    p.add_argument("--skip", type=int, default=2, help="steps before them in each turn")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--results", required=True, help="JSON Lines: a line a cell")
    p.add_argument("--table", action="store_true", help="only print the table of --results")
    return p.parse_args()


def workload_of(name):
    last = name.split()[-1]
    return last if last[0] == "W" else None


class Bench:
    def __init__(self, o, folder):
        self.o, self.folder = o, folder
        self.model = self.path("model.json")
        with open(self.model, "w", encoding="utf-8") as f:
            json.dump(dict(MIXTRAL, num_hidden_layers=LAYERS, num_local_experts=EXPERTS), f)
        self.cells = [c for c in CELLS if not o.cells or c[0] in o.cells]

    def path(self, name):
        return os.path.join(self.folder, name)

    def evenkeel(self, *words):
        r = subprocess.run([self.o.command, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit("evenkeel %s: %s" % (words[0], r.stderr))
        return r.stdout

    def trace(self, workload):
        """A file with the loads of a workload; one iteration for each step."""
        path = self.path(workload + ".npy")
        if not os.path.exists(path):
            self.evenkeel("workload", "--name", workload, "--ranks", 4, "--experts", EXPERTS, "--layers", LAYERS, "--iterations",
                          self.o.skip + self.o.steps // self.o.turns, "--tokens", self.o.batch * SEQ // 4, "--out", path)
        return path

    def words(self, cell):
        """What simulate and train share."""
        more = cell[1].split()
        for name, value in (("--micro-batch", self.o.batch), ("--pipeline-degree", 1)):
            more += [] if name in more else [name, value]
        return ["--model", self.model, "--batch", self.o.batch, "--seq", SEQ, "--dtype", "fp32", "--a2a", "linear", *more]

    def predict(self, cluster, cell):
        load = workload_of(cell[0])
        more = ["--trace", self.trace(load), "--steps", 1000] if load else []
        return json.loads(self.evenkeel("simulate", "--cluster", cluster, "--ranks", self.o.nodes, *self.words(cell), *more, "--json"))

    def measure(self, cluster, cell):
        """Milliseconds of the counted steps of one turn."""
        load, out = workload_of(cell[0]), self.path("run")
        more = ["--replay-routing", self.trace(load)] if load else ["--force-balance", "--balance", "off"]
        cluster.call(*cluster.mpiexec("train", *self.words(cell), *more, "--tokenizer", "bytes", "--data",
                                      os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs"), "--threads", 1, "--lr", "1e-9",
                                      "--steps", self.o.skip + self.o.steps // self.o.turns, "--out", out, "--overwrite", "--quiet"),
                     what="training of " + cell[0])
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line)["step_ms"] for line in f][self.o.skip:]

    def run_bandwidth(self, cluster, mbit):
        file = self.path("cluster.json")
        cluster.set_bandwidth(mbit)
        cluster.call(*cluster.mpiexec("bench", "costs", "--model", self.model, "--dtype", "fp32", "--threads", 1, "--cluster-out", file),
                     what="bench costs")
        predictions = {c[0]: self.predict(file, c) for c in self.cells}
        text = json.dumps({k: p["step_ms"] for k, p in predictions.items()}, sort_keys=True)
        print("%g Mbit/s: predictions %s" % (mbit, hashlib.sha256(text.encode()).hexdigest()), flush=True)
        print(text, flush=True)
        measured = {c[0]: [] for c in self.cells}
        for turn in range(self.o.turns):
            for c in self.cells[::1 if turn % 2 == 0 else -1]:
                measured[c[0]].append(self.measure(cluster, c))
        with open(self.o.results, "a", encoding="utf-8") as f:
            for c in self.cells:
                ms = [statistics.median(turn) for turn in measured[c[0]]]
                f.write(json.dumps({"mbit": mbit, "nodes": self.o.nodes, "cpu": self.o.cpu, "cell": c[0], "predicted_ms":
                                    predictions[c[0]]["step_ms"], "where_ms": predictions[c[0]]["where_ms"], "turns_ms": ms,
                                    "measured_ms": statistics.median(sum(measured[c[0]], []))}) + "\n")


def table(path):
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    print("| Mbit/s | cell | predicted ms | measured ms | error | turns, lowest .. highest |\n|---|---|---|---|---|---|")
    errors, spreads = [], []
    for r in rows:
        error = r["predicted_ms"] / r["measured_ms"] - 1
        low, high = min(r["turns_ms"]) / r["measured_ms"], max(r["turns_ms"]) / r["measured_ms"]
        errors.append(abs(error))
        spreads.append((high - low) / 2)
        print("| %g | %s | %.0f | %.0f | %+.1f %% | %.3f .. %.3f |" % (r["mbit"], r["cell"], r["predicted_ms"], r["measured_ms"],
                                                                      100 * error, low, high))
    errors.sort()
    if errors:
        print("\n%d cells: mean error %.1f %%, 90 %% within %.1f %%, largest %.1f %%; half of the spread of turns %.1f %% in the mean" % (
            len(errors), 100 * statistics.mean(errors), 100 * errors[int(0.9 * (len(errors) - 1) + 0.5)], 100 * errors[-1],
            100 * statistics.mean(spreads)))


def main():
    if "--tables" in sys.argv:
        sys.exit(public.main())
    o = options()
    if not o.table:
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
            bench = Bench(o, folder)
            for mbit in o.mbit:
                bench.run_bandwidth(cluster, mbit)
    table(o.results)


if __name__ == "__main__":
    main()
