#!/usr/bin/python3
"""Where the time of a balance policy goes that even loads do not take, op by op.

Reads the timelines of a run of bench/balance.py --timelines DIR (of rank 0 in FILE.json, of rank N
in FILE-rankN.json) and prints, for each op of the compute lane, milliseconds of a step with each
policy and with even loads, as the marks of the steps name them: while the op ran, and idle before
it, when it waited for what others send.  Means of the rounds and ranks; "slowest" is the mean of
the rounds for the rank on which the op took longest.  `--by-layer` splits them by layer.

Example:

    bench/balance.py --traces ../traces --workloads stable --policies exact,auto --bandwidths 1 \\
        --timelines DIR --results FILE
    bench/balance_ops.py DIR/stable-x1-0.json
"""

import argparse
import json
import os
import statistics
import sys

EVEN = "force-balance"
# Ops whose work depends on the plan.
KINDS = {
    "products of experts": ("expert up", "expert down", "expert up input", "expert up weight",
                            "expert down input", "expert down weight"),
    "swiglu": ("swiglu", "swiglu backward"),
    "rows to and from experts": ("permute", "permute backward", "unpack", "repack", "unpermute",
                                 "unpermute backward"),
    "replicas": ("plan replicas", "wait replicas", "clear replicas", "pack replicas"),
}
SAME = "the same work"  # of all others


def read(path):
    """(start and policy of each step, ops of the compute lane) of a rank, in milliseconds."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    lanes = {e["tid"] for e in events
             if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == "compute"}
    marks = [(e["ts"] / 1e3, e["args"].get("name")) for e in events if e["ph"] == "i"]
    if not marks or None in [name for _, name in marks]:
        sys.exit("%s names no policies of its steps: it is not of this bench balance" % path)
    ops = [(e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["name"], e["args"])
           for e in events if e["ph"] == "X" and e["tid"] in lanes]
    return sorted(marks), sorted(ops, key=lambda op: op[0])


def steps_of(marks, ops, by_layer):
    """Of each step, which begin at marks, {op: [ms running, ms idle before]}."""
    out, at = [dict() for _ in marks], marks[0]
    step = 0
    for start, end, name, args in ops:
        while step + 1 < len(marks) and start >= marks[step + 1]:
            step += 1
            at = marks[step]
        if by_layer and args["layer"] >= 0:
            name = "%s %d" % (name, args["layer"])
        of = out[step].setdefault(name, [0.0, 0.0])
        of[0] += end - start
        of[1] += max(0.0, start - at)
        at = max(at, end)
    return out


def files_of(path):
    """The timelines of all ranks of the run whose rank 0 wrote this one."""
    with open(path) as f:
        who = next(e for e in json.load(f)["traceEvents"] if e["name"] == "process_name")
    stem, end = os.path.splitext(path)
    ranks = int(who["args"]["name"].split()[-1])  # "evenkeel rank 0 of 4"
    return [path, *("%s-rank%d%s" % (stem, rank, end) for rank in range(1, ranks))]


def read_ranks(path, by_layer):
    """(policy of each step, steps of each rank), from the timeline of rank 0."""
    names, ranks = None, []
    for of in files_of(path):
        marks, ops = read(of)
        mine = [name for _, name in marks]
        names = names or mine
        if mine != names:
            sys.exit("%s has other steps than %s: it is of another run" % (of, path))
        ranks.append(steps_of([start for start, _ in marks], ops, by_layer))
    return names, ranks


def sums(ranks, names, policy):
    """{(op, "runs" or "waits"): (mean over rounds and ranks, mean of the slowest rank)}"""
    steps = [i for i, name in enumerate(names) if name == policy]
    out = {}
    for op in {op for rank in ranks for i in steps for op in rank[i]}:
        for k, what in enumerate(("runs", "waits")):
            table = [[rank[i].get(op, (0, 0))[k] for rank in ranks] for i in steps]
            out[op, what] = (statistics.mean(map(statistics.mean, table)),
                             max(statistics.mean(column) for column in zip(*table)))
    return out


def totals(of):
    """{(kind of ops, what): ms of a step} of a policy, from `sums`."""
    out = dict.fromkeys([(kind, "runs") for kind in (*KINDS, SAME)] +
                        [("all", "waits"), ("all", "runs and waits")], 0.0)
    for (op, what), (ms, _) in of.items():
        kind = next((k for k, ops in KINDS.items() if op.rstrip(" 0123456789") in ops), SAME)
        out[(kind, what) if what == "runs" else ("all", what)] += ms
        out["all", "runs and waits"] += ms
    return out


def print_ops(of, policies, least):
    print("| op | |%s" % "".join(" `%s` | slowest rank |" % x for x in policies))
    print("|" + "---|" * (2 + 2 * len(policies)))
    rows = []
    for key in {key for s in of.values() for key in s}:
        values = [of[x].get(key, (0.0, 0.0)) for x in policies]
        gaps = [abs(v[k] - values[-1][k]) for v in values for k in (0, 1)]
        if max(gaps) >= least:
            rows.append((-max(gaps), key, values))
    for _, key, values in sorted(rows):
        print("| `%s` | %s |%s" % (*key, "".join(" %.0f | %.0f |" % v for v in values)))
    print()


def print_totals(of, policies):
    print("| ops | |%s" % "".join(" `%s` |" % x for x in policies))
    print("|" + "---|" * (2 + len(policies)))
    columns = [totals(of[x]) for x in policies]
    for key in columns[0]:
        print("| %s | %s |%s" % (*key, "".join(" %.0f |" % c[key] for c in columns)))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("file", help="timeline of rank 0")
    p.add_argument("--by-layer", action="store_true")
    p.add_argument("--least", type=float, default=5.0, metavar="MS",
                   help="leave out ops that differ less from even loads (default: %(default)s)")
    o = p.parse_args()
    names, ranks = read_ranks(o.file, o.by_layer)
    policies = [name for name in dict.fromkeys(names) if name != EVEN] + [EVEN]
    of = {policy: sums(ranks, names, policy) for policy in policies}
    print_ops(of, policies, o.least)
    print_totals(of, policies)


if __name__ == "__main__":
    main()
