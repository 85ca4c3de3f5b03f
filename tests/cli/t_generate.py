"""generate: sources of the prompt, end of the text, and limits of sampling."""

import os
import pty
import subprocess

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, DONE, TIMEOUT_S, USAGE, run, write

PROMPT = "keel and hull"


class Generate(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.train("run", "--tokenizer", "bytes", steps=3)

    def say(self, *args, stdin=subprocess.DEVNULL, status=DONE, tokens=24):
        if isinstance(stdin, (str, bytes)):
            path = write(self.path("stdin"), stdin)
            stdin = open(path, "rb")  # pylint: disable=consider-using-with
            self.addCleanup(stdin.close)
        command = [COMMAND, "generate", "--model", self.path("run"), "--tokens", str(tokens),
                   "--seed", "3", "--dtype", "fp32", "--quiet", *map(str, args)]
        r = subprocess.run(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=TIMEOUT_S, check=False)
        self.assertEqual(r.returncode, status, r.stderr)
        return r.stdout.decode() if status == DONE else r.stderr.decode()

    def test_prompt_comes_from_option_file_or_stdin(self):
        want = self.say("--prompt", PROMPT)
        self.assertTrue(want.startswith(PROMPT))
        for end in ("", "\n", "\r\n"):
            file = write(self.path("prompt"), (PROMPT + end).encode())
            self.assertEqual(self.say("--prompt-file", file), want)
            self.assertEqual(self.say("--prompt", "-", stdin=PROMPT + end), want)
            self.assertEqual(self.say(stdin=PROMPT + end), want)
        self.assertTrue(self.say(stdin=PROMPT + "\n\n").startswith(PROMPT + "\n"))

    def test_no_prompt_on_a_terminal_is_wrong_usage(self):
        master, slave = pty.openpty()
        try:
            self.assertIn("--prompt-file FILE, or text on stdin", self.say(stdin=slave, status=USAGE))
        finally:
            os.close(master)
            os.close(slave)

    def test_prompts_that_are_none_are_refused(self):
        file = write(self.path("prompt"), b"a\0b")
        self.assertIn("one", self.say("--prompt", "a", "--prompt-file", file, status=USAGE))
        self.assertIn("NUL byte", self.say("--prompt-file", file, status=BAD_INPUT))
        self.assertIn("no-such", self.say("--prompt-file", self.path("no-such"), status=BAD_INPUT))
        self.assertIn("directory", self.say("--prompt-file", self.folder, status=BAD_INPUT))
        self.assertIn("NUL byte", self.say(stdin=b"\0", status=BAD_INPUT))

    def test_stop_strings_end_the_text_and_are_not_printed(self):
        whole = self.say("--prompt", PROMPT, "--temperature", 1.5)
        made = whole[len(PROMPT):-1]
        stop = made[8:11]  # bytes are tokens: it spans some
        self.assertEqual(self.say("--prompt", PROMPT, "--temperature", 1.5, "--stop", "hull", stop),
                         PROMPT + made[:made.index(stop)] + "\n")
        self.assertEqual(self.say("--prompt", PROMPT, "--temperature", 1.5, "--stop", made + "x"),
                         whole)
        self.assertIn("stop string", self.say("--prompt", "a", "--stop", b"\xff".decode(
            errors="surrogateescape"), status=USAGE))

    def test_filters_limit_the_draws(self):
        greedy = self.say("--prompt", PROMPT, "--temperature", 0)
        self.assertEqual(self.say("--prompt", PROMPT, "--min-p", 1, "--temperature", 2), greedy)
        self.assertNotEqual(self.say("--prompt", PROMPT, "--temperature", 2), greedy)
        punished = self.say("--prompt", PROMPT, "--temperature", 0, "--repetition-penalty", 1000)
        made = punished[len(PROMPT):-1].replace("\ufffd", "")  # bytes that are no text
        self.assertEqual(len(set(made)), len(made), punished)  # nothing twice
        self.assertFalse(set(made) & set(PROMPT))
        self.say("--prompt", "a", "--min-p", 1.5, status=USAGE)
        self.say("--prompt", "a", "--repetition-penalty", 0, status=USAGE)


if __name__ == "__main__":
    ek_cli.main()
