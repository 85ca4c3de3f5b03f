"""simulate and search --report: pages of one file that are well-formed, load nothing, say what --json says, and show
foreign names as text."""

import html.parser
import json
import xml.etree.ElementTree as ET

import ek_cli
from ek_cli import DONE, run

HOSTILE = "<script>alert(\"1\")</script>&amp;'x2\u202e\u001b[31m"
CLUSTER = {"evenkeel_cluster": 1, "name": HOSTILE,
           "rank": {"memory": "1G", "machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}},
           "levels": [{"name": "node <b>", "ranks": 4, "gbytes_s": 10, "us": 2},
                      {"name": "net\"]", "ranks": 64, "gbytes_s": 1, "us": 10}]}


class Tags(html.parser.HTMLParser):
    """Checks that tags are nested; collects tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


class Report(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.cluster = ek_cli.write(self.path("toy.json"), json.dumps(CLUSTER))

    def report(self, command, *words, cluster=None):
        """The JSON, and the page as text and as a tree."""
        path = self.path("out.html")
        r = run(command, "--cluster", cluster or self.cluster, "--model", "small", "--json", "--report", path, *words)
        self.assertEqual(r.returncode, DONE, r.stderr)
        page = ek_cli.read(path).decode()
        return json.loads(r.stdout), page, ET.fromstring(page)

    def check_page(self, page, tree):
        tags = Tags()
        tags.feed(page)
        tags.close()
        self.assertEqual(tags.open, [])
        self.assertLess(len(page), 300000)
        self.assertFalse({"script", "link", "img", "iframe", "object", "base", "form"} & set(tags.tags))
        for name, value in tags.attributes:
            self.assertNotIn(name, ("src", "href", "srcset", "action", "xlink:href"))
            self.assertFalse(name.startswith("on"), name)
            self.assertNotRegex(value, r"\b(?:nan|inf)\b|-nan|e\+\d\d\d")
        self.assertNotRegex(page, r"https?:|url\(|@import|//")
        self.assertIn("default-src &#39;none&#39;", page)
        shown = "".join(tags.text)
        self.assertIn("<script>alert(\"1\")</script>&amp;'x2\\u202e\\x1b[31m", shown)
        self.assertNotRegex(page, "[\u202e\u001b]")
        for svg in tree.iter("svg"):
            self.assertTrue(svg.get("aria-label") or svg.get("aria-hidden"), ET.tostring(svg)[:200])
        for path in tree.iter("path"):
            self.assertRegex(path.get("d"), r"^M[-\d.MmHhVvLlz ]*$")
        return shown

    @staticmethod
    def values(element):
        return [float(d.get("value")) for d in element.iter("data")]

    def table(self, tree, caption):
        for t in tree.iter("table"):
            if (t.findtext("caption") or "").startswith(caption):
                return [self.values(row) for row in t.find("tbody")]
        self.fail(caption)

    def section(self, tree, heading):
        for s in tree.iter("section"):
            if s.findtext("h2") == heading:
                return s
        return None

    def check_values(self, got, wanted):
        self.assertEqual(len(got), len(wanted), (got, wanted))
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a, b, delta=1e-9 * abs(b))

    def tiles(self, tree):
        return self.values(next(tree.iter("dl")))

    def test_a_simulation_has_the_figures_of_json(self):
        changes = ["compute x2", "bandwidth[*] x0.5"]
        s, page, tree = self.report("simulate", "--ranks", 16, "--pp", 2, "--ep", 4, "--micro-batch", 16, "--what-if", *changes)
        shown = self.check_page(page, tree)
        sent = sum(s["sent_mb"].values()) * 1e6
        self.check_values(self.tiles(tree), [s["step_ms"] / 1e3, s["tokens_per_s"], 100 * s["mfu"], s["memory_mb"]["all"] * 1e6,
                                             sent, 16])
        self.check_values([v[0] for v in self.table(tree, "The step with each change.")],
                          [x / 1e3 for x in [s["step_ms"]] + [w["step_ms"] for w in s["what_if"]]])
        self.check_values([x for row in self.table(tree, "Of a rank of each pipeline stage") for x in row],
                          [x * 1e6 for c in s["classes"] for x in
                           (c["state_mb"], c["memory_mb"] - c["state_mb"], c["memory_mb"])])
        self.check_values([row[2] for row in self.table(tree, "What a rank sends")], [b * 1e6 for b in s["sent_mb"].values()])
        parts = [row[0] for row in self.table(tree, "Mean of the ranks.")]
        where = [x / 1e3 for v in s["where_ms"].values() for x in (v.values() if isinstance(v, dict) else [v])]
        self.check_values(sorted(parts), sorted(x for x in where if x > 0.5e-6 * s["step_ms"]))
        sensitivity = s["sensitivity"]
        self.assertEqual([x["change"] for x in sensitivity["sweeps"]],
                         ["bandwidth[node <b>]", "bandwidth[net\"]]", "latency[*]", "compute"])
        rows = self.table(tree, "The step with each change of the cluster.")
        for row, sweep in zip(rows, sensitivity["sweeps"]):
            self.check_values(row, [x / 1e3 for x in sweep["step_ms"]])
            self.assertEqual(sweep["step_ms"][2], s["step_ms"])
        slower = {x["change"]: x["step_ms"] for x in sensitivity["sweeps"]}
        self.assertEqual(slower["compute"], sorted(slower["compute"], reverse=True))
        self.assertAlmostEqual(slower["compute"][3], s["what_if"][0]["step_ms"], delta=1e-9)
        for wanted in ("Machine by data sheet: 0.5 of 200 GFLOP/s assumed", "Where the time goes", "Timeline", "rank 8", "stage 1", "Sensitivity to imbalance of experts",
                       "bandwidth[node <b>]", "a Zipf distribution", "step time (ms)"):
            self.assertIn(wanted, shown)
        svg = [v for v in tree.iter("svg") if v.get("aria-label", "").startswith("Timeline")]
        self.assertEqual(svg[0].get("aria-label"), "Timeline of a step, of 2 ranks")

    def test_imbalance_is_that_of_the_trace(self):
        trace = self.path("hot.npy")
        r = run("workload", "--name", "W1", "--ranks", 8, "--experts", 8, "--layers", 4, "--iterations", 6, "--out", trace)
        self.assertEqual(r.returncode, DONE, r.stderr)
        s, page, tree = self.report("simulate", "--ranks", 8, "--ep", 8, "--batch", 64, "--micro-batch", 64, "--trace", trace,
                                    "--balance", "exact", "--steps", 2)
        shown = self.check_page(page, tree)
        skews = s["sensitivity"]["imbalance"]
        self.assertEqual(s["sensitivity"]["policy"], "exact")
        self.assertEqual([k["share"] for k in skews], [0, 0.25, 0.5, 0.75, 1])
        self.assertAlmostEqual(skews[0]["max_over_mean_before"], 1, delta=0.01)
        for a, b in zip(skews, skews[1:]):
            self.assertLess(a["max_over_mean_before"], b["max_over_mean_before"])
            self.assertLess(a["off_ms"], b["off_ms"])
        self.assertLess(skews[4]["planned_ms"], skews[4]["off_ms"])
        self.assertLess(skews[4]["max_over_mean"], skews[4]["max_over_mean_before"])
        rows = self.table(tree, "Largest over mean rows of a rank")
        self.check_values([x for row in rows for x in row], [k[x] / 1e3 for k in skews for x in ("off_ms", "planned_ms")])
        for wanted in ("Balance", "Policy exact, over 2 steps", "those of the trace", "balance exact"):
            self.assertIn(wanted, shown)

    def test_failures_have_the_figures_of_json(self):
        s, page, tree = self.report("simulate", "--ranks", 8, "--pp", 2, "--ep", 4, "--batch", 64, "--failures", "1", "--engine", "flow",
                                    "--dialect", "ring-steps", "--timeline", self.path("step.json"), "--timeline-rank", 5)
        shown, f = self.check_page(page, tree), s["failures"]
        self.check_values([row[0] for row in self.table(tree, "A run under failures.")],
                          [f[x] for x in ("goodput", "ettr", "steps", "lost_steps", "losses", "recoveries", "restarts", "wait_s",
                                          "recover_s", "restart_s", "save_s", "save_every")])
        for wanted in ("A node fails every 60.0 min", f["survival"], "assumed", "Engine: flow, with links that ranks share.",
                       "As other programs: ring-steps.", "Timeline"):
            self.assertIn(wanted, shown)
        self.assertNotIn("rank 5", shown)  # which is in the file of --timeline alone
        svg = [v for v in tree.iter("svg") if v.get("aria-label", "").startswith("Timeline")]
        self.assertEqual(svg[0].get("aria-label"), "Timeline of a step, of 2 ranks")

    def test_one_rank_has_a_page_too(self):
        s, page, tree = self.report("simulate", "--ranks", 1)
        shown = self.check_page(page, tree)
        self.assertEqual(s["sensitivity"]["imbalance"], [])
        self.assertEqual([x["change"] for x in s["sensitivity"]["sweeps"]], ["compute"])
        self.assertIn("Without expert parallelism", shown)
        self.assertIsNone(self.section(tree, "Network"))

    def test_a_search_has_the_figures_of_json(self):
        few = "etp=1,zero=0,zero=1,micro-batch=8,micro-batch=32,recompute=off,recompute=full"
        s, page, tree = self.report("search", "--ranks", 8, "--fix", few, "--top", 4)
        shown = self.check_page(page, tree)
        best = s["best"][0]
        self.check_values(self.tiles(tree), [best["step_ms"] / 1e3, best["tokens_per_s"], 100 * best["mfu"],
                                             best["memory_mb"] * 1e6, s["layouts"]["all"], s["layouts"]["simulated"]])

        def figures(layouts):
            return [x for b in layouts for x in (b["step_ms"] / 1e3, b["tokens_per_s"], b["memory_mb"] * 1e6)]

        tables = list(self.section(tree, "The shortest steps").iter("table"))
        self.check_values([x for row in tables[0].find("tbody") for x in self.values(row)], figures(s["best"]))
        self.check_values([x for row in self.table(tree, "The layouts of the line") for x in row], figures(s["pool"]))
        corners = [row for t in self.section(tree, "What each value costs").iter("table") for row in t.find("tbody")]
        self.assertEqual(len(corners), len(s["corners"]))
        for row, c in zip(corners, s["corners"]):
            self.assertEqual("".join(row[0].itertext()), f"--{c['choice']} {c['value']}")
            if "layout" in c:
                self.assertAlmostEqual(self.values(row)[0], c["layout"]["step_ms"] / 1e3, delta=1e-9)
        command = "".join(next(self.section(tree, "The shortest steps").iter("pre")).itertext())
        self.assertRegex(command, r"^evenkeel train --model small --ranks 8 --batch 32 --seq 256 --.* --data \.\.\.$")
        chart = next(v for v in self.section(tree, "Time against memory").iter("svg") if v.get("role"))
        big = [c for c in chart.iter("circle") if c.get("r") == "4.5"]
        self.assertEqual(len(big), len(s["pool"]))
        at = [(float(c.get("cx")), float(c.get("cy"))) for c in big]
        for a, b in zip(at, at[1:]):  # less memory, longer
            self.assertGreater(a[0], b[0])
            self.assertGreater(a[1], b[1])
        for wanted in ("Machine by data sheet: 0.5 of 200 GFLOP/s assumed", "step time (", "memory of the rank with most (", "the best", "of limit", "they cannot be told apart. Of these "):
            self.assertIn(wanted, shown)

    def test_a_page_that_cannot_be_written_is_one_sentence(self):
        for command in ("simulate", "search"):
            r = run(command, "--cluster", self.cluster, "--model", "small", "--ranks", 4, "--report", self.path("none/out.html"),
                    *(("--fix", "zero=1,etp=1") if command == "search" else ()))
            self.assertNotEqual(r.returncode, DONE)
            self.assertIn("out.html", r.stderr)
            self.assertEqual(r.stderr.count("\n"), 1)
            self.assertEqual(r.stdout, "")


if __name__ == "__main__":
    ek_cli.main()
