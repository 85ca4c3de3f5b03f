"""tools/chaos on small clusters, shared by t_chaos.py and t_chaos_long.py: nodes that lose
their memory, links that are cut, and all other faults of --elastic runs."""

import json
import os
import subprocess

import ranks
from ranks import DONE, ek_cli

CHAOS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "chaos")
# All nodes share the experts out; each on two nodes at least, whoever is lost.
TWICE = "--balance replicate --replicas-min 2 --spare-slots 3 --plan-every 4"


class Chaos(ek_cli.Case):
    mpi, steps, nodes = "mpich", 400, 3
    balance = TWICE

    def chaos(self, *words, train=(), status=DONE, reference=True):
        """Runs tools/chaos, whose checks are those of this test; returns its results."""
        command = ranks.flavours().get(self.mpi.upper())
        if command is None:
            self.skipTest("this build has no %s" % self.mpi)
        config = ek_cli.write_config(self.path("config.json"), num_hidden_layers=2)
        args = [CHAOS, "--command", command, "--mpi", self.mpi, "--nodes", self.nodes, "--cpu",
                "0.6", "--json", *(["--reference"] if reference else []), *words, "--", "--model",
                config, "--data", self.data, "--steps", self.steps, "--batch", 6, "--micro-batch",
                1, "--seq", 16, "--threads", 1, "--dtype", "fp64", "--lr", "1e-4", "--ep",
                self.nodes, *self.balance.split(), *train]
        r = subprocess.run(list(map(str, args)), capture_output=True, text=True, check=False,
                           timeout=3000)
        if r.returncode == 77:
            self.skipTest(r.stderr.strip())
        self.assertEqual(r.returncode, status, r.stderr)
        return json.loads(r.stdout) if r.returncode == DONE else r.stderr

    def last(self, seconds, train=()):
        """Sets the number of steps of later runs to what takes this long here without faults."""
        self.steps = 150
        times = self.chaos("--failures", 0, train=train, reference=False)["step_times"]
        self.steps = int(1000 * seconds / times[0]["median_ms"])

    def script(self, *lines):
        return ek_cli.write(self.path("script"), "".join(line + "\n" for line in lines))
