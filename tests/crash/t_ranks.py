"""A job of which one rank is killed, stopped, has a full disk, computes NaN, or is interrupted;
and a regular exit without faults."""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import ranks
from ranks import BAD_INPUT, DONE, FAILED, HOST, IDLE_S, INTERRUPTED, USAGE, ek_cli


class Killed(ranks.Disaster):
    def test_at_random(self):
        self.kill_at_random(1, 4)

    def test_each(self):
        layout = (4, "--pp 2 --ep 2 --zero 1")
        for victim in (0, 3, "mpiexec", "launcher"):
            with self.subTest(victim=victim):
                self.kill_at_step(layout, victim, 3)

    def test_while_all_leave(self):
        """Rank 1 is named, though the rank that mpiexec then kills may not have left yet either."""
        for delay in (0, 0.01, 0.02, 0.03):
            with self.subTest(delay=delay):
                shutil.rmtree(self.out, True)
                j = self.job((2, "--zero 3"), "--save-every", 1)
                j.wait_for_steps(1)
                worker = j.rank(1)
                j.wait_for_steps(self.steps)
                time.sleep(delay)
                with contextlib.suppress(ProcessLookupError):  # it has left
                    self.kill_in(j, 1, worker)


class Stopped(ranks.Disaster):
    def stop_at(self, layout, rank, step):
        shutil.rmtree(self.out, True)
        j = self.job(layout, "--watchdog", 4, "--save-every", 3, steps=100000)
        j.wait_for_steps(step)
        worker = j.rank(rank)
        os.kill(worker, signal.SIGSTOP)
        begin = time.monotonic()
        status, out, err = j.end_soon(4)
        warning = re.compile(r"warning: .*: nothing has moved for 2(\.\d+)? s: .*\n")  # half of --watchdog
        ended = status, out, warning.sub("", err)
        self.assertGreater(time.monotonic() - begin, 3)
        self.assert_gone(j, worker)
        self.assert_whole()
        return ended

    def test_in_a_step(self):
        for layout, rank in (((2, "--ep 2"), 0), ((3, "--pp 3"), 1)):
            with self.subTest(layout=layout, rank=rank):
                ended = self.stop_at(layout, rank, 5)
                self.assert_said(ended, FAILED, r"^evenkeel train: rank \d on %s: step \d+: " % HOST,
                                 r"nothing has moved for \S+ s: \w+ on \S+: rank \d of %d waits "
                                 r"(for|to send to) rank \d \(%s[,)]" % (layout[0], HOST))


class FullDisk(ranks.Disaster):
    layout = (2, "--ep 2")

    def assert_stands(self, j, ended, *words):
        self.assert_said(ended, FAILED, *words)
        self.assert_gone(j)
        self.assertGreaterEqual(self.assert_whole(), 2)
        self.assertEqual(self.temporaries(), [])

    def test_of_one_rank(self):
        """A file size limit emulates a full disk."""
        for rank in (0, 1):
            with self.subTest(rank):
                shutil.rmtree(self.out, True)
                j = self.job(self.layout, "--save-every", 2, steps=100000)
                j.wait_for_steps(5)
                resource.prlimit(j.rank(rank), resource.RLIMIT_FSIZE, (16384, 16384))
                ended = j.end_soon()
                self.assert_stands(j, ended, r"^evenkeel train: rank %d on %s: " % (rank, HOST),
                                   r"%s/\S+: File too large" % self.out)

    def test_of_the_metrics(self):
        j = self.job(self.layout, steps=100000)
        j.wait_for_steps(2)
        resource.prlimit(j.rank(0), resource.RLIMIT_FSIZE, (4096, 4096))
        self.assert_said(j.end_soon(), FAILED, r"^evenkeel train: rank 0 on %s: step \d+: " % HOST,
                         r"%s/metrics.jsonl: " % self.out)

    def test_without_a_job(self):
        r = ek_cli.run(*self.args((1, "")), preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (0, 0)))
        self.assert_said((r.returncode, r.stdout, r.stderr), FAILED,
                         "run.json.*: File too large")

    def test_of_all(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk], check=False,
            stderr=subprocess.DEVNULL).returncode == 0
        if not mounted:
            self.skipTest("a small disk needs the right to mount one")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=False)
        self.out = os.path.join(disk, "run")
        j = self.job(self.layout, "--save-every", 2, "--keep", 100, steps=100000)
        ended = j.end(60)
        self.assert_stands(j, ended, r"^evenkeel train: rank \d on %s: " % HOST,
                           r"%s\S*: (No space left on device|the disk is full)" % disk)


class Mistakes(ranks.Disaster):
    def test_of_all_ranks(self):
        nowhere = self.path("nowhere")
        for status, words, layout, more, data in (
                (BAD_INPUT, nowhere, (2, "--ep 2"), ["--tokenizer", "bytes"], nowhere),
                (USAGE, "--tp", (3, "--tp 2"), [], None),
                (USAGE, "--etp|--ep", (3, "--ep 2"), [], None),
                (USAGE, "--pp 4", (4, "--pp 4"), [], None),
                (USAGE, "--seq 65 ", (2, ""), ["--seq", 65], None),
                (USAGE, "--zero", (2, "--zero 4"), [], None),
                (BAD_INPUT, "no complete checkpoint", (2, ""), ["--resume"], None),
                (BAD_INPUT, "none.json", (2, ""), ["--model", self.path("none.json")], None)):
            with self.subTest(words):
                j = self.job(layout, *more, data=data)
                got, out, err = j.end_soon()
                self.assertEqual((got, out), (status, ""), err)
                self.assertRegex(err.splitlines()[0], "^evenkeel train: .*%s" % words)
                self.assertLessEqual(len(err.splitlines()), 2)  # the second leads to --help
                self.assert_gone(j)
                self.assertFalse(os.path.exists(self.out))

    def test_the_loss_is_nan(self):
        j = self.job((2, "--ep 2"), "--dtype", "fp32", "--lr", "1e30", "--clip", 0, "--warmup", 0)
        self.assert_said(j.end_soon(IDLE_S), FAILED, r"^evenkeel train: rank 0 on %s: " % HOST,
                         r"step \d+: ", "not finite")
        self.assert_gone(j)

    def test_two_runs_in_one_folder(self):
        first = self.job((2, "--ep 2"), steps=100000)
        first.wait_for_steps(3)
        for more in ([], ["--resume"]):
            second = self.job((2, "--tp 2"), *more)
            self.assert_said(second.end_soon(), FAILED,
                             "%s is in use by another process" % self.out)
        before = len(ek_cli.metrics(self.out))
        first.wait_for_steps(before + 3)
        self.assertIsNone(first.process.poll())
        first.process.send_signal(signal.SIGTERM)
        self.assertEqual(first.end()[0], INTERRUPTED)


class Asked(ranks.Disaster):
    def test_to_end(self):
        for sig, layout in ((signal.SIGTERM, (2, "--ep 2")), (signal.SIGINT, (3, "--pp 3"))):
            with self.subTest(layout=layout):
                shutil.rmtree(self.out, True)
                j = self.job(layout, "--lr-schedule", "constant", steps=100000)
                j.wait_for_steps(5)
                j.process.send_signal(sig)
                self.assert_said(j.end_soon(), INTERRUPTED,
                                 r"^evenkeel train: interrupted after step \d+ of 100000; ",
                                 "--resume")
                self.assert_gone(j)
                done = self.assert_whole()
                self.assertEqual(done, len(ek_cli.metrics(self.out)))

    def test_while_it_tokenises(self):
        text = self.path("text")
        one = ek_cli.write(os.path.join(text, "0"), "to and fro, fro and to\n" * (1 << 21))
        for i in range(1, 100):
            os.link(one, os.path.join(text, str(i)))
        j = self.job((2, "--ep 2"), "--tokenizer", "bytes", data=text)
        j.wait_for_members(2)
        time.sleep(1)
        j.process.send_signal(signal.SIGTERM)
        self.assert_said(j.end_soon(), INTERRUPTED, "^evenkeel train: ")
        self.assert_gone(j)
        self.assertFalse(os.path.exists(self.out))


class Well(ranks.Disaster):
    def test_ends(self):
        for layout in ranks.LAYOUTS[:4]:
            j = self.job(layout, steps=2)
            j.wait_for_steps(2)
            self.assertEqual(j.end_soon(), (DONE, "", ""))
            self.assert_gone(j, within=1)


ranks.in_turn(globals(), Killed, Stopped, FullDisk, Mistakes, Asked, Well)
del Killed, Stopped, FullDisk, Mistakes, Asked, Well

if __name__ == "__main__":
    ek_cli.main()
