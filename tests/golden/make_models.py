#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models of each family as Hugging Face transformers
writes and computes them.  Needs: pip install torch transformers safetensors.  The tests read the
files that are kept here and never run this script.

Each folder holds config.json and model.safetensors (or shards with an index) as save_pretrained
leaves them, and the answers:
  golden.json         ids [2][T+1] (the last T of a row are the targets of the first T), loss (mean
                      cross entropy in nats), grad_norm (name -> L2 norm of the loss gradient,
                      under per-expert names whatever the file's layout), total_grad_norm, and
                      margin (smallest gap between the router logits of the last expert chosen and
                      the first one not chosen)
  golden.safetensors  logits [2][T][vocab] (F32); with rope scaling also cached [T][vocab], those
                      of the first row as generation gets them: CACHED tokens at once, then one by
                      one, with the keys that were cached

Everything is computed in float64.  The modeling code casts some values to float32 by name; while
it runs, those names mean float64, and a dispatch hook makes sure that no float32 value is left.
Seeds are tried until no routing decision is nearly tied, so single precision must agree.
"""
import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers
import transformers.modeling_rope_utils
from torch.utils._python_dispatch import TorchDispatchMode

ROWS, TOKENS, MARGIN, CACHED = 2, 24, 0.01, 5
HERE = pathlib.Path(__file__).resolve().parent / "models"
COMMON = dict(vocab_size=72, num_hidden_layers=2, max_position_embeddings=64, bos_token_id=None,
              eos_token_id=None, pad_token_id=None, initializer_range=0.2)


def rope_model(rope, **more):
    return transformers.MixtralConfig(
        **{**COMMON, **more}, hidden_size=24, num_attention_heads=3, num_key_value_heads=1,
        head_dim=12, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_theta": 1e3, **rope})


MODELS = {
    "mixtral": transformers.MixtralConfig(
        **COMMON, hidden_size=32, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=12, num_local_experts=5, num_experts_per_tok=2),
    "mixtral_grouped": transformers.MixtralConfig(
        **COMMON, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=12, num_local_experts=4, num_experts_per_tok=1),
    "mixtral_sharded_bf16": transformers.MixtralConfig(
        **COMMON, hidden_size=24, num_attention_heads=6, num_key_value_heads=3,
        intermediate_size=12, num_local_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-6),
    "olmoe": transformers.OlmoeConfig(
        **COMMON, hidden_size=36, num_attention_heads=3, num_key_value_heads=1,
        intermediate_size=12, num_experts=6, num_experts_per_tok=3),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **COMMON, hidden_size=24, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=20, moe_intermediate_size=12, shared_expert_intermediate_size=20,
        num_experts=5, num_experts_per_tok=2),
    "qwen2_moe_dense": transformers.Qwen2MoeConfig(
        **{**COMMON, "num_hidden_layers": 4}, hidden_size=24, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=14, moe_intermediate_size=12,
        shared_expert_intermediate_size=6, num_experts=4, num_experts_per_tok=2,
        decoder_sparse_step=2, mlp_only_layers=[1], norm_topk_prob=True),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **COMMON, hidden_size=28, num_attention_heads=5, num_key_value_heads=1, head_dim=8,
        intermediate_size=40, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=3,
        norm_topk_prob=True, tie_word_embeddings=True),
    "qwen3_moe_grouped": transformers.Qwen3MoeConfig(
        **COMMON, hidden_size=24, num_attention_heads=3, num_key_value_heads=3, head_dim=6,
        intermediate_size=40, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2),
    # sequences of 24 tokens are longer than the original positions, but for olmoe_dynamic
    "mixtral_linear": rope_model({"rope_type": "linear", "factor": 3.0}),
    "mixtral_dynamic": rope_model(
        {"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=12),
    "olmoe_dynamic": transformers.OlmoeConfig(
        **COMMON, hidden_size=24, num_attention_heads=3, num_key_value_heads=1,
        intermediate_size=12, num_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}),
    "mixtral_llama3": rope_model(
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16}),
    "mixtral_yarn": rope_model(
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0,
         "original_max_position_embeddings": 16}),
    "mixtral_yarn_mscale": rope_model(
        {"rope_type": "yarn", "factor": 8.0, "beta_fast": 2.0, "beta_slow": 0.5, "mscale": 1.0,
         "mscale_all_dim": 0.7, "truncate": False, "original_max_position_embeddings": 8}),
    "qwen3_moe_yarn": transformers.Qwen3MoeConfig(
        **COMMON, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=40, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "beta_fast": 3.0,
                         "attention_factor": 1.3, "original_max_position_embeddings": 16}),
}


class Doubled:
    """Stands for the torch module inside modeling code: float32 means float64."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class OnlyDouble(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor) and t.dtype in (torch.float32, torch.bfloat16):
                raise RuntimeError(f"{func} computed in {t.dtype}")
        return out


def random_weights(model, seed, dtype):
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            w = 0.2 * torch.randn(p.shape, generator=gen, dtype=torch.float64)
            p.copy_((1 + w if "norm" in name else w).to(dtype))


def routing_margin(model, logits):
    k = model.config.num_experts_per_tok
    top = torch.cat([x.detach() for x in logits]).sort(-1, descending=True).values
    return float((top[:, k - 1] - top[:, k]).min())


def per_expert(model, name, grad):
    """A parameter's gradient under the names of the per-expert layout."""
    mixtral = model.config.model_type == "mixtral"
    name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
    if not name.endswith((".gate_up_proj", "experts.down_proj")):
        return {name: grad}
    base, kind = name.rsplit(".", 1)
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for e, g in enumerate(grad):
        if kind == "down_proj":
            out[f"{base}.{e}.{down}.weight"] = g
        else:
            out[f"{base}.{e}.{gate}.weight"], out[f"{base}.{e}.{up}.weight"] = g.chunk(2)
    return out


def cached_logits(model, ids):
    """Logits [T][vocab] of a text that is continued, with the state of rotary embeddings new."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config)
    rows, cache = [], transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        for part in [ids[:CACHED], *ids[CACHED:-1].split(1)]:
            out = model(input_ids=part[None], past_key_values=cache, use_cache=True)
            rows.append(out.logits[0])
    model.model.rotary_emb = rotary
    return torch.cat(rows)


def answers(model, ids):
    model = model.double()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # again, in double
    logits_of_routers = []
    for m in model.modules():
        if type(m).__name__.endswith("TopKRouter"):
            m.register_forward_hook(lambda _m, _i, out: logits_of_routers.append(out[0]))
    with OnlyDouble():
        cached = None
        if model.model.rotary_emb.rope_type != "default":
            cached = cached_logits(model, ids[0])
        logits_of_routers.clear()
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    grads = {}
    for name, p in model.named_parameters():
        grads.update(per_expert(model, name, p.grad))
    norms = {n: float(g.norm()) for n, g in sorted(grads.items())}
    return {"logits": logits} if cached is None else {"logits": logits, "cached": cached}, dict(
        transformers=transformers.__version__, ids=ids.tolist(), loss=loss.item(),
        total_grad_norm=sum(x * x for x in norms.values()) ** 0.5, grad_norm=norms,
        margin=routing_margin(model, logits_of_routers))


def make(name, config):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    dtype = torch.bfloat16 if "bf16" in name else torch.float32
    for seed in range(1000):
        model = transformers.AutoModelForCausalLM.from_config(
            config, experts_implementation="eager", attn_implementation="eager", dtype=dtype)
        random_weights(model, seed, dtype)
        ids = torch.randint(config.vocab_size, (ROWS, TOKENS + 1),
                            generator=torch.Generator().manual_seed(seed))
        model.save_pretrained(folder, save_original_format="grouped" not in name,
                              max_shard_size="20KB" if "sharded" in name else "1GB")
        code = sys.modules[type(model).__module__]
        code.torch, plain_float = Doubled(), torch.Tensor.float
        transformers.modeling_rope_utils.torch = code.torch
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = torch.Tensor.double
        try:
            logits, golden = answers(model, ids)
        finally:
            code.torch, torch.Tensor.float = torch, plain_float
            transformers.modeling_rope_utils.torch = torch
            torch.set_default_dtype(torch.float32)
        if golden["margin"] >= MARGIN:
            break
        shutil.rmtree(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    safetensors.torch.save_file({k: x.detach().float() for k, x in logits.items()},
                                folder / "golden.safetensors")
    for f in folder.iterdir():
        f.chmod(0o644)
    print(f"{name}: seed {seed}, loss {golden['loss']:.6f}, margin {golden['margin']:.4f}, "
          f"{sum(f.stat().st_size for f in folder.iterdir())} bytes")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for n, c in MODELS.items():
        if len(sys.argv) < 2 or n in sys.argv[1:]:
            make(n, c)
