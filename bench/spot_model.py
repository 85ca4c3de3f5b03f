"""What bench/spot.py computes from a trace and measured times: a prediction of each run that it
makes, and a model of Bamboo, which evenkeel cannot run.

Events are (seconds, "lost" or "back", node), ascending; nodes are all there at 0.

Bamboo (NSDI 2023) trains D pipelines of P stages, one node a stage.  A node also holds the layers of
its successor in the pipeline, and computes their forward pass again (redundant computation); if the
successor is lost it takes over, and no step is lost.  The model, with the rules of the authors'
simulator (uclasystem/bamboo, project_pactum/simulation) where they have one:

  step        s(D) r, with s(D) the measured step of D pipelines without redundant computation, and
                r = 1 + max(0, M - 3 (P - 1)) / (3 (M + P - 1))
              for M micro-batches: with forward 1 and backward 2 units of time, a step is
              3 (M + P - 1) units, in which a stage waits 3 (P - 1); the redundant forward passes
              take M, and delay the step by what exceeds the waiting.  That all of it can be used,
              and that redundant layers cost no memory, favours Bamboo.
  loss        what is left of the step under way takes 1.5 times as long; then the nodes that are
              there are arranged anew: D = nodes / P, rounded down, and the others stand by.
  return      they are arranged anew after a step if that gives more pipelines.
  anew        takes `arrange_s`: what --elastic takes for a node that returns, in the same call.
  fatal       nodes that are lost before they are arranged anew, and are all that hold some stage
              (its own nodes, and their predecessors): the run goes back to its newest checkpoint,
              which takes `restart_s`: what a restart from a checkpoint takes, in the same call.
  halt        with fewer than P nodes it waits; no step is lost while every stage has a holder.
"""

from spot_runs import choose_nodes, has_all_parts

FALLBACK = 1.5


def step_of(seconds, n):
    """Seconds of a step of n ranks; if not measured, scaled from the nearest number of ranks."""
    near = min(seconds, key=lambda m: abs(m - n))
    return seconds[n] if n in seconds else seconds[near] * near / n


class Rules:
    """How a system uses nodes.  every: steps between saves; group: nodes of a group, 0 for any
    number; keeps: "always" loses no step, "parts" none while all parts of the experts are left,
    "never" all since the last save."""

    def __init__(self, every, group, keeps):
        self.every, self.group, self.keeps = every, group or 1, keeps

    def loses(self, there, used):
        return self.keeps == "never" or (self.keeps == "parts" and
                                         not has_all_parts(there, used, self.group))


class Walk:
    """A run as the trace and the measured times predict it."""

    def __init__(self, nodes, rules, times):
        self.rules, self.times = rules, times
        self.there, self.used = list(nodes), choose_nodes(nodes, [], rules.group)
        self.steps, self.now = 0, 0.0  # steps done when the ones of `used` begin, at `now`
        self.join = None               # when nodes that wait take part

    def advance(self, at):
        """Counts the steps until `at`."""
        if self.used and at > self.now:  # else it is still starting
            self.steps += int((at - self.now) / step_of(self.times["step_s"], len(self.used)))

    def begin(self, at):
        """Takes its first step on what is there at `at`."""
        self.used, self.now, self.join = self.choose(), at, None

    def choose(self):
        return choose_nodes(self.there, self.used, self.rules.group)

    def lose(self, at, node):
        self.there.remove(node)
        if node not in self.used:
            return
        self.advance(at)
        if self.rules.loses(self.there, self.used):
            self.steps = self.steps // self.rules.every * self.rules.every
        self.begin(at + self.times["lost_s"])

    def gain(self, at, node):
        self.there.append(node)
        if self.join is not None or len(self.choose()) <= len(self.used):
            return
        if not self.used:
            self.begin(at + self.times["lost_s"])
        elif self.rules.keeps != "never":
            self.advance(at)
            self.begin(at + self.times["back_s"])
        else:  # once the next checkpoint is complete
            step, every = step_of(self.times["step_s"], len(self.used)), self.rules.every
            begun = self.steps + max(0, int((at - self.now) / step))
            self.join = self.now + (begun // every * every + every - self.steps) * step

    def join_by(self, at):
        """Lets nodes that wait take part if that is due before `at`."""
        if self.join is not None and self.join < at:
            self.advance(self.join + 1e-9)
            self.begin(self.join + self.times["back_s"])


def predicted(events, end, nodes, rules, times):
    """Predicted number of steps until `end`.  times: `step_s` by number of ranks; `lost_s`, `back_s`:
    seconds from a loss, or from a return that causes a restart, to the first step."""
    if not times["step_s"]:
        return 0
    walk = Walk(nodes, rules, times)
    for at, what, node in events:
        walk.join_by(at)
        (walk.lose if what == "lost" else walk.gain)(at, node)
    walk.join_by(end)
    walk.advance(end)
    return walk.steps


# ---- Bamboo -------------------------------------------------------------------------------------


def redundant_factor(micro_batches, stages):
    """How much longer redundant computation makes a step."""
    m, p = micro_batches, stages
    return 1 + max(0, m - 3 * (p - 1)) / (3 * (m + p - 1))


def holds_all_stages(there, used, stages):
    """Whether every stage has a node that holds it, as its own or its successor's."""
    held = {s for i, x in enumerate(used) if x in there for s in (i % stages, (i + 1) % stages)}
    return len(held) == stages


class Bamboo:
    """A run as the model has it.  times: `step_s` by number of pipelines, with redundant computation;
    `arrange_s`, `restart_s`."""

    def __init__(self, events, nodes, stages, every, times):
        self.events, self.stages, self.every, self.times = list(events), stages, every, times
        self.there, self.used = list(nodes), []  # used: the nodes that hold the stages, in order
        self.pipelines = 0                       # that run; 0: it waits
        self.steps, self.now, self.fatal = 0, 0.0, 0
        self.form_pipelines()

    def form_pipelines(self):
        self.pipelines = len(self.there) // self.stages
        if self.pipelines > 0:
            self.used = self.there[:self.pipelines * self.stages]

    def may_grow(self):
        return len(self.there) // self.stages > self.pipelines

    def apply_events(self, until):
        """Applies what happens until then; returns when the first node in use was lost, or None."""
        first = None
        while self.events and self.events[0][0] <= until:
            at, what, node = self.events.pop(0)
            if what == "back":
                self.there.append(node)
                continue
            self.there.remove(node)
            if node in self.used and first is None:
                first = at
        return first

    def take_step(self):
        """A step, and a new arrangement where nodes were lost in it or more can be used."""
        end = self.now + self.times["step_s"][self.pipelines]
        lost = self.apply_events(end)
        if lost is not None:
            end += (end - max(lost, self.now)) * (FALLBACK - 1)
            self.apply_events(end)
        self.now, self.steps = end, self.steps + 1
        if lost is not None or self.may_grow():
            self.arrange_anew()

    def arrange_anew(self):
        """Forms pipelines of the nodes that are there, after going back if a stage has no holder; again
        if nodes are lost meanwhile."""
        lost = self.now
        while lost is not None:
            self.now += self.times["arrange_s"]
            lost = self.apply_events(self.now)
            if self.used and not holds_all_stages(self.there, self.used, self.stages):
                self.steps = self.steps // self.every * self.every
                self.fatal += 1
                self.used = []  # all stages come from the checkpoint
                self.now += self.times["restart_s"]
        self.form_pipelines()

    def run(self, end):
        """The steps until `end`."""
        while self.now < end:
            if self.pipelines > 0:
                before = self.steps
                self.take_step()
                if self.now > end:
                    return min(before, self.steps)
            elif self.events:
                self.now = max(self.now, self.events[0][0])
                self.apply_events(self.now)
                if self.may_grow():
                    self.arrange_anew()
            else:
                break
        return self.steps
