"""evenkeel bench disk: figures are finite numbers for every size that fits the file, and no file is
left or changed.  No speed is asserted."""

import json
import math
import os
import unittest

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, run


def bench(*args):
    return run("bench", "disk", "--repeats", "2", "--seconds", "0.001", *args)


class Disk(ek_cli.Case):
    def test_a_file_that_is_made(self):
        os.mkdir(self.path("made"))
        r = bench("--dir", self.path("made"), "--file-size", "13", "--json")
        self.assertEqual(r.returncode, DONE, r.stderr)
        found = json.loads(r.stdout)
        sizes = {4096, 65536, 1 << 20, 12 << 20}
        self.assertEqual(found["file_bytes"], 13 << 20)
        self.assertIn(found["direct"], (True, False))
        for how in ("pread pool", "buffered"):
            rows = [x for x in found["reads"] if x["how"] == how]
            self.assertEqual({x["bytes"] for x in rows}, sizes)
            self.assertEqual({x["calls"] for x in rows}, {1} if how == "buffered" else {1, 4, 16})
            for x in rows:
                self.assertEqual(x["mb_per_s"]["n"], 2)
                self.assertTrue(0 < x["mb_per_s"]["median"] < math.inf, x)
        best = [x["of_best"] for x in found["reads"] if x["how"] != "buffered"]
        self.assertAlmostEqual(max(best), 1)
        self.assertEqual(os.listdir(self.path("made")), [])

    def test_a_file_that_is_there(self):
        path = self.path("data")
        with open(path, "wb") as f:
            f.write(bytes(range(256)) * 4096 + b"tail")
        before = os.stat(path)
        r = bench("--file", path)
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assertIn("   64 KiB", r.stdout)
        self.assertNotIn("12288 KiB", r.stdout)
        self.assertEqual((before.st_size, before.st_mtime_ns),
                         (os.stat(path).st_size, os.stat(path).st_mtime_ns))

    def test_what_cannot_be_read(self):
        small = ek_cli.write(self.path("small"), "x" * 5000)
        for args, status, text in ((("--file", small), USAGE, "smaller than 1 MiB"),
                                   (("--file", self.path("none")), BAD_INPUT, "No such file"),
                                   (("--dir", self.path("none")), BAD_INPUT, "No such file")):
            r = bench(*args)
            self.assertEqual(r.returncode, status, r.stderr)
            self.assertIn(text, r.stderr)


if __name__ == "__main__":
    unittest.main()
