"""--pp-layers measured on two nodes of which one has a tenth of the processor: it gets one layer, and
losses are those of one rank.  On a machine so busy that the nodes seem alike it is started again."""

import json
import pathlib
import sys
import types

import ranks
from ranks import DONE, ek_cli

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from nodes import Cluster  # pylint: disable=wrong-import-position


class Measured(ek_cli.Case):
    def words(self, out, *more):
        config = ek_cli.write_config(self.path("model.json"), hidden_size=64, intermediate_size=256, head_dim=16,
                                     num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4)
        return ["--model", config, "--data", self.data, "--steps", 6, "--batch", 4, "--micro-batch", 1, "--seq", 16,
                "--dtype", "fp64", "--threads", 1, "--out", self.path(out), "--json", "--quiet", *more]

    def test_a_slow_node_gets_fewer_layers_and_losses_stay(self):
        command = ranks.flavours().get("MPICH")
        if command is None:
            self.skipTest("this build has no MPICH")
        with Cluster(types.SimpleNamespace(nodes=2, cpu="0.8", mpi="mpich", command=command)) as cluster:
            cluster.call("cpu", "node2", "0.08")
            for _ in range(10):
                said = cluster.call(*cluster.mpiexec("train", *self.words("two", "--pp", 2, "--pp-layers", "measured",
                                                                          "--overwrite")))
                layers = json.loads(said)["pp_layers"]
                if layers == "3,1":
                    break
        self.assertEqual(layers, "3,1")
        r = ek_cli.run("train", *self.words("one"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        got, want = ek_cli.metrics(self.path("two")), ek_cli.metrics(self.path("one"))
        self.assertGreater(got[0]["params_held"][0], 2 * got[0]["params_held"][1])
        for key in ("loss", "aux_loss", "grad_norm"):
            self.assert_close([m[key] for m in got], [m[key] for m in want], 1e-9)


if __name__ == "__main__":
    ek_cli.main()
