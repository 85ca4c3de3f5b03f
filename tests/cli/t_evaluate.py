"""Held-out data while training: --eval-data, --eval-every, --eval-tokens, --patience, OUT/best."""

import json
import math
import os
import re
import shutil
import signal

import ek_cli
from ek_cli import BAD_INPUT, DONE, INTERRUPTED, USAGE, metrics, run


def evaluations(out):
    """steps completed -> line of metrics, for steps followed by an evaluation."""
    return {m["step"] + 1: m for m in metrics(out) if "eval_loss" in m}


def state(out):
    return json.loads(ek_cli.read(os.path.join(out, "evaluation.json")))


class Evaluate(ek_cli.Case):
    def setUp(self):
        super().setUp()
        # not of the same patterns as the data: training on those soon makes its loss grow
        self.held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(1000, seed=9))

    def train_evaluating(self, out, *more, **kw):
        return self.train(out, "--eval-data", self.held_out, "--lr", 0.01, *more, **kw)

    def summary(self, out, *more, **kw):
        r = self.train_evaluating(out, "--json", *more, **kw)
        return json.loads(r.stdout)

    def test_it_is_what_eval_says(self):
        """On any layout, and over all windows, including the shorter last one."""
        self.train_evaluating("one", "--eval-every", 4, dtype="fp64", steps=10)
        of = evaluations(self.path("one"))
        self.assertEqual(sorted(of), [4, 8, 10])
        for layout in ("--ranks 2 --ep 2", "--ranks 2 --pp 2", "--ranks 3 --zero 3"):
            if ek_cli.mpiexec() is None:
                break
            with self.subTest(layout=layout):
                self.train_evaluating("many", "--eval-every", 4, "--overwrite", *layout.split(),
                                      dtype="fp64", steps=10)
                for step, line in evaluations(self.path("many")).items():
                    self.assert_close([line["eval_loss"]], [of[step]["eval_loss"]], 1e-9)
        seq = int(json.loads(ek_cli.read(self.path("one", "run.json")))["settings"]["seq"])
        self.assertNotEqual((1000 - 1) % seq, 0)
        e = self.evaluate(self.path("one"), self.held_out, "--seq", seq)
        self.assertEqual(e["tokens"], of[10]["eval_tokens"])
        self.assertEqual(e["tokens"], 999)
        self.assert_close([e["loss"]], [of[10]["eval_loss"]], 1e-12)
        self.assert_close([math.exp(e["loss"])], [of[10]["eval_perplexity"]], 1e-12)

    def test_training_does_not_notice(self):
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype=dtype):
                self.train("blind-" + dtype, "--lr", 0.01, dtype=dtype, steps=9)
                self.train_evaluating("seeing-" + dtype, "--eval-every", 1, dtype=dtype, steps=9)
                blind, seeing = self.path("blind-" + dtype), self.path("seeing-" + dtype)
                self.assertEqual(len(evaluations(seeing)), 9)
                for key in ("loss", "aux_loss", "grad_norm", "lr", "dropped"):
                    self.assertEqual([m[key] for m in metrics(blind)],
                                     [m[key] for m in metrics(seeing)])
                self.assertEqual(ek_cli.weights(blind), ek_cli.weights(seeing))

    def test_best_checkpoint_is_kept(self):
        """OUT/best is kept even if many newer checkpoints exist, and usable like any other."""
        s = self.summary("run", "--eval-every", 1, "--save-every", 1, "--keep", 1, dtype="fp64",
                         steps=30)["evaluation"]
        of = {step: m["eval_loss"] for step, m in evaluations(self.path("run")).items()}
        best = min(of, key=of.get)
        self.assertLess(best, 25, "the test is to have a best step that is not among the last")
        self.assertEqual((s["best_step"], s["step"], s["count"]), (best, 30, 30))
        self.assertEqual(s["best_loss"], of[best])
        self.assertEqual(s["since_best"], 30 - best)
        self.assertEqual(s["best_checkpoint"], self.path("run", "best"))
        self.assertEqual(os.readlink(self.path("run", "best")), "checkpoint/step-%08d" % best)
        self.assertEqual(sorted(os.listdir(self.path("run", "checkpoint"))),
                         ["step-%08d" % best, "step-00000030"])
        seq = state(self.path("run"))["seq"]
        e = self.evaluate(self.path("run", "best"), self.held_out, "--seq", seq)
        self.assert_close([e["loss"]], [of[best]], 1e-12)
        self.assertEqual(run("check", "--checkpoint", self.path("run", "best")).returncode, DONE)
        r = run("export", "--from", self.path("run", "best"), "--to", self.path("hf"))
        self.assertEqual(r.returncode, DONE, r.stderr)

    def saved(self, out):
        """The evaluations recorded in the newest checkpoint, or None."""
        path = os.path.join(ek_cli.newest(self.path(out)), "state.json")
        return json.loads(ek_cli.read(path)).get("evaluation")

    def test_a_run_without_evaluations(self):
        """It has none to tell of, and one that is resumed with them has nothing to forget."""
        self.train("run", steps=3)
        self.assertIsNone(self.saved("run"))
        r = run("train", "--resume", "--out", self.path("run"), "--eval-data", self.held_out,
                "--steps", 6)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertNotIn("are reset", r.stderr)
        self.assertEqual(self.saved("run")["step"], 6)

    def test_a_finished_run_is_evaluated(self):
        """--resume with other held-out data evaluates them once."""
        self.train("run", steps=3)
        resume = ["train", "--resume", "--out", self.path("run"), "--eval-data", self.held_out]
        for said in ("no steps left", "all steps are already completed"):
            r = run(*resume)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertIn(said, r.stdout + r.stderr)
            self.assertEqual(sorted(evaluations(self.path("run"))), [3])
            self.assertEqual(os.readlink(self.path("run", "best")), "checkpoint/step-00000003")

    def resume(self, steps, **changes):
        """Goes on with the run, whose stored settings are changed; None: left out."""
        path = self.path("run", "run.json")
        stored = json.loads(ek_cli.read(path))
        stored["settings"].update(changes)
        stored["settings"] = {k: v for k, v in stored["settings"].items() if v is not None}
        ek_cli.write(path, json.dumps(stored))
        r = run("train", "--resume", "--out", self.path("run"), "--steps", steps)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertNotIn("are reset", r.stderr)

    def test_a_start_without_evaluations(self):
        """Evaluations of other starts of the run are preserved."""
        more = ("--save-every", 1, "--keep", 1, "--eval-every", 1)
        self.train_evaluating("run", *more, steps=30)
        known, link = self.saved("run"), os.readlink(self.path("run", "best"))
        self.assertEqual(known, state(self.path("run")))
        settings = json.loads(ek_cli.read(self.path("run", "run.json")))["settings"]
        evaluating = {k: settings[k] for k in ("eval-data", "eval-every")}
        self.resume(34, **dict.fromkeys(evaluating))
        self.assertEqual(sorted(evaluations(self.path("run"))), list(range(1, 31)))
        self.assertEqual((self.saved("run"), state(self.path("run"))), (known, known))
        self.assertEqual(os.readlink(self.path("run", "best")), link)
        self.assertTrue(os.path.exists(self.path("run", "best", "manifest.json")))
        self.resume(36, **evaluating)
        of = evaluations(self.path("run"))
        self.assertEqual(sorted(of), [*range(1, 31), 34, 35, 36])
        best = min(of, key=lambda step: of[step]["eval_loss"])
        self.assertEqual((state(self.path("run"))["best_step"], state(self.path("run"))["step"]),
                         (best, 36))

    def test_best_link_that_was_not_made(self):
        """The run was killed after the best checkpoint was committed."""
        self.train_evaluating("run", steps=1)
        os.unlink(self.path("run", "best"))
        r = run("train", "--resume", "--out", self.path("run"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(os.readlink(self.path("run", "best")), "checkpoint/step-00000001")

    def test_best_checkpoint_of_a_run_that_is_replaced(self):
        """It goes with it, or comes back with it."""
        self.train_evaluating("run", steps=6)
        link = os.readlink(self.path("run", "best"))
        r = run(*self.train_args("run", "--overwrite", "--lr", "1e300", steps=4))
        self.assertNotEqual(r.returncode, DONE)
        self.assertEqual(os.readlink(self.path("run", "best")), link)
        self.assertTrue(os.path.exists(self.path("run", "best", "manifest.json")))
        self.train("run", "--overwrite", steps=4)
        self.assertFalse(os.path.lexists(self.path("run", "best")))
        self.assertFalse(os.path.lexists(self.path("run", "best.replaced")))
        self.assertFalse(os.path.exists(self.path("run", "evaluation.json")))

    def test_a_link_that_is_not_ours_is_left_alone(self):
        os.makedirs(self.path("run"))
        os.symlink("/etc/hostname", self.path("run", "best"))
        r = run(*self.train_args("run", "--overwrite"))
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("best", r.stderr)
        self.assertEqual(os.readlink(self.path("run", "best")), "/etc/hostname")

    def test_resume_replaces_nothing_of_others(self):
        """Files under the names that a resumed run writes, or would write on the way."""
        self.train("run", steps=2)
        for name in ("best", "evaluation.json", "timeline.json", "checkpoint.tmp/notes"):
            for mine in ("mine", '{"my": "notes"}'):
                with self.subTest(name=name, mine=mine):
                    ek_cli.write(self.path("run", name), mine)
                    before = ek_cli.tree(self.path("run"))
                    r = run("train", "--resume", "--out", self.path("run"), "--eval-data",
                            self.held_out, "--timeline", "--steps", 4)
                    self.assertEqual(r.returncode, USAGE, r.stderr)
                    self.assertIn(self.path("run", name), r.stderr)
                    self.assertEqual(ek_cli.tree(self.path("run")), before)
            top = self.path("run", name.split("/")[0])
            (shutil.rmtree if os.path.isdir(top) else os.remove)(top)
        # other names are the user's, in the folder of checkpoints, too; and links are followed
        for name in ("best.tmp", "checkpoint/notes.tmp", "checkpoint/notes", "run-failed.json"):
            ek_cli.write(self.path("run", name), "mine")
        os.rename(self.path("run", "metrics.jsonl"), self.path("elsewhere.jsonl"))
        os.symlink(self.path("elsewhere.jsonl"), self.path("run", "metrics.jsonl"))
        os.symlink(self.path("made.json"), self.path("run", "timeline.json"))
        r = run("train", "--resume", "--out", self.path("run"), "--eval-data", self.held_out,
                "--timeline", "--steps", 4)
        self.assertEqual(r.returncode, DONE, r.stderr)
        for name in ("best.tmp", "checkpoint/notes.tmp", "checkpoint/notes", "run-failed.json"):
            self.assertEqual(ek_cli.read(self.path("run", name)), b"mine")
        self.assertTrue(os.path.exists(self.path("made.json")))
        self.assertEqual(ek_cli.lines_of(self.path("elsewhere.jsonl")), 4)
        self.assertTrue(os.readlink(self.path("run", "best")).startswith("checkpoint/step-"))
        r = run("train", "--resume", "--out", self.path("run"), "--steps", 5)
        self.assertEqual(r.returncode, DONE, r.stderr)

    def test_patience(self):
        """Ends the run normally; a resumed run keeps the count, a larger limit continues it."""
        whole = self.summary("whole", "--eval-every", 1, steps=30)["evaluation"]
        best = whole["best_step"]
        s = self.summary("run", "--eval-every", 1, "--patience", 3, steps=30)
        self.assertTrue(s["evaluation"]["stopped_early"])
        self.assertEqual(s["steps"], best + 3)
        self.assertEqual(len(metrics(self.path("run"))), best + 3)
        self.assertEqual(ek_cli.newest(self.path("run"))[-8:], "%08d" % (best + 3))
        r = run("train", "--resume", "--out", self.path("run"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("larger --patience", r.stderr)
        self.assertEqual(len(metrics(self.path("run"))), best + 3)
        r = run("train", "--resume", "--out", self.path("run"), "--patience", 5)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(len(metrics(self.path("run"))), best + 5)
        r = run("train", "--resume", "--out", self.path("run"), "--patience", 0)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(len(metrics(self.path("run"))), 30)
        self.assertEqual({s: m["eval_loss"] for s, m in evaluations(self.path("run")).items()},
                         {s: m["eval_loss"] for s, m in evaluations(self.path("whole")).items()})

    def test_resumed_runs_know_what_was(self):
        """Repeated steps are evaluated again, and every line exists once."""
        self.train_evaluating("whole", "--eval-every", 2, "--save-every", 3, "--keep", 9, steps=12)
        shutil.copytree(self.path("whole"), self.path("run"), symlinks=True)
        for step in os.listdir(self.path("run", "checkpoint")):
            if int(step[5:]) > 6:
                shutil.rmtree(self.path("run", "checkpoint", step))
        r = run("train", "--resume", "--out", self.path("run"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual([m["step"] for m in metrics(self.path("run"))], list(range(12)))
        self.assertEqual({s: m["eval_loss"] for s, m in evaluations(self.path("run")).items()},
                         {s: m["eval_loss"] for s, m in evaluations(self.path("whole")).items()})
        self.assertEqual(state(self.path("run")), state(self.path("whole")))

    def cut_short(self, steps):
        """A run that Ctrl-C ends while it evaluates after step 5; what it said.  Where this process
        was too slow to interrupt the evaluation it tries again, with more to evaluate."""
        for tokens in (400000, 2000000, 10000000):
            long = ek_cli.write_tokens(self.path("long.bin"), ek_cli.token_ids(tokens, seed=9))
            args = ["--eval-data", long, "--eval-tokens", 0, "--eval-every", 5, "--lr", 0.01]
            with ek_cli.start(*self.train_args("run", *args, steps=steps)) as p:
                ek_cli.wait_for_steps(p, self.path("run"), 5)
                p.send_signal(signal.SIGINT)
                _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
            if evaluations(self.path("run")) == {}:
                break
        self.assertEqual(p.returncode, INTERRUPTED, err)
        self.assertEqual(evaluations(self.path("run")), {})
        self.assertEqual(len(metrics(self.path("run"))), 5)
        return err

    def test_an_evaluation_that_was_cut_short_is_made_up_for(self):
        """Ctrl-C acts between batches; the next start evaluates before its first step."""
        self.cut_short(8)
        r = run("train", "--resume", "--out", self.path("run"), "--eval-tokens", 2000)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(sorted(evaluations(self.path("run"))), [5, 8])
        self.assertEqual([m["step"] for m in metrics(self.path("run"))], list(range(8)))

    def test_the_last_evaluation_was_cut_short(self):
        """The run is complete once the next start has evaluated, with the best checkpoint."""
        err = self.cut_short(5)
        self.assertIn("interrupted after step 5 of 5, in the last evaluation", err)
        self.assertFalse(os.path.lexists(self.path("run", "best")))
        resume = ["train", "--resume", "--out", self.path("run"), "--eval-tokens", 2000]
        r = run(*resume, "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        s = json.loads(r.stdout)
        self.assertEqual((s["steps"], s["loss"]), (5, None))
        self.assertEqual(sorted(evaluations(self.path("run"))), [5])
        self.assertEqual(os.readlink(self.path("run", "best")), "checkpoint/step-00000005")
        self.assertEqual(s["evaluation"]["best_checkpoint"], self.path("run", "best"))
        self.assertEqual(run("check", "--checkpoint", self.path("run")).returncode, DONE)
        r = run(*resume)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("all steps are already completed", r.stderr)

    def test_large_perplexities_are_short(self):
        """A loss of hundreds of nats does not fill the line with digits."""
        r = run(*self.train_args("run", "--eval-data", self.held_out, "--lr", 10, "--clip", 0,
                                 "--wd", 0, "--warmup", 0, dtype="fp64", steps=3))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertGreater(state(self.path("run"))["loss"], 50)
        self.assertLess(state(self.path("run"))["loss"], 700)
        for text in (r.stdout, r.stderr):
            found = re.findall(r"perplexity ([^\s;]+)", text)
            self.assertGreater(len(found), 0, text)
            self.assertLess(max(map(len, found)), 12, text)

    def test_most_tokens(self):
        """Whole windows, spread over the data."""
        of = {}
        for tokens in (0, 1, 500, 10000):
            self.train_evaluating("run%d" % tokens, "--eval-tokens", tokens, steps=2)
            of[tokens] = evaluations(self.path("run%d" % tokens))[2]
        seq = state(self.path("run0"))["seq"]
        self.assertEqual([m["eval_tokens"] for m in of.values()],
                         [999, seq, 500 // seq * seq, 999])
        self.assertEqual(of[0]["eval_loss"], of[10000]["eval_loss"])

    def test_windows_are_evenly_spaced(self):
        self.train_evaluating("run", "--eval-tokens", 4 * 16, dtype="fp64", steps=2)
        ids, losses = ek_cli.token_ids(1000, seed=9), []
        for window in 0, 15, 31, 47:  # of 63
            data = ek_cli.write_tokens(self.path("window.bin"), ids[16 * window:16 * window + 17])
            losses.append(self.evaluate(self.path("run"), data)["loss"])
        self.assert_close([evaluations(self.path("run"))[2]["eval_loss"]], [sum(losses) / 4], 1e-12)

    def test_other_data_begin_anew(self):
        self.train_evaluating("run", "--eval-every", 2, "--patience", 1, steps=4)
        other = ek_cli.write_tokens(self.path("other.bin"), ek_cli.token_ids(500, seed=3))
        r = run("train", "--resume", "--out", self.path("run"), "--eval-data", other,
                "--patience", 0, "--steps", 8)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("the patience count are reset", r.stderr)
        self.assertEqual(state(self.path("run"))["data_tokens"], 500)

    def test_what_cannot_be_evaluated(self):
        empty = ek_cli.write_tokens(self.path("one.bin"), [1])
        ends = ek_cli.write_tokens(self.path("ends.bin"), [256] * 100)
        r = run(*self.train_args("masked", "--eval-data", ends, "--document-mask"))
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn("--eval-data has no valid target", r.stderr)
        for args, status, words in (
                (["--eval-data", self.held_out + ":0.5"], USAGE, "weight"),
                (["--eval-data", self.path("nothing.bin")], BAD_INPUT, "nothing.bin"),
                (["--eval-data", empty], BAD_INPUT, "at least two"),
                (["--patience", 3], USAGE, "--patience without --eval-data"),
                (["--eval-every", 3], USAGE, "--eval-every without --eval-data"),
                (["--eval-data", self.held_out, "--eval-every", 0], USAGE, "--eval-every")):
            with self.subTest(args=args):
                r = run(*self.train_args("run", *args))
                self.assertEqual(r.returncode, status, r.stderr)
                self.assertIn(words, r.stderr)
                self.assertFalse(os.path.exists(self.path("run")))


if __name__ == "__main__":
    ek_cli.main()
