"""train --dry-run: describes the run, refuses what the run would refuse, and creates no files."""

import json
import os
import re
import socket

import ek_cli
from ek_cli import BAD_INPUT, DONE, FAILED, USAGE, run


class DryRun(ek_cli.Case):
    def dry(self, *more, status=DONE, **kw):
        """The plan as JSON; no file has changed."""
        before = ek_cli.tree(self.folder)
        r = run(*self.train_args("run", "--dry-run", "--json", *more, **kw))
        self.assertEqual(r.returncode, status, r.stderr)
        self.assertEqual(ek_cli.tree(self.folder), before)
        return json.loads(r.stdout) if status == DONE else r

    def test_it_is_what_the_run_does(self):
        plan = self.dry(dtype="fp32", steps=5)
        r = run(*self.train_args("run", "--json", dtype="fp32", steps=5))
        self.assertEqual(r.returncode, DONE, r.stderr)
        s = json.loads(r.stdout)
        for key in ("params", "active_params", "steps"):
            self.assertEqual(plan[key], s[key])
        self.assertEqual(plan["memory"]["least_mb"], plan["memory"]["most_mb"])
        self.assertLess(abs(plan["memory"]["most_mb"] - s["predicted_rss_mb"]), 4)
        self.assertEqual((plan["data_tokens"], plan["step_tokens"]), (1500, 64))
        self.assertAlmostEqual(plan["epochs"], 5 * 64 / 1500)
        self.assertEqual(sorted(plan["files"].replace("/", "").split(", ")),
                         sorted(os.listdir(self.path("run"))))
        folder = ek_cli.newest(self.path("run"))
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)
                   if f.endswith(".safetensors"))
        self.assertLess(abs(plan["disk"]["checkpoint_bytes"] - size), 0.1 * size)

    def test_copies_for_runs_on_several_hosts(self):
        hosts = ek_cli.write(self.path("hosts"), "a:2\nb:2\n")
        words = ["--ranks", 4, "--zero", 1, "--hosts", hosts]
        without, copies = self.dry(*words, "--elastic=false"), self.dry(*words)
        self.assertNotIn("partner_copies_mb", without)
        self.assertAlmostEqual(copies["partner_copies_mb"], 16 * copies["params"] / 4e6, delta=0.1)
        self.assertAlmostEqual(copies["memory"]["most_mb"] - without["memory"]["most_mb"],
                               copies["partner_copies_mb"], delta=8)  # the process itself varies
        self.assertIn("\npartners    on other hosts have copies of what one host has: ",
                      run(*self.train_args("run", "--dry-run", *words)).stdout)
        r = self.dry(*words, "--memory-limit", "1M", status=FAILED)
        self.assertIn("B a rank are copies of shards of other hosts, for --elastic; --elastic=false does without", r.stderr)
        err = run(*self.train_args("run", "--dry-run", "--ranks", 4, "--ep", 4, "--hosts", hosts)).stderr
        self.assertIn("every expert is on two hosts (--replicas-min 2 --spare-slots", err)
        self.assertIn("unless they are predicted to lengthen a step by more than 5 %", err)

    def test_copies_of_stages_that_one_host_alone_has(self):
        """Of two ranks with the same weights one is copied."""
        self.config = ek_cli.write_config(self.path("larger.json"), intermediate_size=10000)
        hosts = ek_cli.write(self.path("hosts"), "a:2\nb:2\n")
        words = ["--ranks", 4, "--pp", 2, "--threads", 1, "--hosts", hosts]
        without, copies = self.dry(*words, "--elastic=false"), self.dry(*words)
        self.assertAlmostEqual(copies["partner_copies_mb"], 16 * copies["params"] / 2e6, delta=0.05 * copies["partner_copies_mb"])
        more = copies["memory"]["most_mb"] - without["memory"]["most_mb"]
        self.assertGreater(more, 0.9 * copies["partner_copies_mb"])
        self.assertLess(more, 1.6 * copies["partner_copies_mb"])  # the process itself varies, and a bucket for each expert
        r = run(*self.train_args("run", "--dry-run", *words, "--memory-limit",
                                 "%dM" % (copies["memory"]["most_mb"] - more / 2)))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertRegex(r.stderr, r"a copy of all that its ranks keep takes [\d.]+ [kM]B a rank, for which there is no memory: "
                         "a smaller --micro-batch, --recompute full, more memory")
        kept = "experts stay where they are, as some ranks have a copy"  # for which there is memory
        words = ["--ranks", 4, "--tp", 4, "--ep", 2, "--balance", "place", "--hosts", hosts, "--elastic", "--memory-limit"]
        self.assertIn(kept, run(*self.train_args("run", "--dry-run", *words, "1G")).stderr)
        err = run(*self.train_args("run", "--dry-run", *words, "60M")).stderr
        self.assertIn("for which there is no memory", err)
        self.assertNotIn("experts stay", err)

    def test_memory_that_outlives_processes(self):
        """With that for experts that arrive, of two layers, which is not in the memory of a process."""
        ff = 10000
        self.config = ek_cli.write_config(self.path("larger.json"), intermediate_size=ff)
        plain, elastic = (self.dry("--ranks", 2, "--ep", 2, "--threads", 1, w)["memory"]["most_mb"]
                          for w in ("--elastic=false", "--elastic"))
        expert = 3 * ek_cli.CONFIG["hidden_size"] * ff * 3 * 8 / 1e6  # in fp64, with two moments
        self.assertAlmostEqual(elastic - plain, 2 * 2 * expert, delta=5)  # two experts a rank; not in its spare slot; processes differ

    def test_all_files(self):
        more = ["--eval-data", self.data, "--timeline", "--record-routing", "--save-every", 2]
        plan = self.dry(*more)
        self.train("run", *more)
        self.assertEqual(sorted(plan["files"].replace("/", "").split(", ")),
                         sorted(os.listdir(self.path("run"))))
        self.assertEqual(plan["disk"]["checkpoints_most"], 4)
        self.assertEqual((plan["eval_every"], plan["eval_windows"]), (1, 94))

    def test_ranks_are_laid_out_without_being_started(self):
        one = self.dry()
        parts = self.dry("--ranks", 2, "--pp", 2)
        self.assertEqual(parts["layout"], {"ranks": 2, "pp": 2, "pp_layers": "1,1", "dp": 1, "tp": 1,
                                           "edp": 1, "ep": 1, "etp": 1, "zero": 0})
        self.assertEqual(parts["disk"]["checkpoint_bytes"], one["disk"]["checkpoint_bytes"])
        self.assertGreater(parts["memory"]["host_mb"], parts["memory"]["most_mb"])
        text = run(*self.train_args("run", "--dry-run", "--ranks", 2, "--pp", 2, "--pp-layers", "measured")).stdout
        self.assertIn("stages      1,1 layers, as with auto: nothing is measured here\n", text)
        many = self.dry("--ranks", 12, "--ep", 4, "--tp", 2, "--zero", 1)
        self.assertEqual([many["layout"][k] for k in ("dp", "edp", "ep", "zero")], [6, 3, 4, 1])
        elastic = self.dry("--ranks", 2, "--ep", 2, "--elastic")["files"]
        self.assertTrue(elastic.endswith("generations.jsonl, machine.json"), elastic)
        # more ranks than there are cores to start them on, elsewhere
        hosts = ek_cli.write(self.path("hosts"), "a\nb\n")
        self.assertEqual(self.dry("--ranks", 300, "--hosts", hosts)["layout"]["dp"], 300)
        big = ek_cli.write_config(self.path("big.json"), hidden_size=4096, head_dim=2048,
                                  intermediate_size=8192, num_local_experts=64,
                                  num_hidden_layers=8)
        r = self.dry("--model", big, "--ranks", 4, "--ep", 4, status=FAILED)
        self.assertRegex(r.stderr, r"needs about [\d.]+ [kMGT]B of memory, and [\d.]+ [MGT]B are available")
        plan = self.dry("--model", big, "--ranks", 4, "--ep", 4, "--hosts", hosts)
        self.assertGreater(plan["memory"]["least_mb"], 100000)

    def test_replicas_are_kept_where_memory_allows(self):
        config = ek_cli.write_config(self.path("c.json"), num_hidden_layers=6, hidden_size=1024,
                                     intermediate_size=2048, num_local_experts=8)
        some = ["--model", config, "--ranks", 4, "--ep", 4, "--dtype", "bf16"]
        expert = 3 * 1024 * 2048 * 2 / 1e6
        plan = self.dry(*some)
        most, more = plan["memory"]["most_mb"], plan["replicas"]["keeping_mb"]
        self.assertTrue(plan["replicas"]["kept"])
        self.assertTrue(4 * expert < more + 0.1 and more < 5 * expert + 0.1, more) # with two forms 5
        self.assertIn("are kept until backward", run(*self.train_args("run", "--dry-run", *some)).stdout)
        less = [*some, "--memory-limit", int((most - more / 2) * 1e6)]
        plan = self.dry(*less)
        self.assertFalse(plan["replicas"]["kept"])
        self.assertEqual(plan["replicas"]["keeping_mb"], more)
        self.assertLess(plan["memory"]["most_mb"], most - more / 2)
        self.assertIn("are sent again for backward", run(*self.train_args("run", "--dry-run", *less)).stdout)
        self.assertNotIn("replicas", self.dry(*some, "--balance", "off"))

    def test_experts_on_disk(self):
        model = ek_cli.write_config(self.path("model.json"), num_local_experts=8, hidden_size=64,
                                    intermediate_size=1200, num_hidden_layers=6)
        more = ["--model", model, "--offload", "experts", "--offload-dir", self.path("disk"),
                "--offload-gradients", "disk", "--micro-batch", 4, "--seq", 8]
        os.mkdir(self.path("disk"))
        whole = self.dry(*more)
        self.assertEqual([whole["offload"][k] for k in ("entries", "buckets", "hits", "read_mb")], [6, 6, 1, 0])
        each = 16 * 8 * 3 * 64 * 1200 / 1e6 + 15  # of an entry: with forms
        more += ["--memory-limit", int(1e6 * (whole["memory"]["most_mb"] - 1.3 * each))]  # too little for 6
        text = run(*self.train_args("run", "--dry-run", *more)).stdout
        plan = self.dry(*more)["offload"]
        r = run(*self.train_args("run", *more, steps=4))
        self.assertRegex(r.stderr, r"step 4/4 .*  experts \d+ % in memory, bound by (compute|disk|memory) \(waits \d+ %\)  ")
        line = json.loads(ek_cli.read(self.path("run", "metrics.jsonl")).splitlines()[-1])
        took = line["disk"]
        waits = sum(map(sum, line["disk_layers"].values()))
        self.assertEqual([len(x) for x in line["disk_layers"].values()], [6, 6])
        self.assertAlmostEqual(waits, took["wait_ms"][0], delta=1)
        self.assertLessEqual(took["memory_wait_ms"][0], took["wait_ms"][0])
        self.assertGreater(min(took["reads"] + took["writes"]), 0)
        for key in ("read_mb", "written_mb"):
            self.assertAlmostEqual(plan[key], took[key][0], delta=0.06)
        self.assertAlmostEqual(plan["hits"], took["hits"][0] / took["uses"][0], places=9)
        self.assertEqual((plan["folder"], plan["gradients"]), (self.path("disk"), True))
        self.assertGreaterEqual(plan["scratch_host_mb"], 6 * 8 * 3 * 64 * 1200 * 16 / 1e6)
        self.assertRegex(text, r"experts     on disk, in .*disk: \d+ MB; .*B are free\n")
        self.assertRegex(text, r"a step reads [\d.]+ .?B and writes [\d.]+ .?B; ")
        two = self.dry(*more, "--ranks", 2, "--ep", 2)["offload"]
        self.assertAlmostEqual(two["scratch_least_mb"], plan["scratch_most_mb"] / 2)
        self.assertAlmostEqual(two["scratch_host_mb"], plan["scratch_host_mb"])
        self.assertNotIn("offload", self.dry())

    def test_gradients_on_disk_of_experts_that_ranks_share(self):
        """Bytes a parameter of two ranks' experts in steps of two micro-batches: state of 12 and gradients of 4, which
        both ranks write whole until they are summed, or with ZeRO in halves."""
        if ek_cli.mpiexec() is None:
            self.skipTest("no MPI is built in, or its mpiexec is missing")
        model = ek_cli.write_config(self.path("model.json"), num_local_experts=8, hidden_size=64, vocab_size=300,
                                    intermediate_size=1000, num_hidden_layers=8)
        more = ["--model", model, "--offload", "experts", "--offload-dir", self.folder, "--offload-gradients", "disk",
                "--batch", 8, "--micro-batch", 4, "--seq", 8, "--ranks", 2, "--dtype", "fp32"]
        params = 8 * 8 * 3 * 64 * 1000
        for zero, scratch, written in ((0, 16, 12 + 8), (1, 6 + 4, 6 + 4 + 2), (2, 8, 6 + 4), (3, 8, 6 + 4)):
            with self.subTest(zero=zero):
                mode = [*more, "--zero", zero]
                whole = self.dry(*mode, "--memory-limit", "2G")["memory"]["most_mb"]
                mode += ["--memory-limit", int(1e6 * (whole - 60))]
                plan = self.dry(*mode)["offload"]
                self.assertEqual((plan["gradients"], plan["buckets"]), (True, 8))
                self.assertLess(plan["entries"], 8)
                self.assertAlmostEqual(plan["scratch_most_mb"], params * scratch / 1e6, delta=1)
                self.assertAlmostEqual(plan["written_mb"], params * written / 1e6, delta=1)
                self.assertEqual(run(*self.train_args("run", *mode, steps=4)).returncode, 0)
                took = json.loads(ek_cli.read(self.path("run", "metrics.jsonl")).splitlines()[-1])["disk"]
                for rank in range(2):  # what is read depends on how many entries two processes have room for
                    self.assertAlmostEqual(plan["written_mb"], took["written_mb"][rank], delta=0.06)
                    self.assertGreater(took["read_mb"][rank], 0)

    def test_what_is_refused(self):
        """With the message and the status of the real run."""
        def told(r):
            text = re.sub(r"rank \d+ on %s: " % re.escape(socket.gethostname()), "", r.stderr)
            return text.splitlines()[-1:]

        big = ek_cli.write_config(self.path("big.json"), vocab_size=200)
        self.train("old", steps=2)
        for more in (["--ep", 3], ["--top-k", 3], ["--seq", 100], ["--data", self.path("no.bin")],
                     ["--data", big + ":0.5", self.data],
                     ["--model", self.path("nothing")],
                     ["--init", self.path("nothing")], ["--out", self.path("old")],
                     ["--out", self.path("old"), "--resume", "--lr", 0.5],
                     ["--offload", "experts", "--offload-dir", self.path("nowhere")],
                     ["--out", self.path("none"), "--resume"], ["--eval-data", self.path("no.bin")],
                     ["--lr", "x"]):
            with self.subTest(more=more):
                args = [a for a in self.train_args("run", *more) if a != "--overwrite"]
                real, dry = run(*args), run(*args, "--dry-run")
                self.assertIn(dry.returncode, (USAGE, BAD_INPUT, FAILED))
                self.assertEqual((dry.returncode, told(dry)), (real.returncode, told(real)))
                self.assertFalse(os.path.exists(self.path("run")))

    def test_memory_that_is_not_there(self):
        """The message is that of the rank that detects it, whichever is first."""
        big = ek_cli.write_config(self.path("big.json"), hidden_size=8192, num_local_experts=64,
                                  intermediate_size=24576, num_hidden_layers=4)
        for _ in range(5):
            r = run(*self.train_args("run", "--model", big, "--ranks", 4, "--threads", 1, "--dry-run"))
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertRegex(r.stderr, r"\Aevenkeel train: the run needs about .*\n\Z")

    def test_resumed(self):
        self.train("run", "--lr", 0.01, steps=4)
        before = ek_cli.tree(self.folder)
        r = run("train", "--resume", "--out", self.path("run"), "--steps", 9, "--dry-run")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("steps       4 to 9", r.stdout)
        self.assertEqual(ek_cli.tree(self.folder), before)

    def test_weights_are_held_against_the_model(self):
        self.train("old", steps=1)
        self.dry("--init", os.path.join(ek_cli.newest(self.path("old")), "model.safetensors"))
        other = ek_cli.write_config(self.path("other.json"), intermediate_size=32)
        r = self.dry("--model", other, "--init",
                     os.path.join(ek_cli.newest(self.path("old")), "model.safetensors"),
                     status=BAD_INPUT)
        self.assertIn("model.safetensors", r.stderr)

    def test_texts(self):
        """Their tokens are cached for the run, and nothing else is written."""
        text = ek_cli.write(self.path("texts", "a.txt"), "some text, and more of it\n" * 40)
        self.dry(data=os.path.dirname(text))
        self.assertNotEqual(ek_cli.tree(self.tokens), {})


if __name__ == "__main__":
    ek_cli.main()
