"""bench/predict.py without a cluster: its tables, and that stored comparisons are what bench/results/predict.md says of them."""

import json
import os
import shutil
import subprocess
import sys

import ek_cli

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")
sys.path.insert(0, BENCH)
import predict_tables  # pylint: disable=wrong-import-position,import-error


class Predict(ek_cli.Case):
    def predict(self, *words, status=0):
        r = subprocess.run([sys.executable, os.path.join(BENCH, "predict.py"), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r

    def test_stored_comparisons_are_what_the_page_says(self):
        self.assertEqual(self.predict("--check").stdout, "")
        self.assertIn("\n| all | 103 | 4.6 % | 8.9 % | 16.4 % |", self.predict("--table", "--comparison", "third").stdout)

    def changed(self, name, old, new):
        """What is found where one text of a stored file is another one."""
        folder = self.path("stored")
        shutil.copytree(predict_tables.STORED, folder, dirs_exist_ok=True)
        text = ek_cli.read(os.path.join(folder, name)).decode()
        self.assertIn(old, text)
        ek_cli.write(os.path.join(folder, name), text.replace(old, new, 1))
        return list(predict_tables.faults(folder))

    def test_a_change_is_found(self):
        first = predict_tables.Results(predict_tables.stored_results("third")).cells[0]
        found = self.changed("third.jsonl.predictions", repr(first["predicted"]["flow"]), "1.5")
        self.assertIn("has SHA-256 %s and predicts 2x1 550" % first["sha256"], found[0])
        found = self.changed("third.jsonl", '"measured_ms": %r' % first["measured_ms"], '"measured_ms": 1.5')
        self.assertTrue(any("this line is not in" in x for x in found), found)
        page = ek_cli.read(predict_tables.STORED + ".md").decode()
        other = ek_cli.write(self.path("page.md"), page.replace(first["sha256"][:8], "00000000"))
        self.assertEqual([x for x in predict_tables.faults(page=other)],
                         ["%s.predictions: 2x1 550 has SHA-256 %s..., of which %s says nothing" % (
                             predict_tables.stored_results("third"), first["sha256"][:8], other)])

    def results(self, steps, again):
        """Of predictions of 100 ms (a), 110 (b) and 150 (c) in two groups: first starts, and the second one of a."""
        text, rows = "", []
        for group in ("2x1 550", "2x1 1100 trace"):
            frozen = json.dumps({"group": group, "predictions": {x: {"flow": ms, "replay": ms} for x, ms in zip("abc", (100, 110, 150))}}, sort_keys=True)
            text += frozen + "\n"
            for layout, ms, second in [*((x, ms, False) for x, ms in zip("abc", steps)), ("a", again, True)]:
                rows.append({"group": group, "layout": layout, "sha256": predict_tables.sha256(frozen), "again": second, "measured_ms": ms})
        rows.append({"group": "2x1 550", "layout": "a", "recalibrated_ms": 90})
        ek_cli.write(self.path("r.predictions"), text)
        return ek_cli.write(self.path("r"), "".join(json.dumps(r) + "\n" for r in rows))

    def lines(self, *words):
        text = self.predict("--table", "--results", *words).stdout
        return {c[1].strip(): [x.strip() for x in c[2:-1]] for c in (line.split("|") for line in text.splitlines()) if len(c) > 4}

    def test_errors_regret_and_the_spread_of_starts(self):
        cells = self.lines(self.results((125, 100, 150), 120))
        self.assertEqual(cells["2x1 550"], ["3", "10.0 %", "20.0 %", "20.0 %", "-3.3 %", "10.0 %", "a, b", "25.0 %", "4.0 %", "10.0 %"])
        self.assertEqual(cells["2x1 1100 trace"][-1], "")  # no second calibration
        self.assertEqual(cells["all"][7], "mean 25.0 %, worst 25.0 %")
        self.assertEqual(cells["recorded loads"][0], "3")
        # two starts 20 % apart: neither 10 nor 20 % off are told from that, nor a regret of 20 %
        cells = self.lines(self.results((125, 104.5, 150), 100))
        self.assertEqual(cells["2x1 550"][6:8], ["a, b", "19.6 %"])
        beyond = cells["all, differences within the spread of starts as none"]
        self.assertEqual((beyond[1], beyond[3], beyond[7]), ("0.0 %", "0.0 %", "mean 0.0 %, worst 0.0 %"))
        beyond = self.lines(self.results((125, 104.5, 200), 100))["all, differences within the spread of starts as none"]
        self.assertEqual((beyond[1], beyond[3]), ("8.3 %", "25.0 %"))  # of c alone

    def test_what_is_missing_is_said(self):
        self.assertIn("give --results, and --comparison or --groups", self.predict("--results", "x", status=2).stderr)
        self.assertIn("give --results", self.predict("--comparison", "third", status=2).stderr)
        path = self.results((1, 1, 1), 1)
        ek_cli.write(self.path("r.predictions"), "{}\n")
        self.assertIn("no line of r.predictions has SHA-256", self.predict("--table", "--results", path, status=1).stderr)


if __name__ == "__main__":
    ek_cli.main()
