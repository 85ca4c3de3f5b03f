"""--batch-shares measured on two nodes of which one has a tenth of the processor: sequences move to
the other one while the run goes on, which reads its data anew, and losses are those of one rank.
The run is interrupted when all of that was seen, however busy the machine is.  Skips where ranks are never
seen to differ, as products of these sizes are too short, or have too few rows, to be timed (src/balance/rank_speeds.h)."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types

import ranks
from ranks import DONE, ek_cli

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from nodes import Cluster  # pylint: disable=wrong-import-position

LIMIT_S = 600
SHARES = r"sequences of a micro-batch on data-parallel ranks: (\d), (\d)$"


class Measured(ek_cli.Case):
    def words(self, out, steps, *more):
        config = ek_cli.write_config(self.path("model.json"), hidden_size=128, intermediate_size=512, head_dim=32,
                                     num_attention_heads=4, num_key_value_heads=2)
        return ["--model", config, "--data", self.data, "--steps", steps, "--batch", 8, "--seq", 64,
                "--dtype", "fp64", "--threads", 1, "--lr-schedule", "constant", "--warmup", 4,
                "--eval-data", self.data, "--eval-every", 4, "--eval-tokens", 512,
                "--out", self.path(out), *more]

    def run_until_shares_are_seen(self, command):
        """Until some more steps and an evaluation are done with the new shares; returns what it said."""
        said, after, asked = [], 0, False
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
            limit = threading.Timer(LIMIT_S, p.kill)
            limit.start()
            with contextlib.closing(p.stderr):
                for line in p.stderr:
                    said.append(line)
                    after += after > 0 or re.search(SHARES, line) is not None
                    if after > 1 and " eval loss " in line and not asked:
                        asked = True  # a second signal would end it at once
                        p.send_signal(signal.SIGTERM)
            limit.cancel()
        return "".join(said)

    def test_sequences_follow_measured_speeds_and_losses_stay(self):
        command = ranks.flavours().get("MPICH")
        if command is None:
            self.skipTest("this build has no MPICH")
        with Cluster(types.SimpleNamespace(nodes=2, cpu="0.8", mpi="mpich", command=command)) as cluster:
            cluster.call("cpu", "node2", "0.08")
            said = self.run_until_shares_are_seen(cluster.words(*cluster.mpiexec("train", *self.words(
                "two", 10000, "--ep", 2, "--balance", "exact", "--batch-shares", "measured"))))
        shares = re.findall(SHARES, said, re.MULTILINE)
        if not shares and all(m["slowest_rank"] > 7 / 8 for m in ek_cli.metrics(self.path("two"))):
            self.skipTest("ranks were not seen to differ: products of these sizes are too short, or have too few rows, to be timed")
        self.assertTrue(shares, said)
        for fast, slow in shares:
            self.assertEqual(int(fast) + int(slow), 8)
        self.assertGreater(int(shares[0][0]), 4, said)
        got = ek_cli.metrics(self.path("two"))
        self.assertIn("interrupted after step %d of" % len(got), said)  # the limit's kill says nothing
        r = ek_cli.run("train", *self.words("one", len(got), "--quiet"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        want = ek_cli.metrics(self.path("one"))
        for key in ("loss", "aux_loss", "grad_norm"):
            self.assert_close([m[key] for m in got], [m[key] for m in want], 1e-9)
        evaluated = [[m["eval_loss"] for m in ms if "eval_loss" in m] for ms in (got, want)]
        self.assertGreater(len(evaluated[0]), 1)
        for a, b in zip(*evaluated):
            self.assert_close([a], [b], 1e-9)


if __name__ == "__main__":
    ek_cli.main()
