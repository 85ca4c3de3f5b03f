#!/usr/bin/python3
"""The table of docs/balance.md: `exact` and `auto` as shares of the bound.

Reads files of bench/balance.py (--results), of one and of four layers.  Where several have a
workload, bandwidth, number of layers and policy, the last one counts, with a star.

    cd bench/results && ../balance_shares.py balance_one_layer.jsonl \\
        balance_one_layer_quarter.jsonl balance_changes.jsonl balance_six_rounds_one_layer.jsonl \\
        balance_quarter_one_layer.jsonl balance_four_layers.jsonl
"""

import sys

from balance_table import WORKLOADS, make_bounds, make_rows, read_least, read_results

COLUMNS = [(1, 1.0), (1, 0.25), (4, 1.0), (4, 0.25)]  # layers, bandwidth
POLICIES = ["exact", "auto"]


def shares(paths):
    """{(layers, bandwidth, workload): {policy: text}}"""
    out = {}
    for path in paths:
        head, results = read_results(path)
        if head is None:
            sys.exit("%s holds no results" % path)
        rows, bounds = make_rows(head, results), make_bounds(head, results, read_least(path))
        for (workload, bandwidth), bound in bounds.items():
            of = rows[workload, bandwidth]
            cells = out.setdefault((head["settings"]["layers"], bandwidth, workload), {})
            for p in POLICIES:
                if p in of:
                    star = " *" if p in cells else ""
                    cells[p] = "%.3f%s" % (of[p].ratio / bound.ratio, star)
    return out


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    of = shares(sys.argv[1:])
    print("| workload |%s" % "".join(" %d, x %g: `%s` |" % (*column, p)
                                     for column in COLUMNS for p in POLICIES))
    print("|" + "---|" * (1 + len(COLUMNS) * len(POLICIES)))
    for name in WORKLOADS:
        print("| %s |%s" % (name, "".join(" %s |" % of.get((*column, name), {}).get(p, "")
                                          for column in COLUMNS for p in POLICIES)))


if __name__ == "__main__":
    main()
