"""Jobs of several ranks under faults, shared by t_ranks.py and t_ranks_long.py.

A test is run with each MPI of this build, or with one of them.  A Job is one run of a small model in double
precision, for which every layout gives the same losses.  Disaster has the checks that hold
after any fault: the job ends soon, reports the cause once, leaves no process and no incomplete
checkpoint, and another layout can continue it."""

import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import ek_cli  # noqa: E402  (the path above is where it is)
from ek_cli import BAD_INPUT, DONE, FAILED, INTERRUPTED, USAGE  # noqa: E402, F401

IN_A_JOB = ("PMI_", "PMIX_", "OMPI_COMM_", "SLURM_", "EK_")
QUIET = {k: v for k, v in os.environ.items() if not k.startswith(IN_A_JOB)}
QUIET["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), "evenkeel-tests-%d" % os.getuid())
HOST = socket.gethostname()
SOON_S = 40  # in which a job that has lost a rank ends, however busy the machine is; other limits are a minute and more
IDLE_S = 10  # the same, without the time in which processes waited for a core or for I/O

# With 3 layers, 4 experts and 2 heads.
LAYOUTS = (
    (2, "--ep 2"),
    (2, "--tp 2"),
    (3, "--pp 3"),
    (4, "--pp 2 --ep 2 --zero 1"),
    (2, "--zero 3"),
    (2, "--etp 2 --zero 2"),
)


def flavours():
    """Name -> command, of each MPI that a command of this build is linked with."""
    return {name: os.environ["EK_COMMAND_" + name] for name in ("MPICH", "OPENMPI")
            if os.path.exists(os.environ.get("EK_COMMAND_" + name, ""))}


def status_of(pid, key):
    """A field of /proc/PID/status, or None if the process has ended."""
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith(key + ":"):
                    return line.split(":", 1)[1].strip()
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


def alive(pid):
    state = status_of(pid, "State")
    return state is not None and state[0] not in "ZX"


def rank_of(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            words = f.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    for w in words:
        if w.startswith((b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")):
            return int(w.split(b"=")[1])
    return None


def undisturbed_s():
    """A clock that stands while processes of this machine wait for a core or for I/O, if the kernel has such
    figures; elsewhere it always stands, as how busy the machine is is not known there."""
    waited = 0
    for what in "cpu", "io":
        try:
            waited += int(re.search(r"some .* total=(\d+)", ek_cli.read("/proc/pressure/" + what).decode())[1])
        except OSError:
            return 0
    return time.monotonic() - waited / 1e6


def has_begun(pid):
    """Whether a worker has connected to the launcher (its socket has a high descriptor number)."""
    try:
        return any(int(n) >= 900 for n in os.listdir("/proc/%d/fd" % pid))
    except (FileNotFoundError, ProcessLookupError):
        return False


class Job:
    """A started job: its launcher, its mpiexec, its workers."""

    def __init__(self, command, args, out, **kw):
        self.command = os.path.realpath(command)
        self.out = out
        self.early = b""  # what wait_for_words() has read of its stderr
        self.process = subprocess.Popen(
            [command, *map(str, args)], env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, errors="replace", **kw)

    def members(self):
        """(mpiexec or None, workers in order of their start) that are alive."""
        mpiexec, workers = None, []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as f:
                    words = f.read().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if self.out not in words or pid == self.process.pid or not alive(pid):
                continue
            child = status_of(pid, "PPid") == str(self.process.pid)
            if words[0] == self.command and not child:  # a child is about to become mpiexec
                workers.append(pid)
            elif words[0] != self.command and child:
                mpiexec = pid
        return mpiexec, sorted(workers)

    def wait_for_members(self, ranks):
        """Waits for all of them; returns those that exist if the job ends before."""
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while True:
            mpiexec, workers = self.members()
            if len(workers) == ranks and mpiexec or self.process.poll() is not None:
                return mpiexec, workers
            if time.monotonic() > end:
                raise AssertionError("only %d workers of %d have started" % (len(workers), ranks))
            time.sleep(0.005)

    def rank(self, r):
        """The process of a rank, by the variables that mpiexec has set for it; waits for it, as one may
        just be starting again, or another be counted twice while it forks."""
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < end:
            for pid in self.members()[1]:
                if rank_of(pid) == r:
                    return pid
            time.sleep(0.005)
        raise AssertionError("there is no rank %d" % r)

    def wait_for_steps(self, n):
        ek_cli.wait_for_steps(self.process, self.out, n)

    def wait_for_words(self, words):
        """Waits until this text is on stderr."""
        end, fd = time.monotonic() + ek_cli.TIMEOUT_S, self.process.stderr.fileno()
        while words.encode() not in self.early:
            piece = os.read(fd, 1 << 16) if select.select([fd], [], [], 1)[0] else None
            self.early += piece or b""
            if piece == b"" or time.monotonic() > end:
                raise AssertionError("it never says %r: %s" % (words, self.kill()))

    def said(self, err):
        """The job's complete stderr, of which `err` is the rest."""
        return ek_cli.without_waits(self.early.decode(errors="replace") + err)

    def end(self, within=ek_cli.TIMEOUT_S):
        """(status, stdout, stderr); fails after a time limit."""
        try:
            out, err = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError("the job has not ended within %.3g s: %s" %
                                 (within, self.kill())) from None
        return self.process.returncode, out, self.said(err)

    def end_soon(self, after=0):
        """The same, for a job that ends at once, or after some seconds: in twice SOON_S, on an idle machine in IDLE_S."""
        begin = undisturbed_s()
        ended = self.end(after + 2 * SOON_S)
        took = undisturbed_s() - begin
        if took > after + IDLE_S:
            raise AssertionError("the job took %.3g s to end, in which nothing waited for a core: %s" % (took, ended))
        return ended

    def kill(self):
        """Kills all processes of the job; returns its output.  A launcher that was waited for is not
        among them: its number may be that of another process by now."""
        mpiexec, workers = self.members()
        self.process.kill()
        for pid in filter(None, [mpiexec, *workers]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.stderr.closed:  # all of it was read
            return ""
        return self.said(self.process.communicate()[1])


class Disaster(ek_cli.Case):
    """Tests of one command; `command` is set by both() or in_turn()."""

    command = None
    steps = 12
    lr = 0.01  # lower where there are hundreds of steps, over which roundings grow with it
    references = {}  # of all tests of a process: by steps and lr, the rest is the same

    def setUp(self):
        super().setUp()
        self.config = ek_cli.write_config(self.path("config.json"), num_hidden_layers=3)
        self.out = self.path("run")

    # --- jobs ----------------------------------------------------------------------------------

    def args(self, layout, *more, steps=None, out=None, data=None):
        ranks, words = layout
        if os.path.isdir(out or self.out) and not {"--resume", "--elastic"} & set(more):
            more = ("--overwrite", *more)
        if data and not data.endswith(".bin"):
            more = ("--tokenizer", "bytes", *more)
        return ["train", "--model", self.config, "--data", data or self.data, "--out",
                out or self.out, "--steps", steps or self.steps, "--batch", 4, "--micro-batch", 2,
                "--seq", 16, "--threads", 1, "--dtype", "fp64", "--lr", self.lr, "--seed", 5,
                "--quiet", *(["--ranks", ranks] if ranks > 1 else []), *words.split(), *more]

    def job(self, layout, *more, **kw):
        j = Job(self.command, self.args(layout, *more, **kw), kw.get("out") or self.out)
        self.addCleanup(j.process.stdout.close)
        self.addCleanup(j.process.stderr.close)
        self.addCleanup(j.kill)
        return j

    def run_job(self, layout, *more, status=DONE, **kw):
        got, _, err = self.job(layout, *more, **kw).end()
        self.assertEqual(got, status, err)
        return err

    # --- checks --------------------------------------------------------------------------------

    def assert_gone(self, job, *pids, within=IDLE_S / 2):
        """No process of the run is left, nor these; processes that are just exiting get a moment, and more of it on a
        busy machine."""
        idle, end = undisturbed_s() + within, time.monotonic() + SOON_S
        while (any(map(bool, job.members())) or any(map(alive, pids))) and time.monotonic() < end \
                and undisturbed_s() < idle:
            time.sleep(0.01)
        self.assertEqual((job.members(), [p for p in pids if alive(p)]), ((None, []), []))

    def assert_said(self, ended, status, *patterns, alone=True):
        """The job's one message matches them all, and (alone) is all it said, but for loss spikes."""
        got, out, err = ended
        self.assertEqual((got, out), (status, ""), err)
        lines = [s for s in err.splitlines() if not s.startswith("warning: step ")]
        self.assertEqual(len([s for s in lines if s.startswith("evenkeel train:")]), 1, err)
        if alone:
            self.assertEqual(len(lines), 1, err)
        for pattern in patterns:
            self.assertRegex(lines[-1], pattern)

    def assert_whole(self):
        """Checkpoints under final names are valid; returns the steps of the newest, 0: none."""
        folder = os.path.join(self.out, "checkpoint")
        if not os.path.exists(folder):
            return 0
        r = ek_cli.run("check", "--checkpoint", self.out, "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)["step"]

    def temporaries(self):
        """Leftovers of an interrupted save."""
        found = []
        for at, folders, files in os.walk(self.out):
            found += [os.path.join(at, n) for n in folders + files if "tmp" in n]
        return found

    def reference(self, steps=None):
        """Losses of the same run on one rank, without faults."""
        key = steps or self.steps, self.lr
        if key not in self.references:
            out = self.path("whole-%d" % key[0])
            r = ek_cli.run(*self.args((1, ""), out=out, steps=steps))
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.references[key] = ek_cli.losses(out)
        return self.references[key]

    def assert_same_losses(self, steps=None):
        want = self.reference(steps)
        got = ek_cli.metrics(self.out)
        self.assertEqual([m["step"] for m in got], list(range(len(want))))
        self.assert_close([m["loss"] for m in got], want, 1e-9)

    # --- one disaster --------------------------------------------------------------------------

    def started_s(self, layout):
        """Seconds until the first step of a run, and seconds of the rest."""
        begin = time.monotonic()
        j = self.job(layout, "--save-every", 1)
        j.wait_for_steps(1)
        first = time.monotonic() - begin
        status, _, err = j.end()
        self.assertEqual(status, DONE, err)
        self.assert_same_losses()
        os.rename(self.out, self.path("measured-%d" % len(os.listdir(self.folder))))
        return first, time.monotonic() - begin - first

    def strike(self, layout, victim, delay, *more):
        """Kills a rank (by number), "mpiexec" or "launcher" after a delay.  Returns whether that
        was before the end."""
        j = self.job(layout, "--save-every", 1, *more)
        time.sleep(delay)
        mpiexec, workers = j.wait_for_members(layout[0])
        pid = {"mpiexec": mpiexec, "launcher": j.process.pid}.get(victim)
        if isinstance(victim, int):
            pid = workers[victim] if victim < len(workers) else None
        if pid is None or j.process.poll() is not None:
            status, _, err = j.end()
            self.assertEqual(status, DONE, err)
            return False
        return self.kill_in(j, victim, pid)

    def kill_at_step(self, layout, victim, step):
        """The same, after a given step of a long run."""
        shutil.rmtree(self.out, True)
        j = self.job(layout, "--save-every", 1, steps=100000)
        j.wait_for_steps(step)
        pid = {"mpiexec": j.members()[0], "launcher": j.process.pid}.get(victim)
        self.kill_in(j, victim, j.rank(victim) if pid is None else pid)
        self.assertGreater(self.assert_whole(), 0)

    def kill_in(self, j, victim, pid):
        rank, introduced = rank_of(pid), all(map(has_begun, j.members()[1]))
        os.kill(pid, signal.SIGKILL)
        status, out, err = j.end_soon()
        self.assert_gone(j)
        if status == DONE and self.all_steps_done():
            return False  # it had done all its work when it was hit
        self.check_message(victim, rank, pid, (status, out, err), introduced)
        self.assert_whole()
        return True

    def all_steps_done(self):
        return ek_cli.lines_of(os.path.join(self.out, "metrics.jsonl")) == self.steps

    def check_message(self, victim, rank, pid, ended, introduced):
        if victim == "launcher":
            self.assertEqual((ended[0], ended[2]), (-signal.SIGKILL, ""))
            return
        far = r"(after step \d+|before a step was completed); (the checkpoint %s/\S+ is complete, "\
              r"continue from it with --resume|there is no checkpoint yet, start over)$" % \
              re.escape(self.out)
        none = "without an error report from a worker"
        host, who = re.escape(HOST), r"mpiexec terminated \(signal 9\) " + none
        if victim != "mpiexec":
            who = r"rank %d on %s \(process %d\)" % (rank, host, pid)
            if not introduced:  # one of which nothing is known yet may have died first
                who = r"(rank \d( on %s)?( \(process \d+\))?|process \d+ on %s|mpiexec)" % (
                    host, host)
            # Open MPI's mpiexec sometimes hangs when a worker dies early, and cannot say how it died
            who += r" (was killed by signal 9 \(Killed\)|exited without an error report, "\
                   r"unnoticed by mpiexec( \(status \d+\))?,|terminated \(\w+ \d+\) %s)" % none
            if self.all_steps_done():  # perhaps killed while all left, which mpiexec may not see
                who = "(%s|mpiexec terminated \\(signal 9\\) %s)" % (who, none)
        self.assert_said(ended, FAILED, "^evenkeel train: %s %s" % (who, far), alone=introduced)

    def go_on(self, layout):
        """Resumes, or starts where there is no checkpoint yet, and compares with the reference."""
        resumed = ["--resume"] if self.assert_whole() else []
        self.run_job(layout, "--save-every", 1, *resumed)
        self.assert_same_losses()
        self.assertEqual(self.temporaries(), [])

    def kill_at_random(self, seed, kills, layouts=LAYOUTS):
        """Kills after random delays, each time in another layout, which continues from the state
        of the one before; a completed run is checked, and started anew."""
        rng = random.Random(seed)
        first, rest = self.started_s(layouts[0])
        done = 0
        for turn in range(4 * kills):
            if done == kills:
                break
            layout = layouts[turn % len(layouts)]
            victim = rng.choice([*range(layout[0]), *range(layout[0]), "mpiexec", "launcher"])
            delay = rng.random() * (first if rng.random() < 0.3 else first + rest)
            more = ["--resume"] if self.assert_whole() else []
            with self.subTest(turn=turn, layout=layout, victim=victim, delay=round(delay, 3)):
                if self.strike(layout, victim, delay, *more):
                    done += 1
                else:  # the machine is faster than when that was measured
                    first, rest = 0.8 * first, 0.8 * rest
            if self.assert_whole() == self.steps:
                self.assert_same_losses()
                os.rename(self.out, self.path("done-%d" % turn))
        self.assertEqual(done, kills, "too few kills came before the end")
        self.go_on(rng.choice(((1, ""), *layouts)))


def make_class(scope, case, name, command, without=()):
    """The tests of a class under one MPI, but for some."""
    scope[case.__name__ + name] = type(
        case.__name__ + name, (case,),
        {"command": command, "__module__": "__main__", **dict.fromkeys(without)})


def both(scope, *cases, first=False):
    """Creates each of these test classes for each installed MPI, or for the first one only."""
    for case in cases:
        for name, command in list(flavours().items())[:1 if first else None]:
            make_class(scope, case, name, command)


def in_turn(scope, *cases):
    """The same, but each test is for one of the MPIs; with EK_TEST_ALL, as in the long tests, for
    each of them."""
    if os.environ.get("EK_TEST_ALL"):
        both(scope, *cases)
        return
    for number, case in enumerate(cases):
        tests = unittest.defaultTestLoader.getTestCaseNames(case)
        found = flavours().items()
        for i, (name, command) in enumerate(found):
            make_class(scope, case, name, command,
                       [t for k, t in enumerate(tests) if (k + number) % len(found) != i])
