#!/usr/bin/python3
"""Compares a step of one MoE layer, forward and backward, with DeepSpeed's on CPUs, under even and under skewed routing.

Both programs run alternately, on the same ranks and threads, with experts and tokens of the same sizes and with the same loads: the busiest
expert, the first one, gets --skew times the mean, the others equal shares.  Gates compute their logits, and choices are given.  evenkeel is
measured by `bench moe --replay-routing` (balance off and auto), DeepSpeed by bench/deepspeed_layer.py over gloo: without drops, where every
expert computes as many rows as the busiest one has, and with a capacity factor, where it drops what is beyond.

    pip install deepspeed
    bench/compare_layer.py --command build/evenkeel --python PYTHON

Needs a python with torch and deepspeed (--python); no test runs it.
"""
import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

from against_reference import call, spread
from nodes import MIXTRAL

HERE = pathlib.Path(__file__).parent
TOP_K = 2
SEQ = 256


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--python", default=sys.executable, help="one that has torch and deepspeed")
    p.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--threads", type=int, default=1, help="of a rank")
    p.add_argument("--tokens", type=int, default=2048, help="of a rank, a multiple of %d" % SEQ)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--inner", type=int, default=1024)
    p.add_argument("--experts", type=int, default=16)
    p.add_argument("--skew", type=float, nargs="+", default=[1, 4], help="busiest expert over the mean")
    p.add_argument("--capacity", type=float, nargs="*", default=[1.25], help="DeepSpeed's factors, with the last --skew")
    p.add_argument("--spare-slots", type=int, default=1)
    p.add_argument("--steps", type=int, default=2, help="of a turn, after 2 that are not counted")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    if o.tokens % SEQ or max(o.skew) * TOP_K > o.experts or min(o.skew) < 1:
        p.error("--tokens must be a multiple of %d, and --skew from 1 to experts / %d" % (SEQ, TOP_K))
    return o


# --- the work ----------------------------------------------------------------------------------------------------------------------------

def loads_of(o, skew):
    """Assignments of a rank's tokens, by expert."""
    choices = o.tokens * TOP_K
    busiest = round(skew * choices / o.experts)
    rest, more = divmod(choices - busiest, o.experts - 1)
    return [busiest] + [rest + (i < more) for i in range(o.experts - 1)]


def rank_max_over_mean(o, loads):
    """With experts in block order."""
    share = o.experts // o.ranks
    rows = [sum(loads[r * share:(r + 1) * share]) for r in range(o.ranks)]
    return max(rows) * o.ranks / sum(rows)


def write_trace(path, o, loads):
    """A routing trace of one iteration and one layer."""
    head = str({"descr": "<u4", "fortran_order": False, "shape": (1, 1, o.ranks, o.experts)})
    head += " " * (-(len(head) + 11) % 64) + "\n"
    numbers = struct.pack("<%dI" % (o.ranks * o.experts), *(loads * o.ranks))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + numbers)


class Work:
    """The files of both programs, and what was measured: {(dtype, skew, program): ms of each turn}."""

    def __init__(self, o, folder):
        self.o, self.folder, self.ms, self.of, self.ceilings = o, folder, {}, {}, {}
        self.config = folder / "config.json"
        self.config.write_text(json.dumps({**MIXTRAL, "hidden_size": o.hidden, "intermediate_size": o.inner,
                                           "num_local_experts": o.experts, "num_experts_per_tok": TOP_K}))
        for skew in o.skew:
            write_trace(self.trace(skew), o, loads_of(o, skew))

    def trace(self, skew):
        return self.folder / ("%g.npy" % skew)

    def add(self, dtype, skew, program, ms, **of):
        self.ms.setdefault((dtype, skew, program), []).append(ms)
        self.of[dtype, skew, program] = of


# --- runs --------------------------------------------------------------------------------------------------------------------------------

def run_evenkeel(w, dtype, skew):
    o = w.o
    text = call([o.command, "bench", "moe", "--ranks", o.ranks, "--model", w.config, "--dtype", dtype, "--threads", o.threads, "--ep",
                 o.ranks, "--batch", o.ranks * o.tokens // SEQ, "--seq", SEQ, "--steps", o.steps, "--degrees", 1, "--policies", "off,auto",
                 "--replay-routing", w.trace(skew), "--spare-slots", o.spare_slots, "--json"])
    mean = o.tokens * TOP_K  # rows of a rank
    for way in json.loads(text)["ways"][1:]:
        w.add(dtype, skew, "evenkeel, " + way["way"], way["ms"], rows=way["max_over_mean"] * mean, bytes=way["bytes"],
              replicas=way["replicas"], dropped=0)
    found, wanted = w.of[dtype, skew, "evenkeel, off"]["rows"] / mean, rank_max_over_mean(o, loads_of(o, skew))
    if abs(found - wanted) > 1e-3:
        sys.exit("evenkeel's max/mean is %.4f, the loads' is %.4f" % (found, wanted))


def run_deepspeed(w, dtype):
    o = w.o
    cases = [(skew, 0) for skew in o.skew] + [(o.skew[-1], c) for c in o.capacity]
    path = w.folder / "work.json"
    path.write_text(json.dumps({**{k: getattr(o, k) for k in ("hidden", "inner", "experts", "tokens", "threads", "steps")}, "dtype": dtype,
                                "warm_up": 2, "cases": [{"loads": [loads_of(o, s)] * o.ranks, "capacity": c} for s, c in cases]}))
    os.environ["OMP_NUM_THREADS"] = str(o.threads)
    text = call([o.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", o.ranks, HERE / "deepspeed_layer.py", path])
    found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    del os.environ["OMP_NUM_THREADS"]
    for (skew, capacity), r in zip(cases, found["cases"]):
        name = "DeepSpeed, capacity %g" % capacity if capacity else "DeepSpeed, no drops"
        sent = 4 * o.experts * r["rows"] * o.hidden * (o.ranks - 1) * {"fp32": 4, "bf16": 2}[dtype]
        w.add(dtype, skew, name, spread(r["ms"]), rows=o.experts * r["rows"], bytes=sent, replicas=0, dropped=r["dropped"])
    return found


def measure_ceilings(w):
    f = json.loads(call([w.o.command, "fit", "--model", w.config, "--json"]))
    for dtype in w.o.dtypes:
        most = max(f["bf16_gflops"], f["fp32_gflops"]) if dtype == "bf16" else f["fp32_gflops"]
        w.ceilings.setdefault(dtype, []).append(most)


# --- the table ---------------------------------------------------------------------------------------------------------------------------

def median(turns):
    return statistics.median(t["median"] for t in turns)


def summary(w, key):
    """What a program took, beside its own even loads, the same of evenkeel's auto, and the ceiling of products."""
    dtype, skew, program = key
    o, turns, of = w.o, w.ms[key], w.of[key]
    even, ms, all_rows = w.ms.get((dtype, 1, program)), median(turns), o.ranks * o.tokens * TOP_K
    flops = 18 * o.hidden * o.inner * (all_rows - of["dropped"])  # three products, each forward and twice backward
    return {"dtype": dtype, "skew": skew, "program": program, "median": ms, "min": min(t["min"] for t in turns),
            "max": max(t["max"] for t in turns), **of, "to_even": ms / median(even) if even else None,
            "to_auto": ms / median(w.ms[dtype, skew, "evenkeel, auto"]),
            "of_ceiling": flops / ms / 1e6 / statistics.median(w.ceilings[dtype]), "dropped": of["dropped"] / all_rows}


def print_table(w, found):
    o = w.o
    print("\n%d ranks of %d thread%s, %d tokens each, one layer of %d experts, %d x %d, top-%d; %d turns of %d steps: median of the turns' medians (min .. max).  DeepSpeed %s, torch %s.  "
          "Products: %s GFLOP/s\n" % (o.ranks, o.threads, "s" if o.threads > 1 else "", o.tokens, o.experts, o.hidden, o.inner, TOP_K, o.turns, o.steps,
                                    found["deepspeed"], found["torch"],
                                    ", ".join("%s %.0f (%.0f .. %.0f)" % (d, statistics.median(c), min(c), max(c)) for d, c in w.ceilings.items())))
    print("| | busiest expert | | ms | to its even step | to auto's | of products | rows of the busiest rank | sent, MB | dropped |")
    print("|---" * 10 + "|")
    for key in sorted(w.ms, key=lambda k: (o.dtypes.index(k[0]), k[1])):
        r = summary(w, key)
        print("| %s | %g x mean | %s | %.0f (%.0f .. %.0f) | %s | %.2f | %.2f | %.0f | %.1f | %.1f %% |" % (
            r["dtype"], r["skew"], r["program"], r["median"], r["min"], r["max"], "%.2f" % r["to_even"] if r["to_even"] else "", r["to_auto"],
            r["of_ceiling"], r["rows"], r["bytes"] / 1e6, 100 * r["dropped"]))


def main():
    o = options()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        w = Work(o, pathlib.Path(folder))
        for _ in range(o.turns):
            measure_ceilings(w)
            for dtype in o.dtypes:
                for skew in o.skew:
                    run_evenkeel(w, dtype, skew)
                found = run_deepspeed(w, dtype)
    if o.json:
        print(json.dumps([summary(w, key) for key in w.ms]))
    else:
        print_table(w, found)


main()
