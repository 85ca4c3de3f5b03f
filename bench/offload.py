#!/usr/bin/python3
"""Training with experts on disk (train --offload experts) against training in memory.

Each round trains in memory and with --offload once, in turns, the latter in a cgroup with the limit (where this user may create
one).  The first --skip steps of each run are left out.

    tests/big_model.py --layers 6 --hidden 1024 --inner 1024 --experts 32 --vocab 512 --out FOLDER
    bench/offload.py --model FOLDER --data FILE --batch 4 --seq 1024 --limit 4.2G

    bench/offload.py --model base --data docs --batch 8 --seq 1024 --steps 4 --skip 1 --rounds 1 --limit 8G --no-memory

Columns: tokens/s, and the share of those in memory; the peak of the process; what a step read and wrote, in all and a parameter of
experts; the time that products waited for reads; the bound, a step being at least the one in memory, and what was read and written
over the rate of the disk (--throttle, else none is shown), and the share of it that was reached.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from expert_store import Cgroup


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, help="a folder, or a preset")
    p.add_argument("--data", required=True)
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--limit", required=True)
    p.add_argument("--dir", default=".", help="folder of the scratch file and of the runs (default: %(default)s)")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--skip", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--no-memory", action="store_true", help="do not train in memory")
    p.add_argument("--throttle", type=float, default=0, metavar="MB/S", help="most that is read, and written (cgroup version 1)")
    p.add_argument("options", nargs="*", help="after --: more options of train")
    o = p.parse_args()
    o.limit = int(float(o.limit.rstrip("KMGT")) * 1024 ** (" KMGT".index(o.limit[-1]) if o.limit[-1] in "KMGT" else 0))
    return o


class SlowDisk:
    """A cgroup of version 1 that reads and writes at most so many bytes/s."""

    def __init__(self, rate, folder):
        self.folder = pathlib.Path(f"/sys/fs/cgroup/blkio/evenkeel-bench-{os.getpid()}")
        self.folder.mkdir()
        device = os.stat(folder).st_dev
        for name in ("read", "write"):
            (self.folder / f"blkio.throttle.{name}_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {int(rate)}")

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        self.folder.rmdir()


def expert_params(o):
    text = subprocess.run([o.command, "fit", "--model", o.model, "--json"], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(text)["params_of"]["experts"]


def run(o, offload):
    """Per step: seconds, MB read, MB written, ms waited, MB of memory."""
    out = tempfile.mkdtemp(dir=o.dir, prefix="offload-")
    args = [o.command, "train", "--model", o.model, "--tokenizer", "bytes", "--data", o.data, "--batch", str(o.batch), "--seq",
            str(o.seq), "--steps", str(o.steps), "--out", out, "--overwrite", "--quiet", *o.options]
    groups = []
    if offload:
        args += ["--offload", "experts", "--offload-dir", o.dir, "--memory-limit", str(o.limit)]
        groups.append(Cgroup(str(o.limit)))
        if o.throttle:
            groups.append(SlowDisk(o.throttle * 1e6, o.dir))
    subprocess.run(args, check=True, stdin=subprocess.DEVNULL, preexec_fn=lambda: [g.enter() for g in groups])
    for g in groups:
        g.remove()
    steps = [json.loads(line) for line in pathlib.Path(out, "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    steps = [s for s in steps if "step_ms" in s][o.skip:]
    disk = [s.get("disk", {"read_mb": [0], "written_mb": [0], "wait_ms": [0]}) for s in steps]
    return {"seconds": statistics.median(s["step_ms"] for s in steps) / 1e3, "peak": max(max(s["peak_rss_mb"]) for s in steps),
            **{k: statistics.median(sum(d[k]) for d in disk) for k in ("read_mb", "written_mb", "wait_ms")}}


def main():
    o = options()
    ways = (["memory"] if not o.no_memory else []) + ["offload"]
    rounds = [{w: run(o, w == "offload") for w in ways} for _ in range(o.rounds)]
    tokens, params = o.batch * o.seq, expert_params(o)
    print("| | tokens/s | of memory | peak | read a step | written | bytes a parameter | waited | of bound |\n|---|---|---|---|---|---|---|---|---|")
    for i, r in enumerate(rounds):
        for w in ways:
            x = r[w]
            share = r["memory"]["seconds"] / x["seconds"] if "memory" in r else 0
            bound = max([r["memory"]["seconds"] if "memory" in r else 0] +
                        ([x["read_mb"] / o.throttle, x["written_mb"] / o.throttle] if o.throttle else []))
            print(f"| {w}, round {i + 1} | {tokens / x['seconds']:.0f} | {share:.2f} | {x['peak'] / 1e3:.2f} GB | {x['read_mb'] / 1e3:.2f} GB | "
                  f"{x['written_mb'] / 1e3:.2f} GB | {x['read_mb'] * 1e6 / params:.1f} + {x['written_mb'] * 1e6 / params:.1f} | "
                  f"{x['wait_ms'] / 1e3:.2f} s of {x['seconds']:.2f} | {bound / x['seconds']:.2f} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
