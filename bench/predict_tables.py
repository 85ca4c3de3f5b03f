"""Tables of the results of bench/predict.py, and whether stored results are what bench/results/predict.md says of them.

Results are JSON Lines: a line a start of a layout, with its measured steps and the SHA-256 of the predictions of its group; then a line a
layout with what a second calibration predicts.  The frozen predictions are in RESULTS.predictions, a line a group: the hash is that of
the line without its end.  Predicted times are read from there alone.
"""

import hashlib
import json
import os
import statistics

from predict_groups import COMPARISONS, GROUPS

ENGINES = ("replay", "flow")
STORED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results", "predict")
HEAD = ("| group | layouts | mean error of %s | 90 %% within | largest | mean with sign | of %s | chosen, fastest | regret | starts | calibrations |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|")


def stored_results(comparison):
    return os.path.join(STORED, comparison + ".jsonl")


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def percent(x, form="%.1f %%"):
    return "" if x is None else form % (100 * x)


def within(errors, share=0.9):
    """What at least a share of the errors are not above."""
    return sorted(errors)[-int(-share * len(errors) // 1) - 1]


class Results:
    """Starts of layouts with what was predicted: `cells` the first start of each, `again` others; frozen: {SHA-256: a group's predictions}."""

    def __init__(self, path, engine="flow"):
        self.path, self.engine, self.other = path, engine, ENGINES[engine == ENGINES[0]]
        self.frozen = {sha256(line): json.loads(line) for line in lines_of(path + ".predictions")}
        every = [json.loads(line) for line in lines_of(path)]
        rows = [r for r in every if "measured_ms" in r]
        for r in rows:
            r["predicted"] = self.predicted(r)
        self.cells, self.again = [r for r in rows if not r["again"]], [r for r in rows if r["again"]]
        self.recalibrated = {(r["group"], r["layout"]): r["recalibrated_ms"] for r in every if "recalibrated_ms" in r}
        self.groups = list(dict.fromkeys(r["group"] for r in self.cells))
        self.spread = {group: self.starts(group) or 0 for group in self.groups}

    def predicted(self, row):
        frozen = self.frozen.get(row["sha256"])
        if not frozen or frozen["group"] != row["group"] or row["layout"] not in frozen["predictions"]:
            raise ValueError("%s: no line of %s.predictions has SHA-256 %s and predicts %s, %s" % (
                self.path, os.path.basename(self.path), row["sha256"], row["group"], row["layout"]))
        return frozen["predictions"][row["layout"]]

    def of(self, group):
        return [r for r in self.cells if r["group"] == group]

    def recorded(self):
        return [r for r in self.cells if GROUPS[r["group"]]["load"] == "trace"]

    def starts(self, group):
        """How far two starts of a layout are apart, in the mean of those that were started twice; None without any."""
        first = {r["layout"]: r["measured_ms"] for r in self.of(group)}
        apart = [abs(r["measured_ms"] / first[r["layout"]] - 1) for r in self.again if r["group"] == group]
        return statistics.mean(apart) if apart else None

    def calibrations(self, cells):
        """How far the predictions of two calibrations are apart in the mean."""
        apart = [abs(self.recalibrated[r["group"], r["layout"]] / r["predicted"][self.engine] - 1) for r in cells
                 if (r["group"], r["layout"]) in self.recalibrated]
        return statistics.mean(apart) if apart else None

    def choice(self, group):
        """The layout that the prediction chooses, and the fastest one."""
        cells = self.of(group)
        return min(cells, key=lambda r: r["predicted"][self.engine]), min(cells, key=lambda r: r["measured_ms"])

    def regret(self, group):
        chosen, fastest = self.choice(group)
        return chosen["measured_ms"] / fastest["measured_ms"] - 1

    def beyond(self, difference, group):
        """A difference, but none if it is not larger than two starts of a layout of the group are apart."""
        return difference if abs(difference) > self.spread[group] else 0


def signed_error(row, engine):
    return row["predicted"][engine] / row["measured_ms"] - 1


def line(results, title, cells, more, beyond=False):
    """Of cells; beyond: with differences within the spread of starts as none."""
    of = (lambda r, x: results.beyond(x, r["group"])) if beyond else (lambda r, x: x)
    errors, others = ([of(r, signed_error(r, engine)) for r in cells] for engine in (results.engine, results.other))
    sizes = [abs(x) for x in errors]
    return "| %s | %d | %s |" % (title, len(cells), " | ".join((
        percent(statistics.mean(sizes)), percent(within(sizes)), percent(max(sizes)), percent(statistics.mean(errors), "%+.1f %%"),
        percent(statistics.mean(abs(x) for x in others)), *more)))


def group_lines(results):
    yield HEAD % (results.engine, results.other)
    for group in results.groups:
        cells, (chosen, fastest) = results.of(group), results.choice(group)
        yield line(results, group, cells, ("%s, %s" % (chosen["layout"], fastest["layout"]), percent(results.regret(group)),
                                           percent(results.starts(group)), percent(results.calibrations(cells))))
    regrets = {group: results.regret(group) for group in results.groups}
    for title, beyond in (("all", False), ("all, differences within the spread of starts as none", True)):
        x = [results.beyond(r, group) if beyond else r for group, r in regrets.items()]
        regret = "mean %s, worst %s" % (percent(statistics.mean(x)), percent(max(x)))
        yield line(results, title, results.cells, ("", regret, "", "" if beyond else percent(results.calibrations(results.cells))), beyond)
    if results.recorded():
        yield line(results, "recorded loads", results.recorded(), ("", "", "", percent(results.calibrations(results.recorded()))))


def layout_lines(results):
    yield "| group | layout: predicted, measured ms, error |\n|---|---|"
    for group in results.groups:
        yield "| %s | %s |" % (group, "; ".join("%s: %.0f, %.0f, %s" % (
            r["layout"], r["predicted"][results.engine], r["measured_ms"], percent(signed_error(r, results.engine), "%+.1f %%"))
            for r in results.of(group)))


def what_if_lines(results):
    changes = [r for r in results.cells if "measured_ratio" in r]
    if changes:
        errors = [r["predicted"]["what_if"] / r["measured_ratio"] - 1 for r in changes]
        yield "\n| group | layout | predicted ratio | measured ratio | error |\n|---|---|---|---|---|"
        for r, error in zip(changes, errors):
            yield "| %s | %s | %.3f | %.3f | %s |" % (r["group"], r["layout"], r["predicted"]["what_if"], r["measured_ratio"], percent(error, "%+.1f %%"))
        sizes = [abs(x) for x in errors]
        yield "\n%d what-ifs: %s in the mean, %s at most" % (len(sizes), percent(statistics.mean(sizes)), percent(max(sizes)))


def tables(results):
    """Lines of Markdown."""
    yield from group_lines(results)
    yield ""
    yield from layout_lines(results)
    yield from what_if_lines(results)


def faults(folder=STORED, page=STORED + ".md"):
    """Sentences: where stored comparisons, or what the page says of them, are not right."""
    with open(page, encoding="utf-8") as f:
        text = f.read()
    for name, groups in COMPARISONS.items():
        path = os.path.join(folder, name + ".jsonl")
        try:
            results = Results(path)
        except (OSError, ValueError) as e:
            yield str(e)
            continue
        if tuple(results.groups) != tuple(groups) or len(results.frozen) != len(groups):
            yield "%s: it is of groups %s, and bench/predict_groups.py has %s" % (path, results.groups, list(groups))
        for digest, of in results.frozen.items():
            if digest[:8] not in text:
                yield "%s.predictions: %s has SHA-256 %s..., of which %s says nothing" % (path, of["group"], digest[:8], page)
        for row in "\n".join(tables(results)).splitlines():
            if row and row + "\n" not in text:
                yield "%s: this line is not in %s: %s" % (path, page, row)
