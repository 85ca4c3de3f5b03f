#!/usr/bin/python3
"""Pipeline stages with equal numbers of layers (--pp-layers even), cut by FLOPs (auto), and by measured speeds.

Trains a model with a large head on this machine, one thread a stage; the kinds take turns.  The first
--skip steps of each run are left out.  With m micro-batches on P stages a step is busy for
m / (m + P - 1) of its time, so what a cut gains is the ratio of the stages that take longest.

With --slow every stage is a node of a cluster on this machine (tools/cluster; needs root), and the last
one has that share of the others' processors.  Each kind is then also given as a share of the
throughput of equal nodes (auto), and of what the nodes can do, of which the slow one lacks a part.

    bench/stages.py --command build/evenkeel --rounds 3
    bench/stages.py --layers 10 --slow 0.5 --rounds 2
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

from nodes import MIXTRAL, Cluster, add_options


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.8")
    p.set_defaults(nodes=2)
    p.add_argument("--slow", type=float, help="share of the last node's processor that is left; default: no nodes")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--batch", type=int, default=8, help="micro-batches of one sequence (default: %(default)s)")
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--skip", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    return p.parse_args()


def train(o, cluster, folder, layers):
    """Tokens/s of the steps of a run, the layers of its stages, and the losses."""
    out = os.path.join(folder, "run")
    words = ["train", "--model", os.path.join(folder, "config.json"), "--tokenizer", "bytes",
             "--data", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md"),
             "--pp", str(o.nodes), "--pp-layers", layers, "--threads", "1", "--batch", str(o.batch),
             "--micro-batch", "1", "--seq", str(o.seq), "--steps", str(o.steps), "--out", out,
             "--overwrite", "--quiet", "--json"]
    if cluster is not None:
        said = cluster.call(*cluster.mpiexec(*words), what="train")
    else:
        said = subprocess.run([o.command, *words, "--ranks", str(o.nodes)], check=True, stdout=subprocess.PIPE).stdout
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    ms = [s["step_ms"] for s in steps[o.skip:]]
    return (o.batch * o.seq / statistics.median(ms) * 1000, json.loads(said)["pp_layers"],
            [s["loss"] for s in steps])


def print_table(o, rates, cuts):
    equal = statistics.median(rates["equal nodes, auto"]) if o.slow else None
    print("| --pp-layers | layers | tokens/s | least, most |%s" % (" of equal nodes | of what the nodes can do |"
                                                                 if o.slow else ""))
    print("|---|---|---|---|%s" % ("---|---|" if o.slow else ""))
    for kind, of_kind in rates.items():
        rate = statistics.median(of_kind)
        line = "| %s | %s | %.0f | %.0f, %.0f |" % (kind, ", ".join(sorted(cuts[kind])), rate, min(of_kind),
                                                    max(of_kind))
        if o.slow:
            ideal = 1 if "equal" in kind else 1 - (1 - o.slow) / o.nodes
            line += " %.3f | %.3f |" % (rate / equal, rate / equal / ideal)
        print(line)


def main():
    o = options()
    kinds = ["even", "auto", "measured"] if o.slow else ["even", "auto"]
    kinds = (["equal nodes, auto"] if o.slow else []) + kinds
    rates, cuts, losses = {k: [] for k in kinds}, {k: set() for k in kinds}, {}
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, \
         Cluster(o) if o.slow else contextlib.nullcontext() as cluster:
        if o.slow:
            cluster.set_bandwidth(10000)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(MIXTRAL, num_hidden_layers=o.layers, vocab_size=o.vocab), f)
        for _ in range(o.rounds):
            for kind in kinds:
                if o.slow:
                    share = 1 if "equal" in kind else o.slow
                    cluster.call("cpu", "node%d" % o.nodes, "%g" % (float(o.cpu) * share))
                rate, layers, losses[kind] = train(o, cluster, folder, kind.split()[-1])
                rates[kind].append(rate)
                cuts[kind].add(layers)
                print("%s: %s layers, %.0f tokens/s" % (kind, layers, rate), file=sys.stderr, flush=True)
    print_table(o, rates, cuts)
    print("auto / even: %.3f; losses differ by %.1e at most"
          % (statistics.median(a / e for a, e in zip(rates["auto"], rates["even"])),
             max(abs(a / b - 1) for k in kinds for a, b in zip(losses["even"], losses[k]))))


if __name__ == "__main__":
    main()
