"""Which tokenizer a model uses: its own or the one given, never a guess."""

import json
import os
import shutil

import ek_cli
from ek_cli import BAD_INPUT, DONE, run

GOLDEN = os.path.join(ek_cli.TEST_DATA, "golden", "tokenizers")


class Own(ek_cli.Case):
    """Models with and without a tokenizer of their own."""

    def setUp(self):
        super().setUp()
        self.text = ek_cli.write(self.path("a.txt"), "An even keel keeps a ship upright. " * 40)

    def refuse(self, words, *args):
        r = run(*args)
        self.assertEqual(r.returncode, BAD_INPUT, (args, r.stdout, r.stderr))
        for word in words:
            self.assertIn(word, r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1, r.stderr)

    def generate(self, model, *more):
        r = run("generate", "--model", model, "--prompt", "An", "--tokens", 3, "--quiet", *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return r.stdout

    def refuse_text(self, words, model):
        """What needs a tokenizer is refused; what needs none is not."""
        self.refuse(words, "generate", "--model", model, "--prompt", "x", "--tokens", 2)
        self.refuse(words, "eval", "--model", model, "--data", self.text)
        self.refuse(words, "train", "--model", model, "--data", self.text, "--out",
                    self.path("refused"), "--steps", 1, "--batch", 2, "--seq", 16)
        self.evaluate(model, self.data)
        self.generate(model, "--tokenizer", "bytes")

    def exported(self):
        """A folder with a model of token files: without tokenizer."""
        self.train("ids", steps=1)
        r = run("export", "--from", self.path("ids"), "--to", self.path("hf"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        return self.path("hf")

    def test_a_model_of_token_files_has_none(self):
        self.train("ids", steps=1)
        self.refuse_text(["no tokenizer.json", "--tokenizer"], self.path("ids"))

    def test_a_tokenizer_that_is_no_file_is_named(self):
        folder = self.exported()
        file = os.path.join(folder, "tokenizer.json")
        os.symlink("blobs/none", file)
        self.refuse_text(["tokenizer.json", "link", "--tokenizer"], folder)
        os.unlink(file)
        os.mkdir(file)
        self.refuse_text(["tokenizer.json", "not a regular file"], folder)
        os.rmdir(file)
        os.mkfifo(file)
        self.refuse_text(["tokenizer.json", "not a regular file"], folder)

    def test_other_tokenizer_files_are_named(self):
        folder = self.exported()
        other = ek_cli.write(os.path.join(folder, "tokenizer.model"), b"\x0a\x0e")
        self.refuse_text(["tokenizer.model", "AutoTokenizer", "--tokenizer"], folder)
        self.refuse(["tokenizer.model", "AutoTokenizer"], "generate", "--model", folder, "--prompt",
                    "x", "--tokenizer", other)

    def test_texts_need_one_unless_a_preset_is_trained(self):
        more = ["--data", self.text, "--out", self.path("r"), "--steps", 1, "--batch", 2, "--seq",
                16, "--quiet"]
        self.refuse(["config.json", "--tokenizer"], "train", "--model", self.config, *more)
        r = run("train", "--model", "tiny", *more)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.generate(self.path("r"))
        self.evaluate(self.path("r"), self.text)

    def test_bytes_that_were_said_are_kept(self):
        self.train("said", data=self.text, steps=1)
        self.generate(self.path("said"))
        self.train("next", "--model", self.path("said"), steps=1)  # token files need none
        self.generate(self.path("next"))

    def test_a_vocabulary_larger_than_the_models_is_refused(self):
        self.train("said", data=self.text, steps=1)
        gpt2 = os.path.join(GOLDEN, "gpt2.json")
        self.refuse(["800", "300"], "generate", "--model", self.path("said"), "--prompt", "x",
                    "--tokenizer", gpt2)
        folder = self.exported()
        shutil.copy(gpt2, os.path.join(folder, "tokenizer.json"))
        self.refuse(["800", "300"], "generate", "--model", folder, "--prompt", "x")

    def test_weights_that_are_no_file_are_not_drawn_at_random(self):
        folder = self.exported()
        file = os.path.join(folder, "model.safetensors")
        os.unlink(file)
        os.symlink("blobs/none", file)
        self.refuse(["model.safetensors"], *self.train_args("again", "--model", folder, "--quiet"))
        os.unlink(file)
        for other in ("pytorch_model.bin", "model-00001-of-00002.safetensors", "model.gguf"):
            path = ek_cli.write(os.path.join(folder, other), "x")
            self.refuse([other, "--init"], *self.train_args("again", "--model", folder, "--quiet"))
            os.unlink(path)


class Characters(ek_cli.Case):
    """SentencePiece-style BPE with byte fallback, as Mixtral has it."""

    def test_trains_evaluates_and_writes_text(self):
        file = os.path.join(GOLDEN, "mixtral.json")
        config = ek_cli.write_config(self.path("config.json"), vocab_size=1000, eos_token_id=2,
                                     bos_token_id=1)
        text = ek_cli.write(self.path("a.txt"), "The experts\u2019 caf\u00e9: \U0001f600 yes.\n" * 9)
        self.train("run", "--model", config, "--tokenizer", file, data=text, steps=2)
        self.evaluate(self.path("run"), text)
        for prompt in ("The experts", "caf\u00e9 \U0001f600", " ", "\n"):
            r = run("generate", "--model", self.path("run"), "--prompt", prompt, "--tokens", 20,
                    "--quiet")
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertTrue(r.stdout.startswith(prompt))
            self.assertNotIn("\u2581", r.stdout)
            self.assertNotIn("<0x", r.stdout)

    def test_a_text_without_prompt_begins_without_the_space(self):
        config = ek_cli.write_config(self.path("config.json"), vocab_size=1000, bos_token_id=1)
        file = os.path.join(GOLDEN, "mixtral.json")
        self.train("run", "--model", config, "--tokenizer", file, "--lr", 0.02, data=ek_cli.write(
            self.path("a.txt"), " " * 3000), steps=60)  # learns nothing but spaces
        r = run("generate", "--model", self.path("run"), "--prompt-file",
                ek_cli.write(self.path("empty"), ""), "--tokens", 6, "--temperature", 0, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(r.stdout, " " * 5 + "\n")


class Beside(ek_cli.Case):
    """The files beside a tokenizer.json that other tools read."""

    NAMES = ["chat_template.jinja", "generation_config.json", "special_tokens_map.json",
             "tokenizer_config.json"]

    def load(self, folder, name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)

    def export(self, source, to):
        r = run("export", "--from", source, "--to", self.path(to))
        self.assertEqual(r.returncode, DONE, r.stderr)
        return self.path(to)

    def test_what_is_known_is_written(self):
        config = ek_cli.write_config(self.path("config.json"), vocab_size=1000, bos_token_id=1)
        text = ek_cli.write(self.path("a.txt"), "An even keel. " * 60)
        self.train("run", "--model", config, "--tokenizer", os.path.join(GOLDEN, "mixtral.json"),
                   data=text, steps=1)
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        made = self.export(self.path("run"), "hf")
        for folder in ek_cli.newest(self.path("run")), made:
            self.assertEqual(self.load(folder, "special_tokens_map.json"), tokens)
            c = self.load(folder, "tokenizer_config.json")
            self.assertEqual({k: c[k] for k in tokens}, tokens)
            self.assertEqual(c["model_max_length"], 64)
            g = self.load(folder, "generation_config.json")
            # the config's 256 is no special token of this tokenizer: documents end with </s>
            self.assertEqual((g["bos_token_id"], g["eos_token_id"]), (1, 2))
            self.assertNotIn("chat_template.jinja", os.listdir(folder))
        self.assertEqual(self.load(made, "config.json")["eos_token_id"], 2)

    def test_what_the_model_came_with_goes_along(self):
        text = ek_cli.write(self.path("a.txt"), "An even keel. " * 60)
        self.train("first", data=text, steps=1)
        source = self.export(self.path("first"), "source")
        given = {name: ("own %s \u00e9" % name).encode() for name in self.NAMES}
        for name, data in given.items():
            ek_cli.write(os.path.join(source, name), data)
        self.train("second", "--model", source, steps=1)
        again = self.export(self.path("second"), "again")
        for folder in ek_cli.newest(self.path("second")), again:
            self.assertEqual({n: ek_cli.read(os.path.join(folder, n)) for n in self.NAMES}, given)
        # another tokenizer brings its own, and the model's say nothing of it
        self.train("third", "--model", source, "--tokenizer", "bytes", steps=1)
        other = self.export(self.path("third"), "other")
        self.assertEqual(self.load(other, "generation_config.json")["eos_token_id"], 256)
        self.assertNotIn("chat_template.jinja", os.listdir(other))


class Holes(ek_cli.Case):
    def test_ids_without_a_token_are_never_drawn(self):
        """Of 300 ids, 257 and the last one have tokens; a text of 300 tokens is drawn evenly."""
        text = ek_cli.write(self.path("a.txt"), "holes " * 100)
        self.train("run", "--lr", 0, data=text, steps=1)
        own = os.path.join(ek_cli.newest(self.path("run")), "tokenizer.json")
        with open(own, encoding="utf-8") as f:
            tokenizer = json.load(f)
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 299,
                                          "content": "<|last|>"})
        file = ek_cli.write(self.path("holes.json"), json.dumps(tokenizer))
        for seed in range(4):
            r = run("generate", "--model", self.path("run"), "--prompt", "h", "--tokens", 60,
                    "--temperature", 9, "--top-p", 1, "--seed", seed, "--tokenizer", file)
            self.assertEqual(r.returncode, DONE, r.stderr)


if __name__ == "__main__":
    ek_cli.main()
