"""Loss of nodes and workers of a cluster, so that state crosses a network; and a full disk.
All other faults are in t_chaos_long.py."""

import chaos
from ranks import FAILED, ek_cli


class Lost(chaos.Chaos):
    batch = 18

    def test_nodes_and_workers(self):
        """No step is lost: what one node has, another one has, too, and goes on with.  Nodes come back,
        and their memory is preallocated before they join."""
        found = self.chaos("--failures", 4, "--kinds", "node,worker", "--seed", 3, "--lossless",
                           "--down", 2)
        self.assertEqual(len(found["failures"]), 4)
        self.assertIn("node", [f["kind"] for f in found["failures"]])
        self.assertGreaterEqual(len(found["recoveries"]), 3)
        self.assertGreater(len(found["joins"]), 0, found)
        self.assertGreater(max(r["prealloc_mb"] for r in found["joins"]), 0)
        alone = [r for r in found["recoveries"] if r["ranks"] == r["ranks_before"] -
                 (r["kind"] == "node")]  # nobody came at the same time
        self.assertGreater(len(alone), 0)
        for r in alone:
            self.assertGreater(r["taken_mb"], 0, r)
            self.assertEqual(r["received_mb"], 0, r)

    def test_a_node_is_given_back(self):
        """It holds the only copy of some experts and announces that it will be reclaimed: it hands
        them over to the others, through memory."""
        found = self.chaos("--script", self.script("0.5 notice node2"), "--lossless", "--down", 600,
                           "--notice", 0, train=("--balance", "off", "--replicas-min", 1,
                                                 "--spare-slots", 0))
        self.assertEqual([(r["ranks_before"], r["ranks"]) for r in found["recoveries"]], [(3, 2)])
        self.assertGreater(found["recoveries"][0]["hand_over"], 0)

    def test_replicas_come_back(self):
        """A node is lost and, in the first step after that, a worker.  The number of ranks stays
        the same, but some experts have no replica any more: they get one at once, by the known
        loads, although the planner would only run after a thousand steps."""
        self.nodes, self.batch = 4, 24
        self.chaos("--script", self.script("0.3 recovery:step"), "--lossless", "--down", 600,
                   train=("--spare-slots", 1, "--plan-every", 1000))
        replicas, starts = [m["replicas"] for m in self.metrics()], self.generations()
        k = [g["ranks"] for g in starts].index(3)
        self.assertEqual(starts[k - 1]["ranks"], 4)
        self.assertGreater(starts[k]["generation"], starts[k - 1]["generation"] + 1,
                           "the start that was to take no step has taken one")
        self.assertGreaterEqual(min(replicas[starts[k]["first_step"]:]), replicas[3])

    def test_a_node_is_lost_with_a_slot_for_transient_replicas(self):
        """auto on three nodes of four slots, the last of which takes no persistent replicas; the two
        that go on need all of theirs for two copies of each of the four experts."""
        self.batch, self.micro_batch, self.seq = 48, 48, 64
        found = self.chaos("--script", self.script("0.5 node"), "--lossless", "--down", 600,
                           "--interrupt", 0, "--reference", train=(
                               "--steps", 30, "--balance", "auto", "--spare-slots", 2,
                               "--record-plans"))
        self.assertEqual([(r["ranks_before"], r["ranks"]) for r in found["recoveries"]], [(3, 2)])
        replicas = {2: [], 3: []}  # of a step, which has one micro-batch, in two layers
        for m in self.metrics()[1:]:
            replicas[m["ranks"]].append(m["replicas"])
        self.assertGreaterEqual(min(replicas[3]), 2 * 4)  # two copies of each expert
        self.assertEqual(set(replicas[2]), {2 * (2 * 4 - 4)}, replicas)


class ByDefault(chaos.Chaos):
    balance, batch = "", 18

    def test_a_lost_node_costs_no_step(self):
        """No option says so: every expert is on two nodes."""
        found = self.chaos("--script", self.script("3 node"), "--lossless", "--down", 600)
        self.assertEqual([(r["ranks_before"], r["ranks"]) for r in found["recoveries"]], [(3, 2)])
        self.assertEqual(found["went_back"], 0)

    def test_a_node_that_joins_the_only_one_gets_copies(self):
        """The first step makes them, so nothing warns of experts that one node has alone."""
        self.nodes = 2
        found = self.chaos("--script", self.script("2 node"), "--lossless", "--down", 2)
        self.assertEqual([(r["ranks_before"], r["ranks"]) for r in found["recoveries"]], [(2, 1)])
        self.assertEqual([r["ranks"] for r in found["joins"]], [2])
        replicas = {m["replicas"] for m in self.metrics()[-10:]}
        self.assertGreaterEqual(min(replicas), 2 * 4, "two layers of four experts")
        self.assertNotIn("on one host only", found["said"])


class Saved(chaos.Chaos):
    batch = 18

    def test_automatic_checkpoint_bounds_what_a_lost_node_costs(self):
        """Each node has experts alone, and is expected to last for four seconds at first.  What is
        lost with one are at most the steps of an interval, and those during a save, which an
        interval holds as well."""
        found = self.chaos("--script", self.script("8 node"), "--down", 600,
                           train=("--balance", "auto", "--replicas-min", 1, "--spare-slots", 0,
                                  "--host-mtbf", 0.001))
        self.assertEqual(found["went_back"], 1)
        first, last = self.generations()
        self.assertEqual((first["ranks"], last["ranks"], last["from"]), (3, 2, "checkpoint"))
        interval = [m["save_interval"] for m in self.metrics()[:last["first_step"]]
                    if "save_interval" in m]
        self.assertLessEqual(last["steps_again"], 2 * max(interval), interval)
        self.assertGreater(last["first_step"], last["steps_again"], "most of all steps are to be kept")
        self.assertGreater(len(interval), 0)


class Stages(chaos.Chaos):
    balance = ""

    def test_a_stage_that_a_lost_node_alone_had(self):
        """The other one has a copy of it, and waits for the node, which comes back empty: one has no slots for two stages."""
        self.nodes = 2
        found = self.chaos("--script", self.script("2 node"), "--lossless", "--down", 2, train=("--pp", 2))
        self.assertEqual([(r["ranks_before"], r["ranks"]) for r in found["recoveries"]], [(2, 2)])
        self.assertEqual(found["went_back"], 0)


class Refused(chaos.Chaos):
    def test_options_that_train_refuses(self):
        said = self.chaos("--failures", 1, train=("--pp", 0.5), status=FAILED)
        self.assertRegex(said, r"(?s)ended with status 2:.*--pp")


class FullDisk(chaos.Chaos):
    def test_of_the_run(self):
        """It ends with a message, and goes on from memory when there is room again."""
        found = self.chaos("--script", self.script("0.5 full-disk"), "--lossless", "--down", 2,
                           train=("--save-every", 10))
        self.assertEqual(found["starts"], 2)


if __name__ == "__main__":
    ek_cli.main()
