#!/usr/bin/python3
"""Writes a Hugging Face folder of OLMoE's shape with random bf16 weights, tensor by tensor.

By default it is OLMoE-1B-7B's: 6.9 billion parameters, 13.8 GB in four shards.  The weights have
the scale of initial ones, so routing is even and the text is noise; size, names and arithmetic are
those of the real model.

    tests/big_model.py --out FOLDER
    tests/big_model.py --out FOLDER --layers 2 --experts 8 --hidden 256
"""
import argparse
import json
import pathlib
import random
import struct

CHUNK = 1 << 24  # bytes of random numbers that are made at a time


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", required=True)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--inner", type=int, default=1024, help="inner width of an expert (default: %(default)s)")
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--experts", type=int, default=64)
    p.add_argument("--top-k", type=int, default=8)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--positions", type=int, default=4096)
    p.add_argument("--shards", type=int, default=4)
    p.add_argument("--embedding-scale", type=int, default=1, choices=[1, 4, 16, 64],
                   help="larger embeddings: with 16 tokens choose different experts, with 64 nearly all; else most choose alike")
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def config(o):
    return {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "torch_dtype": "bfloat16",
            "hidden_size": o.hidden, "intermediate_size": o.inner, "num_hidden_layers": o.layers,
            "num_attention_heads": o.heads, "num_key_value_heads": o.heads,
            "num_experts": o.experts, "num_experts_per_tok": o.top_k, "vocab_size": o.vocab,
            "max_position_embeddings": o.positions, "norm_topk_prob": False, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
            "router_aux_loss_coef": 0.01, "bos_token_id": None, "eos_token_id": None,
            "pad_token_id": 1, "initializer_range": 0.02, "use_cache": True}


def tensors(o):
    """(name, shape) in the order of the model."""
    yield "model.embed_tokens.weight", [o.vocab, o.hidden]
    for i in range(o.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", [o.hidden]
        for e in range(o.experts):
            yield p + f"mlp.experts.{e}.down_proj.weight", [o.hidden, o.inner]
            yield p + f"mlp.experts.{e}.gate_proj.weight", [o.inner, o.hidden]
            yield p + f"mlp.experts.{e}.up_proj.weight", [o.inner, o.hidden]
        yield p + "mlp.gate.weight", [o.experts, o.hidden]
        yield p + "post_attention_layernorm.weight", [o.hidden]
        for x in ("k_norm", "q_norm"):
            yield p + f"self_attn.{x}.weight", [o.hidden]
        for x in ("k_proj", "o_proj", "q_proj", "v_proj"):
            yield p + f"self_attn.{x}.weight", [o.hidden, o.hidden]
    yield "model.norm.weight", [o.hidden]
    yield "lm_head.weight", [o.vocab, o.hidden]


def elements(shape):
    n = 1
    for x in shape:
        n *= x
    return n


class Noise:
    """bf16 numbers of either sign between 2^-9 and 2^-4, as little-endian bytes: the low byte is
    random, the high one (sign and most of the exponent) is a random byte that a table maps."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.exponents = [59] * 60 + [60] * 60 + [61] * 8  # one more is four times the number

    def write(self, f, n, scale=1):
        more = {1: 0, 4: 1, 16: 2, 64: 3}[scale]
        table = bytes(e + more | s for s in (0, 128) for e in self.exponents)
        while n > 0:
            some = min(n, CHUNK // 2)
            block = bytearray(self.random.randbytes(2 * some))
            block[1::2] = block[1::2].translate(table)
            f.write(block)
            n -= some


def write_shard(path, items, noise, embedding_scale):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in items:
        end = at + 2 * elements(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in items:
            if len(shape) == 1:
                f.write(b"\x80\x3f" * shape[0])  # 1.0: a norm
            else:
                noise.write(f, elements(shape), embedding_scale if "embed" in name else 1)
    return at


def main():
    o = options()
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    items, noise = list(tensors(o)), Noise(o.seed)
    total = 2 * sum(elements(shape) for _, shape in items)
    shards, size = [[]], 0
    for item in items:
        if size >= total * len(shards) / o.shards:
            shards.append([])
        shards[-1].append(item)
        size += 2 * elements(item[1])
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        write_shard(out / name, shard, noise, o.embedding_scale)
    index = {"metadata": {"total_size": total},
             "weight_map": {t: name for name, shard in zip(names, shards) for t, _ in shard}}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (out / "config.json").write_text(json.dumps(config(o), indent=2))
    print(f"{out}: {total / 2e9:.2f} billion parameters, {total / 1e9:.2f} GB in {len(names)} files")


if __name__ == "__main__":
    main()
