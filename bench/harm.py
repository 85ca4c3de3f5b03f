"""Fault injection into a run on a cluster of this machine: processes, nodes, links and disk fail and
recover, by a script, by a trace of spot instances, or at random.  Used by tools/chaos, which
documents each kind of fault, and bench/spot.py."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

KINDS = ("worker", "node", "two-nodes", "freeze", "freeze-node", "cut", "part", "notice",
         "supervisor", "slow", "recovery", "full-disk")
PHASES = ("detect", "ending", "hand_over", "probe", "launch", "connect", "plan", "transfer",
          "first_step")
RECOVERY = ("launch", "transfer", "step")
INTERRUPTED = 130  # exit status
SOON_S = 20        # a node that is away longer is not waited for
WRITTEN_S = 0.1    # in which no run recovers, but its report of the recovery before is written


def say(text):
    print(text, file=sys.stderr, flush=True)


def is_kind(text):
    kind, _, when = text.partition(":")
    return kind in KINDS and (not when or (kind == "recovery" and when in RECOVERY))


class Wrong(Exception):
    """A violated requirement."""


# ---- traces -------------------------------------------------------------------------------------


def make_trace(nodes, seconds, lost, away, seed):
    """Lines of a random trace, in which at least one node is always up."""
    rng, now, back, lines = random.Random(seed), 0.0, {}, []
    while True:
        now += rng.expovariate(1 / lost)
        for node in [n for n, t in back.items() if t <= now]:
            lines.append((back.pop(node), node, "up"))
        there = [n for n in nodes if n not in back]
        if now > seconds:
            break
        if len(there) > 1:
            node = rng.choice(there)
            back[node] = now + rng.expovariate(1 / away)
            lines.append((now, node, "down"))
    return ["%.2f %s %s" % line for line in sorted(lines) if line[0] <= seconds]


def read_lines(path):
    with open(path) as f:
        for number, line in enumerate(f, 1):
            words = line.split("#")[0].split()
            if words:
                yield "%s, line %d" % (path, number), words


def read_trace(path, nodes):
    """A list of (seconds, "lost" or "back", node)."""
    events = []
    for where, words in read_lines(path):
        if len(words) != 3 or words[1] not in nodes or words[2] not in ("up", "down"):
            sys.exit("%s: a line is SECONDS NODE up|down, with nodes %s to %s" %
                     (where, nodes[0], nodes[-1]))
        events.append((float(words[0]), "back" if words[2] == "up" else "lost", words[1]))
    return sorted(events)


def read_script(path, nodes):
    events = []
    for where, words in read_lines(path):
        if len(words) not in (2, 3) or not is_kind(words[1]) or not set(words[2:]) <= set(nodes):
            sys.exit("%s: a line is SECONDS KIND [NODE]" % where)
        events.append((float(words[0]), words[1], words[2] if len(words) > 2 else None))
    return sorted(events)


# ---- the disk -----------------------------------------------------------------------------------


class Disk:
    """A separate file system for --out, visible to all nodes.  It is filled by reducing its size to
    what is in use."""

    def __init__(self, path):
        self.path = path
        os.mkdir(path)

    def mount(self, options):
        r = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "evenkeel-chaos", self.path],
                           capture_output=True, text=True, check=False)
        return r.returncode == 0, r.stderr

    def __enter__(self):
        mounted, said = self.mount("mode=755")
        if not mounted:
            say("cannot mount a file system of limited size: %s" % said.strip())
            sys.exit(77)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.path], check=False)

    def fill(self):
        said = ""
        for _ in range(100):  # files may grow meanwhile
            s = os.statvfs(self.path)
            done, said = self.mount("remount,size=%d" % ((s.f_blocks - s.f_bfree) * s.f_frsize))
            if done:
                return
        raise Wrong("the file system cannot be filled: %s" % said)

    def make_room(self):
        done, said = self.mount("remount,size=50%")
        if not done:
            raise Wrong("the file system cannot be enlarged again: %s" % said)


# ---- the run ------------------------------------------------------------------------------------


def is_stopped(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"
    except (OSError, IndexError):
        return False


def processes(pids, command, word="train"):
    """The pids that run `command train` with the argument `word`."""
    found = []
    for pid in pids:
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
            with open("/proc/%d/stat" % pid) as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if words[:2] == [command, "train"] and word in words and state not in "ZX":
            found.append(pid)
    return found


def check_lines(path):
    """Checks that every line of a JSON Lines file is complete."""
    try:
        with open(path) as f:
            text = f.read()
    except FileNotFoundError:
        return
    try:
        for line in text.splitlines():
            json.loads(line)
    except ValueError as e:
        raise Wrong("%s has a broken line: %s" % (path, e)) from None
    if text and not text.endswith("\n"):
        raise Wrong("%s ends within a line" % path)


class Run:
    """One run, and the faults injected into it.  o: options, as those of tools/chaos."""

    def __init__(self, o, cluster, folder, disk):
        self.o, self.cluster, self.disk = o, cluster, disk
        self.command = os.path.realpath(o.command)
        self.out = os.path.abspath(o.keep) if o.keep else os.path.join(folder, "run")
        if disk is not None:
            self.out = os.path.join(disk.path, "run")
        self.hosts = os.path.join(folder, "hosts")
        self.stop_at = os.path.join(folder, "stop-at")  # the phase in which rank 0 stops itself
        self.errors = os.path.join(folder, "errors")
        self.nodes = ["node%d" % (i + 1) for i in range(o.nodes)]
        self.name_hosts(self.nodes)
        self.failures = []  # {"kind", "node", "at", "steps"}
        self.due = []       # (time, action)
        self.memory = {}    # node: names in its shared memory when it was killed
        self.process = None
        self.said_before = 0     # length of its stderr at its last start
        self.shown, self.shown_at = 0, 0.0  # bytes of its stderr shown; time of the last step shown
        self.full = False        # whether the disk is full
        self.enough = None       # steps after which a full disk counts as survived; None: none
        self.starts_wanted = 0   # lines of generations.jsonl after the restart

    def name_hosts(self, nodes):
        with open(self.hosts, "w") as f:
            f.write("".join(n + "\n" for n in nodes))

    def words(self):
        """Arguments of `evenkeel train`."""
        return [*self.o.train, "--out", self.out, "--hosts", self.hosts, "--elastic", "--quiet"]

    def start(self):
        words = self.cluster.words("run", "head", self.command, "train", *self.words())
        with open(self.errors, "a") as f:
            self.said_before = f.tell()
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=f,
                                            stdout=subprocess.DEVNULL,
                                            env={**os.environ, "EK_STOP_AT": self.stop_at})

    def lines(self, name):
        """Complete lines of a file in --out."""
        try:
            with open(os.path.join(self.out, name), "rb") as f:
                text = f.read()
        except FileNotFoundError:
            return []
        return text[:text.rfind(b"\n") + 1].splitlines()

    def generations(self):
        return [json.loads(line) for line in self.lines("generations.jsonl")]

    def pids(self, node):
        r = subprocess.run(["ip", "netns", "pids", "evenkeel.%s.%s" % (self.cluster.name, node)],
                           capture_output=True, text=True, check=False)
        return [int(w) for w in r.stdout.split()]

    def workers(self, node):
        return processes(self.pids(node), self.command)

    def all_workers(self):
        """Workers on all nodes, without the command that started them."""
        found = set()
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        for pid in processes(pids, self.command, self.out):
            try:
                with open("/proc/%d/environ" % pid, "rb") as f:
                    if b"\0EK_LAUNCHED=" in b"\0" + f.read():
                        found.add(pid)
            except OSError:
                pass
        return found

    def kept(self):
        """Generations of the run in the shared memory of the nodes."""
        found = set()
        for pid in self.holders():
            try:
                names = os.listdir("/proc/%d/root/dev/shm" % pid)
            except OSError:  # the node is dead
                continue
            found |= {int(n.split("-")[2]) for n in names if n.startswith("evenkeel-")}
        return found

    def later(self, seconds, *what):
        self.due.append((time.monotonic() + seconds, what))

    def do_due(self):
        for item in [d for d in self.due if d[0] <= time.monotonic()]:
            self.due.remove(item)
            self.act(*item[1])

    # ---- faults

    def act(self, what, node):
        if what == "lost":
            self.kill_nodes([node])
        elif what == "given":  # kill the node once the others continue without it
            noticed = [f for f in self.failures if f["node"] == node][-1]
            if len(self.generations()) > noticed["generation"]:
                self.act("lost", node)
                self.later(self.o.down, "back", node)
            else:
                self.later(0.05, "given", node)
        elif what == "back":
            self.cluster.call("revive", node)
            self.prove_empty(node)
        elif what == "continue":
            for pid in self.pids(node):
                signal_to(pid, signal.SIGCONT)
        elif what in ("cut", "restore"):
            self.cluster.call(what, node)
        elif what in ("part", "join"):
            self.cluster.call(what, *node)
        elif what == "fast":
            self.cluster.call("bandwidth", node, self.o.bandwidth)
        elif what == "room":
            self.disk.make_room()
            self.full = False
            self.enough = len(self.lines("metrics.jsonl")) + 3

    def kill_nodes(self, nodes):
        """Kills nodes at the same time."""
        for node in nodes:
            self.memory[node] = {n for n in self.shared_memory(node).stdout.split() if n.startswith("evenkeel-")}
        kills = [subprocess.Popen(self.cluster.words("kill", n), stdin=subprocess.DEVNULL)
                 for n in nodes]
        for node, kill in zip(nodes, kills):
            if kill.wait() != 0:
                raise Wrong("%s cannot be killed" % node)
            self.prove_dead(node)

    def shared_memory(self, node):
        """Runs ls in the node's /dev/shm."""
        return subprocess.run(self.cluster.words("run", node, "ls", "/dev/shm"), capture_output=True,
                              text=True, check=False)

    def prove_dead(self, node):
        if self.shared_memory(node).returncode == 0:
            raise Wrong("%s was killed, but its memory is still readable" % node)

    def prove_empty(self, node):
        """The run may have put new memory there by now, under names of its own."""
        r = self.shared_memory(node)
        old = self.memory.get(node, set()) & set(r.stdout.split())
        if r.returncode != 0 or old:
            raise Wrong("%s is back with its old memory: %s%s" % (node, " ".join(sorted(old)), r.stderr))

    def fail(self, kind, node, rng):
        """Injects a fault; False if there is no suitable node or worker."""
        harmed = {n for _, (_, of) in self.due for n in ([of] if isinstance(of, str) else of)}
        up = [n for n in self.nodes if n not in harmed]
        node = node or rng.choice([n for n in up if self.workers(n)] or [None])
        if kind in ("supervisor", "full-disk"):
            node = "head"
        workers = self.workers(node) if node is not None else []  # once: they may end meanwhile
        if node is None or (kind in ("worker", "freeze", "notice") and not workers):
            return False
        entry = {"kind": kind, "node": node, "steps": len(self.lines("metrics.jsonl")),
                 "generation": len(self.generations()), "at": time.time()}
        if kind == "worker":
            signal_to(rng.choice(workers), signal.SIGKILL)
        elif kind == "freeze":
            signal_to(rng.choice(workers), signal.SIGSTOP)
        elif kind == "node":
            self.act("lost", node)
            self.later(self.o.down, "back", node)
        elif kind == "two-nodes":
            both = [node, *rng.sample([n for n in up if n != node], 1)] if len(up) > 2 else []
            if not both:
                return False
            entry["other"] = both[1]
            self.kill_nodes(both)
            for n in both:
                self.later(self.o.down, "back", n)
        elif kind == "cut":
            self.act("cut", node)
            self.later(self.o.down, "restore", node)
        elif kind == "part":
            pair = (node, rng.choice([n for n in up if n != node and self.workers(n)] or [None]))
            if pair[1] is None:
                return False
            entry["other"] = pair[1]
            self.act("part", pair)
            self.later(self.o.down, "join", pair)
        elif kind == "freeze-node":
            for pid in self.pids(node):
                if pid not in self.holders():
                    signal_to(pid, signal.SIGSTOP)
            self.later(self.o.down, "continue", node)
        elif kind == "notice":
            signal_to(rng.choice(workers), signal.SIGTERM)
            if self.o.notice > 0:
                self.later(self.o.notice, "lost", node)
                self.later(self.o.notice + self.o.down, "back", node)
            else:
                self.later(0, "given", node)
        elif kind == "slow":
            self.cluster.call("bandwidth", node, "%dkbit" % (bits(self.o.bandwidth) // 10000))
            self.later(self.o.down, "fast", node)
        elif kind == "supervisor":
            self.process.kill()
            self.process.wait()
            self.start()
        elif kind == "full-disk":
            self.disk.fill()
            self.full = True
            self.later(self.o.down, "room", node)
        elif kind.startswith("recovery"):
            entry["kind"] = self.fail_again(node, kind, rng)
        self.failures.append(entry)
        self.tell(entry)
        return True

    def fail_again(self, node, kind, rng):
        """Kills a node, and then a worker of the restart that follows; returns the kind of fault.  For
        "step" rank 0 stops itself in its first step, which so cannot end before the kill."""
        when = kind.partition(":")[2] or rng.choice(RECOVERY)
        before, newest, workers = self.all_workers(), max(self.kept(), default=-1), []

        def has_come():
            if when == "transfer" and max(self.kept(), default=newest) <= newest:
                return False
            workers[:] = sorted(self.all_workers() - before)
            return any(map(is_stopped, workers)) if when == "step" else len(workers) > 0

        if when == "step":
            with open(self.stop_at, "w") as f:
                f.write("step\n")
        self.act("lost", node)
        self.later(self.o.down, "back", node)
        self.wait(has_come, 0.001)
        if when == "step":
            os.unlink(self.stop_at)
        if workers:
            signal_to(rng.choice(workers), signal.SIGKILL)
        for pid in workers if when == "step" else ():
            signal_to(pid, signal.SIGCONT)
        return "recovery:" + when

    def holders(self):
        """The process that holds each node's namespaces."""
        folder = os.environ.get("EVENKEEL_CLUSTER_DIR", "/run/evenkeel-cluster")
        found = []
        for node in self.nodes:
            try:
                with open(os.path.join(folder, self.cluster.name, node, "pid")) as f:
                    found.append(int(f.read().split()[0]))
            except (OSError, IndexError):
                pass
        return found

    # ---- waiting

    def show(self):
        """Prints new messages of the run and, once a second, its last step."""
        with open(self.errors) as f:
            f.seek(self.shown)
            text = f.read()
        self.shown += len(text[:text.rfind("\n") + 1].encode())
        for line in text[:text.rfind("\n") + 1].splitlines():
            say("    " + line)
        steps = self.lines("metrics.jsonl")
        if steps and time.monotonic() - self.shown_at > 1:
            m = json.loads(steps[-1])
            say("step %4d   loss %.4f   %d ranks" % (m["step"] + 1, m["loss"], m["ranks"]))
            self.shown_at = time.monotonic()

    def tell(self, entry):
        if self.o.show or not self.o.script and not self.o.trace:
            say("%2d. %s, %s, after step %d" % (len(self.failures), entry["kind"], entry["node"],
                                                entry["steps"]))

    def running(self):
        """Whether the run goes on.  Restarts it if a full disk ended it."""
        if self.full:
            return True
        if self.enough is not None and self.process.poll() not in (None, 0):
            self.check_end()
            self.enough = None
            self.starts_wanted = len(self.generations()) + 1
            self.start()
        elif self.enough is not None and len(self.lines("metrics.jsonl")) >= self.enough:
            self.enough = None
        return self.process.poll() is None

    def check_end(self):
        """Checks a run that a full disk ended: its message, and that no file is incomplete."""
        with open(self.errors) as f:
            f.seek(self.said_before)
            said = f.read().splitlines()
        full = [s for s in said if re.search("No space left|disk is full", s)]
        if self.process.returncode != 1 or len(full) != 1 or full != said[-1:] or \
                not full[0].startswith("evenkeel train: "):
            raise Wrong("on a full disk it ended with status %d and printed\n%s" %
                        (self.process.returncode, "\n".join(said)))
        for name in ("metrics.jsonl", "generations.jsonl"):
            check_lines(os.path.join(self.out, name))
        if os.path.exists(os.path.join(self.out, "checkpoint")):
            r = subprocess.run([self.command, "check", "--checkpoint", self.out],
                               capture_output=True, text=True, check=False)
            if r.returncode != 0:
                raise Wrong("a full disk left an incomplete checkpoint: %s" % r.stderr)

    def wait(self, until, nap=0.01):
        """Executes due actions until the condition holds; fails if no step ends for too long."""
        steps, since = -1, time.monotonic()
        self.do_due()
        while self.running() and not until():
            self.do_due()
            if self.o.show:
                self.show()
            n = len(self.lines("metrics.jsonl"))
            if n != steps:
                steps, since = n, time.monotonic()
            if time.monotonic() - since > self.o.patience:
                raise Wrong("no step for %.0f s after step %d" % (self.o.patience, steps))
            time.sleep(nap)

    def recovered(self):
        """Whether the run takes steps again after the last fault.  A restarted command must have seen a
        step of its own: before that it allows workers that hang --watchdog seconds."""
        last, starts = self.failures[-1], self.generations()
        if last["kind"] == "part" and not self.due:  # it ended unnoticed
            return True
        if last["kind"] not in ("supervisor", "full-disk"):
            return last["kind"] == "slow" or len(starts) > last["generation"]
        wanted = last["generation"] + 1 if last["kind"] == "supervisor" else self.starts_wanted
        return (not self.full and self.enough is None and len(starts) >= wanted and
                len(self.lines("metrics.jsonl")) >= starts[-1]["first_step"] + 2)

    def is_whole(self):
        last = self.generations()[-1]
        return (not self.due and last["ranks"] == self.o.nodes and
                len(self.lines("metrics.jsonl")) >= last["first_step"] + 4)

    def is_over(self):
        """Whether the run goes on after all faults, and on all nodes that do not stay away."""
        now = time.monotonic()
        away = [what for at, what in self.due if at - now > SOON_S]
        return (len(away) == len(self.due) and (not self.failures or self.recovered()) and
                self.generations()[-1]["ranks"] == self.o.nodes - len(away))

    def interrupt(self):
        """Ends the run, which leaves no process and no shared memory.  Workers that end regularly have a minute, before
        mpiexec is killed."""
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            raise Wrong("it does not end within 120 s of an interrupt") from None
        if status != INTERRUPTED:
            raise Wrong("interrupted, it ended with status %d" % status)
        left = [p for n in ["head", *self.nodes] for p in self.workers(n)]
        if left or self.all_workers():
            raise Wrong("processes %s are left" % (left or self.all_workers()))
        if self.kept():
            raise Wrong("shared memory is left, of generations %s" % sorted(self.kept()))

    def harm_at_random(self):
        o, rng = self.o, random.Random(self.o.seed)
        kinds = []
        for _ in range(o.failures):
            if o.single:
                self.wait(self.is_whole)
            pause = o.every or rng.random() * o.pause
            then = time.monotonic() + pause
            self.wait(lambda t=then: time.monotonic() >= t)
            if not kinds:
                kinds = o.kinds.split(",")
                rng.shuffle(kinds)
            kind = kinds.pop()
            while self.running() and not self.fail(kind, None, rng):
                self.wait(lambda: True)
                time.sleep(0.02)
            if not self.running():
                break
            if not o.every:
                self.wait(self.recovered)

    def harm_by_list(self, events):
        rng, begin = random.Random(self.o.seed), time.monotonic()
        for seconds, kind, node in events:
            self.wait(lambda t=begin + seconds: time.monotonic() >= t)
            if not self.running():
                break
            if kind == "back":
                self.act("back", node)
            elif kind == "lost":
                self.failures.append({"kind": "node", "node": node, "at": time.time(),
                                      "steps": len(self.lines("metrics.jsonl")),
                                      "generation": len(self.generations())})
                self.tell(self.failures[-1])
                self.act("lost", node)
            else:
                self.fail(kind, node, rng)

    def harm(self):
        o = self.o
        self.start()
        self.wait(lambda: len(self.lines("metrics.jsonl")) >= 3)
        if o.trace:
            self.harm_by_list(read_trace(o.trace, self.nodes))
        elif o.script:
            self.harm_by_list(read_script(o.script, self.nodes))
        else:
            self.harm_at_random()
        if o.interrupt:
            self.wait(self.is_over)
            enough = len(self.lines("metrics.jsonl")) + o.interrupt
            self.wait(lambda: len(self.lines("metrics.jsonl")) >= enough)
            if self.running():
                self.interrupt()
        self.wait(lambda: False)
        if o.show:
            self.show()


def check_steps(run):
    """Checks that the run has every step once, and has repeated none without a report."""
    steps = [json.loads(line)["step"] for line in run.lines("metrics.jsonl")]
    if steps != list(range(len(steps))):
        raise Wrong("metrics.jsonl does not have every step once: %s" % steps)
    all_of = run.generations()
    for f in run.failures:
        k = f["generation"]
        if k < len(all_of) and all_of[k]["time"] - f["at"] < WRITTEN_S:
            k += 1  # it was running already, and its line was not written yet
        for g in all_of[k:k + 1]:
            if g["first_step"] + g["steps_again"] < f["steps"]:
                raise Wrong("step %d was completed when %s failed, and steps from %d were repeated "
                            "without a report" % (f["steps"], f["node"], g["first_step"]))


def worst_difference(got, want, tolerance):
    """The largest relative difference of the losses of steps; fails if it exceeds the tolerance."""
    if len(got) != len(want):
        raise Wrong("%d steps, and %d without faults" % (len(got), len(want)))
    worst, step = max((abs(a["loss"] - b["loss"]) / abs(b["loss"]), a["step"])
                      for a, b in zip(got, want))
    if worst > tolerance:
        raise Wrong("losses differ by up to %.3g, at step %d, from those without faults" %
                    (worst, step))
    return worst


def recoveries(run):
    """Recovery time of each failure that led to a restart: seconds by phase, and in total."""
    found, all_of = [], run.generations()
    for k, f in enumerate(run.failures):
        last = k + 1 == len(run.failures) or run.failures[k + 1]["generation"] > f["generation"]
        if f["generation"] >= len(all_of) or not last or f["kind"] in ("slow", "full-disk"):
            continue
        g = all_of[f["generation"]]
        row = {p: g.get(p + "_s", 0.0) for p in PHASES[1:]}
        row["detect"] = g.get("seen", f["at"]) - f["at"]
        row["total"] = g["time"] - f["at"]
        row.update(kind=f["kind"], node=f["node"], ranks=g["ranks"],
                   ranks_before=all_of[f["generation"] - 1]["ranks"],
                   received_mb=g["received_mb"], copied_mb=g["copied_mb"],
                   taken_mb=g["taken_mb"])
        found.append(row)
    return found


def signal_to(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def bits(text):
    return int(float(text.rstrip("bit").rstrip("gmk")) *
               {"g": 1e9, "m": 1e6, "k": 1e3}.get(text[-4], 1))
