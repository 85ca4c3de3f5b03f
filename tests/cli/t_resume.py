"""evenkeel train --resume: a stopped run continues bit for bit as if it had not been stopped."""

import json
import os
import shutil
import signal
import time

import ek_cli
from ek_cli import BAD_INPUT, DONE, INTERRUPTED, USAGE, losses, metrics, run

STEPS = 400  # so many that a signal sent after the first ones finds the run at work, as a rule
TRIES = 10


class Resume(ek_cli.Case):
    def stop(self, out, sig, dtype):
        """Runs until `sig` has ended it; returns the number of steps completed."""
        for _ in range(TRIES):
            with ek_cli.start(*self.train_args(out, "--lr", 0.01, dtype=dtype, steps=STEPS)) as p:
                ek_cli.wait_for_steps(p, self.path(out), 3)
                p.send_signal(sig)
                _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
            if p.returncode != DONE:  # else this process had no core for a while, and the run was over
                break
        self.assertEqual(p.returncode, INTERRUPTED, err)
        last = err.splitlines()[-1]
        done = len(metrics(self.path(out)))
        self.assertTrue(3 <= done < STEPS, done)
        self.assertIn("interrupted after step %d of %d" % (done, STEPS), last)
        self.assertIn("--resume", last)
        self.assertEqual(ek_cli.newest(self.path(out))[-8:], "%08d" % done)
        return done

    def stopped_is_whole(self, sig, dtype):
        self.train("whole", "--lr", 0.01, dtype=dtype, steps=STEPS)
        done = self.stop("parts", sig, dtype)
        r = run(*self.train_args("parts", "--lr", 0.01, "--resume", dtype=dtype, steps=STEPS))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("continuing after step %d" % done, r.stderr)
        self.assertEqual([m["step"] for m in metrics(self.path("parts"))], list(range(STEPS)))
        for key in ("loss", "grad_norm", "lr", "aux_loss"):
            self.assertEqual([m[key] for m in metrics(self.path("parts"))],
                             [m[key] for m in metrics(self.path("whole"))])
        self.assertEqual(ek_cli.weights(self.path("parts")), ek_cli.weights(self.path("whole")))

    def test_sigint_fp32(self):
        self.stopped_is_whole(signal.SIGINT, "fp32")

    def test_sigterm_bf16(self):
        self.stopped_is_whole(signal.SIGTERM, "bf16")

    def saved_by_time(self, *layout):
        """Runs until two checkpoints were saved by time; the settings keep the interval."""
        out, seen, most = self.path("run"), set(), 1000000
        args = self.train_args("run", "--save-every", "1s", "--keep", 1, *layout, steps=most)
        with ek_cli.start(*args) as p:
            end = time.monotonic() + ek_cli.TIMEOUT_S
            while len(seen) < 2 and p.poll() is None and time.monotonic() < end:
                if os.path.isdir(os.path.join(out, "checkpoint")):
                    seen |= {n for n in os.listdir(os.path.join(out, "checkpoint"))
                             if not n.endswith((".tmp", ".old"))}
                time.sleep(0.05)
            p.send_signal(signal.SIGINT)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, INTERRUPTED, err)
        self.assertGreaterEqual(len(seen), 2, err)
        done = len(metrics(out))
        self.assertGreater(done, 2, "it is saved after steps, not after each")
        settings = json.loads(ek_cli.read(os.path.join(out, "run.json")))["settings"]
        self.assertEqual(settings["save-every"], "1s")
        r = run("train", "--out", out, "--resume", "--steps", done + 1, "--override")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertNotIn("save-every", r.stderr)
        r = run("train", "--out", out, "--resume", "--steps", done + 2, "--save-every", 5,
                "--override")
        self.assertIn('--save-every 5 (it was "1s")', r.stderr)

    def test_save_by_time(self):
        self.saved_by_time()

    def test_save_by_time_on_two_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("there is no mpiexec")
        self.saved_by_time("--ranks", 2, "--tp", 2)

    def cut(self, out, steps, *more):
        """A finished run of `steps` steps, turned into one that has done those of its oldest
        checkpoint: what a run that ended without notice looks like."""
        self.train(out, "--save-every", 3, *more, steps=steps)
        shutil.rmtree(ek_cli.newest(self.path(out)))

    def test_steps_taken_again_stand_once(self):
        self.cut("run", 12)
        before = losses(self.path("run"))
        with open(self.path("run", "metrics.jsonl"), "a") as f:
            f.write('{"step": 12, "tok')  # a torn line
        self.train("run", "--save-every", 3, "--resume", steps=12)
        self.assertEqual([m["step"] for m in metrics(self.path("run"))], list(range(12)))
        self.assertEqual(losses(self.path("run")), before)

    def test_bias_and_noise(self):
        """What is not a weight under gradients: the bias of a sigmoid gate, counters of noise."""
        for name, changes in {
                "bias": {"evenkeel": {"gate": "sigmoid-bias", "bias_rate": 0.01}},
                "noise": {"router_jitter_noise": 0.1},
                "tied": {"tie_word_embeddings": True},
        }.items():
            config = ek_cli.write_config(self.path(name + ".json"), **changes)
            self.cut(name, 9, "--model", config)
            before = losses(self.path(name))
            self.train(name, "--save-every", 3, "--model", config, "--resume", steps=9)
            self.assertEqual(losses(self.path(name)), before)

    def test_longer(self):
        """More --steps than before: the run continues."""
        self.train("run", "--lr-schedule", "constant", steps=4)
        self.train("run", "--lr-schedule", "constant", "--resume", steps=8)
        self.train("whole", "--lr-schedule", "constant", steps=8)
        self.assertEqual(losses(self.path("run")), losses(self.path("whole")))

    def test_what_a_killed_check_has_left(self):
        """Files by which ranks check that they share --out are removed."""
        self.train("run", steps=2)
        for name in ".shared-12.tmp", ".shared-12":
            ek_cli.write(self.path("run", name), "")
        self.train("run", "--resume", steps=4)
        self.assertEqual([n for n in os.listdir(self.path("run")) if n[0] == "."], [])

    def test_finished(self):
        self.train("run")
        before = ek_cli.tree(self.path("run"))
        r = run(*self.train_args("run", "--resume"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("all steps are already completed", r.stderr)
        r = self.train("run", "--resume")
        self.assertEqual((r.stdout, r.stderr), ("", ""))
        self.assertEqual(ek_cli.tree(self.path("run")), before)

    def test_init_is_ignored(self):
        self.cut("run", 6)
        self.train("run", "--save-every", 3, "--resume", "--init", self.path("nowhere"))
        self.train("whole")
        self.assertEqual(losses(self.path("run")), losses(self.path("whole")))

    def test_nothing_to_resume(self):
        for name in ("missing", "empty"):
            if name == "empty":
                os.mkdir(self.path("empty"))
            r = self.train(name, "--resume", status=BAD_INPUT)
            self.assertIn("there is no run in " + self.path(name), r.stderr)
        self.assertFalse(os.path.exists(self.path("missing")))
        self.assertEqual(os.listdir(self.path("empty")), [])

    def test_other_settings(self):
        self.cut("run", 6)
        before = ek_cli.tree(self.path("run"))
        for option, value in {"batch": 5, "seq": 8, "seed": 3, "data-order": "sequential",
                              "dtype": "bf16", "micro-batch": 1}.items():
            r = self.train("run", "--resume", "--" + option, value, status=USAGE)
            self.assertIn("--" + option, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertEqual(ek_cli.tree(self.path("run")), before)

    def test_damaged_newest(self):
        """A checkpoint with a wrong checksum is skipped for the previous one, with a warning."""
        self.train("run", "--save-every", 2)
        before = losses(self.path("run"))
        file = os.path.join(ek_cli.newest(self.path("run")), "model.safetensors")
        data = bytearray(ek_cli.read(file))
        data[-1] ^= 1
        ek_cli.write(file, bytes(data))
        r = run(*self.train_args("run", "--save-every", 2, "--resume"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("step-00000006", r.stderr)
        self.assertIn("continuing after step 4", r.stderr)
        self.assertEqual(losses(self.path("run")), before)


if __name__ == "__main__":
    ek_cli.main()
