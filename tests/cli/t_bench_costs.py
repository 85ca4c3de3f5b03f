"""evenkeel bench costs, on one rank and with each installed MPI: figures are finite numbers,
`plan` reads the file it writes, and --cached returns the same results.  No speed is asserted."""

import json
import math
import os
import struct
import subprocess
import unittest

import ek_cli
from ek_cli import BAD_INPUT, DONE, machine, read, write, write_config

FLAVOURS = [f for f in ("MPICH", "OPENMPI") if os.environ.get("EK_MPIEXEC_" + f)]


def bench_moe(config, file, *args, command=(ek_cli.COMMAND,)):
    return subprocess.run(
        [*command, "bench", "moe", "--model", config, "--dtype", "fp32", "--threads", "1",
         "--steps", "1", "--batch", "3", "--seq", "16", "--degrees", "1", "--machine", file, *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        timeout=ek_cli.TIMEOUT_S, check=False)


class Predicted(ek_cli.Case):
    """`bench moe --machine`: predictions for an impossible machine of 1000 FLOP/s and 1 kB/s."""

    def setUp(self):
        super().setUp()
        self.config = write_config(self.path("config.json"))
        self.file = write(self.path("machine.json"), json.dumps(machine("fp32", flops=1e3, link=1e3)))

    def test_one_rank(self):
        r = bench_moe(self.config, self.file, "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        ops = {o["op"]: o for o in json.loads(r.stdout)["predicted"]}
        rows, expert = 3 * 16 * 2, 16 * 24
        for name, factor in (("expert up", 4), ("expert down", 2), ("expert up input", 4),
                             ("expert down weight", 2)):
            o = ops[name]
            self.assertEqual((o["count"], o["parts"]), (2, True))
            self.assertAlmostEqual(o["predicted_ms"] / (2 * factor * rows * expert), 1, 4)
            self.assertGreater(o["measured_ms"], 0)
        self.assertAlmostEqual(ops["router"]["predicted_ms"] / (2 * 2 * 3 * 16 * 16 * 4), 1, 4)
        waits = [o for o in ops.values() if o["predicted_ms"] is None]
        self.assertFalse(any(o["parts"] for o in waits), waits)
        self.assertRegex(r.stderr, r"differ by more than 20 % in \d+ ops, most in expert up")

    def test_text(self):
        r = bench_moe(self.config, self.file)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertRegex(r.stdout, r"\nexpert up +2 +295 s +[\d.]+ [num]?s  0\.00 !\n")

    def test_bad_file(self):
        r = bench_moe(self.config, write(self.path("bad.json"), "{}"))
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assertIn("bad.json: ", r.stderr)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_ranks(self):
        for flavour in FLAVOURS:
            r = bench_moe(self.config, self.file, "--ep", "2", "--json",
                          command=(os.environ["EK_MPIEXEC_" + flavour], "-n", "2",
                                   os.environ["EK_COMMAND_" + flavour]))
            self.assertEqual(r.returncode, DONE, r.stderr)
            ops = {o["op"]: o for o in json.loads(r.stdout)["predicted"]}
            for name in ("dispatch a2a", "combine a2a", "combine a2a backward", "dispatch a2a backward"):
                # rank 0 has 2 sequences, the other 1: of each, half of the rows go to the other rank, and
                # back, in each of 2 layers; on the way to experts a gate weight is behind a row, and on
                # the way back its gradient
                sequences = 2 if name in ("dispatch a2a", "combine a2a backward") else 1
                sent = sequences * 16 * 2 // 2 * (16 + name.startswith("dispatch")) * 4
                self.assertAlmostEqual(ops[name]["predicted_ms"] / (2 * sent), 1, 4)
            self.assertIsNone(ops["gather counts"]["predicted_ms"])


class Costs(ek_cli.Case):
    def run_bench(self, *args, flavour=None, ranks=1, cache="cache"):
        command = [ek_cli.COMMAND]
        if flavour is not None:
            command = [os.environ["EK_MPIEXEC_" + flavour], "-n", str(ranks),
                       os.environ["EK_COMMAND_" + flavour]]
        config = write_config(self.path("config.json"))
        return subprocess.run(
            [*command, "bench", "costs", "--model", config, "--dtype", "fp32", "--threads", "1",
             "--budget", "0.01", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            timeout=ek_cli.TIMEOUT_S, check=False,
            env={**os.environ, "XDG_CACHE_HOME": self.path(cache)})

    def result(self, *args, **kw):
        r = self.run_bench("--json", *args, **kw)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def check_numbers(self, xs):
        for x in xs:
            self.assertTrue(math.isfinite(x) and x > 0, x)

    def check_same(self, file, printed):
        """Numbers are printed with 6 digits."""
        if isinstance(file, dict):
            self.assertEqual(file.keys(), printed.keys())
            for key in file:
                self.check_same(file[key], printed[key])
        elif isinstance(file, list):
            self.assertEqual(len(file), len(printed))
            for a, b in zip(file, printed):
                self.check_same(a, b)
        elif isinstance(file, float):
            self.assertLess(abs(printed / file - 1), 1e-5)
        else:
            self.assertEqual(file, printed)

    def test_one_rank(self):
        out = self.result()
        m = out["machine"]
        self.assertEqual((out["bench"], out["cached"], m["dtype"], m["ranks"]),
                         ("costs", False, "fp32", 1))
        self.assertEqual((m["expert"]["hidden"], m["expert"]["ff"], m["expert"]["experts"]),
                         (16, 24, 4))
        for product in ("forward", "backward_input", "backward_weight"):
            self.check_numbers(m["expert"][product]["flops_per_s"])
        self.check_numbers([m["copy_bytes_per_s"], out["costs"]["compute_s_per_row"]])
        self.assertEqual(out["costs"]["replica_bytes"], 3 * 16 * 24 * 8)
        self.assertEqual(out["costs"]["comm_s_per_row"], 0)
        self.assertNotIn("node", m)

    def test_kernels(self):
        m = self.result("--budget", "2")["machine"]
        kernels = {k["kernel"]: k for k in m["kernels"]}
        self.assertEqual(len({(k["kernel"], k.get("out"), k.get("in")) for k in m["kernels"]}),
                         len(m["kernels"]))
        self.assertTrue({"product forward", "product weight", "attention backward", "norm", "adamw"} <= kernels.keys())
        for k in m["kernels"]:
            self.check_numbers(k.get("flops_per_s") or k["bytes_per_s"])
        self.check_numbers([m["op_s"]])

    def test_step_by_kernels(self):
        """Every op of a step that computes is predicted, and so is the step."""
        file = self.path("machine.json")
        self.assertEqual(self.run_bench("--budget", "0.5", "--out", file).returncode, DONE)
        r = subprocess.run(
            [ek_cli.COMMAND, "bench", "step", "--model", self.path("config.json"), "--dtype", "fp32",
             "--threads", "1", "--steps", "1", "--batch", "3", "--seq", "16", "--seconds", "0.001",
             "--machine", file, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, timeout=ek_cli.TIMEOUT_S, check=False)
        self.assertEqual(r.returncode, DONE, r.stderr)
        out = json.loads(r.stdout)
        predicted = {o["op"]: o["predicted_ms"] for o in out["predicted"]}
        self.check_numbers([predicted[op] for op in ("qkv", "attention", "adamw", "logits", "router")])
        self.assertGreaterEqual(out["predicted_step_ms"], sum(p for p in predicted.values() if p) * 0.9999)

    def test_text(self):
        r = self.run_bench()
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertRegex(r.stdout, r"\nmeasured in [\d.]+ m?s\n")
        self.assertRegex(r.stdout, r"\nproducts of 4 experts of 16 x 24, by rows an expert\n")
        self.assertRegex(r.stdout, r"\nexpert row +[\d.]+ [mun]?s  = products and copies, ")
        self.assertRegex(r.stdout, r"\n  forward +[\d.]+ [mun]?s  = 6 x 16 x 24 = 2\.30 kFLOP at ")

    def test_cached(self):
        first = self.result("--cached")
        again = self.result("--cached")
        self.assertEqual((first["cached"], again["cached"]), (False, True))
        self.assertEqual(first["machine"], again["machine"])
        self.assertFalse(self.result()["cached"])
        self.assertFalse(self.result("--cached", "--dtype", "bf16")["cached"])
        files = os.listdir(self.path("cache/evenkeel"))
        self.assertEqual(len(files), 2)
        self.assertTrue(all(f.startswith("machine-") and f.endswith(".json") for f in files), files)

    def test_cache_that_cannot_be_written(self):
        write(self.path("taken"), "")
        r = self.run_bench("--json", cache="taken")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("measured costs are not kept: ", r.stderr)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_several_ranks(self):
        for flavour in FLAVOURS:
            with self.subTest(flavour):
                file = self.path("machine.json")
                out = self.result("--out", file, flavour=flavour, ranks=2)
                m = out["machine"]
                self.assertEqual((m["ranks"], m["nodes"], m["node"]["ranks_a_node"]), (2, 1, 2))
                self.check_numbers(m["node"]["all_to_all"]["seconds_a_message"] +
                                   m["node"]["multicast"]["seconds_a_hop"] +
                                   [out["costs"]["comm_s_per_row"], out["costs"]["replica_s"]])
                self.check_same(json.loads(read(file)), m)
                self.plan(file)

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_nodes(self):
        out = self.result("--ranks-a-node", "2", flavour=FLAVOURS[0], ranks=3)
        m = out["machine"]
        self.assertEqual((m["ranks"], m["nodes"]), (3, 2))
        for link in ("node", "net"):
            self.assertEqual(m[link]["ranks_a_node"], 2)
            self.check_numbers(m[link]["all_to_all"]["seconds_a_message"])

    @unittest.skipUnless(FLAVOURS, "there is no mpiexec")
    def test_cluster_file(self):
        file = self.path("cluster.json")
        m = self.result("--ranks-a-node", "2", "--cluster-out", file, flavour=FLAVOURS[0],
                        ranks=3)["machine"]
        cluster = json.loads(read(file))
        self.check_same(cluster["rank"]["machine"], m)
        self.assertEqual([(l["name"], l["ranks"]) for l in cluster["levels"]],
                         [("node", 2), ("net", 4)])
        self.check_numbers([l["gbytes_s"] for l in cluster["levels"]])
        self.assertTrue(all(l["us"] >= 0 for l in cluster["levels"]))

    def test_cluster_file_of_one_rank(self):
        r = self.run_bench("--cluster-out", self.path("cluster.json"))
        self.assertEqual(r.returncode, ek_cli.USAGE, r.stderr)
        self.assertIn("--cluster-out needs at least two ranks", r.stderr)
        self.assertFalse(os.path.exists(self.path("cluster.json")))

    def plan(self, file):
        head = "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 1, 2, 4), }".ljust(117) + "\n"
        trace = write(self.path("trace.npy"),
                      b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() +
                      struct.pack("<8I", 90, 2, 3, 4, 5, 6, 7, 8))
        r = ek_cli.run("plan", "--trace", trace, "--ranks", 2, "--machine", file, "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertGreater(json.loads(r.stdout)["predicted_speedup"], 0)

    def test_out_that_cannot_be_written(self):
        r = self.run_bench("--out", self.path("no/such/folder/m.json"))
        self.assertNotEqual(r.returncode, DONE)
        self.assertIn("no/such/folder", r.stderr)


if __name__ == "__main__":
    ek_cli.main()
