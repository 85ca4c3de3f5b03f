#!/usr/bin/env python3
"""Predicted times of collectives against measured ones, on emulated clusters of this machine.

For every cluster `bench costs --cluster-out` measures machine and links, and `bench collectives
--cluster` measures every collective next to its price from that file, which knows nothing of what
is measured then.

    bench/predict_net.py --command build/evenkeel        as root (tools/cluster); about five minutes
"""

import argparse
import json
import os
import statistics
import tempfile

from nodes import Cluster, add_options

# nodes, ranks a node, Mbit/s of a node
CLUSTERS = ((4, 1, 290), (4, 1, 1000), (2, 2, 290))


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, None)
    p.add_argument("--longest", type=int, default=16384, help="KiB (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--keep", help="folder for the cluster files and results")
    return p.parse_args()


def measure(o, folder, nodes, ppn, mbit):
    """Levels of the cluster file, and rows of `bench collectives`."""
    o.nodes, o.cpu = nodes, "%.2f" % (1.8 / nodes)
    file = os.path.join(folder, "%dx%d-%d.json" % (nodes, ppn, mbit))
    with Cluster(o) as c:
        c.set_bandwidth(mbit)
        c.bench(ppn, "costs", "--threads", 1, "--cluster-out", file)
        rows = c.bench(ppn, "collectives", "--cluster", file, "--longest", o.longest,
                       "--repeats", o.repeats)["collectives"]
    with open(file, encoding="utf-8") as f:
        levels = json.load(f)["levels"]
    with open(file + ".rows", "w", encoding="utf-8") as f:
        json.dump(rows, f)
    return levels, rows


def level_text(level):
    return "`%s` %d ranks, %.4g GB/s, %.4g us, %.4g us a message" % (
        level["name"], level["ranks"], level["gbytes_s"], level["us"], level.get("message_us", 0))


def table(nodes, ppn, mbit, levels, rows):
    sizes = sorted({r["bytes"] for r in rows})
    print("\n## %d nodes of %d rank%s, %d Mbit/s\n" % (nodes, ppn, "s" if ppn > 1 else "", mbit))
    print("Measured levels: %s.\n" % "; ".join(map(level_text, levels)))
    print("| ms, predicted / measured | %s |" % " | ".join("%d KiB" % (s // 1024) for s in sizes))
    print("|---|%s" % ("---|" * len(sizes)))
    errors = {s: [] for s in sizes}
    for name in dict.fromkeys(r["collective"] for r in rows):
        cells = []
        for r in sorted((r for r in rows if r["collective"] == name), key=lambda r: r["bytes"]):
            ratio = r["predicted_ms"] / r["ms"]["median"]
            errors[r["bytes"]].append(abs(ratio - 1))
            cells.append("%.3g / %.3g = %.2f" % (r["predicted_ms"], r["ms"]["median"], ratio))
        print("| %s | %s |" % (name, " | ".join(cells)))
    print("| mean error | %s |" % " | ".join("%.0f %%" % (100 * statistics.mean(errors[s]))
                                             for s in sizes))


def main():
    o = options()
    with tempfile.TemporaryDirectory() as temporary:
        for cluster in CLUSTERS:
            table(*cluster, *measure(o, o.keep or temporary, *cluster))


main()
