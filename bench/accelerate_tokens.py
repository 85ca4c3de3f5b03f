#!/usr/bin/python3
"""Times transformers over given tokens, with accelerate's disk offload where a model does not fit (bench/compare_inference.py).

    accelerate_tokens.py FOLDER RESIDENT OFFLOAD-FOLDER THREADS PROMPT < ids

Layers beyond RESIDENT bytes are written to OFFLOAD-FOLDER, if they are stored in another form than in FOLDER, and read from the disk
each time they are used.  Otherwise as llama_tokens.c.
"""
import os
import pathlib
import sys
import time

import torch
import transformers


def device_map(config, resident):
    """As many layers as resident bytes have room for are in memory, the last ones on disk."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    def size(m):
        return sum(p.numel() * p.element_size() for p in m.parameters())

    left = resident - size(model) + size(model.model.layers)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    for i, layer in enumerate(model.model.layers):
        left -= size(layer)
        places[f"model.layers.{i}"] = "cpu" if left >= 0 else "disk"
    return places


def main():
    folder, resident, offload, threads, prompt = sys.argv[1:]
    torch.set_num_threads(int(threads))
    ids = torch.tensor([[int(x) for x in sys.stdin.read().split()]])
    n = int(prompt)
    places = device_map(transformers.AutoConfig.from_pretrained(folder), float(resident))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=places, offload_folder=offload).eval()
    for f in [*pathlib.Path(folder).glob("*.safetensors"), *pathlib.Path(offload).glob("*.dat")]:
        with open(f, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print("opened", flush=True)
    with torch.inference_mode():
        start = time.monotonic()
        past = model(ids[:, :n], use_cache=True, logits_to_keep=1).past_key_values
        print(f"prompt {n} {time.monotonic() - start:.6f}", flush=True)
        start = time.monotonic()
        for i in range(n, ids.shape[1]):
            past = model(ids[:, i:i + 1], past_key_values=past, use_cache=True).past_key_values
            print(f"token {i - n + 1} {time.monotonic() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
