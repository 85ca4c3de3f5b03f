"""Runs with --elastic whose layout is chosen: by the command, with --layout auto, or by the run itself, which changes it, from
a pool or what the command has found.  They go on after a killed worker and a lost host, also when that happens during a change.

Losses are those of a run on one rank without failures."""

import json
import os
import re
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
        j = self.on_hosts("--layout auto --layout-every 1000 --save-every 0 --quiet=false --cluster " + cluster)
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
        self.assertEqual(err.count("layouts searched in"), 1, err)  # later starts read what was found
        self.assertRegex(err, "layout --pp 2 .*: number 1 of [0-9]+ in the pool")
        self.assertIn("which stays: the layouts of the pool are of 4 ranks, and there are 2", err)


class Changes(hosts.OwnMemory):
    """By simulation messages alone take time, of which --ep 4 has more than --pp 2.  With --pp 4 too few
    ranks are left without a host."""

    EVERY = 150

    def setUp(self):
        super().setUp()
        self.stop_at = self.path("stop-at")
        ranks.QUIET["EK_STOP_AT"] = self.stop_at
        self.addCleanup(ranks.QUIET.pop, "EK_STOP_AT")

    def pool(self, *options):
        params = ek_cli.run(*self.args((1, "--dry-run --json"), out=self.path("none")))
        self.assertEqual(params.returncode, ranks.DONE, params.stderr)
        options = options or ({"pp": 4}, {"ep": 4}, {"pp": 2})
        return ek_cli.write(self.path("pool.json"), json.dumps(
            {"evenkeel_pool": 1, "ranks": 4, "batch": 4, "seq": 16, "params": json.loads(params.stdout)["params"],
             "layouts": [{"options": {**o, "micro-batch": 2}, "step_ms": i + 1, "memory_mb": 1} for i, o in enumerate(options)]}))

    def layout(self):
        told = json.loads(ek_cli.read(os.path.join(self.out, "run.json")))["settings"]
        return told["pp"], told["ep"]

    def wait_for_change(self, j, has_come):
        """A start that took long, as the machine was busy, makes a change look too dear: then there is another start."""
        begun = self.told().count(b"\n")

        def has_come_now():
            nonlocal begun
            is_late = self.told().count(b"\n") > begun + 4 * self.EVERY
            if has_come():
                return True
            if is_late:
                self.kill_rank(j, 1)
                begun = self.told().count(b"\n")
            return False
        self.wait_until(j, has_come_now, "a change")

    def is_stopped(self, j):
        """Whether rank 0 has stopped itself."""
        return any(ranks.rank_of(pid) == 0 and (ranks.status_of(pid, "State") or "?")[0] == "T" for pid in j.members()[1])

    def lose_during_change(self, j, phase, rank, removed=0):
        """In this phase of rank 0, with the memory of so many ranks removed."""
        ek_cli.write(self.stop_at, phase)
        self.wait_for_change(j, lambda: self.is_stopped(j))
        starts = len(self.generations())
        for segment in self.segments()[:removed]:
            self.remove_segment(segment)
        told = self.told()
        os.unlink(self.stop_at)
        self.kill_rank(j, rank)
        self.wait_for_starts(j, starts + 1)
        j.wait_for_steps(told.count(b"\n") + 5)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertEqual((self.layout(), self.generations()[starts]["from"]), ((1, 4), "checkpoint"))  # that before the change

    def slow_messages(self):
        return ek_cli.write(self.path("cluster.json"), json.dumps(
            {"evenkeel_cluster": 1, "name": "four", "rank": {"machine": {"peak": 2e13, "memory_bytes_s": 1e13, "efficiency": 0.5}},
             "levels": [{"name": "net", "ranks": 4, "gbytes_s": 1000, "us": 1e5}]}))

    def test_losses(self):
        j = self.on_hosts("--quiet=false --save-every 0 --layout-every %d --layout-pool %s --cluster %s" % (
            self.EVERY, self.pool(), self.slow_messages()))
        self.used = list(self.NAMES)
        self.wait_for_ranks(j, 4)
        j.wait_for_steps(5)
        self.assertEqual(self.layout(), (1, 4))  # the first that survives
        self.kill_rank(j, 1)
        self.wait_for_starts(j, 2)
        j.wait_for_steps(self.told().count(b"\n") + 5)
        self.assertEqual(self.layout(), (1, 4))
        told = self.told()
        self.lose_during_change(j, "end", 2, 3)  # the checkpoint is complete; three ranks have removed their memory
        self.lose_during_change(j, "transfer", 3)  # memory is laid out anew, and not filled yet
        self.wait_for_change(j, lambda: self.layout() == (2, 1))
        j.wait_for_steps(self.told().count(b"\n") + 5)
        worker = j.rank(2)
        self.set("down", "c")
        os.kill(worker, signal.SIGKILL)
        shutil.rmtree(self.memories[2])
        self.wait_for_ranks(j, 2)  # of three: two stages of one rank
        j.wait_for_steps(self.told().count(b"\n") + 5)
        self.assertEqual(self.layout(), (2, 1))
        self.unset("down", "c")
        self.wait_for_ranks(j, 4)
        err = self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertEqual(self.layout(), (2, 1), err)
        self.assertEqual({g["steps_again"] for g in self.generations()}, {0}, err)
        starts = [g["from"] for g in self.generations()]
        self.assertEqual(starts[1], "memory", err)
        self.assertEqual(set(starts[1:]), {"memory", "checkpoint"}, err)  # the latter after losses during changes
        self.assertEqual(starts[-2:], ["memory"] * 2, err)  # without a host, and with it again
        self.assertGreaterEqual(err.count("changing to the layout --pp 2 --micro-batch 2: by simulation"), 3, err)
        self.assertIn("which stays: the layouts of the pool are of 4 ranks, and there are 2", err)
        j = self.resume()
        starts = len(self.generations())
        self.wait_for_starts(j, starts + 1)
        j.wait_for_steps(self.told().count(b"\n") + 5)
        self.kill_rank(j, 3)
        self.wait_for_starts(j, starts + 2)
        err = self.assert_done(j)
        numbers = re.findall("layout (--.*): number ([0-9]) of 3 in the pool", err)
        self.assertEqual(set(numbers), {("--pp 2 --micro-batch 2", "3")}, err)
        self.assertGreaterEqual(len(numbers), len(self.generations()) - starts, err)  # a start may fail
        j = self.resume("--micro-batch", 4)
        status, _, err = j.end()
        self.assertEqual(status, ranks.USAGE, err)
        self.assertIn("micro-batch", err)

    def test_a_state_without_room(self):
        """Without --ep a rank has all experts."""
        self.config = ek_cli.write_config(self.path("larger.json"), intermediate_size=5000)
        self.limit_memory("52m")
        j = self.on_hosts("--quiet=false --save-every 0 --replicas-min 1 --layout-every 5 --layout-pool %s --cluster %s" % (
            self.pool({"ep": 4}, {}), self.slow_messages()))
        j.wait_for_words("--micro-batch 2 is not considered: its state takes")
        j.wait_for_words("the layout stays: no other")
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, ranks.INTERRUPTED, err)
        self.assertEqual(self.layout(), (1, 4))

    def resume(self, *more):
        """By its settings alone, and these."""
        j = ranks.Job(self.command, ["train", "--resume", "--out", self.out, "--quiet=false", *more], self.out)
        for end in (j.process.stdout.close, j.process.stderr.close, j.kill):
            self.addCleanup(end)
        return j


ranks.both(globals(), Layout, Changes, first=True)
del Layout, Changes

if __name__ == "__main__":
    ek_cli.main()
