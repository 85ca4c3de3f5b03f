"""Files that commands write under a name given by the user: other files stay as they are."""

import json
import os
import shutil
import signal
import stat
import subprocess
import threading

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, INTERRUPTED, USAGE, read, run, write


class Written(ek_cli.Case):
    """Each command with an output file option, and how the file begins."""

    def setUp(self):
        super().setUp()
        self.trace = self.path("in.npy")
        self.assertEqual(self.workload(self.trace).returncode, DONE)
        self.out = self.path("out")
        os.mkdir(self.out)

    def workload(self, out, **kw):
        return run("workload", "--name", "W1", "--ranks", 4, "--experts", 8, "--layers", 1,
                   "--iterations", 4, "--tokens", 50, "--out", out, **kw)

    def plan(self, out, **kw):
        return run("plan", "--trace", self.trace, "--policy", "exact", "--ranks", 4, "--emit", out,
                   **kw)

    def costs(self, out, **kw):
        return run("bench", "costs", "--model", "tiny", "--threads", 1, "--budget", 0.2, "--out", out,
                   **kw)

    def timeline(self, out, **kw):
        return run("bench", "moe", "--model", "tiny", "--threads", 1, "--steps", 1, "--batch", 2,
                   "--micro-batch", 2, "--seq", 16, "--degrees", 1, "--timeline", out, **kw)

    def each(self, measured=False):
        """measured: include commands that measure before they write."""
        commands = [(self.workload, b"\x93NUMPY"), (self.plan, b"{\"iteration\"")]
        if measured:
            commands += [(self.costs, b"{"), (self.timeline, b"{")]
        for command, begins in commands:
            for name in os.listdir(self.out):
                os.remove(os.path.join(self.out, name))
            yield command, begins, os.path.join(self.out, "f")

    def test_links_under_temporary_names_are_not_followed(self):
        for command, begins, out in self.each(measured=True):
            victim = write(os.path.join(self.out, "victim"), "kept")
            os.symlink(victim, out + ".tmp")
            r = command(out)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(read(victim), b"kept")
            self.assertTrue(read(out).startswith(begins))
            self.assertEqual(sorted(os.listdir(self.out)), ["f", "f.tmp", "victim"])

    def test_a_link_is_written_through(self):
        for command, begins, out in self.each(measured=True):
            real = write(os.path.join(self.out, "real"), "old")
            os.chmod(real, 0o600)
            os.symlink("real", out)
            r = command(out)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(os.readlink(out), "real")
            self.assertTrue(read(real).startswith(begins))
            self.assertEqual(stat.S_IMODE(os.stat(real).st_mode), 0o600)
            self.assertEqual(sorted(os.listdir(self.out)), ["f", "real"])

    def device(self, path, minor):
        """A device of this test's own: a mistake would replace the system's."""
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, minor))
            os.close(os.open(path, os.O_WRONLY))
        except OSError as e:
            self.skipTest("no devices can be made here: %s" % e)

    def test_a_device_stays_one(self):
        for command, _, out in self.each(measured=True):
            self.device(out, 3)
            r = command(out)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertTrue(stat.S_ISCHR(os.lstat(out).st_mode))
            self.assertEqual(os.listdir(self.out), ["f"])

    def test_a_full_device(self):
        for command, _, out in self.each():
            self.device(out, 7)
            r = command(out)
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertIn("No space left", r.stderr)
            self.assertTrue(stat.S_ISCHR(os.lstat(out).st_mode))
            self.assertEqual(os.listdir(self.out), ["f"])

    def test_a_pipe_is_written_to(self):
        for command, begins, out in self.each():
            got = []
            os.mkfifo(out)
            reader = threading.Thread(target=lambda: got.append(read(out)), daemon=True)
            reader.start()
            r = command(out, timeout=ek_cli.TIMEOUT_S)
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertTrue(stat.S_ISFIFO(os.lstat(out).st_mode))
            reader.join(ek_cli.TIMEOUT_S)
            self.assertTrue(got and got[0].startswith(begins))

    def test_standard_output(self):
        log = os.path.join(self.out, "log")
        with open(log, "ab") as f:
            f.write(b"before\n")
            f.flush()
            inode = os.stat(log).st_ino
            r = subprocess.run([ek_cli.COMMAND, "plan", "--trace", self.trace, "--policy", "exact",
                                "--ranks", "4", "--json", "--emit", "/dev/stdout"], stdout=f,
                               stderr=subprocess.PIPE, check=False, timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(os.stat(log).st_ino, inode)
        lines = read(log).decode().splitlines()
        self.assertEqual(lines[0], "before")
        self.assertEqual(json.loads(lines[1])["iteration"], 0)
        self.assertEqual(json.loads(lines[-1])["policy"], "exact")
        self.assertEqual(os.listdir(self.out), ["log"])

    def test_nothing_is_left_of_a_failure(self):
        for command, _, _ in self.each():
            r = command(self.out)
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn("names a folder", r.stderr)
            r = command(os.path.join(self.out, "no", "f"))
            self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
            self.assertEqual(os.listdir(self.out), [])

    def test_new_files_have_the_permissions_of_the_umask(self):
        for command, _, out in self.each():
            r = command(out, preexec_fn=lambda: os.umask(0o077))
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), 0o600)


class Interrupted(ek_cli.Case):
    """Signals while a file is written: no leftovers, and status 130."""

    def interrupt(self, sig, *args):
        """Interrupts the command once it has begun to write; false: it had already finished."""
        out = self.path("out")
        shutil.rmtree(out, True)
        os.mkdir(out)
        with ek_cli.start(*args) as p:
            while p.poll() is None and not os.listdir(out):
                pass
            p.send_signal(sig)
            got = p.communicate(timeout=ek_cli.TIMEOUT_S)
        if p.returncode == DONE:
            return False
        self.assertEqual((p.returncode, got[0]), (INTERRUPTED, ""), got[1])
        self.assertRegex(got[1], "^evenkeel %s: interrupted while .* was written" % args[0])
        self.assertEqual(os.listdir(out), [])
        return True

    def check(self, *args):
        for sig in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            with self.subTest(sig):
                self.assertTrue(any(self.interrupt(sig, *args) for _ in range(100)))

    def test_workload(self):
        self.check("workload", "--name", "W1", "--ranks", 8, "--experts", 64, "--layers", 8,
                   "--iterations", 20000, "--tokens", 50, "--out", self.path("out", "f"))

    def test_plan(self):
        trace = self.path("in.npy")
        r = run("workload", "--name", "W1", "--ranks", 8, "--experts", 64, "--layers", 4,
                "--iterations", 1000, "--tokens", 50, "--out", trace)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.check("plan", "--trace", trace, "--policy", "exact", "--ranks", 8, "--emit",
                   self.path("out", "f"))

    def test_export(self):
        self.train("run", steps=1)
        self.check("export", "--from", self.path("run"), "--to", self.path("out", "hf"))


class Runs(ek_cli.Case):
    def test_links_in_the_folder_of_a_run(self):
        """Links under names that are easily guessed lead nowhere; what a killed writer has left
        is cleared."""
        victim = write(self.path("victim"), "kept")
        args = "--timeline", "--record-routing"
        self.train("run", *args, steps=2)
        for name in "run.json", "timeline.json", "routing.npy":
            os.symlink(victim, self.path("run", name + ".tmp"))
            write(self.path("run", name + ".abcdefgh.tmp"), "{")
        self.train("run", "--resume", *args, steps=4)
        self.assertEqual(read(victim), b"kept")
        self.assertEqual([n for n in os.listdir(self.path("run")) if "abcdefgh" in n], [])
        self.assertEqual(len(ek_cli.metrics(self.path("run"))), 4)

    def test_export_deletes_nothing(self):
        self.train("run", steps=1)
        write(self.path("hf.tmp", "mine"), "kept")
        r = run("export", "--from", self.path("run"), "--to", self.path("hf"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(read(self.path("hf.tmp", "mine")), b"kept")
        self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith("hf")),
                         ["hf", "hf.tmp"])
        self.assertIn("model.safetensors", os.listdir(self.path("hf")))


if __name__ == "__main__":
    ek_cli.main()
