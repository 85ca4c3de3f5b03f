"""A terminal that is closed (SIGHUP) interrupts a command as Ctrl-C does; nohup is respected."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import ek_cli
from ek_cli import COMMAND, DONE, INTERRUPTED, metrics, run

ENDLESS = 10 ** 7


class Terminal:
    """A command in a session of its own, with a pseudoterminal of so many columns that can be
    closed.  nohup: as by the program of that name, which directs stdout elsewhere."""

    def __init__(self, *args, nohup=False, columns=80, **kw):
        self.main, sub = pty.openpty()
        fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

        self.process = subprocess.Popen([COMMAND, *map(str, args)], stdin=sub, stderr=sub,
                                        stdout=subprocess.DEVNULL if nohup else sub,
                                        preexec_fn=own, **kw)
        os.close(sub)

    def close(self):
        os.close(self.main)

    def wait(self):
        try:
            return self.process.wait(timeout=ek_cli.TIMEOUT_S)
        finally:
            self.process.kill()


class Hangup(ek_cli.Case):
    def closed(self, *more):
        """A run whose terminal is closed saves, and can be resumed."""
        t = Terminal(*self.train_args("run", *more, steps=ENDLESS))
        ek_cli.wait_for_steps(t.process, self.path("run"), 3)
        t.close()
        self.assertEqual(t.wait(), INTERRUPTED)
        done = len(metrics(self.path("run")))
        self.assertGreaterEqual(done, 3)
        self.assertEqual(ek_cli.newest(self.path("run"))[-8:], "%08d" % done)
        r = run("train", "--out", self.path("run"), "--data", self.data, "--resume", "--steps",
                done + 2, "--override")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual([m["step"] for m in metrics(self.path("run"))], list(range(done + 2)))

    def test_one_process(self):
        self.closed()

    def test_two_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec of the MPI of this build")
        self.closed("--ranks", 2)

    def test_a_resumed_run_ends_as_one_that_was_never_closed(self):
        """Without a single option, at wide and narrow terminals; evaluations included."""
        held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(600, seed=3))
        more = ("--lr", 0.01, "--eval-data", held_out, "--eval-every", 200)
        self.train("whole", *more, steps=2000)
        layouts = ((), ("--ranks", 2)) if ek_cli.mpiexec() is not None else ((),)
        for columns in 80, 50:
            for layout in layouts if columns == 80 else ((),):
                cut = "cut-%d-%d" % (columns, len(layout))
                with self.subTest(cut):
                    t = Terminal(*self.train_args(cut, *more, *layout, steps=2000), columns=columns)
                    ek_cli.wait_for_steps(t.process, self.path(cut), 3)
                    t.close()
                    if t.wait() == DONE:
                        self.skipTest("the run was over before the terminal was closed")
                    self.assertEqual(t.process.returncode, INTERRUPTED)
                    r = run("train", "--resume", "--out", self.path(cut))
                    self.assertEqual(r.returncode, DONE, r.stderr)
                    if not layout:  # of other layouts sums have another order
                        self.assertEqual(ek_cli.weights(self.path(cut)),
                                         ek_cli.weights(self.path("whole")))
                        for key in "loss", "eval_loss":
                            self.assertEqual([m.get(key) for m in metrics(self.path(cut))],
                                             [m.get(key) for m in metrics(self.path("whole"))])

    def kept_on(self, *more):
        t = Terminal(*self.train_args("run", *more, steps=ENDLESS), nohup=True)
        ek_cli.wait_for_steps(t.process, self.path("run"), 1)
        t.close()
        done = ek_cli.lines_of(self.path("run", "metrics.jsonl"))
        ek_cli.wait_for_steps(t.process, self.path("run"), done + 200)
        self.assertIsNone(t.process.poll())
        t.process.terminate()
        self.assertEqual(t.wait(), INTERRUPTED)

    def test_nohup(self):
        self.kept_on()

    def test_nohup_two_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec of the MPI of this build")
        self.kept_on("--ranks", 2)

    def test_eval(self):
        """During tokenising and during evaluation: no leftovers."""
        self.train("run", steps=1)
        line = "all work and no play makes jack a dull boy\n"
        text = ek_cli.write(self.path("long.txt"), line * ((50 << 20) // len(line)))
        scratch = self.path("scratch")
        for seconds in (0, 1.5):
            os.makedirs(scratch, exist_ok=True)
            t = Terminal("eval", "--model", self.path("run"), "--data", text, "--tokenizer",
                         "bytes", "--seq", 16, env={**os.environ, "TMPDIR": scratch})
            while t.process.poll() is None and not has_file_in(t.process.pid, scratch):
                time.sleep(0.001)
            time.sleep(seconds)
            t.close()
            self.assertEqual(t.wait(), INTERRUPTED)
            self.assertEqual(os.listdir(scratch), [])

    def test_generate(self):
        self.train("run", steps=1)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            p = subprocess.Popen([COMMAND, "generate", "--model", self.path("run"), "--tokenizer",
                                  "bytes", "--prompt", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            with p:
                while not catches(p.pid, signal.SIGTERM):
                    time.sleep(0.001)
                time.sleep(0.1)  # it waits for its prompt
                p.send_signal(sig)
                self.assertEqual(p.wait(timeout=ek_cli.TIMEOUT_S), INTERRUPTED)
                self.assertEqual(p.stderr.read(), "evenkeel: interrupted\n")


def has_file_in(pid, folder):
    """Whether a process has a file open that is, or was, in a folder."""
    at = "/proc/%d/fd" % pid
    try:
        return any(os.readlink(os.path.join(at, n)).startswith(folder) for n in os.listdir(at))
    except FileNotFoundError:  # one was closed, or the process has ended
        return False


def catches(pid, sig):
    with open("/proc/%d/status" % pid) as f:
        mask = next(line for line in f if line.startswith("SigCgt")).split()[1]
    return int(mask, 16) >> (sig - 1) & 1


if __name__ == "__main__":
    ek_cli.main()
