"""Some hundred random command lines: see fuzz_command.py."""

import os

import ek_cli
import fuzz_command

SEED = int(os.environ.get("EK_FUZZ_SEED", "1"))
LINES = int(os.environ.get("EK_FUZZ_LINES", "170"))
SECONDS = 150  # on a slow machine fewer lines


class Lines(ek_cli.Case):
    def test_random_lines(self):
        fuzzer = fuzz_command.Fuzzer(self, SEED)
        found = fuzzer.search(LINES, SECONDS)
        print(fuzzer.statuses)
        self.assertEqual(found, [], "\n\n" + "\n\n".join(found))
        share = sum(fuzzer.statuses.values()) / LINES
        for status, least in ((0, 6), (2, 11), (3, 6)):
            self.assertGreaterEqual(fuzzer.statuses.get(status, 0), max(1, int(share * least)), fuzzer.statuses)


if __name__ == "__main__":
    ek_cli.main()
