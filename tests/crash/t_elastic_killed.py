"""--elastic runs whose workers or launcher are killed: they continue from memory, neither lose
nor repeat a step, and reach the losses of a run without faults."""

import json
import os
import random
import re
import shutil
import signal
import time

import ranks
from elastic import AGAIN, LAYOUTS, MOVING, Elastic, OpenEnded
from ranks import DONE, INTERRUPTED, ek_cli


class Killed(Elastic):
    steps = 150  # of which many are left when a worker is killed, if that takes a moment
    lr = 2e-4

    def test_evaluations(self):
        """Evaluations are neither lost nor counted twice, whenever workers are killed."""
        self.steps = 60  # each of which is evaluated, and most of which are saved as the best
        held_out = ek_cli.write_tokens(os.path.join(os.path.dirname(self.out), "held.bin"),
                                       ek_cli.token_ids(2000, seed=9))
        want = None
        for seed in (None, 1, 2):
            with self.subTest(seed=seed):
                shutil.rmtree(self.out, True)
                rng = random.Random(seed)
                j, kills = self.elastic((2, "--ep 2"), "--eval-data", held_out, "--eval-every", 1,
                                        "--keep", 1), 0
                while seed is not None and kills < 3 and j.process.poll() is None:
                    j.wait_for_steps(2 + 10 * kills)
                    time.sleep(rng.random() * 0.05)
                    try:
                        self.kill_rank(j, kills % 2)
                    except (AssertionError, ProcessLookupError):  # it is about to end
                        break
                    kills += 1
                self.assert_done(j, kills)
                lines = ek_cli.metrics(self.out)
                self.assertEqual([m["step"] for m in lines], list(range(self.steps)))
                found = [m["eval_loss"] for m in lines]
                with open(os.path.join(self.out, "evaluation.json")) as f:
                    state = json.load(f)
                want = want or (found, state)
                for a, b in zip(found, want[0]):
                    self.assertLessEqual(abs(a - b), 1e-9 * b)
                self.assertEqual([state[k] for k in ("step", "best_step", "since_best")],
                                 [want[1][k] for k in ("step", "best_step", "since_best")])
                best = os.path.realpath(os.path.join(self.out, "best"))
                self.assertEqual(int(best[-8:]), state["best_step"])

    def test_interrupted_while_a_recovery_evaluates(self):
        """A worker is killed during an evaluation, which the recovery repeats; Ctrl-C interrupts
        that one as well.  The steps are then in a checkpoint, or still in memory."""
        held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(10000, seed=9) * 1000)
        more = ("--eval-data", held_out, "--eval-every", 5, "--eval-tokens", 0)
        j = self.elastic((2, "--ep 2"), *more)
        j.wait_for_steps(5)
        self.kill_rank(j, 1)
        self.wait_for_next_generation(j)
        time.sleep(0.2)  # it evaluates, if not it still begins: then memory has to stay
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        self.assertEqual(len(self.told().splitlines()), 5)
        self.assertTrue(self.segments() or self.assert_whole() == 5, err)
        if "the checkpoint is written" in err:
            self.assertEqual(self.assert_whole(), 5)
        j = self.elastic((2, "--ep 2"), *more[:-1], 1000)
        status, _, err = j.end()
        self.assertEqual(status, DONE, err)
        self.assert_same_losses()
        self.assertEqual(self.generations()[-1]["first_step"], 5)
        self.assert_no_segments()

    def kill_and_change_the_best(self, more, **changes):
        """Kills a job and its launcher, and changes evaluation.json so that the last step was
        evaluated; returns that step, and the step of OUT/best."""
        j = self.elastic((2, "--ep 2"), *more, steps=100000)
        j.wait_for_steps(6)
        self.kill_launcher(j)
        step = int(re.search(r"--out %s: rank 0 of 2.* (\d+) steps completed" % re.escape(
            os.path.realpath(self.out)), ek_cli.run("clean").stdout).group(1))
        path = os.path.join(self.out, "evaluation.json")
        state = json.loads(ek_cli.read(path))
        state.update(step=step, best_step=step - changes["since_best"], **changes)
        ek_cli.write(path, json.dumps(state))
        return step, int(os.readlink(os.path.join(self.out, "best"))[-8:])

    def test_best_model_whose_save_was_lost(self):
        """evaluation.json already names a best model, and the job is killed before its checkpoint
        is committed: the recovery saves it, or falls back to the best existing model."""
        held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(2000, seed=9))
        more = ("--eval-data", held_out, "--eval-every", 1, "--keep", 99)
        # losses that no later evaluation comes to, which would make up for what is lost
        cases = (("in memory", {"loss": 0.5, "best_loss": 0.5, "since_best": 0}),
                 ("nowhere", {"loss": 0.5, "best_loss": 0.25, "since_best": 1}),
                 ("nowhere, an older one in OUT/best",
                  {"loss": 99, "best_loss": 0.25, "since_best": 1}))
        for where, changes in cases:
            with self.subTest(where=where):
                shutil.rmtree(self.out, True)
                step, best = self.kill_and_change_the_best(more, **changes)
                older = "older" in where
                if not older:
                    os.unlink(os.path.join(self.out, "best"))
                    shutil.rmtree(os.path.join(self.out, "checkpoint"))
                    best = step
                elif best >= step - 1:
                    continue  # killed before the next evaluation, so that the best is too new
                j = self.elastic((2, "--ep 2"), *more, steps=step + 3 * (not older))
                status, _, err = j.end()
                self.assertEqual(status, DONE, err)
                state = json.loads(ek_cli.read(os.path.join(self.out, "evaluation.json")))
                self.assertEqual(state["best_step"], best)
                self.assertGreater(state["best_loss"], 0.25)
                self.assertEqual(os.readlink(os.path.join(self.out, "best")),
                                 "checkpoint/step-%08d" % best)
                self.assert_no_segments()

    def test_that_nothing_is_copied(self):
        """Ranks that stay on their host adopt their state in place."""
        self.steps, self.lr = 40, 0.01  # no expert moves then in the step that is broken off
        for layout in LAYOUTS[:1] + MOVING[:1]:
            with self.subTest(layout=layout):
                self.assert_done(self.start_and_kill(layout, 6, 0), 1)
                found = self.generations()[-1]
                self.assertGreater(found["taken_mb"], 0, found)
                self.assertEqual((found["copied_mb"], found["received_mb"]), (0, 0), found)

    def test_tuners_go_on(self):
        """Tuned exchange settings are not searched again.  The search among four settings ends
        after 60 steps; none begins for a hundred more."""
        self.steps, search = 150, 60
        self.assert_done(self.start_and_kill((2, "--ep 2 --balance off"), search + 10, 1), 1)
        first = self.generations()[1]["first_step"]
        self.assertGreaterEqual(first, search + 10)
        used = [(m["pipeline_degree"], m["a2a"]) for m in ek_cli.metrics(self.out)]
        self.assertGreater(len(set(used[:4])), 1, "nothing was tuned")
        self.assertEqual(set(used[search:first + 8]), {used[search]})

    def test_documents_apart(self):
        """The number of loss targets equals that of a run without faults."""
        ids = [256 if i % 7 == 3 else token for i, token in enumerate(ek_cli.token_ids(1500))]
        data, whole = ek_cli.write_tokens(self.path("documents.bin"), ids), self.path("whole")
        r = ek_cli.run(*self.args((1, "--document-mask"), out=whole, data=data))
        self.assertEqual(r.returncode, DONE, r.stderr)
        j = self.elastic((2, "--document-mask"), data=data)
        j.wait_for_steps(6)
        self.kill_rank(j, 1)
        status, _, err = j.end()
        self.assertEqual((status, err.count(AGAIN)), (DONE, 1), err)
        self.assert_close(ek_cli.losses(self.out), ek_cli.losses(whole), 1e-9)
        counts = [[m["loss_tokens"] for m in ek_cli.metrics(out)] for out in (self.out, whole)]
        self.assertEqual(*counts)
        self.assertLess(max(counts[0]), 64)


class KilledAtAnyTime(OpenEnded):
    def test_workers(self):
        """One after the other; each recovery continues after the last step of all ranks."""
        self.kill_workers(ek_cli.some(LAYOUTS, 2))

    def test_workers_while_experts_move(self):
        for layout in ek_cli.some(MOVING, 2):
            self.kill_workers([layout])
            self.assertGreater(sum(m["experts_moved"] for m in ek_cli.metrics(self.out)), 3)

    def kill_workers(self, layouts):
        for layout in layouts:
            with self.subTest(layout=layout):
                kills, err = self.kill_workers_in_turn(layout, apart=10)
                self.assertEqual(err.count("was killed by signal 9") +
                                 err.count("exited without an error report"), kills, err)

    def test_at_random(self):
        """At any instant: also while they start, recover, or end."""
        self.assertGreater(self.kill_at_random_instants(7, 4, 0.3, ek_cli.some(MOVING + LAYOUTS, 2, 1)), 5)

    def test_launcher(self):
        """The same command continues, also with another number of ranks and another layout."""
        j = self.elastic(LAYOUTS[0])
        for layout in (LAYOUTS[0], (3, "--ep 3"), (1, ""), (4, "--etp 2 --ep 2 --balance exact")):
            with self.subTest(layout=layout):
                j.wait_for_steps(self.told().count(b"\n") + 3)
                self.kill_launcher(j)
                told = self.told()
                self.assertGreater(len(self.segments()), 0)
                j = self.elastic(layout)
                j.wait_for_steps(told.count(b"\n") + 1)
                self.assertTrue(self.told().startswith(told), "a step was taken again")
        self.assert_done(j, 0)

    def test_stages_with_other_layers(self):
        """State in memory does not depend on the cut of layers, which differs where it is measured:
        layers move to the stage that has them now."""
        j, held = None, []
        for layers in ("2,1", "1,2", "measured"):
            with self.subTest(layers=layers):
                j = self.elastic((2, "--pp 2 --pp-layers " + layers))
                told = self.told()
                j.wait_for_steps(told.count(b"\n") + 3)
                self.assertTrue(self.told().startswith(told), "a step was taken again")
                held.append(ek_cli.metrics(self.out)[-1]["params_held"])
                if layers != "measured":
                    self.kill_launcher(j)
        self.assertGreater(held[0][0], held[1][0])
        self.kill_rank(j, 1)  # and is measured again
        err = self.assert_done(j, 1)
        self.assertNotIn("going back", err)


# The other MPI takes its time to end a job, and has its turn in the long test.
ranks.both(globals(), Killed, KilledAtAnyTime, first=True)
del Killed, KilledAtAnyTime, Elastic, OpenEnded

if __name__ == "__main__":
    ek_cli.main()
