#!/usr/bin/python3
"""Overhead of --elastic without failures, and recovery time.

Overhead: runs with and without it alternate; prints the median step of each and, from the timeline,
the time of a step's update (`adamw`), which writes the step journal and undo logs, and the median
ratio of the pairs.

With --nodes on a cluster (tools/cluster; needs root), otherwise with workers on this machine.
Arguments after -- are passed to both runs of a pair.

Recovery (not with --nodes: see tools/chaos): kills one worker of a run after the other, and measures
the time from the kill until a new step is in metrics.jsonl, minus one median step.  Two workers on
two cores cannot lose a host, so this is the time of the launcher, MPI and the next generation.

Example:

    bench/elastic.py --command build/evenkeel --data docs src
    bench/elastic.py --command build/evenkeel --data docs src --nodes 4 --steps 30 -- --batch 8 \\
        --micro-batch 2 --seq 64 --balance replicate --replicas-min 2 --spare-slots 3
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from nodes import Cluster


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--data", nargs="+", required=True)
    p.add_argument("--model", default="small")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--pairs", type=int, default=5, help="pairs of runs, without and with --elastic (default: 5)")
    p.add_argument("--steps", type=int, default=10,
                   help="steps of a run; the first two are not counted (default: %(default)s)")
    p.add_argument("--nodes", type=int, default=0, help="nodes of a cluster; 0: no cluster")
    p.add_argument("--cpu", default="0.5", help="cores of a node (default: %(default)s)")
    p.add_argument("--bandwidth", default="1gbit", help="of a node (default: %(default)s)")
    p.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich",
                   help="MPI that it is linked with")
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--json", action="store_true")
    p.add_argument("train", nargs="*", help="options of evenkeel train")
    o = p.parse_args()
    o.ranks = o.nodes or o.ranks
    o.train = o.train or "--batch 16 --seq 256 --balance exact".split()
    return o


def words(o, out, *more):
    return [os.path.realpath(o.command), "train", "--model", o.model, "--data", *o.data, "--out",
            out, "--ranks", str(o.ranks), "--ep", str(o.ranks), "--threads", "1", "--quiet",
            *map(str, more)]


def metrics(out):
    try:
        with open(os.path.join(out, "metrics.jsonl")) as f:
            return [json.loads(s) for s in f.read().splitlines() if s.endswith("}")]
    except FileNotFoundError:
        return []


# ---- overhead -----------------------------------------------------------------------------------


def one_run(o, folder, cluster, *more):
    """Milliseconds of a run: the median step, and the mean update of a step."""
    out = os.path.join(folder, "run")
    shutil.rmtree(out, True)
    run = words(o, out, *o.train, "--steps", o.steps, "--timeline", *more)
    if cluster is not None:
        hosts = os.path.join(folder, "hosts")
        with open(hosts, "w") as f:
            f.write("".join("node%d\n" % (i + 1) for i in range(o.nodes)))
        run += [] if "--elastic" in more else ["--elastic=false"]
        run = cluster.words("run", "head", *run, "--hosts", hosts)
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "timeline.json")) as f:
        events = json.load(f)
    events = events["traceEvents"] if isinstance(events, dict) else events
    took = collections.Counter()
    for e in events:
        if e.get("ph") == "X":
            took[e["name"]] += e["dur"] / 1e3
    steps = [m["step_ms"] for m in metrics(out)][2:]
    return statistics.median(steps), took["adamw"] / o.steps


def overhead(o, folder, cluster):
    without, with_it = [], []
    for i in range(o.pairs):
        for how in [[], ["--elastic"]][::1 - i % 2 * 2]:  # the order alternates
            (with_it if how else without).append(one_run(o, folder, cluster, *how))
        print("  pair %d: %.0f ms a step without, %.0f with; update %.0f and %.0f ms" %
              (i + 1, without[-1][0], with_it[-1][0], without[-1][1], with_it[-1][1]),
              file=sys.stderr)
    ratios = sorted(b[0] / a[0] for a, b in zip(without, with_it))
    return {"step_ratio": {"median": statistics.median(ratios), "min": ratios[0],
                           "max": ratios[-1]},
            "update_ms_without": statistics.median(a[1] for a in without),
            "update_ms_with": statistics.median(b[1] for b in with_it)}


# ---- recovery -----------------------------------------------------------------------------------


def workers(command, out):
    """The workers of the run, started by mpiexec."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                line = f.read().decode(errors="replace").split("\0")
            with open("/proc/%s/environ" % pid, "rb") as f:
                ranked = b"PMI_RANK=" in f.read()
        except OSError:  # it has ended, or belongs to another user
            continue
        if ranked and out in line and os.path.realpath(line[0]) == command:
            found.append(int(pid))
    return sorted(found)


def wait_until(condition):
    while not condition():
        time.sleep(0.001)


def one_kill(o, out, turn):
    """Seconds from a kill to the end of the first new step, minus a median step; and that step."""
    command = os.path.realpath(o.command)
    before = len(metrics(out))
    wait_until(lambda: len(metrics(out)) >= before + 4)
    step = statistics.median(m["step_ms"] for m in metrics(out)[-4:]) / 1e3
    wait_until(lambda: len(workers(command, out)) == o.ranks)
    victim = workers(command, out)[turn % o.ranks]
    before, begin = len(metrics(out)), time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: sum(not m.get("recovered") for m in metrics(out)[before:]) > 0)
    return time.monotonic() - begin - step, step


def recovery(o, folder):
    out = os.path.join(folder, "killed")
    job = subprocess.Popen(words(o, out, "--elastic", "--batch", 4, "--seq", 128, "--balance",
                                 "exact", "--steps", 100000),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        took = []
        for turn in range(o.kills):
            took.append(one_kill(o, out, turn))
            print("  kill %d: %.2f s over a step of %.2f s" % (turn + 1, *took[-1]),
                  file=sys.stderr)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait()
    over = sorted(t for t, _ in took)
    return {"kills": len(over), "median_s": statistics.median(over),
            "p95_s": over[min(len(over) - 1, round(0.95 * (len(over) - 1)))], "max_s": over[-1],
            "step_s": statistics.median(s for _, s in took)}


def main():
    o = options()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, \
            Cluster(o) if o.nodes else contextlib.nullcontext() as cluster:
        if cluster is not None:
            cluster.call("bandwidth", "all", o.bandwidth)
        result = {"overhead": overhead(o, folder, cluster)}
        if cluster is None:
            result["recovery"] = recovery(o, folder)
    if o.json:
        print(json.dumps(result))
        return
    a, b = result["overhead"], result.get("recovery")
    print("a step with --elastic takes %.3f of one without (%.3f .. %.3f); its update %.0f ms, "
          "without %.0f" % (a["step_ratio"]["median"], a["step_ratio"]["min"],
                            a["step_ratio"]["max"], a["update_ms_with"], a["update_ms_without"]))
    if b is None:
        return
    print("%d kills: a step is done %.2f s after one, over the step of %.2f s itself (median; 95 %% "
          "within %.2f s, the longest %.2f s)" % (b["kills"], b["median_s"], b["step_s"], b["p95_s"],
                                                  b["max_s"]))


if __name__ == "__main__":
    main()
