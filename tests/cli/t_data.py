"""--data: JSON Lines, compressed files, and files that are not valid data."""

import gzip
import json
import os
import resource
import subprocess
import zlib

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, DONE, TIMEOUT_S, USAGE, run, write

TEXTS = ["the keel of a boat is even\n" * 40, "so is this one, mostly; " * 60, "rope and sail\n" * 50]


def lines(key):
    return "".join(json.dumps({"n": i, key: t}) + "\n" for i, t in enumerate(TEXTS))


class Data(ek_cli.Case):
    def loss(self, name, *more, data):
        self.train(name, *more, data=data, steps=3)
        return ek_cli.losses(self.path(name))

    def texts(self):
        for i, text in enumerate(TEXTS):
            write(self.path("texts/%d.txt" % i), text)
        return self.path("texts")

    def test_json_lines_train_as_the_texts_in_them(self):
        want = self.loss("want", data=self.texts())
        self.assertEqual(self.loss("a", data=write(self.path("a.jsonl"), lines("text"))), want)
        packed = write(self.path("b/c/d.ndjson.gz"), gzip.compress(lines("body").encode()))
        self.assertEqual(self.loss("b", "--text-field", "body", data=os.path.dirname(packed)), want)
        r = run("eval", "--model", self.path("b"), "--data", packed, "--seq", 16)
        self.assertEqual(r.returncode, BAD_INPUT)
        self.assertIn(packed + ":1:0: the field is missing", r.stderr)
        r = run("eval", "--model", self.path("b"), "--data", packed, "--seq", 16, "--text-field",
                "body", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(json.loads(r.stdout)["tokens"], sum(map(len, TEXTS)) + len(TEXTS) - 1)

    def test_a_bad_line_is_named_and_nothing_is_trained(self):
        data = write(self.path("a.jsonl"), lines("text") + '{"text": 7}\n')
        r = run(*self.train_args("run", data=data))
        self.assertEqual((r.returncode, r.stdout), (BAD_INPUT, ""))
        self.assertIn(data + ":4:10: the field is not a string", r.stderr)
        self.assertFalse(os.path.exists(self.path("run/metrics.jsonl")))

    def test_other_formats_are_refused_by_name(self):
        for name, content, words in (("a.parquet", b"PAR1", "a Parquet table"),
                                     ("a.docx", b"PK", "a Word document"),
                                     ("a.txt", b"%PDF-1.7", "a PDF document"),
                                     ("b.txt", b"\0\1", "NUL bytes"),
                                     ("c.gz", gzip.compress(b"x" * 99)[:-3], "ends early")):
            data = write(self.path(name), content)
            r = run(*self.train_args("run", data=data))
            self.assertEqual(r.returncode, BAD_INPUT, name)
            self.assertIn(data, r.stderr)
            self.assertIn(words, r.stderr)
        self.assertEqual(run(*self.train_args("run"), "--text-field", "").returncode, USAGE)

    def mixture(self):
        ek_cli.write_tokens(self.path("a.bin"), [i % 50 for i in range(400)])
        ek_cli.write_tokens(self.path("b:2"), [50 + i % 90 for i in range(900)])
        os.rename(self.path("b:2"), self.path("b:2.bin"))
        return [self.path("a.bin") + ":0.3", self.path("b:2.bin") + ":0.7"]

    def test_weighted_sources_train_the_same_on_any_layout_and_resumed(self):
        data = self.mixture()
        args = ["--data", data[1], "--dtype", "fp64", "--lr-schedule", "constant", "--warmup", 0]
        self.train("one", *args, data=data[0])
        want = ek_cli.losses(self.path("one"))
        self.train("two", *args, "--ranks", 2, data=data[0])
        self.assert_close(ek_cli.losses(self.path("two")), want, 1e-9)
        self.train("part", *args, data=data[0], steps=2)
        r = run("train", "--resume", "--out", self.path("part"), "--steps", 6, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(ek_cli.losses(self.path("part")), want)  # without a single option
        self.train("other", "--data", self.path("b:2.bin") + ":0.6", *args[2:],
                   data=self.path("a.bin") + ":0.4")
        self.assertNotEqual(ek_cli.losses(self.path("other")), want)

    def test_a_resumed_run_keeps_its_weights(self):
        data = self.mixture()
        self.train("run", "--data", data[1], data=data[0], steps=2)
        r = run("train", "--model", self.config, "--resume", "--out", self.path("run"), "--data",
                data[0].replace("0.3", "0.5"), data[1], "--steps", 3, "--quiet")
        self.assertNotIn(r.returncode, (DONE, ek_cli.FAILED))
        self.assertIn("data", r.stderr)

    def test_wrong_weights_are_wrong_usage(self):
        a, b = self.mixture()
        for paths, words in (([a, self.path("b:2.bin")], "1 of 2 paths have a weight"),
                             ([a, self.path("b:2.bin") + ":0"], "has to be above 0")):
            r = run(*self.train_args("run", "--data", paths[1], data=paths[0]))
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn(words, r.stderr)
        r = run(*self.train_args("run", "--data", b, data=self.path("missing") + ":1"))
        self.assertEqual(r.returncode, BAD_INPUT)
        self.assertIn("missing: ", r.stderr)

    def test_a_bomb_costs_bounded_memory(self):
        z = zlib.compressobj(9, wbits=31)
        zeros = b"".join(z.compress(b"0" * (1 << 20)) for _ in range(200)) + z.flush()
        data = write(self.path("a.jsonl.gz"), zeros)
        r = subprocess.run([COMMAND, *map(str, self.train_args("run", data=data))],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn(data + ":1: a line of more than 64 MiB", r.stderr)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 400 << 10)  # KiB


if __name__ == "__main__":
    ek_cli.main()
