#!/usr/bin/python3
"""Compares the ways to keep experts (generate --expert-store), with all experts in memory as the base.

Each round runs every way once, in turns, with the model's pages dropped from the page cache before each run and, if this user may
create cgroups, in a cgroup that is limited to --limit.  Two workloads: a prompt (--prompt tokens, 2 new ones), and decoding (a prompt
of 2 tokens, --tokens new ones).

    bench/expert_store.py --model FOLDER --limit 8G
    bench/expert_store.py --model FOLDER --limit 5G --ways cache,mmap --only decode

Columns: uses of experts that were in memory; bytes that the process read from the disk (/proc/PID/io), its opening included;
the rate in tokens/s; the bound, which is for decoding 1 / (time in memory + bytes missed a token / rate of the disk), and for a prompt 1
over the larger of both, as whole layers are read ahead, and the share of it that was reached; the peak of the cgroup.  The rate of the disk is that of `bench disk` for 12 MiB reads, measured before and after.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = {
    "memory": ["--expert-store", "memory"],
    "cache": ["--expert-store", "cache"],
    "cache, lru": ["--expert-store", "cache", "--expert-eviction", "lru"],
    "cache, lfu": ["--expert-store", "cache", "--expert-eviction", "lfu"],
    "cache, lookahead": ["--expert-store", "cache", "--expert-lookahead", "on"],
    "ring": ["--expert-store", "ring"],
    "ring, plain": ["--expert-store", "ring", "--expert-eviction", "lru"],
    "mmap": ["--expert-store", "mmap"],
}


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--limit", default="8G")
    p.add_argument("--ways", default=",".join(w.replace(", ", ":") for w in WAYS),
                   help="comma-separated, with : for ', ' (default: all)")
    p.add_argument("--only", choices=["prompt", "decode"])
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=24)
    p.add_argument("--ring", type=int, default=0, help="layers of the rings (default: what the limit leaves)")
    p.add_argument("--throttle", type=float, default=0, metavar="GB/S", help="most that is read from the disk (cgroup version 1)")
    p.add_argument("--rounds", type=int, default=1)
    return p.parse_args()


def drop_pages(files):
    for f in files:
        with open(f, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class SlowDisk:
    """A cgroup of version 1 that reads at most so many bytes/s from the disk of a file."""

    def __init__(self, rate, file):
        self.folder = pathlib.Path(f"/sys/fs/cgroup/blkio/evenkeel-bench-{os.getpid()}")
        self.folder.mkdir()
        device = os.stat(file).st_dev
        (self.folder / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {int(rate)}")

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        self.folder.rmdir()


def bytes_of(size):
    """8G, 3.5G, 512M: units of 1024, or bytes.  A cgroup takes whole numbers only."""
    return int(size) if size.isdigit() else int(float(size[:-1]) * (1 << {"K": 10, "M": 20, "G": 30, "T": 40}[size[-1]]))


class Cgroup:
    """A cgroup of version 1 or 2; without the right to make one, none."""

    def __init__(self, limit):
        self.folder = None
        for root, limit_name, peak in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                                       ("/sys/fs/cgroup", "memory.max", "memory.peak")):
            folder = pathlib.Path(root, f"evenkeel-bench-{os.getpid()}")
            try:
                folder.mkdir()
                with open(folder / limit_name, "r+") as f:  # r+: where there are no cgroups, no file is made
                    f.write(str(bytes_of(limit)))
            except OSError:
                if folder.exists():
                    folder.rmdir()
                continue
            self.folder, self.peak_name = folder, peak
            return

    def enter(self):
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        """The peak in bytes; 0 without a cgroup."""
        if self.folder is None:
            return 0
        peak = int((self.folder / self.peak_name).read_text())
        self.folder.rmdir()
        return peak


class Run:
    """A program that has ended: its status (None: it was killed after so many seconds), its output, seconds, those until it printed
    something, bytes read from the disk, and the peak of its cgroup."""

    def __init__(self, args, groups, seconds=None, stdin=b""):
        start, self.read, self.opened = time.monotonic(), 0, None
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            p = subprocess.Popen(args, stdin=given, stdout=out, stderr=err, preexec_fn=lambda: [g.enter() for g in groups])
            late = False
            while p.poll() is None:
                self.look(p, out, time.monotonic() - start)
                late = late or (seconds is not None and time.monotonic() - start > seconds)
                if late:
                    p.kill()
                time.sleep(0.02)
            self.seconds, self.status = time.monotonic() - start, None if late else p.returncode
            self.out, self.err = (f.seek(0) or f.read().decode(errors="replace") for f in (out, err))
        self.peak = max([0] + [g.remove() or 0 for g in groups])

    def look(self, p, out, now):
        if self.opened is None and os.fstat(out.fileno()).st_size > 0:
            self.opened = now
        try:
            self.read = int(re.search(r"read_bytes: (\d+)", pathlib.Path(f"/proc/{p.pid}/io").read_text())[1])
        except (OSError, TypeError):
            pass


def cgroups(o, limit):
    groups = [Cgroup(limit)]
    if o.throttle:
        groups.append(SlowDisk(o.throttle * 1e9, next(pathlib.Path(o.model).resolve().glob("*.safetensors")).resolve()))
    return groups


def number(text):
    """A number with or without its unit: in GB, in s."""
    units = {"B": 1e-9, "kB": 1e-6, "MB": 1e-3, "GB": 1, "TB": 1e3, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "": 1}
    figure, _, unit = text.partition(" ")
    return float(figure) * units[unit]


def run(o, way, limit, prompt_file, tokens, tokenizer="bytes", seed=0):
    """One run of generate: a dict of what it printed and read."""
    args = [o.command, "generate", "--model", o.model, "--tokenizer", tokenizer, "--temperature", "3", "--top-p", "1", "--seed", str(seed),
            "--prompt-file", prompt_file, "--tokens", str(tokens), "--memory-limit", "1T" if way == "memory" else limit, *WAYS[way]]
    if o.ring and way.startswith("ring"):
        args += ["--ring", str(o.ring)]
    drop_pages(pathlib.Path(o.model).glob("*.safetensors"))
    p = Run(args, [] if way == "memory" else cgroups(o, limit))
    if p.status != 0:
        sys.exit(f"{way}: {p.err}")
    speed = re.search(r"([\d.]+) tokens/s; prompt: \d+ tokens?, ([\d.]+) tokens/s", p.err)
    experts = re.search(r"experts: ([\d.]+) % of .*; ([\d.]+ \w+) read \(([\d.]+ \w+) of them for the prompt\), waited ([\d.]+ \w+)"
                        r"(?:; ([\d.]+ \w+) read in vain)?(?:; ([\d.]+) % of pred)?", p.err)
    r = {"decode": float(speed[1]), "prompt": float(speed[2]), "disk": p.read, "peak": p.peak, "text": p.out, "opened": p.opened}
    r["hits"], r["missed"], r["of_prompt"], r["waited"], r["vain"], r["right"] = (
        [number(text or "0") for text in experts.groups()] if experts else [100.0] + 5 * [0.0])
    return r


def bound(workload, r, base, prompt, tokens, disk):
    """The most tokens/s: base is the rate in memory, disk bytes/s."""
    if workload == "decode":
        return 1 / (1 / base + (r["missed"] - r["of_prompt"]) * 1e9 / tokens / disk)
    return 1 / max(1 / base, r["of_prompt"] * 1e9 / prompt / disk)


def disk_rate(o):
    """Bytes/s of 12 MiB reads, 16 calls in flight."""
    file = sorted(pathlib.Path(o.model).glob("*.safetensors"))[-1]
    out = subprocess.run([o.command, "bench", "disk", "--file", str(file), "--repeats", "2", "--seconds", "0.1", "--json"],
                         check=True, stdout=subprocess.PIPE).stdout
    return max(x["mb_per_s"]["median"] for x in json.loads(out)["reads"]
               if x["bytes"] == 12 << 20 and x["calls"] == 16 and x["how"] != "buffered") * 1e6


def print_table(o, workload, results, disk):
    base = statistics.median(r[workload] for r in results["memory"]) if "memory" in results else 0
    bound_is = " bound | of bound |" if base else ""
    print(f"\n| {workload} | in memory | GB missed | GB from the disk | waited | tokens/s |{bound_is} peak |")
    print("|---" * (7 + bound_is.count("|")) + "|")
    for way, rs in results.items():
        r = {k: statistics.median(x[k] for x in rs) for k in rs[0] if k != "text"}
        cells = [way, f"{r['hits']:.1f} %", f"{r['missed']:.2f}",
                 f"{r['disk'] / 1e9:.2f}" + (f" ({r['vain']:.2f} in vain)" if r["vain"] else ""), f"{r['waited']:.1f} s",
                 f"{r[workload]:.2f}" + (f" ({r['right']:.0f} % of guesses right)" if r["right"] else "")]
        if bound_is:
            most = bound(workload, r, base, o.prompt, o.tokens, disk)
            cells += [f"{most:.2f}", f"{r[workload] / most:.2f}"]
        print("| " + " | ".join(cells + [f"{r['peak'] / 1e9:.2f} GB" if r["peak"] else ""]) + " |", flush=True)


def main():
    o = options()
    ways = [w.replace(":", ", ") for w in o.ways.split(",")]
    with tempfile.NamedTemporaryFile("wb", suffix=".txt") as f:
        for workload in [o.only] if o.only else ["prompt", "decode"]:
            f.truncate(0)
            f.seek(0)
            f.write(b"x " if workload == "decode" else bytes(1 + random.Random(i).randrange(255) for i in range(o.prompt)))
            f.flush()
            disk, results = [disk_rate(o)], {w: [] for w in ways}
            for _ in range(o.rounds):
                for w in ways:
                    results[w].append(run(o, w, o.limit, f.name, o.tokens if workload == "decode" else 2))
            disk.append(disk_rate(o))
            texts = {r["text"] for rs in results.values() for r in rs}
            print(f"disk: {disk[0] / 1e9:.2f} GB/s before, {disk[1] / 1e9:.2f} after; texts equal: {len(texts) == 1}")
            rate = sum(disk) / 2
            print_table(o, workload, results, min(rate, o.throttle * 1e9) if o.throttle else rate)


if __name__ == "__main__":
    main()
