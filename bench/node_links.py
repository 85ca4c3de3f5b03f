#!/usr/bin/env python3
"""The time of plans by the traffic of each node's link, where nodes have several ranks: replays a
trace at several bandwidths.

    bench/node_links.py --command build/evenkeel --trace FILE.npy --ranks 16 --nodes 4

Time of a layer: the products of the busiest rank; the longer of the rows that cross the busiest
node's link and of those that the busiest rank exchanges within its node; copies of experts that
enter or leave the busiest node, each once.  Slots serve the assignments of their own node first.
"""

import argparse
import json
import os
import subprocess
import tempfile

HIDDEN, FF = 512, 1024
FLOPS, COPY = 9e10, 7e9  # of a rank
NODE, INSIDE = 36e6, 20  # bytes/s of a node's link at bandwidth 1; a rank's inside, over its share
SIZES = [4 ** i for i in range(5, 14)]
MODEL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
         "vocab_size": 300, "hidden_size": HIDDEN, "intermediate_size": FF, "num_hidden_layers": 1,
         "num_attention_heads": 8, "num_key_value_heads": 8, "num_experts_per_tok": 2,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
         "tie_word_embeddings": False}
ROW, EXPERT = 4 * 2 * HIDDEN + 8, 3 * HIDDEN * FF  # bytes of a row, four times sent; weights


def machine(a_node, share):
    """A machine file; share: bytes/s of a node's link for each of its ranks."""
    def link(rate):
        return {"ranks_a_node": a_node,
                "all_to_all": {"message_bytes": SIZES,
                               "seconds_a_message": [s / rate for s in SIZES]},
                "multicast": {"message_bytes": SIZES, "seconds_a_hop": [s / rate for s in SIZES]}}
    rate = {"rows_an_expert": [64], "flops_per_s": [FLOPS]}
    return {"evenkeel_machine": 1, "name": "links", "key": "", "dtype": "bf16", "ranks": 2 * a_node,
            "nodes": 2, "threads": 1, "measured_in_s": 1.0, "copy_bytes_per_s": COPY,
            "expert": {"hidden": HIDDEN, "ff": FF, "experts": 1, "forward": rate,
                       "backward_input": rate, "backward_weight": rate},
            "node": link(INSIDE * share), "net": link(share)}


def plans(a, folder):
    out = os.path.join(folder, "plans.jsonl")
    subprocess.run([a.command, "plan", "--trace", a.trace, "--policy", a.policy, "--ranks",
                    str(a.ranks), "--nodes", str(a.nodes), "--spare-slots", str(a.spare_slots),
                    "--machine", os.path.join(folder, "machine.json"), "--model",
                    os.path.join(folder, "config.json"), "--emit", out],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)


def crossing(plan, a, group):
    """The most rows that leave or enter one of the groups of so many ranks."""
    slots = len(plan["expert_of"]) // a.ranks
    tokens, served = {}, {}
    for source, slot, rows in plan["split"]:
        e = plan["expert_of"][slot]
        for sums, at in (tokens, source // group), (served, slot // slots // group):
            sums[at, e] = sums.get((at, e), 0) + rows
    out, into = [0] * (a.ranks // group), [0] * (a.ranks // group)
    for sums, to, other in (tokens, out, served), (served, into, tokens):
        for (at, e), rows in sums.items():
            to[at] += max(0, rows - other.get((at, e), 0))
    return max(out + into)


def layer_time(plan, a, share):
    a_node = a.ranks // a.nodes
    slots = len(plan["expert_of"]) // a.ranks
    busiest = [0] * a.ranks
    for _, slot, rows in plan["split"]:
        busiest[slot // slots] += rows
    copies = {(slot // slots // a_node, e) for slot, e in enumerate(plan["expert_of"]) if e >= 0}
    primary = [slot // slots // a_node for slot in plan["primary"]]
    gets, gives = [0] * a.nodes, [0] * a.nodes
    for node, e in copies:
        gets[node] += node != primary[e]
    for e in {e for node, e in copies if node != primary[e]}:
        gives[primary[e]] += 1  # receivers forward it
    between = crossing(plan, a, a_node) / a_node
    within = max(0, crossing(plan, a, 1) - between)
    compute_s_per_row = 18 * HIDDEN * FF / FLOPS + 2 * (8 * HIDDEN + 9 * FF) / COPY
    return (max(busiest) * compute_s_per_row, max(between * ROW / share, within * ROW / share / INSIDE),
            max(gets + gives) / a_node * EXPERT * 8 / share)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--trace", required=True)
    p.add_argument("--policy", default="auto")
    p.add_argument("--ranks", type=int, default=16)
    p.add_argument("--nodes", type=int, default=4)
    p.add_argument("--experts", type=int, default=32)
    p.add_argument("--spare-slots", type=int, default=1)
    p.add_argument("--bandwidths", default="1,0.25,0.0625")
    a = p.parse_args()
    print("| bandwidth | products | rows | copies | ms |\n|---|---|---|---|---|")
    for bandwidth in map(float, a.bandwidths.split(",")):
        share = NODE * bandwidth / (a.ranks // a.nodes)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in ("config.json", dict(MODEL, num_local_experts=a.experts)), \
                              ("machine.json", machine(a.ranks // a.nodes, share)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    json.dump(text, f)
            times = [layer_time(plan, a, share) for plan in plans(a, folder)]
        mean = [1e3 * sum(t[i] for t in times) / len(times) for i in range(3)]
        print("| %g | %.0f | %.0f | %.0f | %.0f |" % (bandwidth, *mean, sum(mean)))


if __name__ == "__main__":
    main()
