#!/usr/bin/python3
"""Compares training steps with transformers (fused AdamW, SDPA, grouped matrix products), in turns.

The model has OLMoE's shape with random weights and --layers of its 16 layers.  transformers runs
with parameters in bf16 (AdamW then updates those, without fp32 masters) and with fp32 parameters
under autocast.  Prints tokens/s, median (min .. max), and ratios of medians.

Needs a python3 with torch and transformers 5.  Example, on a GPU:

    bench/against_transformers.py --command build/evenkeel
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

OLMOE = {"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024,
         "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
         "num_experts_per_tok": 8, "vocab_size": 50304, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu", "norm_topk_prob": False, "router_aux_loss_coef": 0.01}
WARM_UP = 3
PROGRAMS = ("evenkeel", "bf16", "autocast")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--shape", default="{}", help="JSON, changes of the config")
    p.add_argument("--batch", type=int, default=16, help="sequences a step")
    p.add_argument("--seq", type=int, default=1024, help="tokens a sequence")
    p.add_argument("--steps", type=int, default=5, help="measured steps a turn")
    p.add_argument("--turns", type=int, default=2, help="turns of each program")
    p.add_argument("--print-config", action="store_true", help="print the config.json, run nothing")
    p.add_argument("--inside", choices=PROGRAMS[1:], help=argparse.SUPPRESS)
    return p.parse_args()


def config_of(o):
    return {"architectures": ["OlmoeForCausalLM"], **OLMOE, "num_hidden_layers": o.layers, **json.loads(o.shape)}


def step_of_evenkeel(o):
    """Tokens/s of the slowest step, the median, the fastest."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(config_of(o), f)
        f.flush()
        r = subprocess.run([o.command, "bench", "step", "--model", f.name, "--device", o.device,
                            "--batch", str(o.batch), "--seq", str(o.seq), "--steps", str(o.steps),
                            "--json"], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit("%s ended with status %d: %s" % (o.command, r.returncode, r.stderr.strip()))
    s = json.loads(r.stdout)["tokens_per_s"]
    return [s["min"], s["median"], s["max"]]


def steps_of_transformers(o):
    """In a process of its own, so that memory is free for the next; as step_of_evenkeel."""
    r = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--inside",
                        o.inside], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        why = r.stderr.strip().splitlines() or ["status %d" % r.returncode]
        sys.exit("transformers (%s): %s" % (o.inside, why[-1]))
    s = json.loads(r.stdout.splitlines()[-1])
    return [min(s), statistics.median(s), max(s)]


def inside(o):
    """Runs the steps; prints their tokens/s."""
    import torch  # pylint: disable=import-outside-toplevel
    from transformers import OlmoeConfig, OlmoeForCausalLM  # pylint: disable=import-outside-toplevel

    autocast = o.inside == "autocast"
    wait = torch.cuda.synchronize if o.device == "cuda" else lambda: None
    config = OlmoeConfig(**config_of(o), use_cache=False, attn_implementation="sdpa",
                         experts_implementation="grouped_mm")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if autocast else torch.bfloat16)
    with torch.device(o.device):
        model = OlmoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    speeds = []
    for _ in range(WARM_UP + o.steps):
        x = torch.randint(0, config.vocab_size, (o.batch, o.seq), device=o.device)
        wait()
        start = time.monotonic()
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=x, labels=x, output_router_logits=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        speeds.append(o.batch * o.seq / (time.monotonic() - start))
    print(json.dumps(speeds[WARM_UP:]))


def main():
    o = options()
    if o.print_config:
        print(json.dumps(config_of(o), indent=2))
        return
    if o.inside:
        inside(o)
        return
    speeds = {name: [] for name in PROGRAMS}
    for _ in range(o.turns):
        speeds["evenkeel"] += step_of_evenkeel(o)
        for o.inside in PROGRAMS[1:]:
            speeds[o.inside] += steps_of_transformers(o)
    print("%d x %d tokens a step, %d layers, %s; tokens/s, median (min .. max)" %
          (o.batch, o.seq, o.layers, o.device))
    for name, s in speeds.items():
        print("  %-10s %9.0f (%.0f .. %.0f)  evenkeel %.2f times" %
              (name, statistics.median(s), min(s), max(s),
               statistics.median(speeds["evenkeel"]) / statistics.median(s)))


main()
