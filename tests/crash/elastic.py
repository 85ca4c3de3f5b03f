"""--elastic runs under faults, shared by the t_elastic_*.py.

They write no checkpoints unless a test asks for them, so all recoveries are from shared memory."""

import glob
import json
import os
import random
import re
import shutil
import signal
import sys
import time

import ranks
from ranks import DONE, INTERRUPTED, ek_cli

LAYOUTS = (
    (2, "--ep 2 --balance exact"),
    (3, "--ep 3 --balance prophet"),
    (2, "--tp 2"),
    (3, "--pp 3"),
    (2, ""),
    (4, "--pp 2 --etp 2"),
)
# Persistent placements change.
MOVING = (
    (3, "--ep 3 --balance place --plan-every 1"),
    (3, "--ep 3 --balance replicate --spare-slots 2 --plan-every 1"),
)
AGAIN = "continuing from memory"


class Elastic(ranks.Disaster):
    steps = 40

    def setUp(self):
        super().setUp()
        self.addCleanup(self.clean)

    def clean(self):
        return ek_cli.run("clean", "--out", self.out)

    def elastic(self, layout, *more, **kw):
        return self.job(layout, "--elastic", *more, **kw)

    def told(self):
        """Complete lines of the metrics; the line of a repeated step differs, in its time."""
        try:
            text = ek_cli.read(os.path.join(self.out, "metrics.jsonl"))
        except FileNotFoundError:
            return b""
        return text[:text.rfind(b"\n") + 1]

    def generations(self):
        try:
            text = ek_cli.read(os.path.join(self.out, "generations.jsonl")).decode()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    memories = ["/dev/shm"]  # of all hosts

    def segments(self):
        """Folders of this run's state, newest generation last."""
        names = {}
        for path in [p for m in self.memories for p in glob.glob(os.path.join(m, "evenkeel-*"))]:
            try:
                head = ek_cli.read(os.path.join(path, "front"))[:4096]
            except OSError:  # another test's
                continue
            if os.path.realpath(self.out).encode() + b"\0" in head:
                names[tuple(map(int, os.path.basename(path).split("-")[2:4]))] = path
        return [names[key] for key in sorted(names)]

    def wait_for_next_generation(self, job):
        """Waits until only the state of a second generation exists and is usable, or the job has
        ended."""
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while job.process.poll() is None and time.monotonic() < end:
            found = {int(os.path.basename(path).split("-")[2]) for path in self.segments()}
            if len(found) == 1 and found != {0}:
                return
            time.sleep(0.01)

    @staticmethod
    def remove_segment(path):
        """Removes its state, as the loss of its host would."""
        shutil.rmtree(path)

    def assert_no_segments(self):
        """Nor incomplete ones, which the command lists as well."""
        self.assertEqual(self.segments(), [])
        self.assertIn("no shared memory of runs", self.clean().stdout)

    def assert_done(self, job, kills=None, steps=None):
        status, out, err = job.end()
        self.assertEqual((status, out), (DONE, ""), err)
        if kills is not None:
            self.assertEqual(err.count(AGAIN), kills, err)
        self.assert_same_losses(steps)
        self.assert_gone(job)
        self.assert_no_segments()
        return err

    def kill_rank(self, job, rank):
        worker = job.rank(rank)
        os.kill(worker, signal.SIGKILL)
        return worker

    def start_and_kill(self, layout, steps, rank):
        """A run of which a rank is killed after so many steps, long before the last one; another one
        where this process had no core until then."""
        for _ in range(5):
            shutil.rmtree(self.out, True)
            job = self.elastic(layout)
            job.wait_for_steps(steps)
            try:
                self.kill_rank(job, rank)
            except (AssertionError, ProcessLookupError):  # the job is over, or this rank
                self.assert_done(job, 0)
                continue
            if self.told().count(b"\n") < self.steps - 5:
                return job
            job.end()
        raise AssertionError("5 runs were over before a rank was killed")

    def kill_workers_in_turn(self, layout, apart):
        """Three times in a fresh run, `apart` steps apart and when all ranks are back, kills a
        random worker; no step is taken again.  Returns the number of kills and stderr."""
        shutil.rmtree(self.out, True)
        rng = random.Random(str(layout))
        job, kills = self.elastic(layout), 3
        for k in range(kills):
            job.wait_for_steps(3 + apart * k)
            job.wait_for_members(layout[0])
            worker, told = job.rank(rng.randrange(layout[0])), self.told()
            os.kill(worker, signal.SIGKILL)
            job.wait_for_steps(4 + apart * k)
            self.assertTrue(self.told().startswith(told), "a step was taken again")
        return kills, self.assert_done(job, kills)

    def kill_launcher(self, job):
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        self.assert_gone(job)

    def kill_at_random_instants(self, seed, most, pause, layouts=LAYOUTS + MOVING):
        """Runs these layouts with at most this many kills each, at most this many seconds apart;
        returns the number of kills."""
        rng, done = random.Random(seed), 0
        for layout in layouts:
            with self.subTest(layout=layout):
                for _ in range(3):
                    shutil.rmtree(self.out, True)
                    j = self.elastic(layout)
                    kills, known = self.kill_some(j, rng, most, pause)
                    if known or kills == 0 or not self.ended_unknown(j):
                        break
                    print("started again: workers were killed before they had begun: %s" % (layout,), file=sys.stderr)
                else:
                    self.fail("workers of 3 runs were killed before they had begun")
                self.assert_done(j)
                done += kills
        return done

    @staticmethod
    def kill_some(job, rng, most, pause):
        """Kills some workers; returns how many, and whether the launcher had known any before."""
        kills, known = 0, False
        while kills < most and job.process.poll() is None:
            time.sleep(rng.random() * pause)
            _, workers = job.members()
            known = known or any(map(ranks.has_begun, workers))
            if workers:
                try:
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
        return kills, known

    def ended_unknown(self, job):
        """Whether a run has given up, rightly: mpiexec has failed, as it may where a worker dies
        before it has begun, and the launcher has never known any."""
        job.wait_for_steps(1)
        if job.process.poll() != ranks.FAILED or self.told():
            return False
        _, _, err = job.end()
        self.assertRegex(err, r"mpiexec terminated \(\w+ \d+\) without an error report from a worker "
                         "before a step was completed; there is no checkpoint yet, start over$")
        self.assert_gone(job)
        self.assert_no_segments()
        return True


class OpenEnded(Elastic):
    """Long runs, which are ended when a test has seen what it needs, however slow the machine is.
    The learning rate is constant, so that the losses of a shorter run on one rank are a prefix."""

    steps = 10000
    lr = 1e-4
    longest = {}  # losses of the longest run on one rank so far
    shared_steps = 500  # by which these runs get longer

    def args(self, layout, *more, **kw):
        return super().args(layout, "--lr-schedule", "constant", "--warmup", 10,
                            *more, **kw)

    def reference(self, steps=None):
        n = -(-(steps or self.steps) // self.shared_steps) * self.shared_steps
        if len(self.longest.get(self.lr, ())) < n:
            self.longest[self.lr] = super().reference(n)
        return self.longest[self.lr][:steps or self.steps]

    def assert_done(self, job, kills=None, steps=None):
        """Takes some more steps, interrupts the run, and frees its state."""
        job.wait_for_steps(self.told().count(b"\n") + 10)
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGINT)
        status, out, err = job.end()
        self.assertEqual((status, out), (INTERRUPTED, ""), err)
        if kills is not None:
            self.assertEqual(err.count(AGAIN), kills, err)
        done = re.search(r"evenkeel train: interrupted after step (\d+) of", err)
        self.assertTrue(done, err)
        self.assert_same_losses(int(done.group(1)))
        self.assert_gone(job)
        self.assert_no_segments()
        return err

    def assert_done_by_itself(self, job):
        return super().assert_done(job)
