"""evenkeel bench collectives, with each installed MPI: every collective at every size, next to its
prediction; invalid arguments are refused.  No speed is asserted."""

import json
import math
import os
import subprocess
import unittest

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, write

FLAVOURS = [f for f in ("MPICH", "OPENMPI") if os.environ.get("EK_MPIEXEC_" + f)]
NAMES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "pairwise all-to-all",
         "2dh all-to-all", "send"]
CLUSTER = {"evenkeel_cluster": 1, "name": "made up",
           "rank": {"machine": {"peak": 1e9, "memory_bytes_s": 1e9, "efficiency": 1}},
           "levels": [{"name": "node", "ranks": 2, "gbytes_s": 4.096, "us": 10},
                      {"name": "net", "ranks": 4, "gbytes_s": 0.4096, "us": 100}]}


def run(flavour, ranks, *args):
    return subprocess.run(
        [os.environ["EK_MPIEXEC_" + flavour], "-n", str(ranks), os.environ["EK_COMMAND_" + flavour],
         "bench", "collectives", "--seconds", "0.001", "--repeats", "2", "--longest", "32", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        timeout=ek_cli.TIMEOUT_S, check=False)


@unittest.skipUnless(FLAVOURS, "there is no mpiexec")
class Collectives(ek_cli.Case):
    def rows(self, flavour, ranks, *args):
        r = run(flavour, ranks, "--json", *args)
        self.assertEqual(r.returncode, DONE, r.stderr)
        out = json.loads(r.stdout)
        self.assertEqual((out["bench"], out["ranks"]), ("collectives", ranks))
        self.assertEqual([(row["collective"], row["bytes"]) for row in out["collectives"]],
                         [(name, size) for name in NAMES for size in (4096, 32768)])
        for row in out["collectives"]:
            self.assertEqual(row["ms"]["n"], 2)
            self.assertTrue(math.isfinite(row["ms"]["min"]) and row["ms"]["min"] > 0, row)
        return {(row["collective"], row["bytes"]): row for row in out["collectives"]}

    def test_predicted(self):
        file = write(self.path("cluster.json"), json.dumps(CLUSTER))
        for flavour in FLAVOURS:
            rows = self.rows(flavour, 4, "--ranks-a-node", "2", "--cluster", file)
            self.assertAlmostEqual(rows["send", 4096]["predicted_ms"], 0.01 + 0.1)
            self.assertAlmostEqual(rows["all-to-all", 32768]["predicted_ms"], 0.16 + 0.1)
            self.assertAlmostEqual(rows["2dh all-to-all", 4096]["predicted_ms"],
                                   0.001 + 0.01 + 0.02 + 0.1)

    def test_without_predictions(self):
        for flavour in FLAVOURS:
            rows = self.rows(flavour, 3)
            self.assertNotIn("predicted_ms", rows["send", 4096])

    def test_text(self):
        file = write(self.path("cluster.json"), json.dumps(CLUSTER))
        r = run(FLAVOURS[0], 2, "--cluster", file)
        self.assertEqual(r.returncode, DONE, r.stderr)
        for name in NAMES:
            time = r" *[\d.]{3,4} [num]?s"
            self.assertRegex(r.stdout, r"\n%s +4 KiB%s \( *%s \.\. *%s\)%s +[\d.]+\n" % (name, time, time, time, time))

    def test_refused(self):
        r = run(FLAVOURS[0], 1)
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("needs at least two ranks", r.stderr)
        r = run(FLAVOURS[0], 2, "--longest", "2")
        self.assertEqual(r.returncode, USAGE, r.stderr)
        r = run(FLAVOURS[0], 2, "--cluster", write(self.path("bad.json"), "{}"))
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn("bad.json: not a cluster file, as key `evenkeel_cluster` is missing", r.stderr)


if __name__ == "__main__":
    ek_cli.main()
