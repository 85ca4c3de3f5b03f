#!/usr/bin/python3
"""Training speed of each balance policy: a table over workloads, bandwidths and policies.

Creates a cluster of nodes of half a core each on this machine (tools/cluster; needs root), one
thread per node, and trains the layers of `small` with 32 experts over all of them (--ep).  Routing
is replayed from the recorded trace of --traces, if there is one, and from the synthetic workloads of
`evenkeel workload`.  Then

  1. `evenkeel bench moe` finds the bandwidth at which the all-to-alls of a layer take half the time
     of its experts' products;
  2. at that bandwidth and at a quarter of it, `evenkeel bench balance` trains on every workload: in
     one run each, all policies and even loads (as with --force-balance) alternate step by step;
  3. the table: a step's speed relative to the run's median step with even loads; the median round,
     and the lowest and the highest.  Policies with persistent placements have those that training
     would have after --past steps with the loads before, and are charged for the experts that move
     in these, divided over them (balance_table.charge);
  4. the check: in no row is `auto` slower than the best other policy by more than the spread (half
     of highest minus lowest), and it reaches 0.92 of even loads on the recorded trace;
  5. the bound: even loads with the least traffic (balance_bound.py), and each policy's share of it,
     for which `bench moe` measures the all-to-alls at each bandwidth.

Every run appends a line to --results, so that an interrupted table continues with --resume, also
with more workloads or repeats; --table prints the recorded results, and --bounds adds the least
traffic of their workloads where it is missing or was found for replicas of other bytes than these
runs sent, which needs the traces and no cluster. The whole
table takes hours: --estimate prints how many. Exit status 1: a target is missed, or a run failed;
77: no cluster can be created here.

Example:

    bench/balance.py --command build/evenkeel --traces ../traces --resume >table.md
"""

import argparse
import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from balance_bound import TYPES, least_traffic, type_of
from balance_routing import TRACE_FILE, Routing, find_trace
from balance_table import (CALM, CEILING, NET_SHARE, ORDER, WORKLOADS, key, read_least,
                           read_results, rows_of, say, show)
from nodes import MIXTRAL, Cluster, add_options

POLICIES = ["off", "shadow", "place", "prophet", "replicate", "exact", "auto"]

# Search for the bandwidth: first value, largest number of attempts, tolerance.
FIRST_MBIT, TRIES, CLOSE = 150.0, 4, 0.06
UNCOUNTED = 2  # warm-up steps of a run

# Defaults, and those of --quick.
FULL = {"workloads": ",".join(WORKLOADS), "bandwidths": "1,0.25", "batch": 320, "seq": 256,
        "past": 100, "rounds": 3, "repeats": 1, "wait_calm": 60.0}
QUICK = {"workloads": "trace,W1", "bandwidths": "1", "batch": 16, "seq": 128, "past": 12,
         "rounds": 2, "repeats": 1, "wait_calm": 0.0}

# Settings that must be equal in all results of a table.
SETTINGS = ("mpi", "nodes", "cpu", "dtype", "layers", "experts", "batch", "seq", "rounds",
            "policies", "spare_slots", "plan_every", "past", "seed", "trace")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(p, "0.5")
    p.add_argument("--traces", default=os.environ.get("EK_TRACES"), metavar="DIR",
                   help="folder with %s (default: EK_TRACES)" % TRACE_FILE)
    p.add_argument("--workloads", help="of %s" % FULL["workloads"])
    p.add_argument("--policies", default=",".join(POLICIES),
                   help="also eplb, fastermoe (default: %(default)s)")
    p.add_argument("--bandwidths", help="times the one searched for (default: 1,0.25)")
    p.add_argument("--mbit", type=float, default=0,
                   help="of a node, as bandwidth 1, instead of the search for it")
    p.add_argument("--dtype", choices=TYPES, default="bf16",
                   help="of products, rows and weights that are sent (default: %(default)s)")
    p.add_argument("--layers", type=int, default=1, help="of the model (default: %(default)s)")
    p.add_argument("--experts", type=int, default=32, help="of a layer (default: %(default)s)")
    p.add_argument("--spare-slots", type=int, default=1, help="of a rank (default: %(default)s)")
    p.add_argument("--plan-every", type=int, default=10,
                   help="steps between persistent placements (default: %(default)s)")
    p.add_argument("--past", type=int, help="steps of the workload before the rounds, from which "
                   "persistent placements are made (default: 100)")
    p.add_argument("--batch", type=int, help="sequences a step, over all nodes (default: 320)")
    p.add_argument("--seq", type=int, help="tokens a sequence (default: 256)")
    p.add_argument("--rounds", type=int, help="of a start: steps of each policy (default: 3)")
    p.add_argument("--repeats", type=int, help="starts of a row (default: 1)")
    p.add_argument("--seed", type=int, default=0, help="of the synthetic workloads")
    p.add_argument("--quick", action="store_true", help="tiny sizes, to test this script")
    p.add_argument("--wait-calm", type=float, metavar="S", help="seconds to wait, at most, until "
                   "nobody else uses the machine, before each start (default: 60)")
    p.add_argument("--results", default="build/bench-balance.jsonl", metavar="FILE")
    p.add_argument("--timelines", metavar="DIR", help="write the ops of all rounds to this folder, "
                   "for balance_ops.py")
    p.add_argument("--resume", action="store_true", help="continue --results")
    p.add_argument("--table", action="store_true", help="print the table of --results alone")
    p.add_argument("--bounds", action="store_true", help="add the least traffic of the workloads "
                   "in --results to them, and print the table")
    p.add_argument("--estimate", action="store_true",
                   help="measure the bandwidth, say how long the rest takes, and end")
    o = p.parse_args()
    for key, value in (QUICK if o.quick else FULL).items():
        if getattr(o, key) is None:
            setattr(o, key, value)
    o.workloads, o.policies = o.workloads.split(","), o.policies.split(",")
    o.bandwidths = [float(x) for x in o.bandwidths.split(",")]
    for name in o.workloads:
        if name not in WORKLOADS:
            p.error("no workload %s" % name)
    for name in o.policies:
        if name not in ORDER or name == CEILING:
            p.error("no policy %s" % name)
    if min(o.rounds, o.repeats, o.layers, o.plan_every, o.past) < 1 or min(o.bandwidths) <= 0:
        p.error("numbers must be positive")
    return o


# ---- the machine --------------------------------------------------------------------------------


def machine_seconds():
    """CPU seconds since boot: of programs (steal included), and of everything but idling."""
    with open("/proc/stat") as f:
        n = [int(x) for x in f.readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = n
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + steal) / tick, (user + nice + system + irq + softirq + steal) / tick


def wait_calm(limit):
    """Waits until the machine is idle, at most so many seconds."""
    end = time.monotonic() + limit
    while limit > 0:
        before = machine_seconds()[1]
        time.sleep(1)
        if machine_seconds()[1] - before <= CALM or time.monotonic() > end:
            return


# ---- one run ------------------------------------------------------------------------------------


class Work:
    """The files of all runs."""

    def __init__(self, o, folder, cluster):
        self.o, self.folder, self.cluster = o, folder, cluster
        self.routing = Routing(o, folder)
        self.config = os.path.join(folder, "config.json")
        with open(self.config, "w") as f:
            json.dump({**MIXTRAL, "num_hidden_layers": o.layers,
                       "num_local_experts": o.experts}, f)

    def words(self, workload, timeline):
        o = self.o
        return self.cluster.words(*self.cluster.mpiexec(
            "bench", "balance", "--json", "--model", self.config, "--dtype", o.dtype,
            "--threads", 1, "--ep", o.nodes, "--batch", o.batch, "--seq", o.seq, "--steps",
            o.rounds, "--policies", ",".join(o.policies), "--spare-slots", o.spare_slots,
            "--plan-every", o.plan_every, "--past", self.routing.past(workload),
            "--replay-routing", self.routing.file(workload),
            *(["--timeline", timeline] if timeline else [])))

    def train(self, start, patience):
        """Output of `bench balance`, or {"failed": reason}, also after a timeout in seconds."""
        workload, timeline = start["workload"], None
        if self.o.timelines:
            os.makedirs(self.o.timelines, exist_ok=True)
            timeline = os.path.abspath(os.path.join(
                self.o.timelines, "%s-x%g-%d.json" % (workload, start["bandwidth"],
                                                      start["repeat"])))
        errors = os.path.join(self.folder, "errors")
        wait_calm(self.o.wait_calm)
        begin, programs = time.monotonic(), machine_seconds()[0]
        with open(errors, "w") as f:
            job = subprocess.Popen(self.words(workload, timeline), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=f, text=True,
                                   start_new_session=True)
        try:
            text, why = job.communicate(timeout=patience)[0], None
            if job.returncode != 0:
                why = "ended with status %d" % job.returncode
        except subprocess.TimeoutExpired:
            why = "no end after %.0f s" % patience
        finally:
            if job.returncode is None:
                self.cluster.end_all()
                end(job)
        seconds, programs = time.monotonic() - begin, machine_seconds()[0] - programs
        if why is not None:
            with open(errors) as f:
                text = [line.strip() for line in f if line.strip()]
            return {"failed": "%s: %s" % (why, text[0] if text else "no word")}
        out = json.loads(text)
        return {"seconds": round(seconds, 1),
                "others": round(max(0.0, programs - out["cpu_s"]) / seconds, 3),
                "tokens": out["tokens"], "past": out["past"], "costs": out["costs"],
                "policies": out["policies"]}


def end(job):
    """The launcher of processes that are gone."""
    try:
        job.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


# ---- bandwidth and duration ---------------------------------------------------------------------


def bench_moe(work):
    o = work.o
    out = work.cluster.bench(
        1, "moe", "--model", work.config, "--dtype", o.dtype, "--threads", 1, "--ep", o.nodes,
        "--batch", o.batch, "--seq", o.seq, "--degrees", "1", "--steps", 1)
    return out["ways"][0]


def find_bandwidth(work):
    """The header of the results: bandwidth 1, and the attempts of the search."""
    o, tried = work.o, []
    mbit = o.mbit or FIRST_MBIT
    for _ in range(1 if o.mbit or o.quick else TRIES):
        work.cluster.set_bandwidth(mbit)
        wait_calm(o.wait_calm)
        way = bench_moe(work)
        net, experts = way["net_ms"]["median"], way["experts_ms"]["median"]
        tried.append({"mbit": mbit, "net_ms": net, "experts_ms": experts,
                      "compute_ms": way["compute_ms"]["median"]})
        say("  at %6.1f Mbit/s a node: all-to-alls %7.1f ms, experts' products %7.1f ms: %.2f" %
            (mbit, net, experts, net / experts))
        if abs(net / experts / NET_SHARE - 1) <= CLOSE:
            break
        if not o.mbit:
            mbit *= net / experts / NET_SHARE
    best = min(tried, key=lambda t: abs(math.log(t["net_ms"] / t["experts_ms"] / NET_SHARE)))
    return {"mbit": best["mbit"], "search": tried, "best": best}


def add_all_to_alls(work, head):
    """Measures the all-to-alls of all MoE layers at each bandwidth whose time the header lacks, and
    adds it, in ms.  It is not in proportion: at a quarter of the bandwidth they take less than four
    times as long, as a part of it is processor time.  Returns whether any were added."""
    known = head.setdefault("net_ms_at", {"1": head["best"]["net_ms"]})
    wanted = [f for f in work.o.bandwidths if "%g" % f not in known]
    for factor in wanted:
        work.cluster.set_bandwidth(head["mbit"] * factor)
        wait_calm(work.o.wait_calm)
        known["%g" % factor] = bench_moe(work)["net_ms"]["median"]
        say("  at %6.1f Mbit/s a node: all-to-alls %7.1f ms" %
            (head["mbit"] * factor, known["%g" % factor]))
    return bool(wanted)


def guess(o, head, factor):
    """Estimated seconds of a run before any was measured: besides its experts a layer takes about a
    third of their time, and loads are uneven."""
    best = head["best"]
    net = head.get("net_ms_at", {}).get("%g" % factor, best["net_ms"] / factor)
    steps = UNCOUNTED + o.rounds * (1 + len(o.policies))
    return 10 + steps * 1.2 * (1.35 * best["compute_ms"] + net) / 1e3


class Clock:
    """Time left: from the durations of runs so far, or from the estimate."""

    def __init__(self, o, head, rows):
        self.o, self.head = o, head
        self.took = {}
        for r in rows:
            self.add(r["bandwidth"], r.get("seconds"))

    def add(self, factor, seconds):
        if seconds is not None:
            self.took.setdefault(factor, []).append(seconds)

    def start(self, factor):
        took = self.took.get(factor)
        return statistics.mean(took) if took else guess(self.o, self.head, factor)

    def rest(self, starts):
        return sum(self.start(s["bandwidth"]) for s in starts)


def duration(seconds):
    return "%.1f min" % (seconds / 60) if seconds < 5400 else "%.1f h" % (seconds / 3600)


# ---- results ------------------------------------------------------------------------------------


def add_result(path, row):
    torn = False
    if os.path.exists(path) and os.path.getsize(path) > 0:
        with open(path, "rb") as f:
            f.seek(-1, os.SEEK_END)
            torn = f.read() != b"\n"
    with open(path, "a") as f:
        f.write("\n" * torn + json.dumps(row) + "\n")
        f.flush()
        os.fsync(f.fileno())


def add_least(o, routing, rows):
    """Appends the least traffic of the workloads of runs, where it is not known for the bytes of
    their replicas."""
    known = {name: size for name, (_, size) in read_least(o.results).items()}
    wanted = {row["workload"]: row["costs"]["replica_bytes"] for row in rows}
    for name in sorted(wanted, key=WORKLOADS.index):
        size, loads = wanted[name], None
        if known.get(name) != size:
            loads = routing.loads(name)
        if loads is not None:
            add_result(o.results, {"workload": name, "replica_bytes": size,
                                   "least": least_traffic(loads, o.spare_slots, size, o.dtype)})


def add_bounds(o):
    head, results = read_results(o.results)
    if head is None:
        sys.exit("%s holds no results" % o.results)
    find_trace(o)
    check_settings(o, head)
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        add_least(o, Routing(o, folder), [row for row in results.values() if "failed" not in row
                                          and row["workload"] in o.workloads])


def settings(o):
    s = {k: getattr(o, k) for k in SETTINGS}
    s["trace"] = os.path.basename(o.trace) if o.trace else None
    return s


def check_settings(o, head):
    """Refuses results of other settings; a trace may be added or left out."""
    ours, theirs = settings(o), {**head["settings"], "dtype": type_of(head["settings"])}
    for k in SETTINGS:
        if ours[k] != theirs.get(k) and None not in (ours[k], theirs.get(k)):
            sys.exit("%s was measured with %s %s, and now it is %s" %
                     (o.results, k.replace("_", "-"), theirs[k], ours[k]))


def starts_wanted(o):
    """All runs; repeats are outermost, so that each of them gives a whole table."""
    return [{"workload": workload, "bandwidth": factor, "repeat": repeat}
            for repeat in range(o.repeats) for factor in o.bandwidths for workload in o.workloads]


# ---- main ---------------------------------------------------------------------------------------


def told(row, head):
    """Speed relative to even loads, by policy."""
    if "failed" in row:
        return row["failed"]
    text = " ".join("%s %.3f" % (p, r.ratio) for p, r in rows_of(head, [row]).items())
    return text + (", noisy" if row["others"] > CALM else "")


def make_starts(work, head, results, todo, program):
    o, clock = work.o, Clock(work.o, head, results.values())
    for n, s in enumerate(todo):
        work.cluster.set_bandwidth(head["mbit"] * s["bandwidth"])
        row = {**s, "program": program,
               **work.train(s, max(600, 5 * clock.start(s["bandwidth"])))}
        clock.add(s["bandwidth"], row.get("seconds"))
        add_result(o.results, row)
        results[key(row)] = row
        if "failed" not in row:
            add_least(o, work.routing, [row])
        say("[%d/%d] %s x %g: %s; %s left" % (n + 1, len(todo), s["workload"], s["bandwidth"],
                                              told(row, head), duration(clock.rest(todo[n + 1:]))))


def measure(o, head, results, todo, program):
    """Executes the runs of todo; returns the header, which --estimate does not write."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, Cluster(o) as cluster:
        work = Work(o, folder, cluster)
        if head is None:
            say("bandwidth at which all-to-alls take %.2f of experts' products" % NET_SHARE)
            head = {"settings": settings(o), "trace_first": o.trace_first, **find_bandwidth(work)}
            if not o.estimate:
                add_all_to_alls(work, head)
                add_result(o.results, head)
        elif not o.estimate and add_all_to_alls(work, head):
            if results:
                say("all-to-alls of these bandwidths are measured now: they count for the starts "
                    "before, too, which must be of this machine")
            add_result(o.results, head)
        say("%d starts of %d rounds: about %s" %
            (len(todo), o.rounds, duration(Clock(o, head, results.values()).rest(todo))))
        if not o.estimate:
            make_starts(work, head, results, todo, program)
    return head


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    o = options()
    if o.bounds:
        add_bounds(o)
    if o.table or o.bounds:
        head, results = read_results(o.results)
        if head is None:
            sys.exit("%s holds no results" % o.results)
        sys.exit(not show(head, results, read_least(o.results)))
    find_trace(o)
    if not o.workloads:
        sys.exit("nothing is left to measure")
    with open(o.command, "rb") as f:
        program = hashlib.sha256(f.read()).hexdigest()[:12]
    head, results = read_results(o.results) if o.resume else (None, {})
    if head is not None:
        check_settings(o, head)
        if o.trace and head["settings"]["trace"] is None:
            head = {**head, "settings": settings(o), "trace_first": o.trace_first}
            add_result(o.results, head)
    elif os.path.exists(o.results) and not o.estimate and not o.resume:
        sys.exit("%s is there already: --resume goes on with it; or remove it" % o.results)
    todo = [s for s in starts_wanted(o)
            if key(s) not in results or "failed" in results[key(s)]]
    os.makedirs(os.path.dirname(os.path.abspath(o.results)), exist_ok=True)
    try:
        head = measure(o, head, results, todo, program) if todo else head
    except KeyboardInterrupt:
        head, results = read_results(o.results)
        say("interrupted: continue with --resume")
        if head is None:
            sys.exit(130)
    if o.estimate:
        sys.exit(0)
    sys.exit(not show(head, results, read_least(o.results)))


if __name__ == "__main__":
    main()
