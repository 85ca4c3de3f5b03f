"""The bound of a balance policy in training: perfectly even products with the least traffic.

`force-balance` has even products, but its traffic is not the least: a slot with an expert that a
rank's own tokens ask for keeps their rows on the rank.  Two steps:

Traffic, a lower bound.  The least bytes that a layer sends under any placement with the slots of
the run, given what each rank's tokens ask for: of every choice of experts for the slots that has
each expert at least once, a minimum-cost flow finds the one with the fewest bytes.  A row whose
expert is on its own rank is not sent, any other one is, once per assignment.  Of the copies of an
expert one is free, wherever it is and whatever it costs to move it there every round; each other
one sends its weights and gradients, in as many bytes as the runs say (`replica_bytes` of their
costs).  Loads need not be even.

Time, an estimate.  Of a step with even loads, the time of the all-to-alls, measured at each
bandwidth, falls in proportion to the bytes, and everything else stays.
"""

import statistics

from nodes import MIXTRAL

TYPES = {"bf16": 2, "fp32": 4}  # of products, by --dtype: bytes of a number that is sent for them
F32 = 4


def type_of(settings):
    """The type of products of results; those without one are of bf16."""
    return settings.get("dtype", "bf16")


def row_bytes(dtype):
    """Of a row that leaves its rank: to the expert and back, forward and backward; the gate's weight
    and its gradient."""
    return 4 * MIXTRAL["hidden_size"] * TYPES[dtype] + 2 * F32


def weight_share(dtype):
    """Of a replica's bytes, those of its weights; gradients are the rest, in fp32."""
    return TYPES[dtype] / (TYPES[dtype] + F32)


# ---- the least traffic ----------------------------------------------------------------------------


class Flow:
    """A flow of least cost from node 0 to node 1, in integers."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.edges = []  # [from, to, capacity left, cost]; edge i ^ 1 is the way back of edge i

    def add(self, a, b, capacity, cost):
        self.edges += [[a, b, capacity, cost], [b, a, 0, -cost]]
        return len(self.edges) - 2

    def cheapest(self):
        """Cost of the cheapest path, and its edges."""
        cost, by, changed = [0] + [None] * (self.nodes - 1), [None] * self.nodes, True
        while changed:
            changed = False
            for i, (a, b, left, c) in enumerate(self.edges):
                if left > 0 and cost[a] is not None and (cost[b] is None or cost[a] + c < cost[b]):
                    cost[b], by[b], changed = cost[a] + c, i, True
        path, at = [], 1
        while by[at] is not None:
            path.append(by[at])
            at = self.edges[by[at]][0]
        return cost[1], path

    def run(self):
        """Sends units along the cheapest path while that lowers the cost."""
        while True:
            cost, path = self.cheapest()
            if cost is None or cost >= 0:
                return
            for i in path:
                self.edges[i][2] -= 1
                self.edges[i ^ 1][2] += 1

    def used(self, i):
        return self.edges[i ^ 1][2]


def least_of_layer(counts, slots, replica_bytes, row):
    """(rows that leave their rank, replicas) of the placement with the least bytes, in so many slots
    of each rank, for counts[rank][expert]; a row that leaves its rank has so many bytes."""
    ranks, experts = len(counts), len(counts[0])
    rows = sum(map(sum, counts))
    flow, needed = Flow(2 + experts + ranks), rows * row + experts * replica_bytes + 1
    held = []
    for e in range(experts):
        flow.add(0, 2 + e, 1, -needed)  # the primary copy
        flow.add(0, 2 + e, ranks - 1, replica_bytes)
        held += [(flow.add(2 + e, 2 + experts + r, 1, -counts[r][e] * row), counts[r][e])
                 for r in range(ranks)]
    for r in range(ranks):
        flow.add(2 + experts + r, 1, slots, 0)
    flow.run()
    return (rows - sum(n for i, n in held if flow.used(i)),
            sum(flow.used(i) for i, _ in held) - experts)


def least_traffic(loads, spare_slots, replica_bytes, dtype):
    """[round]: [rows that leave their rank, replicas], at least, of all layers together, for
    loads[round][layer][rank][expert]."""
    out = []
    for layers in loads:
        slots = -(-len(layers[0][0]) // len(layers[0])) + spare_slots
        of = [least_of_layer(counts, slots, replica_bytes, row_bytes(dtype)) for counts in layers]
        out.append([sum(column) for column in zip(*of)])
    return out


# ---- the bound ------------------------------------------------------------------------------------


def all_to_alls_ms(head, bandwidth):
    """Milliseconds of the all-to-alls of all MoE layers, with even loads, at this bandwidth.  Older
    results have them at bandwidth 1 alone; then all of that time is taken to be transfer, which is
    too much at lower bandwidths."""
    at = head.get("net_ms_at", {}).get("%g" % bandwidth)
    return at if at is not None else head["best"]["net_ms"] / bandwidth


class Bound:
    """Of the runs of a workload and bandwidth; `least` is the result of least_traffic for
    replicas of so many bytes."""

    def __init__(self, head, starts, least, replica_bytes):
        s = head["settings"]
        rows = s["batch"] * s["seq"] * s["layers"] * MIXTRAL["num_experts_per_tok"]
        row = row_bytes(type_of(s))
        even = rows * (s["nodes"] - 1) / s["nodes"] * row
        saved = [even - n * row - replicas * replica_bytes for n, replicas in least]
        ratios, sent = [], []
        for start in starts:
            of = next(p for p in start["policies"] if p["policy"] == "force-balance")["rounds"]
            ms = statistics.median(r["ms"] for r in of)
            net = all_to_alls_ms(head, start["bandwidth"])
            ratios += [ms / (ms - net * x / even) for x in saved]
            sent += [r["sent_mb"] for r in of]
        self.ratio = statistics.median(ratios)  # speed, of force-balance
        self.even_mb = statistics.mean(sent)
        self.least_mb = self.even_mb - statistics.mean(saved) * 1e-6
        self.replicas = statistics.mean(n for _, n in least)
