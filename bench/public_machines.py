#!/usr/bin/python3
"""Cluster files of public machines, from micro-benchmarks that others published: products by shape, attention, links.

Nothing here is the time of a training step.  Sources: docs/simulate.md ("Against public measurements").

    bench/public_machines.py --tables DIR --out examples/clusters
"""

import argparse
import json
import os
import re

# Where rates are from; NOTICE has the same.
SIMUMAX = "SimuMax (MooreThreads/SimuMax, configs/system, commit 4dcaae513ba7, Apache-2.0)"
VTRAIN = "vTrain (VIA-Research/vTrain, trace/*/AR_GPU*_LUT, commit f8dda8473a48, MIT)"
SIMAI = "SimAI (aliyun/SimAI, astra-sim-alibabacloud/inputs/ratio, commit cef83f9ddd96, Apache-2.0)"

VIDUR = "Vidur (microsoft/vidur, data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv, commit 683364e91288, MIT)"

# What a step of a ring takes beside its bytes, by NCCL's own model of its times (hwLat in graph/tuning.cc: rings, protocol Simple), in us.
NCCL = "NCCL (NVIDIA/nccl, src/graph/tuning.cc)"
RING_STEP_US = {"node": 3.4, "net": 14.0}

OP_S = 5e-6  # of no source
OP_NOTE = "op_s, of launching an op, is assumed: no source has it."
ROWS_NOTE = "Kernels of rows take %d us beside their bytes: latency_us of SimuMax, which does not say how it was measured. "

PRODUCTS_MAX = 16  # shapes: three passes of each, attention and rows are 96 tables at most
PASSES = (("TN", "forward"), ("NN", "input"), ("NT", "weight"))
STAGES = (("fwd", "forward"), ("bwd_grad_act", "input"), ("bwd_grad_w", "weight"))


def number(key, text):
    return int(re.search(r"\b%s=(\d+)" % key, text).group(1))


def products(op, peak):
    """{(out, in): {pass: {rows: FLOP/s}}} of SimuMax's dense products; gradients of weights are summed in fp32."""
    shapes = {}
    for text, share in op["matmul"]["accurate_efficient_factor"].items():
        if "layout=NT" in text and "out_dtype=fp32" not in text:
            continue
        m, k, n = (number(key, text) for key in "mkn")
        for layout, name in PASSES:
            if "layout=" + layout in text:
                out, size, rows = {"forward": (n, k, m), "input": (k, n, m), "weight": (m, n, k)}[name]
                shapes.setdefault((out, size), {}).setdefault(name, {})[rows] = share * peak
    return {s: p for s, p in shapes.items() if len(p) == 3}


def grouped(op, peak):
    """{(out, in): {pass: {rows a group: FLOP/s}}} of SimuMax's grouped products, of the numbers of groups the quickest; gradients of weights are summed in
    fp32."""
    shapes = {}
    for text, share in op["group_matmul"]["accurate_efficient_factor"].items():
        if "main_grad_dtype=fp32" not in text:
            continue
        rows, out, size = number("M", text), number("N", text), number("K", text)
        for stage, name in STAGES:
            if "stage=%s," % stage in text:
                at = shapes.setdefault((out, size), {}).setdefault(name, {})
                at[rows] = max(at.get(rows, 0), share * peak)
    return shapes


def increasing(points):
    """Rates by rows with which more work never takes less time, as a machine file requires."""
    last = 0
    for rows in sorted(points):
        seconds = max(rows / points[rows], last)
        points[rows] = rows / seconds
        last = seconds
    return points


def with_fewer_rows(points, out, size, copy):
    """With fewer rows than were measured: the same rate, as far as weights can be read (2 bytes a number) as fast."""
    first = min(points)
    for rows in (16, 64, 256, 1024):
        if rows < first:
            points[rows] = min(points[first], rows * out * size / (rows * (out + size) + out * size) * copy)
    return points


def product_tables(shapes, copy):
    for (out, size), passes in shapes.items():
        for points in passes.values():
            with_fewer_rows(points, out, size, copy)
    return [{"kernel": "product " + name, "out": out, "in": size, "rows_a_group": sorted(points),
             "flops_per_s": [increasing(points)[rows] for rows in sorted(points)]}
            for (out, size), passes in sorted(shapes.items()) for name, points in sorted(passes.items())]


# SimuMax counts the FLOPs of all pairs, and backward five products for two forward (simu_tools/efficency_test/test_fa_efficiency.py); evenkeel those that a
# causal mask leaves, half, and backward four.
ATTENTION = (("attention", "sdp_fwd", 1 / 2), ("attention backward", "sdp_bwd", 1 / 2 * 4 / 5))


def attention_tables(op, peak, wanted):
    tables = []
    for kernel, key, counted in ATTENTION:
        rates = {}
        for text, share in op[key]["accurate_efficient_factor"].items():
            heads, kv, tokens = number("head_num", text), number("kv_head_num", text), number("seq_len", text)
            if (heads, kv) in wanted and "qkv_contiguous=True" in text:
                rates.setdefault((heads, kv), {})[tokens] = share * peak * counted
        tables += [{"kernel": kernel, "heads": heads, "kv_heads": kv, "head_dim": 128, "tokens_a_sequence": sorted(points),
                    "flops_per_s": [points[tokens] for tokens in sorted(points)]} for (heads, kv), points in sorted(rates.items())]
    return tables


ROWS = ("gather", "combine", "cross entropy", "norm", "norm backward", "rope", "swiglu", "swiglu backward", "convert", "gate", "gate backward", "embed",
        "embed backward", "copy")


# SimuMax's shares are of bytes as it counts them, at 2^30 a second and GB/s (simu_tools/efficency_test/test_ce_permute_efficiency.py). What evenkeel's ops count
# of them, with 2 bytes a number, 4 of a real: cross entropy 6 of 8 a logit; rows that are permuted, and put back, k of a token, in both passes, of the two models
# that were measured, DeepSeek-V2 (k 6, width 5120) and V3 (k 8, width 7168).
GIB = 2 ** 30 / 1e9
PERMUTED = ((6, 5120), (8, 7168))
CROSS_ENTROPY_COUNTED = 6 / 8 * GIB
GATHER_COUNTED = sum(w * (4 * k + 6 * k) for k, w in PERMUTED) / sum(w * 2 * 2 * (1 + 3 * k) for k, w in PERMUTED) * GIB
COMBINE_COUNTED = sum(w * (2 * k + 8 + 2 * k + 4) for k, w in PERMUTED) / sum(w * 2 * 2 * (1 + 3 * k) for k, w in PERMUTED) * GIB


def row_tables(band, measured):
    """SimuMax's time of a kernel that moves bytes: they at a share of the bandwidth, and a latency.  measured: kernels with a share of their own: its name
    there, and the share of its bytes that evenkeel's op counts."""
    tables = []
    for kernel in ROWS:
        name, counted = measured.get(kernel, ("default", 1))
        of = band[name]
        sizes = [10.0 ** (i / 2) for i in range(12, 21)]
        tables.append({"kernel": kernel, "bytes": sizes,
                       "bytes_per_s": [n / (of["latency_us"] * 1e-6 + n / (of["gbps"] * 1e9 * of["efficient_factor"] * counted)) for n in sizes]})
    return tables


def latent_attention(op, peak):
    """DeepSeek-V2's attention (keys of 192 and values of 128 for each of 128 heads) as its equivalent, of 128 heads of 128 with one of keys and values:
    rates with which the equivalent's FLOPs take as long."""
    tables = []
    for kernel, key, counted in ATTENTION:
        for text, share in op[key]["accurate_efficient_factor"].items():
            if (number("head_num", text), number("qk_head_dim", text), number("seq_len", text)) == (128, 192, 4096) and "qkv_contiguous=True" in text:
                tables.append({"kernel": kernel, "heads": 128, "kv_heads": 1, "head_dim": 128, "tokens_a_sequence": [4096],
                               "flops_per_s": [share * peak * counted * (128 + 128) / (192 + 128)]})
    return tables


def spread(shapes, fixed, n):
    """Of the shapes those that are asked for, and others as far apart as possible."""
    chosen = [s for s in fixed if s in shapes]
    while len(chosen) < min(n, len(shapes)):
        chosen.append(max((s for s in sorted(shapes) if s not in chosen),
                          key=lambda s: min([abs(s[0] / c[0] - 1) + abs(s[1] / c[1] - 1) for c in chosen] or [0])))
    return {s: shapes[s] for s in chosen}


def machine(name, experts, kernels, copy, op_s):
    """A machine file.  experts: ((hidden, ff), {pass: {rows: FLOP/s}})."""
    (hidden, ff), passes = experts
    expert = {"hidden": hidden, "ff": ff, "experts": 8}
    for name_of, key in (("forward", "forward"), ("input", "backward_input"), ("weight", "backward_weight")):
        points = increasing(passes[name_of])
        expert[key] = {"rows_an_expert": sorted(points), "flops_per_s": [points[rows] for rows in sorted(points)]}
    return {"evenkeel_machine": 2, "name": name, "key": name, "dtype": "bf16", "ranks": 1, "nodes": 1, "threads": 1, "measured_in_s": 0,
            "copy_bytes_per_s": copy, "expert": expert, "op_s": op_s, "kernels": kernels}


def rounded(value):
    """Four digits: rates have no more."""
    if isinstance(value, float):
        return float("%.4g" % value)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def lines(value, width=150, indent=""):
    """JSON with as much on a line as fits."""
    text = json.dumps(value)
    if len(text) + len(indent) <= width or not isinstance(value, (dict, list)) or (isinstance(value, list) and not isinstance(value[0], (dict, list))):
        return text
    inner = indent + "  "
    items = value.items() if isinstance(value, dict) else [(None, v) for v in value]
    body = ",\n".join(inner + (json.dumps(k) + ": " if k is not None else "") + lines(v, width, inner) for k, v in items)
    return "%s\n%s\n%s%s" % ("{" if isinstance(value, dict) else "[", body, indent, "}" if isinstance(value, dict) else "]")


def simumax(tables, name):
    with open(os.path.join(tables, name), encoding="utf-8") as f:
        return json.load(f)["accelerator"]


def b200(tables):
    a = simumax(tables, "simumax_b200_system.json")
    band = a["bandwidth"]
    copy = band["default"]["gbps"] * 1e9 * band["default"]["efficient_factor"]
    op, peak = a["op"], a["op"]["matmul"]["tflops"] * 1e12
    dense, groups = products(op, peak), grouped(op, peak)
    chosen = {(3072, 5120): groups[(3072, 5120)], (5120, 1536): groups[(5120, 1536)]}
    fixed = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (128256, 8192), (5120, 8192), (14336, 8192), (20480, 16384), (16384, 16384),
             (5120, 16384), (102400, 5120), (24576, 5120), (5120, 12288))
    chosen.update(spread({s: p for s, p in dense.items() if s not in chosen}, fixed, PRODUCTS_MAX - 2))
    kernels = product_tables(chosen, copy) + attention_tables(op, peak, {(64, 8), (16, 2), (8, 1), (128, 16), (32, 4)})
    kernels += latent_attention(op, peak)
    kernels += row_tables(band, {"gather": ("permute_fwd", GATHER_COUNTED), "combine": ("permute_bwd", COMBINE_COUNTED),
                                   "cross entropy": ("ce_fusion", CROSS_ENTROPY_COUNTED)})
    return {"evenkeel_cluster": 1, "name": "b200-8",
            "note": "A node of 8 B200: products, attention, memory and collectives derived, changed, from " + SIMUMAX + ". See docs/simulate.md.",
            "rank": {"memory": "180G", "device": "cuda",
                     "note": ROWS_NOTE % band["default"]["latency_us"] + "Attention with one head of keys and values has the time of DeepSeek-V2's. " + OP_NOTE,
                     "machine": machine("B200", ((5120, 1536), groups[(5120, 1536)]), kernels, copy, OP_S)},
            "levels": [{"name": "node", "ranks": 8, "gbytes_s": 606, "us": 9.2, "collective_us": 23.6,
                        "note": "of all collectives, as gathers: 0.6735 of 900 GB/s, 9.2 us a step; collective_us is the mean of SimuMax's fixed latencies of "
                                "a gather, reduce-scatter and all-reduce, 22.2 to 25.6 us. Left out, as a level has one rate: its other shares (all-to-all "
                                "0.597, all-reduce 0.742), and fixed latencies of all-to-alls (51, 19 and 0 us of 2, 4 and 8 ranks)"}]}


def a100_rank(tables, note):
    """An A100, by SimuMax's measurements of A100 PCIe."""
    a = simumax(tables, "simumax_a100_pcie_system.json")
    op = a["op"]
    peak, copy = op["matmul"]["tflops"] * 1e12, 0.91 * 1.6e12
    dense, groups = products(op, peak), grouped(op, peak)
    chosen = {(3072, 5120): groups[(3072, 5120)], (5120, 1536): groups[(5120, 1536)]}
    chosen.update(spread({s: p for s, p in dense.items() if s not in chosen}, ((8192, 8192), (28672, 8192), (8192, 28672), (4096, 1024), (1280, 8192)),
                         PRODUCTS_MAX - 2))
    kernels = product_tables(chosen, copy) + attention_tables(op, peak, {(64, 8), (32, 8), (16, 4), (8, 2), (4, 1)})
    kernels += row_tables(a["bandwidth"], {"cross entropy": ("ce", 1)})  # its permutes, at 0.19 of the bandwidth, are those of one program
    return {"memory": "80G", "device": "cuda", "note": note + ROWS_NOTE % a["bandwidth"]["default"]["latency_us"] + OP_NOTE,
            "machine": machine("A100", ((5120, 1536), groups[(5120, 1536)]), kernels, copy, OP_S)}


def with_ring_steps(levels):
    return [dict(level, ring_step_us=RING_STEP_US[level["name"]], note=level["note"] + "; ring_step_us by " + NCCL) for level in levels]


def a100(tables, name, adapters, gbytes_s, note):
    return {"evenkeel_cluster": 1, "name": name,
            "note": "Nodes of 8 A100 with NVSwitch and %s. Derived, changed: products, attention and copies from " % adapters + SIMUMAX +
                    ", on A100 PCIe; NVLink from all-reduces of " + VTRAIN + "; share of adapters from " + SIMAI + ". See docs/simulate.md.",
            "rank": a100_rank(tables, "copy_bytes_per_s is A100 PCIe's, 0.91 of 1.6 TB/s, by SimuMax: the memory of a DGX A100 80 GB has about 2.0 TB/s by "
                                      "its data sheet. "),
            "levels": with_ring_steps([
                {"name": "node", "ranks": 8, "gbytes_s": 230, "us": 6.1, "note": "all-reduces of 1 GiB and 1 MiB on 8 A100"},
                {"name": "net", "ranks": 16384, "gbytes_s": gbytes_s, "us": 3.7, "shared_by": 8, "note": note}])}


def a100_dgx(tables):
    return a100(tables, "a100-dgx", "eight 200 Gb/s adapters", 23,
                "200 Gb/s for each GPU, of which long rings reach 0.92 (SimAI); latency across leaves")


def a100_vtrain(tables):
    return a100(tables, "a100-vtrain", "800 Gb/s of adapters, as in vTrain's validation", 11.5,
                "inter_node_bandwidth of vTrain's config/validation/multi: 800 Gb/s for a node, 100 for each GPU, of which long rings reach 0.92 (SimAI); latency "
                "across leaves")


def a100_pcie(tables):
    return {"evenkeel_cluster": 1, "name": "a100-pcie-4",
            "note": "Four A100 PCIe without NVLink. Derived, changed, from " + SIMUMAX + ". See docs/simulate.md.",
            "rank": a100_rank(tables, "copy_bytes_per_s is 0.91 of 1.6 TB/s, by SimuMax. "),
            "levels": [{"name": "node", "ranks": 4, "gbytes_s": 20.8, "us": 3.5, "note": "all-reduces of 4 GPUs: 0.692 of 30 GB/s"}]}


# Vidur's products of Llama 2 70B in fp16 on one H100: mean ms by tokens.
H100_TOKENS = (512, 1008, 1536, 4096)
H100_PRODUCTS_MS = {(10240, 8192): (0.1559, 0.2634, 0.3650, 0.9796), (8192, 8192): (0.0944, 0.2566, 0.3585, 0.7889),
                    (57344, 8192): (0.6504, 1.3358, 1.9754, 5.6365), (8192, 28672): (0.2711, 0.8381, 1.2245, 2.5861)}


def h100_products(own):
    """With Vidur's, for all passes: it has forward ones."""
    for (out, size), times in H100_PRODUCTS_MS.items():
        for name in ("forward", "input", "weight"):
            points = own.setdefault((out, size), {}).setdefault(name, {})
            points.update({rows: 2 * rows * out * size / (ms * 1e-3) for rows, ms in zip(H100_TOKENS, times)})
    return own


# Kernels of rows of evenkeel on one H100, by the op: ms and GB/s of a step in bench/results/cuda.md.
H100_ROWS = {"norm": [(0.646, 2494.3)], "norm backward": [(1.234, 1740.3)], "rope": [(0.637, 1264.0), (1.010, 797.2)], "swiglu": [(0.545, 2956.1)],
             "swiglu backward": [(1.132, 2845.3)], "cross entropy": [(3.124, 1583.2)], "gather": [(1.513, 1419.0), (1.073, 3002.7)],
             "combine": [(0.559, 2883.7), (0.481, 2790.7)], "embed": [(0.286, 940.4)], "embed backward": [(0.380, 1060.4)], "adamw": [(16.368, 2388.6)],
             "sum squares": [(1.520, 2750.6)]}


def h100_row_tables():
    """The same rate for all sizes: one of each was measured, of hundreds of MB."""
    tables = []
    for kernel, ops in H100_ROWS.items():
        rate = 1e9 * sum(ms * gbytes_s for ms, gbytes_s in ops) / sum(ms for ms, _ in ops)
        tables.append({"kernel": kernel, "bytes": [1e6, 1e10], "bytes_per_s": [rate, rate]})
    return tables


def h100():
    """What bench/results/cuda.md has of PyTorch and of evenkeel's kernels of rows on one H100, Vidur's products, and data sheets.  Passes of products that were
    not measured are copies of the forward one."""
    rates = {(6144, 2048): {"forward": {16384: 688e12}, "input": {16384: 704e12}, "weight": {16384: 783e12}},
             (8192, 8192): {"forward": {8192: 769e12}, "input": {8192: 769e12}, "weight": {8192: 769e12}},
             (50304, 2048): {"forward": {4096: 763e12}, "input": {4096: 763e12}, "weight": {4096: 763e12}},
             (2048, 2048): {"forward": {2048: 694e12}, "input": {2048: 694e12}, "weight": {2048: 608e12}}}
    copy = 2.98e12
    kernels = product_tables(h100_products(rates), copy)
    for kernel, rate in (("attention", 383e12), ("attention backward", 272e12)):
        kernels.append({"kernel": kernel, "heads": 16, "kv_heads": 16, "head_dim": 128, "tokens_a_sequence": [1024], "flops_per_s": [rate]})
    kernels += h100_row_tables()
    return {"evenkeel_cluster": 1, "name": "h100-eos",
            "note": "Nodes of 8 H100 SXM with a 400 Gb/s adapter for each GPU. Products and attention: PyTorch (cuBLAS, cuDNN) on one H100, "
                    "bench/results/cuda.md, and products derived, changed, from " + VIDUR + "; kernels of rows: evenkeel's, cuda.md; links: data sheets, and shares "
                    "derived, changed, from " + SIMAI + ". See docs/simulate.md.",
            "rank": {"memory": "80G", "device": "cuda",
                     "note": "Measured: all passes of 6144 x 2048; forward and weight of 2048 x 2048; forward of 8192 x 8192 and of 50304 x 2048; one number of "
                             "rows each; by Vidur, forward of 10240 x 8192, 8192 x 8192, 57344 x 8192 and 8192 x 28672 with four. Copies of the forward rate: "
                             "input of 2048 x 2048, input and weight of the others. Experts have the rates of 2048 x 2048. Rates of fewer rows are computed (docs/simulate.md). Kernels of rows: one size of each, of hundreds of MB. " + OP_NOTE,
                     "machine": machine("H100", ((2048, 1024), rates[(2048, 2048)]), kernels, copy, OP_S)},
            "levels": with_ring_steps([
                {"name": "node", "ranks": 8, "gbytes_s": 328, "us": 3.3, "note": "0.73 of 450 GB/s, as 256 MiB on 8 GPUs (SimAI)"},
                {"name": "net", "ranks": 16384, "gbytes_s": 46, "us": 3.7, "shared_by": 8,
                 "note": "400 Gb/s for each GPU, of which long rings reach 0.92 (SimAI); latency across leaves"}])}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tables", required=True, help="folder with SimuMax's system files")
    p.add_argument("--out", required=True)
    o = p.parse_args()
    for cluster in (b200(o.tables), a100_dgx(o.tables), a100_vtrain(o.tables), a100_pcie(o.tables), h100()):
        with open(os.path.join(o.out, cluster["name"] + ".json"), "w", encoding="utf-8") as f:
            f.write(lines(rounded(cluster)) + "\n")


if __name__ == "__main__":
    main()
