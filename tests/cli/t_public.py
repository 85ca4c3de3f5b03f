"""bench/public.py on tables of a few rows: what is predicted, and the figures about it."""

import csv
import io
import os
import re
import subprocess
import sys

import ek_cli

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")
ROWS = (("GPT 22B", 4, 1, 1, 8, 1, 1, "False", "full"), ("GPT 22B", 4, 1, 1, 8, 1, 1, "True", "selective"))
COLUMNS = ("device", "model", "batch", "mb", "dp", "tp", "pp", "cp", "tp_sp", "recomputation", "actual")


class Public(ek_cli.Case):
    def figures(self, seconds, *more, table=ROWS):
        """The cells of the table's line, and the predicted seconds, for steps that took `seconds`."""
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(COLUMNS)
        for row, s in zip(table, seconds):
            rows.writerow(("A100", *row, s))
        ek_cli.write(self.path("korthikanti_selene.csv"), text.getvalue())
        r = subprocess.run([sys.executable, os.path.join(BENCH, "predict.py"), "--command", ek_cli.COMMAND, "--tables", self.folder, "--rows", *more],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        line = next(x for x in r.stdout.splitlines() if x.startswith("| korthikanti_selene"))
        return [c.strip() for c in line.split("|")[2:-1]], [float(x) for x in re.findall(r"([0-9.]+) predicted", r.stdout)]

    def test_errors_order_and_regret(self):
        _, (full, selective) = self.figures((1, 1))
        self.assertTrue(full > 1.1 * selective > 0.5, (full, selective))
        n, signed, mean, _, _, largest, pairs, regret, _ = self.figures((full, selective))[0]
        self.assertEqual((n, pairs, regret), ("2", "1 of 1 (100 %)", "0.0"))
        self.assertTrue(max(abs(float(x)) for x in (signed, mean, largest)) < 0.1)
        n, signed, mean, _, _, largest, pairs, regret, _ = self.figures((full, 2 * full))[0]
        self.assertEqual((pairs, regret), ("0 of 1 (0 %)", "100.0"))
        self.assertAlmostEqual(float(largest), 100 * (1 - selective / full / 2), delta=0.2)

    def test_equal_predictions_are_no_order(self):
        full, selective = ROWS
        cells, predicted = self.figures((1, 2), table=(full, full))
        self.assertEqual((cells[6], predicted[0]), ("1 equal", predicted[1]))
        slower, faster, _ = self.figures((1, 2, 3), table=(full, selective, full))[1]
        cells, _ = self.figures((slower, faster, 2 * slower), table=(full, selective, full))
        self.assertEqual(cells[6], "2 of 2 (100 %), 1 equal")

    def test_the_program_that_was_measured_differs(self):
        own, off = self.figures((1, 1))[1], self.figures((1, 1), "--dialect", "off")[1]
        self.assertTrue(all(a > b for a, b in zip(own, off)), (own, off))  # scores of attention are stored

    def nodes_lines(self, seconds):
        """The lines about a table of a model on one node and on two, and the predicted seconds, for steps that took `seconds`."""
        same = {"status": "Success", "pp": 1, "tp": 1, "after_pp_fix": "True", "hidden": 2048, "inner": 8192, "layers": 4, "heads": 16, "kv_heads": 16, "vocab": 32768,
                "tied": "True", "zero": 0, "micro_batch": 2, "seq": 4096, "allgather_intra_gbs": 240, "allreduce_gbs": 200}
        with open(self.path("ultrascale_h100.csv"), "w", newline="", encoding="utf-8") as f:
            rows = csv.DictWriter(f, [*same, "nodes", "dp", "global_batch", "tokens_s_gpu"])
            rows.writeheader()
            for nodes, s in zip((1, 2), seconds):
                rows.writerow(dict(same, nodes=nodes, dp=8 * nodes, global_batch=64 * nodes, tokens_s_gpu=64 * nodes * 4096 / (s * 8 * nodes)))
        r = subprocess.run([sys.executable, os.path.join(BENCH, "public.py"), "--command", ek_cli.COMMAND, "--tables", self.folder, "--rows"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        lines = [[c.strip() for c in x.split("|")[1:-1]] for x in r.stdout.splitlines() if x.startswith("| ultrascale")]
        return lines, [float(x) for x in re.findall(r"([0-9.]+) predicted", r.stdout)]

    def test_memory_that_an_allocator_cannot_use(self):
        sys.path.insert(0, BENCH)
        import public  # pylint: disable=import-outside-toplevel,import-error
        cases = []
        for needed, ran in ((60, True), (70, False), (90, False), (70, True)):
            cases.append(public.Case("", None, {}, "", 8, 1 if ran else None, {}, ""))
            cases[-1].predicted = {"memory_mb": {"all": needed, "of": 80}}
        self.assertIn("3 of 4 rows right (75.0 %): of 2 that ran 2, of 2 that ran out of memory 1 (50.0 %)", public.memory_summary(cases, 0))
        self.assertIn("3 of 4 rows right (75.0 %): of 2 that ran 1, of 2 that ran out of memory 2 (100.0 %)", public.memory_summary(cases, 0.15))

    def test_one_node_calibrates(self):
        predicted = self.nodes_lines((1, 1))[1]
        raw, calibrated = self.nodes_lines([1.5 * x for x in predicted])[0]
        self.assertEqual((raw[1], calibrated[1]), ("2", "1"))
        self.assertAlmostEqual(float(raw[3]), 100 / 3, delta=0.5)
        self.assertLess(float(calibrated[3]), 8)  # what is sent takes no longer
        self.assertIn("computation 1.5", calibrated[0])


if __name__ == "__main__":
    ek_cli.main()
