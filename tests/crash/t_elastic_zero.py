"""--elastic runs that shard state over data-parallel ranks (--zero, --embed-columns): a partner on
another host has a copy of each shard, so that no step is lost with a host, nor repeated when workers are killed.

Losses are those of a run on one rank without failures."""

import json
import os
import random
import signal
import time

import hosts
import ranks
from ranks import ek_cli


class Zero(hosts.OwnMemory):
    LOST = ("--embed-columns --tp 2", "--zero 1 --ep 2 --replicas-min 2", "--zero 2 --ep 4 --embed-columns",
            "--zero 3 --pp 2 --balance off")
    if os.environ.get("EK_TEST_ALL"):
        LOST += tuple("--zero %d %s" % (zero, layout) for zero in (1, 2, 3)
                      for layout in ("--balance off", "--ep 2 --balance exact", "--ep 2 --tp 2", "--pp 2 --tp 2"))
        LOST += ("--embed-columns --ep 4", "--embed-columns --ep 2 --pp 2", "--embed-columns --zero 3")

    def lose_and_go_on(self, j, host="b"):
        """Loses a host, whose shards only its partners have then; returns the lines of steps."""
        told = self.told()
        self.lose_with_memory(j, host)
        self.wait_until(j, lambda: self.generations()[-1]["ranks"] < 4, "fewer ranks")
        j.wait_for_steps(told.count(b"\n") + 5)
        return told

    def test_a_lost_host(self):
        for words in self.LOST:
            with self.subTest(words=words):
                j = self.start_named(words)
                j.wait_for_steps(20)
                told = self.lose_and_go_on(j)
                self.unset("down", "b")
                self.assert_went_on(told, self.assert_done(j))

    def test_killed_in_the_update_of_a_copy(self):
        """The next start completes it; then the host of the original is lost, which proves the copy."""
        self.config = ek_cli.write_config(self.path("large.json"), num_hidden_layers=3, vocab_size=2000)
        self.lr, self.shared_steps = 2e-4, 50
        for words in ("--zero 1", "--embed-columns"):
            with self.subTest(words=words):
                j = self.start_named(words)
                j.wait_for_steps(5)
                # the embedding, whose bucket is the first one: the copy is the extent after the rank's own part
                worker = self.stop_in_update(j, 1, self.segments()[1], {1})
                told = self.told()
                os.kill(worker, signal.SIGKILL)
                j.wait_for_steps(told.count(b"\n") + 3)
                self.assertTrue(self.told().startswith(told), "a step was taken again")
                told = self.lose_and_go_on(j, "a")  # rank 1 is the partner of rank 0
                self.unset("down", "a")
                self.assert_went_on(told, self.assert_done(j))

    def test_bytes_are_those_that_are_simulated(self):
        """Of partners' copies, and of copies of each expert: one serves even loads, with eplb all."""
        cluster = self.write_cluster({"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}, 1, 10)
        for layout in ("--zero 1 --ep 2 --balance off", "--zero 3 --pp 2 --balance off", "--embed-columns --balance off",
                       "--ep 4 --balance replicate --replicas-min 2 --spare-slots 1",
                       "--ep 2 --balance replicate --replicas-min 2 --spare-slots 2 --micro-batch 4",  # two groups
                       "--ep 2 --balance replicate --replicas-min 2 --spare-slots 2 --micro-batch 1",  # one has no tokens
                       "--ep 2 --balance eplb --spare-slots 2", "--zero 2 --ep 2 --balance off"):
            with self.subTest(words=layout):
                self.assert_bytes(layout, cluster)

    def test_bytes_of_auto_with_the_same_costs(self):
        """Costs of the cluster file, put where training keeps what it has measured: with sums that cost little all
        copies of an expert serve, else one."""
        self.addCleanup(ranks.QUIET.update, XDG_CACHE_HOME=ranks.QUIET["XDG_CACHE_HOME"])
        ranks.QUIET["XDG_CACHE_HOME"] = self.path("cache")
        layout = "--ep 2 --balance auto --replicas-min 2 --micro-batch 4 --seq 64"
        sizes, sent = [1024 * 16 ** i for i in range(5)], []
        self.assertEqual(self.start_named("--force-balance --dtype fp32 " + layout, steps=2).end()[0], ranks.DONE)
        folder = self.path("cache", "evenkeel")
        measured = os.path.join(folder, [n for n in os.listdir(folder) if n.startswith("machine-")][0])
        for gbytes_s, us in (0.01, 0.001), (1, 1000):
            machine = json.loads(ek_cli.read(measured))
            seconds = [us * 1e-6 + x / (gbytes_s * 1e9) for x in sizes]
            machine["copy_bytes_per_s"] = 1e10
            for product in "forward", "backward_input", "backward_weight":
                machine["expert"][product] = {"rows_an_expert": [1], "flops_per_s": [1e10]}
            machine["net"] = {"ranks_a_node": 1, "all_to_all": {"message_bytes": sizes, "seconds_a_message": seconds},
                              "multicast": {"message_bytes": sizes, "seconds_a_hop": seconds}}
            ek_cli.write(measured, json.dumps(machine))
            sent.append(self.assert_bytes(layout, self.write_cluster(machine, gbytes_s, us)))
        self.assertLess(sent[0], 0.95 * sent[1])

    def test_killed_workers(self):
        """At any instant; then a host is lost, which proves the copies."""
        rng = random.Random(3)
        j = self.start_named("--zero 1 --quiet=false")
        for _ in range(3):
            j.wait_for_steps(self.told().count(b"\n") + 10)
            j.wait_for_members(4)
            time.sleep(0.03 * rng.random())
            told = self.told()
            os.kill(j.rank(rng.randrange(4)), signal.SIGKILL)
            j.wait_for_steps(told.count(b"\n") + 5)
            self.assertTrue(self.told().startswith(told), "a step was taken again")
        told = self.lose_and_go_on(j)
        err = self.assert_done(j)
        self.assert_went_on(told, err)
        self.assertIn("partners on other hosts have copies of what --zero 1 shards: the current "
                      "placement survives any 1 of 4 hosts", err)


ranks.both(globals(), Zero, first=True)
del Zero

if __name__ == "__main__":
    ek_cli.main()
