"""evenkeel eval and export: losses against those of training, exported folders byte for byte."""

import json
import math
import os
import re
import struct

import ek_cli
from ek_cli import DONE, losses, run, safetensors, write_tokens

MODELS = os.path.join(ek_cli.TEST_DATA, "golden", "models")


def stored(folder):
    """All tensors of a model folder, sharded or not."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"model.*\.safetensors", name):
            tensors.update(safetensors(os.path.join(folder, name)))
    return tensors


def per_expert(tensors):
    """Grouped expert tensors [experts, ...] taken apart into the names of single experts."""
    flat = {}
    for name, (dtype, shape, data) in tensors.items():
        if len(shape) != 3:
            flat[name] = (dtype, shape, data)
            continue
        each = len(data) // shape[0]
        size = each // (shape[1] * shape[2])
        for e in range(shape[0]):
            part = data[e * each:(e + 1) * each]
            if name.endswith("gate_up_proj"):
                half = shape[1] // 2
                cut = half * shape[2] * size
                stem = name[:-len("gate_up_proj")] + "%d." % e
                flat[stem + "gate_proj.weight"] = (dtype, (half, shape[2]), part[:cut])
                flat[stem + "up_proj.weight"] = (dtype, (half, shape[2]), part[cut:])
            else:
                stem = name[:-len("down_proj")] + "%d." % e
                flat[stem + "down_proj.weight"] = (dtype, shape[1:], part)
    return flat


class Eval(ek_cli.Case):
    def test_is_the_loss_of_training(self):
        """With a learning rate of 0, training sees the same loss on the same windows."""
        data = write_tokens(self.path("short.bin"), ek_cli.token_ids(4 * 16 + 1))
        for dtype, tolerance in (("fp64", 1e-12), ("fp32", 1e-6), ("bf16", 2e-3)):
            self.train("run", "--lr", 0, "--data-order", "sequential", data=data, dtype=dtype,
                       steps=1)
            e = self.evaluate(self.path("run"), data, dtype=dtype)
            self.assert_close([e["loss"]], losses(self.path("run")), tolerance)
            self.assert_close([e["perplexity"]], [math.exp(e["loss"])], 1e-12)
            self.assertEqual(e["tokens"], 64)

    def test_ragged_tail(self):
        """The last window is weighted by its tokens."""
        self.train("run", steps=1)
        ids = ek_cli.token_ids(3 * 16 + 16)
        sums = {}
        for n in (2, 9, 17, 18, 3 * 16 + 1, 3 * 16 + 2, 3 * 16 + 10):
            e = self.evaluate(self.path("run"), write_tokens(self.path("d.bin"), ids[:n]))
            self.assertEqual(e["tokens"], n - 1)
            sums[n] = e["loss"] * (n - 1)
        # the tail by itself, its first token being the input after the last whole window
        tail = self.evaluate(self.path("run"),
                             write_tokens(self.path("d.bin"), ids[48:58]))
        self.assertEqual(tail["tokens"], 9)
        self.assert_close([sums[58] - sums[49]], [tail["loss"] * 9], 1e-11)

    def test_many_windows(self):
        """More windows than one evaluation batch, compared with one at a time."""
        self.train("run", steps=1)
        ids = ek_cli.token_ids(300 * 16 + 5)
        whole = self.evaluate(self.path("run"), write_tokens(self.path("d.bin"), ids))
        self.assertEqual(whole["tokens"], 300 * 16 + 4)
        parts = 0.0
        for at in range(0, len(ids) - 1, 100 * 16):
            e = self.evaluate(self.path("run"),
                              write_tokens(self.path("p.bin"), ids[at:at + 1601]))
            parts += e["loss"] * e["tokens"]
        self.assert_close([whole["loss"] * whole["tokens"]], [parts], 1e-12)

    def test_loads(self):
        self.train("run", steps=1)
        e = self.evaluate(self.path("run"), self.data)
        self.assertEqual([len(layer) for layer in e["expert_load"]], [4, 4])
        self.assertEqual([sum(layer) for layer in e["expert_load"]], [1499 * 2] * 2)

    def test_text(self):
        self.train("run", steps=1)
        text = ek_cli.write(self.path("a.txt"), "An even keel. " * 40)
        ids = write_tokens(self.path("a.bin"), list(("An even keel. " * 40).encode()) + [256])
        self.assertEqual(self.evaluate(self.path("run"), text, "--tokenizer", "bytes"),
                         self.evaluate(self.path("run"), ids))

    def test_an_infinite_perplexity_is_null_in_json(self):
        self.train("run", steps=1)
        r = run("export", "--from", self.path("run"), "--to", self.path("hf"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        file = self.path("hf", "model.safetensors")
        tensors = safetensors(file)
        dtype, shape, data = tensors["lm_head.weight"]
        weights = struct.unpack("<%df" % (len(data) // 4), data)
        tensors["lm_head.weight"] = dtype, shape, struct.pack("<%df" % len(weights),
                                                              *(w * 1e6 for w in weights))
        ek_cli.write_safetensors(file, tensors)
        e = self.evaluate(self.path("hf"), self.data)
        self.assertGreater(e["loss"], 1000)
        self.assertIsNone(e["perplexity"])

    def test_words(self):
        self.train("run", steps=1)
        r = run("eval", "--model", self.path("run"), "--data", self.data, "--dtype", "fp64")
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        e = self.evaluate(self.path("run"), self.data, "--seq", 64)  # the default: all positions
        self.assertIn("loss %.6f" % e["loss"], r.stdout)
        self.assertIn("1499 tokens", r.stdout)
        self.assertEqual(r.stdout.count("layer "), 2)


class Export(ek_cli.Case):
    def export(self, source, name, *more):
        r = run("export", "--from", source, "--to", self.path(name), *more)
        self.assertEqual((r.returncode, r.stdout, r.stderr),
                         (DONE, "model: %s\n" % self.path(name), ""))
        return self.path(name)

    def test_round_trip(self):
        for name in sorted(os.listdir(MODELS)):
            with self.subTest(model=name):
                source = os.path.join(MODELS, name)
                made = self.export(source, name)
                self.assertEqual(sorted(os.listdir(made)), [
                    "config.json", "generation_config.json", "model.safetensors"])
                want, got = per_expert(stored(source)), per_expert(stored(made))
                self.assertEqual(sorted(map(self.canonical, want)), sorted(map(self.canonical, got)))
                by_name = {self.canonical(k): v for k, v in got.items()}
                for key, value in want.items():
                    self.assertEqual(by_name[self.canonical(key)], value, key)
                again = self.export(made, name + "-again")
                self.assertEqual(ek_cli.tree(again), ek_cli.tree(made))
                data = write_tokens(self.path("d.bin"), ek_cli.token_ids(100, vocab=60))
                self.assertEqual(self.evaluate(source, data), self.evaluate(made, data))

    @staticmethod
    def canonical(name):
        """Mixtral's names of the same tensors, old and new."""
        for old, new in ((".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."),
                         (".w2.", ".down_proj."), (".w3.", ".up_proj.")):
            name = name.replace(old, new)
        return name

    def test_of_a_run(self):
        """From the run's folder, its checkpoint folder, a step's: the newest, and older ones."""
        self.train("run", "--save-every", 2, steps=4)
        run_folder = self.path("run")
        newest = ek_cli.newest(run_folder)
        made = self.export(run_folder, "a")
        self.assertEqual(ek_cli.tree(made), ek_cli.tree(self.export(self.path("run", "checkpoint"), "b")))
        self.assertEqual(ek_cli.tree(made), ek_cli.tree(self.export(newest, "c")))
        self.assertEqual(ek_cli.tree(made), ek_cli.tree(self.export(run_folder + "/", "d/")))
        self.assertEqual(stored(made), stored(newest))
        older = os.path.join(run_folder, "checkpoint", "step-00000002")
        self.assertEqual(stored(self.export(older, "e")), stored(older))
        self.assertNotEqual(stored(older), stored(newest))
        self.assertEqual(self.evaluate(made, self.data), self.evaluate(run_folder, self.data))
        self.assertEqual(sorted(n for n in os.listdir(self.folder) if "tmp" in n), [])

    def test_dtype(self):
        self.train("run", steps=1)
        short = self.export(self.path("run"), "short", "--dtype", "bf16")
        with open(os.path.join(short, "config.json")) as f:
            self.assertEqual(json.load(f)["torch_dtype"], "bfloat16")
        wide = stored(self.export(self.path("run"), "wide", "--dtype", "fp32"))
        for name, (dtype, shape, data) in stored(short).items():
            self.assertEqual((dtype, shape), ("BF16", wide[name][1]))
            for i in range(0, len(data) // 2, 97):  # round to nearest even
                bits = int.from_bytes(wide[name][2][4 * i:4 * i + 4], "little")
                bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
                self.assertEqual(int.from_bytes(data[2 * i:2 * i + 2], "little"), bits)
        self.assertEqual(ek_cli.tree(self.export(short, "again")), ek_cli.tree(short))

    def test_tokenizer_goes_along(self):
        source = os.path.join(ek_cli.TEST_DATA, "golden", "tokenizers", "gpt2.json")
        config = ek_cli.write_config(self.path("config.json"), vocab_size=1000, eos_token_id=0)
        text = ek_cli.write(self.path("a.txt"), "An even keel. " * 200)
        self.train("run", "--model", config, "--tokenizer", source, data=text, steps=2)
        made = self.export(self.path("run"), "hf")
        with open(source, encoding="utf-8") as a:
            with open(os.path.join(made, "tokenizer.json"), encoding="utf-8") as b:
                self.assertEqual(json.load(a)["model"], json.load(b)["model"])
        a, b = self.evaluate(self.path("run"), text), self.evaluate(made, text)
        self.assertEqual(a, b)
        self.train("next", "--model", made, data=text, steps=1)


if __name__ == "__main__":
    ek_cli.main()
