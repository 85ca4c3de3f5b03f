#!/usr/bin/env python3
"""What `simulate --failures` says of Lazarus' comparisons under failures (arXiv 2407.04656v2).

The paper's cluster: ten GPUs (RTX 3090, two a server, 100 Gb/s), each counted as a node; GPT-S and
GPT-L with an MoE layer in each of 12 layers, 4 sequences of 1,024 tokens a GPU, top-1.  Its systems
as those of --on-failure:

  DS        restart: back to the newest checkpoint (every 50 steps), --ep 2 (GPT-S) or 4 (GPT-L)
  DS(FT)    groups: goes on while a whole set of experts is left; checkpoints every 250 steps
  Lazarus   recover: every node, copies of each expert on two nodes or more, six slots a GPU

Steps are simulated with the routing that the paper emulates, SmartMoE's trace (--traces), whose 32
experts a layer are taken together, or with a generated workload.  Seconds are from what the paper
says of its cluster: a reconfiguration takes 20 to 40 s (30 here); checkpoints are on NFS over
10 Gb/s, with 14 bytes a parameter, so that gradients are of 2 bytes.  A save writes them once; a
restart is a reconfiguration, and every GPU reads the dense part and its own experts (or takes
--restart-s).  DeepSpeed sends as many rows to each expert as the most that any rank has for any
(deepspeed/moe/sharded_moe.py, without dropped tokens), Lazarus those that there are.

    bench/simulate_failures.py --record p3-trace.csv --traces DIR
"""

import argparse
import json
import os
import subprocess
import tempfile

from public_moe import Trace, folded, write_trace

RECOVER_S, NFS_BYTES_S, STATE_BYTES, LAYERS = 30, 1.25e9, 14, 12
STEPS = 10  # samples of the routing

# hidden, experts, --ep of DeepSpeed
MODELS = {"GPT-S": (768, 8, 2), "GPT-L": (1024, 16, 4)}

# Published ratios of samples: over DS, over DS(FT)
PAPER = {("spot", "GPT-S"): (2.3, 1.2), ("spot", "GPT-L"): (3.4, 1.8),
         ("5 min", "GPT-S"): (2.8, 1.4), ("5 min", "GPT-L"): (5.7, 2.8),
         ("40 min", "GPT-S"): (1.6, None), ("40 min", "GPT-L"): (2.3, None)}


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--record", required=True, help="Bamboo's trace of AWS P3 spot instances")
    p.add_argument("--traces", help="folder with the routing trace gpt_moe_e32_r16.npy and index.json")
    p.add_argument("--workload", default="W5",
                   help="without --traces: routing of `evenkeel workload` (default: %(default)s)")
    p.add_argument("--restart-s", type=float, help="seconds of a restart (default: by bytes)")
    return p.parse_args()


def seconds(hidden, experts, ep):
    """Of a save and of a restart."""
    expert = LAYERS * 8 * hidden ** 2 * STATE_BYTES
    dense = (LAYERS * 4 * hidden ** 2 + 50257 * hidden) * STATE_BYTES
    own = 10 // ep * ep * (dense + expert * experts / ep)
    return (dense + experts * expert) / NFS_BYTES_S, RECOVER_S + own / NFS_BYTES_S


def cluster(save_s, restart_s):
    return {"evenkeel_cluster": 1, "name": "lazarus-10",
            "rank": {"memory": "24G", "machine": {"peak": 71e12, "memory_bytes_s": 936e9, "efficiency": 0.4,
                                                  "dtype": "bf16"}},
            "levels": [{"name": "net", "ranks": 10, "gbytes_s": 6.25, "us": 5}],
            "failures": {"node_mtbf_h": 1, "recover_s": RECOVER_S, "restart_s": restart_s, "save_s": save_s}}


def config(hidden, experts):
    """Two matrices of 4 hidden^2 elements become three of 8/3 hidden^2."""
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
            "vocab_size": 50257, "hidden_size": hidden, "intermediate_size": hidden * 8 // 3,
            "num_hidden_layers": LAYERS, "num_attention_heads": hidden // 64,
            "num_key_value_heads": hidden // 64, "head_dim": 64, "num_local_experts": experts,
            "num_experts_per_tok": 1, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}


def spot_record(path, minutes):
    """The record from the first time that most instances are up, for so many minutes."""
    lines, up, most, begin = [], 0, 0, 0
    with open(path, encoding="utf-8") as f:
        for line in f:
            at, what, name = line.strip().split(",")
            up += 1 if what == "add" else -1
            lines.append((int(at), what, name))
            if up > most:
                most, begin = up, int(at)
    end = begin + 60000 * minutes
    kept = ["%d,%s,%s" % x for x in lines if x[0] <= end]
    return "\n".join(kept) + "\n"


def steady_record(minutes_each, minutes):
    """One of ten nodes is lost every so many minutes, until half are left."""
    lines = ["0,add,n%d" % i for i in range(10)]
    lines += ["%d,remove,n%d" % (60000 * minutes_each * (i + 1), 2 * i) for i in range(5)
              if minutes_each * (i + 1) < minutes]
    lines += ["%d,add,last" % (60000 * minutes), "%d,remove,last" % (60000 * minutes)]
    return "\n".join(lines) + "\n"


class Comparison:
    def __init__(self, o, folder):
        self.o, self.folder = o, folder

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def evenkeel(self, *words):
        r = subprocess.run([self.o.command, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
        return r.stdout

    def trace(self, experts):
        """A file with the routing."""
        path = os.path.join(self.folder, "%d.npy" % experts)
        if os.path.exists(path):
            return path
        if self.o.traces:
            t = Trace(self.o.traces, "gpt_moe_e32_r16.npy")
            write_trace(path, [[folded(t.layer(i, layer), experts) for layer in range(t.shape[1])]
                               for i in range(t.shape[0])])
        else:
            self.evenkeel("workload", "--name", self.o.workload, "--ranks", 10, "--experts", experts,
                          "--layers", LAYERS, "--iterations", 40, "--out", path)
        return path

    def samples(self, model, record, words):
        """Samples of a run, and the simulated step of ten nodes in milliseconds."""
        hidden, experts, _ = MODELS[model]
        save_s, restart_s = seconds(*MODELS[model])
        machines = cluster(save_s, self.o.restart_s if self.o.restart_s is not None else restart_s)
        s = json.loads(self.evenkeel(
            "simulate", "--cluster", self.write("cluster.json", json.dumps(machines)), "--ranks", 10, "--batch", 40,
            "--seq", 1024, "--micro-batch", 40, "--model", self.write(model + ".json", json.dumps(config(hidden, experts))),
            "--trace", self.trace(experts), "--steps", STEPS, "--failures", record, "--json", *words))
        return s["failures"], s["step_ms"]

    def systems(self, model, saves):
        _, experts, ep = MODELS[model]
        spare = 6 - (experts + 9) // 10
        deepspeed = ["--balance", "off", "--ep", ep, "--dialect", "low-gradients", "padded"]
        return {"DS": deepspeed + ["--on-failure", "restart", "--save-every", saves[0]],
                "DS(FT)": deepspeed + ["--on-failure", "groups", "--save-every", saves[1]],
                "Lazarus": ["--balance", "replicate", "--ep", 10, "--replicas-min", 2, "--spare-slots", spare,
                            "--dialect", "low-gradients", "--save-every", saves[1]]}

    def row(self, name, model, record, saves):
        found = {}
        for system, words in self.systems(model, saves).items():
            found[system] = self.samples(model, record, words)
        best = found["Lazarus"][0]["steps"]
        ratios = [best / found[x][0]["steps"] for x in ("DS", "DS(FT)")]
        paper = PAPER[(name, model)]
        cells = ["%.2f (%s)" % (r, "%.1f" % p if p else "-") for r, p in zip(ratios, paper)]
        for system, (f, step) in found.items():
            print("| %s, %s | %s | %.0f | %d | %.2f | %d, %d | %.0f | %s |" % (
                name, model, system, step, f["steps"], f["ettr"], f["recoveries"], f["restarts"],
                f["lost_steps"], cells[("DS", "DS(FT)").index(system)] if system != "Lazarus" else ""))


def main():
    o = options()
    with tempfile.TemporaryDirectory() as folder:
        c = Comparison(o, folder)
        records = {"spot": (c.write("spot.csv", spot_record(o.record, 80)), (50, 250)),
                   "5 min": (c.write("5.csv", steady_record(5, 30)), (50, 250)),
                   "40 min": (c.write("40.csv", steady_record(40, 240)), (200, 1000))}
        print("| run | system | step, ms | steps | ETTR | recoveries, restarts | lost steps | Lazarus over it (paper) |")
        print("|---|---|---|---|---|---|---|---|")
        for name, (record, saves) in records.items():
            for model in MODELS:
                c.row(name, model, record, saves)


if __name__ == "__main__":
    main()
