"""--elastic runs of a model whose gate has a bias that is updated without gradients: the bias is
state of every step like the weights, whoever is killed, lost, stopped, drained, or resumed.

Losses and bias are those of a run on one rank without failures; in the same layout all weights and
moments are the same bits."""

import glob
import os
import re
import signal
import time

import hosts
import ranks
from elastic import AGAIN, MOVING, OpenEnded
from ranks import INTERRUPTED, ek_cli

BIAS = "e_score_correction_bias"
EXACT = "--a2a pairwise --pipeline-degree 1"  # tuners would choose by times
LAYOUTS = (
    (2, "--ep 2 --balance off " + EXACT),
    (3, "--pp 3 " + EXACT),
    (2, "--tp 2 " + EXACT),
    (2, EXACT),
)


class Bias:
    """Checks of a run that has ended, and its undisturbed counterpart."""

    RATE = 0.01

    def setUp(self):
        super().setUp()
        self.config = self.config_of(self.RATE)

    def config_of(self, rate):
        return ek_cli.write_config(self.path("config-%g.json" % rate), num_hidden_layers=3,
                                   evenkeel={"gate": "sigmoid-bias", "bias_rate": rate})

    @staticmethod
    def tensors(out):
        """(file, tensor) -> weights and moments of the newest checkpoint."""
        return {(os.path.basename(path), name): tensor
                for path in glob.glob(os.path.join(ek_cli.newest(out), "*.safetensors"))
                for name, tensor in ek_cli.safetensors(path).items()}

    def bias(self, out):
        """layer -> its bias, of the pieces that ranks have saved."""
        found = {}
        for (_, name), (_, _, numbers) in sorted(self.tensors(out).items()):
            if re.search(BIAS + r"(\[\d+:\d+\])?$", name):
                found.setdefault(name.split("[")[0], []).append(numbers)
        found = {name: b"".join(pieces) for name, pieces in found.items()}
        self.assertEqual([len(numbers) for numbers in found.values()], 3 * [4 * 8])
        return found

    def undisturbed(self, layout, steps):
        """The folder of a run without failures."""
        out = self.path("undisturbed", os.path.basename(self.config),
                        "%d ranks %s" % layout, str(steps))
        if not os.path.exists(out):
            self.run_job(layout, *["--elastic"] * (layout[0] > 1), out=out, steps=steps)
        return out

    def assert_same_bias(self):
        """The bias is that of a run without failures, in which it moves, and moves the losses."""
        whole = self.undisturbed((1, ""), steps=len(ek_cli.metrics(self.out)))
        self.assertEqual(self.bias(self.out), self.bias(whole))
        for numbers in self.bias(whole).values():
            self.assertNotEqual(numbers, bytes(len(numbers)), "the bias has not moved")

    def assert_same_bits(self, layout):
        whole = self.undisturbed(layout, steps=len(ek_cli.metrics(self.out)))
        self.assertEqual(ek_cli.losses(self.out), ek_cli.losses(whole))
        got, want = self.tensors(self.out), self.tensors(whole)
        self.assertEqual([name for name in want if got.get(name) != want[name]], [])
        self.assertEqual(set(got), set(want))


class WithBias(Bias, OpenEnded):
    def assert_done(self, job, kills=None, steps=None):
        err = super().assert_done(job, kills, steps)
        self.assert_same_bias()
        return err

    def test_bias_matters(self):
        """Without its updates, losses are others: so what the other tests compare depends on it."""
        whole = ek_cli.losses(self.undisturbed((1, ""), steps=100))
        self.config = self.config_of(0)
        still = ek_cli.losses(self.undisturbed((1, ""), steps=100))
        self.assertEqual(whole[0], still[0])
        self.assertGreater(max(abs(a - b) for a, b in zip(whole, still)), 1e-6)

    def test_workers(self):
        for layout in ek_cli.some(LAYOUTS, 2):
            with self.subTest(layout=layout):
                self.kill_workers_in_turn(layout, apart=20)
                self.assert_same_bits(layout)

    def test_a_frozen_worker(self):
        j = self.elastic(LAYOUTS[0])
        j.wait_for_steps(30)
        os.kill(j.rank(1), signal.SIGSTOP)
        self.assert_done(j, 1)
        self.assert_same_bits(LAYOUTS[0])

    def test_at_random(self):
        """At any instant, also while experts move."""
        self.assertGreater(self.kill_at_random_instants(11, 2, 0.3, ek_cli.some(MOVING + LAYOUTS[1:], 2)), 3)

    def test_launcher(self):
        """The same command continues from memory, also in another layout."""
        j = self.elastic(LAYOUTS[0])
        for layout in (LAYOUTS[1], (1, ""), (4, "--etp 2 --ep 2 --balance exact")):
            j.wait_for_steps(self.told().count(b"\n") + 3)
            self.kill_launcher(j)
            told = self.told()
            self.assertGreater(len(self.segments()), 0)
            j = self.elastic(layout)
            j.wait_for_steps(told.count(b"\n") + 1)
            self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assert_done(j, 0)

    def lose(self, j, rank):
        worker = j.rank(rank)
        self.remove_segment(self.segments()[rank])
        os.kill(worker, signal.SIGKILL)

    def test_a_lost_host(self):
        """All of the model is on another one."""
        j = self.elastic(LAYOUTS[3])
        j.wait_for_steps(20)
        self.lose(j, 1)
        self.assertNotIn("going back", self.assert_done(j, 1))

    def test_a_lost_host_that_alone_had_experts(self):
        """The bias goes back to the checkpoint with the weights."""
        j = self.elastic(LAYOUTS[0], "--save-every", 40)
        j.wait_for_steps(60)
        while not self.assert_whole():
            time.sleep(0.01)
        self.lose(j, 1)
        self.assertIn("going back", self.assert_done(j, 1))
        self.assertEqual(self.generations()[-1]["from"], "checkpoint")
        self.assert_same_bits(LAYOUTS[0])

    def test_resumed(self):
        """From the checkpoint of an interrupted run, after a failure."""
        j = self.elastic(LAYOUTS[0])
        j.wait_for_steps(20)
        self.kill_rank(j, 0)
        j.wait_for_steps(40)
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual((status, err.count(AGAIN)), (INTERRUPTED, 1), err)
        self.assert_no_segments()
        before = self.bias(self.out)
        j = self.job(LAYOUTS[0], "--elastic", "--resume")
        j.wait_for_steps(self.told().count(b"\n") + 10)
        self.assert_done(j, 0)
        self.assertNotEqual(before, self.bias(self.out))
        self.assert_same_bits(LAYOUTS[0])


class OnHosts(Bias, hosts.Hosts):
    def end_of(self, j):
        err = self.assert_done(j)
        self.assert_same_bias()
        return err

    def test_one_is_lost_and_comes_back(self):
        j = self.start()
        j.wait_for_steps(20)
        told = self.told()
        self.lose(j, "b")
        self.wait_for_ranks(j, 2)
        self.unset("down", "b")
        self.wait_for_ranks(j, 3)
        self.assertTrue(self.told().startswith(told), "a step was taken again")
        err = self.end_of(j)
        self.assertEqual(self.ranks_were(), [3, 2, 3], err)

    def test_notice(self):
        """A drained host hands its experts over, and the others have the bias."""
        j = self.start("--ep 3")
        self.drain(j)
        err = self.end_of(j)
        self.assertIn("a c b", self.gave(), err)


ranks.both(globals(), WithBias, OnHosts, first=True)
del Bias, WithBias, OnHosts, OpenEnded

if __name__ == "__main__":
    ek_cli.main()
