#!/usr/bin/env python3
"""Predicted against measured training steps of one process: bench/predict_compute.py [--rounds N]
[--threads T,T].

Each round measures the machine (`bench costs`), once for every model and number of threads, and then
the steps of every cell (`bench step --machine`); the file of the round predicts them.  Steps are
the median of nine after two.  Prints tables for bench/results/predict_compute.md: of cells, the
prediction's error in every round; of ops, the share of the step's error in the middle round."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

CELLS = (("tiny", 8, 8, 256), ("tiny", 16, 4, 512), ("small", 8, 8, 256), ("small", 8, 2, 512))
STEPS, LEAST_SHARE = 9, 0.005


def bench(command, *args):
    done = subprocess.run([command, "bench", *map(str, args), "--json"], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def measure_round(command, folder, threads):
    """{cell: (predicted ms, measured ms, ops)}"""
    results = {}
    for model in dict.fromkeys(cell[0] for cell in CELLS):
        file = os.path.join(folder, "machine.json")
        bench(command, "costs", "--model", model, "--threads", threads, "--out", file)
        for cell in CELLS:
            if cell[0] != model:
                continue
            _, batch, micro, seq = cell
            out = bench(command, "step", "--model", model, "--threads", threads, "--batch", batch,
                        "--micro-batch", micro, "--seq", seq, "--steps", STEPS, "--machine", file,
                        "--seconds", 0.02)
            results[cell] = (out["predicted_step_ms"], out["step_ms"]["median"], out["predicted"])
    return results


def error(result):
    return result[0] / result[1] - 1


def print_cells(rounds, threads):
    errors = []
    for cell in CELLS:
        each = [error(r[cell]) for r in rounds]
        errors += map(abs, each)
        print("| {} | {} | {} x {} in {} | {:.1f} | {} | {:.1f} % |".format(
            cell[0], threads, cell[1], cell[3], cell[2],
            statistics.median(r[cell][1] for r in rounds),
            ", ".join("{:+.1f}".format(100 * e) for e in each),
            100 * statistics.mean(map(abs, each))))
    return errors


def print_ops(rounds, cell, threads):
    """The round with the median error."""
    result = sorted((r[cell] for r in rounds), key=error)[len(rounds) // 2]
    print("\n{}, {} x {} in {}, {} thread{}: {:.1f} ms predicted, {:.1f} measured\n".format(
        cell[0], cell[1], cell[3], cell[2], threads, "s" if threads > 1 else "", *result[:2]))
    print("| op | predicted ms | measured ms | measured / predicted | of the step's error |")
    print("|---|---|---|---|---|")
    rest = [0, 0]
    for op in result[2]:
        predicted, measured = op["predicted_ms"] or 0, op["measured_ms"]
        if measured < LEAST_SHARE * result[1]:
            rest = [rest[0] + predicted, rest[1] + measured]
            continue
        print_op(op["op"], predicted, measured, result[1])
    print_op("all others", *rest, result[1])
    print_op("between ops", result[0] - sum(op["predicted_ms"] or 0 for op in result[2]),
             result[1] - sum(op["measured_ms"] for op in result[2]), result[1])


def print_op(name, predicted, measured, step):
    print("| {} | {:.2f} | {:.2f} | {} | {:+.2f} % |".format(
        name, predicted, measured,
        "{:.2f}".format(measured / predicted) if predicted > 0 else "-",
        100 * (predicted - measured) / step))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", default="build/evenkeel")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1")
    args = parser.parse_args()
    errors, results = [], {}
    for threads in map(int, args.threads.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            results[threads] = [measure_round(args.command, folder, threads)
                                for _ in range(args.rounds)]
    print("| model | threads | batch in micro-batches of | step ms | error of each round, % | mean |")
    print("|---|---|---|---|---|---|")
    for threads, rounds in results.items():
        errors += print_cells(rounds, threads)
    print("\nmean of all: {:.1f} %, largest {:.1f} %".format(100 * statistics.mean(errors),
                                                          100 * max(errors)))
    for threads, rounds in results.items():
        for cell in (CELLS[0], CELLS[2]):
            print_ops(rounds, cell, threads)


if __name__ == "__main__":
    main()
