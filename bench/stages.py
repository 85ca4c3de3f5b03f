#!/usr/bin/python3
"""Pipeline stages with equal numbers of layers (--pp-layers even) against stages cut by FLOPs (auto).

Trains a model with a large head on this machine, one thread a stage; the two take turns.  The first
--skip steps of each run are left out.  With m micro-batches on P stages a step is busy for
m / (m + P - 1) of its time, so what auto gains is the ratio of the busiest stages.

    bench/stages.py --command build/evenkeel --rounds 3
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from nodes import MIXTRAL


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--pp", type=int, default=2, help="stages (default: %(default)s)")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--batch", type=int, default=8, help="micro-batches of one sequence (default: %(default)s)")
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--skip", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    return p.parse_args()


def train(o, folder, layers):
    """Tokens/s of the steps of a run, and the losses."""
    out = os.path.join(folder, "run")
    subprocess.run(
        [o.command, "train", "--model", os.path.join(folder, "config.json"), "--tokenizer", "bytes",
         "--data", os.path.join(os.path.dirname(__file__), "..", "README.md"), "--ranks", str(o.pp),
         "--pp", str(o.pp), "--pp-layers", layers, "--threads", "1", "--batch", str(o.batch),
         "--micro-batch", "1", "--seq", str(o.seq), "--steps", str(o.steps), "--out", out,
         "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    ms = [s["step_ms"] for s in steps[o.skip:]]
    return o.batch * o.seq / statistics.median(ms) * 1000, [s["loss"] for s in steps]


def main():
    o = options()
    rates, losses = {"even": [], "auto": []}, {}
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(MIXTRAL, num_hidden_layers=o.layers, vocab_size=o.vocab), f)
        for _ in range(o.rounds):
            for layers, of_kind in rates.items():
                rate, losses[layers] = train(o, folder, layers)
                of_kind.append(rate)
                print("%s: %.0f tokens/s" % (layers, rate), file=sys.stderr, flush=True)
    most = max(abs(a / b - 1) for a, b in zip(losses["even"], losses["auto"]))
    print("| --pp-layers | tokens/s | least, most |\n|---|---|---|")
    for layers, of_kind in rates.items():
        print("| %s | %.0f | %.0f, %.0f |" % (layers, statistics.median(of_kind), min(of_kind), max(of_kind)))
    print("auto / even: %.3f; losses differ by %.1e at most"
          % (statistics.median(a / e for a, e in zip(rates["auto"], rates["even"])), most))


if __name__ == "__main__":
    main()
