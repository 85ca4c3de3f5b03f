#!/usr/bin/python3
"""Speed of pipelining inside MoE layers between nodes, and link utilisation of all-to-alls.

Creates a cluster of nodes on this machine (tools/cluster; needs root), one thread and 0.4 cores each,
which leaves CPU time for the kernel's network stack.  Then

  1. finds the bandwidth at which the all-to-alls of the layers take as long as the products of their
     experts, both measured at degree 1 by `evenkeel bench moe`;
  2. at that bandwidth, compares pipeline degrees; target: the best is 1.4 times as fast as degree 1;
  3. at that bandwidth, runs `evenkeel bench a2a`; target: messages of 1 MiB and more reach 0.9 of the
     link;
  4. the same with two ranks per node: 2DH against linear, by message size.

Takes about five minutes.  Exit status 1: a target is missed; 77: no cluster can be created here.

Example:

    bench/pipelining.py --command build/evenkeel --timeline timeline.json
"""

import argparse
import json
import os
import sys
import tempfile

from nodes import MIXTRAL, Cluster, add_options

SPEED_WANTED, LINK_WANTED, MIB = 1.4, 0.9, 1 << 20
# Search: first value, largest number of attempts, and accepted difference of the two times.
FIRST_MBIT, ROUNDS, CLOSE = 75.0, 5, 0.08


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.4")
    p.add_argument("--batch", type=int, default=32, help="sequences a step, over all nodes")
    p.add_argument("--seq", type=int, default=256, help="tokens a sequence")
    p.add_argument("--ff", type=int, default=1792,
                   help="width of an expert: 1792 has Mixtral's proportions, 1024 those of `small`")
    p.add_argument("--degrees", default="1,2,4,8,16")
    p.add_argument("--smart-groups", type=int, default=1, help="0: without them")
    p.add_argument("--steps", type=int, default=4, help="steps of each degree that are measured")
    p.add_argument("--bandwidth", type=float, default=0,
                   help="of a node, in Mbit/s, instead of the search for it")
    p.add_argument("--timeline", help="write a step of the best degree to this file")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return p.parse_args()


def say(o, text):
    if not o.json:
        print(text, flush=True)


def bench_moe(cluster, config, degrees, steps, *more):
    o = cluster.o
    return cluster.bench(1, "moe", "--model", config, "--threads", 1, "--ep", o.nodes, "--batch",
                         o.batch, "--seq", o.seq, "--degrees", degrees, "--steps", steps, *more)


def find_bandwidth(cluster, config):
    """Mbit/s at which network and products of degree 1 take the same time."""
    o, tried = cluster.o, []
    mbit = o.bandwidth or FIRST_MBIT
    for _ in range(1 if o.bandwidth else ROUNDS):
        cluster.set_bandwidth(mbit)
        way = bench_moe(cluster, config, "1", 3)["ways"][0]
        net, experts = way["net_ms"]["median"], way["experts_ms"]["median"]
        tried.append({"mbit": mbit, "net_ms": net, "experts_ms": experts})
        say(o, "  at %6.1f Mbit/s a node: all-to-alls %7.1f ms, experts' products %7.1f ms" %
            (mbit, net, experts))
        if abs(net / experts - 1) <= CLOSE:
            break
        if not o.bandwidth:
            mbit *= net / experts
    best = min(tried, key=lambda t: abs(t["net_ms"] / t["experts_ms"] - 1))
    cluster.set_bandwidth(best["mbit"])
    return best["mbit"], tried


def judge(o, name, figure, wanted):
    say(o, "%s: %.2f, target %.2f%s\n" %
        (name, figure, wanted, "" if figure >= wanted else ": missed"))
    return figure >= wanted


def degrees(cluster, config):
    o = cluster.o
    more = ["--smart-groups", o.smart_groups]
    if o.timeline:
        more += ["--timeline", os.path.abspath(o.timeline)]
    out = bench_moe(cluster, config, o.degrees, o.steps, *more)
    say(o, "  %-12s %9s %9s  %-17s %6s %9s %9s %9s %9s" %
        ("", "ms/step", "min", "..     max", "speed", "compute", "experts", "network", "exposed"))
    for w in out["ways"]:
        say(o, "  %-12s %9.1f (%8.1f .. %8.1f) %9.2f %9.1f %9.1f %9.1f %9.1f" %
            (w["way"], w["ms"]["median"], w["ms"]["min"], w["ms"]["max"], w["speed"],
             w["compute_ms"]["median"], w["experts_ms"]["median"], w["net_ms"]["median"],
             w["exposed_ms"]["median"]))
    speeds = [w["speed"] for w in out["ways"] if w["smart_groups"] == 0]
    return out, judge(o, "best degree against degree 1", max(speeds), SPEED_WANTED)


def all_to_all(cluster, mbit):
    o = cluster.o
    out = cluster.bench(1, "a2a", "--longest", 4096, "--repeats", 2, "--seconds", 0.2)
    say(o, "  link: %.1f Mbit/s measured, %.1f set" % (8e3 * out["link_gbs"]["median"], mbit))
    for row in out["all_to_all"]:
        say(o, "  %6d KiB  %-9s %9.2f ms  %.2f of the link" %
            (row["bytes"] / 1024, row["algorithm"], row["ms"]["median"], row["ratio"]))
    long = {}
    for row in out["all_to_all"]:
        if row["bytes"] >= MIB:
            long[row["bytes"]] = max(long.get(row["bytes"], 0), row["ratio"])
    return out, judge(o, "all-to-all of 1 MiB and more, of the link", min(long.values()),
                      LINK_WANTED)


def two_ranks(cluster):
    o = cluster.o
    out = cluster.bench(2, "a2a", "--longest", 1024, "--repeats", 3, "--seconds", 0.1)
    ms = {(r["bytes"], r["algorithm"]): r["ms"]["median"] for r in out["all_to_all"]}
    for size in sorted({size for size, _ in ms}):
        linear, hierarchical = ms[size, "linear"], ms[size, "2dh"]
        say(o, "  %6d KiB  linear %9.2f ms  2dh %9.2f ms: %.2f times as fast" %
            (size / 1024, linear, hierarchical, linear / hierarchical))
    return out


def main():
    o = options()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
        config = os.path.join(folder, "config.json")
        with open(config, "w") as f:
            json.dump({**MIXTRAL, "num_hidden_layers": 2, "intermediate_size": o.ff}, f)
        say(o, "%d nodes of %s cores, one thread each, %s; %d x %d tokens a step, experts 512 x %d" %
            (o.nodes, o.cpu, o.mpi, o.batch, o.seq, o.ff))
        mbit, tried = find_bandwidth(cluster, config)
        say(o, "\nMoE layers at %.1f Mbit/s a node; ms of the slowest rank" % mbit)
        moe, fast = degrees(cluster, config)
        say(o, "all-to-all between %d nodes" % o.nodes)
        a2a, full = all_to_all(cluster, mbit)
        say(o, "all-to-all between %d nodes of 2 ranks" % o.nodes)
        two = two_ranks(cluster)
    if o.json:
        print(json.dumps({"mbit": mbit, "search": tried, "moe": moe, "a2a": a2a,
                          "a2a_two_ranks": two}))
    sys.exit(not (fast and full))


main()
