"""evenkeel workload: synthetic routing traces; and `train --replay-routing`, which reproduces
their loads."""

import json
import os
import struct

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, losses, run

NAMES = ["W%d" % i for i in range(8)] + ["drifting", "stable", "switching", "flat"]


def read_npy(path):
    """The shape and the numbers of a file of uint32."""
    data = ek_cli.read(path)
    n = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10:10 + n], {})  # the format is a Python dictionary
    assert header["descr"] == "<u4" and not header["fortran_order"] and (10 + n) % 64 == 0
    return header["shape"], struct.unpack("<%dI" % ((len(data) - 10 - n) // 4), data[10 + n:])


class Workload(ek_cli.Case):
    def workload(self, name, *more, out="trace.npy", status=DONE):
        r = run("workload", "--name", name, "--ranks", 4, "--experts", 10, "--layers", 2,
                "--iterations", 6, "--tokens", 50, "--out", self.path(out), *more)
        said = "%s: 6 iterations, 2 layers, 4 sources, 10 experts\n" % self.path(out)
        self.assertEqual((r.returncode, r.stdout), (status, said if status == DONE else ""), r.stderr)
        return self.path(out) if status == DONE else r.stderr

    def test_every_workload(self):
        for name in NAMES:
            with self.subTest(name):
                path = self.workload(name)
                shape, counts = read_npy(path)
                self.assertEqual((shape, len(counts)), ((6, 2, 4, 10), 480))
                for i in range(0, 480, 40):
                    self.assertEqual(sum(counts[i:i + 40]), 4 * 50 * 2)
                again = self.workload(name, out="again.npy")
                self.assertEqual(ek_cli.read(path), ek_cli.read(again))
                r = run("plan", "--trace", path, "--ranks", 4, "--json")
                self.assertEqual(r.returncode, DONE, r.stderr)
                self.assertGreater(json.loads(r.stdout)["plans"], 0)
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["again.npy", "config.json", "data.bin", "trace.npy"])

    def test_help_lists_them(self):
        r = run("workload", "--help")
        self.assertEqual((r.returncode, r.stderr), (DONE, ""))
        for name in NAMES:
            self.assertRegex(r.stdout, r"\n  %s +[\w-]+.*\w{4}" % name)

    def test_mistakes(self):
        for more, status, text in (
                (("--name", "W8"), USAGE, "W7, drifting"),
                (("--top-k", 11), USAGE, "cannot pick 11 of 10 experts"),
                (("--ranks", 65536, "--experts", 65536), USAGE, "too many"),
                (("--out", self.path("no/such.npy")), BAD_INPUT, "no/such.npy"),
                (("--out", "/dev/full/x"), BAD_INPUT, "/dev/full/x")):
            with self.subTest(more):
                self.assertIn(text, self.workload("W1", *more, status=status))
        self.assertFalse(os.path.exists(self.path("trace.npy")))


class Replay(ek_cli.Case):
    def trace(self, name="W2", experts=4, tokens=32):
        path = self.path("trace.npy")
        r = run("workload", "--name", name, "--ranks", 2, "--experts", experts, "--layers", 2,
                "--iterations", 4, "--tokens", tokens, "--out", path)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return path

    def test_recorded_loads_are_those_replayed(self):
        trace = self.trace()
        _, want = read_npy(trace)
        self.train("run", "--replay-routing", trace, "--record-routing")
        shape, got = read_npy(self.path("run", "routing.npy"))
        self.assertEqual(shape, (6, 2, 1, 4))
        for i in range(12):  # step and layer: two ranks' loads together
            a, b = want[8 * (i % 8):8 * (i % 8) + 4], want[8 * (i % 8) + 4:8 * (i % 8) + 8]
            self.assertEqual(list(got[4 * i:4 * i + 4]), [x + y for x, y in zip(a, b)])
        # what was recorded is replayed likewise, over all tokens together
        self.train("again", "--replay-routing", self.path("run", "routing.npy"),
                   "--record-routing")
        self.assertEqual(read_npy(self.path("again", "routing.npy")), (shape, got))

    def test_other_sizes(self):
        trace = self.trace("W4", tokens=1000)
        self.train("run", "--replay-routing", trace, "--micro-batch", 3, "--top-k", 1,
                   "--capacity-factor", 0.5)
        self.assertGreater(ek_cli.metrics(self.path("run"))[0]["dropped"], 0)

    def test_a_resumed_run_goes_on_in_the_trace(self):
        more = ("--replay-routing", self.trace(), "--lr-schedule", "constant", "--warmup", 0)
        self.train("whole", *more)
        self.train("parts", *more, steps=3)
        self.train("parts", *more, "--resume")
        self.assertEqual(losses(self.path("parts")), losses(self.path("whole")))
        self.train("own", *more[2:])
        self.assertNotEqual(losses(self.path("own"))[0], losses(self.path("whole"))[0])

    def test_mistakes(self):
        good, other = self.trace(), self.path("other.npy")
        os.rename(good, other)
        wrong = self.trace(experts=6)
        broken = ek_cli.write(self.path("broken.npy"), b"\x93NUMPY\x01\x00")
        for more, status, text in (
                ((wrong,), BAD_INPUT, "is of 6 experts, and the model has 4"),
                ((broken,), BAD_INPUT, "broken.npy"),
                ((self.path("missing.npy"),), BAD_INPUT, "missing.npy"),
                ((other, "--force-balance"), USAGE,
                 "--force-balance and --replay-routing each replace")):
            with self.subTest(more):
                r = self.train("run", "--replay-routing", *more, status=status)
                self.assertIn(text, r.stderr)
                self.assertFalse(os.path.exists(self.path("run")))


if __name__ == "__main__":
    ek_cli.main()
