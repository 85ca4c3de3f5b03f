"""bench/spot.py without a cluster: recorded traces of spot instances, the nodes that systems run on,
predictions, and the model of Bamboo."""

import os
import subprocess
import sys
import unittest

import ek_cli

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")
sys.path.insert(0, BENCH)
import spot_model  # noqa: E402
import spot_runs  # noqa: E402
import spot_trace  # noqa: E402

NODES = ["n1", "n2", "n3", "n4"]

# Four are up first at 1 s; b and c, then a leave; e, f and g come; e leaves; h comes.
RECORDED = """0,add,a
0,add,b
0,add,c
1000,add,d
3000,remove,b
3000,remove,c
5000,add,e
6000,remove,a
7000,add,f
8000,add,g
11000,remove,e
12000,add,h
"""


class Traces(ek_cli.Case):
    def scaled(self, nodes, *args, text=RECORDED):
        return spot_trace.scale(ek_cli.write(self.path("trace"), text), nodes, *args)

    def test_positions_of_the_first_peak_are_lost_and_taken_again(self):
        events, text = self.scaled(NODES)
        self.assertEqual(events, [(2, "lost", "n2"), (2, "lost", "n3"), (4, "back", "n2"),
                                  (5, "lost", "n1"), (6, "back", "n3"), (7, "back", "n1"),
                                  (10, "lost", "n2"), (11, "back", "n2")])
        self.assertEqual(text, "4 of 4 instances, from 1 s on, time divided by 1")

    def test_fewer_nodes_sample_the_positions(self):
        events, text = self.scaled(["x", "y"])
        self.assertEqual(events, [(2, "lost", "y"), (5, "lost", "x"), (6, "back", "y"),
                                  (7, "back", "x")])
        self.assertIn("2 of 4 instances", text)

    def test_a_begin_and_compression(self):
        """Two are up then, a and d, so e waits, and f, g and h after it."""
        events, text = self.scaled(["x", "y"], 3.5, 2.0)
        self.assertEqual(events, [(1.25, "lost", "x"), (1.25, "back", "x"), (3.75, "lost", "x"),
                                  (3.75, "back", "x")])
        self.assertIn("from 3.5 s on, time divided by 2", text)

    def test_mistakes(self):
        for text, said in (("0,add,a\n1,lose,a\n", "line 2: a line is MILLISECONDS"),
                           ("0,add,a\n1,remove,b\n", "line 2: b is not up"),
                           ("0,add,a\n1,add,a\n", "line 2: a is up already"),
                           ("5,add,a\n1,add,b\n", "line 2: times must not decrease"),
                           ("0,add,a\n", "only 1 instances are up at 0 s, for 2 nodes")):
            with self.subTest(text), self.assertRaises(SystemExit) as caught:
                self.scaled(["x", "y"], text=text)
            self.assertIn(said, str(caught.exception))

    def test_lines_of_another_format_are_told_apart(self):
        for text, is_recorded in ((RECORDED, True), ("# a,b,c\n1.5 node1 down\n", False)):
            path = ek_cli.write(self.path("trace"), text)
            self.assertEqual(spot_trace.is_recorded(path), is_recorded)

    def test_the_command_converts(self):
        path = ek_cli.write(self.path("trace"), RECORDED)
        r = subprocess.run([os.path.join(BENCH, "spot_trace.py"), path, "--nodes", "2",
                            "--compress", "4", "--seconds", "1.6"], capture_output=True, text=True,
                           check=True)
        self.assertEqual(r.stdout.splitlines()[1:], ["0.500 node2 down", "1.250 node1 down",
                                                     "1.500 node2 up"])


class Choices(unittest.TestCase):
    def test_a_multiple_of_the_group_with_every_part_that_is_left(self):
        self.assertEqual(spot_runs.choose_nodes(NODES, [], 2), NODES)
        self.assertEqual(spot_runs.choose_nodes(["n1", "n3", "n4"], NODES, 2), ["n1", "n4"])
        self.assertEqual(spot_runs.choose_nodes(["n1", "n3"], NODES, 2), ["n1", "n3"])
        self.assertEqual(spot_runs.choose_nodes(["n3"], NODES, 2), [])
        self.assertEqual(spot_runs.choose_nodes(["n1", "n4", "n2", "n3"], ["n1", "n4"], 2),
                         ["n1", "n4", "n2", "n3"])
        self.assertEqual(spot_runs.choose_nodes(["n1", "n3", "n4"], NODES, 1), ["n1", "n3", "n4"])

    def test_parts_that_are_left(self):
        self.assertTrue(spot_runs.has_all_parts(["n1", "n3", "n4"], NODES, 2))
        self.assertFalse(spot_runs.has_all_parts(["n1", "n3"], NODES, 2))

    def test_options_that_place_experts_are_left_out(self):
        words = "--batch 8 --balance replicate --replicas-min 2 --seq 32 --spare-slots 3".split()
        self.assertEqual(spot_runs.without_placement(words), "--batch 8 --seq 32".split())


class Predictions(unittest.TestCase):
    """Steps of 1 s on four and three nodes, of 2 s on two; 2 s after a loss, 1 s after a return."""

    times = {"step_s": {4: 1.0, 3: 1.0, 2: 2.0}, "lost_s": 2.0, "back_s": 1.0}

    def predicted(self, rules, *events):
        return spot_model.predicted(events, 20.0, NODES, spot_model.Rules(4, *rules), self.times)

    def test_without_events(self):
        self.assertEqual(self.predicted((0, "always")), 20)

    def test_no_step_is_lost(self):
        lost = (10.5, "lost", "n2")
        self.assertEqual(self.predicted((0, "always"), lost), 10 + 7)
        self.assertEqual(self.predicted((0, "always"), lost, (14.5, "back", "n2")), 12 + 4)

    def test_back_to_a_checkpoint_and_joining_after_the_next(self):
        lost = (10.5, "lost", "n2")
        self.assertEqual(self.predicted((0, "never"), lost), 8 + 7)
        self.assertEqual(self.predicted((0, "never"), lost, (14.0, "back", "n2")), 12 + 2)

    def test_groups_wait_for_whole_ones(self):
        lost = (10.5, "lost", "n2")
        self.assertEqual(self.predicted((2, "never"), lost), 8 + 3)
        self.assertEqual(self.predicted((2, "parts"), lost), 10 + 3)
        self.assertEqual(self.predicted((2, "parts"), lost, (10.6, "lost", "n3")), 10 + 3)
        self.assertEqual(self.predicted((4, "parts"), lost), 8)
        self.assertEqual(self.predicted((4, "parts"), lost, (11.0, "back", "n2")), 8 + 7)

    def test_parts_that_are_lost(self):
        self.assertEqual(self.predicted((2, "parts"), (10.5, "lost", "n2"),
                                        (10.6, "lost", "n4")), 8 + 3)


class BambooModel(unittest.TestCase):
    def test_redundant_computation_fills_what_stages_wait(self):
        self.assertEqual(spot_model.redundant_factor(8, 4), 1)
        self.assertAlmostEqual(spot_model.redundant_factor(4, 2), 1 + 1 / 15)

    def steps(self, stages, step_s, events, nodes, end=20.0, every=4):
        model = spot_model.Bamboo(events, nodes, stages, every,
                                  {"step_s": step_s, "arrange_s": 1.0, "restart_s": 2.0})
        return model.run(end), model.fatal

    def test_a_loss_costs_a_pipeline_and_no_step(self):
        """The 11th step ends at 11.25, pipelines are arranged until 12.25, and three steps follow."""
        lost = [(10.5, "lost", "n2")]
        self.assertEqual(self.steps(2, {2: 1.0, 1: 2.0}, [], NODES), (20, 0))
        self.assertEqual(self.steps(2, {2: 1.0, 1: 2.0}, lost, NODES), (14, 0))

    def test_a_return_is_taken_after_a_step(self):
        events = [(10.5, "lost", "n2"), (13.0, "back", "n2")]
        self.assertEqual(self.steps(2, {2: 1.0, 1: 2.0}, events, NODES), (12 + 4, 0))

    def test_a_predecessor_holds_the_stage(self):
        """One of three nodes is missing: the pipeline waits for another, and continues."""
        events = [(4.25, "lost", "n2"), (10.0, "back", "n2")]
        self.assertEqual(self.steps(3, {1: 1.0}, events, NODES[:3]), (5 + 9, 0))

    def test_neighbours_are_fatal_and_others_not(self):
        """Of three stages the third node holds its own and the first; then it waits for others."""
        events = [(4.25, "lost", "n1"), (4.5, "lost", "n2"), (10.0, "back", "n1"),
                  (11.0, "back", "n2")]
        self.assertEqual(self.steps(3, {1: 1.0}, events, NODES[:3]), (4 + 8, 1))
        self.assertEqual(self.steps(2, {2: 1.0, 1: 1.0}, events[:2], NODES), (18, 0))


if __name__ == "__main__":
    ek_cli.main()
