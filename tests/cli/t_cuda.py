"""--device cuda from the command line.

EK_COMMAND_EMULATED is a command whose CUDA kernels run on the host, so that everything around
them is tested without a GPU: passing a kernel memory that is not device memory ends the run.
On a machine with a GPU, EK_COMMAND is tested as well."""

import json
import os
import shutil
import subprocess

import ek_cli
from ek_cli import DONE, FAILED, USAGE, run

SMALL = ("--steps", 2, "--batch", 2, "--micro-batch", 1, "--seq", 8, "--threads", 1, "--quiet")


def said_of_cuda(command):
    out = subprocess.run([command, "info"], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if line.startswith("CUDA: ")]


class WithoutDevice(ek_cli.Case):
    def test_without_a_device(self):
        """A message and a status, and no leftovers."""
        said = said_of_cuda(ek_cli.COMMAND)
        if "device 0" in said[0]:
            self.skipTest("there is a GPU")
        r = run("train", "--model", self.config, "--data", self.data, "--out", self.path("run"),
                "--device", "cuda", *SMALL)
        self.assertEqual((r.returncode, r.stdout), (USAGE, ""), r.stderr)
        self.assertRegex(r.stderr, r"^evenkeel train: --device cuda: (there is no CUDA device|this "
                         r"evenkeel was built without CUDA)")
        self.assertEqual(r.stderr.count("\n"), 1)
        self.assertFalse(os.path.exists(self.path("run")))


class Gpu(ek_cli.Case):
    command = ek_cli.COMMAND

    def setUp(self):
        super().setUp()
        if "device 0" not in said_of_cuda(self.command)[0]:
            self.skipTest("there is no GPU")

    def call(self, *words, ranks=1):
        words = [self.command, *map(str, words)]
        if ranks > 1:
            words += ["--ranks", str(ranks)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300,
                              stdin=subprocess.DEVNULL)

    def losses(self, name, *more, device, ranks=1):
        r = self.call("train", "--model", self.config, "--data", self.data, "--out",
                      self.path(name), "--device", device, *SMALL, *more, ranks=ranks)
        self.assertEqual(r.returncode, DONE, r.stderr)
        with open(self.path(name, "metrics.jsonl"), encoding="utf-8") as f:
            steps = [json.loads(line) for line in f]
        return [s[name] for s in steps for name in ("loss", "aux_loss", "grad_norm")]

    def compare(self, *more, tolerance, ranks=1):
        want = self.losses("cpu", *more, device="cpu", ranks=ranks)
        got = self.losses("cuda", *more, device="cuda", ranks=ranks)
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertLess(abs(a / b - 1), tolerance)

    def test_fp32(self):
        self.compare("--dtype", "fp32", tolerance=5e-7)

    def test_fp64(self):
        self.compare("--dtype", "fp64", "--recompute", "full", tolerance=1e-11)

    def test_bf16(self):
        self.compare("--dtype", "bf16", tolerance=2e-3)

    def test_gates(self):
        """What the host does between kernels."""
        gates = [({"evenkeel": {"gate": "sigmoid-bias", "bias_rate": 0.01}}, ()),
                 ({"evenkeel": {"gate": "expert-choice"}}, ()),
                 ({"evenkeel": {"groups": 2, "group_top": 1}}, ()),
                 ({"evenkeel": {"router": "cosine", "router_dim": 4}}, ()),
                 ({"evenkeel": {"shared_ff": 16, "shared_gated": True}}, ()),
                 ({"router_jitter_noise": 0.3}, ()), ({"num_local_experts": 1100}, ()),
                 ({}, ("--capacity-factor", 0.7)), ({}, ("--top-k", 1)), ({}, ("--force-balance",))]
        for changes, options in ek_cli.some(gates, 2):
            with self.subTest(config=changes, options=options):
                self.config = ek_cli.write_config(self.path("gate.json"), **changes)
                for name in "cpu", "cuda":
                    shutil.rmtree(self.path(name), ignore_errors=True)
                self.compare("--dtype", "fp32", *options, tolerance=2e-6)

    def test_documents_apart(self):
        ids = ek_cli.token_ids(900)
        for i in range(0, 900, 5):
            ids[i] = 256
        self.data = ek_cli.write_tokens(self.path("documents.bin"), ids)
        self.compare("--dtype", "fp32", "--document-mask", "--seq", 40, tolerance=5e-7)
        for name in "cpu", "cuda":
            shutil.rmtree(self.path(name))
        self.compare("--dtype", "bf16", "--document-mask", "--seq", 40, tolerance=2e-3)

    def test_two_ranks(self):
        """Ranks share the device, and send through host memory."""
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        layouts = (("--ep", 2, "--balance", "exact", "--spare-slots", 1), ("--tp", 2),
                   ("--zero", 3, "--pipeline-degree", 2), ("--pp", 2),
                   ("--etp", 2, "--adaptive-r", 1), ("--etp", 2),
                   ("--ep", 2, "--balance", "replicate", "--spare-slots", 2), ("--embed-columns",),
                   ("--ep", 2, "--a2a", "2dh", "--smart-groups", 1), ("--etp", 2, "--adaptive-r", 0))
        for layout in ek_cli.some(layouts, 2):
            with self.subTest(layout=layout):
                self.compare("--dtype", "fp32", *layout, tolerance=5e-7, ranks=2)
                for name in "cpu", "cuda":
                    shutil.rmtree(self.path(name))

    def test_eval_and_generate(self):
        self.losses("run", "--dtype", "fp32", device="cpu")
        said = []
        for device in "cpu", "cuda":
            e = self.call("eval", "--model", self.path("run"), "--data", self.data, "--seq", 16,
                          "--dtype", "fp32", "--device", device, "--json")
            g = self.call("generate", "--model", self.path("run"), "--tokenizer", "bytes",
                          "--prompt", "keel", "--tokens",
                          5, "--temperature", 0, "--dtype", "fp32", "--device", device, "--quiet")
            self.assertEqual((e.returncode, g.returncode), (DONE, DONE), e.stderr + g.stderr)
            said.append((json.loads(e.stdout), g.stdout))
        self.assertLess(abs(said[0][0]["loss"] - said[1][0]["loss"]), 1e-6)
        self.assertEqual(said[0][0]["expert_load"], said[1][0]["expert_load"])
        self.assertEqual(said[0][1], said[1][1])

    def test_bench(self):
        """Figures without ceilings, which exist only for the CPU."""
        steps = ("--batch", 2, "--seq", 16, "--steps", 1)
        tokens = ("--repeats", 1, "--prompt", 4, "--tokens", 3)
        for name, sizes in ("step", steps), ("kernels", steps), ("generate", tokens):
            with self.subTest(bench=name):
                r = self.call("bench", name, "--model", self.config, "--device", "cuda", "--dtype",
                              "fp32", *sizes, "--json")
                self.assertEqual(r.returncode, DONE, r.stderr)
                out = json.loads(r.stdout)
                self.assertEqual(out["device"], "cuda")
                self.assertIn("cuda", out["kernels"])
                self.assertFalse({"ceilings", "ratio"} & set(out) or "NaN" in r.stdout, out)
                self.assertEqual(out.get("start_s", 0) > 0, name != "generate", out)
                ops = out.get("ops", [])
                self.assertEqual(name == "kernels", any("expert" in o["name"] for o in ops))
                self.assertNotIn("ratio", ops[0] if ops else {})
        r = self.call("bench", "gemm", "--device", "cuda")
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("`bench gemm` has no option `--device`", r.stderr)

    def test_families(self):
        """A small model of each."""
        models = os.path.join(ek_cli.TEST_DATA, "golden", "models")
        short = ek_cli.write_tokens(self.path("short.bin"), [i * 7 % 50 for i in range(40)])
        for name in sorted(os.listdir(models)):
            with self.subTest(model=name):
                loss = []
                for device in "cpu", "cuda":
                    r = self.call("eval", "--model", os.path.join(models, name), "--data",
                                  short, "--seq", 12, "--dtype", "fp32", "--device", device,
                                  "--json")
                    self.assertEqual(r.returncode, DONE, r.stderr)
                    loss.append(json.loads(r.stdout)["loss"])
                self.assertLess(abs(loss[0] / loss[1] - 1), 1e-6)

    def test_not_with_elastic(self):
        r = self.call("train", "--model", self.config, "--data", self.data, "--out",
                      self.path("run"), "--device", "cuda", "--elastic", *SMALL)
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--elastic: the state has to be in CPU memory to outlive a process", r.stderr)


class Emulated(Gpu):
    command = os.environ.get("EK_COMMAND_EMULATED", "")

    def setUp(self):
        if not os.path.exists(self.command):
            self.skipTest("no C++ compiler, or sanitizers: there is no command with emulated CUDA")
        super().setUp()

    def touches(self, bench, steps):
        """How many kernels there were and waits for them, and how often the host used a page of the
        device's memory."""
        name = self.path("touches")
        os.environ["EK_EMULATED_TOUCHES"] = name
        self.addCleanup(os.environ.pop, "EK_EMULATED_TOUCHES", None)
        r = self.call("bench", bench, "--model", self.config, "--device", "cuda", "--dtype",
                      "bf16", "--batch", 4, "--micro-batch", 2, "--seq", 16, "--steps", steps,
                      "--threads", 1, "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        with open(name, encoding="utf-8") as f:
            lines = [line.split() for line in f]
        count = {name: int(n) for n, name in lines if name in ("kernels", "waits")}
        return count["kernels"], count["waits"], sum(int(n) for n, _ in lines) - sum(count.values())

    def test_the_host_keeps_off(self):
        """On one rank a step's tokens and the losses of its two micro-batches travel, no more: a
        page that both sides use would go back and forth.  Most kernels are only queued."""
        def of_two_steps(bench):
            return [b - a for a, b in zip(self.touches(bench, 1), self.touches(bench, 3))]

        recorded = of_two_steps("kernels")  # each kernel is waited for; "step" does both
        queued = [b - a for a, b in zip(recorded, of_two_steps("step"))]
        self.assertEqual(queued[0], recorded[0])
        self.assertTrue(400 < queued[0] < 560, queued)  # 606 with two for each parameter
        self.assertGreaterEqual(recorded[1], recorded[0])
        self.assertLess(queued[1], 0.15 * queued[0])
        self.assertTrue(0 < queued[2] <= 2 * (1 + 2), queued)

    def test_memory_of_the_device(self):
        """A model that takes more than half of it is trained; what does not fit is refused before.
        256 MiB of what is free are left to CUDA."""
        self.addCleanup(os.environ.pop, "EK_EMULATED_MEMORY", None)
        with open(self.path("text.txt"), "w", encoding="ascii") as f:
            f.write("On an even keel. " * 100)
        for mib, status, message in ((310, DONE, "^$"), (302, FAILED, "--micro-batch 1 would fit"),
                                     (290, FAILED, r"cannot reserve 4[67]\.\d MB for the model's")):
            with self.subTest(memory=mib):
                os.environ["EK_EMULATED_MEMORY"] = str(mib)
                r = self.call("train", "--model", "tiny", "--tokenizer", "bytes", "--data",
                              self.path("text.txt"), "--out", self.path("run-%d" % mib),
                              "--device", "cuda", "--steps", 1, "--batch", 2, "--seq", 8,
                              "--quiet")
                self.assertEqual(r.returncode, status, r.stderr)
                self.assertRegex(r.stderr, message)

    def test_a_kernel_fails(self):
        """It is one of those since the last wait; where each op is waited for it is named, with the
        op and the layer that it was for."""
        os.environ["EK_EMULATED_FAILURE"] = "attention_backward dq"
        self.addCleanup(os.environ.pop, "EK_EMULATED_FAILURE")
        words = ("train", "--model", self.config, "--data", self.data, "--device", "cuda", *SMALL)
        r = self.call(*words, "--out", self.path("run"))
        self.assertEqual(r.returncode, FAILED, r.stderr)
        self.assertRegex(r.stderr, r"CUDA: one of the kernels from \w+ to \w+: an illegal memory")
        r = self.call(*words, "--out", self.path("again"), "--timeline")
        self.assertEqual(r.returncode, FAILED, r.stderr)
        self.assertRegex(r.stderr, r"attention backward of layer 1.*CUDA: attention_backward dq: ")


if __name__ == "__main__":
    ek_cli.main()
