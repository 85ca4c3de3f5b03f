#!/usr/bin/env python3
"""Makes tests/golden/rope.json: rotary frequencies and attention factors as Hugging Face
transformers computes them, in float64, for rope scaling settings of published models and for edge
cases.  Needs: pip install torch transformers.  The tests read the file that is kept here.

A list of objects: config (keys of a config.json), length (of the sequence), inv_freq
[head_dim / 2] and attention_factor.
"""
import json
import pathlib

import torch
import transformers
import transformers.modeling_rope_utils as rope_utils

from make_models import Doubled

LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}
DEEPSEEK = {"rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}
GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
           "truncate": False, "original_max_position_embeddings": 4096}
QWEN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = [  # theta, head_dim, max_position_embeddings, length, rope_scaling
    (1e4, 128, 4096, 4096, {"rope_type": "linear", "factor": 4.0}),
    (1e6, 64, 4096, 100, {"rope_type": "linear", "factor": 1.0}),
    (1e4, 128, 4096, 4096, {"rope_type": "dynamic", "factor": 2.0}),
    (1e4, 128, 4096, 4097, {"rope_type": "dynamic", "factor": 2.0}),
    (1e4, 128, 4096, 100, {"rope_type": "dynamic", "factor": 8.0}),
    (1e4, 64, 2048, 16384, {"rope_type": "dynamic", "factor": 8.0}),
    (5e5, 128, 131072, 1, LLAMA31),
    (5e5, 64, 131072, 1, {**LLAMA31, "factor": 32.0}),
    (1e4, 32, 256, 1, {**LLAMA31, "original_max_position_embeddings": 64}),
    (1e6, 128, 131072, 1, QWEN),
    (1e4, 64, 163840, 1, DEEPSEEK),
    (1.5e5, 64, 131072, 1, GPT_OSS),
    (1e6, 128, 131072, 1, {**QWEN, "attention_factor": 1.25}),
    (1e6, 128, 131072, 1, {**QWEN, "mscale": 0.8}),
    (1e4, 128, 8192, 1, {**QWEN, "factor": 1.0, "original_max_position_embeddings": 8192}),
    (1e4, 16, 64, 1, {**QWEN, "original_max_position_embeddings": 4}),
    (1e4, 16, 64, 1, {**QWEN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False,
                      "original_max_position_embeddings": 16}),
]


def case(theta, head_dim, positions, length, scaling):
    keys = dict(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
                max_position_embeddings=positions)
    config = transformers.MixtralConfig(**keys, rope_parameters={"rope_theta": theta, **scaling})
    inv_freq, factor = rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        config, seq_len=length)
    assert inv_freq.dtype == torch.float64
    return dict(config=dict(keys, model_type="mixtral", vocab_size=8, num_hidden_layers=1,
                            num_key_value_heads=2, intermediate_size=8, num_local_experts=2,
                            rope_theta=theta, rope_scaling=scaling),
                length=length, inv_freq=inv_freq.tolist(), attention_factor=factor)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_default_dtype(torch.float64)
    rope_utils.torch = Doubled()
    torch.Tensor.float = torch.Tensor.double
    out = pathlib.Path(__file__).resolve().parent / "rope.json"
    cases = [case(*c) for c in CASES]
    out.write_text("[" + ",\n ".join(json.dumps(c) for c in cases) + "]\n")
    print(f"{len(cases)} cases, {out.stat().st_size} bytes, transformers "
          f"{transformers.__version__}")
