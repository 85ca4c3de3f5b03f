#!/usr/bin/env python3
"""How far the engines replay and flow of `simulate` are from messages, on drawn layouts and clusters.

Layouts of up to 64 ranks of the preset small are drawn from a fixed seed and simulated on every
cluster with each engine; loads are even.  The tables have the step of replay and flow over that of
messages, over layouts; and where the steps that differ most go.  With --uneven the table has the step
of replay over that of flow, with loads of two synthetic workloads and several policies.  With
--copies, the layouts are those with --ep above 1, and experts have several copies.  With --pipelines
the table has the steps of replay and flow over those of messages, of 60 pipelines of the preset tiny on
networks on which transfers take from a small part of the products' time to many times as long.

    bench/simulate_engines.py
    bench/simulate_engines.py --uneven
    bench/simulate_engines.py --copies
    bench/simulate_engines.py --pipelines
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import tempfile

WORST = 5
ENGINES = ("replay", "flow", "messages")
MACHINE = {"peak": 1e12, "memory_bytes_s": 1e11, "efficiency": 1}


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--layouts", type=int, default=60, help="how many (default: %(default)s)")
    p.add_argument("--uneven", action="store_true", help="replay against flow, with uneven loads")
    p.add_argument("--copies", action="store_true", help="several copies of each expert")
    p.add_argument("--pipelines", action="store_true", help="pipelines of the preset tiny instead of drawn layouts")
    p.add_argument("--seed", type=int, default=1, help="of the draws (default: %(default)s)")
    return p.parse_args()


def cluster(*levels):
    return {"evenkeel_cluster": 1, "name": "drawn", "rank": {"memory": "80G", "machine": MACHINE},
            "levels": [dict(zip(("name", "ranks", "gbytes_s", "us", "shared_by", "message_us"), l)) for l in levels]}


def clusters():
    """By name: a rank's part of links is the same in the first four, or ten times as much."""
    return {
        "links of their own": cluster(("node", 4, 10, 2), ("net", 64, 1, 8)),
        "the same, 10 times as quick": cluster(("node", 4, 100, 0.2), ("net", 64, 10, 0.8)),
        "adapters for 4 ranks": cluster(("node", 4, 10, 2), ("net", 64, 1, 8, 4)),
        "each rank a node": cluster(("net", 64, 1, 8)),
        "a spine of half the bandwidth": cluster(("node", 4, 10, 2), ("leaf", 16, 1, 8), ("spine", 64, 0.5, 12, 16)),
        "overhead of 2 us a message": cluster(("node", 4, 10, 2, 1, 2), ("net", 64, 1, 8, 1, 2)),
    }


def draw(rng):
    pp, tp, ep, dp = rng.choice((1, 2, 4)), rng.choice((1, 2)), rng.choice((1, 2, 4, 8)), rng.randint(1, 8)
    while dp * tp % ep or pp * dp * tp > 64:
        dp = rng.randint(1, 16)
    micro = rng.choice((8, 16))
    return ["--ranks", pp * dp * tp, "--pp", pp, "--tp", tp, "--ep", ep, "--zero", rng.randrange(4),
            "--recompute", rng.choice(("off", "attention", "full")), "--a2a", rng.choice(("linear", "pairwise", "2dh")),
            "--pipeline-degree", rng.choice((1, 2)), "--micro-batch", micro * dp, "--batch", micro * dp * rng.randint(1, 6)]


def with_copies(layouts, rng):
    """Of the preset's 8 experts."""
    for words in layouts:
        ep = words[words.index("--ep") + 1]
        if ep > 1:
            yield words + rng.choice((["--balance", "replicate", "--replicas-min", 2, "--spare-slots", 8 // ep],
                                      ["--balance", "eplb", "--spare-slots", 2], ["--elastic", "--replicas-min", 2]))


def simulate(command, file, words, engine, model="small"):
    r = subprocess.run([command, "simulate", "--model", model, "--cluster", file, "--engine", engine, "--json",
                        *map(str, words)], capture_output=True, text=True, check=False)
    if r.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {r.stderr}")
    return json.loads(r.stdout)


def pipelines():
    """Clusters and words."""
    for (gbytes_s, us), peak in itertools.product(((0.05, 160), (0.2, 40), (0.45, 10), (1, 8), (4, 10)), (1e12, 8e12)):
        c = cluster(("net", 64, gbytes_s, us))
        c["rank"]["machine"] = dict(MACHINE, peak=peak)
        for ranks, pp, micro, batch in ((4, 4, 1, 16), (4, 4, 2, 16), (2, 2, 1, 16), (2, 2, 2, 16), (8, 4, 2, 32), (8, 2, 4, 32)):
            yield c, ["--ranks", ranks, "--pp", pp, "--ep", 1, "--micro-batch", micro, "--batch", batch]


def compare_pipelines(o, folder):
    file = os.path.join(folder, "cluster.json")
    errors = {"replay": [], "flow": []}
    for c, words in pipelines():
        with open(file, "w", encoding="utf-8") as f:
            json.dump(c, f)
        steps = {e: simulate(o.command, file, words, e, "tiny")["step_ms"] for e in ENGINES}
        for e, of in errors.items():
            of.append(100 * (steps[e] / steps["messages"] - 1))
    print("%d pipelines\n\n| engine | mean | signed | most |\n|---|---|---|---|" % len(errors["flow"]))
    for e, of in errors.items():
        print(f"| {e} | {statistics.mean(map(abs, of)):.1f} % | {statistics.mean(of):+.1f} % | {max(of, key=abs):+.1f} % |")


def uneven_clusters():
    every = clusters()
    return {"nodes of 2 with an adapter": cluster(("node", 2, 10, 2), ("net", 64, 1, 8, 2)),
            "the same, a tenth as quick": cluster(("node", 2, 1, 2), ("net", 64, 0.1, 8, 2)),
            "a twentieth, adapters for 4 ranks": cluster(("node", 4, 0.5, 2), ("net", 64, 0.05, 8, 4)),
            **{name: every[name] for name in ("adapters for 4 ranks", "links of their own", "each rank a node", "a spine of half the bandwidth")}}


def write_workload(command, folder, name):
    file = os.path.join(folder, name + ".npy")
    subprocess.run([command, "workload", "--name", name, "--ranks", "8", "--experts", "8", "--layers", "4", "--iterations", "2",
                    "--out", file], check=True, stdout=subprocess.DEVNULL)
    return file


def compare_uneven(o, layouts, folder):
    traces = [write_workload(o.command, folder, name) for name in ("W1", "W2")]
    rng = random.Random(o.seed + 1)
    layouts = [words + ["--trace", rng.choice(traces), "--balance", rng.choice(("off", "exact", "prophet", "auto"))]
               for words in layouts if words[words.index("--ep") + 1] > 1]
    print("%d layouts\n\n| cluster | replay over flow: mean, signed, most |\n|---|---|" % len(layouts))
    for name, c in uneven_clusters().items():
        file = os.path.join(folder, "cluster.json")
        with open(file, "w", encoding="utf-8") as f:
            json.dump(c, f)
        of = [100 * (simulate(o.command, file, words, "replay")["step_ms"] / simulate(o.command, file, words, "flow")["step_ms"] - 1)
              for words in layouts]
        print(f"| {name} | {statistics.mean(map(abs, of)):.1f} %, {statistics.mean(of):+.1f} %, {max(of, key=abs):+.1f} % |", flush=True)


def differences(a, b, prefix=""):
    """Milliseconds of each part of a step in a over those in b."""
    found = {}
    for key in set(a) | set(b):
        x, y = a.get(key, 0), b.get(key, 0)
        if isinstance(x, dict) or isinstance(y, dict):
            found.update(differences(x or {}, y or {}, f"{key} "))
        else:
            found[prefix + key] = x - y
    return found


def main():
    o = options()
    rng = random.Random(o.seed)
    layouts = [draw(rng) for _ in range(o.layouts)]
    worst = []
    if o.copies:
        layouts = list(with_copies(layouts, random.Random(o.seed + 1)))
        print("%d layouts\n" % len(layouts))
    if o.uneven or o.pipelines:
        with tempfile.TemporaryDirectory() as folder:
            if o.pipelines:
                compare_pipelines(o, folder)
            else:
                compare_uneven(o, layouts, folder)
        return
    print("| cluster | replay: mean, signed, most | flow: mean, signed, most |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, c in clusters().items():
            file = os.path.join(folder, "cluster.json")
            with open(file, "w", encoding="utf-8") as f:
                json.dump(c, f)
            errors = {"replay": [], "flow": []}
            for words in layouts:
                steps = {e: simulate(o.command, file, words, e) for e in ENGINES}
                for e, of in errors.items():
                    of.append(100 * (steps[e]["step_ms"] / steps["messages"]["step_ms"] - 1))
                worst.append((abs(errors["flow"][-1]), errors["flow"][-1], errors["replay"][-1], name, words,
                              differences(steps["flow"]["where_ms"], steps["messages"]["where_ms"]),
                              steps["messages"]["step_ms"]))
            cells = [f"{statistics.mean(map(abs, of)):.1f} %, {statistics.mean(of):+.1f} %, {max(of, key=abs):+.1f} %"
                     for of in errors.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\n| flow | replay | cluster | layout | most of it, % of the step |\n|---|---|---|---|---|")
    seen = []
    for _, flow, replay, name, words, parts, step in sorted(worst, reverse=True, key=lambda w: w[0]):
        if words in seen or len(seen) == WORST:
            continue
        seen.append(words)
        most = sorted(parts.items(), key=lambda p: -abs(p[1]))[:3]
        said = ", ".join(f"{key} {100 * ms / step:+.1f}" for key, ms in most)
        print(f"| {flow:+.1f} % | {replay:+.1f} % | {name} | `{' '.join(map(str, words))}` | {said} |")


if __name__ == "__main__":
    main()
