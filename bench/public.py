#!/usr/bin/python3
"""Predicted steps against public measurements of other programs: reads tables, maps each row to a model, a cluster file and options of
`evenkeel simulate`, and prints errors, pairs ordered right, and the regret of choosing the layout that is predicted to be the best.

    bench/public.py --command build/evenkeel --tables DIR               all tables that are there; prints Markdown
    bench/public.py --command build/evenkeel --tables DIR --only megascale_175b --rows
    bench/public.py --command build/evenkeel --tables DIR --memory --every 5

docs/simulate.md says where the tables are from, and what rows are equivalents of.  What is read is not kept.
"""

import argparse
import concurrent.futures
import copy
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

CLUSTERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "clusters")
VOCABULARY = 51200


# --- models ------------------------------------------------------------------------------------------------------------------------------------

def dense(hidden, layers, heads, kv, inner, vocabulary, seq, head=None, tied=False):
    """A dense model: all layers but the last are dense, and the last has one expert of the same width."""
    return {"model_type": "qwen3_moe", "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": head or hidden // heads, "intermediate_size": inner, "moe_intermediate_size": inner,
            "num_experts": 1, "num_experts_per_tok": 1, "mlp_only_layers": list(range(layers - 1)), "max_position_embeddings": seq,
            "tie_word_embeddings": tied}


def gpt(hidden, layers, heads, seq, inner=None):
    """Two matrices of width 4 hidden have the weights and products of SwiGLU's three of width 8/3 hidden."""
    return dense(hidden, layers, heads, heads, round((inner or 4 * hidden) * 2 / 3 / 64) * 64, VOCABULARY, seq)


def moe(hidden, layers, heads, kv, experts, top, ff, vocabulary, seq, head=None, shared=0, first_dense=0):
    m = {"vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
         "head_dim": head or hidden // heads, "num_experts": experts, "num_experts_per_tok": top, "moe_intermediate_size": ff,
         "max_position_embeddings": seq, "intermediate_size": first_dense or ff, "mlp_only_layers": [0] if first_dense else []}
    if shared:
        return dict(m, model_type="qwen2_moe", shared_expert_intermediate_size=shared)
    return dict(m, model_type="qwen3_moe")


def step_flops(model, tokens, seq):
    """As the papers count them: every product once forward and twice backward, and attention over all pairs."""
    h, heads, head = model["hidden_size"], model["num_attention_heads"], model["head_dim"]
    attention = h * head * (2 * heads + 2 * model["num_key_value_heads"]) + 2 * seq * heads * head
    active = model["num_experts_per_tok"] * model["moe_intermediate_size"] + model.get("shared_expert_intermediate_size", 0)
    layers, n_dense = model["num_hidden_layers"], len(model["mlp_only_layers"])
    mlp = 3 * h * ((layers - n_dense) * active + n_dense * model["intermediate_size"])
    return 6 * tokens * (layers * attention + mlp + h * model["vocab_size"])


# --- programs -----------------------------------------------------------------------------------------------------------------------------------

# What they do differently, as switches of `simulate --dialect`: GPT training of 2021 and 2022 by Megatron-LM and Megatron-DeepSpeed in fp16, with
# scores that are stored and gradients that are reduced at the end; Megatron since, with fused attention, fp32 gradients, reduced during the backward
# pass, which are set to zero and scaled (zero_grad_buffer and gradient_scaling_factor of its distributed/param_and_grad_buffer.py), with weights that are
# gathered in their own type (param_data there, and its FSDP) and counts that are gathered by the ranks of experts (token_dispatcher.py); nanotron, likewise
# (optim/clip_grads.py, zero_grad of optim/gradient_accumulator.py, optim/zero.py), with rows by kernels of PyTorch, and gradients in buckets of PyTorch's
# DistributedDataParallel (bucket_cap_mb 25), but with ZeRO 1 and sums in fp32 (scripts/scaling_benchmarks.py has both) without it: make_ddp of trainer.py, then
# one all-reduce (sync_gradients_across_dp) and a gather with copies (_all_gather_params of optim/zero.py, all_gather_coalesced of distributed.py).
# FSDP reduces gradients in the type of weights.  All call NCCL, and some rows say that they call DeepEP.
NCCL = ["ring-steps", "tree-sums"]
DIALECTS = {"megatron-2022": ["unfused-attention", "low-messages", "low-gradients", "late-gradients", *NCCL],
            "megatron": ["low-messages", "low-weights", "gradient-passes", "etp-gather", "expert-counts", *NCCL],
            "nanotron": ["low-messages", "low-weights", "gradient-passes", "unfused-rows", "ddp-buckets", *NCCL],
            "fsdp": ["low-messages", "low-gradients", "expert-counts", *NCCL],
            "megatron-fsdp": ["low-messages", "low-gradients", "low-weights", "expert-counts", *NCCL]}
DIALECTS["nanotron, zero 1"] = [word for word in DIALECTS["nanotron"] if word != "ddp-buckets"] + ["whole-sums", "gather-copies"]
DIALECTS.update({name + ", deepep": DIALECTS[name] + ["node-once"] for name in ("megatron", "megatron-fsdp")})


# --- tables ------------------------------------------------------------------------------------------------------------------------------------

class Case:
    """A row.  seconds: published, of a step.  group: rows that are alternatives for the same work.  links: GB/s of the cluster's levels by name, where the
    table has measured collectives; None: those of the cluster file."""

    def __init__(self, label, group, model, cluster, ranks, seconds, words, dialect, links=None):
        self.label, self.group, self.model, self.cluster, self.ranks = label, group, model, cluster, ranks
        self.seconds, self.words, self.dialect, self.links = seconds, words, dialect, links
        self.predicted, self.refused = None, None


def layout(seq, batch, micro, dp, tp=1, pp=1, ep=1, etp=None, chunks=1, zero=0, recompute="off"):
    """micro: sequences of a micro-batch of one data-parallel rank."""
    return {"seq": seq, "batch": batch, "micro-batch": micro * dp, "tp": tp, "pp": pp, "ep": ep, "etp": tp if etp is None else etp,
            "pp-chunks": chunks, "zero": zero, "recompute": recompute}


def vtrain(rows):
    for r in rows:
        v = list(r.values())
        gpus, batch, micro, hidden, heads, layers, seq, tp, dp, pp = [int(x) for x in v[-11:-1]]
        yield Case("%d GPUs, h %d, l %d, tp %d dp %d pp %d, micro %d" % (gpus, hidden, layers, tp, dp, pp, micro),
                   (gpus, batch, hidden, layers, seq), gpt(hidden, layers, heads, seq), "a100-vtrain", gpus, float(v[-1]) / 1e3,
                   layout(seq, batch, micro, dp, tp, pp, recompute="full"), "megatron-2022")


GPTS = {"GPT 22B": (6144, 48, 64), "GPT 175B": (12288, 96, 96), "GPT 310B": (16384, 96, 128), "GPT 530B": (20480, 105, 128), "GPT 1T": (25600, 128, 160)}


def korthikanti(rows):
    for r in rows:
        tp, pp, dp, batch = int(r["tp"]), int(r["pp"]), int(r["dp"]), int(r["batch"])
        chunks = 3 if r["model"] in ("GPT 175B", "GPT 530B") and dp == 1 else 1  # interleaved, by the paper
        yield Case("%s, tp %d pp %d dp %d, recompute %s" % (r["model"], tp, pp, dp, r["recomputation"]), (r["model"], batch),
                   gpt(*GPTS[r["model"]], 2048), "a100-dgx", tp * pp * dp, float(r["actual"]),
                   layout(2048, batch, batch // int(r["mb"]) // dp, dp, tp, pp, chunks=chunks,
                          recompute={"full": "full", "selective": "attention"}[r["recomputation"]]), "megatron-2022")


def megascale(rows):
    for r in rows:
        if r["system"] == "Megatron-LM":  # MegaScale's own rows change the model
            gpus, batch = int(r["gpus"]), int(r["batch"])
            yield Case("%d GPUs, batch %d" % (gpus, batch), None, gpt(*GPTS["GPT 175B"], 2048), "a100-dgx", gpus, float(r["iteration_s"]),
                       layout(2048, batch, 1, gpus // 64, 8, 8, chunks=6, zero=1, recompute="attention"), "megatron")


FOLDING = {"Mixtral-8x22B": lambda: moe(6144, 56, 48, 8, 8, 2, 16384, 32768, 4096),
           "Qwen2-57B-A14B": lambda: moe(3584, 28, 28, 4, 64, 8, 2560, 151936, 4096, shared=20480)}


def folding(rows):
    for r in rows:
        gpus, batch = int(r["gpus"]), int(r["gbs"])
        tp, ep, pp, etp = (int(r[k] or 1) for k in ("tp", "ep", "pp", "etp"))
        model = FOLDING[r["model"]]()
        fsdp = r["method"].startswith("FSDP")
        etp = etp if r["etp"] else tp  # only folding has another
        seconds = step_flops(model, batch * 4096, 4096) / (gpus * 989.4e12 * float(r["mfu_pct"]) / 100)
        yield Case("%s, %d GPUs, batch %d, %s" % (r["model"], gpus, batch, r["method"]), (r["model"], gpus, batch), model, "h100-eos", gpus, seconds,
                   layout(4096, batch, 1, gpus // tp // pp, tp, pp, ep, etp, model["num_hidden_layers"] // pp if pp > 1 else 1, 3 if fsdp else 1,
                          "full" if fsdp else "off"), "fsdp" if fsdp else "megatron")


def zoo(rows):
    model = moe(4096, 94, 64, 4, 128, 8, 1536, 151936, 4096, head=128)
    for r in rows:
        if "235B" in r["note"]:
            gpus, tp, pp, ep, dp, vpp, micro, batch = (int(r[k]) for k in ("gpus", "tp", "pp", "ep", "dp", "vpp", "mbs", "gbs"))
            yield Case("tp %d pp %d vpp %d ep %d, %s" % (tp, pp, vpp, ep, r["note"].split(", ")[-1]), (gpus, batch), model, "h100-eos", gpus,
                       float(r["step_s"]), layout(4096, batch, micro, gpus // tp // pp, tp, pp, ep, 1, vpp, 3 if r["fsdp"] else 1,
                                                  "full" if r["recompute"] == "full" else "off"),
                       ("megatron-fsdp" if r["fsdp"] else "megatron") + (", deepep" if r["dispatcher"] == "DeepEP" else ""))


SIMUMAX = {"llama3-70b": lambda l: dense(8192, l, 64, 8, 28672, 128256, 4096), "llama3-405b": lambda l: dense(16384, l, 128, 8, 53248, 128256, 4096),
           "deepseekv2": lambda l: moe(5120, l, 128, 1, 160, 6, 1536, 102400, 4096, head=128, shared=3072, first_dense=12288)}


def simumax(rows):
    for r in rows:
        text = r["parallel"]
        size = {k: int(text.split(k)[1].split("p")[0].rstrip("tec")) if k in text else 1 for k in ("tp", "ep", "pp", "cp")}
        if size["cp"] == 1:  # evenkeel has no context parallelism
            dp, micros = 8 // size["tp"] // size["pp"], int(r["micro_batches"])
            yield Case("%s, %d layers, %s, %d micro-batches" % (r["model"], int(r["layers"]), text, micros), (r["model"], r["layers"], micros * dp),
                       SIMUMAX[r["model"]](int(r["layers"])), "b200-8", 8, float(r["real_ms"]) / 1e3,
                       layout(4096, micros * dp, 1, dp, size["tp"], size["pp"], size["ep"], 1 if size["ep"] > 1 else None, zero=1), "megatron")


def four_gpus(rows):
    for r in rows:
        tp, pp, cp, dp = (int(r[k]) for k in ("TP", "PP", "CP", "DP"))
        if cp == 1 and r["Status"] == "SUCCESS":
            yield Case("%s, tp %d pp %d dp %d" % (r["variant"], tp, pp, dp), 0, dense(4096, 32, 32, 32, 11008, 32000, 4096), "a100-pcie-4", 4,
                       float(r["Avg_Step_Time_s"]), layout(4096, 128, 1, dp, tp, pp, zero=3 if r["variant"] == "FSDP" else 0), "megatron")


def sane(cases):
    """Rows at least half as fast as the best of their group: in others something failed that no model of the step has."""
    best = {}
    for c in cases:
        best[c.group] = min(best.get(c.group, c.seconds), c.seconds)
    return [c for c in cases if c.seconds <= 2 * best[c.group]]


def ultrascale(rows):
    return sane(list(ultrascale_rows(rows)))


def measured_links(rows):
    """What collectives of large messages reached in the runs: all-gathers inside nodes, and all-reduces between them, which eight adapters share.  Of runs with
    pipelines the figures between nodes halve with every doubling of the nodes, down to 3 GB/s of an adapter, so those are of short messages."""
    ran = [r for r in rows if r["status"] == "Success"]
    return {"node": statistics.median(float(r["allgather_intra_gbs"]) for r in ran),
            "net": statistics.median(float(r["allreduce_gbs"]) for r in ran if int(r["nodes"]) > 1 and int(r["pp"]) == 1) / 8}


def ultrascale_rows(rows, statuses=("Success",)):
    """seconds: None of rows that ran out of memory, which have the batch in tokens, and lack what rows of the same model that ran have."""
    rows = list(rows)
    links = measured_links(rows)
    ran = {(r["hidden"], r["layers"]): r for r in rows if r["status"] == "Success"}
    for r in rows:
        if r["status"] not in statuses or not r["inner"] or (int(r["pp"]) > 1 and r["after_pp_fix"] == "False"):
            continue
        if r["status"] != "Success":
            like = ran.get((r["hidden"], r["layers"]), {})
            r = dict(r, global_batch=int(r["global_batch"]) // int(r["seq"]), kv_heads=like.get("kv_heads") or r["heads"], tied=like.get("tied"))
        dp, tp, pp, micro, seq, batch = (int(r[k]) for k in ("dp", "tp", "pp", "micro_batch", "seq", "global_batch"))
        hidden, inner, layers, heads, vocabulary = (int(r[k]) for k in ("hidden", "inner", "layers", "heads", "vocab"))
        kv = min(int(r["kv_heads"]), heads)
        seconds = batch * seq / (float(r["tokens_s_gpu"]) * dp * tp * pp) if r["status"] == "Success" else None
        yield Case("%d GPUs, h %d, tp %d pp %d dp %d zero %s, micro %d" % (dp * tp * pp, hidden, tp, pp, dp, r["zero"], micro),
                   (hidden, layers, dp * tp * pp, batch, seq), dense(hidden, layers, heads, kv, inner, vocabulary, seq, tied=r["tied"] == "True"),
                   "h100-eos", dp * tp * pp, seconds,
                   dict(layout(seq, batch, micro, dp, tp, pp, zero=int(r["zero"])), **{"pp-layers": "auto"}),
                   "nanotron, zero 1" if r["zero"] == "1" else "nanotron", links)


TABLES = {"vtrain_single_a100": vtrain, "vtrain_multi_a100": vtrain, "korthikanti_selene": korthikanti, "megascale_175b": megascale,
          "moe_parallel_folding": folding, "megatron_zoo_qwen3": zoo, "simumax_b200": simumax, "four_gpu_dp_tp_pp": four_gpus,
          "ultrascale_h100": ultrascale}


# --- runs --------------------------------------------------------------------------------------------------------------------------------------

class Runner:
    def __init__(self, o, folder):
        self.o, self.folder, self.files = o, folder, {}

    def file(self, value):
        """A file with this JSON."""
        text = json.dumps(value, sort_keys=True)
        if text not in self.files:
            self.files[text] = os.path.join(self.folder, "%d.json" % len(self.files))
            with open(self.files[text], "w", encoding="utf-8") as f:
                f.write(text)
        return self.files[text]

    def cluster_file(self, case):
        path = os.path.join(self.o.clusters, case.cluster + ".json")
        if case.links is None:
            return path
        with open(path, encoding="utf-8") as f:
            cluster = json.load(f)
        for level in cluster["levels"]:
            level["gbytes_s"] = case.links[level["name"]]
        return self.file(cluster)

    def words(self, case):
        """Options of the command; files are written here, before runs are concurrent."""
        words = ["--cluster", self.cluster_file(case), "--model", self.file(case.model), "--ranks", case.ranks,
                 "--pipeline-degree", 1, "--a2a", "linear", "--json"]
        for name, value in case.words.items():
            words += ["--" + name, value]
        if self.o.dialect == "own" and DIALECTS[case.dialect]:
            words += ["--dialect", *DIALECTS[case.dialect]]
        return [str(w) for w in words]

    def predict(self, case, words):
        r = subprocess.run([self.o.command, "simulate", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            case.refused = r.stderr.strip().split("\n")[0]
        else:
            case.predicted = json.loads(r.stdout)
        return case

    def run(self, cases, more=()):
        words = [self.words(c) + list(more) for c in cases]
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            return list(pool.map(self.predict, cases, words))


# --- calibration -------------------------------------------------------------------------------------------------------------------------------

# Tables whose protocol lets the rows of one node, of so many GPUs, calibrate: how much longer computation takes than by the cluster file.
CALIBRATED = {"ultrascale_h100": 8}


def compute_factor(cases):
    """The median over rows of what computation and bubbles would have to be multiplied with."""
    factors = []
    for c in cases:
        where = c.predicted["where_ms"]
        lane = sum(where["compute"].values()) + where["bubble"]
        factors.append((c.seconds * 1e3 - c.predicted["step_ms"] + lane) / lane)
    return statistics.median(factors)


def calibrated(runner, cases, gpus):
    """The rows of more GPUs, predicted again with computation as of those of one node: the factor, and rows; None if no row is of one node."""
    node = [c for c in cases if c.predicted and c.ranks == gpus]
    if not node:
        return None, []
    factor = compute_factor(node)
    rest = [copy.copy(c) for c in cases if c.predicted and c.ranks > gpus]
    for c in runner.run(rest, ("--what-if", "compute x%.4f" % (1 / factor))):
        c.predicted = dict(c.predicted, step_ms=c.predicted["what_if"][0]["step_ms"])
    return factor, rest


# --- figures -----------------------------------------------------------------------------------------------------------------------------------

def error_of(case):
    return case.predicted["step_ms"] / 1e3 / case.seconds - 1


def quantile(values, share):
    values = sorted(values)
    return values[int(share * (len(values) - 1) + 0.5)]


def groups_of(cases):
    groups = {}
    for c in cases:
        groups.setdefault(c.group, []).append(c)
    return [g for key, g in groups.items() if key is not None and len(g) > 1]


def ordered(groups):
    """Of the pairs of a group that were measured at least 2 % apart: how many are predicted apart, how many of these are ordered as measured, and
    how many have equal predictions (rows that differ only in what the simulator does not have)."""
    n = right = ties = 0
    for g in groups:
        for a, b in itertools.combinations(g, 2):
            if abs(a.seconds / b.seconds - 1) >= 0.02:
                if a.predicted["step_ms"] == b.predicted["step_ms"]:
                    ties += 1
                else:
                    n += 1
                    right += (a.seconds < b.seconds) == (a.predicted["step_ms"] < b.predicted["step_ms"])
    return n, right, ties


def order(n, right, ties):
    """ordered's figures as a cell of the table."""
    cell = "%d of %d (%.0f %%)" % (right, n, 100 * right / n) if n else ""
    return ", ".join([cell] * bool(n) + ["%d equal" % ties] * bool(ties))


def regrets(groups):
    """How much longer the step of the layout is that is predicted to be the best, than that of the best."""
    return [min(g, key=lambda c: c.predicted["step_ms"]).seconds / min(c.seconds for c in g) - 1 for g in groups]


def percent(x):
    return "%.1f" % (100 * x)


def summary(name, cases):
    done = [c for c in cases if c.predicted]
    if not done:
        return "| %s | 0 | | | | | | | | |" % name
    errors = [error_of(c) for c in done]
    sizes = [abs(e) for e in errors]
    groups = groups_of(done)
    lost = regrets(groups)
    return "| %s | %d | %+.1f | %s | %s | %s | %s | %s | %s | %s |" % (
        name, len(done), 100 * statistics.mean(errors), percent(statistics.mean(sizes)), percent(statistics.median(sizes)),
        percent(quantile(sizes, 0.9)), percent(max(sizes)), order(*ordered(groups)),
        percent(statistics.mean(lost)) if lost else "", percent(max(lost)) if lost else "")


# The share of what PyTorch's caching allocator reserves that it cannot use: the mean that GMLake (arXiv 2401.08156) has of large models in training, on A100
# with 80 GB.
FRAGMENTATION = 0.15


def fits(case, unused):
    """unused: share of the memory."""
    memory = case.predicted["memory_mb"]
    return memory["all"] <= memory["of"] * (1 - unused)


def memory_summary(cases, unused):
    """Rows that ran, and that ran out of memory: how many are predicted to."""
    done = [c for c in cases if c.predicted]
    ran, failed = [c for c in done if c.seconds], [c for c in done if not c.seconds]
    fit, fail = sum(fits(c, unused) for c in ran), sum(not fits(c, unused) for c in failed)
    return "memory, %.0f %% unused: %d of %d rows right (%.1f %%): of %d that ran %d, of %d that ran out of memory %d (%.1f %%)" % (
        100 * unused, fit + fail, len(done), 100 * (fit + fail) / max(len(done), 1), len(ran), fit, len(failed), fail, 100 * fail / max(len(failed), 1))


HEAD = ("| table | rows | mean of signed errors % | mean % | median % | p90 % | largest % | pairs ordered right | regret mean % | worst % |\n"
        "|---|---|---|---|---|---|---|---|---|---|")


def print_rows(cases):
    for c in cases:
        if c.predicted:
            w = c.predicted["where_ms"]
            print("  %-70s %9.3f s published %9.3f predicted %+6.1f %%; compute %.0f transfer %.0f waits %.0f bubble %.0f ms" % (
                c.label, c.seconds, c.predicted["step_ms"] / 1e3, 100 * error_of(c), sum(w["compute"].values()), sum(w["transfer"].values()),
                w["skew"], w["bubble"]))
        else:
            print("  %-70s refused: %s" % (c.label, c.refused))


def rows_of(o, name):
    with open(os.path.join(o.tables, name + ".csv"), newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def judge_memory(o, folder):
    """Of the only table that has rows that ran out of memory."""
    cases = Runner(o, folder).run(list(ultrascale_rows(rows_of(o, "ultrascale_h100"), ("Success", "OOM")))[::o.every])
    for unused in (0, FRAGMENTATION):
        print(memory_summary(cases, unused))
    for reason, same in itertools.groupby(sorted(c.refused for c in cases if c.refused)):
        print("refused %d: %s" % (len(list(same)), reason), file=sys.stderr)
    for c in cases if o.rows else []:
        if c.predicted and fits(c, FRAGMENTATION) != bool(c.seconds):
            print("  %s: %.1f GB, %s" % (c.label, c.predicted["memory_mb"]["all"] / 1e3, "ran" if c.seconds else "ran out of memory"))


OTHERS = """read here: %s
SmartMoE, Pro-Prophet and Tutel: bench/public_moe.py --tables DIR --traces DIR
Lazarus under failures: bench/simulate_failures.py --record FILE --traces DIR"""


def options():
    p = argparse.ArgumentParser(description=__doc__.split(":", maxsplit=1)[0] + ".", epilog=OTHERS % ", ".join(TABLES),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--tables", required=True, help="folder with the tables, as NAME.csv")
    p.add_argument("--clusters", default=CLUSTERS)
    p.add_argument("--only", nargs="*", help="names of tables; default: all that are in the folder")
    p.add_argument("--dialect", default="own", choices=("own", "off"), help="own: what the measured program does differently; off: evenkeel")
    p.add_argument("--every", type=int, default=1, help="only every so many rows of a table")
    p.add_argument("--rows", action="store_true", help="print every row")
    p.add_argument("--memory", action="store_true", help="whether rows of ultrascale_h100 ran or ran out of memory, instead")
    p.add_argument("--jobs", type=int, default=1)
    return p.parse_args()


def main():
    """Prints a line for each table; returns 1 if no row was predicted."""
    o = options()
    names = o.only or [n for n in TABLES if os.path.exists(os.path.join(o.tables, n + ".csv"))]
    found = False
    if o.memory:
        with tempfile.TemporaryDirectory(prefix="evenkeel-public-") as folder:
            judge_memory(o, folder)
        return 0
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="evenkeel-public-") as folder:
        for name in names:
            runner = Runner(o, folder)
            cases = runner.run(list(TABLES[name](rows_of(o, name)))[::o.every])
            found = found or any(c.predicted for c in cases)
            print(summary(name, cases), flush=True)
            if o.rows:
                print_rows(cases)
            if name in CALIBRATED:
                factor, rest = calibrated(runner, cases, CALIBRATED[name])
                if factor:
                    print(summary("%s, computation %.3f times as long by one node" % (name, factor), rest), flush=True)
            for reason, same in itertools.groupby(sorted(c.refused for c in cases if c.refused)):
                print("refused %d: %s" % (len(list(same)), reason), file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
