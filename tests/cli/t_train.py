"""evenkeel train, as documented: files, metrics, output, order of data, determinism, initial
weights."""

import json
import math
import os
import pty
import shutil
import struct
import subprocess
import unittest

import ek_cli
from ek_cli import DONE, losses, metrics, read, run, write, write_tokens

METRICS = {
    "step", "tokens", "loss", "aux_loss", "grad_norm", "lr", "step_ms", "tokens_per_s",
    "expert_max_over_mean", "rank_max_over_mean", "dropped", "ranks", "comm_bytes", "peak_rss_mb",
    "params_held",
}
# embedding, head, final norm; per layer two norms, q k v o, router, experts
PARAMS = 2 * 300 * 16 + 16 + 2 * (2 * 16 + 16 * (16 + 8 + 8 + 16) + 4 * 16 + 4 * 3 * 16 * 24)


class Files(ek_cli.Case):
    def test_metrics(self):
        self.train("run", "--batch", 3, "--lr", 0.01, "--warmup", 2, "--min-lr", 0.004)
        all_steps = metrics(self.path("run"))
        self.assertEqual([m["step"] for m in all_steps], list(range(6)))
        for m in all_steps:
            self.assertFalse(METRICS - set(m), "missing keys")
            self.assertEqual(m["tokens"], 3 * 16)
            self.assertTrue(math.isfinite(m["loss"]) and m["loss"] > 0)
            self.assertGreater(m["grad_norm"], 0)
            self.assertGreaterEqual(m["aux_loss"], 1.9)  # 1 a layer when balanced
            self.assertGreaterEqual(m["expert_max_over_mean"], 1)
            self.assertEqual((m["rank_max_over_mean"], m["dropped"], m["ranks"], m["comm_bytes"]),
                             (1, 0, 1, 0))
            self.assertEqual(m["params_held"], [PARAMS])
            self.assertEqual(len(m["peak_rss_mb"]), 1)
            self.assertGreater(m["peak_rss_mb"][0], 1)
            self.assertLess(abs(m["tokens_per_s"] * m["step_ms"] / 1e3 / 48 - 1), 0.01)
        want = [0.005, 0.01] + [0.004 + 0.006 * 0.5 * (1 + math.cos(math.pi * i / 3))
                                for i in range(4)]
        self.assert_close([m["lr"] for m in all_steps], want, 1e-12)

    def test_loss_falls(self):
        self.train("run", "--lr", 0.01, "--data-order", "sequential", steps=60)
        all_steps = losses(self.path("run"))
        self.assertLess(abs(all_steps[0] - math.log(300)), 0.5)
        self.assertLess(sum(all_steps[-5:]) / 5, all_steps[0] - 1)

    def test_out_holds_what_was_asked(self):
        self.train("plain")
        self.assertEqual(sorted(os.listdir(self.path("plain"))), ["checkpoint", "metrics.jsonl", "run.json"])
        self.train("all", "--timeline", "--record-routing", "--save-every", 2, "--keep", 2)
        self.assertEqual(sorted(os.listdir(self.path("all"))),
                         ["checkpoint", "metrics.jsonl", "routing.npy", "run.json", "timeline.json"])
        self.assertEqual(len(os.listdir(self.path("all", "checkpoint"))), 2)
        files = set(os.listdir(ek_cli.newest(self.path("all"))))
        self.assertTrue({"config.json", "model.safetensors", "optimizer.safetensors"} <= files)

    def test_out_is_started_anew(self):
        self.train("run", "--timeline", "--record-routing", "--save-every", 2)
        self.train("run", steps=2)
        self.assertEqual(sorted(os.listdir(self.path("run"))), ["checkpoint", "metrics.jsonl", "run.json"])
        self.assertEqual(len(metrics(self.path("run"))), 2)
        self.assertEqual(len(os.listdir(self.path("run", "checkpoint"))), 1)

    def test_slash_behind_out(self):
        self.train("a/")
        self.assertEqual(sorted(os.listdir(self.path("a"))), ["checkpoint", "metrics.jsonl", "run.json"])

    def timeline(self, out):
        """The events of a run's timeline, and the steps that it names."""
        with open(self.path(out, "timeline.json")) as f:
            events = json.load(f)["traceEvents"]
        steps = [e for e in events if e["ph"] == "i"]
        self.assertEqual([e["name"] for e in steps], ["step %d" % e["args"]["step"] for e in steps])
        return events, [e["args"]["step"] for e in steps]

    def test_timeline(self):
        self.train("run", "--timeline", steps=20)
        step_ms = [m["step_ms"] for m in metrics(self.path("run"))[:10]]
        events, steps = self.timeline("run")
        self.assertEqual(steps, list(range(10)))
        lanes = {e["tid"]: e["args"]["name"] for e in events
                 if e["ph"] == "M" and e["name"] == "thread_name"}
        ops = [e for e in events if e["ph"] == "X"]
        self.assertEqual({lanes[e["tid"]] for e in ops}, {"compute"})
        self.assertTrue({"compute", "net"} <= set(lanes.values()))
        self.assertTrue({"embed", "router", "expert up", "adamw"} <= {e["name"] for e in ops})
        self.assertEqual({e["args"]["layer"] for e in ops if e["name"] == "router"}, {0, 1})
        self.assertEqual(len([e for e in ops if e["name"] == "gradient norm"]), 10)
        for a, b in zip(ops, ops[1:]):  # one lane: one op at a time; ts is rounded to 1 ns
            self.assertLessEqual(a["ts"] + a["dur"], b["ts"] + 0.002)
        starts = [e["ts"] for e in events if e["ph"] == "i"] + [float("inf")]
        of_step = [sum(e["dur"] for e in ops if a <= e["ts"] < b) / 1e3
                   for a, b in zip(starts, starts[1:])]
        # in one step at least: on a busy machine the process also waits between ops
        self.assertGreater(max(a / b for a, b in zip(of_step, step_ms)), 0.5)

    def test_window_of_the_timeline(self):
        self.train("run", "--timeline", "--timeline-from", 3, "--timeline-steps", 2, steps=8)
        events, steps = self.timeline("run")
        self.assertEqual(steps, [3, 4])
        norms = [e for e in events if e["name"] == "gradient norm"]
        self.assertEqual(len(norms), 2)
        marks = [e["ts"] for e in events if e["ph"] == "i"]
        self.assertTrue(marks[0] < norms[0]["ts"] < marks[1] < norms[1]["ts"], (marks, norms))
        self.train("end", "--timeline", "--timeline-from", 6, "--timeline-steps", 50, steps=8)
        self.assertEqual(self.timeline("end")[1], [6, 7])
        r = self.train("late", "--timeline", "--timeline-from", 8, steps=8)
        self.assertIn("none of the steps from 8 to 17", r.stderr)
        self.assertFalse(os.path.exists(self.path("late", "timeline.json")))
        more = ("--resume", "--override", "--lr-schedule", "constant", "--timeline")
        r = self.train("run", *more, steps=12)
        self.assertIn("none of the steps from 3 to 4", r.stderr)
        self.train("run", *more, "--timeline-from", 13, steps=15)
        self.assertEqual(self.timeline("run")[1], [13, 14])

    def test_routing(self):
        self.train("run", "--record-routing", "--micro-batch", 3)
        data = ek_cli.read(self.path("run", "routing.npy"))
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        n = struct.unpack("<H", data[8:10])[0]
        self.assertEqual((10 + n) % 64, 0)
        header = eval(data[10:10 + n], {})  # the format is a Python dictionary
        self.assertEqual(header, {"descr": "<u4", "fortran_order": False, "shape": (6, 2, 1, 4)})
        counts = struct.unpack("<48I", data[10 + n:])
        worst = 0
        for i in range(12):  # step and layer
            row = counts[4 * i:4 * i + 4]
            self.assertEqual(sum(row), 4 * 16 * 2)
            worst = max(worst, max(row) / 32)
            if i % 2 == 1:
                self.assertAlmostEqual(metrics(self.path("run"))[i // 2]["expert_max_over_mean"],
                                       worst, 4)
                worst = 0


class Output(ek_cli.Case):
    def test_summary(self):
        r = run(*self.train_args("run", "--json"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        s = json.loads(r.stdout)
        self.assertEqual(s["steps"], 6)
        self.assertEqual(s["loss"], losses(self.path("run"))[-1])
        self.assertEqual(s["params"], PARAMS)
        self.assertEqual(s["active_params"], PARAMS - 2 * 2 * 3 * 16 * 24)
        self.assertTrue(os.path.samefile(s["checkpoint"], ek_cli.newest(self.path("run"))))
        for key in ("tokens_per_s", "seconds", "peak_rss_mb", "predicted_rss_mb"):
            self.assertGreater(s[key], 0)

    def test_summary_of_an_awkward_folder(self):
        r = run(*self.train_args('a "b" \\c', "--json", "--quiet"))
        s = json.loads(r.stdout)
        self.assertTrue(os.path.samefile(s["checkpoint"], ek_cli.newest(self.path('a "b" \\c'))))

    def test_spikes(self):
        """Tokens that the model has unlearned come after sixty steps, for one step."""
        step = 4 * 16
        ids = [i % 7 for i in range(90 * step)]
        ids[60 * step:61 * step] = [100 + i * 37 % 199 for i in range(step)]
        data = ek_cli.write_tokens(self.path("spike.bin"), ids)
        r = run(*self.train_args("run", "--json", "--data-order", "sequential", "--lr", 0.01,
                                 "--wd", 0, data=data, steps=80))
        self.assertEqual(r.returncode, DONE, r.stderr)
        lines = metrics(self.path("run"))
        at = [m["step"] for m in lines if "spike" in m]
        self.assertEqual(at[0], 60)
        self.assertEqual(lines[60]["spike"], ["loss", "grad_norm"])
        told = [line for line in r.stderr.splitlines() if "far above the usual" in line]
        self.assertEqual(len(told), 1, r.stderr)
        self.assertIn("warning: step 60: loss %.4g is" % lines[60]["loss"], told[0])
        self.assertIn("gradients were clipped to a norm of 1", told[0])
        self.assertEqual(json.loads(r.stdout)["spikes"], len(at))

    def test_quiet(self):
        r = self.train("run")
        self.assertEqual((r.stdout, r.stderr), ("", ""))
        r = self.train("run", "--json")
        self.assertEqual(r.stderr, "")
        self.assertEqual(len(r.stdout.splitlines()), 1)

    def test_plain_lines(self):
        r = run(*self.train_args("run", steps=25))
        self.assertNotIn("\r", r.stderr)
        self.assertNotIn("\033", r.stderr)
        shown = [line for line in r.stderr.splitlines() if line.startswith("step ")]
        self.assertEqual([line.split()[1] for line in shown], ["1/25", "10/25", "20/25", "25/25"])
        self.assertIn("loss %.4f" % losses(self.path("run"))[-1], shown[-1])
        self.assertNotIn("step ", r.stdout.splitlines()[-1])
        self.assertIn(ek_cli.newest(self.path("run")), r.stdout)

    def test_live_line(self):
        try:
            master, slave = pty.openpty()
        except OSError as e:
            self.skipTest("no pseudo-terminal to show progress on: %s" % e)
        with subprocess.Popen([ek_cli.COMMAND, *map(str, self.train_args("run"))],
                              stdout=subprocess.DEVNULL, stderr=slave) as p:
            os.close(slave)
            text = b"".join(ek_cli.terminal_output(master))
        os.close(master)
        self.assertEqual(p.returncode, DONE, text)
        self.assertIn(b"\rstep 6/6  loss ", text)
        self.assertIn(b"left 0:00", text)

    def test_processes_keep_their_name(self):
        """Also when the command re-executes itself to set OpenMP defaults."""
        env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        with ek_cli.start(*self.train_args("run", steps=100000), env=env) as p:
            ek_cli.wait_for_steps(p, self.path("run"), 1)
            name = ek_cli.read("/proc/%d/comm" % p.pid)
            arguments = ek_cli.read("/proc/%d/cmdline" % p.pid)
            p.kill()
            p.communicate()
        self.assertEqual(name, os.path.basename(ek_cli.COMMAND).encode() + b"\n")
        self.assertTrue(arguments.startswith(ek_cli.COMMAND.encode() + b"\0train\0--model\0"))

    def test_help_lists_options(self):
        r = run("train", "--help")
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        for option in ("model", "init", "data", "text-field", "document-mask", "token-bytes", "tokenizer", "batch", "seq",
                       "micro-batch", "data-order", "steps", "lr", "lr-schedule", "warmup",
                       "min-lr", "wd", "beta1", "beta2", "eps", "clip", "aux-coef", "z-coef",
                       "capacity-factor", "dtype", "device", "threads", "seed", "out", "timeline",
                       "timeline-from", "timeline-steps",
                       "record-routing", "record-plans", "replay-routing", "save-every", "keep", "resume", "quiet", "json",
                       "config"):
            self.assertIn("--" + option, r.stdout)


class Same(ek_cli.Case):
    def same_twice(self, *more, **kw):
        self.train("a", *more, **kw)
        self.train("b", *more, **kw)
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))
        self.assertEqual(ek_cli.weights(self.path("a")), ek_cli.weights(self.path("b")))

    def test_fp32_twice(self):
        self.same_twice()

    def test_bf16_twice(self):
        self.same_twice("--micro-batch", 3, dtype="bf16")

    def test_sequential_twice(self):
        self.same_twice("--data-order", "sequential", dtype="bf16")

    def test_any_threads(self):
        for dtype in ("fp32", "bf16"):
            for threads in (1, 3):
                self.train("%s-%d" % (dtype, threads), "--threads", threads, dtype=dtype)
            one, three = self.path(dtype + "-1"), self.path(dtype + "-3")
            self.assertEqual(losses(one), losses(three))
            self.assertEqual(ek_cli.weights(one), ek_cli.weights(three))

    def test_seeds_differ(self):
        self.train("a")
        self.train("b", "--seed", 1)
        self.assertNotEqual(losses(self.path("a"))[0], losses(self.path("b"))[0])

    def test_orders_differ(self):
        """After one epoch both orders have seen the same windows: 93 of 16 tokens, 3 a step."""
        for order in ("sequential", "shuffled"):
            self.train(order, "--data-order", order, "--batch", 3, "--lr", 0, "--aux-coef", 0,
                       dtype="fp64", steps=31)
        a, b = losses(self.path("sequential")), losses(self.path("shuffled"))
        self.assertNotEqual(a[0], b[0])
        self.assert_close([sum(a)], [sum(b)], 1e-12)

    def test_micro_batches(self):
        for n in (1, 2, 3, 5):
            self.train("m%d" % n, "--micro-batch", n, "--batch", 5, "--aux-coef", 0, "--lr", 0.01,
                       dtype="fp64")
        for n in (1, 2, 3):
            self.assert_close(losses(self.path("m%d" % n)), losses(self.path("m5")), 1e-12)

    def test_balance_loss_of_micro_batches(self):
        """Each micro-batch has its own; the step's is their mean, weighted by tokens."""
        once = ["--lr", 0, "--data-order", "sequential"]
        rest = write_tokens(self.path("rest.bin"), ek_cli.token_ids(1500)[3 * 16:])
        self.train("ragged", *once, "--batch", 5, "--micro-batch", 3, dtype="fp64", steps=1)
        self.train("first", *once, "--batch", 3, dtype="fp64", steps=1)
        self.train("second", *once, "--batch", 2, data=rest, dtype="fp64", steps=1)
        got, a, b = (metrics(self.path(x))[0] for x in ("ragged", "first", "second"))
        for key in ("loss", "aux_loss"):
            self.assert_close([got[key]], [0.6 * a[key] + 0.4 * b[key]], 1e-12)

    def test_recomputation(self):
        for how in ("off", "attention", "full"):
            self.train(how, "--recompute", how, "--lr", 0.01, "--aux-coef", 0.1, dtype="fp64")
        for how in ("attention", "full"):
            self.assertEqual(losses(self.path(how)), losses(self.path("off")))
            self.assertEqual([m["aux_loss"] for m in metrics(self.path(how))],
                             [m["aux_loss"] for m in metrics(self.path("off"))])

    def test_experts_on_disk(self):
        """The weights and moments are those of training in memory, also after a resumption in the
        middle that keeps or changes where they are."""
        self.train("memory", "--save-every", 3, "--lr", 0.01)
        want = [read(os.path.join(ek_cli.newest(self.path("memory")), f))
                for f in ("model.safetensors", "optimizer.safetensors")]
        for i, gradients in enumerate(("memory", "disk")):
            self.train("disk", "--lr", 0.01, "--save-every", 3, "--offload", "experts",
                       "--offload-dir", self.folder, "--offload-gradients", gradients)
            for m in metrics(self.path("disk"))[1:]:
                self.assertGreater(m["disk"]["written_mb"][0], 0)
                self.assertGreaterEqual(m["disk"]["uses"][0], m["disk"]["hits"][0])
                self.assertLess(m["disk"]["wait_ms"][0], m["step_ms"])
            shutil.rmtree(ek_cli.newest(self.path("disk")))
            self.train("disk", "--resume", *(("--offload", "off") if i else ()))
            self.assertEqual([read(os.path.join(ek_cli.newest(self.path("disk")), f))
                              for f in ("model.safetensors", "optimizer.safetensors")], want)
        self.assertEqual([x for x in os.listdir(self.folder) if os.path.isfile(self.path(x))
                          and os.path.getsize(self.path(x)) > 1 << 20], [])  # no scratch file stays

    def test_gradients_on_disk_of_experts_that_ranks_share(self):
        """Likewise with two ranks, whose gradients are summed."""
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")

        def state(out):
            files = ek_cli.tree(ek_cli.newest(self.path(out)))
            return {name: data for name, data in files.items() if name.endswith(".safetensors")}

        for zero in range(4):
            more = ["--ranks", 2, "--zero", zero, "--micro-batch", 2, "--save-every", 3, "--lr", 0.01, "--clip", 0.1]
            self.train("memory", *more)
            want = state("memory")
            self.assertEqual(len(want), 4)
            self.train("disk", *more, "--offload", "experts", "--offload-dir", self.folder, "--offload-gradients", "disk")
            self.assertEqual(losses(self.path("disk")), losses(self.path("memory")))
            for m in metrics(self.path("disk"))[1:]:
                self.assertGreater(min(m["disk"]["written_mb"]), 0)
            shutil.rmtree(ek_cli.newest(self.path("disk")))
            self.train("disk", "--resume", *(("--offload", "off") if zero % 2 else ()))
            self.assertEqual(state("disk"), want)

    def test_chunks_of_rows_with_experts_on_disk(self):
        """The same losses and norms as with as many chunks in memory."""
        more = ["--ranks", 2, "--ep", 2, "--pipeline-degree", 2, "--lr", 0.01, "--balance", "off", "--a2a", "linear"]
        self.train("memory", *more)
        self.train("disk", *more, "--offload", "experts", "--offload-dir", self.folder)
        for key in "loss", "grad_norm":
            self.assertEqual([m[key] for m in metrics(self.path("disk"))], [m[key] for m in metrics(self.path("memory"))])
        self.assertEqual({m["pipeline_degree"] for m in metrics(self.path("disk"))}, {2})
        self.assertGreater(min(metrics(self.path("disk"))[1]["disk"]["written_mb"]), 0)

    def test_experts_on_disk_with_what_they_do_not_go_with(self):
        two = ("--ranks", 2, "--ep", 2)
        for more, word in ((("--elastic",), "--elastic"),
                           (("--offload-dir", self.path("nowhere")), "nowhere"),
                           (("--balance", "place", *two), "moves them"),
                           (("--balance", "prophet", *two), "before"),
                           (("--replicas-min", 2, *two), "leave out --replicas-min")):
            r = run(*self.train_args("x", "--offload", "experts", *more))
            self.assertNotEqual(r.returncode, DONE)
            self.assertIn(word, r.stderr)
            self.assertEqual(len(r.stderr.strip().splitlines()), 1, r.stderr)

    def test_more_tokens_wrap(self):
        """Sequential order wraps around to the first window."""
        data = write_tokens(self.path("short.bin"), ek_cli.token_ids(3 * 16 + 1))
        self.train("run", "--data-order", "sequential", "--batch", 3, "--lr", 0, data=data)
        self.assertEqual(len(set(losses(self.path("run")))), 1)


class Inputs(ek_cli.Case):
    def test_config_file(self):
        settings = {"model": self.config, "data": [self.data], "out": self.path("run"), "steps": 3,
                    "batch": 2, "seq": 16, "threads": 2, "dtype": "fp32", "quiet": True,
                    "lr": 0.5}
        file = write(self.path("settings.json"), json.dumps(settings))
        r = run("train", "--config", file, "--batch", 1, "--lr", 0)
        self.assertEqual((r.returncode, r.stdout, r.stderr), (DONE, "", ""))
        self.assertEqual([m["tokens"] for m in metrics(self.path("run"))], [16] * 3)
        self.assertEqual([m["lr"] for m in metrics(self.path("run"))], [0] * 3)

    def test_token_bytes(self):
        wide = write_tokens(self.path("wide.bin"), ek_cli.token_ids(1500), 4)
        self.train("a")
        self.train("b", "--token-bytes", 4, data=wide)
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))

    def test_several_token_files(self):
        ids = ek_cli.token_ids(1500)
        write_tokens(self.path("1.bin"), ids[:333])
        write_tokens(self.path("2.bin"), ids[333:])
        self.train("a")
        self.train("b", "--data", self.path("2.bin"), data=self.path("1.bin"))
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))

    def test_text_is_bytes_and_an_end(self):
        texts = {"a.txt": "The ship keeps an even keel.\n" * 9, "b/c.md": "Ü and é " * 30}
        ids = []
        for name, text in sorted(texts.items()):
            write(self.path("texts", name), text.encode())
            ids += list(text.encode()) + [256]
        tokens = write_tokens(self.path("texts.bin"), ids)
        for order in ("sequential", "shuffled"):
            self.train("text", "--data-order", order, data=self.path("texts"))
            self.train("bin", "--data-order", order, data=tokens)
            self.assertEqual(losses(self.path("text")), losses(self.path("bin")))

    def cache(self):
        return {n: os.stat(os.path.join(self.tokens, n)).st_ino for n in os.listdir(self.tokens)}

    def test_cache_of_tokens(self):
        text = write(self.path("text.txt"), "All that is gold does not glitter. " * 30)
        self.train("a", data=text)
        first = self.cache()
        self.assertEqual(len(first), 1)
        self.train("b", data=text)
        self.assertEqual(self.cache(), first)
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))
        file = os.path.join(self.tokens, *first)
        damaged = bytearray(ek_cli.read(file))
        damaged[7] ^= 1
        write(file, bytes(damaged))
        self.train("c", data=text)
        self.assertEqual(losses(self.path("a")), losses(self.path("c")))
        write(text, "Not all those who wander are lost. " * 30)
        self.train("d", data=text)
        self.assertEqual(len(self.cache()), 1)
        self.assertNotEqual(losses(self.path("a")), losses(self.path("d")))

    def test_starting_from_weights(self):
        """The loss before the first update is that of the initial weights."""
        self.train("a", "--lr", 0.01, dtype="fp64", steps=10)
        data = write_tokens(self.path("short.bin"), ek_cli.token_ids(4 * 16 + 1))
        want = self.evaluate(self.path("a"), data)["loss"]
        once = ["--data-order", "sequential", "--lr", 0]
        folder = ek_cli.newest(self.path("a"))
        for name, how in {
                "file": ["--init", os.path.join(folder, "model.safetensors")],
                "folder": ["--init", folder],
                "model": ["--model", folder],
                "run": ["--model", self.path("a")],
        }.items():
            self.train(name, *once, *how, data=data, dtype="fp64", steps=1)
            self.assert_close(losses(self.path(name)), [want], 1e-12)
        self.train("random", *once, data=data, dtype="fp64", steps=1)
        self.assertGreater(losses(self.path("random"))[0], want + 0.05)

    def test_going_on_from_the_own_folder(self):
        """--model names the folder that --overwrite replaces: it is read first."""
        self.train("a", "--lr", 0.01, steps=10)
        before = ek_cli.weights(self.path("a"))
        self.train("a", "--model", self.path("a"), "--lr", 0, "--wd", 0, steps=1)
        self.assertEqual(ek_cli.weights(self.path("a")), before)

    def test_capacity(self):
        self.train("a", "--capacity-factor", 0.5, dtype="fp64")
        self.train("b", "--capacity-factor", -0.5, dtype="fp64")
        # 4 sequences, 2 layers: at most ceil(2 * 0.5 * 16 / 4) = 4 places an expert
        for m in metrics(self.path("a")):
            self.assertGreaterEqual(m["dropped"], 4 * 2 * (32 - 16))
        self.assertEqual(losses(self.path("a")), losses(self.path("b")))


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    ek_cli.main()
