#!/usr/bin/python3
"""What a run on several hosts gets without an option, against others: throughput and survival.

Creates a cluster on this machine (tools/cluster; needs root), with two ranks of one thread a node,
and trains a model with the experts over all ranks (--ep), with routing replayed from a recorded
trace.  The first kind of run has nothing but --ranks and --ep; others choose a balance policy
without --elastic, or keep copies of experts.  Kinds take turns.  A kind's figure is the median
step of the last half of its runs' steps, and its spread that of the runs.  A kind that keeps
copies has what the run predicted of them.

All runs also have one pipeline degree and all-to-all, as their search tries another setting in each
of the first steps, and --plan-every 5, so that placements change within the few steps.  How fast the machine was in a run tells what rank 0 computes in a step besides
AdamW, which is the same work in all kinds that balance.

Example:

    bench/defaults.py --command build/evenkeel --traces DIR
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from balance_routing import TRACE_FILE, cut_trace
from nodes import MIXTRAL, Cluster, add_options

OFF = ["--elastic=false"]
KINDS = {
    "none": [],
    "--elastic": ["--elastic"],
    "--elastic --replicas-min 1": ["--elastic", "--replicas-min", "1"],
    "--elastic=false": OFF,
    "--elastic=false --balance off": [*OFF, "--balance", "off"],
    "--elastic=false --balance exact": [*OFF, "--balance", "exact"],
    "--elastic=false --balance prophet": [*OFF, "--balance", "prophet"],
    "--elastic=false --balance place": [*OFF, "--balance", "place"],
}
TRAFFIC = ["--pipeline-degree", "1", "--a2a", "pairwise"]
LONGER = re.compile(r"predicted to take ([\d.]+) % longer")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.45")
    p.add_argument("--traces", required=True, metavar="DIR", help="folder with " + TRACE_FILE)
    p.add_argument("--first", type=int, default=100, help="iteration of the trace (default: 100)")
    p.add_argument("--slots", type=int, default=2, help="ranks of a node (default: %(default)s)")
    p.add_argument("--mbit", type=float, default=1800, help="of a node (default: %(default)s)")
    p.add_argument("--layers", type=int, default=4, help="of the model (default: %(default)s)")
    p.add_argument("--batch", type=int, default=64, help="sequences a step (default: %(default)s)")
    p.add_argument("--seq", type=int, default=256, help="tokens a sequence (default: %(default)s)")
    p.add_argument("--steps", type=int, default=14, help="of a run (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=2, help="runs of each kind (default: %(default)s)")
    p.add_argument("--kinds", help="some of them, with ; between: %s" % "; ".join(KINDS))
    return p.parse_args()


def computed_ms(path, steps):
    """What the compute lane of a timeline did in a step, besides AdamW."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    lane = next(e["tid"] for e in events
                if e["name"] == "thread_name" and e["args"]["name"] == "compute")
    return sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == lane
               and e["name"] != "adamw") / steps / 1000


def run(o, cluster, folder, more):
    """Tokens/s of a run, what rank 0 computes, the summary's balance, and the predicted cost of
    copies in percent."""
    out = os.path.join(folder, "run")
    ranks = o.nodes * o.slots
    r = subprocess.run(
        cluster.words("run", "head", os.path.abspath(o.command), "train", "--model",
                      os.path.join(folder, "config.json"), "--tokenizer", "bytes", "--data",
                      os.path.join(folder, "data.txt"), "--hosts", os.path.join(folder, "hosts"),
                      "--ranks", ranks, "--ep", ranks, "--batch", o.batch, "--seq", o.seq,
                      "--steps", o.steps, "--threads", 1, "--plan-every", 5, "--replay-routing",
                      os.path.join(folder, "trace.npy"), "--out", out, "--json", "--timeline",
                      "--timeline-from", o.steps // 2, *TRAFFIC, *more),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit("train %s ended with status %d: %s" % (" ".join(more), r.returncode, r.stderr))
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    late = [s["step_ms"] for s in steps[o.steps // 2:]]
    computed = computed_ms(os.path.join(out, "timeline.json"), len(late))
    cluster.call("run", "head", "rm", "-r", out)
    longer = LONGER.search(r.stderr)
    return (steps[0]["tokens"] / statistics.median(late) * 1000, computed,
            json.loads(r.stdout).get("balance") or {}, longer and longer.group(1))


def write_inputs(o, folder):
    cut_trace(os.path.join(o.traces, TRACE_FILE), o.first, o.steps, o.layers,
              os.path.join(folder, "trace.npy"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(MIXTRAL, num_hidden_layers=o.layers, num_local_experts=32), f)
    with open(os.path.join(folder, "hosts"), "w", encoding="utf-8") as f:
        f.write("".join("node%d slots=%d\n" % (i + 1, o.slots) for i in range(o.nodes)))
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs")
    with open(os.path.join(folder, "data.txt"), "w", encoding="utf-8") as f:
        for name in sorted(n for n in os.listdir(docs) if n.endswith(".md")):
            with open(os.path.join(docs, name), encoding="utf-8") as text:
                f.write(text.read())


def show(kinds, rates, computed, last):
    first = statistics.median(rates[kinds[0]])
    print("| options | tokens/s | of `%s` (lowest .. highest run) | ms computed (each run) | "
          "max/mean | without balance, predicted | copies: predicted to take longer | survives |\n"
          "|---|---|---|---|---|---|---|---|" %
          kinds[0])
    for kind in kinds:
        of_first = [x / first for x in rates[kind]]
        balance, longer = last[kind]
        saved = balance.get("saved_ms", 0) / balance.get("step_ms", 1)
        print("| `%s` | %.0f | %.3f (%.3f .. %.3f) | %s | %.2f | %s | %s | %s |" % (
            kind, statistics.median(rates[kind]), statistics.median(of_first), min(of_first),
            max(of_first), ", ".join("%.0f" % x for x in computed[kind]),
            balance.get("rank_max_over_mean", float("nan")),
            "%.3g x the step" % (1 + saved) if balance else "", longer + " %" if longer else "",
            balance.get("survives", "")))


def main():
    o = options()
    kinds = [k.strip() for k in o.kinds.split(";")] if o.kinds else list(KINDS)
    rates, computed, last = {k: [] for k in kinds}, {k: [] for k in kinds}, {}
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
        cluster.set_bandwidth(o.mbit)
        write_inputs(o, folder)
        for _ in range(o.rounds):
            for kind in kinds:
                rate, work, *last[kind] = run(o, cluster, folder, KINDS[kind])
                rates[kind].append(rate)
                computed[kind].append(work)
                print("%s: %.0f tokens/s, %.0f ms computed, %s" % (kind, rate, work, last[kind][1]),
                      file=sys.stderr, flush=True)
    show(kinds, rates, computed, last)


if __name__ == "__main__":
    main()
