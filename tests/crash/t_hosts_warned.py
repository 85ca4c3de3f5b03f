"""What runs on several hosts say: of experts that one host has alone, at the start, and how many hosts
were lost, by which they choose the interval between checkpoints."""

import json
import os
import re
import shutil
import signal
import subprocess

import ranks
from hosts import Hosts, OwnMemory
from ranks import DONE, INTERRUPTED, ek_cli

LONGER = r" and steps that are predicted to take \d+(\.\d)? % longer"
COST = r", where host failures are expected to cost ([\d.]+) % of the run without them \(--host-mtbf\)\n"
ALONE = r"warning: (\d+) of (\d+) experts are on one host only: if it is lost, %s are repeated; "


class Named(Hosts):
    def setUp(self):
        super().setUp()
        if subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode:
            self.skipTest("hosts cannot be named here")
        ek_cli.write(self.path("named"), "")


class Warned(Named):
    """At the start, before anything is lost."""

    def said(self, words, n=3, start=None):
        shutil.rmtree(self.out, True)
        j = (start or self.start)(words, n)
        j.wait_for_steps(3)
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        return err

    def has_rates_of_training(self):
        return "training" in json.loads(ek_cli.read(os.path.join(self.out, "machine.json")))

    def test_experts_on_one_host(self):
        since = r"the steps since the last checkpoint \(--save-every auto\)"
        two = (r"--replicas-min 2 --spare-slots 1 keeps each on two hosts, for \d+(\.\d+)? [kM]B of "
               r"memory more a rank" + LONGER + r"\n")
        for words, cost, options in (
                ("--ep 3 --replicas-min 1", since, two),
                ("--ep 3 --balance exact --save-every 0 --recalibrate", "all steps, as --save-every is 0,",
                 "--balance auto " + two),
                ("--ep 3 --spare-slots 0 --save-every 40", r"up to 40 steps \(--save-every\), and those during a save,",
                 two)):
            with self.subTest(words):
                err = self.said(words)
                found = re.search(ALONE % cost + options, err)
                self.assertTrue(found, err)
                self.assertEqual(found.group(1), found.group(2))
                self.assertEqual(err.count("on one host only"), 1, err)
                if "--recalibrate" in words:  # nothing from a cache
                    self.assertFalse(self.has_rates_of_training())

    def test_nothing_is_alone(self):
        """Every host has the model, or two have each expert."""
        for words in ("", "--ep 3", "--ep 3 --balance replicate --replicas-min 2"):
            with self.subTest(words):
                self.assertNotIn("warn", self.said(words))

    def test_protection_by_default(self):
        """Says what it costs, and what the placement survives."""
        err = self.said("--ep 3 --quiet=false")
        self.assertRegex(err, r"info: every expert is on two hosts \(--replicas-min 2 --spare-slots 2\), "
                         r"for \d+(\.\d+)? [kM]B of memory more a rank than with --replicas-min 1 "
                         r"--spare-slots 1" + LONGER + r"\n")
        self.assertTrue(self.has_rates_of_training())
        self.assertRegex(err, r"info: --replicas-min 2: the current placement survives any 1 of 3 hosts")

    def test_uneven_hosts_take_the_last_slot_for_copies(self):
        """The host with one rank has to hold all experts, which takes all of its slots."""
        self.hosts("a slots=2", "b slots=1")
        err = self.said("--ep 3 --replicas-min 2 --spare-slots 2 --quiet=false", 3)
        self.assertRegex(err, "auto makes persistent replicas, as replicate does, and no transient ones")
        self.assertRegex(err, "the current placement survives any 1 of 2 hosts")

    def test_one_stage_alone_is_not_on_two_hosts(self):
        """Uneven hosts: one has all experts of a group of the first stage, none of the second."""
        self.hosts("a slots=3", "b slots=3", "c slots=2")
        self.assertRegex(self.said("--pp 2 --ep 2", 8), ALONE % r"the steps since the last checkpoint .*" +
                         "with the ranks of an expert-parallel group on one host no option protects them")

    def test_no_memory_for_protection(self):
        """Then the run starts without, and says so.  A slot is some 20 MB."""
        self.config = ek_cli.write_config(self.path("larger.json"), intermediate_size=10000)
        took = re.search(r"about ([\d.]+) MB of memory on the first",
                         self.said("--ep 3 --save-every 0 --replicas-min 1 --quiet=false"))
        err = self.said("--ep 3 --save-every 0 --memory-limit %dMB" % (float(took.group(1)) + 5))
        self.assertRegex(err, ALONE % "all steps, as --save-every is 0," +
                         r".* \(which is more than there is\)" + LONGER + r"\n")


    def test_no_memory_for_copies_of_stages(self):
        """Of all that a rank keeps: the run starts without, and says so.  A copy is some 60 MB."""
        self.config = ek_cli.write_config(self.path("larger.json"), num_hidden_layers=3, intermediate_size=10000)
        words = "--pp 3 --balance off --save-every 0"
        err = self.said(words + " --quiet=false")
        self.assertRegex(err, r"keeps a copy of all that its ranks keep, and updates it, too, for [\d.]+ MB of memory of the rank with "
                         r"the most and about [\d.]+ [mu]?s of each step; experts")
        self.assertNotIn("warn", err)
        err = self.said(words + " --memory-limit %dMB" % (float(re.search(r"about ([\d.]+) MB of memory on the first",
                                                                          err).group(1)) - 30))
        self.assertRegex(err, r"warning: 12 of 12 experts and a shard of --tp or --pp are on one host only, and a copy of all that its "
                         r"ranks keep takes [\d.]+ MB a rank of another host, for which there is no memory: if it is lost, all steps, as --save-every "
                         "is 0, are repeated; a smaller --micro-batch")
        self.assertEqual(err.count("warn"), 1, err)

    def test_copies_of_stages_by_default(self):
        """With experts on several ranks the start predicts a step.  Without memory one warning names both."""
        self.hosts("a slots=2", "b slots=2")
        self.config = ek_cli.write_config(self.path("larger.json"), num_hidden_layers=4, intermediate_size=20000)
        words = "--pp 2 --ep 2 --save-every 0 --host-mtbf 1"  # losses cost more

        def said(words):
            return self.said(words, 4, start=self.start_by_default)
        err = said(words + " --quiet=false")
        self.assertRegex(err, r"info: several hosts: --elastic is on")
        self.assertRegex(err, r"and about [\d.]+ [mu]?s of each step \([\d.]+ % of what one is predicted to take\); experts")
        self.assertIn("the current placement survives any 1 of 2 hosts", err)
        self.assertNotIn("warn", err)
        err = said(words + " --memory-limit %dMB" % (float(re.search(r"about ([\d.]+) MB of memory on the first", err).group(1)) - 30))
        self.assertRegex(err, r"warning: 16 of 16 experts and a shard of --tp or --pp are on one host only, and a copy of all that its "
                         "ranks keep takes")
        self.assertEqual(err.count("warn"), 1, err)

    def test_copies_of_stages_that_take_too_long_by_default(self):
        """Few tokens: not without --elastic."""
        self.hosts("a slots=2", "b slots=2")
        self.config = ek_cli.write_config(self.path("larger.json"), num_hidden_layers=4, intermediate_size=20000)
        words = "--pp 2 --ep 2 --dtype fp32 --batch 2 --seq 2 --quiet=false"
        err = self.said(words, 4, start=self.start_by_default)
        self.assertRegex(err, r"warning: 16 of 16 experts and a shard of --tp or --pp are on one host only: if it is lost, the steps since the "
                         r"last checkpoint \(--save-every auto\) are repeated; --elastic keeps a copy on another host, for steps that are "
                         r"predicted to take \d+(\.\d)? % longer" + COST)
        self.assertEqual(err.count("warn"), 1, err)
        self.assertNotIn("warn", self.said(words, 4))

    def test_summary_says_whether_there_are_copies(self):
        """Left out for their time by default, kept if asked for, of stages as well as of experts."""
        self.hosts("a slots=2", "b slots=2")
        self.config = ek_cli.write_config(self.path("larger.json"), num_hidden_layers=4, intermediate_size=20000)
        for words in ("--ep 4", "--pp 2 --ep 2 --dtype fp32 --batch 2 --seq 2"):
            for more in ("", " --elastic"):
                with self.subTest(words + more):
                    shutil.rmtree(self.out, True)
                    status, out, err = self.job((1, words + more + " --json"), "--hosts", self.path("hosts"), steps=3).end()
                    self.assertEqual(status, DONE, err)
                    balance = json.loads(out)["balance"]
                    copies = balance["copies"]
                    self.assertEqual((copies["kept"], copies["left_out"]), (bool(more), not more), err)
                    self.assertEqual(balance["survives"], int(bool(more)))
                    self.assertGreater(copies["would_lengthen"], 0.05)
                    self.assertTrue(0 <= copies["losses_cost"] < copies["would_lengthen"], copies)

    def test_copies_that_take_too_long_by_default(self):
        """Few tokens and large experts: not without --elastic, and the warning says how long."""
        self.config = ek_cli.write_config(self.path("larger.json"), intermediate_size=10000)
        err = self.said("--ep 3", start=self.start_by_default)
        found = re.search(ALONE % r"the steps since .*" + r".*take (\d+) % longer" + COST, err)
        self.assertTrue(found, err)
        self.assertGreater(int(found.group(3)), 9)
        self.assertLess(float(found.group(4)), 5)
        self.assertNotIn("warn", self.said("--ep 3"))


class TooSmall(OwnMemory):
    def test_memory_of_one_host(self):
        """Its ranks and the others leave together, and the run starts once more without --elastic."""
        self.limit_memory()
        self.config = ek_cli.write_config(self.path("larger.json"), vocab_size=40000)  # 40 MB of state
        status, _, err = self.job((1, "--ep 4"), "--hosts", self.path("hosts"), steps=4).end()
        self.assertEqual(status, DONE, err)
        self.assertRegex(err, r"rank 1 on b: .*shared memory")
        self.assertIn("starts without --elastic", err)
        self.assertNotIn("continuing", err)  # it is not taken for a lost host
        self.assertEqual(len(ek_cli.metrics(self.out)), 4)

    def test_memory_in_a_run(self):
        """It becomes too small, and the state is lost: the start without --elastic goes on from the checkpoint."""
        self.config = ek_cli.write_config(self.path("larger.json"), vocab_size=40000)
        j = self.job((1, "--ep 4 --save-every 2 --quiet=false"), "--hosts", self.path("hosts"))
        self.wait_until(j, self.assert_whole, "a checkpoint")
        j.wait_for_steps(3)
        told = self.told()
        worker = j.rank(1)
        self.limit_memory()
        for memory in (self.memories[0], *self.memories[2:]):
            shutil.rmtree(memory)
        os.kill(worker, signal.SIGKILL)
        j.wait_for_words("starts without --elastic")
        j.wait_for_steps(told.count(b"\n") + 3)
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        steps = [m["step"] for m in ek_cli.metrics(self.out)]
        self.assertEqual(steps, list(range(len(steps))), err)


class Counted(Hosts):
    def wait_for_count(self, j, generation, lost):
        """The start of that number gives its first interval with this many lost hosts."""
        self.wait_for_starts(j, generation + 1)
        j.wait_for_words(" so far), and")
        said = j.early.decode()
        j.early = b""
        self.assertIn("(%s so far)" % lost, said)

    def test_elastic_by_default(self):
        """Without --elastic; which is not kept, as a command with other hosts chooses anew."""
        j = self.start_by_default("--ep 3 --replicas-min 2")
        j.wait_for_steps(10)
        told = self.told()
        self.lose(j, "b")
        self.wait_for_ranks(j, 2)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        kept = json.loads(ek_cli.read(os.path.join(self.out, "run.json")))
        self.assertNotIn("elastic", kept["settings"])
        self.assertNotIn("--elastic", kept["command"])

    def test_lost_hosts_are_counted_over_generations(self):
        """A worker whose state stays is none."""
        j = self.start("--quiet=false")
        self.wait_for_count(j, 0, "0 were")
        self.lose(j, "b")
        self.wait_for_count(j, 1, "1 was")
        self.kill_rank(j, 1)
        self.wait_for_count(j, 2, "1 was")
        self.unset("down", "b")
        self.wait_for_count(j, 3, "1 was")
        self.used = ["a", "c", "b"]
        self.lose(j, "c")
        self.wait_for_count(j, 4, "2 were")


ranks.both(globals(), Warned, TooSmall, Counted, first=True)
del Warned, TooSmall, Counted, Named, OwnMemory, Hosts

if __name__ == "__main__":
    ek_cli.main()
