"""--elastic runs in which one host alone has a pipeline stage or a tensor-parallel part of it: a rank of another
host keeps a copy of all that such a rank keeps, so that no step is lost with a host.

Losses are those of a run on one rank without failures."""

import os
import re
import shutil
import signal

import hosts
import ranks
from ranks import ek_cli


class Stages(hosts.OwnMemory):
    ALONE = ("--pp 4 --balance off", "--pp 2 --tp 2 --zero 1")
    if os.environ.get("EK_TEST_ALL"):
        ALONE += ("--pp 4 --zero 3", "--tp 4", "--tp 4 --ep 2 --balance exact", "--pp 2 --tp 2 --etp 2", "--pp 2 --tp 2 --ep 2")

    def setUp(self):
        super().setUp()
        self.config = ek_cli.write_config(self.path("four.json"), num_hidden_layers=4)

    def lose_for_a_while(self, j, host):
        """What the host had is gone when it comes back; returns the lines of steps before."""
        told = self.told()
        self.lose_with_memory(j, host)
        j.wait_for_words("%s (" % host)
        self.unset("down", host)
        self.used = self.NAMES
        self.wait_until(j, lambda: self.generations()[-1]["ranks"] == 4 and len(self.told()) > len(told), "four ranks again")
        return told

    def test_a_lost_host_comes_back(self):
        for words in self.ALONE:
            with self.subTest(words=words):
                j = self.start_named(words + " --quiet=false")
                j.wait_for_steps(20)
                told = self.lose_for_a_while(j, "b")
                err = self.assert_done(j)
                self.assert_went_on(told, err)
                self.assertRegex(err, r"one host alone has a part of the weights: a rank of another host keeps a copy .* for "
                                 r"[\d.]+ [kM]B of memory")
                self.assertIn("the current placement survives any 1 of 4 hosts", err)
                self.assertFalse(re.search("is on one host only", err), err)

    def test_a_bias_that_feedback_updates_is_copied(self):
        self.config = ek_cli.write_config(self.path("bias.json"), num_hidden_layers=4,
                                          evenkeel={"gate": "sigmoid-bias", "bias_rate": 0.01})
        self.lr = 3e-4  # by which losses of the run on one rank are kept
        j = self.start_named("--pp 4")
        j.wait_for_steps(20)
        told = self.lose_for_a_while(j, "c")
        self.assert_went_on(told, self.assert_done(j))

    def test_two_hosts_of_two_ranks(self):
        """The ranks of the host that is left go on with both stages.  Experts stay where they are."""
        self.hosts("a slots=2", "b slots=2")
        for host, balance in (("b", "replicate"), ("a", "auto")):
            with self.subTest(host=host):
                j = self.start_named("--pp 2 --ep 2 --quiet=false --balance " + balance)
                j.wait_for_steps(20)
                told, lost = self.told(), [j.rank(r) for r in ((0, 1) if host == "a" else (2, 3))]
                self.set("down", host)
                for worker in lost:
                    os.kill(worker, signal.SIGKILL)
                shutil.rmtree(self.memories[self.NAMES.index(host)])
                self.wait_until(j, lambda: self.generations()[-1]["ranks"] == 2, "two ranks")
                j.wait_for_steps(told.count(b"\n") + 5)
                self.unset("down", host)
                err = self.assert_done(j)
                self.assert_went_on(told, err)
                self.assertIn("the current placement survives any 1 of 2 hosts", err)
                self.assertEqual("auto makes transient replicas in place of --balance replicate: with --elastic experts stay "
                                 "where they are, as some ranks have a copy" in err, balance == "replicate", err)

    def test_killed_in_the_update_of_a_copy(self):
        """The next start completes it; then the host of the original is lost, which proves the copy."""
        self.config = ek_cli.write_config(self.path("large.json"), num_hidden_layers=4, vocab_size=2000)
        self.lr, self.shared_steps = 2e-4, 50
        j = self.start_named("--pp 4 --balance off")
        j.wait_for_steps(5)
        originals, copies = self.segments()[:4], self.segments()[4:]
        self.assertEqual(len(copies), 4, "%s %s" % (originals, copies))
        worker = self.stop_in_update(j, 1, copies[0], {0, 1, 2})  # rank 1 is the partner of rank 0
        told = self.told()
        os.kill(worker, signal.SIGKILL)
        j.wait_for_steps(told.count(b"\n") + 3)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        told = self.lose_for_a_while(j, "a")
        self.assert_went_on(told, self.assert_done(j))

    def test_bytes_are_those_that_are_simulated(self):
        """Of copies of all that ranks keep; the first of two ranks with the same weights alone sends them."""
        cluster = self.write_cluster({"peak": 2e11, "memory_bytes_s": 1e10, "efficiency": 0.5}, 1, 10)
        for layout in ("--pp 4 --balance off", "--pp 2 --tp 2 --zero 1", "--tp 4 --ep 2 --balance off"):
            with self.subTest(words=layout):
                self.assert_bytes(layout, cluster)


ranks.both(globals(), Stages, first=True)
del Stages

if __name__ == "__main__":
    ek_cli.main()
