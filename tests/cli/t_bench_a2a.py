"""evenkeel bench a2a, with each installed MPI: figures are finite numbers, only rank 0 prints,
and invalid arguments are refused.  No speed is asserted."""

import json
import math
import os
import subprocess
import unittest

import ek_cli
from ek_cli import DONE, USAGE

FLAVOURS = [f for f in ("MPICH", "OPENMPI") if os.environ.get("EK_MPIEXEC_" + f)]


def run(flavour, ranks, *args):
    return subprocess.run(
        [os.environ["EK_MPIEXEC_" + flavour], "-n", str(ranks), os.environ["EK_COMMAND_" + flavour],
         "bench", "a2a", "--seconds", "0.001", "--repeats", "2", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        timeout=ek_cli.TIMEOUT_S, check=False)


@unittest.skipUnless(FLAVOURS, "there is no mpiexec")
class AllToAll(ek_cli.Case):
    def check_number(self, x):
        self.assertTrue(math.isfinite(x) and x > 0, x)

    def test_json(self):
        for flavour in FLAVOURS:
            r = run(flavour, 3, "--json", "--longest", "16", "--ranks-a-node", "2")
            self.assertEqual(r.returncode, DONE, r.stderr)
            out = json.loads(r.stdout)
            self.assertEqual((out["bench"], out["ranks"], out["nodes"], out["repeats"]),
                             ("a2a", 3, 1, 2))
            rows = [(row["bytes"], row["algorithm"]) for row in out["all_to_all"]]
            self.assertEqual(rows, [(size, a) for size in (1024, 4096, 16384)
                                    for a in ("linear", "pairwise", "2dh")])
            link = out["link_gbs"]["median"]
            self.check_number(out["link_one_way_gbs"]["median"])
            for row in out["all_to_all"]:
                self.assertEqual(row["ms"]["n"], 2)
                self.check_number(row["ms"]["min"])
                rate = 2 * row["bytes"] / row["ms"]["median"] / 1e6
                self.assertLess(abs(row["rank_gbs"] / rate - 1), 1e-3)
                self.assertLess(abs(row["link_gbs"] / rate - 1), 1e-3)
                self.assertLess(abs(row["ratio"] * link / rate - 1), 1e-3)

    def test_text(self):
        for flavour in FLAVOURS:
            r = run(flavour, 2, "--longest", "1")
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(r.stdout.count("a2a, 2 ranks on 1 node, "), 1)
            for name in ("linear", "pairwise", "2dh"):
                self.assertEqual(r.stdout.count("  %s " % name), 1, r.stdout)

    def test_one_rank(self):
        for flavour in FLAVOURS:
            r = run(flavour, 1)
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn("needs at least two ranks", r.stderr)
            self.assertIn(os.environ["EK_MPIEXEC_" + flavour] + " -n 2", r.stderr)


if __name__ == "__main__":
    ek_cli.main()
