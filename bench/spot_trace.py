#!/usr/bin/python3
"""Recorded traces of spot instances, for bench/spot.py and tools/chaos.

A recorded trace has a line for each instance that was added or removed (the format of the traces of
Bamboo, NSDI 2023):

    MILLISECONDS,add|remove,NAME

It is scaled to N nodes and compressed in time:

  * It is read from the first instant at which most instances were up (--trace-from: another).  The
    M instances that are up then have positions 0 to M - 1, in the order in which they came.  An
    instance that is removed leaves its position vacant; one that is added takes the position that
    has been vacant for longest, or waits for one.
  * Node i of N is position floor(i M / N): a sample of the positions.  A node so is lost, and
    returns, as often as a recorded instance, and several at once if several of them were.
  * Times from there on are divided by --compress: losses are as many times more frequent, while
    steps, starts and saves take as long as they take.

As a command it prints lines "SECONDS NODE up|down" as bench/spot.py and tools/chaos read them:

    bench/spot_trace.py FILE --nodes 4 --compress 40 --seconds 120 > trace
"""

import argparse
import sys


def is_recorded(path):
    """Whether a file is such a trace, not one of lines "SECONDS NODE up|down"."""
    with open(path) as f:
        return any(line.split("#")[0].count(",") == 2 for line in f)


def read_recorded(path):
    """A list of (seconds, "add" or "remove", name), in the order of the file."""
    events, up = [], set()
    with open(path) as f:
        for number, line in enumerate(f, 1):
            words = [w.strip() for w in line.split("#")[0].split(",")]
            if words == [""]:
                continue
            where = "%s, line %d" % (path, number)
            if len(words) != 3 or not words[0].isdigit() or words[1] not in ("add", "remove"):
                sys.exit("%s: a line is MILLISECONDS,add|remove,NAME" % where)
            at, name = int(words[0]) / 1e3, words[2]
            if events and at < events[-1][0]:
                sys.exit("%s: times must not decrease" % where)
            if (words[1] == "add") == (name in up):
                sys.exit("%s: %s is %s" % (where, name, "up already" if name in up else "not up"))
            (up.add if words[1] == "add" else up.discard)(name)
            events.append((at, words[1], name))
    return events


def instances_up(events, at):
    """The instances that are up after what happened until `at`, in the order in which they came."""
    up = {}
    for t, what, name in events:
        if t > at:
            break
        if what == "add":
            up[name] = True
        else:
            del up[name]
    return list(up)


def first_peak(events):
    """The first instant at which most instances are up."""
    return max(sorted({t for t, _, _ in events}), key=lambda t: len(instances_up(events, t)))


def position_events(events, begin):
    """The number of positions, and a list of (seconds after begin, "lost" or "back", position)."""
    place = {name: i for i, name in enumerate(instances_up(events, begin))}
    size, vacant, waiting, found = len(place), [], [], []
    for t, what, name in events:
        if t <= begin:
            continue
        if what == "add":
            waiting.append(name)
        elif name in waiting:
            waiting.remove(name)
        else:
            vacant.append(place.pop(name))
            found.append((t - begin, "lost", vacant[-1]))
        while vacant and waiting:
            place[waiting.pop(0)] = vacant[0]
            found.append((t - begin, "back", vacant.pop(0)))
    return size, found


def scale(path, nodes, begin=None, compress=1.0):
    """(events, text): a list of (seconds, "lost" or "back", node), and what was done in words.  begin:
    seconds; None: the first instant at which most instances are up."""
    events = read_recorded(path)
    if not events:
        sys.exit("%s: no instance is added" % path)
    begin = first_peak(events) if begin is None else begin
    size, found = position_events(events, begin)
    if size < len(nodes):
        sys.exit("%s: only %d instances are up at %g s, for %d nodes" %
                 (path, size, begin, len(nodes)))
    node_of = {i * size // len(nodes): node for i, node in enumerate(nodes)}
    text = "%d of %d instances, from %g s on, time divided by %g" % (len(nodes), size, begin, compress)
    return [(t / compress, what, node_of[p]) for t, what, p in found if p in node_of], text


def add_options(p):
    """Options of scale(): --trace-from and --compress."""
    p.add_argument("--trace-from", type=float, metavar="S", help="begin of a recorded trace; "
                   "default: when most instances are up first")
    p.add_argument("--compress", type=float, default=1, metavar="X",
                   help="divides the times of a recorded trace (default: %(default)g)")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("file", metavar="FILE")
    p.add_argument("--nodes", type=int, default=4, help="(default: %(default)s)")
    p.add_argument("--seconds", type=float, metavar="S",
                   help="length, after compression; default: all")
    add_options(p)
    o = p.parse_args()
    if o.compress <= 0 or o.nodes < 1:
        p.error("--compress and --nodes must be positive")
    events, text = scale(o.file, ["node%d" % (i + 1) for i in range(o.nodes)], o.trace_from,
                         o.compress)
    print("# %s: %s" % (o.file, text))
    for t, what, node in events:
        if o.seconds is None or t < o.seconds:
            print("%.3f %s %s" % (t, node, "up" if what == "back" else "down"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
