"""Settings that change while a run trains: --top-k-schedule and --capacity-schedule."""

import struct

import ek_cli
from ek_cli import USAGE, losses, metrics


class Schedules(ek_cli.Case):
    def run_of(self, name, *more, steps=6):
        self.train(name, "--dtype", "fp64", *more, steps=steps)
        return metrics(self.path(name))

    def routing(self, path):
        """Assignments of every step, from a uint32 trace."""
        data = ek_cli.read(path)
        numbers = struct.unpack("<%dI" % ((len(data) - 128) // 4), data[128:])
        a_step = len(numbers) // 6
        return [numbers[i:i + a_step] for i in range(0, len(numbers), a_step)]

    def test_top_k(self):
        plain = self.run_of("plain")
        steps = self.run_of("scheduled", "--top-k-schedule", "2:1,4:2", "--record-routing")
        self.assertEqual([m["loss"] for m in steps[:2]], [m["loss"] for m in plain[:2]])
        self.assertNotEqual(steps[2]["loss"], plain[2]["loss"])
        chosen = self.path("scheduled", "routing.npy")
        steps_of = [sum(s) for s in self.routing(chosen)]
        self.assertEqual(steps_of[:2], steps_of[4:])
        self.assertEqual([2 * n for n in steps_of[2:4]], steps_of[:2])

    def test_a_schedule_from_step_0_is_the_option(self):
        self.run_of("option", "--top-k", 1, "--capacity-factor", 0.5)
        self.run_of("schedule", "--top-k-schedule", "0:1", "--capacity-schedule", "0:0.5")
        self.assertEqual(losses(self.path("schedule")), losses(self.path("option")))

    def test_capacity(self):
        steps = self.run_of("run", "--capacity-schedule", "2:0.5,4:0")
        self.assertEqual([m["dropped"] > 0 for m in steps],
                         [False, False, True, True, False, False])

    def test_a_resumed_run_goes_on_with_them(self):
        more = ("--top-k-schedule", "1:1,4:2", "--capacity-schedule", "3:0.75", "--lr-schedule",
                "constant", "--warmup", 0)
        whole = self.run_of("whole", *more)
        self.run_of("resumed", *more, steps=2)
        r = ek_cli.run("train", "--out", self.path("resumed"), "--resume", "--steps", 6)
        self.assertEqual(r.returncode, ek_cli.DONE, r.stderr)
        self.assertEqual(losses(self.path("resumed")), [m["loss"] for m in whole])
        self.assertGreater(whole[5]["dropped"], 0)

    def test_another_schedule_is_refused_on_resume(self):
        self.run_of("run", "--top-k-schedule", "1:1", steps=2)
        r = ek_cli.run("train", "--out", self.path("run"), "--resume", "--steps", 4,
                       "--top-k-schedule", "1:2")
        self.assertEqual(r.returncode, USAGE, r.stderr)
        self.assertIn("--top-k-schedule", r.stderr)

    def test_mistakes(self):
        for option, value, word in (("--top-k-schedule", "1:3", "from 1 to 2"),
                                    ("--top-k-schedule", "1", "STEP:VALUE"),
                                    ("--capacity-schedule", "5:1,2:1", "does not come after")):
            r = ek_cli.run(*self.train_args("bad", option, value))
            self.assertEqual(r.returncode, USAGE, r.stderr)
            self.assertIn(word, r.stderr)


if __name__ == "__main__":
    ek_cli.main()
