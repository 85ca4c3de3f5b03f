#!/usr/bin/env python3
"""Checks that Hugging Face transformers reads what evenkeel exports.
Needs: pip install torch transformers safetensors.  The tests never run this script.

  check_export.py EXPORTED GOLDEN

EXPORTED is a folder with config.json and model.safetensors; GOLDEN is the folder of
tests/golden/models that the model came from.  No tensor may be missing or unexpected, and the
logits, computed in float32, must be those of GOLDEN.  Exit status 0 or 1.
"""
import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers

BOUND = 1e-5  # of the largest logit of a row


def main(exported, golden):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(map(str, names)) for key, names in info.items() if names}
    ids = torch.tensor(json.loads((golden / "golden.json").read_text())["ids"])
    want = safetensors.torch.load_file(golden / "golden.safetensors")["logits"]
    with torch.no_grad():
        got = model(input_ids=ids[:, :-1], use_cache=False).logits
    apart = float(((got - want).abs().amax(-1) / want.abs().amax(-1)).max())
    print(f"{exported}: {type(model).__name__}, logits {apart:.1e} apart "
          f"(allowed {BOUND:.0e}){f', {wrong}' if wrong else ''}")
    return 0 if apart <= BOUND and not wrong else 1


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    sys.exit(main(*map(pathlib.Path, sys.argv[1:3])))
