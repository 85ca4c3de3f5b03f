"""The runs of bench/spot.py: `evenkeel train` with --elastic, and restarted from checkpoints as other
systems do it, while nodes are lost and return."""

import json
import os
import shutil
import statistics
import time

from harm import Run, Wrong

# Options of evenkeel train that place experts, which DeepSpeed's layers do not; each has a value.
PLACES_EXPERTS = ("--balance", "--spare-slots", "--replicas-min", "--plan-every", "--prefer")


def without_placement(words):
    """Options of evenkeel train without those that place experts."""
    skipped = {i + k for i, w in enumerate(words) if w in PLACES_EXPERTS for k in (0, 1)}
    return [w for i, w in enumerate(words) if i not in skipped]


def choose_nodes(there, used, group):
    """The nodes to run on, by rank: of those that are there a multiple of `group`.  used: those in use
    until now, by rank.  Rank r has the experts of part r % group, so a node keeps its part where
    that is possible, and every part that is left is among the chosen ones."""
    n = len(there) // group * group
    kept = {part: [x for i, x in enumerate(used) if i % group == part and x in there]
            for part in range(group)}
    chosen = [kept[r % group].pop(0) if kept[r % group] else None for r in range(n)]
    others = [x for x in there if x not in used] + sum(kept.values(), [])
    return [x or others.pop(0) for x in chosen]


def has_all_parts(there, used, group):
    """Whether the nodes in use that are still there hold the experts of every part."""
    return len({i % group for i, x in enumerate(used) if x in there}) == group


class Elastic(Run):
    """A run with --elastic, for a given time."""

    def __init__(self, o, cluster, folder):
        super().__init__(o, cluster, folder, None)
        self.times = {}  # seconds of each step, by number of ranks, lost steps included

    def words(self):
        return [*self.o.train, "--ep", str(self.o.nodes), "--steps", "1000000", "--save-every",
                str(self.o.save_every[0]), "--out", self.out, "--hosts", self.hosts, "--elastic",
                "--quiet"]

    def stands_at(self):
        return len(self.lines("metrics.jsonl"))

    def note_times(self):
        """Records the times of the steps in metrics.jsonl, without the first."""
        for m in map(json.loads, self.lines("metrics.jsonl")[1:]):
            if not m.get("recovered"):
                self.times.setdefault(m["ranks"], {})[m["step"]] = m["step_ms"] / 1e3

    def step_s(self):
        return {n: statistics.median(of.values()) for n, of in self.times.items()}

    def recoveries(self, joined):
        """Seconds until the first step of each restart: after hosts joined, or after other events."""
        return [g["total_s"] - g["first_step_s"] for g in self.generations()
                if "after" in g and (g["after"] == "more hosts can take part") == joined]

    def starts(self):
        """Seconds of restarts after losses, and after returns."""
        return self.recoveries(False), self.recoveries(True)

    def live(self, events):
        """Applies the events from the third step on; returns the number of steps taken meanwhile."""
        self.start()
        self.wait(lambda: self.stands_at() >= 3)
        begin, first = time.monotonic(), self.stands_at()
        self.harm_by_list(events)
        self.wait(lambda: time.monotonic() >= begin + self.o.seconds)
        if not self.running():
            raise Wrong("the run has ended")
        steps = self.stands_at() - first
        self.note_times()
        self.stop()
        return steps

    def stop(self):
        self.process.kill()
        self.process.wait()


class Restarted(Elastic):
    """A run whose command this script restarts from its newest checkpoint, on the available nodes, as
    soon as a node in use is lost.  Nodes that return take part from the next restart on, or, if no
    other is lost before, as soon as the next checkpoint is complete: earlier it would cost steps.

    group: nodes of an expert-parallel group; the run is on a multiple of it, and other nodes wait.
    0: any number of nodes, which are one group."""

    def __init__(self, o, cluster, folder, every, group=0):
        super().__init__(o, cluster, folder)
        self.every, self.group = every, group
        self.away, self.used = set(), []
        self.lost, self.returned = [], []  # seconds from a restart's cause to its first step
        self.pending = None  # (time, list) of the restart that has taken no step yet
        self.first = 0       # the step that it continues from
        self.saved_at_return = 0

    def choose(self):
        there = [n for n in self.nodes if n not in self.away]
        return choose_nodes(there, self.used, self.group or 1)

    def saved(self):
        folder = os.path.join(self.out, "checkpoint")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return max([int(n[5:]) for n in names if n[:5] == "step-" and n[5:].isdigit()], default=0)

    def options(self):
        """Options of the experts, on the nodes in use."""
        if not self.group:
            return [*self.o.train, "--ep", str(len(self.used))]
        return [*without_placement(self.o.train), "--balance", "off", "--ep", str(self.group)]

    def words(self):
        self.used = self.used or self.choose()
        self.name_hosts(self.used)
        return [*self.options(), "--steps", "1000000", "--save-every", str(self.every), "--out",
                self.out, "--hosts", self.hosts, "--elastic=false", "--quiet",
                *["--resume"] * (self.saved() > 0)]

    def act(self, what, node):
        if what == "lost":
            self.away.add(node)
            if node in self.used:
                self.end_for(self.lost)
        else:
            if not self.may_grow():
                self.saved_at_return = self.saved()
            self.away.discard(node)
        super().act(what, node)

    def end_for(self, times):
        """Ends the command; what the next start takes goes into `times`."""
        self.stop()
        self.pending = self.pending or (time.monotonic(), times)

    def may_grow(self):
        """Whether nodes wait that the run can use."""
        return len(self.choose()) > len(self.used)

    def may_join_now(self):
        return self.saved() > self.saved_at_return

    def stands_at(self):
        n = super().stands_at()
        return self.first if self.pending is not None and n <= self.first else n

    def find_first(self):
        """Prepares --out for the next start; returns the step that it continues from."""
        first = self.saved()
        if first == 0:
            shutil.rmtree(self.out, ignore_errors=True)
            return 0
        lines = self.lines("metrics.jsonl")[:first]  # as the run itself does later
        with open(os.path.join(self.out, "metrics.jsonl"), "wb") as f:
            f.write(b"".join(line + b"\n" for line in lines))
        return first

    def has_stepped(self):
        """Whether the last start has taken a step."""
        return len(self.lines("metrics.jsonl")) > self.first

    def running(self):
        """Always true: starts the command where it has ended and enough nodes are there."""
        if self.process.poll() is not None:
            self.pending = self.pending or (time.monotonic(), self.lost)
            chosen = self.choose()
            if chosen:
                self.note_times()
                self.first = self.find_first()
                self.used = chosen
                self.start()
        elif self.pending is not None and self.has_stepped():
            last = json.loads(self.lines("metrics.jsonl")[-1])["step_ms"] / 1e3
            self.pending[1].append(time.monotonic() - self.pending[0] - last)
            self.pending = None
        elif self.pending is None and self.may_grow() and self.may_join_now():
            self.end_for(self.returned)
        return True

    def starts(self):
        return self.lost, self.returned


class FaultTolerant(Restarted):
    """A run that is restarted like that, but continues from memory, without losing a step, where the
    nodes that are left hold a whole set of experts, and from its newest checkpoint where they do
    not.  Nodes that return take part at once."""

    def options(self):
        return [*super().options(), "--replicas-min", "1", "--elastic"]

    def words(self):
        return [w for w in super().words() if w != "--resume"]

    def may_join_now(self):
        return True

    def find_first(self):
        """The run finds its state itself: generations.jsonl tells what that was."""
        self.known = len(self.generations())
        return super(Restarted, self).stands_at()

    def has_stepped(self):
        starts = self.generations()
        if len(starts) <= self.known:
            return False
        self.first = starts[-1]["first_step"]
        return super().has_stepped()


class Pipelines(Elastic):
    """A run of `number` pipelines of `stages` nodes each, undisturbed."""

    def __init__(self, o, cluster, folder, number, stages):
        super().__init__(o, cluster, folder)
        self.stages = stages
        self.name_hosts(self.nodes[:number * stages])

    def words(self):
        return [*without_placement(self.o.train), "--pp", str(self.stages), "--steps", "1000000",
                "--save-every", str(self.o.save_every[0]), "--out", self.out, "--hosts", self.hosts,
                "--elastic=false", "--quiet"]

    def median_step(self, steps):
        """Seconds of a step: the median of so many, after the first two."""
        self.start()
        self.wait(lambda: self.stands_at() >= steps + 2)
        if not self.running():
            raise Wrong("the run has ended")
        self.stop()
        return statistics.median(json.loads(line)["step_ms"] / 1e3
                                 for line in self.lines("metrics.jsonl")[2:])
