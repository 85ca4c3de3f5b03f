#!/usr/bin/env python3
"""Makes tests/golden/reference: short training runs of a reference implementation in PyTorch.
Needs: pip install torch numpy, and the path of the reference script as the only argument.  The
tests read the files that are kept here and never run this script.

The reference script is called as
  REFERENCE init CONFIG WEIGHTS --seed N
  REFERENCE train CONFIG WEIGHTS TOKENS --batch --micro --seq --steps --lr --wd --clip --aux
            --dtype float64|float32|bfloat16
and prints one JSON object per step with loss, aux and grad_norm; steps read the tokens in
sequence, the learning rate is constant.

Each folder holds a model (config.json, model.safetensors), tokens.bin (uint16) and golden.json:
the settings of the run, and per element type what each step printed.  Initial weights are larger
than usual (initializer_range), so that routing decisions differ from token to token.

Routing is discrete: where two experts are nearly tied, rounding in single precision may choose
the other one, after which two correct programs part.  So seeds are tried until the reference's
own float32 run stays close to its float64 run over the steps that are compared, and its bfloat16
run well within the bounds that the tests set.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent / "reference"
STEPS = {"float64": 50, "float32": 40, "bfloat16": 40}
COMPARED = 10  # steps of float32
VALUES = ("loss", "aux", "grad_norm")
COMMON = dict(architectures=["MixtralForCausalLM"], model_type="mixtral", hidden_act="silu",
              torch_dtype="float32", initializer_range=0.2, max_position_embeddings=128,
              sliding_window=None, tie_word_embeddings=False)


def config(vocab, hidden, layers, heads, kv_heads, head_dim, experts, k, ff, theta=1e4, eps=1e-5):
    return dict(**COMMON, vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                num_local_experts=experts, num_experts_per_tok=k, intermediate_size=ff,
                rope_theta=theta, rms_norm_eps=eps)


def settings(batch, micro, seq, lr, wd, clip, aux):
    return dict(batch=batch, micro=micro, seq=seq, lr=lr, wd=wd, clip=clip, aux=aux)


# With one expert a token, renormalised, only the balance loss moves the router: its other
# gradient is rounding noise, which AdamW would blow up if it stood alone.
RUNS = {
    "experts5_top2": (config(vocab=48, hidden=21, layers=2, heads=3, kv_heads=1, head_dim=6,
                             experts=5, k=2, ff=13),
                      settings(batch=8, micro=8, seq=11, lr=1e-3, wd=0.1, clip=1.0, aux=0.01)),
    "experts7_top3": (config(vocab=40, hidden=20, layers=2, heads=5, kv_heads=5, head_dim=4,
                             experts=7, k=3, ff=9, theta=1e6),
                      settings(batch=5, micro=2, seq=13, lr=3e-3, wd=0.01, clip=0.5, aux=0.02)),
    "experts3_top1": (config(vocab=37, hidden=17, layers=3, heads=4, kv_heads=2, head_dim=10,
                             experts=3, k=1, ff=11),
                      settings(batch=5, micro=1, seq=19, lr=2e-3, wd=0.0, clip=5.0, aux=0.05)),
    "experts8_top2": (config(vocab=61, hidden=27, layers=1, heads=6, kv_heads=3, head_dim=8,
                             experts=8, k=2, ff=10, eps=1e-6),
                      settings(batch=7, micro=3, seq=9, lr=3e-4, wd=0.5, clip=0.1, aux=0.01)),
    "experts6_top3": (config(vocab=33, hidden=15, layers=2, heads=7, kv_heads=1, head_dim=4,
                             experts=6, k=3, ff=17),
                      settings(batch=2, micro=2, seq=67, lr=1e-3, wd=0.1, clip=1.0, aux=0.0)),
}


def tokens(rng, vocab, n):
    """A stream that can be learnt: mostly each token fixes the next, as in a permutation."""
    after = rng.permutation(vocab)
    out = np.empty(n, np.uint16)
    out[0] = 0
    for i in range(1, n):
        out[i] = after[out[i - 1]] if rng.random() < 0.7 else rng.integers(vocab)
    return out


def call(reference, *args):
    return subprocess.run([sys.executable, reference, *map(str, args)], check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def train(reference, folder, run, dtype):
    out = call(reference, "train", folder / "config.json", folder / "model.safetensors",
               folder / "tokens.bin", "--steps", STEPS[dtype], "--dtype", dtype, "--threads", 1,
               *(x for key, value in run.items() for x in (f"--{key}", value)))
    lines = [json.loads(line) for line in out.splitlines()]
    return {v: [line[v] for line in lines] for v in VALUES}


def deviations(golden):
    """Of float32 from float64 (relative, steps compared), and of bfloat16 from float32."""
    d, f, b = (np.array(golden[t]["loss"]) for t in ("float64", "float32", "bfloat16"))
    single = np.abs(f[:COMPARED] / d[:COMPARED] - 1).max()
    half = np.abs(b - f)
    return single, half.mean(), half.max()


def make(reference, name, model, run):
    folder = HERE / name
    for seed in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(model, indent=2, sort_keys=True) + "\n")
        call(reference, "init", folder / "config.json", folder / "model.safetensors",
             "--seed", seed)
        n = STEPS["float64"] * run["batch"] * run["seq"] + 1
        tokens(np.random.default_rng(seed), model["vocab_size"], n).tofile(folder / "tokens.bin")
        golden = {dtype: train(reference, folder, run, dtype) for dtype in STEPS}
        single, mean, worst = deviations(golden)
        print(f"{name}: seed {seed}, loss {golden['float64']['loss'][0]:.4f} to "
              f"{golden['float64']['loss'][-1]:.4f}, float32 off by {single:.1e}, bfloat16 by "
              f"{mean:.1e} (mean), {worst:.1e} (worst)", flush=True)
        if single < 1e-6 and mean < 5e-3 and worst < 2.5e-2:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps the element types together")
    (folder / "golden.json").write_text(json.dumps(dict(**run, seed=seed, **golden)) + "\n")


if __name__ == "__main__":
    for run_name, (model_config, run_settings) in RUNS.items():
        make(sys.argv[1], run_name, model_config, run_settings)
