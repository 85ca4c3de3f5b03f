"""MPI is loaded when a job is joined, not before, and never leaves its signal handlers behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, DONE, INTERRUPTED

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(COMMAND)), "libevenkeel.so")
MODULE = re.compile("libevenkeel_mpi_|libmpi|libuc[mpst]")
FAULTS = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}
if b"__asan_init" in ek_cli.read(COMMAND):  # a sanitizer's own handlers
    FAULTS -= {signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}

# In a process of its own: what loading the library, and joining a job of one, change.
HOST = r"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
held = [(n, ctypes.create_string_buffer(256)) for n in range(1, 32)]

def dispositions():
    for n, room in held:
        ctypes.memset(room, 0, 256)
        libc.sigaction(n, None, room)
    # Handler and mask; flags but for SA_RESTORER, which glibc adds.
    return {n: (x[:16], x[136:139], x[139] & ~4) for n, x in ((n, r.raw) for n, r in held)}

def changed(before):
    now = dispositions()
    return [n for n in now if now[n] != before[n]]

def mapped():
    with open("/proc/self/maps") as f:
        return sorted({os.path.basename(x.split()[-1]) for x in f if "/" in x})

signal.signal(signal.SIGHUP, lambda *_: None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
before = dispositions()
library = ctypes.CDLL(sys.argv[1])
print(changed(before), *mapped())
world = ctypes.c_void_p()
assert library.ek_job_join(ctypes.byref(world)) == 0
print(changed(before), *mapped())
library.ek_job_leave(ctypes.byref(world))
print(changed(before))
"""


def maps(pid):
    with open("/proc/%d/maps" % pid) as f:
        return {os.path.basename(line.split()[-1]) for line in f if "/" in line}


def caught(pid):
    """The signals that a process has handlers for."""
    with open("/proc/%d/status" % pid) as f:
        mask = int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16)
    return {n for n in range(1, 32) if mask >> (n - 1) & 1}


def processes(folder):
    """Those whose command line names this folder and whose program is evenkeel."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().split(b"\0")
            program = os.path.basename(os.readlink("/proc/%s/exe" % pid))
        except OSError:
            continue
        if program.startswith("evenkeel") and any(folder.encode() in w for w in words):
            found.append(int(pid))
    return found


class Library(unittest.TestCase):
    def test_a_host_keeps_its_signals(self):
        r = subprocess.run([sys.executable, "-c", HOST, LIBRARY], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        if "runtime does not come first" in r.stderr or "cannot allocate memory in static TLS" \
                in r.stderr:
            self.skipTest("a sanitizer wants to be loaded before Python")
        loaded, joined, left = r.stdout.splitlines() if r.stdout.count("\n") == 3 else [""] * 3
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertTrue(loaded.startswith("[] "), loaded)
        self.assertIn("libevenkeel.so", loaded)
        self.assertIsNone(MODULE.search(loaded), loaded)
        self.assertTrue(joined.startswith("[] "), joined)
        self.assertIsNotNone(MODULE.search(joined), joined)
        self.assertEqual(left, "[]")


class Command(ek_cli.Case):
    def running(self, *more):
        """An endless run, after its first step."""
        p = ek_cli.start(*self.train_args("run", "--quiet", *more, steps=10 ** 7))
        self.addCleanup(p.communicate)
        self.addCleanup(p.send_signal, signal.SIGINT)
        ek_cli.wait_for_steps(p, self.path("run"), 1)
        self.assertIsNone(p.poll())
        return p

    def test_one_process_has_no_mpi(self):
        p = self.running()
        self.assertEqual([m for m in maps(p.pid) if MODULE.search(m)], [])
        self.assertEqual(caught(p.pid) & FAULTS, set())

    def test_two_ranks_have_it(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec of the MPI of this build")
        p = self.running("--ranks", 2)
        workers = [pid for pid in processes(self.path("run")) if pid != p.pid]
        self.assertEqual(len(workers), 2)
        for pid in workers:
            self.assertTrue([m for m in maps(pid) if MODULE.search(m)])
            self.assertEqual(caught(pid) & (FAULTS | {signal.SIGHUP}), {signal.SIGABRT})
        self.assertEqual([m for m in maps(p.pid) if MODULE.search(m)], [])

    def under(self, mpi):
        """Started by mpiexec itself, a rank has the command's handlers and no other."""
        command, launcher = (os.environ.get(k + mpi) for k in ("EK_COMMAND_", "EK_MPIEXEC_"))
        if not command:
            self.skipTest("no " + mpi)
        args = self.train_args("run", "--quiet", steps=10 ** 7)
        with subprocess.Popen([launcher, "-n", "2", command, *map(str, args)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as p:
            try:
                ek_cli.wait_for_steps(p, self.path("run"), 1)
                ranks = processes(self.path("run"))
                handlers = [caught(pid) for pid in ranks]
            finally:
                for pid in processes(self.path("run")):
                    os.kill(pid, signal.SIGINT)
                _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, INTERRUPTED, err)
        self.assertEqual(len(ranks), 2)
        for h in handlers:
            self.assertEqual(h & FAULTS, set())
            self.assertGreaterEqual(h, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

    def test_mpich(self):
        self.under("MPICH")

    def test_openmpi(self):
        self.under("OPENMPI")

    def test_without_its_module(self):
        """A single process needs no MPI; a job prints once what is missing."""
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec of the MPI of this build")
        lone = shutil.copy(COMMAND, self.path("evenkeel"))
        for more, status in (((), DONE), (("--ranks", "2"), BAD_INPUT)):
            args = self.train_args("run", "--quiet", *more, steps=1)
            r = subprocess.run([lone, *map(str, args)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(r.returncode, status, r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertIn("cannot load the MPI module", r.stderr)
        os.mkdir(self.path("lib"))  # as installed: bin/evenkeel, lib/libevenkeel_mpi_*.so
        os.mkdir(self.path("bin"))
        lone = shutil.move(lone, self.path("bin", "evenkeel"))
        for name in os.listdir(os.path.dirname(os.path.abspath(COMMAND))):
            if re.fullmatch(r"libevenkeel_mpi_\w+\.so", name):
                os.symlink(os.path.join(os.path.dirname(os.path.abspath(COMMAND)), name),
                           self.path("lib", name))
        r = subprocess.run([lone, *map(str, args), "--overwrite"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(r.returncode, DONE, r.stderr)


if __name__ == "__main__":
    ek_cli.main()
