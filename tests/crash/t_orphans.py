"""The command is killed at any moment: no process of its run is left, whatever mpiexec does."""

import os
import shutil
import signal
import sys
import time

import elastic
import ranks
from ranks import DONE, ek_cli

# Stands for ssh and a host that takes the connection and never answers.
SILENT = """#!{python}
import os, time
open({path!r} + ".new", "w").write(str(os.getpid()))
os.rename({path!r} + ".new", {path!r})
time.sleep(3600)
"""
MARK = "EVENKEEL_TEST_MARK"  # in the environment of all processes of a job


def marked(mark):
    """Living processes that have inherited the mark, by name."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open("/proc/%d/environ" % pid, "rb") as f:
                words = f.read().split(b"\0")
            with open("/proc/%d/cmdline" % pid, "rb") as f:
                command = f.read().split(b"\0")[0].decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if ("%s=%s" % (MARK, mark)).encode() in words and ranks.alive(pid):
            found[pid] = command
    return found


class Orphans(elastic.Elastic):
    steps = 100000

    def setUp(self):
        super().setUp()
        ranks.QUIET[MARK] = self.folder
        self.addCleanup(ranks.QUIET.pop, MARK)
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for pid in marked(self.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def kill_launcher(self, job):
        """SIGKILL; then no process is left."""
        self.assertIsNone(job.process.poll(), job)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while marked(self.folder) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(marked(self.folder), {})

    def wait_until(self, job, done):
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while not done():
            self.assertIsNone(job.process.poll(), "it has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    def test_in_the_middle_of_a_run(self):
        for more in ((), ("--elastic",)):
            with self.subTest(more):
                shutil.rmtree(self.out, True)
                j = self.job((3, "--ep 3"), *more)
                j.wait_for_steps(3)
                self.assertGreaterEqual(len(marked(self.folder)), 5)  # mpiexec and a guard, too
                self.kill_launcher(j)
        self.assertTrue(self.segments())  # and the same command goes on
        told = self.told()
        j = self.job((3, "--ep 3"), "--elastic", steps=told.count(b"\n") + 30)
        status, _, err = j.end()
        self.assertEqual(status, DONE, err)
        self.assertTrue(self.told().startswith(told), "a step was taken again")

    def test_while_it_starts(self):
        """From the start of mpiexec on, before most processes watch their parent."""
        for ms in (0, 5, 20, 60, 150):
            with self.subTest(ms=ms):
                shutil.rmtree(self.out, True)
                j = self.job((4, ""))
                self.wait_until(j, lambda: len(marked(self.folder)) > 2)
                time.sleep(ms / 1000)
                self.kill_launcher(j)

    def silent_host(self, more):
        """A job one of whose hosts never answers, when its ssh is at work; the ssh's process."""
        path = ek_cli.write(self.path("ssh"), SILENT.format(python=sys.executable,
                                                            path=self.path("asked")))
        os.chmod(path, 0o755)
        hosts = ek_cli.write(self.path("hosts"), "silent\n")
        words = "-launcher rsh -launcher-exec %s" if type(self).__name__.endswith("MPICH") else \
            "--mca plm_rsh_agent %s"
        j = self.job((1, ""), "--hosts", hosts, "--mpiexec-args=" + words % path, *more)
        self.wait_until(j, lambda: os.path.exists(self.path("asked")))
        return j, int(ek_cli.read(self.path("asked")))

    def test_a_host_that_is_silent(self):
        for more in ((), ("--elastic",)):
            with self.subTest(more):
                j, ssh = self.silent_host(more)
                self.assertIn(ssh, marked(self.folder))
                self.kill_launcher(j)
                os.unlink(self.path("asked"))

    def test_workers_end_without_mpiexec(self):
        """mpiexec is killed while its workers and their proxy are stopped, so they survive
        it.  Then the launcher is killed."""
        j = self.job((3, "--ep 3"))
        j.wait_for_steps(3)
        mpiexec, workers = j.members()
        others = [p for p in marked(self.folder) if p not in (mpiexec, j.process.pid, *workers)]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        os.kill(j.process.pid, signal.SIGKILL)
        j.process.wait()
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while any(map(ranks.alive, workers)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(any(map(ranks.alive, workers)))


ranks.both(globals(), Orphans)
del Orphans

if __name__ == "__main__":
    ek_cli.main()
