"""--elastic runs in which one host alone has a pipeline stage or a tensor-parallel part of it: a rank of another
host keeps a copy of all that such a rank keeps, so that no step is lost with a host.

Losses are those of a run on one rank without failures."""

import contextlib
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

    def lose(self, j, *hosts):
        """Kills all workers of hosts, whose ranks are self.used, and all that their memory has."""
        workers = [j.rank(r) for r, host in enumerate(self.used) if host in hosts]
        for host in hosts:
            self.set("down", host)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # mpiexec was quicker
                os.kill(worker, signal.SIGKILL)
        for host in hosts:
            shutil.rmtree(self.memories[self.NAMES.index(host)])

    def lose_for_a_while(self, j, *hosts):
        """They are back before the next start, and what they had is gone; returns the lines of steps before."""
        told, starts = self.told(), len(self.generations())
        self.lose(j, *hosts)
        for host in hosts:
            self.unset("down", host)
        self.wait_until(j, lambda: len(self.generations()) > starts and self.generations()[-1]["ranks"] == 4, "four ranks again")
        j.wait_for_steps(self.told().count(b"\n") + 5)
        return told

    def test_a_lost_host_comes_back(self):
        for words in self.ALONE:
            with self.subTest(words=words):
                j = self.start_named(words + " --quiet=false")
                j.wait_for_steps(20)
                os.kill(j.rank(2), signal.SIGKILL)
                self.wait_for_starts(j, 2)
                j.wait_for_steps(self.told().count(b"\n") + 5)
                told = self.lose_for_a_while(j, "b")
                err = self.assert_done(j)
                self.assert_went_on(told, err)
                self.assertRegex(err, r"from the state of 4 ranks and 4 copies of others, .*: [\d.]+ [kM]B were adopted in place, "
                                 "0 B copied within hosts, 0 B sent to other hosts")
                self.assertRegex(err, r"one host alone has a part of the weights: a rank of another host keeps a copy .* for "
                                 r"[\d.]+ [kM]B of memory of the rank with the most and about [\d.]+ [mu]?s of each step")
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
                self.used = ["a", "a", "b", "b"]
                j.wait_for_steps(20)
                told = self.told()
                self.lose(j, host)
                self.wait_until(j, lambda: self.generations()[-1]["ranks"] == 2, "two ranks")
                j.wait_for_steps(told.count(b"\n") + 5)
                self.unset("down", host)
                err = self.assert_done(j)
                self.assert_went_on(told, err)
                self.assertIn("the current placement survives any 1 of 2 hosts", err)
                self.assertEqual("auto makes transient replicas in place of --balance replicate: with --elastic experts stay "
                                 "where they are, as some ranks have a copy" in err, balance == "replicate", err)

    def test_uneven_hosts(self):
        """One has two of the four stages, and its ranks copies of two others."""
        self.hosts("a slots=1", "b slots=2", "c slots=1")
        for host in "bc":
            with self.subTest(host=host):
                j = self.start_named("--pp 4")
                self.used = ["a", "b", "b", "c"]
                j.wait_for_steps(20)
                told = self.lose_for_a_while(j, host)
                self.assert_went_on(told, self.assert_done(j))

    def test_stages_that_get_on_one_host_when_others_are_drained(self):
        """Each stage is on two hosts before, and on one afterwards, with copies that the start with the drained host makes."""
        self.hosts("a slots=2", "b slots=2", "c slots=2")
        j = self.start_named("--pp 2 --quiet=false", 6)
        j.wait_for_steps(20)
        told = self.told()
        self.hosts("a slots=2", "b slots=2")
        self.wait_until(j, lambda: self.generations()[-1]["ranks"] == 4, "four ranks")
        j.wait_for_steps(told.count(b"\n") + 5)
        self.used, told = ["a", "a", "b", "b"], self.told()
        self.lose(j, "b")
        self.wait_until(j, lambda: self.generations()[-1]["ranks"] == 2, "two ranks")
        j.wait_for_steps(told.count(b"\n") + 5)
        self.unset("down", "b")
        err = self.assert_done(j)
        self.assert_went_on(told, err)
        self.assertIn("one host alone has a part of the weights", err)

    def test_copies_after_going_back_to_a_checkpoint(self):
        """The hosts of a stage and of its copy are lost; then another stage, whose copy has the moments of the checkpoint."""
        j = self.start_named("--pp 4 --save-every 10")
        j.wait_for_steps(25)
        self.lose_for_a_while(j, "b", "c")
        told = self.lose_for_a_while(j, "a")
        err = self.assert_done(j)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assertEqual(err.count("going back from step"), 1, err)

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
