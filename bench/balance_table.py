"""Results of bench/balance.py, and the table and the checks that are made of them.

A file of results is JSON Lines: one head (settings, bandwidth) and one line a start, with the
metrics of all its steps, or why it failed.
"""

import json
import os
import statistics
import sys

CEILING = "force-balance"
ORDER = ["off", "shadow", "place", "prophet", "replicate", "eplb", "exact", "auto", CEILING]
WORKLOADS = ["trace", "drifting", "stable", "switching", "flat",
             "W0", "W1", "W2", "W3", "W4", "W5", "W6", "W7"]
NET_SHARE = 0.5    # of bandwidth 1: all-to-alls over products of experts
AUTO_WANTED = 0.92
CALM = 0.1         # cores that others may keep busy
LOSS_CLOSE = 5e-2  # between policies, which do the same work


def say(text):
    """Progress; stdout is the table's."""
    print(text, file=sys.stderr, flush=True)


# ---- results ------------------------------------------------------------------------------------


KEY = ("workload", "bandwidth", "policy", "repeat")


def key(row):
    return tuple(row[k] for k in KEY)


def read_results(path):
    """Head and rows; of a start that was made again the last one counts.  A torn line is none."""
    head, rows = None, {}
    if not os.path.exists(path):
        return None, {}
    with open(path) as f:
        for line in f:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if "settings" in row:
                head = row
            else:
                rows[key(row)] = row
    return head, rows


# ---- the table ----------------------------------------------------------------------------------


def uncounted(row, head):
    """How many of its steps are not counted."""
    return head["settings"]["warm_up"] - row.get("skipped", 0)


def counted(row, head):
    return row["steps"][uncounted(row, head):]


def charge(turn, head):
    """ms a counted step owes for experts that moved in uncounted ones, but the first."""
    typical = statistics.median(s["step_ms"] for s in counted(turn, head))
    moving = [s["step_ms"] for s in turn["steps"][1:uncounted(turn, head)]
              if s.get("experts_moved", 0) > 0]
    return sum(max(0, ms - typical) for ms in moving) / head["settings"]["plan_every"]


def rates(turn, head):
    """Tokens/s of the counted steps, one by one."""
    owed = charge(turn, head)
    return [1e3 * s["tokens"] / (s["step_ms"] + owed) for s in counted(turn, head)]


def rate(turn, head):
    """Of all of them: a step has as many tokens as another."""
    return statistics.harmonic_mean(rates(turn, head))


def mean(turns, head, name):
    """Of a field over the counted steps of all turns; None where this evenkeel has it not."""
    values = [s[name] for t in turns for s in counted(t, head) if name in s]
    return statistics.mean(values) if values else None


class Row:
    """All turns of a workload, bandwidth and policy."""

    def __init__(self, head, turns, ceilings):
        self.failed = next((t["failed"] for t in turns if "failed" in t), None)
        self.turns = [t for t in turns if "failed" not in t]
        self.rate = self.ratio = None
        self.low = self.high = None
        self.noisy = any(t["others"] > CALM for t in
                         self.turns + [ceilings[t["repeat"]] for t in self.turns
                                       if t["repeat"] in ceilings])
        if not self.turns:
            return
        self.rate = statistics.median(rate(t, head) for t in self.turns)
        pairs = [(t, ceilings[t["repeat"]]) for t in self.turns if t["repeat"] in ceilings]
        ratios = [rate(t, head) / rate(c, head) for t, c in pairs]
        if not ratios:
            return
        self.ratio = statistics.median(ratios)
        if len(ratios) == 1:
            ratios = [a / b for a, b in zip(*(rates(t, head) for t in pairs[0]))]
        self.low, self.high = min(ratios), max(ratios)

    def spread(self):
        return (self.high - self.low) / 2


def make_rows(head, results):
    """{(workload, bandwidth): {policy: Row}}, in the order of the table."""
    groups, out = {}, {}
    for r in results.values():
        groups.setdefault((r["workload"], r["bandwidth"]), {}).setdefault(r["policy"], []).append(r)
    for where in sorted(groups, key=lambda w: (-w[1], WORKLOADS.index(w[0]))):
        of = groups[where]
        ceilings = {t["repeat"]: t for t in of.get(CEILING, []) if "failed" not in t}
        out[where] = {p: Row(head, sorted(of[p], key=lambda t: t["repeat"]), ceilings)
                      for p in ORDER if p in of}
    return out


def number(x, form):
    return "" if x is None else form % x


def table_line(where, policy, row, head):
    start = "| %s | x %g | `%s` " % (where[0], where[1], policy)
    if not row.turns:
        return start + "| failed: %s %s" % (row.failed.replace("|", "/"), "|" * 10)
    of = row.turns
    spread = "" if row.low is None else " (%.3f .. %.3f)" % (row.low, row.high)
    moved = statistics.mean(sum(s.get("experts_moved", 0) for s in t["steps"]) for t in of)
    return start + "| %.0f | %s%s%s | %s | %s | %s | %s | %s | %s | %.4g | %.0f |" % (
        row.rate, number(row.ratio, "%.3f"), spread, " *" if row.noisy else "",
        number(mean(of, head, "rank_max_over_mean_before"), "%.3f"),
        number(mean(of, head, "rank_max_over_mean"), "%.3f"),
        number(mean(of, head, "replica_mb"), "%.1f"),
        number(mean(of, head, "comm_bytes") / 1e6, "%.1f"),
        number(mean(of, head, "plan_ms"), "%.3f"),
        number(mean(of, head, "replica_wait_ms"), "%.1f"), moved,
        statistics.mean(charge(t, head) for t in of))


def count(turns):
    low, high = min(turns), max(turns)
    return "%s turn%s" % (low if low == high else "%d to %d" % (low, high), "s"[:high != 1])


def print_head(head, rows):
    s, best = head["settings"], head["best"]
    turns = [len(r.turns) for of in rows.values() for r in of.values()]
    print("%d nodes of %s cores, one thread each, %s; `small` with %d experts and %d layer%s, "
          "%d spare slot%s a rank; %d x %d tokens a step, %d a rank; of %d steps the first %d "
          "not counted; moves are charged as made every %d steps; %s a row."
          % (s["nodes"], s["cpu"], s["mpi"], s["experts"], s["layers"], "s"[:s["layers"] != 1],
             s["spare_slots"], "s"[:s["spare_slots"] != 1], s["batch"], s["seq"],
             s["batch"] * s["seq"] // s["nodes"], s["steps"], s["warm_up"],
             s["plan_every"], count(turns)))
    print("Bandwidth x 1 is %.1f Mbit/s a node: all-to-alls of the MoE layers %.0f ms, products of "
          "their experts %.0f ms: %.2f, by `bench moe` at %.1f Mbit/s, balanced (wanted: %.2f)."
          % (head["mbit"], best["net_ms"], best["experts_ms"],
             best["net_ms"] / best["experts_ms"], best["mbit"], NET_SHARE))
    if s["trace"]:
        print("`trace` is %s from iteration %d on%s." % (
            s["trace"], head["trace_first"],
            ", its middle layer" if s["layers"] == 1 else ", layers evenly spread"))
    print()


def print_table(head, results, rows):
    several = max(r["repeat"] for r in results.values()) > 0
    print_head(head, rows)
    print("| workload | bandwidth | policy | tokens/s | of force-balance (lowest .. highest %s) | "
          "max/mean before | after | MB of replicas a step | MB sent a step | plan ms | "
          "exposed wait ms | experts moved | charged ms a step |" % ("turn" if several else "step"))
    print("|" + "---|" * 13)
    for where, of in rows.items():
        for policy, row in of.items():
            print(table_line(where, policy, row, head))
    print()
    if any(r.noisy for of in rows.values() for r in of.values()):
        print("\\* others kept more than %.1f cores busy meanwhile, or in the turn of "
              "force-balance: not to be relied on.\n" % CALM)
    programs = {r["program"] for r in results.values()}
    if len(programs) > 1:
        print("These are results of %d builds of evenkeel.\n" % len(programs))


def check_losses(results):
    """Policies do the same work: at an iteration of a workload losses are the same."""
    good, seen = True, {}
    for r in results.values():
        if "failed" in r or r["policy"] == CEILING:
            continue
        for s in r["steps"]:
            work = (r["workload"], s["step"] + r.get("skipped", 0))
            first = seen.setdefault(work, (s["loss"], r["policy"]))
            if not abs(s["loss"] - first[0]) <= LOSS_CLOSE:
                print("%s, step %d: loss %.6f with %s, %.6f with %s: not the same work" %
                      (r["workload"], s["step"], s["loss"], r["policy"], first[0], first[1]))
                good = False
    return good


def check_behind(rows):
    """Whether auto is behind no other policy by more than the spread of either, in no row."""
    good, compared, most = True, 0, 0.0
    for where, of in rows.items():
        auto = of.get("auto")
        others = {p: r for p, r in of.items()
                  if p not in ("auto", CEILING) and r.ratio is not None}
        if auto is None or auto.ratio is None or not others:
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
    """Whether auto is near enough to the ceiling on the recorded trace; off and exact beside it."""
    good = True
    for where, of in rows.items():
        for policy in ("off", "exact", "auto"):
            row = of.get(policy)
            if where[0] != "trace" or row is None or row.ratio is None:
                continue
            judged = policy == "auto" and where[1] == 1
            missed = judged and row.ratio < AUTO_WANTED
            print("%s/%s on the recorded trace, bandwidth x %g: %.3f%s%s" %
                  (policy, CEILING, where[1], row.ratio,
                   ", at least %.2f is wanted" % AUTO_WANTED if judged else "",
                   ": missed" if missed else ""))
            good = good and not missed
    return good


def show(head, results):
    if not results:
        say("no results yet")
        return True
    rows = make_rows(head, results)
    print_table(head, results, rows)
    good = check_losses(results)
    good = check_behind(rows) and good
    good = check_ceiling(rows) and good
    failed = [key(r) for r in results.values() if "failed" in r]
    for k in failed:
        print("failed: %s, bandwidth x %g, %s, turn %d" % (k[0], k[1], k[2], k[3] + 1))
    return good and not failed
