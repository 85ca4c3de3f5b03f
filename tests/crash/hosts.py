"""--elastic runs whose hosts leave and join, shared by t_hosts.py, t_hosts_lists.py and
t_hosts_long.py.

All on one machine: a program replaces mpiexec, responds for hosts according to files that a
test creates, and starts all workers here.  t_chaos.py uses separate hosts."""

import itertools
import json
import mmap
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import ranks
from elastic import OpenEnded
from ranks import BAD_INPUT, FAILED, INTERRUPTED, USAGE, ek_cli

# Behaviour of hosts.  Host "slow": preallocation takes an hour.  Files, for a host "b": down-b: probes
# fail; silent-b: probes hang until it is removed; broken-b: probes succeed, jobs fail at once; apart-b-c: the connectivity
# test between the two hangs; late-1: the first start with draining hosts fails; held-1: it never begins;
# tired-b: probes take 2.5 s; shy-b: the first probe fails; bare-b: it has no data; elsewhere-b: its
# --out is another folder.  File "named": workers have the names of their hosts, so that these count
# as several (needs the right to do so).  Folder "memory": with "named", each host also has memory of
# its own, so that state is lost with a host, and only its ranks find it.
STAND_IN = """#!{python}
import ctypes, os, socket, sys, time
words = sys.argv[1:]
if words[0] == "--worker":
    rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    if os.path.exists(os.path.join({folder!r}, "named")):
        libc, host = ctypes.CDLL(None), words[1].split(",")[int(rank)]
        if libc.unshare(0x04000000):  # CLONE_NEWUTS
            sys.exit("cannot set the name of a host")
        socket.sethostname(host)
        memory = os.path.join({folder!r}, "memory")
        if os.path.exists(memory):
            memory = os.path.realpath(os.path.join(memory, host))
            os.makedirs(memory, exist_ok=True)
            # CLONE_NEWNS and CLONE_NEWIPC; MS_REC | MS_PRIVATE; MS_BIND
            if (libc.unshare(0x00020000 | 0x08000000) or libc.mount(None, b"/", None, 0x44000, None) or
                    libc.mount(memory.encode(), b"/dev/shm", None, 0x1000, None)):
                sys.exit("cannot give a host memory of its own")
            os.environ["MPIR_CVAR_NOLOCAL"] = "1"  # MPI must not look for the others there
    if os.path.exists(os.path.join({folder!r}, "bare-" + words[1].split(",")[int(rank)])):
        words = [w if w != {data!r} else "/nowhere.bin" for w in words]
    if os.path.exists(os.path.join({folder!r}, "elsewhere-" + words[1].split(",")[int(rank)])):
        words = [w if w != {out!r} else {out!r} + "-elsewhere" for w in words]
    os.execv(words[2], words[2:])
at = words.index("-hosts") if "-hosts" in words else words.index("--host")
hosts = [h.split(":")[0] for h in words[at + 1].split(",")]
each = [h.split(":")[0] for h in words[at + 1].split(",") for _ in range(int((h + ":1").split(":")[1]))]
if "reserve" in words:
    with open(os.path.join({folder!r}, "reserved"), "a") as f:
        f.write(" ".join(hosts + words[words.index("reserve") + 1:]) + "\\n")
del words[at:at + 2]
if "links" in words:
    with open(os.path.join({folder!r}, "linked"), "a") as f:
        f.write(" ".join(hosts) + "\\n")
for a, b in [(a, b) for a in hosts for b in hosts] if "links" in words else []:
    while os.path.exists(os.path.join({folder!r}, "apart-%s-%s" % (a, b))):
        time.sleep(0.02)
for h in hosts:
    if h == "slow" and "reserve" in words and words[-1] == {out!r}:
        time.sleep(3600)
    while os.path.exists(os.path.join({folder!r}, "silent-" + h)):
        time.sleep(0.02)
    if words[-1] == "--version" and os.path.exists(os.path.join({folder!r}, "tired-" + h)):
        time.sleep(2.5)
    if words[-1] == "--version" and os.path.exists(os.path.join({folder!r}, "shy-" + h)):
        os.unlink(os.path.join({folder!r}, "shy-" + h))
        sys.exit(255)
    if os.path.exists(os.path.join({folder!r}, "down-" + h)):
        sys.exit(255)
    if os.path.exists(os.path.join({folder!r}, "broken-" + h)) and words[-1] != "--version":
        sys.exit(1)
if "draining=" in os.environ.get("EK_LAUNCHED", "") and words[-1] != "--version":
    with open(os.path.join({folder!r}, "gave"), "a") as f:
        f.write(" ".join(hosts) + "\\n")
    start = len(open(f.name).readlines())
    if os.path.exists(os.path.join({folder!r}, "held-%d" % start)):
        time.sleep(3600)
    if os.path.exists(os.path.join({folder!r}, "late-%d" % start)):
        sys.exit(1)
odd = [w + h for w in ("bare-", "elsewhere-") for h in hosts]
if any(os.path.exists(os.path.join({folder!r}, w)) for w in odd + ["named"]) and {command!r} in words:
    words[words.index({command!r}):0] = [sys.argv[0], "--worker", ",".join(each)]
os.execvp({mpiexec!r}, [{mpiexec!r}] + words)
"""


class Hosts(OpenEnded):
    def setUp(self):
        super().setUp()
        name = [n for n, c in ranks.flavours().items() if c == self.command][0]
        path = ek_cli.write(self.path("mpiexec"), STAND_IN.format(
            python=sys.executable, folder=self.folder, out=os.path.realpath(self.out),
            data=self.data, command=self.command,
            mpiexec=os.environ["EK_MPIEXEC_" + name]))
        os.chmod(path, 0o755)
        ranks.QUIET["EK_MPIEXEC"] = path
        self.addCleanup(ranks.QUIET.pop, "EK_MPIEXEC")
        self.hosts("a", "b", "c")

    def hosts(self, *names):
        """Writes the host file, atomically."""
        ek_cli.write(self.path("hosts.new"), "".join(n + "\n" for n in names))
        os.rename(self.path("hosts.new"), self.path("hosts"))

    def on_hosts(self, words="", *more, **kw):
        return self.elastic((1, words), "--hosts", self.path("hosts"), *more, **kw)

    def set(self, what, host):
        ek_cli.write(self.path("%s-%s" % (what, host)), "")

    def unset(self, what, host):
        os.unlink(self.path("%s-%s" % (what, host)))

    def lose(self, j, host, how="down"):
        """Kills a host together with the state of its rank."""
        rank = self.used.index(host)
        worker, segment = j.rank(rank), self.segments()[rank]
        self.set(how, host)
        self.remove_segment(segment)
        os.kill(worker, signal.SIGKILL)
        self.used.remove(host)

    @staticmethod
    def wait_until(j, is_so, what):
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while not is_so():
            if j.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("never %s: %s" % (what, j.kill()))
            time.sleep(0.01)

    def wait_for_ranks(self, j, n):
        """Waits until the newest generation has n ranks."""
        self.wait_until(j, lambda: [g["ranks"] for g in self.generations()[-1:]] == [n],
                        "%d ranks" % n)

    def wait_for_starts(self, j, n):
        """Waits for n generations."""
        self.wait_until(j, lambda: len(self.generations()) >= n, "%d starts" % n)

    def start(self, words="", n=3, **kw):
        return self.take_part(self.on_hosts(words, **kw), n)

    def start_by_default(self, words="", n=3):
        """Without --elastic."""
        return self.take_part(self.job((1, words), "--hosts", self.path("hosts")), n)

    def take_part(self, j, n):
        self.used = ["a", "b", "c"][:n]
        self.wait_for_ranks(j, n)
        return j

    def reserved(self):
        """Calls to preallocate memory and to free it: host and arguments."""
        path = self.path("reserved")
        return [line.split() for line in ek_cli.read(path).decode().splitlines()] \
            if os.path.exists(path) else []

    def linked(self):
        """Hosts of each connectivity test."""
        path = self.path("linked")
        return ek_cli.read(path).decode().splitlines() if os.path.exists(path) else []

    def gave(self):
        """Hosts of each start with draining hosts."""
        return ek_cli.read(self.path("gave")).decode().splitlines()

    def starts(self):
        """Generations without those after a hang, which may be seen in vain on a busy machine."""
        return [g for g in self.generations()
                if not re.search("no progress for|has not responded", g.get("after", ""))]

    def ranks_were(self):
        return [g["ranks"] for g in self.starts()]

    def assert_takes_part(self, err, hosts, ranks):
        """All of these hosts have joined in the end; a host that answers late joins later."""
        for host in hosts:
            self.assertRegex(err, r"train: (\w, )*%s(, \w)* joins?; \d ranks" % host)
        self.assertIn("; %d ranks on %d hosts\n" % (ranks, ranks), err)

    def drain(self, j):
        """A reclaim notice to rank 1 of three after 20 steps; no step is taken again."""
        j.wait_for_steps(20)
        told = self.told()
        os.kill(j.rank(1), signal.SIGTERM)
        self.wait_for_ranks(j, 2)
        self.assertTrue(self.told().startswith(told), "a step was taken again")


class Journal:
    """The step journal of a rank's segment (src/elastic/step_journal.c)."""

    def __init__(self, folder):
        with open(os.path.join(folder, "front"), "rb") as f:
            self.memory = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        self.at = self.memory.find(b"EKLEDGR\0")

    def updating(self):
        """The number of the extent that is being updated; None: none is."""
        extents, _, _, done, touched = struct.unpack_from("<5q", self.memory, self.at + 24)
        return done % extents if touched > done else None


class OwnMemory(Hosts):
    """Hosts with names and memory of their own."""

    NAMES = ["a", "b", "c", "d"]

    def setUp(self):
        super().setUp()
        if subprocess.run(["unshare", "-u", "-m", "-i", "true"], capture_output=True, check=False).returncode:
            self.skipTest("hosts cannot be named here")
        memory = tempfile.mkdtemp(prefix="ek_hosts_", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, memory, True)
        os.symlink(memory, self.path("memory"))
        self.memories = [os.path.join(memory, host) for host in self.NAMES]
        self.hosts(*self.NAMES)
        ek_cli.write(self.path("named"), "")

    def limit_memory(self, size="16m"):
        """Of one host, for workers that start later."""
        os.makedirs(self.memories[1], exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", self.memories[1]], capture_output=True,
                          check=False).returncode:  # MPI takes 5 MB
            self.skipTest("small memory needs the right to mount it")
        self.addCleanup(subprocess.run, ["umount", "-l", self.memories[1]], check=False)

    def start_named(self, words, n=4, **kw):
        """Without tuners, which would choose by times."""
        shutil.rmtree(self.out, True)
        words = "--save-every 0 --a2a pairwise --pipeline-degree 1 " + words
        j = self.on_hosts(words, **kw)
        self.used = self.NAMES[:n]
        self.wait_for_ranks(j, n)
        return j

    def lose_with_memory(self, j, host):
        """Kills a host: all that its memory has is gone."""
        worker = j.rank(self.used.index(host))
        self.set("down", host)
        os.kill(worker, signal.SIGKILL)
        shutil.rmtree(self.memories[self.NAMES.index(host)])
        self.used.remove(host)

    def assert_went_on(self, told, err):
        """From memory alone: no step was taken again, and there was no checkpoint."""
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertNotIn("going back", err)
        later = [(g["from"], g["steps_again"]) for g in self.generations()[1:]]
        self.assertEqual(set(later), {("memory", 0)}, err)

    def stop_in_update(self, j, rank, segment, extents):
        """Stops a worker in the update of one of these extents of a segment that it updates.  Returns the worker."""
        worker, journal = j.rank(rank), Journal(segment)
        end = time.monotonic() + ek_cli.TIMEOUT_S
        while time.monotonic() < end:
            while journal.updating() not in extents and time.monotonic() < end:
                pass
            os.kill(worker, signal.SIGSTOP)
            while (ranks.status_of(worker, "State") or "T")[0] != "T":
                pass
            if journal.updating() in extents:
                return worker
            os.kill(worker, signal.SIGCONT)  # it was through
        raise AssertionError("never stopped in the update of a copy: %s" % j.kill())

    def write_cluster(self, machine, gbytes_s, us):
        return ek_cli.write(self.path("cluster.json"), json.dumps(
            {"evenkeel_cluster": 1, "name": "four", "rank": {"machine": machine},
             "levels": [{"name": "net", "ranks": 4, "gbytes_s": gbytes_s, "us": us}]}))

    def assert_bytes(self, layout, cluster):
        """Trains, simulates, and compares what a step sends; returns it."""
        words = "--force-balance --a2a linear --pipeline-degree 1 --dtype fp32 " + layout
        status, _, err = self.start_named(words, steps=12).end()
        self.assertEqual(status, ranks.DONE, err)
        last = ek_cli.metrics(self.out)[-1]
        told = json.loads(ek_cli.read(os.path.join(self.out, "run.json")))["settings"]
        r = ek_cli.run("simulate", "--cluster", cluster, "--ranks", 4, "--model", told["model"], "--batch", told["batch"],
                       "--micro-batch", told["micro-batch"], "--seq", told["seq"], "--elastic", "--every-rank",
                       "--json", *words.replace("--force-balance ", "").split())
        self.assertEqual(r.returncode, ranks.DONE, r.stderr)
        self.assertAlmostEqual(4 * json.loads(r.stdout)["sent_mb"]["net"], last["comm_bytes"] / 1e6, delta=1e-6)
        return last["comm_bytes"]


class GoAndCome(Hosts):
    def test_one_is_lost_and_comes_back(self):
        """With --ep 2: three ranks use --ep 3, two ranks --ep 2."""
        j = self.start()
        j.wait_for_steps(20)
        told = self.told()
        self.lose(j, "b")
        self.wait_for_ranks(j, 2)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        time.sleep(0.3)
        self.unset("down", "b")
        self.wait_for_ranks(j, 3)
        err = self.assert_done(j)
        self.assertEqual(self.ranks_were(), [3, 2, 3], err)
        self.assertIn("evenkeel train: b (mpiexec: status 255) does not respond; "
                      "2 ranks on 2 hosts\n", err)
        self.assertIn("evenkeel train: b joins; 3 ranks on 3 hosts\n", err)
        self.assertEqual(len(re.findall(r"resumed, step \d+ completed after [\d.]+ (?:m?s|min): ending [\d.]+ (?:m?s|min), probe "
                                        r"[\d.]+ (?:m?s|min), launch ", err)), len(self.generations()) - 1, err)
        self.assertEqual(self.starts()[2]["after"], "more hosts can take part")
        orders = self.reserved()
        self.assertEqual({(o[0], len(o)) for o in orders}, {("b", 7)}, orders)
        self.assertEqual((orders[0][4], orders[0][6]), ("1", os.path.realpath(self.out)))
        self.assertRegex(orders[0][5], r"^\d+x\d+(,\d+x\d+)*$")

    def test_one_is_silent(self):
        """The others have responded, so its probe gets a shorter time limit."""
        j = self.start()
        j.wait_for_steps(20)
        self.lose(j, "a", "silent")
        self.wait_for_ranks(j, 2)
        if self.generations()[1]["probe_s"] >= 10:  # an answer may take 15
            self.skipTest("the others were so slow to answer")
        self.assertRegex(self.assert_done(j),
                         r"train: a \(timed out after [\d.]+ (?:m?s|min)\) does not respond; 2 ranks")

    def test_one_is_slow_to_answer(self):
        """Its slow response is awaited before the first start, but not during a run."""
        self.set("tired", "a")
        j = self.start()
        j.wait_for_steps(20)
        self.lose(j, "b")
        self.wait_for_starts(j, 2)
        second = self.generations()[1]
        if second["ranks"] == 2 and second["probe_s"] > 2.5:
            self.skipTest("the others were so slow to answer that it was in time")
        self.assertEqual(self.ranks_were()[:2], [3, 1])
        self.unset("tired", "a")
        self.wait_for_ranks(j, 2)
        self.assertRegex(self.assert_done(j), r"train: a \(timed out after [\d.]+ (?:m?s|min)\)(, b \(.*\))? "
                         r"do(es)? not respond; 1 rank")

    def test_experts_that_nobody_has(self):
        """The run returns to a checkpoint, and two ranks share the experts."""
        j = self.start("--ep 3 --save-every 10")
        j.wait_for_steps(40)
        self.wait_until(j, self.assert_whole, "a checkpoint")
        self.lose(j, "c")
        self.wait_for_ranks(j, 2)
        self.assert_done(j)

    def test_experts_that_only_a_late_one_has(self):
        """It is waited for before the run goes back: no step is repeated."""
        j = self.start("--ep 3 --save-every 0")
        j.wait_for_steps(40)
        told, segment = self.told(), self.segments()[2]
        away = os.path.join("/dev/shm", "away-" + os.path.basename(segment))
        self.addCleanup(shutil.rmtree, away, True)
        worker = j.rank(2)
        self.set("silent", "c")
        os.rename(segment, away)
        os.kill(worker, signal.SIGKILL)
        j.wait_for_words("without c, which did not respond in time, ")
        os.rename(away, segment)
        self.unset("silent", "c")
        self.wait_for_starts(j, 2)
        second = self.generations()[1]
        if second["steps_again"] and second["probe_s"] > 4.5:
            self.skipTest("this test was so slow that the time to wait was over")
        err = self.assert_done(j)
        self.assertEqual((second["ranks"], second["steps_again"], second["from"]), (3, 0, "memory"), err)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertRegex(err, r"memory of the hosts that responded in time lacks a part of \S+; \d+ completed steps "
                         r"would be repeated\nevenkeel train: without c, which did not respond in time, \d+ "
                         r"completed steps would be repeated; waiting up to \d+ s for a response\n")
        self.assertIn("c joins; 3 ranks on 3 hosts\n", err)

    def test_one_after_the_other(self):
        j = self.start()
        for n, host in ((2, "a"), (1, "c")):
            j.wait_for_steps(self.told().count(b"\n") + 20)
            self.lose(j, host)
            self.wait_for_ranks(j, n)
        self.assert_done(j)

    def test_one_is_missing_from_the_start(self):
        self.set("down", "b")
        j = self.start(n=2)
        self.assertIn("b (mpiexec: status 255) does not respond; 2 ranks on 2 hosts",
                      self.assert_done(j))

    def test_one_answers_when_it_is_asked_again(self):
        """A failed probe is repeated before the first start, but not during a run."""
        self.set("shy", "a")
        j = self.start()
        j.wait_for_steps(20)
        self.set("shy", "b")
        os.kill(j.rank(2), signal.SIGKILL)
        self.wait_for_ranks(j, 2)
        self.assertEqual(self.ranks_were()[:2], [3, 2])
        self.wait_for_ranks(j, 3)
        self.assertIn("train: b (mpiexec: status 255) does not respond; 2 ranks on 2 hosts\n",
                      self.assert_done(j))

    def test_one_of_a_unit(self):
        """Ranks in multiples of two: when one is lost, the state of the idle one is not lost."""
        self.hosts("a", "b", "c", "d")
        j = self.start("--pp 2", n=4)
        self.used = ["a", "b", "c", "d"]
        j.wait_for_steps(20)
        told = self.told()
        self.lose(j, "d")
        self.wait_for_ranks(j, 2)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        if " d (mpiexec: status 255) do not respond" in self.assert_done(j):
            self.skipTest("another host was too slow to answer: it is done without that, too")
        self.assertEqual(self.gave(), ["a b c"])

    def test_units(self):
        """Three hosts, and a pipeline of two stages."""
        self.steps = 100
        j = self.start("--pp 2", n=2)
        self.assert_done_by_itself(j)
        self.assertEqual(self.ranks_were(), [2])


class Lists(Hosts):
    """Host lists that change, and hosts that are reclaimed."""

    def test_one_comes_and_is_taken_off_the_list(self):
        """Before it joins: its preallocated memory is freed."""
        j = self.start("--watchdog 300")
        j.wait_for_steps(20)
        self.hosts("a", "b", "c", "slow")
        self.wait_until(j, self.reserved, "an order of memory")
        self.hosts("a", "b", "c")
        self.wait_until(j, lambda: len(self.reserved()[-1]) == 3, "an order to give it back")
        err = self.assert_done(j)
        self.assertEqual(self.ranks_were(), [3], err)
        orders = [(o[0], len(o)) for o in self.reserved()]
        self.assertEqual((set(orders[:-1]), orders[-1]), ({("slow", 7)}, ("slow", 3)))

    def test_a_list_that_changes(self):
        """A host that is no longer listed hands its state over; new ones join.  No step is
        repeated, and nothing is saved for it."""
        j = self.start("--ep 3")
        j.wait_for_steps(20)
        self.hosts("a", "b")
        self.wait_for_ranks(j, 2)
        self.assertFalse(os.path.exists(os.path.join(self.out, "checkpoint")))
        told = self.told()
        self.hosts("a", "b", "d", "e")
        self.wait_for_ranks(j, 4)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        err = self.assert_done(j)
        self.assertIn("c hands over its state; 2 ranks on 2 hosts", err)
        self.assertIn("c is released; 2 ranks on 2 hosts", err)
        self.assert_takes_part(err, "de", 4)
        self.assertEqual(err.count("interrupted"), 1, err)  # at the end, as this test asked for

    def test_a_mistake_when_one_comes(self):
        """It ends the run and is reported last; the joined host is not excluded for it."""
        data = self.path("its-own.bin")
        shutil.copy(self.data, data)
        j = self.start(data=data)
        j.wait_for_steps(20)
        os.unlink(data)
        self.hosts("a", "b", "c", "d")
        status, _, err = j.end()
        self.assertEqual(status, BAD_INPUT, err)
        self.assertIn("d joins; 4 ranks on 4 hosts", err)
        self.assertIn("its-own.bin", err.splitlines()[-1])
        self.assertNotIn("excluded", err)

    def test_one_comes_and_has_no_data(self):
        """Its failure does not end the run: it is excluded, and may join later.  Here two such
        hosts join."""
        self.set("bare", "d")
        self.set("bare", "e")
        j = self.start()
        j.wait_for_steps(20)
        told = self.told()
        self.hosts("a", "b", "c", "d", "e")
        for host in "de":
            j.wait_for_words("%s is excluded for 60 s\n" % host)
        self.hosts("a", "b", "c")
        self.wait_for_ranks(j, 3)
        err = self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertEqual(set(self.ranks_were()), {3}, err)
        for host in "de":
            self.assertRegex(err, r"evenkeel train: rank 3 on \S+: cannot open /nowhere.bin: No such file or "
                             r"directory\nevenkeel train: continuing from memory; %s is excluded for "
                             r"60 s\n" % host)
        # a start of those that are left may fail once more on a busy machine: its line has that reason
        reasons = {g["after"] for g in self.starts()[1:] if "killed by signal" not in g["after"]}
        self.assertLessEqual(reasons, {"a host that had joined could not take part"})

    def test_one_comes_and_has_another_folder(self):
        """It is excluded before it holds state of the run; another one joins."""
        self.set("elsewhere", "d")
        j = self.start()
        j.wait_for_steps(20)
        told = self.told()
        self.hosts("a", "b", "c", "d")
        j.wait_for_words("d is excluded for 60 s\n")
        self.hosts("a", "b", "c", "e")
        self.wait_for_ranks(j, 4)
        err = self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertIn(self.ranks_were(), ([3, 3, 4], [3, 4]), err)  # e may come in time for the next
        self.assertRegex(err, r"--out \S+-elsewhere is not the folder that rank 0 on \S+ writes to; "
                         r"give one that all hosts share\nevenkeel train: continuing from memory; "
                         r"d is excluded for 60 s\n")

    def test_a_list_that_is_no_list_any_more(self):
        j = self.start()
        j.wait_for_steps(20)
        ek_cli.write(self.path("hosts"), "a b c\n")
        j.wait_for_words("keeping the current hosts")
        time.sleep(2.5)  # it is read again, as a rule
        err = self.assert_done(j)
        self.assertEqual(err.count("keeping the current hosts"), 1, err)

    def test_discover(self):
        """As above, with hosts listed by the command of --discover."""
        j = self.elastic((1, ""), "--discover", "cat %s" % self.path("hosts"))
        self.wait_for_ranks(j, 3)
        self.hosts("a", "b", "c", "d")
        self.wait_for_ranks(j, 4)
        self.assert_done(j)

    def test_discover_others_when_all_are_lost(self):
        j = self.elastic((1, ""), "--discover", "cat %s" % self.path("hosts"))
        self.used = ["a", "b", "c"]
        self.wait_for_ranks(j, 3)
        j.wait_for_steps(20)
        for host in "abc":
            self.set("down", host)
        self.kill_rank(j, 1)
        self.hosts("d", "e")
        self.wait_for_ranks(j, 2)
        self.assert_done(j)

    def test_one_comes_that_is_no_good(self):
        """A host answers, but no job can be started with it: the run continues without it."""
        self.set("broken", "d")
        j = self.start()
        j.wait_for_steps(20)
        self.hosts("a", "b", "c", "d")
        j.wait_for_words("no step was completed with d, which is excluded for 2 s")
        n = len(self.generations())
        self.wait_for_starts(j, n + 1)
        err = self.assert_done(j)
        self.assertEqual({g["ranks"] for g in self.generations()}, {3}, err)

    def test_notice_to_the_only_one(self):
        """No other host remains to take over its state."""
        self.steps = 300
        self.hosts("a")
        j = self.start(n=1)
        j.wait_for_steps(20)
        os.kill(j.rank(0), signal.SIGTERM)
        err = self.assert_done_by_itself(j)
        self.assertEqual(self.ranks_were(), [1], err)

    def give_back(self, *late):
        """Releases b; returns the lines of stderr."""
        for k in late:
            self.set("late", str(k))
        j = self.start("--ep 3 --record-plans")
        self.drain(j)
        err = self.assert_done(j)
        self.assertEqual(err.count("b is released; 2 ranks on 2 hosts"), 1, err)
        return err

    def test_notice(self):
        """A reclaim notice to one worker releases its whole host."""
        self.assertEqual(self.give_back().count("b hands over its state; 2 ranks on 2 hosts"), 1)
        given = [g for g in self.generations() if g.get("after") == "a host is released"]
        self.assertEqual([g["from"] for g in given], ["memory"], self.generations())
        self.assertGreater(given[0]["hand_over_s"], 0)

    def test_a_hand_over_that_fails(self):
        """The hand-over is tried twice, then the run continues without the host's state."""
        self.assertEqual(self.give_back(1).count("b hands over its state"), 2)
        self.assertEqual(self.gave(), ["a c b"] * 2)
        shutil.rmtree(self.out)
        self.give_back(3, 4)
        self.assertEqual(self.gave(), ["a c b"] * 4)

    def test_notices(self):
        """All hosts but one are released, one after the other."""
        j = self.start()
        j.wait_for_steps(20)
        told = self.told()
        for left in (2, 1):
            os.kill(j.rank(left), signal.SIGTERM)
            self.wait_for_ranks(j, left)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assert_done(j)
        self.assertEqual({line.split()[0] for line in self.gave()}, {"a"})
        self.assertEqual({h for line in self.gave() for h in line.split()}, {"a", "b", "c"})

    def test_interrupted_while_one_hands_over(self):
        """After the interrupt the state is in memory, and the same command continues."""
        self.set("held", "1")
        j = self.start("--ep 3")
        j.wait_for_steps(20)
        told = self.told()
        os.kill(j.rank(1), signal.SIGTERM)
        self.wait_until(j, lambda: os.path.exists(self.path("gave")), "a hand-over")
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        self.assertIn("the same command continues from it", err)
        self.unset("held", "1")
        j = self.start("--ep 3")
        self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")


class Hangs(Hosts):
    def test_a_frozen_worker(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                shutil.rmtree(self.out, True)
                j = self.start()
                j.wait_for_steps(30)
                frozen = time.time()
                os.kill(j.rank(rank), signal.SIGSTOP)
                self.wait_for_starts(j, 2)
                step_s = statistics.median(m["step_ms"] for m in ek_cli.metrics(self.out)) / 1e3
                # on an idle machine three; the limit of --watchdog is far higher
                self.assertLess(self.generations()[1]["seen"] - frozen, 30 + 20 * step_s)
                err = self.assert_done(j)
                self.assertRegex(err, r"(no progress for [\d.]+ (?:m?s|min) \(step\)|rank \d on \S+ has not "
                                      r"responded for [\d.]+ (?:m?s|min)), terminated after step "
                                      r"\d+; continuing from memory")

    def test_two_that_do_not_reach_each_other(self):
        """One of them is excluded until they do."""
        self.hosts("a", "b", "c", "d")
        j = self.on_hosts()
        self.wait_for_ranks(j, 4)
        j.wait_for_steps(20)
        told = self.told()
        self.set("apart", "b-c")
        for rank in range(4):  # one alone would be silent
            os.kill(j.rank(rank), signal.SIGSTOP)
        self.wait_for_ranks(j, 3)
        self.wait_until(j, lambda: len(self.linked()) >= 8, "asked whether it is reached")
        self.assertEqual([g["ranks"] for g in self.generations()][-2:], [4, 3])
        self.unset("apart", "b-c")
        self.wait_for_ranks(j, 4)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        err = self.assert_done(j)
        self.assertEqual([g["ranks"] for g in self.generations()][-3:], [4, 3, 4], err)
        tried = self.linked()
        self.assertEqual({frozenset(t.split()) for t in tried[1:7]},
                         {frozenset(p) for p in itertools.combinations("abcd", 2)})
        self.assertEqual({tried[0], *tried[7:]}, {"a b c d", "c a b d"})
        self.assertIn("evenkeel train: c and b cannot reach each other\nevenkeel train: c is "
                      "excluded; 3 ranks on 3 hosts\n", err)
        self.assertIn("c joins; 4 ranks on 4 hosts", err)


class CannotGoOn(Hosts):
    def test_nobody_is_there(self):
        for host in "abc":
            self.set("down", host)
        self.set("shy", "a")
        j = self.on_hosts()
        self.wait_until(j, lambda: not os.path.exists(self.path("shy-a")), "asked")
        j.process.send_signal(signal.SIGINT)
        self.assert_said(j.end(), INTERRUPTED, r"interrupted while no worker was running$")
        self.assertFalse(os.path.exists(self.out))

    def test_one_has_no_data_from_the_start(self):
        """Unlike a host that joins later, it is not excluded: the user can still correct it."""
        self.set("bare", "b")
        self.assert_said(self.on_hosts().end(), BAD_INPUT, r"rank 1 on \S+: cannot open /nowhere.bin: No such file")

    def test_more_ranks_than_there_is_room_for(self):
        said = ek_cli.write(self.path("hosts_with_slots"), "a:1\nb\nc\n")
        j = self.elastic((4, ""), "--hosts", said)
        self.assert_said(j.end(), USAGE, r"--ranks 4: the listed hosts have 3 slots")
        j = self.elastic((3, "--pp 2"), "--hosts", self.path("hosts"))
        self.assert_said(j.end(), USAGE, r"--ranks 3: --pp, --tp and --etp need a multiple of 2")

    def test_mistakes(self):
        for words, status, said in (
                (("--hosts", self.path("none")), BAD_INPUT, "none"),
                (("--discover", "exit 3", "--elastic"), BAD_INPUT, "exited with status 3"),
                (("--discover", "echo a b", "--elastic"), BAD_INPUT, "--discover, line 1"),
                (("--discover", "true", "--elastic"), BAD_INPUT, "contains no hosts"),
                (("--discover", "true"), USAGE, "--discover requires --elastic"),
                (("--discover", "true", "--hosts", "x", "--elastic"), USAGE, "one of them")):
            with self.subTest(words):
                j = self.job((1, ""), *words)
                self.assert_said(j.end(), status, said)


class Patience(Hosts):
    def test_all_tries(self):
        for host in "abc":
            self.set("down", host)
        begin = time.monotonic()
        self.assert_said(self.on_hosts().end(), FAILED, "that respond have 0 slots")
        self.assertGreater(time.monotonic() - begin, 30)
