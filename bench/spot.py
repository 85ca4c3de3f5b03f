#!/usr/bin/python3
"""Samples trained with --elastic on spot instances, against other ways to survive their losses.

Creates a cluster (tools/cluster; needs root) and trains on it, for the same time of the same trace of
spot instances, once for each of --systems:

  elastic   --elastic on all nodes that are there.  Saves as often as the first of --save-every, for
            state without a replica.
  restart   Once for each value of --save-every, without --elastic: the loss of a node ends the run,
            which this script restarts at once from its newest checkpoint, on all nodes that are
            there, as one expert-parallel group.  Nodes that return take part from the next restart
            on, or once the next checkpoint is complete.
  ds        The same as DeepSpeed restarts, the baseline DS of Lazarus' paper (arXiv 2407.04656): on
            a multiple of --group nodes, each group with all experts, while other nodes wait;
            experts are not balanced.  Saves as often as the first of --save-every.
  ds-ft     The paper's DS(FT): the same groups, but a loss costs no step while the nodes that are
            left have the experts of every part; else it goes back to its newest checkpoint, as
            often as the last of --save-every.  Nodes that return take part at once.  It runs
            with --elastic, restarted by this script on the nodes of whole groups.
  bamboo    Bamboo (NSDI 2023): redundant computation in pipelines of --stages nodes.  evenkeel does
            not have it.  Its pipelines run, undisturbed, to measure their steps; the rest is a
            model (bench/spot_model.py), with the times that other systems of this call took to
            start again: needs elastic, and restart or ds.

The result of a run is its last step, saved or not.  It is printed beside a prediction from the trace
and the times of steps, saves and starts (`predicted`).

--trace also takes a recorded trace in the format of Bamboo's, scaled to the nodes and compressed in
time (bench/spot_trace.py): --compress 40 makes losses 40 times as frequent, but no step, start or
save faster, so ratios are not those of the recorded time.

Arguments after -- are passed to `evenkeel train`; a run of n nodes has --ep n.

Examples:

    bench/spot.py --seconds 600 --lost 75 --away 30 --wanted 3 -- --model small --data docs src \\
        --batch 8 --micro-batch 2 --seq 64 --dtype bf16 --threads 1 --balance replicate \\
        --replicas-min 2 --spare-slots 3 --plan-every 10
    bench/spot.py --systems elastic,restart,ds,ds-ft,bamboo --trace p3-trace.csv --compress 40 \\
        --seconds 120 -- --model config.json --data docs --batch 8 --micro-batch 1 --seq 32

Exit status: 0 done, 1 a run failed, or --elastic trained less than --wanted times the samples of
the first other system, or (without --wanted) a ratio differs from the predicted one by more than
--close; 2 wrong usage; 77: no cluster can be created here.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile

import spot_trace
from harm import Wrong, make_trace, read_trace, say
from nodes import Cluster, add_options
from spot_model import Bamboo, Rules, predicted, redundant_factor
from spot_runs import Elastic, FaultTolerant, Pipelines, Restarted

SYSTEMS = ("elastic", "restart", "ds", "ds-ft", "bamboo")
PIPELINE_STEPS = 12  # of a run that measures pipelines


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                epilog="Arguments after -- are passed to evenkeel train.")
    add_options(p, "0.5")
    p.add_argument("--bandwidth", default="1gbit", help="of a node (default: %(default)s)")
    p.add_argument("--systems", default="elastic,restart", metavar="NAME,...",
                   help="of %s (default: %%(default)s)" % ", ".join(SYSTEMS))
    p.add_argument("--group", type=int, default=2, metavar="N",
                   help="nodes of an expert-parallel group of ds and ds-ft (default: %(default)s)")
    p.add_argument("--stages", type=int, default=2, metavar="N",
                   help="of a pipeline of bamboo (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=600, help="of a run (default: %(default)s)")
    p.add_argument("--trace", metavar="FILE", help="lines \"SECONDS NODE up|down\", or a recorded "
                   "one; default: a random one")
    spot_trace.add_options(p)
    p.add_argument("--lost", type=float, default=75, metavar="S",
                   help="mean seconds between losses of a node (default: %(default)s)")
    p.add_argument("--away", type=float, default=30, metavar="S",
                   help="mean seconds until it returns (default: %(default)s)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--save-every", default="50,250", metavar="STEPS", help="of the runs that "
                   "restart from checkpoints (default: %(default)s)")
    p.add_argument("--wanted", type=float, metavar="X", help="smallest acceptable ratio")
    p.add_argument("--close", type=float, default=0.1, metavar="X",
                   help="accepted relative error of predicted ratios (default: %(default)s)")
    p.add_argument("--json", action="store_true")
    p.add_argument("train", nargs="*", help="options of evenkeel train")
    o = p.parse_args()
    for word in ("--ep", "--pp", "--steps", "--save-every", "--out", "--hosts", "--resume",
                 "--elastic"):
        if word in o.train:
            p.error("%s is set by this script" % word)
    o.systems, o.save_every = o.systems.split(","), [int(n) for n in o.save_every.split(",")]
    check_systems(p, o)
    o.keep, o.show, o.script, o.patience = None, False, None, 600
    return o


def check_systems(p, o):
    if not set(o.systems) <= set(SYSTEMS) or o.systems[0] != "elastic":
        p.error("--systems begins with elastic; the others are %s" % ", ".join(SYSTEMS[1:]))
    if "bamboo" in o.systems and not {"restart", "ds"} & set(o.systems):
        p.error("bamboo needs restart or ds, for the time of a restart from a checkpoint")
    if not 1 <= o.group <= o.nodes or not 2 <= o.stages <= o.nodes:
        p.error("--group and --stages are at most --nodes; a pipeline has two stages or more")
    if o.compress <= 0:
        p.error("--compress must be positive")


def trace_of(o, folder, nodes):
    """The events within --seconds, and what they are, in words."""
    path, text = o.trace, "given"
    if path is None:
        path, text = os.path.join(folder, "trace"), "random"
        with open(path, "w") as f:
            f.write("".join(line + "\n" for line in
                            make_trace(nodes, o.seconds, o.lost, o.away, o.seed)))
    if spot_trace.is_recorded(path):
        events, text = spot_trace.scale(path, nodes, o.trace_from, o.compress)
    elif o.compress != 1 or o.trace_from is not None:
        sys.exit("--compress and --trace-from are for recorded traces")
    else:
        events = read_trace(path, nodes)
    events = [e for e in events if e[0] < o.seconds]
    there = set(nodes)
    for at, what, node in events:
        (there.discard if what == "lost" else there.add)(node)
        if not there:
            sys.exit("%s: no node is up at %g s" % (path, at))
    return events, text


# ---- the rows -----------------------------------------------------------------------------------


def plan_rows(o):
    """(system, steps between saves), in the order of --systems."""
    every = {"elastic": o.save_every[:1], "restart": o.save_every, "ds": o.save_every[:1],
             "ds-ft": o.save_every[-1:], "bamboo": o.save_every[:1]}
    return [(s, n) for s in o.systems for n in every[s]]


def make_run(o, cluster, folder, system, every):
    """The run of a system, and the rules that predict it."""
    if system == "elastic":
        return Elastic(o, cluster, folder), Rules(every, 0, "always")
    if system == "restart":
        return Restarted(o, cluster, folder, every), Rules(every, 0, "never")
    if system == "ds":
        return Restarted(o, cluster, folder, every, o.group), Rules(every, o.group, "never")
    return FaultTolerant(o, cluster, folder, every, o.group), Rules(every, o.group, "parts")


def guarded(run, what):
    """What a function of a run returns; ends the run."""
    try:
        return what()
    except Wrong as wrong:
        with open(run.errors) as f:
            raise Wrong("%s\n%s" % (wrong, f.read())) from None
    finally:
        if run.process is not None and run.process.poll() is None:
            run.stop()


def median_or(times, otherwise):
    return statistics.median(times) if times else otherwise


def one(o, cluster, folder, events, system, every):
    """Runs a system once and returns its row."""
    run, rules = make_run(o, cluster, folder, system, every)
    steps = guarded(run, lambda: run.live(events))
    lost, back = run.starts()
    row = {"system": system, "save_every": every, "steps": steps, "step_s": run.step_s(),
           "starts": len(lost) + len(back), "lost_s": median_or(lost, median_or(back, 0.0)),
           "back_s": median_or(back, median_or(lost, 0.0))}
    row["predicted"] = predicted(events, o.seconds, run.nodes, rules, row)
    say("%s: %d steps, predicted %d; %d starts, %.2f s after a loss, %.2f s after a return; "
        "steps %s" % (name_of(row), steps, row["predicted"], row["starts"], row["lost_s"],
                      row["back_s"], ", ".join("of %d ranks %.2f s" % x
                                               for x in sorted(row["step_s"].items()))))
    return row


def number_micro_batches(run):
    with open(os.path.join(run.out, "run.json")) as f:
        settings = json.load(f)["settings"]
    batch = settings["batch"]
    return -(-batch // (settings.get("micro-batch") or batch))


def model_bamboo(o, cluster, folder, events, rows):
    """The row of the model, after its pipelines were measured."""
    step_s, nodes = {}, ["node%d" % (i + 1) for i in range(o.nodes)]
    for n in range(1, o.nodes // o.stages + 1):
        place = os.path.join(folder, "pipelines%d" % n)
        os.mkdir(place)
        cluster.end_all()
        run = Pipelines(o, cluster, place, n, o.stages)
        step_s[n] = guarded(run, lambda run=run: run.median_step(PIPELINE_STEPS))
    factor = redundant_factor(number_micro_batches(run), o.stages)
    back = rows[0]["back_s"]
    restart = [r["lost_s"] for r in rows if r["system"] in ("restart", "ds")][0]
    model = Bamboo(events, nodes, o.stages, o.save_every[0],
                   {"step_s": {n: s * factor for n, s in step_s.items()}, "arrange_s": back,
                    "restart_s": restart})
    steps = model.run(o.seconds)
    say("bamboo, a model: %d steps, back to a checkpoint %d times; steps, measured without "
        "redundant computation, %s; with it %.3f times as long; %.2f s to arrange nodes anew, "
        "%.2f s to restart" % (steps, model.fatal, ", ".join("of %d pipelines %.2f s" % x
                                                             for x in step_s.items()),
                               factor, back, restart))
    return {"system": "bamboo", "save_every": o.save_every[0], "steps": steps, "predicted": steps,
            "step_s": step_s, "factor": factor, "arrange_s": back, "restart_s": restart,
            "fatal": model.fatal}


def name_of(row):
    return {"elastic": "--elastic", "restart": "restart from checkpoint, every %d steps",
            "ds": "DS-like, checkpoint every %d steps", "ds-ft": "DS(FT)-like, every %d steps",
            "bamboo": "Bamboo-like (model), every %d steps"}[row["system"]].replace(
                "%d", str(row["save_every"]))


def judge(o, rows):
    """Adds ratios to the rows; returns whether they meet the requirements.  A model has nothing to be
    judged by."""
    good = True
    for k, r in enumerate(rows[1:]):
        r["ratio"] = rows[0]["steps"] / max(1, r["steps"])
        r["expected"] = rows[0]["predicted"] / max(1, r["predicted"])
        if o.wanted is None:
            good &= r["system"] == "bamboo" or abs(r["ratio"] / r["expected"] - 1) <= o.close
        elif k == 0:
            good &= r["ratio"] >= o.wanted
    return good


def print_table(rows):
    print("| system | steps | predicted | --elastic against it | predicted |")
    print("|---|---|---|---|---|")
    print("| --elastic | %d | %d | | |" % (rows[0]["steps"], rows[0]["predicted"]))
    for r in rows[1:]:
        print("| %s | %d | %s | %.2f | %.2f |" %
              (name_of(r), r["steps"], "" if r["system"] == "bamboo" else r["predicted"],
               r["ratio"], r["expected"]))


def run_all(o, cluster, folder, events):
    rows = []
    for system, every in plan_rows(o):
        place = os.path.join(folder, "%s%d" % (system, every))
        os.mkdir(place)
        cluster.end_all()
        rows.append(model_bamboo(o, cluster, place, events, rows) if system == "bamboo" else
                    one(o, cluster, place, events, system, every))
    return rows


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes cluster and folder on the way out
    folder = tempfile.mkdtemp(prefix="evenkeel-spot-")
    try:
        with Cluster(o) as cluster:
            cluster.call("bandwidth", "all", o.bandwidth)
            events, text = trace_of(o, folder, ["node%d" % (i + 1) for i in range(o.nodes)])
            say("trace (%s): %d losses and %d returns in %g s" %
                (text, sum(e[1] == "lost" for e in events), sum(e[1] == "back" for e in events),
                 o.seconds))
            rows = run_all(o, cluster, folder, events)
    except Wrong as wrong:
        say("spot: %s" % wrong)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    good = judge(o, rows)
    if o.json:
        print(json.dumps({"trace": text, "events": events, "rows": rows}))
    else:
        print_table(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
