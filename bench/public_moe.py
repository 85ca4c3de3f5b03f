#!/usr/bin/python3
"""Headline results of other MoE systems, replayed with `evenkeel simulate` at their scales: reads published tables and a routing trace, and prints
errors, plans that would be chosen, and ratios.

    bench/public_moe.py --command build/evenkeel --tables DIR --traces DIR [--only plans layer prophet tutel degrees crossover] [--rows]

plans      SmartMoE's figures 8 and 10: steps of five systems' plans, by capacity of experts
layer      SmartMoE's figure 11: a MoE layer under the loads of its trace; constants from the panel with micro-batches of 4
prophet    Pro-Prophet's tables IV and V: speed-ups over DeepSpeed
tutel      Tutel's table 2: shares of all-to-alls in a MoE layer
degrees    Tutel's table 6: the best static algorithm and degree, by number of GPUs
crossover  linear against 2DH all-to-all, by bytes and number of GPUs

bench/results/public_moe.md has the results, and what is assumed.  What is read is not kept.
"""

import argparse
import array
import concurrent.futures
import csv
import itertools
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

from public import CLUSTERS, moe

MOE_GROUPS = ("routing", "dispatch, combine", "expert products", "swiglu")
UNFUSED = ["unfused-attention", "low-messages", "low-gradients", "late-gradients", "ring-steps", "weights-first"]


# --- traces ------------------------------------------------------------------------------------------------------------------------------------

class Trace:
    """Counts [iteration][layer][source][expert] of an .npy file of 16-bit numbers; iterations: their numbers."""

    def __init__(self, folder, name):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        head = struct.unpack("<H", data[8:10])[0]
        self.shape = eval(data[10:10 + head].decode("latin-1"), {"__builtins__": {}})["shape"]  # pylint: disable=eval-used
        self.counts = array.array("H", data[10 + head:])
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as f:
            self.iterations = json.load(f)[name]["iterations"]

    def layer(self, iteration, layer):
        """[sources][experts]; iteration: an index."""
        _, layers, sources, experts = self.shape
        first = (iteration * layers + layer) * sources * experts
        return [self.counts[first + s * experts:first + (s + 1) * experts] for s in range(sources)]


def folded(counts, experts):
    """Neighbouring experts as one."""
    n = len(counts[0]) // experts
    return [[sum(row[e * n:(e + 1) * n]) for e in range(experts)] for row in counts]


def write_trace(path, trace):
    """trace: [iteration][layer][source][expert]."""
    shape = (len(trace), len(trace[0]), len(trace[0][0]), len(trace[0][0][0]))
    head = ("{'descr': '<u4', 'fortran_order': False, 'shape': %r, }" % (shape,)).ljust(117) + "\n"
    numbers = array.array("I", (x for a in trace for b in a for c in b for x in c))
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + numbers.tobytes())


# --- runs --------------------------------------------------------------------------------------------------------------------------------------

class Runner:
    def __init__(self, o, folder):
        self.o, self.folder, self.names = o, folder, {}

    def file(self, value, suffix=".json"):
        """The name of a file with the value, the same for equal ones."""
        text = json.dumps(value, sort_keys=True)
        if text not in self.names:
            self.names[text] = os.path.join(self.folder, "file-%d%s" % (len(self.names), suffix))
            if suffix == ".npy":
                write_trace(self.names[text], value)
            else:
                with open(self.names[text], "w", encoding="utf-8") as f:
                    f.write(text)
        return self.names[text]

    def words(self, cluster, model, ranks, options, trace=None):
        words = ["--cluster", self.file(cluster), "--model", self.file(model), "--ranks", ranks, "--json"]
        if trace:
            words += ["--trace", self.file(trace, ".npy")]
        for name, value in dict({"balance": "off", "pipeline-degree": 1, "a2a": "linear"}, **options).items():
            words += ["--" + name, *(value if isinstance(value, list) else [value])]
        return [str(w) for w in words]

    def run(self, words):
        r = subprocess.run([self.o.command, "simulate", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit("%s\n%s" % (" ".join(words), r.stderr.strip()))
        return json.loads(r.stdout)

    def all(self, lists):
        """Reports of lists of words, in order."""
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            return list(pool.map(self.run, lists))


def cluster_of(name):
    with open(os.path.join(CLUSTERS, name + ".json"), encoding="utf-8") as f:
        return json.load(f)


def table(o, name):
    with open(os.path.join(o.tables, name + ".csv"), newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def smart_trace(o):
    return Trace(o.traces, "gpt_moe_e32_r16.npy")


def exchanges_ms(where):
    return sum(v for k, v in where["transfer"].items() if "all-to-all" in k or k == "all-gather")


def layer_ms(report):
    """What expert layers take of the step: their compute, exchanges, and waits for the busiest rank."""
    w = report["where_ms"]
    return sum(w["compute"].get(g, 0) for g in MOE_GROUPS) + exchanges_ms(w) + w["skew"]


def mean_error(errors):
    return "mean of signed errors %+.1f %%, mean %.1f %%, largest %.1f %%" % (
        100 * statistics.mean(errors), 100 * statistics.mean(abs(e) for e in errors), 100 * max(abs(e) for e in errors))


# --- SmartMoE, figures 8 and 10 ----------------------------------------------------------------------------------------------------------------

def inky():
    """Nodes of 8 A100 that share one adapter of 200 Gb/s; else as a100-dgx."""
    c = cluster_of("a100-dgx")
    c["levels"][1]["gbytes_s"] /= 8
    return c


def plan_words(r, row, traces):
    experts, d = int(row["experts"]), int(row["d"])
    model = moe(int(row["hidden"]), int(row["layers"]), 16, 16, experts, 2, round(int(row["hidden"]) * 4 / 3 / 64) * 64, 51200, 1024)  # heads: of its logs
    options = {"pp": row["pp"], "tp": row["tp"], "ep": row["ep"], "batch": row["gbs"], "micro-batch": int(row["mbs"]) * d, "seq": 1024, "steps": 10,
               "engine": "flow", "balance": "fastermoe" if row["system"] == "fastermoe" else "off",
               "dialect": UNFUSED + ["padded"] * (row["system"] == "deepspeed")}
    if row["capacity"] != "inf":
        options["capacity-factor"] = row["capacity"]
    return r.words(inky(), model, row["gpus"], options, traces[experts])


def plans(o, r):
    trace = smart_trace(o)
    its = [i for i, n in enumerate(trace.iterations) if 10 < n <= 200]  # of the runs' 200, without the first ten
    traces = {n: [[folded(trace.layer(i, l), n) for l in range(trace.shape[1])] for i in its] for n in (16, 32)}
    rows = table(o, "smartmoe_fig8_fig10")
    for row, report in zip(rows, r.all([plan_words(r, row, traces) for row in rows])):
        row["predicted"] = report["step_ms"]
        row["error"] = report["step_ms"] / float(row["median_ms"]) - 1
        if o.rows:
            print("  %s GPUs %-10s capacity %-3s pp %s ep %-2s %+6.1f %% of the median step" % (
                row["gpus"], row["system"], row["capacity"], row["pp"], row["ep"], 100 * row["error"]))
    for system in sorted({row["system"] for row in rows}):
        print("%-10s %s" % (system, mean_error([row["error"] for row in rows if row["system"] == system])))
    for key in ("total_s_200", "median_ms"):
        good = 0
        for group in sorted({(row["gpus"], row["capacity"]) for row in rows}):
            of = [row for row in rows if (row["gpus"], row["capacity"]) == group]
            chosen, best = min(of, key=lambda x: x["predicted"]), min(of, key=lambda x: float(x[key]))
            regret = float(chosen[key]) / float(best[key]) - 1
            good += regret <= 0.05
            print("  by %s, %s GPUs, capacity %s: chosen %s pp %s ep %s, best %s pp %s ep %s, regret %.1f %%" % (
                key, *group, chosen["system"], chosen["pp"], chosen["ep"], best["system"], best["pp"], best["ep"], 100 * regret))
        print("by %s: regret of at most 5 %% in %d of 8" % (key, good))


# --- SmartMoE, figure 11 -----------------------------------------------------------------------------------------------------------------------

FAST = 1e18  # rates of what takes no time


def layer_cluster(flops, combine, us):
    """flops: of products, over the rows of a rank's experts; combine: bytes a second, over the rows of a rank's own tokens; us: of an exchange."""
    rate = {"rows_an_expert": [1], "flops_per_s": [flops]}
    machine = {"evenkeel_machine": 2, "name": "layer", "key": "layer", "dtype": "bf16", "ranks": 1, "nodes": 1, "threads": 1, "measured_in_s": 0,
               "copy_bytes_per_s": FAST, "op_s": 1e-12, "expert": {"hidden": 1024, "ff": 1344, "experts": 4, "forward": rate, "backward_input": rate, "backward_weight": rate},
               "kernels": [{"kernel": "combine", "bytes": [1e3], "bytes_per_s": [combine]}]}
    return {"evenkeel_cluster": 1, "name": "layer", "rank": {"memory": "40G", "device": "cuda", "machine": machine},
            "levels": [{"name": "node", "ranks": 8, "gbytes_s": 1e6, "us": us}]}


def layer_words(r, cluster, mbs, counts):
    model = moe(1024, 1, 8, 8, 32, 2, round(1024 * 4 / 3 / 64) * 64, 1024, 1024, head=128)
    return r.words(cluster, model, 8, {"ep": 8, "batch": 8 * mbs, "seq": 1024, "dialect": ["late-gradients", "weights-first"], "dtype": "bf16"},
                   [[[list(row) for row in counts]]])


def two_factors(x, y, t):
    """Least squares of t = a x + b y."""
    xx, xy, yy = sum(i * i for i in x), sum(i * j for i, j in zip(x, y)), sum(j * j for j in y)
    xt, yt = sum(i * k for i, k in zip(x, t)), sum(j * k for j, k in zip(y, t))
    return (xt * yy - yt * xy) / (xx * yy - xy * xy), (yt * xx - xt * xy) / (xx * yy - xy * xy)


def fit_of(predicted, real):
    mean = statistics.mean(real)
    r2 = 1 - sum((p - t) ** 2 for p, t in zip(predicted, real)) / sum((t - mean) ** 2 for t in real)
    return "R2 %.3f, MAPE %.1f %%" % (r2, 100 * statistics.mean(abs(p / t - 1) for p, t in zip(predicted, real)))


def layer(o, r):
    trace, rows = smart_trace(o), table(o, "smartmoe_fig11")
    layers = trace.shape[1]
    points = [(i, n) for i, n in enumerate(range(101, 4902, 100)) if n in trace.iterations]
    counts = [trace.layer(trace.iterations.index(n), l) for _, n in points for l in range(layers)]

    def column(mbs, name):
        panel = [float(row[name]) for row in rows if row["mbs"] == str(mbs)]
        return [panel[i * layers + l] for i, _ in points for l in range(layers)]

    def layer_of(cluster, mbs):
        return [layer_ms(x) for x in r.all([layer_words(r, cluster, mbs, c) for c in counts])]

    # What does not grow with rows is in the panel, but not apart: it is the artifact's own, by its estimates under even loads.
    fixed = 2 * column(4, "uniform_model_ms")[0] - column(8, "uniform_model_ms")[0]
    exchanges = 5  # of counts, and of rows
    real = column(4, "real_ms")
    product, combine = layer_of(layer_cluster(1e14, FAST, 0), 4), layer_of(layer_cluster(FAST, 1e12, 0), 4)
    a, b = two_factors(product, combine, [t - fixed for t in real])
    cluster = layer_cluster(1e14 / a, 1e12 / b, 1e3 * fixed / exchanges)
    print("constants: products %.1f TFLOP/s, rows %.1f GB/s, an exchange %.2f ms; %d points a panel" % (
        1e2 / a, 1e3 / b, fixed / exchanges, len(real)))
    for mbs in (4, 8):
        real = column(mbs, "real_ms")
        print("micro-batches of %d: %s; SmartMoE's model %s" % (mbs, fit_of(layer_of(cluster, mbs), real), fit_of(column(mbs, "smartmoe_model_ms"), real)))


# --- Pro-Prophet -------------------------------------------------------------------------------------------------------------------------------

PROPHET = {"S": (12, 512, 1024), "M": (12, 1024, 2048), "L": (12, 2048, 4096), "DS": (24, 512, 1024), "DM": (24, 1024, 2048)}  # layers, widths
TABLE_V = {("S", 1): (1.20, 1.30), ("M", 1): (1.02, 1.18), ("DS", 1): (1.12, 1.30), ("DM", 1): (0.96, 1.26),
           ("S", 2): (1.56, 1.91), ("M", 2): (1.29, 1.94), ("DS", 2): (1.44, 1.64), ("DM", 2): (1.25, 1.58)}


def prophet_cluster(gpus):
    """4 nodes of 4 RTX 3090, with NVLink between pairs, or 2 of 4 RTX 2080 Ti; one adapter of 100 Gb/s a node.  Data sheets; 0.9 of the peak of
    products and 88 Gb/s of PCIe 3 are FasterMoE's."""
    peak, memory = (35.6e12, 936e9) if gpus == 16 else (13.45e12, 616e9)
    levels = [{"name": "pair", "ranks": 2, "gbytes_s": 50, "us": 10}, {"name": "node", "ranks": 4, "gbytes_s": 11, "us": 10},
              {"name": "net", "ranks": 16, "gbytes_s": 3.125, "us": 10, "shared_by": 4}]
    return {"evenkeel_cluster": 1, "name": "pro-prophet", "levels": levels if gpus == 16 else levels[1:],
            "rank": {"memory": "24G", "device": "cuda", "machine": {"peak": peak, "memory_bytes_s": memory, "efficiency": 0.9}}}


def prophet(o, r):
    trace, seq, heads = smart_trace(o), 256, 16  # these, and the vocabulary, of the script that is released with Pro-Prophet
    first = [i for i, n in enumerate(trace.iterations) if n <= 100][:10]  # the paper's
    # Pro-Prophet plans from the loads of the step before, and iterations of the trace are ten steps apart: each stands twice, once more at the end
    # for 10 evenly spaced samples of both kinds of policy.
    first = [i for i in first for _ in range(1 if o.apart else 2)] + first[-1:]
    traces = {n: [[folded(trace.layer(i, l), n) for l in range(trace.shape[1])] for i in first] for n in (8, 16)}
    rows = [(16, t["model"], int(t["top_k"]), float(t["fastermoe_over_deepspeed"]), float(t["pro_prophet_over_deepspeed"]))
            for t in table(o, "pro_prophet_speedups")] + [(8, *key, *value) for key, value in TABLE_V.items()]
    errors = {}
    for gpus, name, k, *published in rows:
        layers, hidden, ff = PROPHET[name]
        model = moe(hidden, layers, heads, heads, gpus, k, round(ff * 2 / 3 / 64) * 64, 50304, seq, head=hidden // heads)
        tokens = 16384 if gpus == 16 else 4096
        programs = (("off", ["padded"]), ("shadow", ["replicas-alone"]), ("prophet", []))
        options = [{"ep": gpus, "batch": tokens // seq, "seq": seq, "steps": 10, "engine": "flow", "dtype": "fp32", "balance": policy,
                    "dialect": ["unfused-attention", "late-gradients", "weights-first"] + more} for policy, more in programs]
        deepspeed, *others = [x["step_ms"] for x in r.all([r.words(prophet_cluster(gpus), model, gpus, x, traces[gpus]) for x in options])]
        for system, other, was in zip(("FasterMoE", "Pro-Prophet"), others, published):
            errors.setdefault(("table IV" if gpus == 16 else "table V", system), []).append(deepspeed / other / was - 1)
            if o.rows:
                print("  %d GPUs %-2s top-%d %-11s published %.2f, predicted %.2f: %+.1f %%" % (
                    gpus, name, k, system, was, deepspeed / other, 100 * (deepspeed / other / was - 1)))
    for key, of in errors.items():
        print("%s, %s over DeepSpeed: %s; within 15 %%: %d of %d" % (*key, mean_error(of), sum(abs(e) <= 0.15 for e in of), len(of)))


# --- Tutel -------------------------------------------------------------------------------------------------------------------------------------

def halved(value):
    """Rates of products with TF32, half of those with BF16."""
    if isinstance(value, dict):
        return {k: [x / 2 for x in v] if k == "flops_per_s" else halved(v) for k, v in value.items()}
    return [halved(v) for v in value] if isinstance(value, list) else value


# NCCL's send and receive of 2021, which Tutel's exchanges call; none is from table 6:
# - a message takes 2.16 us beside its bytes: Tutel's text has 0.6 ms for an exchange of 128 MiB inside a node in 8 messages, and 5 ms in 2,048;
# - with peers on other nodes a rank has one channel for each peer (ncclTopoGetNchannels in graph/paths.cc of NCCL 2.10), which NCCL counts at
#   14 GB/s in a network (P2P_PER_CHANNEL_NET_BW) and 20 GB/s inside a node (perChMaxRingLL128Bws of Ampere, graph/tuning.cc);
GAP_US = (5000 - 600) / (2048 - 8)
PEER_GBYTES_S = {"node": 20, "net": 14}
# - in parts, a linear exchange sends a message for each expert of a peer (overlap.py and custom_kernel.cpp of Tutel).
NCCL = ("gap", "peer", "slices")


def azure(parts=NCCL, messages=1):
    """a100-dgx in fp32, with those parts of what exchanges take beside their bytes; messages: to a peer."""
    c = halved(cluster_of("a100-dgx"))
    c["rank"]["machine"]["dtype"] = "fp32"
    for level in c["levels"]:
        if "gap" in parts:
            level["gap_us"] = GAP_US * messages
        if "peer" in parts:
            level["peer_gbytes_s"] = PEER_GBYTES_S[level["name"]]
    return c


def tutel_words(r, cluster, gpus, experts, hidden, ff, tokens, degree=1, a2a="linear"):
    """A layer; tokens: of a GPU."""
    seq, ep = min(tokens, 4096), min(experts, gpus)
    model = moe(hidden, 1, hidden // 128, hidden // 128, experts, 2, round(ff * 2 / 3 / 32) * 32, 1024, seq, head=128)
    return r.words(cluster, model, gpus, {"ep": ep, "etp": gpus // ep, "batch": gpus * tokens // seq, "seq": seq, "pipeline-degree": degree, "a2a": a2a,
                                          "dialect": ["late-gradients", "weights-first", "staged-2dh"]})


def tutel(o, r):
    rows = table(o, "tutel_tables")
    for gpus in (16, 64, 256):
        was = {t["item"]: float(t["value"]) for t in rows if t["table"] == "T2" and int(t["gpus"]) == gpus}
        report = r.run(tutel_words(r, azure(), gpus, 2 * gpus, 4096, 4096, 65536))
        compute = sum(report["where_ms"]["compute"].get(g, 0) for g in MOE_GROUPS)
        a2a = report["where_ms"]["transfer"]["all-to-all"]
        print("%d GPUs: share of all-to-alls published %.1f %%, predicted %.1f %%; all-to-alls %+.1f %%, compute %+.1f %%" % (
            gpus, 100 * was["a2a"] / was["moe"], 100 * a2a / (a2a + compute), 100 * (a2a / was["a2a"] - 1), 100 * (compute / was["compute"] - 1)))


def choices_of(r, parts, gpus):
    """The mean of how much longer each choice takes than the best of a layer, over Tutel's sizes."""
    choices = list(itertools.product(("linear", "2dh"), (1, 2, 4, 8)))
    lost = {c: [] for c in choices}
    for experts, hidden, ff, tokens in itertools.product((gpus // 2, gpus, 2 * gpus), (1024, 2048, 4096), (1024, 2048, 4096), (4096, 16384, 65536)):
        slices = max(1, experts // gpus) if "slices" in parts else 1
        clusters = [azure(parts, slices if a2a == "linear" and degree > 1 else 1) for a2a, degree in choices]
        ms = [layer_ms(x) for x in r.all([tutel_words(r, cluster, gpus, experts, hidden, ff, tokens, degree, a2a)
                                          for cluster, (a2a, degree) in zip(clusters, choices)])]
        for c, t in zip(choices, ms):
            lost[c].append(t / min(ms) - 1)
    return {c: statistics.mean(x) for c, x in lost.items()}


def degrees(o, r):
    rows = [t for t in table(o, "tutel_tables") if t["table"].startswith("T6")]
    for parts in [NCCL] if not o.rows else [(), ("gap",), ("peer",), ("gap", "peer"), NCCL]:
        print("with %s" % (", ".join(parts) or "none"))
        for gpus in (16, 32, 64, 128, 256):
            was = {("2dh" if "2DH" in t["table"] else "linear", int(t["item"].split()[1])): float(t["value"]) for t in rows if int(t["gpus"]) == gpus}
            lost = choices_of(r, parts, gpus)
            best, chosen = min(was, key=was.get), min(lost, key=lost.get)
            print("%d GPUs: best published %s %d, predicted %s %d, which was published %.0f %% behind the best of each size (the best static one %.0f %%)" % (
                gpus, *best, *chosen, was[chosen], was[best]))
            print("  lost %, degrees 1, 2, 4, 8, predicted (published): " + "; ".join(
                "%s %s" % (a, ", ".join("%.0f (%.0f)" % (100 * lost[a, d], was[a, d]) for d in (1, 2, 4, 8))) for a in ("linear", "2dh")), flush=True)


def crossover(_, r):
    print("how many times as long linear takes as 2DH, by GPUs")
    for mib in (1, 32, 256):
        cells = []
        for gpus in (64, 256, 1024, 2048):
            words = [tutel_words(r, azure(), gpus, gpus, 1024, 1024, mib * 128, 1, a) for a in ("linear", "2dh")]
            linear, twice = [exchanges_ms(x["where_ms"]) for x in r.all(words)]
            cells.append("%d: %.2f" % (gpus, linear / twice))
        print("  %d MiB a rank: %s" % (mib, ", ".join(cells)))


PARTS = {"plans": plans, "layer": layer, "prophet": prophet, "tutel": tutel, "degrees": degrees, "crossover": crossover}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--tables", required=True, help="folder with the tables, as NAME.csv")
    p.add_argument("--apart", action="store_true", help="of prophet: plan from the iteration of the trace before, ten training steps before")
    p.add_argument("--traces", help="folder with the routing trace gpt_moe_e32_r16.npy and index.json, for plans, layer and prophet")
    p.add_argument("--only", nargs="*", choices=list(PARTS), help="default: all")
    p.add_argument("--rows", action="store_true", help="print every row")
    p.add_argument("--jobs", type=int, default=1)
    o = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="evenkeel-public-") as folder:
        for name in o.only or PARTS:
            print(name, flush=True)
            PARTS[name](o, Runner(o, folder))


if __name__ == "__main__":
    main()
