#!/usr/bin/python3
"""Compares training speed with a plain PyTorch program (torch_moe.py), in one run.

Both get the same config, initial weights, tokens and settings, and run alternately, so that both see
the same noise.  Prints tokens/s over all steps except the first of each run, and the ratio of the
medians; fails if the losses of the two differ.

Needs a python3 with torch and numpy (Debian: python3-torch); `make bench` runs it where there is
one, `make test` never does.  Example:

    bench/against_reference.py --command build/evenkeel
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

from nodes import MIXTRAL

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE = os.path.join(HERE, "torch_moe.py")
DTYPES = {"bf16": ("bfloat16", 5e-2), "fp32": ("float32", 1e-3)}

SMALL = {**MIXTRAL, "num_hidden_layers": 4}  # the preset


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--python", default=sys.executable, help="a python3 with torch")
    p.add_argument("--config", help="a Mixtral config.json; default: the preset small")
    p.add_argument("--dtypes", nargs="+", choices=sorted(DTYPES), default=["bf16", "fp32"])
    p.add_argument("--batch", type=int, default=32, help="sequences a step")
    p.add_argument("--seq", type=int, default=256, help="tokens a sequence")
    p.add_argument("--steps", type=int, default=3, help="steps a turn; the first is not counted")
    p.add_argument("--turns", type=int, default=3, help="turns of each program")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")
    o = p.parse_args()
    if o.steps < 2 or o.turns < 1:
        p.error("--steps must be at least 2 and --turns at least 1")
    return o


def call(args):
    r = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, check=False)
    if r.returncode != 0:
        sys.exit("%s ended with status %d: %s" % (args[0], r.returncode, r.stderr.strip()))
    return r.stdout


def parse_lines(text):
    return [json.loads(line) for line in text.splitlines()]


class Work:
    """The files that both programs read."""

    def __init__(self, o, folder):
        self.o = o
        self.config = os.path.join(folder, "config.json")
        self.weights = os.path.join(folder, "weights.safetensors")
        self.tokens = os.path.join(folder, "tokens.bin")
        self.out = os.path.join(folder, "run")
        config = SMALL
        if o.config:
            with open(o.config) as f:
                config = json.load(f)
        with open(self.config, "w") as f:
            json.dump(config, f)
        rng, vocab = random.Random(0), config["vocab_size"]
        ids = [min(int((vocab + 1) ** rng.random()) - 1, vocab - 1)
               for _ in range(o.steps * o.batch * o.seq + 1)]
        with open(self.tokens, "wb") as f:
            f.write(struct.pack("<%dI" % len(ids), *ids))
        call([o.python, REFERENCE, "init", self.config, self.weights])

    def reference(self, dtype):
        o = self.o
        return parse_lines(call(
            [o.python, REFERENCE, "train", self.config, self.weights, self.tokens, "--batch",
             o.batch, "--seq", o.seq, "--steps", o.steps, "--dtype", DTYPES[dtype][0], "--threads",
             o.threads, "--token-bytes", 4, "--lr", 1e-3]))

    def evenkeel(self, dtype):
        o = self.o
        call([o.command, "train", "--model", self.config, "--init", self.weights, "--data",
              self.tokens, "--token-bytes", 4, "--data-order", "sequential", "--batch", o.batch,
              "--micro-batch", o.batch, "--seq", o.seq, "--steps", o.steps, "--dtype", dtype,
              "--threads", o.threads, "--lr", 1e-3, "--lr-schedule", "constant", "--warmup", 0,
              "--out", self.out, "--quiet"])
        with open(os.path.join(self.out, "metrics.jsonl")) as f:
            return parse_lines(f.read())


def spread(samples):
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "n": len(samples)}


def compare(work, dtype):
    speeds = {"evenkeel": [], "reference": []}
    for _ in range(work.o.turns):
        ours, theirs = work.evenkeel(dtype), work.reference(dtype)
        for a, b in zip(ours, theirs):
            if not abs(a["loss"] - b["loss"]) <= DTYPES[dtype][1]:
                sys.exit("%s, step %d: losses %.6f and %.6f differ: not the same work" %
                         (dtype, a["step"], a["loss"], b["loss"]))
        speeds["evenkeel"] += [m["tokens_per_s"] for m in ours[1:]]
        speeds["reference"] += [m["tokens_per_s"] for m in theirs[1:]]
    result = {name: spread(s) for name, s in speeds.items()}
    result["ratio"] = result["evenkeel"]["median"] / result["reference"]["median"]
    return result


def main():
    o = options()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        work = Work(o, folder)
        results = {dtype: compare(work, dtype) for dtype in o.dtypes}
    if o.json:
        print(json.dumps(results))
        return
    print("%d x %d tokens a step, %d threads; tokens/s, median (min .. max)" %
          (o.batch, o.seq, o.threads))
    for dtype, r in results.items():
        for name in ("evenkeel", "reference"):
            print("  %s  %-10s %9.0f (%.0f .. %.0f)" %
                  (dtype, name, r[name]["median"], r[name]["min"], r[name]["max"]))
        print("  %s  ratio      %9.2f" % (dtype, r["ratio"]))


if __name__ == "__main__":
    main()
