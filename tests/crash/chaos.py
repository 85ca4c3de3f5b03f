"""tools/chaos on small clusters, shared by t_chaos.py and t_chaos_long.py: nodes that lose
their memory, links that are cut, and all other faults of --elastic runs."""

import json
import os
import shutil
import subprocess
import sys

import ranks
from ranks import DONE, ek_cli

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(TOP, "bench"))

from harm import worst_difference  # noqa: E402  (the path above is where it is)

CHAOS = os.path.join(TOP, "tools", "chaos")
TOLERANCE = 1e-9  # relative, of losses
# All nodes share the experts out; each on two nodes at least, whoever is lost.
TWICE = "--balance replicate --replicas-min 2 --spare-slots 3 --plan-every 4"


class Chaos(ek_cli.Case):
    """Runs end when a test has seen what it needs, however slow the machine is."""

    mpi, nodes = "mpich", 3
    batch, micro_batch, seq = 6, 1, 16
    balance = TWICE
    alone = {}  # metrics of the longest runs on one rank so far, by what they depend on

    def words(self, steps):
        """What a run and its reference have in common; the shorter one is a prefix of the other."""
        return ["--model", self.config, "--data", self.data, "--steps", steps, "--batch",
                self.batch, "--micro-batch", self.micro_batch, "--seq", self.seq, "--threads", 1,
                "--dtype", "fp64", "--lr", "1e-4", "--lr-schedule", "constant", "--warmup", 10]

    def reference(self, steps):
        """The steps of the same run on one rank, without faults."""
        key = self.batch, self.micro_batch, self.seq
        if len(self.alone.get(key, ())) < steps:
            out = self.path("alone-%d" % steps)
            r = ek_cli.run("train", *self.words(-(-steps // 50) * 50), "--out", out, "--quiet")
            self.assertEqual(r.returncode, DONE, r.stderr)
            self.alone[key] = ek_cli.metrics(out)
        return self.alone[key][:steps]

    def chaos(self, *words, train=(), status=DONE):
        """Runs tools/chaos, whose checks are those of this test, and compares losses with those of
        the reference; returns the results, or what it says if its status is another one.  The
        run's --out is then in the folder `kept`."""
        command = ranks.flavours().get(self.mpi.upper())
        if command is None:
            self.skipTest("this build has no %s" % self.mpi)
        shutil.rmtree(self.path("kept"), True)
        args = [CHAOS, "--command", command, "--mpi", self.mpi, "--nodes", self.nodes, "--cpu",
                "0.6", "--json", "--interrupt", 20, "--keep", self.path("kept"), *words, "--",
                *self.words(1000000), "--ep", self.nodes, *self.balance.split(), *train]
        r = subprocess.run(list(map(str, args)), capture_output=True, text=True, check=False,
                           timeout=3000)
        if r.returncode == 77:
            self.skipTest(r.stderr.strip())
        self.assertEqual(r.returncode, status, r.stderr)
        if status != DONE:
            return r.stderr
        worst_difference(self.metrics(), self.reference(len(self.metrics())), TOLERANCE)
        return json.loads(r.stdout)

    def metrics(self):
        return ek_cli.metrics(self.path("kept"))

    def generations(self):
        return list(map(json.loads,
                        ek_cli.read(self.path("kept", "generations.jsonl")).splitlines()))

    def script(self, *lines):
        return ek_cli.write(self.path("script"), "".join(line + "\n" for line in lines))
