"""Token files: the cache of tokenised texts, its permissions, and files that change while in use."""

import os
import re
import shutil
import signal
import stat
import unittest.mock

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, INTERRUPTED, losses, write


class Cache(ek_cli.Case):
    def test_a_text_of_equal_size_and_time(self):
        text = write(self.path("text.txt"), "All that is gold does not glitter. " * 30)
        os.utime(text, (1e9, 1e9))
        self.train("a", data=text)
        write(text, "All that is cold does not glisten. " * 30)
        os.utime(text, (1e9, 1e9))
        self.train("b", data=text)
        self.assertNotEqual(losses(self.path("a")), losses(self.path("b")))

    def test_the_cache_of_tokens_is_private(self):
        text = write(self.path("text.txt"), "All that is gold does not glitter. " * 30)
        self.train("a", data=text)
        file = os.path.join(self.tokens, *os.listdir(self.tokens))
        self.assertEqual(stat.S_IMODE(os.stat(self.tokens).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        os.chmod(self.tokens, 0o777)
        r = self.train("b", data=text, status=ek_cli.USAGE)
        self.assertIn(self.tokens, r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        os.chmod(self.tokens, 0o700)
        if os.geteuid() == 0:
            forged = bytearray(ek_cli.read(file))
            os.chown(file, 12345, 12345)
            self.train("c", data=text)
            self.assertEqual(os.stat(file).st_uid, 0)
            self.assertEqual(ek_cli.read(file), bytes(forged))
            os.chown(self.tokens, 12345, 12345)
            r = self.train("d", data=text, status=ek_cli.USAGE)
            self.assertIn("%s belongs to user 12345" % self.tokens, r.stderr)

    def test_without_a_folder_for_a_cache(self):
        """Without HOME there is no cache, and no leftovers."""
        text = write(self.path("text.txt"), "All that is gold does not glitter. " * 30)
        self.train("a", data=text)
        before = sorted(os.listdir(self.folder)) + ["b"]
        with unittest.mock.patch.dict(os.environ):
            del os.environ["XDG_CACHE_HOME"]
            os.environ.pop("HOME", None)
            self.train("b", data=text)
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(before))


def cut(path):
    os.truncate(path, 10)


def overwrite(path):
    """With ids that no vocabulary has, and of 4 bytes are beyond any memory as well; from the last
    target of the first window on, if a token has 4."""
    with open(path, "r+b") as f:
        f.seek(64)
        f.write(b"\x7f" * (os.stat(path).st_size - 64))


class Changed(ek_cli.Case):
    """A file that is truncated while a run reads it: the run saves and reports it."""

    CONSTANT = ("--lr-schedule", "constant", "--warmup", 0)

    def spoil(self, out, file, *more, data=None, change=cut, statuses=(BAD_INPUT,)):
        """A run whose data file is changed once it has taken some steps; how many it has taken."""
        shutil.rmtree(self.path(out), True)
        args = self.train_args(out, *self.CONSTANT, "--quiet", *more, data=data,
                               steps=1000000)
        with ek_cli.start(*args) as p:
            ek_cli.wait_for_steps(p, self.path(out), 3)
            path = file()
            whole = ek_cli.read(path)
            change(path)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        write(path, whole)
        self.assertIn(p.returncode, statuses, err)
        n = len(whole) // 2 if path.endswith(".bin") else (len(whole) - 88) // 2
        said = " ends at token 5 of %d: it was cut short while it was in use" % n if change is cut \
            else r": token \d+ is (32639|2139062143) now, .*: it was changed while it was in use"
        self.assertRegex(err, re.escape(path) + said)
        self.assertIn("--resume", err)
        for word in "Caught signal", "Bus error", "backtrace", "bug":
            self.assertNotIn(word, err)
        return len(ek_cli.metrics(self.path(out)))

    def results(self, out):
        return [(m["loss"], m.get("eval_loss")) for m in ek_cli.metrics(self.path(out))]

    def check(self, file, *more, data=None, **kw):
        steps = self.spoil("run", file, *more, data=data, **kw) + 2
        self.train("run", "--resume", *more, data=data, steps=steps)
        self.train("whole", *self.CONSTANT, *more, data=data, steps=steps)
        self.assertEqual(self.results("run"), self.results("whole"))

    def test_a_token_file(self):
        self.check(lambda: self.data)
        self.check(lambda: self.data, change=overwrite)

    def check_held_out(self, *more, token_bytes=2, **kw):
        data = ek_cli.write_tokens(self.path("train.bin"), ek_cli.token_ids(1500), token_bytes)
        held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(500, seed=2),
                                       token_bytes)
        self.check(lambda: held_out, "--eval-data", held_out, "--eval-every", 2, "--token-bytes",
                   token_bytes, *more, data=data, **kw)

    def test_held_out_data(self):
        self.check_held_out()
        self.check_held_out(change=overwrite, token_bytes=4)

    def test_held_out_data_of_several_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI")
        ranks = ("--ranks", 2, "--threads", 1)
        self.check_held_out(*ranks, statuses=(BAD_INPUT, FAILED))
        self.check_held_out(*ranks, statuses=(BAD_INPUT, FAILED), change=overwrite, token_bytes=4)

    def test_the_cache_of_a_text(self):
        text = write(self.path("text.txt"), "All that is gold does not glitter. " * 60)
        self.check(lambda: os.path.join(self.tokens, *os.listdir(self.tokens)), data=text)

    def test_several_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI")
        self.check(lambda: self.data, "--ranks", 2, "--threads", 1, statuses=(BAD_INPUT, FAILED))


class Eval(ek_cli.Case):
    def test_interrupted(self):
        """However it ends, nothing stays in the temporary folder."""
        self.train("run", steps=1)
        text = write(self.path("text", "0"), "to and fro, fro and to\n" * (1 << 17))
        for i in range(1, 30):
            os.link(text, self.path("text", str(i)))
        tmp = self.path("tmp")
        os.mkdir(tmp)
        for sig, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, INTERRUPTED),
                            (signal.SIGHUP, INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(sig):
                p = ek_cli.start("eval", "--model", self.path("run"), "--data", self.path("text"),
                                 "--tokenizer", "bytes", "--threads", 2,
                                 env={**os.environ, "TMPDIR": tmp})
                with p:
                    while p.poll() is None and not self.has_file_in(p.pid, tmp):
                        pass
                    p.send_signal(sig)
                    out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
                self.assertEqual((p.returncode, out), (status, ""), err)
                self.assertEqual(err, "evenkeel: interrupted\n" if status > 0 else "")
                self.assertEqual(os.listdir(tmp), [])

    def has_file_in(self, pid, folder):
        """Whether a process has a file of this folder open that is not empty."""
        try:
            for fd in os.listdir("/proc/%d/fd" % pid):
                path = "/proc/%d/fd/%s" % (pid, fd)
                if os.readlink(path).startswith(folder + "/") and os.stat(path).st_size > 0:
                    return True
        except OSError:
            pass
        return False

    def test_ignored_signals_stay_ignored(self):
        """As nohup sets them."""
        self.train("run", steps=1)
        p = ek_cli.start("eval", "--model", self.path("run"), "--data", self.data, "--seq", 16,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        with p:
            p.send_signal(signal.SIGHUP)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, DONE, err)


if __name__ == "__main__":
    ek_cli.main()
