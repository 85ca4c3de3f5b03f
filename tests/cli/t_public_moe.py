"""bench/public_moe.py on small tables: shares of all-to-alls, and traces that are read and written."""

import os
import re
import subprocess
import sys

import ek_cli

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")


class PublicMoe(ek_cli.Case):
    def test_shares_of_all_to_alls(self):
        rows = "".join("T2,%d,%s,%d,ms\n" % (n, item, ms) for n in (16, 64, 256) for item, ms in (("moe", 400), ("compute", 300), ("a2a", 100)))
        ek_cli.write(self.path("tutel_tables.csv"), "table,gpus,item,value,unit\n" + rows)
        r = subprocess.run([sys.executable, os.path.join(BENCH, "public_moe.py"), "--command", ek_cli.COMMAND, "--tables", self.folder, "--only", "tutel"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        found = re.findall(r"published ([0-9.]+) %, predicted ([0-9.]+) %; all-to-alls ([+-][0-9.]+) %, compute ([+-][0-9.]+)", r.stdout)
        self.assertEqual([f[0] for f in found], 3 * ["25.0"])
        for _, share, a2a, compute in found:
            a2a, compute = 100 * (1 + float(a2a) / 100), 300 * (1 + float(compute) / 100)
            self.assertAlmostEqual(float(share), 100 * a2a / (a2a + compute), delta=0.2)
        self.assertEqual(sorted(found, key=lambda f: float(f[1])), found)  # more rows leave the node

    def test_traces(self):
        sys.path.insert(0, BENCH)
        import public_moe  # pylint: disable=import-outside-toplevel,import-error

        self.assertEqual(public_moe.folded([[1, 2, 3, 4], [5, 6, 7, 8]], 2), [[3, 7], [11, 15]])
        public_moe.write_trace(self.path("t.npy"), [[[[7, 1], [0, 0]]]])
        p = subprocess.run([ek_cli.COMMAND, "plan", "--trace", self.path("t.npy"), "--ranks", "2", "--policy", "off", "--json"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, check=False)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("1.75", p.stdout)  # 7 of 8 rows on one of two ranks


if __name__ == "__main__":
    ek_cli.main()
