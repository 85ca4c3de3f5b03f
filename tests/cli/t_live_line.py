"""The live line takes one row of a terminal of any width, also when the width changes; other
lines start on rows of their own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import ek_cli
from ek_cli import COMMAND, DONE


class Screen:
    """Rows of a terminal: what is printed past the last column goes on in the next row."""

    def __init__(self, columns):
        self.columns, self.rows, self.at = columns, [""], 0

    def feed(self, data):
        for part in re.findall("\033\\[[0-9;]*[A-Za-z]|.", data.decode(errors="replace"), re.S):
            self.put(part)

    def put(self, part):
        row = self.rows[-1]
        if part == "\r":
            self.at = 0
        elif part == "\n":
            self.rows.append("")
        elif part == "\033[K":
            self.rows[-1] = row[:self.at]
        elif part[0] == "\033":
            raise AssertionError("unexpected %r" % part)
        else:
            if self.at == self.columns:
                self.rows.append("")
                row, self.at = "", 0
            self.rows[-1] = row[:self.at].ljust(self.at) + part + row[self.at + 1:]
            self.at += 1


def resize(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class LiveLine(ek_cli.Case):
    def output(self, columns, *args, later=None):
        """What a run writes to a terminal on stderr, which is `later` columns wide after some
        updates."""
        try:
            master, slave = pty.openpty()
        except OSError as e:
            self.skipTest("no pseudo-terminal: %s" % e)
        resize(slave, columns)
        text = b""
        with subprocess.Popen([COMMAND, *map(str, args)], stdout=subprocess.DEVNULL,
                              stderr=slave, stdin=subprocess.DEVNULL) as p:
            os.close(slave)
            for piece in ek_cli.terminal_output(master):
                text += piece
                if later and text.count(b"\rstep") > 2:
                    resize(master, later)
                    later = None
        os.close(master)
        self.assertEqual(p.returncode, DONE, text)
        return text

    def on_terminal(self, columns, *args):
        screen = Screen(columns)
        screen.feed(self.output(columns, *args))
        return screen.rows

    def assert_one_row(self, rows, last="step 400/400"):
        steps = [row for row in rows if re.match("step( |$)", row)]
        self.assertEqual(len(steps), 1, rows)
        self.assertTrue(steps[0].startswith(last), rows)
        self.assertEqual(rows[-1], "", rows)
        return steps[0]

    def test_one_row(self):
        for columns, fields in ((200, ("loss", "tokens/s", "balance", "left")),
                                (80, ("loss", "tokens/s", "balance", "left")),
                                (50, ("loss", "left")), (20, ()), (5, ())):
            rows = self.on_terminal(columns, *self.train_args("run%d" % columns, steps=400))
            step = self.assert_one_row(rows, "step 400/400"[:columns - 1])
            for field in ("loss", "tokens/s", "balance", "left"):
                if field in fields:
                    self.assertIn(field, step)
                elif columns <= 20:
                    self.assertNotIn(field, step)

    def test_the_width_changes(self):
        for steps in (3000, 30000):  # more, where a run is over before this process has changed the width
            text = self.output(100, *self.train_args("run", steps=steps), later=25).decode()
            lines = re.findall("\r(step .*?)\033\\[K", text)
            self.assertGreater(len(lines[0]), 60)
            if len(lines[-1]) <= 25:
                break
        self.assertEqual(lines[-1], "step %d/%d" % (steps, steps))
        self.assertEqual(text[text.index(lines[0]):].count("\n"), 1, text)

    def test_texts_are_read(self):
        text = ek_cli.write(self.path("a.txt"), "a text of some words " * 200000)
        rows = self.on_terminal(12, *self.train_args("run", steps=1, data=text))
        self.assertEqual([r.strip() for r in rows if "tokenis" in r], ["tokenising"])

    def test_evaluations(self):
        """An evaluation says how far it has come, and what came of it in a row of its own."""
        for times in (1, 10, 100):  # what takes less than a tenth of a second says nothing
            held_out = ek_cli.write_tokens(self.path("held.bin"), ek_cli.token_ids(150000, seed=2) * times)
            text = self.output(80, *self.train_args("run", "--eval-data", held_out, "--eval-every", 3,
                                                    "--eval-tokens", 0)).decode()
            said = [int(p) for p in re.findall(r"\revaluating +(\d+) %\x1b\[K\r", text)]
            if said:
                break
        self.assertTrue(said and 0 < max(said) <= 100, text)
        self.assertRegex(text, r"\rstep 3/6  eval loss [\d.]+  perplexity [\d.]+  \(best so far\)"
                               r"\x1b\[K\r?\n")

    def test_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec")
        for columns in (80, 50, 20):
            rows = self.on_terminal(columns, *self.train_args("run%d" % columns, "--threads", 1,
                                                                "--ranks", 2, steps=100))
            self.assert_one_row(rows, "step 100/100")


if __name__ == "__main__":
    ek_cli.main()
