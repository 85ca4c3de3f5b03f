"""--elastic runs that lose a host: from replicas, from a checkpoint, or from the start."""

import json
import os
import shutil
import signal
import time

import ranks
from elastic import LAYOUTS, Elastic
from ranks import DONE, ek_cli


class Lost(Elastic):
    """A removed segment emulates a lost host."""

    steps = 300
    lr = 2e-4

    def lose(self, j, rank):
        """Kills a rank and removes its segment, in either order."""
        worker = j.rank(rank)
        self.remove_segment(self.segments()[rank])
        os.kill(worker, signal.SIGKILL)

    def test_of_replicas(self):
        """Without expert parallelism, every rank has the whole model."""
        j = self.elastic((2, ""))
        j.wait_for_steps(5)
        self.lose(j, 1)
        err = self.assert_done(j, 1)
        self.assertNotIn("going back", err)

    def test_of_the_only_one(self):
        """Automatic restart from the newest checkpoint, or from the start."""
        for more in (("--save-every", 4), ()):
            with self.subTest(more=more):
                shutil.rmtree(self.out, True)
                j = self.elastic(LAYOUTS[0], *more)
                j.wait_for_steps(6)
                while more and not self.assert_whole():
                    time.sleep(0.01)
                self.lose(j, 0)
                self.assert_done(j, 1)

    def test_evaluations_of_lost_steps(self):
        """Steps repeated from the checkpoint of OUT/best are evaluated again."""
        self.lr = 0.01
        held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(2000, seed=9))
        more = ("--eval-data", held_out, "--eval-every", 2, "--patience", 1000)
        found = []
        for lost in (False, True):
            shutil.rmtree(self.out, True)
            j = self.elastic(LAYOUTS[0], *more, steps=150)
            if lost:
                j.wait_for_steps(60)
                self.lose(j, 0)
            status, _, err = j.end()
            self.assertEqual(status, DONE, err)
            self.assertEqual("going back from" in err, lost, err)
            lines = ek_cli.metrics(self.out)
            self.assertEqual([m["step"] for m in lines], list(range(150)))
            self.assertEqual([m["step"] + 1 for m in lines if "eval_loss" in m],
                             list(range(2, 151, 2)))
            state = json.loads(ek_cli.read(os.path.join(self.out, "evaluation.json")))
            self.assertLess(state["best_step"], 50, "steps after the best one are to be lost")
            found.append([state[k] for k in ("step", "best_step", "since_best")])
        self.assertEqual(*found)

    def test_of_all(self):
        """The same if no state is left at all, with a warning about the repeated steps."""
        self.steps = 600
        for more, source, said in (
                (("--save-every", 250), "checkpoint", "the checkpoint of step 250: no state of "
                                                      "the run is left in memory"),
                ((), "start", "the beginning: no state of the run is left in memory, and there is "
                              "no checkpoint")):
            with self.subTest(more=more):
                shutil.rmtree(self.out, True)
                j = self.elastic(LAYOUTS[0], *more)
                j.wait_for_steps(260)
                while more and not self.assert_whole():
                    time.sleep(0.01)
                for path in self.segments():
                    os.unlink(os.path.join(path, "front"))
                self.kill_rank(j, 1)
                j.process.wait()
                err = self.assert_done(j, 1)
                first, last = self.generations()
                self.assertEqual((first["from"], first["steps_again"]), ("start", 0))
                self.assertEqual(last["from"], source)
                self.assertGreaterEqual(last["first_step"] + last["steps_again"], 260)
                self.assertIn("evenkeel train: warning: %d completed steps are repeated, from "
                              "%s\n" % (last["steps_again"], said), err)
                self.assert_undone(last["first_step"], last["steps_again"])

    def assert_undone(self, first, n):
        """The lines of the steps that are repeated were kept, but for the last, if it was not
        complete; they are needed where lost hosts return with their later state."""
        text = ek_cli.read(os.path.join(self.out, "metrics-undone.jsonl")).decode()
        steps = [json.loads(line)["step"] for line in text.splitlines()]
        self.assertEqual(steps, list(range(first, first + len(steps))))
        self.assertIn(len(steps), (n - 1, n))


ranks.in_turn(globals(), Lost)
del Lost, Elastic

if __name__ == "__main__":
    ek_cli.main()
