#!/usr/bin/python3
"""Training speed of two ranks of one thread each, against one rank of two threads.

Three layouts of the same model and step: expert parallelism with forced balance (ep), data
parallelism with a sharded optimizer (zero), and plain data parallelism (dp).  Each alternates with one
rank that does the same work, so that both see the same noise; every turn is one run of `evenkeel
train`, and tokens/s are taken from metrics.jsonl, without the first steps.  Prints for each layout the
ratio of the medians over all turns, the lowest and highest ratio of adjacent turns, and the target.
Exit status 1: a target is missed.

Example:

    bench/ranks.py --command build/evenkeel
    bench/ranks.py --command build/evenkeel-openmpi --mpi openmpi
"""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

WARM_UP = 2  # steps of a turn that are not counted

# Options of the ranks, options of one rank, and the smallest acceptable ratio.
LAYOUTS = {
    "ep": (["--ep", "2", "--force-balance", "--pipeline-degree", "1", "--a2a", "linear"],
            ["--force-balance"], 0.93),
    "zero": (["--zero", "1"], [], 0.90),
    "dp": ([], [], 0.85),
}

# Open MPI by default refuses to run as root, and more ranks than cores.
OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
}


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich",
                   help="MPI that it is linked with; its mpiexec starts the ranks")
    p.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    p.add_argument("--model", default="small")
    p.add_argument("--batch", type=int, default=32, help="sequences a step")
    p.add_argument("--seq", type=int, default=256, help="tokens a sequence")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--ranks", type=int, default=2, help="ranks; one rank has as many threads")
    p.add_argument("--steps", type=int, default=6,
                   help="steps a turn; the first %d are not counted" % WARM_UP)
    p.add_argument("--turns", type=int, default=3, help="turns of each side")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")
    o = p.parse_args()
    if o.steps <= WARM_UP or o.turns < 1:
        p.error("--steps must be more than %d and --turns at least 1" % WARM_UP)
    return o


class Work:
    """The files of all runs."""

    def __init__(self, o, folder):
        self.o = o
        self.tokens = os.path.join(folder, "tokens.bin")
        self.out = os.path.join(folder, "run")
        rng = random.Random(0)
        ids = [int(256 ** rng.random()) for _ in range(o.batch * (o.seq + 1) * o.steps)]
        with open(self.tokens, "wb") as f:
            f.write(struct.pack("<%dH" % len(ids), *ids))

    def train(self, ranks, more):
        """tokens/s of the counted steps, and the last loss."""
        o = self.o
        args = [o.command, "train", "--model", o.model, "--data", self.tokens, "--batch", o.batch,
                "--micro-batch", o.batch, "--seq", o.seq, "--steps", o.steps, "--dtype", o.dtype,
                "--threads", o.ranks // ranks, "--out", self.out, "--quiet", *more]
        env = dict(os.environ)
        if ranks > 1:
            args += ["--ranks", ranks]
            if o.mpi == "openmpi":
                env.update(OPENMPI)
        r = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, env=env, check=False)
        if r.returncode != 0:
            sys.exit("%s ended with status %d: %s" % (" ".join(str(a) for a in args), r.returncode,
                                                      r.stderr.strip()))
        with open(os.path.join(self.out, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        return [m["tokens_per_s"] for m in lines[WARM_UP:]], lines[-1]["loss"]


def spread(samples):
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "n": len(samples)}


def compare(work, layout):
    ours, theirs, target = LAYOUTS[layout]
    many, one, turns = [], [], []
    for _ in range(work.o.turns):
        a, loss = work.train(work.o.ranks, ours)
        b, expected = work.train(1, theirs)
        if not abs(loss - expected) <= 5e-2:
            sys.exit("%s: losses %.6f and %.6f differ: not the same work" %
                     (layout, loss, expected))
        many += a
        one += b
        turns.append(statistics.median(a) / statistics.median(b))
    return {"ranks": spread(many), "one": spread(one), "turns": turns, "target": target,
            "ratio": statistics.median(many) / statistics.median(one)}


def main():
    o = options()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        work = Work(o, folder)
        if not o.json:
            print("%s, %s, %d x %d tokens a step, %s: %d ranks x 1 thread against 1 rank x %d "
                  "threads; tokens/s, median (min .. max)" %
                  (o.model, o.dtype, o.batch, o.seq, o.mpi, o.ranks, o.ranks), flush=True)
        results = {}
        for layout in o.layouts:
            r = results[layout] = compare(work, layout)
            if o.json:
                continue
            for name in ("ranks", "one"):
                print("  %-5s %-6s %8.0f (%.0f .. %.0f)" %
                      (layout, name, r[name]["median"], r[name]["min"], r[name]["max"]))
            print("  %-5s ratio  %8.3f (%.3f .. %.3f by turn), at least %.2f is wanted%s" %
                  (layout, r["ratio"], min(r["turns"]), max(r["turns"]), r["target"],
                   "" if r["ratio"] >= r["target"] else ": missed"), flush=True)
    if o.json:
        print(json.dumps(results))
    sys.exit(any(r["ratio"] < r["target"] for r in results.values()))


main()
