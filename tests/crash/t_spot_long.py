"""bench/spot.py: each of its systems trains through a loss and a return on a small cluster, on the nodes
that its rules allow."""

import json
import os
import subprocess

import ranks
from ranks import ek_cli

SPOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "spot.py")
SYSTEMS = "elastic,restart,ds,ds-ft,bamboo"


class Spot(ek_cli.Case):
    def test_every_system(self):
        """node2 is lost and returns, as in a recorded trace."""
        trace = ek_cli.write(self.path("trace"), "".join("0,add,%s\n" % n for n in "abcd") +
                             "40000,remove,b\n90000,add,e\n")
        config = ek_cli.write_config(self.path("config.json"), num_hidden_layers=2)
        r = subprocess.run([SPOT, "--command", ranks.flavours()["MPICH"], "--systems", SYSTEMS,
                            "--trace", trace, "--compress", "10", "--seconds", "15",
                            "--save-every", "20", "--wanted", "0", "--json", "--", "--model",
                            config, "--data", self.data, "--batch", "8", "--micro-batch", "1",
                            "--seq", "16", "--threads", "1"],
                           capture_output=True, text=True, check=False, timeout=1200)
        if r.returncode == 77:
            self.skipTest(r.stderr.strip())
        self.assertEqual(r.returncode, 0, r.stderr)
        found = json.loads(r.stdout)
        self.assertIn("from 0 s on, time divided by 10", found["trace"])
        self.assertEqual(found["events"], [[4, "lost", "node2"], [9, "back", "node2"]])
        rows = {row["system"]: row for row in found["rows"]}
        for system, used in (("elastic", "34"), ("restart", "34"), ("ds", "24"), ("ds-ft", "24")):
            with self.subTest(system):
                self.assertGreater(rows[system]["steps"], 20)
                self.assertEqual("".join(sorted(rows[system]["step_s"])), used, r.stderr)
                self.assertGreaterEqual(rows[system]["starts"], 1)
        self.assertEqual(sorted(rows["bamboo"]["step_s"]), ["1", "2"])
        self.assertGreater(rows["bamboo"]["steps"], 0)


if __name__ == "__main__":
    ek_cli.main()
