"""Starting and joining jobs.  Most tests use a program that replaces mpiexec and its workers,
and can behave as a real one does in a failure."""

import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, DONE, FAILED, INTERRUPTED, USAGE, run, write

IN_A_JOB = ("PMI_", "PMIX_", "OMPI_COMM_", "SLURM_", "EK_")
QUIET = {k: v for k, v in os.environ.items() if not k.startswith(IN_A_JOB)}
SOON_S = 40  # in which a job with a failed rank ends, however busy the machine is; other limits are a minute and more

# Does what its script says; READY makes the workers known, note and line speak for them.
FAKE = '''#!{python}
import json, os, signal, sys, time
def put(text, to=2): os.write(to, text.encode())
def note(text): put("\\x1c" + text + "\\n")
def line(text): put("\\x1e" + text + "\\n")
def ready(n, host="node"):
    for r in range(n): note("rank %d pid %d host %s%d" % (r, 100 + r, host, r))
def listen():  # from here on the launcher's signal is kept until told() takes it
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def told():
    signal.sigwait([signal.SIGUSR1])
def steps(n):
    os.makedirs(out, exist_ok=True)
    with open(out + "/metrics.jsonl", "w") as f:
        for i in range(n): f.write(json.dumps({{"step": i}}) + "\\n")
out = {out!r}
{script}
'''
MPICH_DEATH = '''
put("""
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 102 RUNNING AT node2
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
""", 1)
sys.exit(9)
'''
OPEN_MPI_DEATH = '''
put("""--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpiexec noticed that process rank 2 with PID 0 on node node2 exited on signal 9 (Killed).
--------------------------------------------------------------------------
""")
sys.exit(137)
'''


def mpi(command=COMMAND):
    """("MPICH 4.0.2", its mpiexec), or None."""
    said = subprocess.run([command, "info"], capture_output=True, text=True, check=True).stdout
    m = re.search(r"^MPI: (.*); started by (.*)$", said, re.M)
    return m.groups() if m else None


class Case(ek_cli.Case):
    def fake(self, script, *args, ranks=3, before=None, run="run"):
        """The command and environment of a run with this script as mpiexec."""
        path = write(self.path("mpiexec-" + run),
                     FAKE.format(python=sys.executable, out=self.path(run), script=script))
        os.chmod(path, 0o755)
        return ([COMMAND, *map(str, self.train_args(run, "--ranks", ranks, *args))],
                {**QUIET, "EK_MPIEXEC": path, **(before or {})})

    def launch(self, script, *args, **kw):
        command, env = self.fake(script, *args, **kw)
        r = subprocess.run(command, env=env, capture_output=True, text=True, check=False,
                           stdin=subprocess.DEVNULL, timeout=ek_cli.TIMEOUT_S)
        r.stderr = ek_cli.without_waits(r.stderr)
        return r

    def end(self, p):
        """stdout and stderr of a started process."""
        out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        return out, ek_cli.without_waits(err)

    def start(self, script, *args, **kw):
        command, env = self.fake(script, *args, **kw)
        p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    SCRIPT = 'put(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n", 1)'

    def launch_plain(self, *args, script=SCRIPT):
        """Without --ranks; mpiexec prints its arguments and environment."""
        command, env = self.fake(script)
        at = command.index("--ranks")
        command[at:at + 2] = map(str, args)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False,
                              timeout=ek_cli.TIMEOUT_S)

    def wait_for(self, path):
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(os.path.exists(path), path)

    def on_a_terminal(self, command, env):
        """What it shows there as stderr, and its stdout."""
        try:
            main, sub = pty.openpty()
        except OSError as e:
            self.skipTest("no pseudo-terminal: %s" % e)
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=sub,
                              stdin=subprocess.DEVNULL, text=True) as p:
            os.close(sub)
            said = b""
            while True:
                try:
                    more = os.read(main, 4096)
                except OSError:
                    break
                said += more
            out = p.stdout.read()
        os.close(main)
        return said, out

    def assert_said(self, r, status, *messages):
        """Checks the exit status and stderr line by line; stdout is empty."""
        self.assertEqual((r.returncode, r.stderr.splitlines(), r.stdout),
                         (status, list(messages), ""))


class CommandLine(Case):
    def seen(self, *args, **kw):
        r = self.launch(self.SCRIPT, *args, **kw)
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        return json.loads(r.stdout)

    def test_workers_are_this_command(self):
        argv, env = self.seen("--quiet", "--lr", "0.5")
        self.assertEqual(argv[:2], ["-n", "3"])
        self.assertEqual(argv[-len(self.worker_args):], self.worker_args)
        self.assertEqual(env["EK_LAUNCHED"], "3")

    @property
    def worker_args(self):
        return [os.path.realpath(COMMAND), *map(str, self.train_args(
            "run", "--ranks", 3, "--quiet", "--lr", "0.5"))]

    def test_openmp_of_workers(self):
        _, env = self.seen()
        self.assertIn("OMP_WAIT_POLICY", env)  # of the tests
        _, env = self.seen(before={"GOMP_SPINCOUNT": "77"})
        self.assertEqual(env["GOMP_SPINCOUNT"], "77")

    def test_more_arguments(self):
        argv, _ = self.seen("--mpiexec-args", " -iface  eth0 ")
        at = argv.index("-iface")
        self.assertEqual(argv[at:at + 3], ["-iface", "eth0", os.path.realpath(COMMAND)])

    def test_hosts(self):
        hosts = write(self.path("hosts"), "# ours\na:2\n\n b slots=3 # fast\nc\t\n")
        for ranks, wanted in [((), "6"), (("--ranks", 2), "2"), (("--ranks", 9), "9")]:
            r = self.launch_plain("--hosts", hosts, "--elastic=false", *ranks)
            self.assertEqual((r.returncode, r.stderr), (DONE, ""))
            argv, env = json.loads(r.stdout)
            self.assertEqual(argv[:2], ["-n", wanted])
            self.assertIn("a:2,b:3,c:1", argv)
            self.assertEqual(env["EK_LAUNCHED"], wanted)
            self.assertNotIn("EK_RACKS", env)

    def test_racks(self):
        hosts = write(self.path("hosts"), "a:2 rack=r1\nb rack=r2 slots=3\nc\nd slots=2 rack=r1\n")
        r = self.launch_plain("--hosts", hosts, "--elastic=false")
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        argv, env = json.loads(r.stdout)
        self.assertIn("a:2,b:3,c:1,d:2", argv)
        self.assertEqual(env["EK_RACKS"], "2:0,3:1,1:2,2:0")

    def test_bad_hosts(self):
        for text, words in [("", ["contains no hosts"]), ("# a\n", ["contains no hosts"]),
                            ("a\nb:x\n", ["line 2", "host b"]), ("a:0", ["line 1", "host a"]),
                            ("a:", ["host a"]), ("a slots=-1", ["host a"]),
                            ("a b", ["line 1", "unexpected b after host a"]),
                            ("a:2 slots=2", ["slots=2"]), (":2", ["not a host name"]),
                            ("a rack=", ["unexpected rack= after host a"]),
                            ("a rack=r1 rack=r2", ["unexpected rack=r2 after"]),
                            ("a rack=" + "r" * 64, ["line 1", "host a"]),
                            ("a rack=r slots=0", ["host a must have 1"]),
                            ("-a", ["not a host name"]), ("a,b", ["not a host name"])]:
            with self.subTest(text):
                file = write(self.path("hosts"), text)
                r = self.launch_plain("--hosts", file)
                self.assertEqual((r.returncode, r.stdout), (BAD_INPUT, ""), r.stderr)
                self.assertEqual(r.stderr.count("\n"), 1)
                for word in [file, *words]:
                    self.assertIn(word, r.stderr)
        r = self.launch_plain("--hosts", self.path("nowhere"))
        self.assertEqual(r.returncode, BAD_INPUT)
        self.assertIn("nowhere", r.stderr)

    def test_options_are_checked_before_anything_starts(self):
        for option, value, words in [
                ("ranks", 0, ["--ranks"]), ("ranks", "x", ["--ranks"]), ("pp", 0, ["--pp"]),
                ("tp", -1, ["--tp"]), ("ep", 0, ["--ep"]), ("etp", "1.5", ["--etp"]),
                ("zero", 4, ["4", "0, 1, 2, 3"]), ("pipeline-degree", 3, ["3", "1, 2, 4, 8, auto"]),
                ("a2a", "ring", ["ring", "linear, pairwise, 2dh, auto"]),
                ("pp-chunks", 0, ["--pp-chunks"]), ("smart-groups", -1, ["--smart-groups"]),
                ("watchdog", -1, ["--watchdog"]), ("hosts", "", ["--hosts"])]:
            with self.subTest(option=option, value=value):
                r = self.launch('open(out, "w")', "--%s=%s" % (option, value))
                self.assertEqual((r.returncode, r.stdout), (USAGE, ""))
                for word in words:
                    self.assertIn(word, r.stderr.splitlines()[0])
                self.assertFalse(os.path.exists(self.path("run")))

    def test_more_than_a_host_can_hold(self):
        """One message, before anything is started, created or reserved."""
        most = 64 * len(os.sched_getaffinity(0))  # a control group may grant fewer cores
        args = self.train_args("run", "--quiet")
        for command, words in (
                ((*args, "--threads", most + 1), "--threads %d is too many" % (most + 1)),
                ((*args, "--ranks", 2, "--threads", most // 2 + 1), "for each of its ranks"),
                ((*args, "--ranks", 2, "--elastic", "--threads", most), "for each of its ranks"),
                ((*args, "--batch", 16385, "--micro-batch", 1), "makes 16385 of them a step"),
                ((*args, "--batch", 1000000, "--micro-batch", 1), "16384 are the most"),
                (("eval", "--model", "x", "--data", self.data, "--threads", most + 1), "--threads"),
                (("generate", "--model", "x", "--prompt", "x", "--threads", most + 1),
                 "--threads")):
            with self.subTest(command):
                if most >= 1024 and "--threads" in words + str(command[-2]):
                    self.skipTest("this host can hold all threads that may be asked for")
                r = run(*command, env=QUIET)
                self.assertEqual((r.returncode, r.stdout), (USAGE, ""), r.stderr)
                self.assertIn(words, r.stderr)
                self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
                self.assertFalse(os.path.exists(self.path("run")))

    def test_stdin_of_mpiexec(self):
        """Never at end of file: MPICH's mpiexec forwards EOF to a proxy that may just have ended,
        and then fails (status 255), as if the host did not respond."""
        check = '''
import select
if select.select([0], [], [], 0.2)[0]: put("stdin is at its end\\n"); sys.exit(255)
if sys.argv[-1] != "--version": ready(1); put("at work\\n", 1)'''
        for more in ((), ("--elastic",)):
            command, env = self.fake(check)
            at = command.index("--ranks")
            command[at:at + 2] = ["--hosts", write(self.path("hosts"), "a\n"), *more]
            r = subprocess.run(command, env=env, capture_output=True, text=True, check=False,
                               stdin=subprocess.DEVNULL, timeout=ek_cli.TIMEOUT_S)
            self.assertEqual((r.returncode, r.stdout, ek_cli.without_waits(r.stderr)),
                             (DONE, "at work\n", ""))

    def test_no_mpiexec(self):
        command, env = self.fake("")
        env["EK_MPIEXEC"] = self.path("nowhere")
        r = subprocess.run(command, env=env, capture_output=True, text=True, check=False,
                           timeout=ek_cli.TIMEOUT_S)
        self.assert_said(r, FAILED, "evenkeel train: cannot start %s: No such file or directory"
                         % self.path("nowhere"))


class Talk(Case):
    def test_output_is_passed_on(self):
        r = self.launch('ready(3); line("one"); put("{}\\n\\nlast", 1); line("two")')
        self.assertEqual((r.returncode, r.stdout, r.stderr), (DONE, "{}\n\nlast\n", "one\ntwo\n"))

    def test_a_long_line(self):
        r = self.launch('ready(3); put("x" * 3000000 + "\\n", 1)')
        self.assertEqual(r.stdout.replace("\n", ""), "x" * 3000000)

    def test_warnings_of_mpi_are_kept(self):
        r = self.launch('put("no fast network\\n"); ready(3); line("step")')
        self.assertEqual((r.returncode, r.stdout), (DONE, ""))
        self.assertEqual(r.stderr, "step\nno fast network\n")

    def test_warnings_come_while_it_runs(self):
        p = self.start('''put("no fast network\\n"); ready(3); end = time.time() + 250
while not os.path.exists(out + ".go") and time.time() < end: time.sleep(0.05)
line("the end")''')
        self.assertEqual(next(filter(ek_cli.without_waits, p.stderr), ""), "no fast network\n")
        write(self.path("run.go"), "")
        self.assertEqual(self.end(p)[1], "the end\n")

    def test_the_live_line(self):
        command, env = self.fake(
            'ready(3); put("\\x1d\\rstep 1\\n"); put("\\x1d\\rstep 2\\n"); line("warning: x")\n'
            'put("\\x1d\\rstep 3\\n"); line(""); put(os.environ["EK_LAUNCHED"] + "\\n", 1)')
        said, out = self.on_a_terminal(command, env)
        self.assertEqual(out, "3 live\n")
        self.assertEqual(ek_cli.without_waits(said.decode().replace("\r\n", "\n")),
                         "\rstep 1\033[K\rstep 2\033[K\nwarning: x\n\rstep 3\033[K\n")


class Status(Case):
    def test_a_reported_failure(self):
        noise = 'put("Abort(3) on node 1: application called MPI_Abort\\n"); put("-----\\n")\n'
        for status in (FAILED, USAGE, BAD_INPUT, INTERRUPTED):
            for code in (0, 1, 9, 137, 255):
                with self.subTest(status=status, code=code):
                    r = self.launch('ready(3); note("failed %d"); line("evenkeel train: rank 1 on '
                                    'node1: why")\n%ssys.exit(%d)' % (status, noise, code))
                    self.assert_said(r, status, "evenkeel train: rank 1 on node1: why")

    def test_two_reports_are_one(self):
        r = self.launch('ready(3); note("failed 3"); line("why"); note("failed 1"); line("also")\n'
                        'sys.exit(1)')
        self.assert_said(r, BAD_INPUT, "why")
        r = self.launch('ready(3); note("failed 3 rank 1"); note("failed 3 rank 2"); line("why")\n'
                        'line("also"); sys.exit(1)')
        self.assert_said(r, BAD_INPUT, "why")

    def test_no_report(self):
        for code in (1, 2, 3, 9, 130, 137, 255):
            with self.subTest(code):
                r = self.launch('ready(3); put("no slots\\n"); sys.exit(%d)' % code)
                self.assert_said(
                    r, FAILED, "no slots",
                    "evenkeel train: mpiexec terminated (status %d) without an error report from a "
                    "worker before a step was completed; there is no checkpoint yet, start over"
                    % code)

    def test_what_ucx_says_of_a_rank_that_died(self):
        """On stdout, which belongs to the command itself."""
        ucx = "[1795318471.361091] [vm:7928 :0]   mm_posix.c:219  UCX  ERROR open() failed\\n"
        r = self.launch('ready(3); put("%s", 1)' % ucx + MPICH_DEATH)
        self.assert_said(r, FAILED, "evenkeel train: rank 2 on node2 (process 102) was killed by "
                         "signal 9 (Killed) before a step was completed; there is no checkpoint yet, "
                         "start over")
        r = self.launch('ready(3); put("%s", 1); sys.exit(3)' % ucx)
        self.assertEqual(r.stdout, "")
        self.assertIn("UCX  ERROR", r.stderr)  # the reason may be here

    def test_mpiexec_is_killed(self):
        r = self.launch("ready(3); os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(r.returncode, FAILED)
        self.assertIn("mpiexec terminated (signal 9)", r.stderr)

    def test_a_killed_worker(self):
        for death in (MPICH_DEATH, OPEN_MPI_DEATH):
            r = self.launch("ready(3); steps(17)" + death)
            self.assert_said(r, FAILED, "evenkeel train: rank 2 on node2 (process 102) was killed "
                             "by signal 9 (Killed) after step 17; there is no checkpoint yet, "
                             "start over")

    def test_a_killed_worker_of_a_run_with_checkpoints(self):
        self.train("run", "--save-every", 2)
        for more in ([], ["--resume"]):
            r = self.launch("ready(3)\nif not sys.argv[-1] == '--resume': steps(5)" + MPICH_DEATH,
                            *more)
            self.assert_said(r, FAILED, "evenkeel train: rank 2 on node2 (process 102) was killed "
                             "by signal 9 (Killed) after step %d; the checkpoint %s is complete, "
                             "continue from it with --resume"
                             % (5, ek_cli.newest(self.path("run"))))

    def test_nobody_is_known(self):
        r = self.launch(MPICH_DEATH)
        self.assertEqual(r.returncode, FAILED)
        self.assertIn("process 102 on node2 was killed by signal 9 (Killed) before a step",
                      r.stderr)
        self.assertEqual((r.stderr.count("\n"), r.stdout), (1, ""))

    def test_a_worker_ends_without_a_word(self):
        r = self.launch('''ready(3); put("==1==ERROR: AddressSanitizer\\n")
put("  Process name: [[19330,1],1]\\n  Exit code:    23\\n"); sys.exit(23)''')
        self.assertEqual(r.returncode, FAILED)
        said = r.stderr.splitlines()
        self.assertIn("AddressSanitizer", said[0])
        self.assertIn("rank 1 on node1 (process 101) exited without an error report (status 23)",
                      said[-1])

    def test_mpiexec_does_not_end(self):
        begin = time.monotonic()
        r = self.launch('ready(3); note("failed 1"); line("why"); time.sleep(3600)')
        self.assert_said(r, FAILED, "why")
        self.assertLess(time.monotonic() - begin, SOON_S)


class Elastic(Case):
    """Restarts by the launcher (--elastic)."""

    def generations(self, script, **kw):
        """A stand-in that counts its starts in a file, as n from 1 on."""
        count = '''path = out + ".starts"
n = int(open(path).read()) + 1 if os.path.exists(path) else 1
open(path, "w").write(str(n)); ready(3)
'''
        r = self.launch(count + script, "--elastic", **kw)
        return r, int(ek_cli.read(self.path("run.starts")))

    def test_it_goes_on(self):
        r, starts = self.generations("if n < 5: steps(n)" + "\n" + "if n == 5: sys.exit(0)" +
                                     MPICH_DEATH)
        self.assertEqual((r.returncode, starts), (DONE, 5), r.stderr)
        self.assertEqual(r.stderr.splitlines(), [
            "evenkeel train: rank 2 on node2 (process 102) was killed by signal 9 (Killed) after "
            "step %d; continuing from memory" % n for n in range(1, 5)])

    def test_steps_that_are_taken_again(self):
        """A warning gives their number and the source of the state; there is none if a later start
        continues where the previous one ended, or from a checkpoint written for it."""
        lost = "evenkeel train: warning: %s repeated, from %s"
        for notes, step, said in (
                ("", 1, ("10 completed steps are",
                         "the beginning: no state of the run is left in memory, and there is no "
                         "checkpoint")),
                ("", 8, ("3 completed steps are",
                         "the checkpoint of step 7: no state of the run is left in memory")),
                ("lacking 9", 10, ("1 completed step is",
                                 "the checkpoint of step 9: only part of the state is left in "
                                 "memory")),
                ("recovered 0 5 5 0", 10, ("1 completed step is",
                                       "step 9: no newer state is left in memory")),
                ("recovered 0 5 5 0", 11, None)):
            with self.subTest(notes=notes, step=step):
                r, _ = self.generations('''
if n == 1: steps(10); note("step 10 of 99"); time.sleep(0.3)
if n == 2: note("%s"); steps(%d); note("step %d of 99"); time.sleep(0.3)
if n == 3: note("recovered 0 5 5 0"); steps(%d); note("step %d of 99"); time.sleep(0.3); sys.exit(0)
''' % (notes, step, step, step + 1, step + 1) + MPICH_DEATH)
                self.assertEqual(r.returncode, DONE, r.stderr)
                self.assertEqual([s for s in r.stderr.splitlines() if "warning" in s],
                                 [lost % said] if said else [])
                told = [json.loads(line) for line in
                        ek_cli.read(self.path("run", "generations.jsonl")).decode().splitlines()]
                self.assertEqual([g["steps_again"] for g in told], [0, 11 - step, 0])
                os.remove(self.path("run.starts"))
                shutil.rmtree(self.path("run"))

    def test_steps_that_an_earlier_command_has_done(self):
        path = write(self.path("run", "metrics.jsonl"), '{"step": 5}\n{"step": 6}\n{"st')
        os.utime(path, (1, 1))
        r = self.launch('ready(3); steps(1); note("step 1 of 9"); time.sleep(0.3)', "--elastic")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("warning: 7 completed steps are repeated, from the beginning: ",
                      r.stderr)

    def test_no_room_for_a_line(self):
        """The launcher appends a complete line or nothing."""
        command, env = self.fake('ready(3); steps(1); note("step 1 of 9"); time.sleep(0.3)',
                                 "--elastic")
        for room, lines in ((200, 0), (100000, 1)):
            with self.subTest(room):
                r = subprocess.run(command, env=env, check=False, capture_output=True, text=True,
                                   preexec_fn=lambda n=room: resource.setrlimit(
                                       resource.RLIMIT_FSIZE, (n, n)))
                self.assertEqual(r.returncode, DONE, r.stderr)
                told = ek_cli.read(self.path("run", "generations.jsonl")).splitlines()
                self.assertEqual([json.loads(s)["ranks"] for s in told], [3] * lines)

    def test_a_worker_that_died_before_it_was_heard(self):
        """It had connected to the launcher, but mpiexec forwarded nothing."""
        r = self.launch('''
import socket, struct
if not os.path.exists(out + ".up"):
    open(out + ".up", "w").close()
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0" + os.environ["EK_LAUNCHED_BY"])
    s.send(struct.pack("i", 1))
    s.close()
    time.sleep(60)
ready(3)''', "--elastic")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("before a step was completed; continuing from memory", r.stderr)

    def test_not_for_ever(self):
        r, starts = self.generations("steps(3)" + MPICH_DEATH)
        self.assertEqual((r.returncode, starts), (FAILED, 6), r.stderr)
        self.assertRegex(r.stderr.splitlines()[-1], "after step 3; giving up after 5 "
                         "consecutive starts that did not complete a step; ")

    def test_a_worker_that_lost_another(self):
        r, starts = self.generations('if n == 1: note("failed 1 lost"); line("why"); sys.exit(1)')
        self.assertEqual((r.returncode, starts), (DONE, 2), r.stderr)
        self.assertEqual(r.stderr, "why\nevenkeel train: continuing from memory\n")

    def test_not_after_a_mistake(self):
        for status in (FAILED, USAGE, BAD_INPUT):
            with self.subTest(status):
                r, starts = self.generations('note("failed %d"); line("why"); sys.exit(1)' % status)
                self.assert_said(r, status, "why")
                self.assertEqual(starts, 1)
                os.remove(self.path("run.starts"))

    def test_not_when_interrupted(self):
        p = self.start('listen(); ready(3); open(out + ".up", "w"); told()' + MPICH_DEATH,
                       "--elastic")
        self.wait_for(self.path("run.up"))
        p.send_signal(signal.SIGINT)
        _, err = self.end(p)
        self.assertEqual(p.returncode, INTERRUPTED, err)
        self.assertNotIn("continuing", err)


class Signals(Case):
    def test_workers_are_told_and_save(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            p = self.start('''listen(); ready(3); open(out + ".up", "w"); told()
put("mpiexec: Forwarding signal 10 to job\\n")
note("failed 130"); line("evenkeel train: interrupted after step 4"); sys.exit(1)''')
            self.wait_for(self.path("run.up"))
            p.send_signal(sig)
            out, err = self.end(p)
            self.assertEqual((p.returncode, out, err),
                             (INTERRUPTED, "", "evenkeel train: interrupted after step 4\n"))
            os.remove(self.path("run.up"))

    def test_before_all_are_there(self):
        """There is no work to save yet, and a worker may never start."""
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            p = self.start('''ready(2); open(out + ".up", "w"); time.sleep(200)
ready(3); open(out + ".late", "w"); time.sleep(3600)''')
            self.wait_for(self.path("run.up"))
            p.send_signal(sig)
            out, err = self.end(p)
            self.assertEqual((p.returncode, out), (INTERRUPTED, ""), err)
            self.assertIn("interrupted, terminated without saving before a step was completed", err)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertFalse(os.path.exists(self.path("run.late")))
            os.remove(self.path("run.up"))

    def test_a_second_one_ends_it(self):
        p = self.start('''listen(); ready(3); open(out + ".up", "w"); told()
open(out + ".told", "w"); time.sleep(3600)''')
        self.wait_for(self.path("run.up"))
        p.send_signal(signal.SIGINT)
        self.wait_for(self.path("run.told"))  # two signals that come together are one
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        _, err = self.end(p)
        self.assertEqual(p.returncode, INTERRUPTED)
        self.assertIn("interrupted, terminated without saving before a step was completed", err)
        self.assertEqual(err.count("\n"), 1)

    def test_mpiexec_goes_with_its_launcher(self):
        p = self.start('''with open(out + ".new", "w") as f: f.write(str(os.getpid()))
os.rename(f.name, out + ".up"); time.sleep(3600)''')
        self.wait_for(self.path("run.up"))
        pid = int(ek_cli.read(self.path("run.up")))
        p.kill()
        p.wait()
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(alive(pid))


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Joining(Case):
    def test_slurm_alone_is_no_job(self):
        env = {**QUIET, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
        r = run(*self.train_args("run", "--quiet", steps=1), env=env)
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))

    def test_of_another_mpi(self):
        for rank in (0, 1):
            env = {**QUIET}
            if (mpi() or [""])[0].startswith("MPICH"):
                env.update(OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2")
            else:
                env.update(PMI_RANK=str(rank), PMI_SIZE="2")
            r = run(*self.train_args("run"), env=env)
            if mpi():
                self.assertEqual(r.returncode, USAGE)
                self.assertEqual(r.stderr.count("\n"), 1 - rank, r.stderr)
                if rank == 0:
                    self.assertIn("2 processes were started, but MPI sees 1", r.stderr)
            else:
                self.assertEqual(r.returncode, BAD_INPUT)
            self.assertFalse(os.path.exists(self.path("run")))

    def test_without_mpi(self):
        if mpi():
            self.skipTest("this evenkeel has MPI")
        r = run(*self.train_args("run", "--ranks", 2), env=QUIET)
        self.assertEqual(r.returncode, USAGE)
        self.assertIn("built without", r.stderr)


class WithMpi:
    """With a real mpiexec."""

    command = COMMAND
    ranks = 1  # of a run

    def setUp(self):
        super().setUp()
        if not os.path.exists(self.command) or not mpi(self.command):
            self.skipTest("%s is not there, or has no MPI" % os.path.basename(self.command))
        self.library, self.mpiexec = mpi(self.command)
        if not os.access(self.mpiexec, os.X_OK):
            self.skipTest("%s is not installed" % self.mpiexec)

    def run_it(self, *args):
        return subprocess.run([self.command, *map(str, args)], env=QUIET, capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL,
                              timeout=ek_cli.TIMEOUT_S)

    def under_mpiexec(self, n, *args):
        more = []
        if self.library.startswith("Open MPI"):
            more = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        # MPICH's forwards the end of its input to a proxy that may just have ended, and gets SIGPIPE
        quiet, other = os.pipe()
        try:
            return subprocess.run([self.mpiexec, "-n", str(n), *more, self.command, *map(str, args)],
                                  env=QUIET, capture_output=True, text=True, check=False,
                                  stdin=quiet, timeout=ek_cli.TIMEOUT_S)
        finally:
            os.close(quiet)
            os.close(other)

    def assert_once(self, r, status, *words, alone=False):
        """One message of evenkeel; with a launcher it is the only output."""
        err = ek_cli.without_waits(r.stderr)
        self.assertEqual((r.returncode, r.stdout), (status, ""), err)
        ours = [s for s in err.splitlines() if s.startswith("evenkeel")]
        self.assertEqual(len(ours), 1, err)
        for word in words:
            self.assertIn(word, ours[0])
        if alone:
            self.assertEqual(err.count("\n"), 1, err)

    def test_a_mistake_is_told_once(self):
        self.assert_once(self.run_it("bench", "gemm", "--ranks", 2), USAGE,
                         "`bench gemm` has no option `--ranks`")
        self.assert_once(self.under_mpiexec(2, "bench", "gemm"), USAGE,
                         "bench gemm measures one process")
        self.assert_once(self.under_mpiexec(2, "train", "--stpes", 3), USAGE, "--steps")

    def test_another_number_of_ranks(self):
        self.assert_once(self.under_mpiexec(2, *self.train_args("run", "--ranks", 3)), USAGE,
                         "--ranks is 3", "this MPI job has 2")

    def test_more_ranks_than_a_host_holds_start_nothing(self):
        for more in (("--ranks", 1000000), ("--ranks", 1000000, "--elastic")):
            r = self.run_it(*self.train_args("run", *more))
            self.assert_once(r, USAGE, "1000000 ranks", "64 processes a core", alone=True)
        hosts = write(self.path("hosts"), "localhost\n")
        r = self.run_it(*self.train_args("run", "--hosts", hosts, "--ranks", 1000000))
        self.assert_once(r, USAGE, "--ranks 1000000", "1 host", alone=True)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_bad_input_is_told_once(self):
        r = self.run_it(*self.train_args("run", "--ranks", 2, data=self.path("nowhere")))
        self.assert_once(r, BAD_INPUT, "evenkeel train: rank 0 on %s: " % socket.gethostname(),
                         "nowhere", alone=True)

    def test_help_is_told_once(self):
        r = self.under_mpiexec(2, "train", "--help")
        self.assertEqual((r.returncode, r.stdout.count("usage:"), r.stderr), (DONE, 1, ""))

    # --- runs ----------------------------------------------------------------------------------

    def job_args(self, *more, steps=6):
        """A launched run, even with a single rank."""
        hosts = write(self.path("hosts"), "localhost slots=%d\n" % self.ranks)
        return self.train_args("run", "--hosts", hosts, "--threads", 1, *more, steps=steps)

    def start_job(self, *more):
        p = subprocess.Popen([self.command, *map(str, self.job_args(*more, steps=1000000))],
                             env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             stdin=subprocess.DEVNULL)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        ek_cli.wait_for_steps(p, self.path("run"), 5)
        end = time.monotonic() + ek_cli.TIMEOUT_S
        workers = self.workers(p.pid)
        while len(workers) != self.ranks and time.monotonic() < end:
            time.sleep(0.01)  # what the launcher has forked looks like one until it is another program
            workers = self.workers(p.pid)
        self.assertEqual(len(workers), self.ranks)
        return p, workers

    def workers(self, launcher):
        """Processes of the job, lowest rank first."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    words = f.read().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if (words[0] == os.path.realpath(self.command) and self.path("run") in words and
                    int(pid) != launcher):
                found.append(int(pid))
        return sorted(found)

    def assert_gone(self, workers):
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while any(map(alive, workers)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(list(filter(alive, workers)))

    def test_a_run(self):
        r = self.run_it(*self.job_args("--json"))
        self.assertEqual((r.returncode, json.loads(r.stdout)["ranks"]), (DONE, self.ranks),
                         r.stderr)
        self.assertEqual(len(ek_cli.metrics(self.path("run"))), 6)
        self.assertIn("step 6/6", r.stderr)

    def test_plain_mpiexec(self):
        r = self.under_mpiexec(self.ranks, *self.train_args("run", "--quiet"))
        self.assertEqual((r.returncode, r.stdout), (DONE, ""), r.stderr)
        self.assertEqual(len(ek_cli.metrics(self.path("run"))), 6)

    def test_elastic_under_another_mpiexec(self):
        r = self.under_mpiexec(self.ranks, *self.train_args("run", "--quiet", "--elastic"))
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--elastic starts its workers itself", r.stderr)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_the_live_line_of_a_run(self):
        said, out = self.on_a_terminal([self.command, *map(str, self.job_args())], QUIET)
        lines = said.decode().replace("\r\n", "\n").split("\n")
        live = [s for s in lines if "step 6/6" in s]
        self.assertEqual(len(live), 1, said)
        self.assertTrue(live[0].startswith("\rstep 1/6"), said)
        self.assertIn("steps in", out)

    def test_interrupted(self):
        p, workers = self.start_job()
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual((p.returncode, out), (INTERRUPTED, ""), err)
        self.assertEqual(err.count("evenkeel train: interrupted after step"), 1, err)
        self.assertIn("--resume", ek_cli.without_waits(err).splitlines()[-1])
        self.assertTrue(ek_cli.weights(self.path("run")))
        self.assert_gone(workers)

    def test_killed(self):
        p, workers = self.start_job("--save-every", 2)
        os.kill(workers[-1], signal.SIGKILL)
        out, err = p.communicate(timeout=SOON_S)
        err = ek_cli.without_waits(err)
        self.assertEqual((p.returncode, out), (FAILED, ""), err)
        said = [s for s in err.splitlines() if s.startswith("evenkeel train:")]
        self.assertEqual((len(said), err.splitlines()[-1]), (1, said[-1]), err)
        self.assertRegex(said[0], r"rank %d on \S+ \(process %d\) was killed by signal 9 "
                         r"\(Killed\) after step \d+; the checkpoint %s/\S+ is complete" %
                         (len(workers) - 1, workers[-1], re.escape(self.path("run"))))
        self.assert_gone(workers)

    def test_the_launcher_is_killed(self):
        p, workers = self.start_job()
        p.kill()
        self.assert_gone(workers)

    def test_what_ends_the_others_does_not_save(self):
        p, workers = self.start_job()
        os.kill(workers[0], signal.SIGTERM)  # as Open MPI does when one of several has died
        before = ek_cli.lines_of(self.path("run", "metrics.jsonl"))
        ek_cli.wait_for_steps(p, self.path("run"), before + 3)
        self.assertIsNone(p.poll())


class Real(WithMpi, Case):
    pass


class RealOpenMpi(WithMpi, Case):
    command = COMMAND + "-openmpi"


class RealMpich(WithMpi, Case):
    command = COMMAND + "-mpich"


if __name__ == "__main__":
    ek_cli.main()
