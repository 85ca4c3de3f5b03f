"""Reads the results of bench/balance.py, and makes the table and the checks from them.

A file of results is JSON Lines: a header (settings, bandwidth), one line per run, with the output
of `evenkeel bench balance`, or the reason why it failed, and one per workload with the least traffic
of its rounds and the bytes of a replica for which it is the least (balance_bound.py).
"""

import json
import os
import statistics
import sys

from balance_bound import Bound, type_of

CEILING = "force-balance"
ORDER = ["off", "shadow", "fastermoe", "place", "prophet", "replicate", "eplb", "exact", "auto",
         CEILING]
WORKLOADS = ["trace", "drifting", "stable", "switching", "flat",
             "W0", "W1", "W2", "W3", "W4", "W5", "W6", "W7"]
NET_SHARE = 0.5    # at bandwidth 1: time of all-to-alls over time of experts' products
AUTO_WANTED = 0.92
CALM = 0.1         # cores that other programs may use
LOSS_CLOSE = 1e-3  # relative difference between policies, which do the same work


def say(text):
    """Prints progress to stderr; stdout is for the table."""
    print(text, file=sys.stderr, flush=True)


# ---- results ------------------------------------------------------------------------------------


KEY = ("workload", "bandwidth", "repeat")


def key(row):
    return tuple(row[k] for k in KEY)


def lines_of(path):
    """The JSON lines of a file; incomplete ones are ignored."""
    with open(path) as f:
        for line in f:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def read_results(path):
    """Header and rows; of a repeated run the last counts."""
    head, rows = None, {}
    if not os.path.exists(path):
        return None, {}
    for row in lines_of(path):
        if "settings" in row:
            head = row
            if "rounds" not in head["settings"]:
                sys.exit("%s is of an older bench/balance.py: remove it" % path)
        elif "least" not in row:
            rows[key(row)] = row
    return head, rows


def read_least(path):
    """{workload: (result of least_traffic, bytes of a replica)}, of those in the results; the last
    counts."""
    return {row["workload"]: (row["least"], row["replica_bytes"])
            for row in lines_of(path) if "least" in row and "replica_bytes" in row}


# ---- the table ----------------------------------------------------------------------------------


def charge(of, start, head):
    """Milliseconds per step for the migrations of a policy: what experts cost that moved in the past
    of the rounds, divided over its steps.  An expert costs what it costs to move from block order to
    the placement of the rounds, or, if that is block order, as predicted.  In results without a past
    this move is charged as made every plan_every steps."""
    if "past" not in start:
        return of["move_ms"] / head["settings"]["plan_every"] if of["moved"] > 0 else 0.0
    if of.get("past_moved", 0) == 0:
        return 0.0
    each = (of["move_ms"] / of["moved"] if of["moved"] > 0
            else 1e3 * start["costs"]["migrate_s_per_expert"])
    return each * of["past_moved"] / start["past"]


class Row:
    """Results of one policy in all runs of a workload and bandwidth."""

    def __init__(self, head, starts, policy):
        self.of = [by_name(s)[policy] for s in starts]
        self.noisy = any(s["others"] > CALM for s in starts)
        self.owed = statistics.mean(charge(of, s, head) for s, of in zip(starts, self.of))
        ratios, rates = [], []
        for s, of in zip(starts, self.of):
            owed = charge(of, s, head)
            even = statistics.median(r["ms"] for r in by_name(s)[CEILING]["rounds"])
            for mine in of["rounds"]:
                ratios.append(even / (mine["ms"] + owed))
                rates.append(1e3 * s["tokens"] / (mine["ms"] + owed))
        self.rate, self.ratio = statistics.median(rates), statistics.median(ratios)
        self.low, self.high = min(ratios), max(ratios)

    def spread(self):
        return (self.high - self.low) / 2

    def mean(self, name):
        """Of a field over all rounds."""
        return statistics.mean(r[name] for of in self.of for r in of["rounds"])

    def moved(self):
        return statistics.mean(of["moved"] for of in self.of)


def by_name(start):
    return {p["policy"]: p for p in start["policies"]}


def rows_of(head, starts):
    """{policy: Row} of the runs of a workload and bandwidth, in the order of the table."""
    return {p: Row(head, starts, p) for p in ORDER if all(p in by_name(s) for s in starts)}


def grouped(results):
    """{(workload, bandwidth): runs}, in the order of the table."""
    groups = {}
    for r in results.values():
        if "failed" not in r:
            groups.setdefault((r["workload"], r["bandwidth"]), []).append(r)
    return {where: groups[where]
            for where in sorted(groups, key=lambda w: (-w[1], WORKLOADS.index(w[0])))}


def make_rows(head, results):
    """{(workload, bandwidth): {policy: Row}}"""
    return {where: rows_of(head, starts) for where, starts in grouped(results).items()}


def make_bounds(head, results, least):
    """{(workload, bandwidth): Bound}, where the least traffic is known."""
    return {where: Bound(head, starts, *least[where[0]])
            for where, starts in grouped(results).items() if where[0] in least}


def table_line(where, policy, row):
    return ("| %s | x %g | `%s` | %.0f | %.3f (%.3f .. %.3f)%s | %.3f | %.3f | %.1f | %.1f | %.3f | "
            "%.1f | %.4g | %.0f |" %
            (*where, policy, row.rate, row.ratio, row.low, row.high, " *" if row.noisy else "",
             row.mean("before"), row.mean("after"), row.mean("replica_mb"), row.mean("sent_mb"),
             row.mean("plan_ms"), row.mean("wait_ms"), row.moved(), row.owed))


def print_head(head, rows):
    s, best = head["settings"], head["best"]
    starts = {len(r.of) for of in rows.values() for r in of.values()}
    print("%d nodes of %s cores, one thread each, %s; `small` in %s with %d experts and %d layer%s, "
          "%d spare slot%s a rank; %d x %d tokens a step, %d a rank; %d rounds a start, %s start%s "
          "a row; %s."
          % (s["nodes"], s["cpu"], s["mpi"], type_of(s), s["experts"], s["layers"], "s"[:s["layers"] != 1],
             s["spare_slots"], "s"[:s["spare_slots"] != 1], s["batch"], s["seq"],
             s["batch"] * s["seq"] // s["nodes"], s["rounds"],
             " to ".join(map(str, sorted({min(starts), max(starts)}))), "s"[:max(starts) != 1],
             "moves of the past %d steps are charged, planned every %d" %
             (s["past"], s["plan_every"]) if "past" in s else
             "moves are charged as made every %d steps" % s["plan_every"]))
    print("Bandwidth x 1 is %.1f Mbit/s a node: all-to-alls of the MoE layers %.0f ms, products of "
          "their experts %.0f ms: %.2f, by `bench moe` at %.1f Mbit/s, balanced (wanted: %.2f)."
          % (head["mbit"], best["net_ms"], best["experts_ms"],
             best["net_ms"] / best["experts_ms"], best["mbit"], NET_SHARE))
    for factor, ms in head.get("net_ms_at", {}).items():
        if factor != "1":
            print("At x %s all-to-alls take %.0f ms." % (factor, ms))
    if s["trace"]:
        print("`trace` is %s from iteration %d on%s." % (
            s["trace"], head["trace_first"],
            ", its middle layer" if s["layers"] == 1 else ", layers evenly spread"))
    print()


def print_table(head, results, rows):
    print_head(head, rows)
    print("| workload | bandwidth | policy | tokens/s | of force-balance (lowest .. highest round) | "
          "max/mean before | after | MB of replicas a step | MB sent a step | plan ms | "
          "exposed wait ms | experts moved | charged ms a step |")
    print("|" + "---|" * 13)
    for where, of in rows.items():
        for policy, row in of.items():
            print(table_line(where, policy, row))
    print()
    if any(r.noisy for of in rows.values() for r in of.values()):
        print("\\* other programs used more than %.1f cores meanwhile: unreliable.\n" % CALM)
    programs = {r["program"] for r in results.values()}
    if len(programs) > 1:
        print("These are results of %d builds of evenkeel.\n" % len(programs))


def print_bounds(rows, bounds):
    """Policies as shares of the bound."""
    policies = [p for p in ORDER if any(p in rows[where] for where in bounds)]
    print("| workload | bandwidth | MB sent a step: force-balance | least | replicas of that | bound, "
          "of force-balance |%s" % "".join(" `%s` |" % p for p in policies))
    print("|" + "---|" * (6 + len(policies)))
    for where, b in bounds.items():
        shares = ["%.3f" % (rows[where][p].ratio / b.ratio) if p in rows[where] else "-"
                  for p in policies]
        print("| %s | x %g | %.1f | %.1f | %.3g | %.3f | %s |" %
              (*where, b.even_mb, b.least_mb, b.replicas, b.ratio, " | ".join(shares)))
    print()


def check_bounds(rows, bounds):
    """Says which policies are above the bound by more than their spread and that of the even steps
    together: the bound is an estimate, so this is no failure."""
    above = [(where, policy, row, b) for where, b in bounds.items()
             for policy, row in rows[where].items()
             if row.ratio - b.ratio > row.spread() + rows[where][CEILING].spread()]
    for where, policy, row, b in above:
        print("%s, bandwidth x %g: %s %.3f is above the bound %.3f by more than the spreads" %
              (*where, policy, row.ratio, b.ratio))
    if bounds and not above:
        print("no policy is above the bound by more than its spread and that of force-balance\n")


def check_losses(results):
    """Checks that all policies do the same work: equal losses in each round of a run."""
    good = True
    for r in results.values():
        of = [p for p in r.get("policies", []) if p["policy"] != CEILING]
        for i in range(len(of[0]["rounds"]) if of else 0):
            losses = [p["rounds"][i]["loss"] for p in of]
            if max(losses) - min(losses) > LOSS_CLOSE:
                good = False
                print("%s, bandwidth x %g, round %d: losses from %.6f to %.6f: not the same work" %
                      (r["workload"], r["bandwidth"], i + 1, min(losses), max(losses)))
    return good


def check_behind(rows):
    """Whether auto is in no row behind another policy by more than the spread of either."""
    good, compared, most = True, 0, 0.0
    for where, of in rows.items():
        auto = of.get("auto")
        others = {p: r for p, r in of.items() if p not in ("auto", CEILING)}
        if auto is None or not others:
            continue
        compared += 1
        for policy, row in others.items():
            gap, spread = row.ratio - auto.ratio, max(row.spread(), auto.spread())
            most = max(most, gap)
            if gap > spread:
                good = False
                print("%s, bandwidth x %g: auto %.3f is behind %s %.3f by more than the spread %.3f"
                      % (*where, auto.ratio, policy, row.ratio, spread))
    if compared == 0:
        print("auto was not measured beside another policy: nothing to check")
    else:
        print("auto against every other policy, %d rows: behind by at most %.3f%s" %
              (compared, most, ", nowhere by more than the spread" if good else ""))
    return good


def check_ceiling(rows):
    """Whether auto reaches its target on the recorded trace; also prints off and exact."""
    good = True
    for where, of in rows.items():
        for policy in ("off", "exact", "auto"):
            row = of.get(policy)
            if where[0] != "trace" or row is None:
                continue
            judged = policy == "auto" and where[1] == 1
            missed = judged and row.ratio < AUTO_WANTED
            print("%s/%s on the recorded trace, bandwidth x %g: %.3f%s%s" %
                  (policy, CEILING, where[1], row.ratio,
                   ", at least %.2f is wanted" % AUTO_WANTED if judged else "",
                   ": missed" if missed else ""))
            good = good and not missed
    return good


def show(head, results, least):
    rows, bounds = make_rows(head, results), make_bounds(head, results, least)
    if not results:
        say("no results yet")
        return True
    if rows:
        print_table(head, results, rows)
    if bounds:
        print_bounds(rows, bounds)
        check_bounds(rows, bounds)
    good = check_losses(results)
    good = check_behind(rows) and good
    good = check_ceiling(rows) and good
    failed = [key(r) for r in results.values() if "failed" in r]
    for k in failed:
        print("failed: %s, bandwidth x %g, start %d: %s" %
              (k[0], k[1], k[2] + 1, results[k]["failed"]))
    return good and not failed
