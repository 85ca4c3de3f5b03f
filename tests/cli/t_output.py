"""Output of the command: a closed pipe or a full disk is a failure with a message."""

import os
import subprocess

import ek_cli
from ek_cli import COMMAND, FAILED


class Output(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.train("run", steps=1)

    def assert_told(self, process):
        _, err = process.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(process.returncode, FAILED, err)
        self.assertEqual(err, "evenkeel: cannot write to standard output\n")

    def commands(self):
        run = self.path("run")
        return [["generate", "--model", run, "--prompt", "a", "--tokens", "5", "--quiet",
                 "--tokenizer", "bytes"],
                ["eval", "--model", run, "--data", self.data, "--seq", "16", "--json"], ["info"],
                ["train", "--help"], ["--version"]]

    def test_one_core(self):
        core = min(os.sched_getaffinity(0))
        r = ek_cli.run("info", preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        self.assertIn("; 1 core usable\n", r.stdout)

    def test_the_reader_leaves(self):
        for args in self.commands():
            with self.subTest(args[0]):
                reading, writing = os.pipe()
                os.close(reading)
                with subprocess.Popen([COMMAND, *args], stdout=writing, stderr=subprocess.PIPE,
                                      text=True) as p:
                    os.close(writing)
                    self.assert_told(p)

    def test_full(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for args in self.commands():
            with self.subTest(args[0]), open("/dev/full", "w") as full:
                with subprocess.Popen([COMMAND, *args], stdout=full, stderr=subprocess.PIPE,
                                      text=True) as p:
                    self.assert_told(p)


if __name__ == "__main__":
    ek_cli.main()
