"""All faults of --elastic runs, many times, on clusters of four and five nodes; three nodes at
once; traces of spot instances."""

import subprocess

import chaos
from ranks import FAILED, ek_cli


class Everything(chaos.Chaos):
    nodes = 4

    def test_of_every_kind(self):
        for self.mpi in ("mpich", "openmpi"):
            with self.subTest(mpi=self.mpi):
                found = self.chaos("--failures", 20, "--kinds", "worker,node,freeze,freeze-node,"
                                   "cut,part,notice,supervisor,slow,recovery,full-disk", "--seed", 5,
                                   train=("--save-every", 50))
                self.assertEqual(len(found["failures"]), 20)

    def test_two_that_do_not_reach_each_other(self):
        """One of them is excluded until they do."""
        for self.mpi in ("mpich", "openmpi"):
            with self.subTest(mpi=self.mpi):
                self.batch = 24
                found = self.chaos("--script", self.script("2 part node2"), "--lossless", "--down",
                                   30)
                self.assertEqual([r["ranks"] for r in found["recoveries"]], [3], found)
                self.assertEqual([r["ranks"] for r in found["joins"]], [4], found)

    def test_one_that_was_cut_off_while_the_other_started_over(self):
        """Its state is of more steps than what the other has done since, but is not used."""
        self.nodes = 2
        self.chaos("--script", self.script("2 node node1", "5.5 cut node2"), "--down", 5)
        starts = self.generations()
        k = [g["first_step"] for g in starts[1:]].index(0) + 1  # starts over
        self.assertGreater(starts[k]["steps_again"], 0)
        self.assertEqual(starts[-1]["ranks"], 2)
        self.assertEqual([g["steps_again"] for g in starts[k + 1:]], [0] * len(starts[k + 1:]))

    def test_failures_during_recovery(self):
        """A node and then a worker before the recovery is complete: nothing is lost."""
        for self.mpi in ("mpich", "openmpi"):
            with self.subTest(mpi=self.mpi):
                self.batch = 18
                found = self.chaos("--failures", 9, "--kinds", "recovery:launch,recovery:transfer,"
                                   "recovery:step", "--lossless", "--single", "--down", 1)
                self.assertEqual(len(found["failures"]), 9)

    def test_singles(self):
        """A hundred workers and nodes, one at a time: nothing is lost.  The backoff of a node that
        is lost repeatedly grows, so a run has ten faults."""
        self.nodes = 5
        for seed in range(10):
            with self.subTest(seed=seed):
                found = self.chaos("--failures", 10, "--kinds", "worker,node", "--seed", seed,
                                   "--lossless", "--single", "--down", 1, "--pause", 1)
                self.assertEqual(len(found["failures"]), 10)

    def test_three_nodes_at_once(self):
        """Some experts are left only in a checkpoint, to which the run goes back automatically;
        with --lossless that is detected."""
        path = self.script("3 node node1", "3 node node2", "3 node node3")
        train = ("--save-every", 20, "--spare-slots", 1)
        found = self.chaos("--script", path, train=train)
        self.assertEqual(found["went_back"], 1)
        said = self.chaos("--script", path, "--lossless", train=train, status=FAILED)
        self.assertIn("1 times it went back, ", said)

    def test_a_trace(self):
        made = subprocess.run([chaos.CHAOS, "--make-trace", "40", "4", "4"], capture_output=True,
                              text=True, check=True).stdout
        self.assertIn("down", made)
        path = ek_cli.write(self.path("trace"), made)
        found = self.chaos("--trace", path, train=("--save-every", 100))
        self.assertGreater(len(found["failures"]), 1)


if __name__ == "__main__":
    ek_cli.main()
