"""A run with --layout auto and --elastic, whose layout the command has chosen: it goes on after a killed worker and a
lost host.

Losses are those of a run on one rank without failures."""

import json
import os
import shutil
import signal

import hosts
import ranks
from ranks import ek_cli

CHOSEN = ("pp", "pp-chunks", "tp", "ep", "etp", "zero", "micro-batch", "recompute")


class Layout(hosts.OwnMemory):
    def best(self, cluster):
        """What a search says, of which the best is a pipeline as the links are slow, and not what is the default."""
        told = json.loads(ek_cli.read(os.path.join(self.out, "run.json")))["settings"]
        words = [w for name in ("model", "batch", "seq", "dtype") for w in ("--" + name, told[name])]
        r = ek_cli.run("search", "--cluster", cluster, "--ranks", 4, "--fix", "micro-batch=2", "--elastic", "--json", *words)
        self.assertEqual(r.returncode, ranks.DONE, r.stderr)
        best = json.loads(r.stdout)["best"][0]["options"]
        self.assertEqual(best["pp"], 2)
        return [[str(settings[name]) for name in CHOSEN] for settings in (best, told)]

    def test_losses(self):
        cluster = ek_cli.write(self.path("cluster.json"), json.dumps(
            {"evenkeel_cluster": 1, "name": "four", "rank": {"machine": {"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}},
             "levels": [{"name": "net", "ranks": 4, "gbytes_s": 0.01, "us": 10}]}))
        j = self.on_hosts("--layout auto --save-every 0 --quiet=false --cluster " + cluster)
        self.used = list(self.NAMES)
        self.wait_for_ranks(j, 4)
        j.wait_for_steps(5)
        self.assertEqual(*self.best(cluster))
        told = self.told()
        self.kill_rank(j, 1)
        j.wait_for_steps(told.count(b"\n") + 5)
        worker = j.rank(2)
        self.set("down", "c")
        os.kill(worker, signal.SIGKILL)
        shutil.rmtree(self.memories[2])
        self.wait_for_ranks(j, 2)  # two stages of one rank
        told = self.told()
        j.wait_for_steps(told.count(b"\n") + 5)
        self.unset("down", "c")
        err = self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertEqual({g["from"] for g in self.generations()[1:]}, {"memory"}, err)
        self.assertIn("info: the run's layout: --pp 2 ", err)


ranks.both(globals(), Layout, first=True)
del Layout

if __name__ == "__main__":
    ek_cli.main()
