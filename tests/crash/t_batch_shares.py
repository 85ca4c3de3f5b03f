"""--batch-shares measured on two nodes of which one has less of the processor: sequences move to the
other one while the run goes on, which reads its data anew, and losses are those of one rank."""

import os
import pathlib
import re
import subprocess
import sys
import types

import ranks
from ranks import DONE, ek_cli

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from nodes import Cluster  # pylint: disable=wrong-import-position

STEPS = 12


class Measured(ek_cli.Case):
    def test_sequences_follow_measured_speeds_and_losses_stay(self):
        command = ranks.flavours().get("MPICH")
        if command is None:
            self.skipTest("this build has no MPICH")
        config = ek_cli.write_config(self.path("model.json"), hidden_size=128, intermediate_size=512, head_dim=32,
                                     num_attention_heads=4, num_key_value_heads=2)
        words = ["--model", config, "--data", self.data, "--steps", STEPS, "--batch", 8, "--seq", 16,
                 "--dtype", "fp64", "--threads", 1, "--eval-data", self.data, "--eval-every", 4, "--eval-tokens", 512]
        r = ek_cli.run("train", *words, "--out", self.path("one"), "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        with Cluster(types.SimpleNamespace(nodes=2, cpu="0.8", mpi="mpich", command=command)) as cluster:
            cluster.call("cpu", "node2", "0.25")
            two = cluster.words(*cluster.mpiexec("train", *words, "--ep", 2, "--balance", "exact", "--batch-shares",
                                                 "measured", "--out", self.path("two")))
            r = subprocess.run(two, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280)
        self.assertEqual(r.returncode, DONE, r.stderr)
        shares = re.findall(r"sequences of a micro-batch on data-parallel ranks: (\d), (\d)\n", r.stderr)
        self.assertTrue(shares, r.stderr)
        for fast, slow in shares:
            self.assertEqual(int(fast) + int(slow), 8)
        self.assertGreater(int(shares[-1][0]), 4)
        want, got = ek_cli.metrics(self.path("one")), ek_cli.metrics(self.path("two"))
        self.assertEqual(len(got), STEPS)
        for key in ("loss", "aux_loss", "grad_norm"):
            self.assert_close([m[key] for m in got], [m[key] for m in want], 1e-9)
        evaluated = [[m["eval_loss"] for m in ms if "eval_loss" in m] for ms in (got, want)]
        self.assertGreater(len(evaluated[0]), 1)
        self.assert_close(*evaluated, 1e-9)


if __name__ == "__main__":
    ek_cli.main()
