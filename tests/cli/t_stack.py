"""A small stack is enlarged or refused, and never overflows."""

import os
import resource

import ek_cli
from ek_cli import DONE, FAILED

SMALL = 128 << 10


def limited(soft, hard):
    """For preexec_fn: limits of the stack, in bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


class Stack(ek_cli.Case):
    def commands(self):
        self.train("model", steps=1)
        return [self.train_args("run", "--quiet", steps=2),
                ["eval", "--model", self.path("model"), "--data", self.data],
                ["generate", "--model", self.path("model"), "--tokenizer", "bytes", "--prompt",
                 "some text", "--tokens", 3, "--quiet"]]

    def setUp(self):
        super().setUp()
        if resource.getrlimit(resource.RLIMIT_STACK)[1] not in (-1, resource.RLIM_INFINITY) and \
                resource.getrlimit(resource.RLIMIT_STACK)[1] < 8 << 20:
            self.skipTest("the stack is limited here")

    def test_a_soft_limit_is_raised(self):
        for args in self.commands():
            r = ek_cli.run(*args, preexec_fn=limited(SMALL, 8 << 20))
            self.assertEqual(r.returncode, DONE, r.stderr)

    def test_a_hard_limit_is_said(self):
        for args in self.commands():
            r = ek_cli.run(*args, preexec_fn=limited(SMALL, SMALL))
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertIn("the stack limit is 128 KiB", r.stderr)
            self.assertIn("ulimit -s", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)

    def test_the_least_that_is_taken_is_enough(self):
        for args in self.commands():
            r = ek_cli.run(*args, preexec_fn=limited(1536 << 10, 1536 << 10))
            self.assertEqual(r.returncode, DONE, r.stderr)

    def test_stacks_of_compute_threads(self):
        for args in self.commands():
            r = ek_cli.run(*args, "--threads", 2, env={**os.environ, "OMP_STACKSIZE": "128k"})
            self.assertEqual(r.returncode, FAILED, r.stderr)
            self.assertIn("OMP_STACKSIZE", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)


if __name__ == "__main__":
    ek_cli.main()
