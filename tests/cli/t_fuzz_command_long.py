"""Thousands of random command lines: see fuzz_command.py.  EK_FUZZ_SEED gives the first seed."""

import os

import ek_cli
import fuzz_command

SEED = int(os.environ.get("EK_FUZZ_SEED", "1000"))
SEEDS, LINES, SECONDS = 8, 1000, 600


class Lines(ek_cli.Case):
    def lines_of(self, seed):
        found = fuzz_command.Fuzzer(self, seed).search(LINES, SECONDS)
        self.assertEqual(found, [], "\n\n" + "\n\n".join(found))


def test_of(seed):
    return lambda self: self.lines_of(seed)


for n in range(SEED, SEED + SEEDS):
    setattr(Lines, "test_seed_%d" % n, test_of(n))

if __name__ == "__main__":
    ek_cli.main()
