#!/usr/bin/python3
"""Training where one of several nodes has half the processor share of the others.

Creates a cluster on this machine (tools/cluster; needs root), one rank and one thread a node, and
trains a model with the experts over all nodes (--ep): on equal nodes; then with the last node at half
its share, with plans that take ranks as equal (--rank-speeds equal), with plans that heed measured
speeds, and with these plans and shares of the batch by the same speeds (--batch-shares measured).  They
take turns.  What one node lacks is 1 / (2 nodes) of the throughput; the table gives each as a share of
equal nodes.

Speeds are known after some steps: the median is of the last half of a run's steps.

Example:

    bench/rank_speeds.py --command build/evenkeel --rounds 2
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from nodes import MIXTRAL, Cluster, add_options


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.4")
    p.add_argument("--slow", type=float, default=0.5, help="share of the last node's that is left")
    p.add_argument("--batch", type=int, default=64, help="sequences a step (default: %(default)s)")
    p.add_argument("--seq", type=int, default=128, help="tokens a sequence (default: %(default)s)")
    p.add_argument("--ff", type=int, default=2048, help="width of an expert (default: %(default)s)")
    p.add_argument("--experts", type=int, default=8, help="of the layer (default: %(default)s)")
    p.add_argument("--balance", default="auto", help="policy (default: %(default)s)")
    p.add_argument("--steps", type=int, default=14, help="of a run (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=1, help="runs of each kind (default: 1)")
    return p.parse_args()


def run(o, cluster, folder, speeds, shares):
    """Metrics of the steps of a run."""
    out = os.path.join(folder, "run")
    cluster.call(*cluster.mpiexec(
        "train", "--model", os.path.join(folder, "config.json"), "--tokenizer", "bytes", "--data",
        os.path.join(folder, "data.txt"), "--batch", o.batch, "--seq", o.seq, "--ep", o.nodes,
        "--steps", o.steps, "--threads", 1, "--balance", o.balance, "--rank-speeds", speeds,
        "--batch-shares", shares, "--save-every", 1000000, "--out", out, "--overwrite", "--quiet"), what="train")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def main():
    o = options()
    kinds = {"equal nodes": (1, "measured", "even"), "slow node, equal": (o.slow, "equal", "even"),
             "slow node, measured": (o.slow, "measured", "even"),
             "slow node, measured, shares": (o.slow, "measured", "measured")}
    rates = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
        cluster.set_bandwidth(10000)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(MIXTRAL, intermediate_size=o.ff, num_local_experts=o.experts), f)
        with open(os.path.join(folder, "data.txt"), "w", encoding="utf-8") as f:
            for name in ("architecture", "balance", "costs", "formats", "models", "resilience"):
                with open(os.path.join(os.path.dirname(__file__), "..", "docs", name + ".md"),
                          encoding="utf-8") as text:
                    f.write(text.read())
        for _ in range(o.rounds):
            for kind, (share, speeds, shares) in kinds.items():
                cluster.call("cpu", "node%d" % o.nodes, "%g" % (float(o.cpu) * share))
                steps = run(o, cluster, folder, speeds, shares)[o.steps // 2:]
                ms = [s["step_ms"] for s in steps]
                rates[kind].append(steps[0]["tokens"] / statistics.median(ms) * 1000)
                print("%s: %.0f tokens/s, steps %.0f to %.0f ms, max/mean of rows %.2f, slowest rank "
                      "%.2f" % (kind, rates[kind][-1], min(ms), max(ms),
                                statistics.mean(s["rank_max_over_mean"] for s in steps),
                                steps[-1]["slowest_rank"]), file=sys.stderr, flush=True)
    best = statistics.median(rates["equal nodes"])
    ideal = 1 - (1 - o.slow) / o.nodes
    print("| nodes | tokens/s | of equal nodes | of what the nodes can do |\n|---|---|---|---|")
    for kind, all_of in rates.items():
        part = statistics.median(all_of) / best
        print("| %s | %.0f | %.3f | %.3f |" % (kind, part * best, part,
                                               part / (1 if kind == "equal nodes" else ideal)))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(str(e))
