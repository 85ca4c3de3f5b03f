"""transformers loads an exported folder and a checkpoint; skipped if it is not installed.

Needs: pip install transformers (and torch for the pipeline)."""

import json
import os

import ek_cli
from ek_cli import DONE, run

try:
    import transformers
except ImportError:
    transformers = None
try:
    import torch
except ImportError:
    torch = None

GOLDEN = os.path.join(ek_cli.TEST_DATA, "golden", "tokenizers")
TEXTS = ["An even keel.", " a  b\n", "caf\u00e9 \U0001f600 \u4e13\u5bb6", "x\x00\x7f\u00ff", "<s>a</s>"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


class Transformers(ek_cli.Case):
    def setUp(self):
        super().setUp()
        if transformers is None:
            self.skipTest("no transformers")
        transformers.logging.set_verbosity_error()
        self.text = ek_cli.write(self.path("a.txt"), "An even keel, a caf\u00e9. " * 60)

    def export(self, run_name):
        to = self.path(run_name + "-hf")
        r = run("export", "--from", self.path(run_name), "--to", to)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return to

    def model(self, name, tokenizer, **config):
        file = ek_cli.write_config(self.path("config.json"), vocab_size=1000, **config)
        self.train(name, "--model", file, "--tokenizer", tokenizer, data=self.text, steps=2)
        return self.export(name)

    def check(self, folder, eos, bos=None):
        t = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual((t.eos_token, t.bos_token), (eos, bos))
        self.assertEqual(t.model_max_length, 64)
        g = transformers.GenerationConfig.from_pretrained(folder)
        self.assertEqual(g.eos_token_id, t.eos_token_id)
        c = transformers.AutoConfig.from_pretrained(folder)
        self.assertEqual(c.eos_token_id, t.eos_token_id)
        return t

    def test_bytes(self):
        for folder in self.model("run", "bytes"), ek_cli.newest(self.path("run")):
            t = self.check(folder, "<|endoftext|>")
            for text in TEXTS:
                ids = t(text, add_special_tokens=False).input_ids
                self.assertEqual(ids, list(text.encode()))
                self.assertEqual(t.decode(ids), text)
            self.assertEqual(t("a<|endoftext|>").input_ids, [97, 256])

    def test_tokenizer_files(self):
        import tokenizers  # pylint: disable=import-outside-toplevel,import-error
        for name, eos, bos in (("gpt2", "<|endoftext|>", None), ("mixtral", "</s>", "<s>"),
                               ("mistral_first", "</s>", "<s>")):
            file = os.path.join(GOLDEN, name + ".json")
            ids = {"bos_token_id": 1 if bos else None, "eos_token_id": 2 if bos else 256}
            t = self.check(self.model(name, file, **ids), eos, bos)
            own = tokenizers.Tokenizer.from_file(file)
            for text in TEXTS:
                self.assertEqual(t(text, add_special_tokens=False).input_ids,
                                 own.encode(text, add_special_tokens=False).ids, (name, text))

    def test_chat_template_and_files_go_along(self):
        folder = self.model("first", os.path.join(GOLDEN, "mixtral.json"), bos_token_id=1,
                            eos_token_id=2)
        t = transformers.AutoTokenizer.from_pretrained(folder)
        t.chat_template = TEMPLATE
        t.pad_token = "<unk>"
        t.save_pretrained(folder)
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump({"temperature": 0.5, "do_sample": True, "eos_token_id": 2}, f)
        self.train("second", "--model", folder, steps=1)
        t = transformers.AutoTokenizer.from_pretrained(self.export("second"))
        self.assertEqual(t.pad_token, "<unk>")
        self.assertEqual(t.apply_chat_template([{"role": "user", "content": "hi"}],
                                               tokenize=False), "<user>hi")
        g = transformers.GenerationConfig.from_pretrained(self.path("second-hf"))
        self.assertEqual(g.temperature, 0.5)

    def test_pipeline(self):
        if torch is None:
            self.skipTest("no torch")
        folder = self.model("run", os.path.join(GOLDEN, "mixtral.json"), bos_token_id=1,
                            eos_token_id=2)
        p = transformers.pipeline("text-generation", model=folder, device="cpu")
        text = p("An even", max_new_tokens=5, do_sample=False)[0]["generated_text"]
        self.assertTrue(text.startswith("An even"), text)


if __name__ == "__main__":
    ek_cli.main()
