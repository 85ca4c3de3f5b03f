"""Which runs on several hosts are elastic without --elastic; with a program that replaces
mpiexec."""

import json
import os
import re
import shutil
import subprocess

import ek_cli
from ek_cli import DONE, FAILED, write
import t_launch


class ElasticByDefault(t_launch.Case):
    TWO = "a:2\nb:2\n"

    def check(self, hosts, args, wanted, said=""):
        """Whether a run on these hosts is elastic, and what stderr has of it."""
        r = self.launch_plain("--hosts", write(self.path("hosts"), hosts), *args)
        self.assertEqual(r.returncode, DONE, r.stderr)
        argv, env = json.loads(r.stdout)
        self.assertEqual("elastic=" in env["EK_LAUNCHED"], wanted)
        self.assertEqual(argv[-1] == "--elastic", wanted, argv)
        lines = [line for line in r.stderr.splitlines()
                 if not line.startswith("evenkeel train: waiting for ")]  # on a busy machine
        self.assertEqual(len(lines), 1 if said else 0, r.stderr)
        self.assertIn(said, r.stderr)
        shutil.rmtree(self.path("run"), ignore_errors=True)

    def test_several_hosts(self):
        self.check(self.TWO, (), True, "info: several hosts: --elastic is on")
        self.check(self.TWO, ("--quiet",), True)
        self.check(self.TWO, ("--elastic=false",), False)

    def test_one_host(self):
        self.check("a:4\n", (), False)
        self.check(self.TWO, ("--ranks", 2), False)  # both on the first of them

    def test_parts_of_the_model_on_one_host(self):
        """These have copies.  Where too few ranks are left for the layout, the run goes on with --resume."""
        goes_on = "info: several hosts: --elastic is on, so that training goes on when one is lost"
        waits = "a run that ends with the loss of one, as too few ranks are left for --pp, --tp and --etp, goes on with --resume"
        self.check(self.TWO, ("--pp", 2, "--ranks", 4), True, goes_on)
        self.check("a\nb:2\nc\n", ("--pp", 2), True, goes_on)
        self.check(self.TWO, ("--tp", 2), True, goes_on)
        self.check("a\nb\n", ("--tp", 2), True, waits)
        self.check("a\nb\n", ("--pp", 2), True, waits)
        self.check("a\nb\nc\n", ("--pp", 2, "--ranks", 2), True, goes_on)  # on the third

    def test_options_that_it_does_not_go_with(self):
        self.check(self.TWO, ("--zero", 1), True, "info: several hosts")  # partners have copies
        self.check(self.TWO, ("--embed-columns",), True, "info: several hosts")
        for args, name in ((("--device", "cuda"), "--device"),
                           (("--offload", "experts"), "--offload"), (("--overwrite",), "--overwrite"),
                           (("--batch-shares", "1,1,1,1"), "a list of --batch-shares")):
            with self.subTest(name):
                self.check(self.TWO, args, False, "as it does not go with " + name)

    def cluster(self):
        return write(self.path("cluster.json"), json.dumps(
            {"evenkeel_cluster": 1, "name": "two", "rank": {"machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}},
             "levels": [{"name": "node", "ranks": 2, "gbytes_s": 50, "us": 1},
                        {"name": "net", "ranks": 4, "gbytes_s": 0.01, "us": 10}]}))

    def test_no_layout_that_survives_fits(self):
        """The run then has another layout, without --elastic, unless that is given."""
        def launch(limit, *more):
            return self.launch_plain("--hosts", write(self.path("hosts"), self.TWO), "--layout", "auto", "--cluster", self.cluster(),
                                     "--batch", 8, "--micro-batch", 4, "--memory-limit", limit, *more)

        def least(*more):
            r = launch("10K", "--ranks", 4, "--dry-run", *more)
            self.assertEqual(r.returncode, FAILED, r.stderr)
            return float(re.search(r"the smallest needs ([0-9.]+) MB", r.stderr)[1])
        self.assertLess(least("--elastic=false"), least("--elastic") - 0.02)
        between = round(5e5 * (least("--elastic=false") + least("--elastic")))
        r = launch(between, "--elastic")
        self.assertEqual(r.returncode, FAILED, r.stderr)
        self.assertRegex(r.stderr, "none of [0-9]+ layouts that survive the loss of any host fits in .*--elastic=false")
        r = launch(between, "--quiet")
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertEqual(r.stderr.count("the loss of a host ends this run"), 1, r.stderr)
        self.assertIn("the loss of a host ends this run: --elastic is not on by default, as no layout", r.stderr)
        argv, env = json.loads(r.stdout)
        self.assertIn("--elastic=false", argv)
        self.assertNotIn("--elastic", argv)
        self.assertNotIn("elastic=", env["EK_LAUNCHED"])
        argv = dict(zip(argv, argv[1:]))  # of several the last
        self.assertEqual((argv["--layout"], argv["--micro-batch"]), ("given", "4"))
        argv = json.loads(launch(between, "--layout-every", 5).stdout)[0]  # workers search
        self.assertIn("--elastic=false", argv)
        self.assertEqual(dict(zip(argv, argv[1:]))["--layout"], "auto")
        self.assertNotIn("--layout-pool", argv)
        self.assertEqual(launch("10K").returncode, FAILED)  # none fits
        pool = self.path("pool.json")  # of pipelines alone, for which one of these hosts has too few ranks
        write(self.path("hosts"), "a:3\nb:1\n")
        r = ek_cli.run("search", "--cluster", self.cluster(), "--ranks", 4, "--model", self.config, "--batch", 8, "--seq", 16,
                       "--fix", "pp=2", "--pool", pool)
        self.assertEqual(r.returncode, DONE, r.stderr)
        shutil.rmtree(self.path("run"), ignore_errors=True)
        from_pool = ("--hosts", self.path("hosts"), "--layout-pool", pool, "--batch", 8)
        r = self.launch_plain(*from_pool)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("as no layout can be chosen that survives it", r.stderr)
        self.assertIn("--elastic=false", json.loads(r.stdout)[0])
        r = self.launch_plain(*from_pool, "--elastic")
        self.assertEqual(r.returncode, ek_cli.USAGE, r.stderr)

    def test_a_layout_is_chosen_that_survives(self):
        """Links between the hosts are slow: of all layouts the best is a pipeline, each stage of which is on one of them.
        Of three ranks on the first of them one is left without it."""
        cluster = self.cluster()
        layout = ("--layout", "auto", "--cluster", cluster, "--batch", 8, "--micro-batch", 4)
        hosts = write(self.path("hosts"), self.TWO)

        def chosen(*more, dry=False):
            r = self.launch_plain("--hosts", hosts, *layout, *more)
            self.assertEqual(r.returncode, DONE, r.stderr)
            shutil.rmtree(self.path("run"), ignore_errors=True)
            if dry:
                return r.stdout
            argv = json.loads(r.stdout)[0]
            return dict(zip(argv, argv[1:])), r.stderr  # of several the last
        argv, err = chosen()
        self.assertEqual((argv["--pp"], argv["--micro-batch"], argv["--layout"]), ("2", "4", "given"))
        self.assertIn("info: the run's layout: ", err)
        self.assertIn("info: several hosts: --elastic is on", err)

        argv, err = chosen("--layout-every", 5)  # workers choose of what was searched here, and change
        self.assertIn("info: several hosts: --elastic is on", err)
        self.assertEqual((argv["--layout"], argv["--layout-pool"]), ("pool", self.path("run", "layout-pool.json")))
        self.assertFalse({"--pp", "--ep", "--zero"} & set(argv), argv)

        def best(fixed):
            r = ek_cli.run("search", "--cluster", cluster, "--ranks", 4, "--model", self.config, "--batch", 8, "--seq", 16,
                           "--dtype", "fp32", "--fix", fixed, "--elastic", "--json")
            return {"--" + k: str(v) for k, v in json.loads(r.stdout)["best"][0]["options"].items()}
        self.assertEqual(best("micro-batch=4")["--pp"], "2")
        argv, _ = chosen("--elastic")
        wanted = best("micro-batch=4")  # with copies of its stages
        self.assertEqual({k: argv[k] for k in wanted}, wanted)
        pools = []
        for fixed in ("micro-batch=4", "micro-batch=4,pp=1"):
            r = ek_cli.run("search", "--cluster", cluster, "--ranks", 4, "--model", self.config, "--batch", 8, "--seq", 16,
                           "--fix", fixed, "--pool", self.path("pool.json"))
            self.assertEqual(r.returncode, DONE, r.stderr)
            pools.append(json.loads(ek_cli.read(self.path("pool.json"))))
        uneven = write(self.path("uneven"), "a:3\nb:1\n")
        without = [p["layouts"][0]["options"] for p in pools]
        self.assertNotEqual(*without)
        pools[0]["layouts"] += pools[1]["layouts"]
        write(self.path("pool.json"), json.dumps(pools[0]))
        for of, first in ((hosts, without[0]), (uneven, without[1])):  # of those that survive
            from_pool = ("--hosts", of, "--layout-pool", self.path("pool.json"), "--batch", 8)
            r = self.launch_plain(*from_pool)
            self.assertEqual(r.returncode, DONE, r.stderr)
            argv = json.loads(r.stdout)[0]
            self.assertEqual({k: dict(zip(argv, argv[1:]))["--" + k] for k in first}, {k: str(v) for k, v in first.items()})
            shutil.rmtree(self.path("run"), ignore_errors=True)
        changes = (*from_pool, "--layout-every", 5, "--cluster", cluster)
        r = self.launch_plain(*changes)  # workers choose the layout, and change it
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("info: several hosts: --elastic is on", r.stderr)
        argv = json.loads(r.stdout)[0]
        self.assertIn("--elastic", argv)
        self.assertFalse(({"--" + k for k in first} | {"--layout"}) & set(argv), argv)
        shutil.rmtree(self.path("run"), ignore_errors=True)
        write(self.path("pool.json"), json.dumps({**pools[0], "layouts": pools[0]["layouts"][:1]}))  # that does not
        r = self.launch_plain(*changes)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("as no layout can be chosen that survives it", r.stderr)
        argv = json.loads(r.stdout)[0]
        self.assertIn("--elastic=false", argv)
        self.assertNotIn("--layout", argv)
        shutil.rmtree(self.path("run"), ignore_errors=True)
        r = self.launch_plain(*from_pool, "--ranks", 2, "--elastic")
        self.assertEqual(r.returncode, ek_cli.USAGE, r.stderr)
        self.assertIn("its layouts are of 4 ranks, and there are 2", r.stderr)
        argv, _ = chosen("--elastic=false")  # by workers, among all
        self.assertNotIn("--pp", argv)
        dry = chosen("--ranks", 4, "--dry-run", dry=True)
        self.assertIn("pp 2, ", dry)
        for micro in (2, 4):  # the best of all; that of a run that is continued
            command, env = self.fake(self.SCRIPT, "--hosts", hosts, *layout[:-2], "--elastic", ranks=4)
            r = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=ek_cli.TIMEOUT_S)
            self.assertEqual(r.returncode, DONE, r.stderr)
            argv = json.loads(r.stdout)[0]
            self.assertEqual(dict(zip(argv, argv[1:]))["--micro-batch"], str(micro))
            self.train("run", "--batch", 8, "--micro-batch", 4)
        shutil.rmtree(self.path("run"))
        r = self.launch_plain(*layout, "--discover", "true", "--elastic")
        self.assertEqual(r.returncode, ek_cli.USAGE, r.stderr)
        self.assertIn("give --hosts instead of --discover", r.stderr)

    def test_copies_of_a_stage_that_do_not_fit(self):
        """The next layout of the pool is taken; a search leaves it out by itself, and says what a copy takes."""
        hosts = write(self.path("hosts"), self.TWO)

        def search(fixed, *more):
            return ek_cli.run("search", "--cluster", self.cluster(), "--ranks", 4, "--model", self.config, "--batch", 8, "--seq", 16,
                              "--dtype", "fp32", "--fix", fixed + ",micro-batch=4,recompute=off", *more)

        def layout(fixed, *more):
            r = search(fixed, "--json", *more)
            self.assertEqual(r.returncode, DONE, r.stderr)
            return json.loads(r.stdout)["best"][0]
        pipeline = "pp=2,tp=1,ep=1,etp=1,zero=0"
        needs, with_copies = layout(pipeline)["memory_mb"], layout(pipeline, "--elastic")["memory_mb"]
        limit = ("--memory-limit", round(5e5 * (needs + with_copies)))
        r = search(pipeline, "--elastic", *limit)
        self.assertEqual(r.returncode, FAILED, r.stderr)
        self.assertRegex(r.stderr, r"the smallest needs [\d.]+ [kM]B \(--pp 2 --micro-batch 4\), [\d.]+ [kM]B of it for a copy of what "
                         "one host alone would have")
        pool = json.loads(ek_cli.read(self.pool(search, "pp=2,pp=1,tp=1,ep=1,ep=4,etp=1,zero=0,zero=3")))
        pool["layouts"] = [{"options": {"pp": 2, "micro-batch": 4}, "step_ms": 1, "memory_mb": 1},
                           {"options": {"ep": 4, "zero": 3, "micro-batch": 4}, "step_ms": 2, "memory_mb": 1}]
        path = write(self.path("pool.json"), json.dumps(pool))
        words = ("--hosts", hosts, "--layout-pool", path, "--batch", 8)
        for more, pp in (((), "2"), (limit, "1")):
            r = self.launch_plain(*words, *more)
            self.assertEqual(r.returncode, DONE, r.stderr)
            shutil.rmtree(self.path("run"), ignore_errors=True)
            argv = json.loads(r.stdout)[0]
            self.assertEqual(dict(zip(argv, argv[1:]))["--pp"], pp)
            self.assertEqual(bool(re.search(r"warning: --pp 2 --micro-batch 4 of the pool is left out: one host alone would have a part "
                                            r"of a stage, and with a copy of that on another one a rank needs [\d.]+ [kM]B, more than "
                                            r"--memory-limit, [\d.]+ [kM]B", r.stderr)), pp == "1", r.stderr)

    def pool(self, search, fixed):
        r = search(fixed, "--pool", self.path("pool.json"))
        self.assertEqual(r.returncode, DONE, r.stderr)
        return self.path("pool.json")

    def test_lists_of_hosts(self):
        self.check(self.TWO, ("--ranks", 5), False, "--ranks is more than the slots of the hosts")
        self.check("a\nb\nc\nd\n", ("--ranks", 8), True, "info: several hosts")  # two on each
        self.check("a:1\nb\n", ("--ranks", 8), False, "--ranks is more than the slots of the hosts")
        self.check("a\nb\na\n", (), False, "a host is in the list twice")
        self.check("a\na\n", (), False)

    def test_shared_memory_that_is_too_small(self):
        """The run starts once more, without --elastic."""
        hosts = write(self.path("hosts"), self.TWO)
        r = self.launch_plain("--hosts", hosts, script='''
if "--elastic" in sys.argv: ready(4); note("noroom 0"); note("failed 1 rank 0"); line("too small"); sys.exit(1)
put(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n", 1)''')
        self.assertEqual(r.returncode, DONE, r.stderr)
        argv, env = json.loads(r.stdout)
        self.assertNotIn("--elastic", argv)
        self.assertNotIn("elastic=", env["EK_LAUNCHED"])
        said = r.stderr.splitlines()
        self.assertEqual([x.split(":")[0] for x in said], ["info", "too small", "warning"], said)
        self.assertIn("starts without --elastic", said[2])

    def test_an_earlier_run(self):
        write(self.path("earlier", "metrics.jsonl"), "{}\n")
        earlier = ("--out", self.path("earlier"))
        self.check(self.TWO, earlier, False)  # workers refuse to replace it


if __name__ == "__main__":
    ek_cli.main()
