"""Kills a run at random instants; shared by the tests of this folder.

A run that saves every 3 steps is killed with SIGKILL after a random delay, drawn from the
duration of the whole run, and resumed; the resumed run is killed again, and so on; the last one
completes.  Instants before the first checkpoint are included: then the run is started again."""

import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import ek_cli  # noqa: E402  (the path above is where it is)


class Kill(ek_cli.Case):
    STEPS = 60

    def arguments(self, out, dtype, *more):
        return self.train_args(out, *more, "--save-every", 3, "--lr", 0.01, "--quiet", dtype=dtype,
                               steps=self.STEPS)

    def go_on(self, dtype):
        """Arguments of the next start: with --resume once there is a checkpoint."""
        more = ["--resume"] if os.path.exists(self.path("cut", "checkpoint")) else []
        return self.arguments("cut", dtype, *more)

    def kill_one(self, dtype, delay):
        """Whether the run was killed before it completed, and the seconds that it had."""
        begin = time.monotonic()
        with ek_cli.start(*self.go_on(dtype)) as p:
            try:
                p.wait(delay)
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGKILL)
            _, err = p.communicate()
        self.assertIn(p.returncode, (ek_cli.DONE, -signal.SIGKILL), err)
        return p.returncode != ek_cli.DONE, time.monotonic() - begin

    def check_whole(self):
        """At any instant, the checkpoint, once it exists, is readable by eval."""
        if os.path.exists(self.path("cut", "checkpoint")):
            self.evaluate(self.path("cut"), self.data)

    def kill_often(self, kills, seed, dtype):
        begin = time.monotonic()
        r = ek_cli.run(*self.arguments("whole", dtype))
        self.assertEqual(r.returncode, ek_cli.DONE, r.stderr)
        whole_s = time.monotonic() - begin
        rng = random.Random(seed)
        done = 0
        for _ in range(4 * kills):
            if done == kills:
                break
            first = not os.path.exists(self.path("cut"))
            killed, had_s = self.kill_one(dtype, rng.random() * whole_s)
            if killed:
                done += 1
                self.check_whole()
            else:  # it had ended: begin again
                if first:  # the machine was busier when the whole run was timed
                    whole_s = min(whole_s, had_s)
                self.same_as_whole()
                os.rename(self.path("cut"), self.path("cut-%d" % rng.getrandbits(40)))
        self.assertEqual(done, kills, "too few kills came before the end")
        r = ek_cli.run(*self.go_on(dtype))
        self.assertEqual(r.returncode, ek_cli.DONE, r.stderr)
        self.same_as_whole()

    def same_as_whole(self):
        cut, whole = (ek_cli.metrics(self.path(x)) for x in ("cut", "whole"))
        self.assertEqual([m["step"] for m in cut], list(range(self.STEPS)))
        for key in ("loss", "grad_norm", "aux_loss"):
            self.assertEqual([m[key] for m in cut], [m[key] for m in whole])
        for file in ("model.safetensors", "optimizer.safetensors"):
            cut, whole = (ek_cli.read(os.path.join(ek_cli.newest(self.path(x)), file))
                          for x in ("cut", "whole"))
            self.assertTrue(cut == whole, file)
        kept = sorted(os.listdir(self.path("cut", "checkpoint")))
        self.assertEqual(kept[-2:], ["step-%08d" % n for n in (self.STEPS - 3, self.STEPS)])
        # a kill between the last save and the deletion of what it replaces leaves a third
        self.assertLessEqual(len(kept), 3)
