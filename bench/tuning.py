#!/usr/bin/python3
"""Checks whether tuning while training finds the best r, pipeline degree and all-to-all, and how soon.

Creates clusters of nodes on this machine (tools/cluster; needs root) that differ in nodes, ranks per
node and bandwidth, with models of different expert and step sizes.  In each

  1. trains with all three on auto until the tuner reports its choice, and records the number of steps;
  2. trains with every setting, a few steps each, alternating several times;
  3. trains longer with the tuner's choice and the best three settings, alternating; target: the choice
     is within 5 % of the best, and made within 200 steps.

Takes about 20 minutes.  Exit status 1: a target is missed; 77: no cluster can be created here.

Example:

    bench/tuning.py --command build/evenkeel --json >tuning.json
"""

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile

from nodes import MIXTRAL, Cluster

STEPS_WANTED, RATIO_WANTED = 200, 1.05
MOST_STEPS = 230  # after which a search is ended

# The clusters and models: bandwidth in Mbit/s a node, ranks a node, width of experts and tokens of a
# step, which determine whether rows or weights are the shorter message.
PLACES = [
    {"name": "four nodes, slow, few tokens", "nodes": 4, "ppn": 1, "mbit": 40, "ff": 256,
     "batch": 8, "seq": 64},
    {"name": "four nodes, many tokens", "nodes": 4, "ppn": 1, "mbit": 150, "ff": 64,
     "batch": 32, "seq": 128},
    {"name": "two nodes of two ranks", "nodes": 2, "ppn": 2, "mbit": 100, "ff": 192,
     "batch": 16, "seq": 64},
]
RANKS, EP, ETP = 4, 2, 2

CONFIG = {**MIXTRAL, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 32}


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich",
                   help="MPI that it is linked with")
    p.add_argument("--cpu", default="0.45", help="cores of a node of one rank (default: 0.45)")
    p.add_argument("--steps", type=int, default=12, help="of a setting and turn (default: 12)")
    p.add_argument("--turns", type=int, default=2, help="through all settings (default: 2)")
    p.add_argument("--last", type=int, default=4, help="turns of the last comparison (default: 4)")
    p.add_argument("--places", default="0,1,2", help="which of the clusters (default: all)")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return p.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


class Place:
    """One cluster, and training in it."""

    def __init__(self, o, place, folder):
        self.o, self.place, self.folder = o, place, folder
        self.config = os.path.join(folder, "config.json")
        self.tokens = os.path.join(folder, "tokens.bin")
        with open(self.config, "w") as f:
            json.dump({**CONFIG, "intermediate_size": place["ff"]}, f)
        rng = random.Random(0)
        n = 4 * place["batch"] * (place["seq"] + 1)
        with open(self.tokens, "wb") as f:
            f.write(struct.pack("<%dH" % n, *(int(256 ** rng.random()) for _ in range(n))))

    def train(self, cluster, setting, steps):
        """Lines of metrics of a run with these values of r, degree and all-to-all."""
        out = os.path.join(self.folder, "run")
        r, degree, a2a = setting
        words = cluster.mpiexec(
            "train", "--model", self.config, "--data", self.tokens, "--batch", self.place["batch"],
            "--seq", self.place["seq"], "--steps", steps, "--threads", 1, "--ep", EP, "--etp", ETP,
            "--balance", "off", "--adaptive-r", r, "--pipeline-degree", degree, "--a2a", a2a,
            "--dtype", "fp32", "--out", out, "--quiet", "--save-every", 0,
            ppn=self.place["ppn"])
        cluster.call(*words, what="train")
        with open(os.path.join(out, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        shutil.rmtree(out)
        return lines


def setting_of(line):
    return (str(line["adaptive_r"]), str(line["pipeline_degree"]), line["a2a"])


def settings(place):
    """All settings that the tuner chooses from."""
    a2a = ["linear", "pairwise"] + ["2dh"] * (place["ppn"] > 1)
    rows = itertools.product(["2", "1"], ["1", "2", "4", "8"], a2a)
    return [*rows, ("0", "1", "linear")]


def median_ms(lines):
    """Times of the steps except the first two, which allocate memory."""
    return statistics.median(line["step_ms"] for line in lines[2:])


def search(at, cluster):
    """The tuner's final setting, and the step from which on it stays."""
    lines = at.train(cluster, ("auto", "auto", "auto"), MOST_STEPS)
    ways = [setting_of(line) for line in lines]
    settled = len(ways) - 1
    while settled > 0 and ways[settled - 1] == ways[-1]:
        settled -= 1
    return ways[-1], settled


def take_turns(at, cluster, ways, turns, steps):
    """Median of each setting in ms, over turns in alternating order."""
    times = {way: [] for way in ways}
    for turn in range(turns):
        for way in ways if turn % 2 == 0 else ways[::-1]:
            times[way].append(median_ms(at.train(cluster, way, steps)))
    return times


def measure(o, place):
    say("%s: %d nodes of %d, %g Mbit/s, experts %d wide, %d tokens" %
        (place["name"], place["nodes"], place["ppn"], place["mbit"], place["ff"],
         place["batch"] * place["seq"]))
    shape = argparse.Namespace(nodes=place["nodes"], cpu=float(o.cpu) * place["ppn"], mpi=o.mpi,
                               command=o.command)
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(shape) as cluster:
        cluster.set_bandwidth(place["mbit"])
        at = Place(o, place, folder)
        found, steps = search(at, cluster)
        say("  found r %s, degree %s, %s in %d steps" % (*found, steps))
        times = take_turns(at, cluster, settings(place), o.turns, o.steps)
        order = sorted(times, key=lambda way: statistics.median(times[way]))
        last = [found] + [way for way in order[:3] if way != found]
        again = take_turns(at, cluster, last, o.last, 2 * o.steps)
    best = min(again, key=lambda way: statistics.median(again[way]))
    ratio = [a / b for a, b in zip(again[found], again[best])]
    result = {
        **place, "found": found, "found_in": steps, "best": best,
        "ratio": statistics.median(ratio), "ratios": ratio,
        "default_over_best": statistics.median(times[("2", "1", "linear")]) /
                             statistics.median(times[order[0]]),
        "all_ms": {" ".join(way): statistics.median(t) for way, t in times.items()},
        "last_ms": {" ".join(way): t for way, t in again.items()}}
    say("  best r %s, degree %s, %s; found takes %.3f of its time (%.3f .. %.3f)" %
        (*best, result["ratio"], min(ratio), max(ratio)))
    for r in "210":
        way = min((w for w in times if w[0] == r), key=lambda w: statistics.median(times[w]))
        say("  best with r %s: degree %s, %s: %.1f ms" % (*way, statistics.median(times[way])))
    return result


def main():
    o = options()
    results = [measure(o, PLACES[int(i)]) for i in o.places.split(",")]
    good = all(r["found_in"] <= STEPS_WANTED and r["ratio"] <= RATIO_WANTED for r in results)
    if o.json:
        print(json.dumps(results))
    say("all within %d steps and %.2f of the best: %s" %
        (STEPS_WANTED, RATIO_WANTED, "yes" if good else "no, missed"))
    sys.exit(not good)


if __name__ == "__main__":
    main()
