"""Before the first step: tokenising, memory checks, and the model of a resumed run."""

import fcntl
import os
import signal

import ek_cli
from ek_cli import FAILED, INTERRUPTED


class Texts(ek_cli.Case):
    def test_interrupted_while_tokenising(self):
        """Soon, not after the last text; no leftovers."""
        line = "all work and no play makes jack a dull boy\n"
        text = ek_cli.write(self.path("texts", "long.txt"), line * ((100 << 20) // len(line)))
        args = self.train_args("run", data=text)
        with ek_cli.start(*args) as p:
            cache = self.tokens
            while p.poll() is None and not (os.path.isdir(cache) and os.listdir(cache)):
                pass
            p.send_signal(signal.SIGINT)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, INTERRUPTED, err)
        if "after step" in err:
            self.skipTest("the signal came when all was tokenised")
        self.assertIn("while the texts were tokenised", err)
        self.assertEqual(os.listdir(cache), [])
        self.assertFalse(os.path.exists(self.path("run")))

    def test_a_folder_with_the_name_of_a_token_file(self):
        ek_cli.write(self.path("texts.bin", "a.txt"), "some text, long enough for a window\n" * 9)
        self.train("run", data=self.path("texts.bin"), steps=1)


class ResumedModel(ek_cli.Case):
    def test_another_config(self):
        """Keys that change no shape change the arithmetic all the same."""
        self.train("run", steps=2)
        before = ek_cli.tree(self.path("run"))
        for key, value in {"rope_theta": 500.0, "num_experts_per_tok": 1,
                           "rms_norm_eps": 1e-6}.items():
            config = ek_cli.write_config(self.path("other.json"), **{key: value})
            r = self.train("run", "--model", config, "--resume", status=ek_cli.USAGE, steps=4)
            self.assertIn(key, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertEqual(ek_cli.tree(self.path("run")), before)
        self.train("run", "--model", ek_cli.newest(self.path("run")), "--resume", steps=4)


class TwoRuns(ek_cli.Case):
    def test_one_folder(self):
        """The second run is refused and leaves the files of the first."""
        self.train("run", steps=2)
        before = ek_cli.tree(self.path("run"))
        lock = os.open(self.path("run"), os.O_RDONLY)  # as a run at work holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        for more in ([], ["--resume"]):
            r = self.train("run", *more, status=FAILED, steps=4)
            self.assertIn(self.path("run") + " is in use by another process", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertEqual(ek_cli.tree(self.path("run")), before)
        os.close(lock)
        self.train("run", "--resume", steps=4)

    def test_a_run_at_work(self):
        args = self.train_args("run", "--quiet", steps=100000)
        with ek_cli.start(*args) as p:
            ek_cli.wait_for_steps(p, self.path("run"), 1)
            self.train("run", status=FAILED)
            p.send_signal(signal.SIGINT)
            _, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, INTERRUPTED, err)


class Memory(ek_cli.Case):
    def test_more_than_there_is(self):
        """Reported before memory is reserved: the system would grant it, and kill the run later."""
        config = ek_cli.write_config(self.path("long.json"), max_position_embeddings=1024)
        r = self.train("run", "--model", config, "--seq", 1000, "--batch", 1000000, status=FAILED)
        self.assertIn("the run needs about", r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        self.assertFalse(os.path.exists(self.path("run")))


if __name__ == "__main__":
    ek_cli.main()
