""""waiting for ..." messages of the launcher, and interrupts meanwhile; with a program that
replaces mpiexec."""

import re
import signal
import subprocess
import threading

from ranks import DONE, FAILED, INTERRUPTED, ek_cli
from ek_cli import write  # noqa: E402  (ranks knows where it is)
import t_launch  # noqa: E402


class Waits(t_launch.Case):
    """Waits of more than two seconds are reported, and can be interrupted."""

    ON_HOSTS = '''
asked = sys.argv[-1] == "--version"
hosts = [w for w in sys.argv if w.startswith("a:")]
'''

    def start_on(self, hosts, script, *args, run="run"):
        command, env = self.fake(self.ON_HOSTS + script, run=run)
        at = command.index("--ranks")
        command[at:at + 2] = ["--hosts", write(self.path("hosts-" + run), hosts), *args]
        p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def read_until(self, p, line):
        said = [""]
        timer = threading.Timer(ek_cli.TIMEOUT_S, p.kill)
        timer.start()
        while not re.search(line, said[-1]):
            said.append(p.stderr.readline())
            if said[-1] == "":
                self.fail("%s\n%s" % (line, "".join(said)))
        timer.cancel()

    def assert_waits(self, p, pattern):
        self.read_until(p, r"^evenkeel train: waiting for %s \(\d+ s so far\)$" % pattern)

    def interrupt(self, p, sig=signal.SIGINT):
        p.send_signal(sig)
        out, err = self.end(p)
        self.assertEqual((p.returncode, out), (INTERRUPTED, ""), err)
        return err

    def test_workers_that_do_not_start(self):
        p = self.start_on("a:2\nb\nc\n", 'note("start 0 pid 1 host a"); time.sleep(3600)',
                          "--elastic=false")
        for _ in range(2):
            self.assert_waits(p, "mpiexec to start workers on b, c: 1 of 4 have started")
        self.assertIn("interrupted, terminated without saving before a step was completed",
                      self.interrupt(p, signal.SIGHUP))

    def test_workers_that_do_not_connect(self):
        p = self.start_on("a:2\nb\n", '''
for r in range(3): note("start %d pid %d host x" % (r, r + 1))
note("rank 0 pid 1 host a"); time.sleep(3600)''', "--elastic=false")
        self.assert_waits(p, "workers on b to connect: 1 of 3 are ready")
        self.interrupt(p, signal.SIGTERM)

    def test_workers_that_take_long_to_save(self):
        p = self.start('listen(); ready(3); open(out + ".up", "w"); told(); time.sleep(3600)')
        self.wait_for(self.path("run.up"))
        p.send_signal(signal.SIGINT)
        self.assert_waits(p, r"the workers to save and exit \(interrupt again to terminate them at once\)")
        self.interrupt(p)

    def test_hosts_that_do_not_answer(self):
        p = self.start_on("a\nb\n", "time.sleep(3600)", "--elastic")
        self.assert_waits(p, "a response from a, b")
        self.assertIn("interrupted while no worker was running", self.interrupt(p))

    def test_hosts_that_are_not_there(self):
        p = self.start_on("a\nb\n", "sys.exit(1)", "--elastic")
        self.assert_waits(p, "a host to continue on; none of these responds: a, b")
        self.interrupt(p)

    def test_discover(self):
        command, env = self.fake("")
        at = command.index("--ranks")
        command[at:at + 2] = ["--elastic", "--discover", "exec sleep 3600"]
        p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, stdin=subprocess.DEVNULL)
        with p:
            self.assert_waits(p, "--discover to name hosts")
            self.interrupt(p)

    def test_recovery(self):
        """In every phase; the state stays in memory."""
        started = []
        for run, hang, pattern in (
                ("run-1", "if asked: time.sleep(3600)", "a (response from|host to continue on; none of these responds:) a"),
                ("run-2", "if not asked: time.sleep(3600)", "mpiexec to start workers on a: 0 of 1 have .*"),
                ("run-3", "if not asked: ready(1); time.sleep(3600)",
                 "the workers to read the data and plan the recovery"),
                ("run-4", 'if not asked: ready(1); note("phase transfer"); time.sleep(3600)',
                 "the workers to restore the state")):
            started.append((self.start_on("a\n", '''
if os.path.exists(out + "/metrics.jsonl"):
    %s
if not asked: ready(1); steps(3); note("step 3 of 99"); time.sleep(0.3); os.kill(os.getpid(), 9)
''' % hang, "--elastic", run=run), pattern))
        for p, pattern in started:
            with self.subTest(pattern):
                self.read_until(p, "after step 3; continuing from memory")  # the start may be slow, and waited for, too
                self.assert_waits(p, pattern)
                self.assertIn("the state is in shared memory: the same command continues from it",
                              self.interrupt(p))

    def test_the_watchdog_ends_them(self):
        said = (r"no progress for 3\.00 s \(launch on a, b\), terminated before",
                "that respond have 0 slots")
        started = [self.start_on("a\nb\n", "time.sleep(3600)", "--watchdog", "3", *more, run=run)
                   for run, more in (("run-1", ("--elastic=false",)), ("run-2", ("--elastic",)))]
        for p, said in zip(started, said):
            out, err = self.end(p)
            self.assertEqual((p.returncode, out), (FAILED, ""), err)
            self.assertRegex(err, said)

    def test_quiet(self):
        """With --quiet, no progress is shown, and waits are reported later."""
        p = self.start_on("a\n", "time.sleep(5); ready(1)", "--quiet")
        out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual((p.returncode, out, ek_cli.without_waits(err)), (DONE, "", ""))
        self.assertNotIn("(2 s so far)", err)


if __name__ == "__main__":
    ek_cli.main()
