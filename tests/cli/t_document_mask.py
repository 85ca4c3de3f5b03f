"""--document-mask: separates the documents of a sequence, in train and in eval."""

import json
import os

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, losses, metrics, run, write

END = 256
# Of the first windows of 16 tokens: several documents, one that goes on, one of a token alone.
DOCUMENTS = [list(range(1, 6)), [], [7, 8, 9], list(range(20, 60)), [3, 4] * 9, [1], list(range(90))]
EXACT = ("--lr-schedule", "constant", "--warmup", 0, "--data-order", "sequential")


def joined(documents, times=4):
    return [token for d in documents for token in d + [END]] * times


class Mask(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.ids = joined(DOCUMENTS)
        self.packed = ek_cli.write_tokens(self.path("packed.bin"), self.ids)

    def mask(self, out, *more, data=None, **kw):
        return self.train(out, "--document-mask", *more, data=data or self.packed, **kw)

    def test_metrics_say_how_many_tokens_count(self):
        self.mask("run", *EXACT)
        for step, m in enumerate(metrics(self.path("run"))):
            inputs = [self.ids[(64 * step + i) % ((len(self.ids) - 1) // 16 * 16)]
                      for i in range(64)]
            self.assertEqual(m["tokens"], 64)
            self.assertEqual(m["loss_tokens"], 64 - inputs.count(END))
        self.train("plain", *EXACT, data=self.packed)
        self.assertNotIn("loss_tokens", metrics(self.path("plain"))[0])
        self.assertNotEqual(losses(self.path("plain")), losses(self.path("run")))

    def test_without_an_end_token_it_changes_nothing_and_that_is_said(self):
        self.assertEqual(self.mask("run").stderr, "")
        data = ek_cli.write_tokens(self.path("whole.bin"), [i % 200 for i in range(900)])
        r = self.mask("masked", data=data)
        self.assertIn("1 of 1 data sources hold no end token (id 256)", r.stderr)
        self.train("plain", data=data)
        self.assertEqual(losses(self.path("masked")), losses(self.path("plain")))
        self.assertEqual(ek_cli.weights(self.path("masked")), ek_cli.weights(self.path("plain")))

    def test_without_a_known_end_token_it_is_refused(self):
        config = ek_cli.write_config(self.path("none/config.json"), eos_token_id=None)
        r = run(*self.train_args("run", "--model", config, "--document-mask", data=self.packed))
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn("eos_token_id", r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertFalse(os.path.exists(self.path("run")))
        # the tokenizer knows one
        self.mask("run", "--model", config, "--tokenizer", "bytes")
        self.assertEqual(self.evaluate(self.path("run"), self.packed, "--document-mask")["tokens"],
                         len(self.ids) - 1 - self.ids[:-1].count(END))

    def test_evaluations_while_training_are_those_of_eval(self):
        """Only targets count, on any layout."""
        for layout in (), ("--ranks", 2), ("--ranks", 2, "--tp", 2), ("--ranks", 2, "--pp", 2):
            if layout and ek_cli.mpiexec() is None:
                break
            with self.subTest(layout=layout):
                self.mask("run", "--eval-data", self.packed, "--overwrite", *layout, dtype="fp64")
                line = metrics(self.path("run"))[-1]
                e = self.evaluate(self.path("run"), self.packed, "--document-mask")
                self.assertEqual(line["eval_tokens"], e["tokens"])
                self.assertLess(e["tokens"], len(self.ids) - 1)
                self.assert_close([line["eval_loss"]], [e["loss"]], 1e-12)

    def test_resume_keeps_it(self):
        self.mask("whole", *EXACT)
        self.mask("cut", *EXACT, steps=3)
        r = run("train", "--out", self.path("cut"), "--resume", "--steps", 6, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(losses(self.path("cut")), losses(self.path("whole")))
        self.assertEqual(ek_cli.weights(self.path("cut")), ek_cli.weights(self.path("whole")))

    def refused(self, out, *more):
        r = run("train", "--out", self.path(out), "--resume", "--steps", 5, "--quiet", *more)
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--document-mask", r.stderr)
        self.assertIn("--override", r.stderr)

    def test_resume_refuses_another(self):
        self.train("plain", data=self.packed, steps=3)
        root = json.loads(ek_cli.read(self.path("plain", "run.json")))
        root["settings"].pop("document-mask", None)  # as of versions that did not know it
        write(self.path("plain", "run.json"), json.dumps(root))
        self.refused("plain", "--document-mask")
        r = run("train", "--out", self.path("plain"), "--resume", "--steps", 5, "--document-mask",
                "--override")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(["loss_tokens" in m for m in metrics(self.path("plain"))],
                         [False] * 3 + [True] * 2)
        self.mask("masked", steps=3)
        self.refused("masked", "--config",
                     write(self.path("off.json"), json.dumps({"document-mask": False})))

    def test_any_layout_has_the_same_losses(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        more = ("--micro-batch", 3, "--capacity-factor", 0.9, *EXACT)
        self.mask("one", *more, dtype="fp64")
        for i, layout in enumerate((("--ranks", 3), ("--ranks", 2, "--tp", 2, "--zero", 1),
                                    ("--ranks", 2, "--pp", 2), ("--ranks", 3, "--ep", 3))):
            out = "layout%d" % i
            self.mask(out, *more, *layout, "--threads", 1, dtype="fp64")
            self.assert_close(losses(self.path(out)), losses(self.path("one")), 1e-9)
            self.assertEqual([m["loss_tokens"] for m in metrics(self.path(out))],
                             [m["loss_tokens"] for m in metrics(self.path("one"))])

    def test_steps_without_a_target_that_counts(self):
        ends = ek_cli.write_tokens(self.path("ends.bin"), [END] * 600)
        layouts = [()] if ek_cli.mpiexec() is None else [(), ("--ranks", 2, "--tp", 2)]
        for i, layout in enumerate(layouts):
            self.mask("run%d" % i, *layout, data=ends, steps=2)
            for m in metrics(self.path("run%d" % i)):
                self.assertEqual((m["loss"], m["loss_tokens"]), (0, 0))
        r = run("eval", "--model", self.path("run0"), "--data", ends, "--document-mask")
        self.assertEqual(r.returncode, BAD_INPUT)
        self.assertIn("no token of the data counts", r.stderr)

    def test_documents_of_an_evaluation_have_the_losses_that_they_have_alone(self):
        self.mask("run", "--seq", 64)
        documents = [[1, 2, 3, 4, 5], [7, 8, 9], list(range(20, 45)), [3, 4] * 5]  # in one window
        packed = ek_cli.write_tokens(self.path("all.bin"), joined(documents, 1))
        loss = tokens = 0
        for i, d in enumerate(documents):
            data = ek_cli.write_tokens(self.path("%d.bin" % i), d + [END])
            e = self.evaluate(self.path("run"), data, "--seq", 64)
            loss += e["loss"] * e["tokens"]
            tokens += e["tokens"]
        e = self.evaluate(self.path("run"), packed, "--seq", 64, "--document-mask")
        self.assertEqual(e["tokens"], tokens)
        self.assert_close([e["loss"]], [loss / tokens], 1e-9)
        plain = self.evaluate(self.path("run"), packed, "--seq", 64)
        self.assertGreater(abs(plain["loss"] - e["loss"]), 1e-4)

    def test_texts_are_kept_apart(self):
        for i, text in enumerate(("a keel", "sails\n" * 9, "rope")):
            write(self.path("texts/%d.txt" % i), text)
        self.mask("run", "--seq", 32, *EXACT, data=self.path("texts"))
        self.assertEqual(metrics(self.path("run"))[0]["loss_tokens"], 4 * (32 - 1))


if __name__ == "__main__":
    ek_cli.main()
