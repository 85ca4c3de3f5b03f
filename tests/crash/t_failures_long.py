"""bench/failures.py, whose checks are those of this test: random failures of a run on defaults."""

import json
import os
import subprocess

import ranks
from ranks import DONE, ek_cli

FAILURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "failures.py")


class Defaults(ek_cli.Case):
    def test_random_failures_lose_no_step_that_has_a_copy(self):
        """Of both runs, the second goes on behind the results of the first."""
        command = ranks.flavours().get("MPICH")
        if command is None:
            self.skipTest("this build has no MPICH")
        for n in (5, 10):
            r = subprocess.run([FAILURES, "--command", command, "--failures", str(n), "--a-run", "5",
                                "--kinds", "worker:3,node:2,two-nodes,freeze,cut", "--seed", "3",
                                "--results", self.path("results"), "--json"], capture_output=True,
                               text=True, check=False, timeout=1500)
            if r.returncode == 77:
                self.skipTest(r.stderr.strip())
            self.assertEqual(r.returncode, DONE, r.stderr)
            found = json.loads(r.stdout)
            self.assertEqual(found["summary"]["failures"], n)
            self.assertEqual([row["seed"] for row in found["runs"]], [3, 4][:n // 5])
        self.assertGreater(found["summary"]["beside_median"], 0)
        self.assertGreater(sum(len(row["recoveries"]) for row in found["runs"]), 4)


if __name__ == "__main__":
    ek_cli.main()
