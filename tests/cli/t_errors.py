"""Bad input: one message that names the problem and its place, the documented exit status, and no
new files."""

import contextlib
import json
import math
import os
import shutil
import struct
import subprocess
import unittest

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, USAGE, run, write


class Refused(ek_cli.Case):
    def refuse(self, status, words, args):
        """The command ends with `status` and one message that holds all of `words`."""
        before = ek_cli.tree(self.folder)
        r = run(*args, env={**os.environ, "TMPDIR": self.folder})
        said = "%s: status %d: %s" % (" ".join(map(str, args)), r.returncode, r.stderr)
        self.assertEqual(r.returncode, status, said)
        messages = [s for s in r.stderr.splitlines() if not s.startswith("Try `")]
        self.assertEqual(len(messages), 1, said)
        self.assertTrue(messages[0].startswith("evenkeel"), said)
        self.assertNotIn("bug", r.stderr.replace(self.folder, ""))
        for word in words:
            self.assertIn(word, messages[0])
        self.assertTrue(ek_cli.tree(self.folder) == before, "files have changed: " + said)

    def refuse_train(self, status, words, *more, **kw):
        self.refuse(status, words, self.train_args("run", *more, **kw))

    def refuse_eval(self, status, words, model, *more):
        self.refuse(status, words, ["eval", "--model", model, "--data", self.data, *more])


class Usage(Refused):
    def test_numbers(self):
        for option, value, words in [
                ("steps", 0, ["`--steps` is 0"]), ("steps", -3, ["-3"]), ("steps", "x", ["x"]),
                ("steps", "", ["empty"]), ("steps", "99999999999999999999", ["--steps"]),
                ("steps", "1.5", ["1.5"]), ("batch", 0, ["--batch"]), ("seq", 0, ["--seq"]),
                ("lr", "nan", ["`--lr` is nan", "finite"]), ("lr", "inf", ["`--lr` is inf"]),
                ("lr", "-1", ["-1"]), ("wd", "-inf", ["--wd"]), ("beta1", "1", ["--beta1", "below 1"]),
                ("beta2", "nan", ["--beta2"]), ("eps", "1e-8x", ["1e-8x"]), ("clip", "nan", ["--clip"]),
                ("aux-coef", "nan", ["--aux-coef"]), ("capacity-factor", "inf", ["--capacity-factor"]),
                ("min-lr", "nan", ["--min-lr"]), ("z-coef", "-1", ["--z-coef"]),
                ("threads", 0, ["--threads"]), ("keep", 0, ["--keep"]), ("seed", -1, ["--seed"]),
                ("dtype", "fp16", ["fp16", "bf16, fp32, fp64"]), ("token-bytes", 3, ["2, 4"]),
                ("data-order", "random", ["random", "sequential"]), ("lr-schedule", "linear", ["linear"]),
                ("device", "tpu", ["tpu", "cpu"]), ("out", "", ["--out"]), ("top-k", 3, ["3", "2"])]:
            self.refuse_train(USAGE, words, "--%s=%s" % (option, value))

    def test_words(self):
        self.refuse_train(USAGE, ["`--stpes`", "nearest is `--steps`"], "--stpes", 3)
        self.refuse_train(USAGE, ["`--micro_batch`", "`--micro-batch`"], "--micro_batch", 3)
        self.refuse_train(USAGE, ["`--lr` needs a value"], "--lr")
        self.refuse(USAGE, ["extra"], ["train", "extra"])
        self.refuse(USAGE, ["needs `--data`"], ["train", "--out", self.path("run")])
        self.refuse(USAGE, ["needs `--data`"], ["eval", "--model", self.config])
        self.refuse(USAGE, ["needs `--model`"], ["eval", "--data", self.data])
        self.refuse(USAGE, ["needs `--to`"], ["export", "--from", self.config])

    def test_a_micro_batch_above_the_batch(self):
        said = ["--micro-batch 9 is over --batch 8: give --micro-batch 8 or less, or a larger --batch"]
        sizes = ["--batch", 8, "--micro-batch", 9]
        cluster = write(self.path("cluster.json"), json.dumps({
            "evenkeel_cluster": 1, "name": "toy", "levels": [{"name": "node", "ranks": 4, "gbytes_s": 10, "us": 2}],
            "rank": {"memory": "1G", "machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}}}))
        self.refuse_train(USAGE, said, *sizes)
        self.refuse_train(USAGE, said, *sizes, "--dry-run")
        self.refuse_train(USAGE, said, *sizes, "--layout", "auto", "--cluster", cluster)
        self.refuse(USAGE, said, ["simulate", "--cluster", cluster, "--ranks", 2, *sizes])
        self.refuse(USAGE, said, ["search", "--cluster", cluster, "--ranks", 2, "--batch", 8, "--fix", "micro-batch=4,micro-batch=9"])
        self.refuse(USAGE, said, ["fit", "--model", self.config, *sizes])
        self.refuse(USAGE, said, ["bench", "step", "--model", self.config, *sizes])

    def test_no_such_command(self):
        r = run("trian")
        self.assertEqual((r.returncode, r.stdout), (USAGE, ""))
        self.assertEqual(r.stderr.splitlines()[0],
                         "evenkeel: unknown command trian; the nearest is train")
        r = run()
        self.assertEqual((r.returncode, r.stdout), (USAGE, ""))
        for command in ("train", "eval", "export", "info"):
            self.assertIn(command, r.stderr)
        r = run("--help")
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        self.assertEqual(run("help").stdout, r.stdout)

    def test_help_of_a_command(self):
        for words in (["train"], ["bench", "costs"]):
            r = run("help", *words)
            self.assertEqual((r.returncode, r.stderr), (DONE, ""))
            self.assertEqual(r.stdout, run(*words, "--help").stdout)
        r = run("help", "trian")
        self.assertEqual((r.returncode, r.stdout), (USAGE, ""))
        self.assertTrue(r.stderr.startswith("evenkeel: unknown command trian; the nearest is train\n"), r.stderr)

    def test_no_such_benchmark(self):
        self.refuse(USAGE, ["unknown benchmark \"a2\"", "nearest is a2a", "known: gemm|"],
                    ["bench", "a2"])

    def test_settings_file(self):
        for text, status, words in [
                ('{"steps": 3,}', BAD_INPUT, ["s.json"]), ("", BAD_INPUT, ["s.json"]),
                ("[1]", BAD_INPUT, ["object", "array"]),
                ('{"stpes": 3}', USAGE, ["`stpes`", "`steps`"]),
                ('{"steps": 0}', USAGE, ["key `steps`"]),
                ('{"steps": "3"}', USAGE, ["key `steps`"]),
                ('{"lr": 1e999}', BAD_INPUT, ["s.json"]),
                ('{"steps": 3, "steps": 4}', BAD_INPUT, ["s.json", "steps"])]:
            file = write(self.path("s.json"), text)
            self.refuse(status, words, ["train", "--config", file, "--data", self.data, "--out",
                                        self.path("run"), "--model", self.config])
        self.refuse(BAD_INPUT, ["nowhere.json"], ["train", "--config", self.path("nowhere.json")])


class Data(Refused):
    def test_missing(self):
        self.refuse_train(BAD_INPUT, ["nowhere"], data=self.path("nowhere"))
        self.refuse_train(BAD_INPUT, ["nowhere.bin"], data=self.path("nowhere.bin"))
        self.refuse(BAD_INPUT, ["nowhere"], ["eval", "--model", self.model(), "--data",
                                             self.path("nowhere"), "--tokenizer", "bytes"])

    def model(self):
        self.train("start", steps=1)
        return self.path("start")

    def test_texts(self):
        empty = write(self.path("empty.txt"), "")
        binary = write(self.path("binary.txt"), bytes(range(256)) * 9)
        folder = self.path("hollow")
        os.mkdir(folder)
        self.refuse_train(BAD_INPUT, ["no text", "1 empty"], data=empty)
        self.refuse_train(BAD_INPUT, ["binary.txt", "holds NUL bytes"], data=binary)
        self.refuse_train(BAD_INPUT, ["hollow", "no files"], data=folder)

    def test_token_files(self):
        for content, words, more in [
                (b"", ["x.bin", "empty"], []),
                (b"abc", ["x.bin", "3 bytes", "--token-bytes"], []),
                (b"abcdef", ["x.bin", "6 bytes"], ["--token-bytes", 4]),
                (struct.pack("<3H", 1, 2, 300), ["token 2 is 300", "vocabulary of 300"], []),
                (struct.pack("<2I", 7, 2**31), ["token 1 is 2147483648"], ["--token-bytes", 4]),
                (struct.pack("<16H", *range(16)), ["16 tokens", "--seq"], [])]:
            file = write(self.path("x.bin"), content)
            self.refuse_train(BAD_INPUT, words, *more, data=file)

    def test_a_mixture(self):
        text = write(self.path("a.txt"), "text")
        self.refuse_train(USAGE, ["mixes"], "--data", text)

    def test_too_long(self):
        self.refuse_train(USAGE, ["--seq 65", "64"], "--seq", 65)
        self.refuse_eval(USAGE, ["65 tokens", "64 positions"], self.model(), "--seq", 65)

    def test_too_short(self):
        text = write(self.path("a.txt"), "short")
        self.refuse_train(BAD_INPUT, ["6 tokens", "--seq"], data=text)
        one = ek_cli.write_tokens(self.path("one.bin"), [1])
        self.refuse(BAD_INPUT, ["1 tokens"], ["eval", "--model", self.model(), "--data", one])

    def test_tokenizer(self):
        text = write(self.path("a.txt"), "text " * 99)
        for content, words in [("{", ["tok.json"]), ("{}", ["tok.json"]),
                               ('{"model": {"type": "Unigram"}}', ["tok.json"])]:
            file = write(self.path("tok.json"), content)
            self.refuse_train(BAD_INPUT, words, "--tokenizer", file, data=text)
        self.refuse_train(BAD_INPUT, ["nowhere"], "--tokenizer", self.path("nowhere"), data=text)
        gpt2 = os.path.join(ek_cli.TEST_DATA, "golden", "tokenizers", "gpt2.json")
        small = ek_cli.write_config(self.path("small.json"), vocab_size=257)
        self.refuse_train(BAD_INPUT, ["vocabulary", "257"], "--tokenizer", gpt2, "--model", small,
                          data=text)


class Configs(Refused):
    def test_text(self):
        for content in ("", "{", "[]", '{"model_type": "mixtral"', '"x"', b"\xff\xfe{}"):
            write(self.config, content)
            self.refuse_train(BAD_INPUT, ["config.json"])

    def test_keys(self):
        for changes, words in [
                ({"rope_scaling": {"type": "longrope", "factor": 4}}, ["rope_scaling", "longrope"]),
                ({"rope_parameters": {"rope_type": "llama3"}}, ["rope_parameters"]),
                ({"clip_qkv": 8}, ["clip_qkv"]), ({"hidden_act": "gelu"}, ["hidden_act"]),
                ({"layer_types": ["sliding_attention"] * 2}, ["layer_types"]),
                ({"attention_bias": True}, ["attention_bias"]),
                ({"model_type": "llama"}, ["model_type", "llama"]), ({"model_type": 3}, ["model_type"]),
                ({"hidden_size": 0}, ["hidden_size"]), ({"hidden_size": -16}, ["hidden_size"]),
                ({"hidden_size": "16"}, ["hidden_size"]), ({"hidden_size": 1e300}, ["hidden_size"]),
                ({"head_dim": 7}, ["head_dim"]), ({"num_key_value_heads": 3}, ["num_key_value_heads"]),
                ({"num_experts_per_tok": 5}, ["num_experts_per_tok"]),
                ({"num_local_experts": 0}, ["num_local_experts"]),
                ({"vocab_size": 10**12}, ["vocab_size"]), ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
                ({"num_hidden_layers": 10**6}, ["num_hidden_layers"]),
                ({"evenkeel": {"gate": "best"}}, ["evenkeel.gate"]),
                ({"evenkeel": {"gait": "softmax"}}, ["evenkeel.gait"])]:
            ek_cli.write_config(self.config, **changes)
            self.refuse_train(BAD_INPUT, ["config.json", *words])
        for key in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers"):
            short = dict(ek_cli.CONFIG)
            del short[key]
            write(self.config, json.dumps(short))
            self.refuse_train(BAD_INPUT, ["config.json", "`%s`" % key, "missing"])

    def test_window(self):
        ek_cli.write_config(self.config, sliding_window=8)
        self.refuse_train(BAD_INPUT, ["sliding_window 8"])

    def test_no_model(self):
        self.refuse_train(BAD_INPUT, ["no model nowhere"], "--model", "nowhere")
        os.mkdir(self.path("hollow"))
        self.refuse_train(BAD_INPUT, ["hollow", "config.json"], "--model", self.path("hollow"))

    def test_larger_than_memory(self):
        ek_cli.write_config(self.config, hidden_size=2**18, intermediate_size=2**18,
                            num_local_experts=64, num_hidden_layers=2)
        self.refuse_train(FAILED, ["bytes"])


class Weights(Refused):
    def setUp(self):
        super().setUp()
        self.train("start", steps=1)
        self.folder_hf = self.path("hf")
        r = run("export", "--from", self.path("start"), "--to", self.folder_hf)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.file = self.path("hf", "model.safetensors")
        self.good = ek_cli.read(self.file)
        self.tensors = ek_cli.safetensors(self.file)

    def refuse_weights(self, words, status=BAD_INPUT):
        self.refuse_eval(status, words, self.folder_hf)
        self.refuse_train(status, words, "--model", self.folder_hf)
        self.refuse_train(status, words, "--init", self.file)
        self.refuse(status, words, ["export", "--from", self.folder_hf, "--to", self.path("e")])

    def test_truncated(self):
        for n in (0, 7, 8, 100, len(self.good) // 2, len(self.good) - 1):
            write(self.file, self.good[:n])
            self.refuse_weights(["model.safetensors"])
        write(self.file, self.good + b"x")
        self.refuse_weights(["model.safetensors"])

    def header(self, change):
        n = struct.unpack("<Q", self.good[:8])[0]
        header = json.loads(self.good[8:8 + n])
        change(header)
        text = json.dumps(header).encode()
        write(self.file, struct.pack("<Q", len(text)) + text + self.good[8 + n:])

    def test_lying_headers(self):
        name = "lm_head.weight"

        def entry(**changes):
            return lambda h: h[name].update(changes)

        n = struct.unpack("<Q", self.good[:8])[0]
        other = json.loads(self.good[8:8 + n])["model.embed_tokens.weight"]["data_offsets"]
        for change, words in [
                (entry(dtype="BF16"), [name]), (entry(dtype="I32"), [name]),
                (entry(dtype="F99"), [name, "F99"]), (entry(dtype=4), [name]),
                (entry(shape=[300, 17]), [name]), (entry(shape=[2**62, 2**62]), [name]),
                (entry(shape=[-300, -16]), [name]), (entry(shape=[16, 300]), [name, "[16, 300]"]),
                (entry(shape="big"), [name]), (entry(data_offsets=other), []),
                (entry(data_offsets=[0, 2**63]), []),
                (entry(data_offsets=[0, 2**62]), [name]), (entry(data_offsets=[5]), [name]),
                (entry(data_offsets=[8, 4]), [name]), (lambda h: h.update({name: 3}), [name])]:
            self.header(change)
            self.refuse_weights(["model.safetensors", *words])
        for size in (2**64 - 1, 2**63, 2**40, len(self.good)):
            write(self.file, struct.pack("<Q", size) + self.good[8:])
            self.refuse_weights(["model.safetensors"])
        write(self.file, self.good[:8] + b"[" + self.good[9:])
        self.refuse_weights(["model.safetensors"])

    def test_tensors(self):
        name = "model.layers.1.self_attn.q_proj.weight"
        less = {k: v for k, v in self.tensors.items() if k != name}
        ek_cli.write_safetensors(self.file, less)
        self.refuse_weights(["model.safetensors", name, "missing"])
        ek_cli.write_safetensors(self.file, {**self.tensors, "model.extra": ("F32", (1,), bytes(4))})
        self.refuse_weights(["model.safetensors", "model.extra", "not part"])
        ek_cli.write_safetensors(self.file, {**self.tensors, name: ("I32", (16, 16), bytes(1024))})
        self.refuse_weights(["model.safetensors", name, "I32"])

    def test_config_contradicts(self):
        for changes, words in [
                ({"hidden_size": 32}, ["shape", "[300, 16]", "[300, 32]"]),
                ({"num_hidden_layers": 1}, ["model.layers.1.", "not part"]),
                ({"num_hidden_layers": 3}, ["model.layers.2.", "missing"]),
                ({"num_local_experts": 8}, ["shape"]),
                ({"vocab_size": 320}, ["[320, 16]"]),
                ({"num_attention_heads": 4}, ["q_proj"])]:
            ek_cli.write_config(self.path("hf", "config.json"), **changes)
            words = ["model.safetensors", *words]
            self.refuse_eval(BAD_INPUT, words, self.folder_hf)
            self.refuse_train(BAD_INPUT, words, "--model", self.folder_hf)

    def test_not_finite(self):
        shape = self.tensors["lm_head.weight"][1]
        for value in (math.nan, math.inf):
            data = struct.pack("<f", value) * (shape[0] * shape[1])
            ek_cli.write_safetensors(
                self.file, {**self.tensors, "lm_head.weight": ("F32", shape, data)})
            self.refuse_eval(FAILED, ["not finite"], self.folder_hf)

    def test_no_weights(self):
        os.remove(self.file)
        self.refuse_eval(BAD_INPUT, ["hf", "no weights"], self.folder_hf)
        self.refuse_eval(BAD_INPUT, ["config.json", "no weights"], self.config)
        self.refuse_eval(BAD_INPUT, ["no weights"], "tiny")
        self.refuse(BAD_INPUT, ["no weights"],
                    ["export", "--from", self.folder_hf, "--to", self.path("e")])

    def test_missing_shard(self):
        os.remove(self.file)
        index = {"metadata": {}, "weight_map": {k: "shard-1.safetensors" for k in self.tensors}}
        write(self.path("hf", "model.safetensors.index.json"), json.dumps(index))
        self.refuse_eval(BAD_INPUT, ["shard-1.safetensors"], self.folder_hf)

    def test_export_does_not_overwrite(self):
        self.refuse(USAGE, [self.folder_hf, "exists"],
                    ["export", "--from", self.path("start"), "--to", self.folder_hf])
        file = write(self.path("a-file"), "precious")
        self.refuse(USAGE, ["a-file"], ["export", "--from", self.path("start"), "--to", file])

    def test_an_earlier_run_survives_mistakes(self):
        """--overwrite takes effect only after everything else was checked."""
        for words, more in [(["nowhere"], ["--data", self.path("nowhere.bin")]),
                            (["nowhere"], ["--init", self.path("nowhere")])]:
            self.refuse(BAD_INPUT, words, self.train_args("start", *more))

    def test_damaged_checkpoint(self):
        file = os.path.join(ek_cli.newest(self.path("start")), "optimizer.safetensors")
        data = bytearray(ek_cli.read(file))
        data[-1] ^= 1
        write(file, bytes(data))
        self.refuse(BAD_INPUT, ["start"], self.train_args("start", "--resume"))


def mount(folder, options):
    os.makedirs(folder, exist_ok=True)
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder],
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


class Disk(Refused):
    """On small file systems, which only root can mount."""

    @contextlib.contextmanager
    def disk(self, size):
        folder = self.path("disk")
        if os.geteuid() != 0 or not shutil.which("mount") or not mount(folder, "size=" + size):
            self.skipTest("needs the right to mount a tmpfs")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)

    def test_read_only(self):
        with self.disk("1m") as folder:
            os.mkdir(os.path.join(folder, "run"))
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            for out in ("run", "new"):
                self.refuse(FAILED, ["Read-only file system", folder],
                            self.train_args(os.path.join("disk", out), "--quiet"))
            self.refuse(FAILED, ["Read-only file system", folder], [
                "export", "--from",
                os.path.join(ek_cli.TEST_DATA, "golden", "models", "mixtral"), "--to",
                os.path.join(folder, "hf")])

    def test_full_while_saving(self):
        """The save of step 4 does not fit; that of step 2 stays whole, and the run goes on from it
        when there is room again."""
        more = ["--save-every", 2, "--keep", 1, "--quiet"]
        self.train("whole", *more)
        size = sum(map(len, ek_cli.tree(self.path("whole", "checkpoint")).values()))
        with self.disk("%d" % (3 * size)) as folder:
            stone = write(os.path.join(folder, "stone"), bytes(3 * size // 2))
            r = run(*self.train_args("disk/run", *more))
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            self.assertIn("No space left", r.stderr)
            self.assertIn("disk/run/checkpoint", r.stderr)
            files = ek_cli.tree(os.path.join(folder, "run"))
            self.assertEqual({os.path.dirname(k) for k in files}, {"", "checkpoint/step-00000002"})
            self.evaluate(os.path.join(folder, "run"), self.data)
            os.remove(stone)
            self.train("disk/run", *more, "--resume")
            self.assertEqual(ek_cli.losses(os.path.join(folder, "run")),
                             ek_cli.losses(self.path("whole")))
            self.assertEqual(ek_cli.weights(os.path.join(folder, "run")),
                             ek_cli.weights(self.path("whole")))

    def test_full_from_the_start(self):
        with self.disk("64k") as folder:
            write(os.path.join(folder, "stone"), bytes(60000))
            r = run(*self.train_args("disk/run", "--quiet", "--timeline", "--record-routing"))
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            left = set(ek_cli.tree(folder))
            self.assertLessEqual(left, {"stone", "run/metrics.jsonl", "run/run.json"})


if __name__ == "__main__":
    unittest.TestCase.maxDiff = 2000
    ek_cli.main()
