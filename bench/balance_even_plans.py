#!/usr/bin/python3
"""The plans with perfectly even products that send least, by an integer program, beside `auto`'s.

For rounds of bench/balance.py, layer by layer, from the counts that it replays: what all ranks send
in a step, and what the busiest link carries, in one direction, of

  bound       balance_bound.py: the fewest bytes of any placement, which need not be even
  free        even products, primary copies anywhere, moved at no cost, each rank keeping its number
  kept        even products, primary copies where `auto` has them
  at most N   the same with so many replicas (--replicas)
  auto        `auto`'s plan from the round's counts, with primary copies after the past

each of the least bytes of all links (sum) and of the least bytes of the busiest one (link).  A rank
sends each expert that has replicas once, as receivers pass it on, and gets the sum of their
gradients once.  Rows are sent in four all-to-alls, in each of which a link carries what its rank
sends or what it receives; a layer's busiest link has the most of its all-to-alls and replicas.  Links
of several layers are summed, as layers follow each other.

Numbers are lower bounds of the program where it ends by --limit; then the best plan found follows in
brackets.  "-": there is none.  Needs numpy and scipy (1.9 or later, for milp); exit status 77 without them.

    bench/balance_even_plans.py --traces DIR --results bench/results/balance_one_layer.jsonl \\
        --workloads trace,W7 --bandwidths 0.25
"""

import argparse
import collections
import ctypes
import math
import os
import sys
import tempfile

from balance_bound import least_of_layer, row_bytes, type_of, weight_share
from balance_routing import Routing, find_trace, replayed_loads
from balance_table import read_results

try:
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array
except ImportError as why:
    print("balance_even_plans.py: %s: install python3-scipy" % why, file=sys.stderr)
    sys.exit(77)

Bytes = collections.namedtuple("Bytes", "row replica weights gradients")  # of a replica: the last two


def bytes_of(dtype, replica_bytes):
    weights = replica_bytes * weight_share(dtype)
    return Bytes(row_bytes(dtype), replica_bytes, weights, replica_bytes - weights)


# ---- the integer program --------------------------------------------------------------------------


class Program:
    """A mixed integer program, built row by row."""

    def __init__(self):
        self.low, self.high, self.whole, self.cost = [], [], [], []
        self.at, self.row, self.value, self.least, self.most = [], [], [], [], []

    def variable(self, high, whole=False, low=0.0):
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        self.cost.append(0.0)
        return len(self.low) - 1

    def require(self, terms, least, most):
        """least <= the sum of factor * variable <= most"""
        for variable, factor in terms:
            self.at.append(variable)
            self.row.append(len(self.least))
            self.value.append(factor)
        self.least.append(least)
        self.most.append(most)

    def solve(self, costs, limit, gap):
        """(values or None, least, best): bounds of what is minimised."""
        cost = numpy.zeros(len(self.low))
        for variable, factor in costs:
            cost[variable] += factor
        matrix = coo_array((self.value, (self.row, self.at)),
                           shape=(len(self.least), len(self.low))).tocsr()
        out = milp(cost, integrality=numpy.array(self.whole, dtype=int),
                   bounds=Bounds(self.low, self.high),
                   constraints=LinearConstraint(matrix, self.least, self.most),
                   options={"time_limit": limit, "mip_rel_gap": gap})
        return out.x, out.mip_dual_bound, out.fun


class EvenPlans:
    """All plans of a layer whose ranks serve at most `uneven` more than the mean.

    counts[rank][expert]; size: Bytes; primary_of[expert]: its rank, or None: any."""

    def __init__(self, counts, spare, size, primary_of=None, replicas=None, uneven=0.0):
        p = self.p = Program()
        ranks, experts = self.ranks, self.experts = len(counts), len(counts[0])
        rows, self.size = sum(map(sum, counts)), size
        span = range(ranks)
        # Copies: primary, replica; and whether a rank sends the weights of an expert.
        self.primary, self.replica, sends = [], [], []
        for e in range(experts):
            of = primary_of and primary_of[e]
            self.primary.append([p.variable(1 if of in (None, r) else 0, True,
                                            1 if of == r else 0) for r in span])
            self.replica.append([p.variable(0 if of == r else 1, True) for r in span])
            sends.append([p.variable(1, True) for r in span])
            p.require([(v, 1) for v in self.primary[e]], 1, 1)
            for r in span:
                p.require([(self.primary[e][r], 1), (self.replica[e][r], 1)], 0, 1)
                p.require([(sends[e][r], 1), (self.primary[e][r], -1), (self.replica[e][r], -1)],
                          -1, 0)
                for o in span:
                    if o != r:
                        p.require([(sends[e][r], 1), (self.primary[e][r], -1),
                                   (self.replica[e][o], -1)], -1, 2)
            p.require([(v, 1) for v in sends[e]] + [(v, -1) for v in self.replica[e]], 0, ranks)
        for r in span:
            kept = experts // ranks + (r < experts % ranks)
            if primary_of is None:
                p.require([(of[r], 1) for of in self.primary], kept, kept)
            p.require([(of[r], 1) for of in self.replica], 0, spare + -(-experts // ranks) - kept)
        if replicas is not None:
            p.require([(v, 1) for of in self.replica for v in of], 0, replicas)
        self.add_rows(counts, rows / ranks * (1 + uneven))
        self.add_links(sends, rows)

    def add_rows(self, counts, most):
        """Rows of source s for expert e that rank r serves; those that leave their rank."""
        p, span = self.p, range(self.ranks)
        served = [[] for _ in span]
        self.sent, self.got = [[] for _ in span], [[] for _ in span]
        for s in span:
            for e in range(self.experts):
                n = counts[s][e]
                if n == 0:
                    continue
                of = [p.variable(n) for _ in span]
                p.require([(v, 1) for v in of], n, n)
                for r in span:
                    p.require([(of[r], 1), (self.primary[e][r], -n), (self.replica[e][r], -n)],
                              -2 * n, 0)
                    served[r].append((of[r], 1))
                    if r != s:
                        self.sent[s].append((of[r], 1))
                        self.got[r].append((of[r], 1))
        for r in span:
            p.require(served[r], 0, most)

    def add_links(self, sends, rows):
        """self.busiest: bytes of the busiest link, in one direction."""
        p, size = self.p, self.size
        all_to_all, self.busiest = p.variable(rows), p.variable(
            rows * size.row + self.experts * self.ranks * size.replica)
        self.all_to_all = all_to_all
        for r in range(self.ranks):
            gets = [(of[r], 1) for of in self.replica]
            gives = [(of[r], 1) for of in sends]
            for rows_of in (self.sent[r], self.got[r]):
                p.require(rows_of + [(all_to_all, -1)], -rows, 0)
            for out, back in ((gives, gets), (gets, gives)):
                p.require([(v, f * size.weights) for v, f in out] +
                          [(v, f * size.gradients) for v, f in back] +
                          [(all_to_all, size.row), (self.busiest, -1)], -1e15, 0)

    def total(self):
        return [(v, f * self.size.row) for of in self.sent for v, f in of] + [
            (v, self.size.replica) for of in self.replica for v in of]

    def least_sum(self, limit, gap):
        return self.p.solve(self.total(), limit, gap)

    def least_link(self, limit, gap):
        """The fewest bytes of the busiest link; of these plans, nearly the fewest of all."""
        return self.p.solve([(self.busiest, 1)] + [(v, f * 1e-4) for v, f in self.total()],
                            limit, gap)


# ---- a plan that is there -------------------------------------------------------------------------


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("policy", ctypes.c_char_p),
                ("experts", ctypes.c_int32), ("ranks", ctypes.c_int32),
                ("spare_slots", ctypes.c_int32), ("node_of", ctypes.POINTER(ctypes.c_int32)),
                ("replicas_min", ctypes.c_int32), ("compute_s_per_row", ctypes.c_double),
                ("comm_s_per_row", ctypes.c_double), ("replica_s", ctypes.c_double),
                ("migrate_s_per_expert", ctypes.c_double), ("horizon", ctypes.c_int64),
                ("prefer_survival", ctypes.c_int32),
                ("rank_speeds", ctypes.POINTER(ctypes.c_double))]


class Result(ctypes.Structure):
    _fields_ = [("slots", ctypes.c_int32), ("expert_of", ctypes.POINTER(ctypes.c_int32)),
                ("primary", ctypes.POINTER(ctypes.c_int32)),
                ("quota", ctypes.POINTER(ctypes.c_int64)), ("before_s", ctypes.c_double),
                ("after_s", ctypes.c_double), ("reason", ctypes.c_char_p),
                ("primary_reason", ctypes.c_char_p)]


class Planner:
    """`auto`, by the library, with the costs of a run; primary copies are planned from the counts
    of the plans before."""

    def __init__(self, path, o, costs):
        self.lib, self.balance = ctypes.CDLL(path), ctypes.c_void_p()
        self.lib.ek_err_text.restype = ctypes.c_char_p
        self.ranks, self.experts = o.nodes, o.experts
        config = Config(
            size=ctypes.sizeof(Config), policy=b"auto", experts=o.experts, ranks=o.nodes,
            spare_slots=o.spare_slots, horizon=o.plan_every,
            **{k: costs[k] for k in ("compute_s_per_row", "comm_s_per_row", "replica_s",
                                     "migrate_s_per_expert")})
        self.call(self.lib.ek_balance_create, ctypes.byref(config), ctypes.byref(self.balance))

    def call(self, function, *args):
        if function(*args) < 0:
            sys.exit(self.lib.ek_err_text().decode())

    def close(self):
        self.lib.ek_balance_destroy(ctypes.byref(self.balance))

    def plan(self, counts):
        """(rank of each primary, [(expert, rank)] of replicas, rows[source][expert][rank])"""
        out, slots = Result(), 0
        flat = (ctypes.c_int64 * (self.ranks * self.experts))(*(n for of in counts for n in of))
        self.call(self.lib.ek_balance_plan, self.balance, flat, ctypes.byref(out))
        slots = out.slots
        split = (ctypes.c_int64 * (self.ranks * self.ranks * slots))()
        self.call(self.lib.ek_balance_split, self.balance, flat, split)
        primary = [out.primary[e] // slots for e in range(self.experts)]
        rows = [[[0] * self.ranks for _ in range(self.experts)] for _ in range(self.ranks)]
        replicas = []
        for s in range(self.ranks * slots):
            e = out.expert_of[s]
            if e < 0:
                continue
            if out.primary[e] != s:
                replicas.append((e, s // slots))
            for source in range(self.ranks):
                rows[source][e][s // slots] += split[source * self.ranks * slots + s]
        return primary, replicas, rows


class Traffic:
    """What a plan sends."""

    def __init__(self, counts, primary, replicas, rows, size):
        span = range(len(counts))
        served = [sum(of[r] for by in rows for of in by) for r in span]
        stay = [sum(of[r] for of in rows[r]) for r in span]
        sent = [sum(counts[r]) - stay[r] for r in span]
        gets, gives = [0] * len(counts), [0] * len(counts)
        senders = {primary[e] for e, _ in replicas}
        for e in {e for e, _ in replicas}:
            chain = [primary[e]] + sorted((r for x, r in replicas if x == e),
                                          key=lambda r: (r in senders, r))
            for giver, taker in zip(chain, chain[1:]):
                gives[giver] += 1
                gets[taker] += 1
        self.uneven = max(served) * len(served) / sum(served)
        self.replicas = len(replicas)
        self.sum = sum(sent) * size.row + self.replicas * size.replica
        all_to_all = max(max(sent), max(n - s for n, s in zip(served, stay))) * size.row
        self.rows_link = all_to_all
        self.link = all_to_all + max(
            max(gives[r] * size.weights + gets[r] * size.gradients,
                gets[r] * size.weights + gives[r] * size.gradients) for r in span)


# ---- the table ------------------------------------------------------------------------------------


class Column:
    """One kind of plan, summed over layers."""

    def __init__(self):
        self.least, self.best = 0.0, 0.0

    def add(self, x, least, best):
        self.least += least if least is not None else float("nan")
        self.best += best if x is not None else float("nan")

    def text(self):
        least, best = ("%.1f" % (n * 1e-6) if math.isfinite(n) else "-"
                       for n in (self.least, self.best))
        return least if least == best else "%s (%s)" % (least, best)


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--results", required=True, metavar="FILE", help="of bench/balance.py: settings "
                   "and costs")
    p.add_argument("--workloads", required=True, help="some of its workloads")
    p.add_argument("--bandwidths", default="0.25", help="some of its bandwidths (default: 0.25)")
    p.add_argument("--rounds", default="0", help="numbers of rounds, from 0 (default: 0)")
    p.add_argument("--replicas", default="", help="also at most so many replicas a layer: N,N,...")
    p.add_argument("--uneven", type=float, default=1e-3, help="what the busiest rank may serve "
                   "above the mean, of it (default: %(default)s)")
    p.add_argument("--traces", default=os.environ.get("EK_TRACES"), metavar="DIR")
    p.add_argument("--command", default="build/evenkeel")
    p.add_argument("--library", default="build/libevenkeel.so")
    p.add_argument("--limit", type=float, default=20, help="seconds of a program (default: 20)")
    p.add_argument("--gap", type=float, default=1e-3, help="relative, at which a program ends")
    p.add_argument("--fixed-only", action="store_true", help="no plans with free primary copies")
    return p.parse_args()


def setting(o, head, workloads):
    """What Routing needs, of the results."""
    s = argparse.Namespace(**{k: v for k, v in head["settings"].items()
                              if k not in ("workloads", "trace")})
    s.command, s.traces, s.workloads = o.command, o.traces, list(workloads)
    find_trace(s)
    return s


def plans_of_auto(o, s, routing, name, costs, rounds):
    """[layer][round]: (counts, plan of auto)"""
    loads = replayed_loads(routing.file(name), s.nodes, s.batch * s.seq // s.nodes)
    past, out = routing.past(name), []
    for layer in range(s.layers):
        planner = Planner(o.library, s, costs)
        for step in loads[:past]:
            planner.plan(step[layer])
        made = [(step[layer], planner.plan(step[layer])) for step in loads[past:]]
        out.append([made[i] for i in rounds])
        planner.close()
    return out


def show(o, s, name, bandwidth, size, made, at):
    """A row: one round of a workload, of all layers."""
    kinds = [] if o.fixed_only else [("free", None, None)]
    kinds += [("kept", 1, None)] + [("at most %s" % n, 1, int(n))
                                    for n in o.replicas.split(",") if n]
    columns = {(k, what): Column() for k, _, _ in kinds for what in ("sum", "link")}
    bound = sum_auto = link_auto = rows_link = replicas = even = 0
    uneven, moved = 1.0, 0
    for layer in made:
        counts, (primary, has, rows) = layer[at]
        t = Traffic(counts, primary, has, rows, size)
        moved += sum(r != e // (s.experts // s.nodes) for e, r in enumerate(primary))
        sum_auto, link_auto, rows_link = sum_auto + t.sum, link_auto + t.link, rows_link + t.rows_link
        replicas, uneven = replicas + t.replicas, max(uneven, t.uneven)
        slots = -(-s.experts // s.nodes) + s.spare_slots
        n, more = least_of_layer(counts, slots, size.replica, size.row)
        bound += n * size.row + more * size.replica
        even += sum(map(sum, counts)) * size.row * (s.nodes - 1) / s.nodes
        for kind, keeps, most in kinds:
            plans = EvenPlans(counts, s.spare_slots, size, primary if keeps else None,
                              most, o.uneven)
            columns[kind, "sum"].add(*plans.least_sum(o.limit, o.gap))
            columns[kind, "link"].add(*plans.least_link(o.limit, o.gap))
    print("| %s, %d, x %g, round %d | %.1f | %.1f |%s %.1f | %.1f (rows %.1f) | %d, %.3f, %d |" % (
        name, s.layers, bandwidth, at, even * 1e-6, bound * 1e-6,
        "".join(" %s | %s |" % (columns[k, "sum"].text(), columns[k, "link"].text())
                for k, _, _ in kinds),
        sum_auto * 1e-6, link_auto * 1e-6, rows_link * 1e-6, replicas, uneven, moved), flush=True)


def show_head(o):
    kinds = ([] if o.fixed_only else ["free"]) + ["kept"] + [
        "at most %s" % n for n in o.replicas.split(",") if n]
    columns = ["MB of: workload, layers, bandwidth", "even loads", "bound"]
    columns += ["%s: %s" % (k, what) for k in kinds for what in ("sum", "link")]
    columns += ["`auto`: sum", "link", "replicas, max/mean, experts moved"]
    print("| %s |\n|%s" % (" | ".join(columns), "---|" * len(columns)))


def main():
    o = options()
    head, results = read_results(o.results)
    if head is None:
        sys.exit("%s holds no results" % o.results)
    rounds = [int(n) for n in o.rounds.split(",")]
    workloads, bandwidths = o.workloads.split(","), [float(x) for x in o.bandwidths.split(",")]
    s = setting(o, head, workloads)
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        routing = Routing(s, folder)
        show_head(o)
        for row in results.values():
            if row["workload"] in s.workloads and row["bandwidth"] in bandwidths:
                made = plans_of_auto(o, s, routing, row["workload"], row["costs"], rounds)
                size = bytes_of(type_of(head["settings"]), row["costs"]["replica_bytes"])
                for at in range(len(rounds)):
                    show(o, s, row["workload"], row["bandwidth"], size, made, at)


if __name__ == "__main__":
    main()
