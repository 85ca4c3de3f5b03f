#!/usr/bin/python3
"""Compares generate with llama.cpp and with transformers (accelerate's disk offload), in memory and with less than the model needs.

Ways: memory, cache, ring, mmap (generate --expert-store), llama.cpp (BF16 weights of a GGUF file, mapped; without a limit read into memory),
accelerate (layers beyond --limit less --accelerate-needs on disk).  Each round runs every way once, in turns, with the model's pages
dropped before each run, and in a cgroup of --limit (all but memory, the base).  A run opens the model, processes a prompt of --prompt tokens
in one batch, and generates --tokens, one after the other; ring and accelerate --few.  The tokens are random ids, and what the first run draws;
all programs process the same ones: evenkeel with a tokenizer that writes ids as numbers.

    bench/compare_inference.py --model FOLDER --gguf FILE --llama-cpp FOLDER --limit none --ways memory,llama.cpp
    bench/compare_inference.py --model FOLDER --gguf FILE --llama-cpp FOLDER --limit 8G --samples FILE

--samples adds the runs to those of a file, so that rounds can be run in several sittings.  A run of another program ends after --seconds, and
what it did until then counts.  The disk's rate is that of bench disk for 12 MiB reads, and the rates of memory and products those of fit,
measured each round.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import expert_store

HERE = pathlib.Path(__file__).parent
STORES = ["memory", "cache", "ring", "mmap"]
TRIES = 8


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--ways", default="memory,cache,ring,mmap,llama.cpp")
    p.add_argument("--limit", default="8G", help="8G, 3.5G, 512M (units of 1024); none: the model fits")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=24)
    p.add_argument("--few", type=int, default=3, help="tokens of ring and accelerate")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--ring", type=int, default=0, help="layers of the ring (default: what the limit leaves)")
    p.add_argument("--throttle", type=float, default=0, metavar="GB/S", help="most that is read from the disk (cgroup version 1)")
    p.add_argument("--seconds", type=float, default=240)
    p.add_argument("--samples", metavar="FILE")
    p.add_argument("--gguf", help="the same model, BF16")
    p.add_argument("--llama-cpp", help="llama.cpp's folder, built in its folder build with static libraries", metavar="FOLDER")
    p.add_argument("--python", default=sys.executable, help="one that has torch, transformers and accelerate")
    p.add_argument("--accelerate-needs", type=float, default=3, metavar="GB", help="beside weights: the program, a layer on its way")
    return p.parse_args()


# --- ids ---------------------------------------------------------------------------------------------------------------------------------

def write_tokenizer(path, vocab):
    """Id i is the word ' i', except for the first 256, which are bytes, as any text must have tokens."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in kept]
    words = {chr(b) if b in kept else chr(256 + moved.index(b)): b for b in range(256)}
    words.update({f"\u0120{i}": i for i in range(256, vocab)})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                                "decoder": level, "model": {"type": "BPE", "ignore_merges": True, "vocab": words, "merges": []}}))


def ids_of(text, n):
    """The n ids of a text; None if it has others than words."""
    words = text.rstrip("\n").split(" ")[1:]
    ids = [int(w) for w in words if re.fullmatch(r"[1-9]\d+", w)]
    return ids if len(ids) == len(words) == n else None


class Work:
    """The ids to process, and files for evenkeel."""

    def __init__(self, o, folder):
        vocab = json.loads((pathlib.Path(o.model) / "config.json").read_text())["vocab_size"]
        self.tokenizer, self.file, self.seed, self.ids = folder / "ids.json", folder / "prompt.txt", 0, None
        write_tokenizer(self.tokenizer, vocab)
        draw = random.Random(1)
        self.file.write_text("".join(f" {draw.randrange(256, vocab)}" for _ in range(o.prompt)))

    def check(self, o, r, tokens):
        """Takes the ids of the first text; a text without these is drawn anew."""
        ids = ids_of(r["text"], o.prompt + tokens)
        if self.ids is None and ids is None:
            self.seed += 1
            return False
        self.ids = self.ids or ids
        if ids != self.ids[:o.prompt + tokens]:
            sys.exit("the texts differ")
        return True


# --- runs --------------------------------------------------------------------------------------------------------------------------------

def tokens_of(o, way):
    return min(o.few, o.tokens) if way in ("ring", "accelerate") else o.tokens


def run_evenkeel(o, way, work):
    n = tokens_of(o, way)
    for _ in range(TRIES):
        r = expert_store.run(o, way, o.limit, str(work.file), n, str(work.tokenizer), work.seed)
        if work.check(o, r, n):
            del r["text"]
            r["decode"] *= (n - 1) / n  # the last one is drawn, but not processed
            return r
    sys.exit("no text without tokens of single bytes: the vocabulary is too small, or --tokens too large")


def run_other(o, way, args, work):
    """A program that prints what llama_tokens.c does."""
    groups = expert_store.cgroups(o, o.limit) if o.limit != "none" else []
    ids = work.ids[:o.prompt + tokens_of(o, way) - 1]
    p = expert_store.Run(args, groups, o.seconds, " ".join(map(str, ids)).encode())
    if p.status not in (0, None) or p.opened is None:
        print(f"{way}: " + ("not opened in time" if p.status is None else f"status {p.status}: {p.err[-600:]}"), file=sys.stderr, flush=True)
        return None
    prompt, token = re.search(r"prompt (\d+) ([\d.]+)\n", p.out), re.findall(r"token (\d+) ([\d.]+)\n", p.out)
    return {"opened": p.opened, "prompt": int(prompt[1]) / float(prompt[2]) if prompt else 0,
            "decode": int(token[-1][0]) / float(token[-1][1]) if token else 0, "disk": p.read, "peak": p.peak}


def run_llama(o, work, folder):
    expert_store.drop_pages([o.gguf])
    args = [str(folder / "llama_tokens"), o.gguf, "read" if o.limit == "none" else "mmap", str(os.cpu_count()), str(o.prompt)]
    return run_other(o, "llama.cpp", args, work)


def run_accelerate(o, work, _):
    """Its folder of layers is beside the model, on the same disk."""
    expert_store.drop_pages(pathlib.Path(o.model).glob("*.safetensors"))
    folder = tempfile.mkdtemp(dir=pathlib.Path(o.model).resolve().parent)
    resident = expert_store.bytes_of(o.limit) - o.accelerate_needs * 1e9 if o.limit != "none" else 1e15
    args = [o.python, str(HERE / "accelerate_tokens.py"), o.model, str(max(resident, 0)), folder, str(os.cpu_count()), str(o.prompt)]
    try:
        return run_other(o, "accelerate", args, work)
    finally:
        shutil.rmtree(folder)


def build_llama(o, folder):
    root = pathlib.Path(o.llama_cpp)
    libraries = [str(next((root / "build").rglob(f"lib{x}.a"))) for x in ("llama", "ggml", "ggml-cpu", "ggml-base")]
    include = [f"-I{d}" for d in (*root.glob("**/include/llama.h"), *root.glob("**/include/ggml.h")) for d in [d.parent]]
    made = str(folder / "llama_tokens.o")
    subprocess.run(["cc", "-O2", *include, "-c", str(HERE / "llama_tokens.c"), "-o", made], check=True)
    subprocess.run(["c++", made, *libraries, "-fopenmp", "-ldl", "-lpthread", "-lm", "-o", str(folder / "llama_tokens")], check=True)


def ceilings(o):
    """Of this moment; the disk's is at most the throttle's."""
    args = [o.command, "fit", "--model", o.model, "--context", str(o.prompt + o.tokens), "--json"]
    f = json.loads(subprocess.run(args, check=True, stdout=subprocess.PIPE).stdout)
    disk = expert_store.disk_rate(o)
    inference = next(m for m in f["modes"] if m["mode"] == "inference" and m["dtype"] == "bf16")
    return {"way": "ceilings", "disk": min(disk, o.throttle * 1e9) if o.throttle else disk, "memory": f["memory_read_gbs"] * 1e9,
            "products": max(f["bf16_gflops"], f["fp32_gflops"]) * 1e9, "token_bytes": inference["bytes_per_token"],
            "token_flops": 2 * (f["active_params"] - f["params_of"]["head"])}


# --- the table ---------------------------------------------------------------------------------------------------------------------------

def median(rs, key):
    return statistics.median(r[key] for r in rs)


def quartiles(rs, key):
    values = [r[key] for r in rs]
    if len(values) < 2:
        return f"{values[0]:.2f}"
    q = statistics.quantiles(values, method="inclusive")
    return f"{q[1]:.2f} ({q[0]:.2f}, {q[2]:.2f})"


def bounds_of(o, way, r, base, c):
    """The most tokens/s of a prompt and of decoding, or None."""
    if way == "memory":
        return c["products"] / c["token_flops"], c["memory"] / c["token_bytes"]
    if way not in ("cache", "ring") or not base:
        return None, None
    made = tokens_of(o, way) - 1
    return [expert_store.bound(w, r, base[w], o.prompt, made, c["disk"]) for w in ("prompt", "decode")]


def print_row(o, way, rs, base, ours, c, bytes_of_model):
    r = {k: median(rs, k) for k in rs[0] if k != "way"}
    cells = [way, quartiles(rs, "opened")]
    if way == "memory" and not o.throttle:
        cells[-1] += f"; {bytes_of_model / r['opened'] / c['disk']:.2f} of the disk"
    for work, most in zip(("prompt", "decode"), bounds_of(o, way, r, base, c)):
        cells.append(quartiles(rs, work) if r[work] else f"none in {o.seconds:.0f} s")
        cells.append(f"{r[work] / most:.2f}" if most else "")
        cells.append(f"{ours[work] / r[work]:.2f}" if ours and way != ours["way"] and r[work] else "")
    missed = f" ({r['missed'] - r['of_prompt']:.2f} decoding)" if way in ("cache", "ring") else ""
    print("| " + " | ".join(cells + [f"{r['disk'] / 1e9:.2f}{missed}", f"{r['peak'] / 1e9:.2f}" if r["peak"] else ""]) + " |")


def print_table(o, samples):
    ways = {}
    for s in samples:
        ways.setdefault(s["way"], []).append(s)
    cs = ways.pop("ceilings")
    c = {k: median(cs, k) for k in cs[0] if k != "way"}
    of = {w: {k: median(rs, k) for k in ("prompt", "decode")} | {"way": w} for w, rs in ways.items()}
    ours = of.get("cache" if "cache" in of else "memory")
    print(f"\nlimit {o.limit}, a prompt of {o.prompt} tokens, {o.tokens} generated; {len(cs)} rounds: median (quartiles).  Disk {quartiles_gb(cs, 'disk')} GB/s"
          f"{' (throttled)' if o.throttle else ''}, memory read at {quartiles_gb(cs, 'memory')} GB/s, products {quartiles_gb(cs, 'products')} GFLOP/s\n")
    name = ours["way"] if ours else ""
    print(f"| | opened, s | prompt, tokens/s | of bound | {name} to this | decoding, tokens/s | of bound | {name} to this | GB from the disk | peak, GB |")
    print("|---" * 10 + "|")
    model = sum(f.stat().st_size for f in pathlib.Path(o.model).glob("*.safetensors"))
    for way, rs in ways.items():
        print_row(o, way, rs, of.get("memory"), ours, c, model)


def quartiles_gb(rs, key):
    return quartiles([{key: r[key] / 1e9} for r in rs], key)


def main():
    o = options()
    kept = pathlib.Path(o.samples) if o.samples else None
    samples = [json.loads(line) for line in kept.read_text().splitlines()] if kept and kept.exists() else []

    def add(way, r):
        if r:
            samples.append({"way": way} | r)
        if r and kept:
            with open(kept, "a") as f:
                f.write(json.dumps(samples[-1]) + "\n")

    ways = o.ways.split(",")
    if ways[0] not in STORES:
        sys.exit("the first of --ways is one of evenkeel's: it draws the tokens")
    with tempfile.TemporaryDirectory() as t:
        folder = pathlib.Path(t)
        work = Work(o, folder)
        if "llama.cpp" in ways:
            build_llama(o, folder)
        others = {"llama.cpp": run_llama, "accelerate": run_accelerate}
        for _ in range(o.rounds):
            add("ceilings", ceilings(o))
            for way in ways:
                add(way, others[way](o, work, folder) if way in others else run_evenkeel(o, way, work))
    print_table(o, samples)


if __name__ == "__main__":
    main()
