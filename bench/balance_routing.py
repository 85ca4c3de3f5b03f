"""The routing that bench/balance.py replays: iterations of the recorded trace and of the synthetic
workloads of `evenkeel workload`, and the loads that they give each rank.
"""

import ast
import os
import re
import struct
import subprocess
import sys

from balance_table import say
from nodes import MIXTRAL

TRACE_FILE = "gpt_moe_e32_r16.npy"
NPY = b"\x93NUMPY\x01\x00"
TOP_K = MIXTRAL["num_experts_per_tok"]
# An iteration at which a workload changes most, and after how many it does again; rounds are taken
# around such a change.
CHANGES = {"switching": (20, 20), "W5": (4, 4), "W6": (4, 16), "drifting": (16, 32)}


def read_npy(path):
    """Header and bytes of the numbers of a .npy file."""
    with open(path, "rb") as f:
        head = f.read(10)
        if head[:8] != NPY:
            sys.exit("%s is no .npy file of version 1" % path)
        header = ast.literal_eval(f.read(struct.unpack("<H", head[8:])[0]).decode("latin1"))
        return header, f.read()


def cut_trace(source, first, n, layers, to):
    """A trace of the iterations from `first` on, with so many layers, evenly spread."""
    header, data = read_npy(source)
    iterations, all_layers, sources, experts = header["shape"]
    block = int(header["descr"][2:]) * sources * experts
    if header["fortran_order"]:
        sys.exit("%s is in Fortran order" % source)
    out = b""
    for i in range(first, first + n):
        for k in range(layers):
            layer = (2 * k + 1) * all_layers // (2 * layers)
            at = (i % iterations * all_layers + layer) * block
            out += data[at:at + block]
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d, %d, %d), }" % (
        header["descr"], n, layers, sources, experts)
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(to, "wb") as f:
        f.write(NPY + struct.pack("<H", len(text)) + text.encode() + out)


def apportion(weights, total, limit):
    """Shares of `total` in proportion to weights, by largest remainder, none above `limit`
    (src/placement/apportion.h)."""
    share, left, rest = {}, total, dict(enumerate(weights))
    while True:
        if not any(rest.values()):
            rest = dict.fromkeys(rest, 1)
        s = sum(rest.values())
        full = [i for i, w in rest.items() if w * left >= limit * s]
        if not full:
            break
        for i in full:
            share[i] = limit
            left -= limit
            del rest[i]
    share.update({i: w * left // s for i, w in rest.items()})
    for i in sorted(rest, key=lambda i: (-(rest[i] * left % s), i))[:total - sum(share.values())]:
        share[i] += 1
    return [share[i] for i in range(len(weights))]


def replayed_loads(path, ranks, tokens):
    """[iteration][layer][rank][expert]: the assignments of each rank, of so many tokens, with which
    --replay-routing replays a trace (src/moe/replay_gate.h).  None where the sources of the trace
    cannot be divided among the ranks."""
    header, data = read_npy(path)
    iterations, layers, sources, experts = header["shape"]
    each = sources // ranks
    if sources % ranks != 0 or tokens % each != 0:
        return None
    kind = {1: "B", 2: "H", 4: "I", 8: "Q"}[int(header["descr"][2:])]
    numbers = struct.unpack("<%d%s" % (iterations * layers * sources * experts, kind), data)
    table = [numbers[at:at + experts] for at in range(0, len(numbers), experts)]
    out = []
    for i in range(iterations):
        out.append([])
        for layer in range(layers):
            of = table[(i * layers + layer) * sources:][:sources]
            total = [sum(column) for column in zip(*of)]
            n = tokens // each
            of = [apportion(w if any(w) else total, n * TOP_K, n) for w in of]
            out[-1].append([[sum(c) for c in zip(*of[r * each:(r + 1) * each])]
                            for r in range(ranks)])
    return out


class Routing:
    """The traces that are replayed, made on first use."""

    def __init__(self, o, folder):
        self.o, self.folder = o, folder

    def past(self, name):
        """The iterations before those of the rounds."""
        return min(self.o.past, self.o.trace_first + 1) if name == "trace" else self.o.past

    def first(self, name):
        """The first iteration of the rounds."""
        if name == "trace":
            return self.o.trace_first + 1
        if name not in CHANGES:
            return self.o.past
        change, period = CHANGES[name]
        first = change - self.o.rounds // 2
        return first + max(0, -(-(self.o.past - first) // period)) * period

    def file(self, name):
        """A workload: the past, and the iterations of the rounds."""
        o, to = self.o, os.path.join(self.folder, name + ".npy")
        n = self.past(name) + o.rounds
        first = self.first(name) - self.past(name)
        if os.path.exists(to):
            return to
        if name == "trace":
            cut_trace(o.trace, first, n, o.layers, to)
            return to
        whole = to + ".whole"
        args = [o.command, "workload", "--name", name, "--ranks", o.nodes, "--experts", o.experts,
                "--layers", o.layers, "--iterations", first + n, "--seed", o.seed,
                "--tokens", o.batch * o.seq // o.nodes, "--out", whole]
        r = subprocess.run([str(a) for a in args], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True, check=False)
        if r.returncode != 0:
            sys.exit("workload %s ended with status %d: %s" % (name, r.returncode,
                                                               r.stderr.strip()))
        cut_trace(whole, first, n, o.layers, to)
        return to

    def loads(self, name):
        """replayed_loads of the rounds."""
        of = replayed_loads(self.file(name), self.o.nodes,
                            self.o.batch * self.o.seq // self.o.nodes)
        return of and of[self.past(name):]


def find_trace(o):
    """Sets o.trace, the recorded one, or takes it from the workloads."""
    o.trace, o.trace_first = None, 0
    if "trace" not in o.workloads:
        return
    path = os.path.join(o.traces, TRACE_FILE) if o.traces else None
    if path is None or not os.path.exists(path):
        say("no recorded trace: %s; synthetic workloads only" %
            (path + " is not there" if path else "neither --traces nor EK_TRACES is given"))
        o.workloads.remove("trace")
        return
    with open(path, "rb") as f:
        iterations, _, _, experts = ast.literal_eval(
            re.search(rb"'shape': (\([^)]*\))", f.read(256))[1].decode())
    if experts != o.experts:
        sys.exit("%s is of %d experts, not of %d" % (path, experts, o.experts))
    o.trace, o.trace_first = os.path.abspath(path), iterations // 2
