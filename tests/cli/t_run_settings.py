"""A run keeps its settings (run.json) and its files: --resume, --override, --out, --overwrite."""

import json
import os
import shutil
import signal
import subprocess

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, INTERRUPTED, USAGE, losses, metrics, run, write

# None of these is a default.
MORE = ("--lr", 3e-3, "--lr-schedule", "constant", "--wd", 0.5, "--beta1", 0.8, "--beta2", 0.9,
        "--eps", 1e-7, "--clip", 0.7, "--aux-coef", 0.02, "--z-coef", 1e-3, "--warmup", 3,
        "--capacity-factor", 2, "--seed", 7, "--data-order", "sequential", "--micro-batch", 3)


def settings(folder):
    with open(os.path.join(folder, "run.json"), encoding="utf-8") as f:
        return json.load(f)["settings"]


class Resume(ek_cli.Case):
    def resume(self, out, *more, status=DONE, **kw):
        r = run("train", "--out", self.path(out), "--resume", *more, **kw)
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def test_without_options_equals_an_undisturbed_run(self):
        self.train("whole", *MORE, steps=12)
        self.train("cut", *MORE, steps=6)
        self.resume("cut", "--steps", 12)
        self.assertEqual(losses(self.path("cut")), losses(self.path("whole")))
        self.assertEqual([m["lr"] for m in metrics(self.path("cut"))],
                         [m["lr"] for m in metrics(self.path("whole"))])
        self.assertEqual(ek_cli.weights(self.path("cut")), ek_cli.weights(self.path("whole")))

    def test_interrupted_run_goes_on_without_a_single_option(self):
        more = ("--lr", 0.02, "--save-every", 1000)
        steps = 400
        self.train("whole", *more, steps=steps)
        with ek_cli.start(*self.train_args("cut", *more, "--quiet", steps=steps)) as p:
            ek_cli.wait_for_steps(p, self.path("cut"), 3)
            p.send_signal(signal.SIGINT)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        if p.returncode == DONE:
            self.skipTest("the run was over before the signal came")
        self.assertEqual(p.returncode, INTERRUPTED, err)
        self.resume("cut", cwd="/")  # paths are those of the run's own folder
        self.assertEqual(losses(self.path("cut")), losses(self.path("whole")))
        self.assertEqual(ek_cli.weights(self.path("cut")), ek_cli.weights(self.path("whole")))

    def test_a_setting_that_changes_losses_is_refused(self):
        self.train("run", *MORE, steps=3)
        before = ek_cli.tree(self.path("run"))
        for more, word in ((("--lr", 0.1), "--lr 0.1 (it was 0.003)"), (("--clip", 1), "--clip"),
                           (("--seed", 8), "--seed"), (("--batch", 5), "--batch"),
                           (("--dtype", "fp64"), "--dtype"), (("--top-k", 1), "--top-k"),
                           (("--force-balance",), "--force-balance")):
            r = self.resume("run", "--steps", 6, *more, status=USAGE)
            self.assertIn(word, r.stderr)
            self.assertIn("--override", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertEqual(ek_cli.tree(self.path("run")), before)
        r = self.resume("run", "--steps", 6, "--lr", 0.1, "--override")
        self.assertIn("--lr 0.1 (it was 0.003)", r.stderr)
        self.assertEqual([m["lr"] for m in metrics(self.path("run"))][3:], [0.1] * 3)
        self.assertEqual(settings(self.path("run"))["lr"], 0.1)  # which the next start goes on with
        self.resume("run", "--steps", 7)
        self.assertEqual(metrics(self.path("run"))[-1]["lr"], 0.1)

    def test_a_setting_that_changes_no_loss_is_said_and_kept(self):
        self.train("run", steps=3)
        r = self.resume("run", "--steps", 6, "--keep", 7)
        self.assertIn("--steps 6 (it was 3)", r.stderr)
        self.assertIn("--keep 7 (it was 2)", r.stderr)
        self.assertEqual(settings(self.path("run"))["keep"], 7)
        self.assertNotIn("it was", self.resume("run", "--steps", 6).stderr)

    def test_a_config_file_counts_as_given(self):
        self.train("run", steps=3)
        config = write(self.path("more.json"), json.dumps({"steps": 5, "keep": 3}))
        self.resume("run", "--config", config)
        self.assertEqual(len(metrics(self.path("run"))), 5)
        self.assertEqual(settings(self.path("run"))["keep"], 3)

    def test_all_seeds(self):
        """64 bits, in a run, its checkpoint and resumed runs."""
        first = set()
        for seed in (2 ** 63 - 1, 2 ** 63, 2 ** 64 - 1):
            self.train("run", "--seed", seed, steps=2)
            self.assertEqual(int(settings(self.path("run"))["seed"]), seed)
            self.resume("run", "--steps", 3)
            first.add(losses(self.path("run"))[0])
            self.resume("run", "--steps", 4, "--seed", seed - 1, status=USAGE)
            r = run("generate", "--model", self.path("run"), "--tokenizer", "bytes", "--prompt",
                    "x", "--tokens", 3, "--seed", seed)
            self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(len(first), 3)

    def test_the_checkpoint_has_them_too(self):
        self.train("run", *MORE, steps=3)
        os.remove(self.path("run", "run.json"))
        self.resume("run", "--steps", 5)
        self.assertEqual(metrics(self.path("run"))[-1]["lr"], 3e-3)

    def test_a_run_of_a_version_without_run_json_goes_on_as_told(self):
        old = os.path.join(ek_cli.TEST_DATA, "golden", "old_run")
        shutil.copytree(old, self.path("run"))
        r = run("train", "--out", self.path("run"), "--resume")
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("needs `--data`", r.stderr)
        model = ek_cli.newest(self.path("run"))
        self.train("run", "--model", model, "--resume", "--data-order", "sequential", steps=4)
        self.assertEqual(len(metrics(self.path("run"))), 4)

    def test_run_json_that_is_not_understood_is_bad_input(self):
        self.train("run", steps=2)
        path = self.path("run", "run.json")
        text = ek_cli.read(path).decode()
        for changed, word in ((text.replace("evenkeel-run", "other"), "evenkeel-run"),
                              (text.replace('"lr"', '"learning"'), "`learning`"),
                              (text.replace('"lr": 0.001', '"lr": "high"'), "setting `lr`"),
                              (text[:-3], "run.json"), ("[]", "run.json"), ("", "run.json")):
            write(path, changed)
            self.assertIn(word, self.resume("run", "--steps", 4, status=BAD_INPUT).stderr)

    def test_commands_are_not_taken_from_the_folder(self):
        """Commands are not taken from run.json or a checkpoint of another folder."""
        self.train("run", steps=2)
        done = self.path("done")
        script = write(self.path("evil.sh"), "#!/bin/sh\ntouch %s\n" % done)
        os.chmod(script, 0o755)
        own, kept = self.path("run", "run.json"), os.path.join(ek_cli.newest(self.path("run")),
                                                                "run.json")
        told = json.loads(ek_cli.read(own))
        for more in ({"elastic": True, "discover": script},
                     {"ranks": 2, "mpiexec-args": "-launcher rsh -launcher-exec " + script}):
            name = list(more)[-1]
            for path in own, kept:
                with self.subTest(name, path=path):
                    write(own, json.dumps(told))
                    if path == kept:
                        os.remove(own)
                    write(path, json.dumps({**told, "settings": {**told["settings"], **more}}))
                    r = self.resume("run", "--steps", 4, status=USAGE)
                    self.assertIn("give --%s again" % name, r.stderr)
                    self.assertIn(json.dumps(more[name]), r.stderr)
                    self.assertFalse(os.path.exists(done))
                    write(kept, json.dumps(told))

    def test_a_linked_checkpoint_is_not_pruned(self):
        """What stands elsewhere was not made here."""
        self.train("run", "--save-every", 1, "--keep", 5, steps=2)
        big, link = self.path("big"), self.path("run", "checkpoint", "step-00000001")
        os.rename(link, big)
        os.symlink(big, link)
        before = ek_cli.tree(big)
        self.resume("run", "--steps", 5, "--keep", 1)
        self.assertEqual(ek_cli.tree(big), before)
        self.assertEqual(sorted(os.listdir(self.path("run", "checkpoint"))),
                         ["step-00000001", "step-00000005"])

    def test_run_json_says_version_command_and_folder(self):
        self.train("run", steps=2)
        root = json.loads(ek_cli.read(self.path("run", "run.json")))
        self.assertEqual(root["command"][0], "train")
        self.assertIn("--steps", root["command"])
        self.assertEqual(root["directory"], os.getcwd())
        self.assertIn(root["evenkeel"], run("--version").stdout)
        newest = ek_cli.newest(self.path("run"))
        self.assertEqual(ek_cli.read(os.path.join(newest, "run.json")),
                         ek_cli.read(self.path("run", "run.json")))

    def test_ranks_and_layout_are_settings(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        # every size is the run's again, or none of them is
        self.train("run", "--ranks", 2, "--ep", 2, "--threads", 1, steps=2)
        self.resume("run", "--steps", 4)
        self.assertEqual(metrics(self.path("run"))[-1]["ranks"], 2)
        self.resume("run", "--steps", 6, "--ranks", 1)
        self.assertEqual(metrics(self.path("run"))[-1]["ranks"], 1)
        self.assertEqual(settings(self.path("run"))["ep"], 1)
        self.resume("run", "--steps", 8, "--ranks", 2, "--tp", 2)
        self.assertEqual([m["ranks"] for m in metrics(self.path("run"))], [2] * 4 + [1, 1, 2, 2])

    def test_other_contents_of_the_same_size_are_refused(self):
        """Of data, tokenizer and replayed trace; files may lie elsewhere."""
        tokenizer, trace = self.path("tokenizer.json"), self.path("trace.npy")
        self.train("first", "--record-routing", "--tokenizer", "bytes", steps=2)
        shutil.copy(self.path("first", "routing.npy"), trace)
        shutil.copy(os.path.join(ek_cli.newest(self.path("first")), "tokenizer.json"), tokenizer)
        data = self.path("copy.bin")
        shutil.copy(self.data, data)
        self.train("run", "--tokenizer", tokenizer, "--replay-routing", trace, data=data, steps=2)
        changed = ((data, ek_cli.write_tokens(self.path("y.bin"), ek_cli.token_ids(1500, seed=5)),
                    "the data (--data)"),
                   (tokenizer, None, "the tokenizer (--tokenizer"),
                   (trace, None, "the trace (--replay-routing)"))
        for path, by, word in changed:
            with self.subTest(word=word):
                before = ek_cli.read(path)
                if by is not None:
                    shutil.copy(by, path)
                elif path == trace:
                    with open(path, "r+b") as f:
                        f.seek(128)
                        f.write(bytes(reversed(before[128:])))
                else:
                    with open(path, "ab") as f:
                        f.write(b"\n")
                r = self.resume("run", "--steps", 4, "--quiet", status=USAGE)
                self.assertIn(word + " ", r.stderr.replace(", or the model's)", " "))
                self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
                with open(path, "wb") as f:
                    f.write(before)
        # the same at another place
        shutil.move(data, self.path("moved.bin"))
        self.resume("run", "--steps", 3, "--data", self.path("moved.bin"))
        # with --override it is the run's from then on
        shutil.copy(changed[0][1], self.path("moved.bin"))
        self.resume("run", "--steps", 4, status=USAGE)
        self.resume("run", "--steps", 4, "--override")
        self.resume("run", "--steps", 5)

    def test_words_that_are_also_names_of_files(self):
        """They are stored as what they meant: --tokenizer takes the word, --model the file."""
        for name in "bytes", "tiny":
            write(self.path(name), ek_cli.read(self.config).decode())
        text = write(self.path("text.txt"), "some words, and more of them. " * 40)
        r = run("train", "--model", "tiny", "--tokenizer", "bytes", "--data", text, "--out", "run",
                "--steps", 2, "--batch", 4, "--seq", 16, "--threads", 2, cwd=self.folder)
        self.assertEqual(r.returncode, DONE, r.stderr)
        stored = settings(self.path("run"))
        self.assertEqual((stored["tokenizer"], stored["model"]), ("bytes", self.path("tiny")))
        self.resume("run", "--steps", 4)

    def test_there_is_no_run(self):
        os.mkdir(self.path("empty"))
        write(self.path("other", "notes"), "mine")
        for name in "nothing", "empty", "other":
            r = self.resume(name, status=BAD_INPUT)
            self.assertIn("there is no run in " + self.path(name), r.stderr)
        r = run("train", "--resume", cwd=self.folder)
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn("there is no run in run", r.stderr)
        self.assertFalse(os.path.exists(self.path("nothing")))
        r = run("train", "--resume", "--elastic", "--out", self.path("nothing"))
        self.assertEqual(r.returncode, USAGE, r.stderr)  # which starts it
        self.assertIn("needs `--data`", r.stderr)

    def test_of_a_replacement_that_was_killed(self):
        """It says where the earlier run is, and what it says brings that back."""
        self.train("run", "--eval-data", self.data, steps=2)
        model = ek_cli.weights(self.path("run"))
        with ek_cli.start(*self.train_args("run", "--lr", 0.1, steps=100000)) as p:
            ek_cli.wait_for_steps(p, self.path("run"), 3)
            p.kill()
            p.communicate(timeout=ek_cli.TIMEOUT_S)
        r = self.resume("run", status=BAD_INPUT)
        self.assertIn("no complete checkpoint in " + self.path("run"), r.stderr)
        for word in self.path("run", "checkpoint.replaced"), "run.json", "--overwrite", "best":
            self.assertIn(word, r.stderr)
        os.remove(self.path("run", "run.json"))
        self.assertIn("checkpoint.replaced", self.resume("run", status=BAD_INPUT).stderr)
        os.remove(self.path("run", "metrics.jsonl"))
        for name in "checkpoint", "best":
            os.rename(self.path("run", name + ".replaced"), self.path("run", name))
        self.assertEqual(ek_cli.weights(self.path("run")), model)
        self.resume("run", "--steps", 4)
        self.assertEqual([(m["step"], m["lr"] < 0.01) for m in metrics(self.path("run"))],
                         [(2, True), (3, True)])


class Out(ek_cli.Case):
    def refused(self, out, *more):
        before = ek_cli.tree(self.path(out))
        r = run(*[a for a in self.train_args(out, *more) if a != "--overwrite"])
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertEqual(ek_cli.tree(self.path(out)), before)
        return r.stderr

    def test_a_run_is_not_replaced_unless_told(self):
        self.train("run", steps=2)
        for word in "--resume", "--overwrite", "--out":
            self.assertIn(word, self.refused("run"))
        for more in (), ("--model", self.path("run")):  # its source, too
            self.refused("run", *more)
        self.train("run", "--overwrite", steps=3)
        self.assertEqual(len(metrics(self.path("run"))), 3)

    def test_foreign_files_are_never_replaced(self):
        for i, name in enumerate(("checkpoint/mine/w", "checkpoint/step- 3/w",
                                  "checkpoint/step-3/w", "checkpoint/mine.tmp/w", "metrics.jsonl",
                                  "routing.npy", "run.json", "timeline.json", "plans.jsonl",
                                  "checkpoint.old/w", "checkpoint.tmp/w")):
            out = "x%d" % i
            write(self.path(out, name), "mine")
            self.refused(out)
            r = run(*self.train_args(out), "--overwrite")
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn(name.rsplit("/w")[0], r.stderr)
            self.assertEqual(ek_cli.read(self.path(out, name)), b"mine")

    def test_foreign_json_is_never_replaced(self):
        """JSON files of other programs are not overwritten."""
        for i, name in enumerate(("run.json", "timeline.json", "timeline-rank1.json", "plans.jsonl",
                                  "plans-stage1.jsonl", "generations.jsonl", "run-failed.json",
                                  "metrics.jsonl", "metrics-failed.jsonl", "metrics-undone.jsonl",
                                  "evaluation.json")):
            out = "x%d" % i
            mine = json.dumps({"my": "own notes", "format": "evenkeel-run", "step": 1}, indent=2)
            for before in ("timeline.json", "plans.jsonl"):  # numbered files follow the first one
                if name != before and name.startswith(before.split(".")[0]):
                    write(self.path(out, before), "")
            write(self.path(out, name), mine)
            for more in ("--overwrite", "--elastic"):
                if more == "--elastic" and name == "run.json":
                    continue  # which is read before
                with self.subTest(name=name, more=more):
                    r = run(*self.train_args(out, more))
                    self.assertEqual(r.returncode, USAGE, r.stderr)
                    self.assertIn(os.path.join(out, name) + " is not a file that a run", r.stderr)
                    self.assertEqual(ek_cli.read(self.path(out, name)), mine.encode())

    def test_costs_replace_costs_alone(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        more = "--elastic --balance exact --ranks 2 --ep 2 --threads 1".split()
        path = write(self.path("run", "machine.json"), '{"my": "own notes"}')
        self.train("run", *more, steps=2)
        self.assertEqual(ek_cli.read(path), b'{"my": "own notes"}')
        costs = ek_cli.machine("fp32")
        write(path, json.dumps(costs))
        self.train("run", *more, steps=4)
        self.assertNotEqual(json.loads(ek_cli.read(path)), costs)

    def test_all_files_of_a_run_are_known_as_such(self):
        """A run with all of them can be replaced, and one of an earlier version."""
        more = ["--timeline", "--record-routing", "--eval-data", self.data]
        expected = {"run.json", "metrics.jsonl", "timeline.json", "routing.npy", "evaluation.json",
                    "best"}
        if ek_cli.mpiexec() is not None:
            more += "--record-plans --balance exact --ranks 4 --pp 2 --ep 2 --threads 1".split()
            expected |= {"plans.jsonl", "plans-stage1.jsonl", "timeline-rank3.json"}
        self.train("run", *more)
        made = set(os.listdir(self.path("run")))
        self.assertLessEqual(expected, made)
        said = run("train", "--help").stdout.split("--out DIR")[1].split("--timeline")[0]
        for name in made:
            if "-" not in name:
                self.assertIn(name, said)
        text = ek_cli.read(self.path("run", "run.json")).decode()
        write(self.path("run", "run.json"), json.dumps(json.loads(text)))  # as one line
        self.train("run", "--overwrite", *more)
        self.assertEqual(set(os.listdir(self.path("run"))), made)
        self.train("run", "--overwrite")
        self.assertEqual(sorted(os.listdir(self.path("run"))),
                         ["checkpoint", "metrics.jsonl", "run.json"])
        shutil.copytree(os.path.join(ek_cli.TEST_DATA, "golden", "old_run"), self.path("old"))
        self.train("old", "--overwrite", steps=3)
        self.assertEqual(len(metrics(self.path("old"))), 3)

    def test_other_files_stay(self):
        write(self.path("run", "notes.txt"), "mine")
        self.train("run", steps=2)
        self.train("run", "--overwrite", steps=2)
        self.assertEqual(ek_cli.read(self.path("run", "notes.txt")), b"mine")

    def test_a_run_that_fails_at_once_keeps_the_earlier_model(self):
        self.train("run", steps=2)
        model = ek_cli.tree(self.path("run", "checkpoint"))
        self.train("run", "--overwrite", "--aux-coef", 1e308, status=FAILED)
        self.assertEqual(ek_cli.tree(self.path("run", "checkpoint")), model)
        self.assertEqual(run("train", "--out", self.path("run"), "--resume", "--steps",
                             4).returncode, DONE)
        self.assertEqual([m["step"] for m in metrics(self.path("run"))][-2:], [2, 3])

    def test_the_earlier_model_goes_when_there_is_a_new_one(self):
        self.train("run", steps=2)
        self.train("run", "--overwrite", steps=3)
        self.assertEqual(os.listdir(self.path("run", "checkpoint")), ["step-00000003"])
        self.assertEqual(sorted(os.listdir(self.path("run"))),
                         ["checkpoint", "metrics.jsonl", "run.json"])

    def test_overwrite_does_not_go_on(self):
        self.train("run", steps=2)
        r = run(*self.train_args("run", "--resume", "--overwrite"))
        self.assertEqual(r.returncode, USAGE)
        self.assertIn("--overwrite starts a new run", r.stderr)

    def here(self, *args):
        """In the test's folder, with no --out."""
        words = self.train_args("unused", *args, steps=2)
        at = words.index("--out")
        r = run(*words[:at], *words[at + 2:], cwd=self.folder)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return r.stderr

    def test_by_default_each_run_has_its_own_folder(self):
        for name in "run", "run-2", "run-3":
            self.assertIn("output in %s\n" % name, self.here())
            self.assertTrue(os.path.exists(self.path(name, "metrics.jsonl")))
        r = run("train", "--resume", "--steps", 4, cwd=self.folder)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("output in run-3\n", r.stderr)
        self.assertEqual([len(metrics(self.path(n))) for n in ("run", "run-2", "run-3")],
                         [2, 2, 4])

    def test_by_default_the_largest_number_counts(self):
        """Deleted runs leave gaps; other names do not count."""
        for name in "run", "run-3", "run-10":
            self.train(name, steps=2)
        for name in "run-11x", "run-012", "run--20", "run-0", "run-1", "run-+30", "running":
            self.train(name, steps=2)
        os.mkdir(self.path("run-12"))  # without a run
        r = run("train", "--resume", "--steps", 4, cwd=self.folder)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("output in run-10\n", r.stderr)
        self.assertEqual([len(metrics(self.path(n))) for n in ("run", "run-3", "run-10")],
                         [2, 2, 4])
        self.assertIn("output in run-11\n", self.here())
        for name in "run", "run-10", "run-11":
            shutil.rmtree(self.path(name))
        self.assertIn("output in run-4\n", self.here())

    def test_by_default_ranks_agree_on_the_folder(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        for name in "run", "run-2":
            self.assertIn("output in %s\n" % name, self.here("--ranks", 2, "--threads", 1))
            self.assertEqual(metrics(self.path(name))[-1]["ranks"], 2)


if __name__ == "__main__":
    ek_cli.main()
