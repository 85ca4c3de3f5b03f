"""JSON from untrusted files: the memory it makes the command allocate is bounded by the size of
valid files of its kind; larger ones are refused at once, with one message."""

import json
import os
import resource
import struct
import subprocess

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, run, write

PEAK_MB = 600  # of the command with a file of 90 MB; it was 6,700 MB
TREES = (b"{},", b"[],", b'["",""],', b'{"a":{}},')


def bomb(path, begin, unit, size, end):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(begin)
        piece = unit * (1 << 17)
        for _ in range((size - len(begin)) // len(piece)):
            f.write(piece)
        f.write(end)
    return path


class Bombs(ek_cli.Case):
    def assert_refused(self, file, *args, words="memory", peak_mb=PEAK_MB):
        # a shell between has no memory of this process that would be counted
        with subprocess.Popen(["sh", "-c", '"$@"; exit $?', "sh", COMMAND, *map(str, args)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as p:
            out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
        self.assertEqual((p.returncode, out), (BAD_INPUT, ""), err)
        self.assertEqual(err.count("\n"), 1 + err.count("Try `"), err)
        self.assertIn(file, err)
        self.assertIn(words, err)
        self.assertLess(peak, peak_mb)

    def model(self, name):
        folder = self.path(name)
        ek_cli.write_config(os.path.join(folder, "config.json"))
        return folder

    def test_header_of_safetensors(self):
        folder = self.model("model")
        file = os.path.join(folder, "model.safetensors")
        for i, unit in enumerate(TREES):
            bomb(file, b"%8d" % 0 + b'{"x":[', unit, (90, 30, 30, 30)[i] * 1000000, b"0]}")
            with open(file, "r+b") as f:
                f.write(struct.pack("<Q", os.path.getsize(file) - 8))
            self.assert_refused(file, "eval", "--model", folder, "--data", self.data)

    def test_tokenizer(self):
        file = bomb(self.path("tokenizer.json"), b'{"model":{"type":"BPE","vocab":{},"merges":[',
                    b"{},", 60000000, b"0]}}")
        text = write(self.path("a.txt"), "text " * 100)
        self.assert_refused(file, "train", "--model", self.config, "--data", text, "--tokenizer",
                            file, "--steps", 1, "--seq", 16, "--out", self.path("run"))
        self.assertFalse(os.path.exists(self.path("run")))

    def test_config_index_options_and_machine(self):
        big = bomb(self.path("big", "config.json"), b'{"model_type":"mixtral","x":[', b"{},",
                   15000000, b"0]}")
        self.assert_refused(big, *self.train_args("run"), "--model", big)
        self.assert_refused(big, "train", "--config", big)
        head = "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 4), }"
        trace = write(self.path("trace.npy"), b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) +
                      head.ljust(117).encode() + b"\n" + struct.pack("<4I", 4, 3, 2, 1))
        self.assert_refused(big, "plan", "--trace", trace, "--policy", "exact", "--ranks", 2,
                            "--machine", big, words="1048576 allowed")
        folder = self.model("sharded")
        index = bomb(os.path.join(folder, "model.safetensors.index.json"), b'{"weight_map":[',
                     b"{},", 90000000, b"0]}")
        self.assert_refused(index, "eval", "--model", folder, "--data", self.data)

    def test_checkpoint(self):
        self.train("run", steps=1)
        folder = ek_cli.newest(self.path("run"))
        for name, size in (("manifest.json", 90000000), ("state.json", 15000000),
                           ("run.json", 15000000)):
            file = os.path.join(folder, name)
            good = ek_cli.read(file)
            bomb(file, b'{"files":[', b"{},", size, b"0]}")
            self.assert_refused(file, "check", "--checkpoint", folder, words=name)
            write(file, good)

    def test_too_large(self):
        big = bomb(self.path("big.json"), b'{"model_type":"', b"x", 20000000, b'"}')
        self.assert_refused(big, *self.train_args("run"), "--model", big, words="16777216 allowed")


class RealFiles(ek_cli.Case):
    """Files as large as the largest published ones are read."""

    def test_a_large_vocabulary(self):
        """256,000 tokens and as many merges, written as tokenizers writes them."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        vocab, merges = {}, []
        for i in range(256):
            vocab[bytes_to_unicode()[i]] = i
        words = list(letters)
        for size in range(2, 5):
            for w in words if size < 4 else words[:9000]:
                for c in letters:
                    vocab.setdefault(w + c, len(vocab))
                    merges.append([w, c])
            words = [w + c for w in words for c in letters]
        file = write(self.path("tokenizer.json"), json.dumps(
            {"version": "1.0", "added_tokens": [
                {"id": len(vocab), "content": "<|endoftext|>", "special": True,
                 "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}],
             "normalizer": None,
             "post_processor": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
             "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": vocab, "merges": merges}},
            ensure_ascii=False, separators=(",", ":")))
        self.assertGreater(len(vocab), 250000)
        config = ek_cli.write_config(self.path("c.json"), vocab_size=len(vocab) + 1, eos_token_id=None)
        text = write(self.path("a.txt"), "texts of words " * 100)
        r = run(*self.train_args("run", "--quiet", steps=1, data=text), "--tokenizer", file,
                "--model", config)
        self.assertEqual(r.returncode, 0, r.stderr)


def bytes_to_unicode():
    """GPT-2's characters for bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(others)) for b in range(256)]


class Marks(ek_cli.Case):
    def test_a_byte_order_mark_is_named(self):
        config = json.dumps(ek_cli.CONFIG)
        for encoding in ("utf-8-sig", "utf-16"):
            file = write(self.path("bom.json"), config.encode(encoding))
            r = run(*self.train_args("run"), "--model", file)
            self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
            self.assertIn(file + ": begins with a byte order mark", r.stderr)


if __name__ == "__main__":
    ek_cli.main()
