"""Output on a terminal: names from files cannot contain control sequences, --quiet hides no
warning, and each speed has a unit."""

import json
import os
import pty
import re
import subprocess

import ek_cli
from ek_cli import BAD_INPUT, COMMAND, DONE, TIMEOUT_S, USAGE, run, write, write_safetensors

TITLE = "\x1b]0;taken\x07"  # sets the title of a terminal's window
SHOWN = "\\x1b]0;taken\\x07"
COMMANDS = ("train", "eval", "generate", "export", "check", "clean", "plan", "workload", "bench",
            "info")


class ForeignNames(ek_cli.Case):
    def assert_escaped(self, text):
        self.assertIn(SHOWN, text)
        self.assertFalse(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), repr(text))

    def assert_refused(self, status, *args):
        r = run(*args)
        self.assertEqual(r.returncode, status, r.stderr)
        self.assert_escaped(r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1 + r.stderr.count("Try `"), r.stderr)

    def test_model_type_is_escaped(self):
        config = ek_cli.write_config(self.path("foreign.json"), model_type=TITLE + "\n")
        self.assert_refused(BAD_INPUT, *self.train_args("run"), "--model", config)

    def test_model_type_is_escaped_with_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec")
        config = ek_cli.write_config(self.path("foreign.json"), model_type=TITLE)
        r = run(*self.train_args("run"), "--model", config, "--ranks", 2)
        self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
        self.assert_escaped(r.stderr)

    def test_dtype_and_shard_names_are_escaped(self):
        folder = self.path("model")
        ek_cli.write_config(os.path.join(folder, "config.json"))
        write_safetensors(os.path.join(folder, "model.safetensors"), {"a": (TITLE, (1,), b"1234")})
        self.assert_refused(BAD_INPUT, "eval", "--model", folder, "--data", self.data)
        os.remove(os.path.join(folder, "model.safetensors"))
        write(os.path.join(folder, "model.safetensors.index.json"),
              json.dumps({"weight_map": {"a": TITLE + ".safetensors"}}))
        self.assert_refused(BAD_INPUT, "eval", "--model", folder, "--data", self.data)

    def test_tokenizer_type_is_escaped(self):
        tokenizer = write(self.path("tokenizer.json"), json.dumps({"model": {"type": TITLE}}))
        text = write(self.path("a.txt"), "a text " * 50)
        self.assert_refused(BAD_INPUT, "train", "--model", self.config, "--data", text,
                            "--tokenizer", tokenizer, "--out", self.path("run"), "--steps", 1, "--seq", 16)

    def test_arguments_and_paths_are_escaped(self):
        self.assert_refused(USAGE, "train", TITLE)
        self.assert_refused(USAGE, "train", "--" + TITLE)
        self.assert_refused(BAD_INPUT, "check", "--checkpoint", self.path(TITLE))
        self.assertIn(SHOWN, run(TITLE).stderr)
        self.assertNotIn("\x1b", run(TITLE).stderr)

    def test_folders_in_results_are_escaped(self):
        r = run(*self.train_args("run" + TITLE, steps=1))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assert_escaped(r.stderr)
        self.assert_escaped(r.stdout)
        r = run("check", "--checkpoint", self.path("run" + TITLE))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assert_escaped(r.stdout)
        r = run("export", "--from", self.path("run" + TITLE), "--to", self.path("to" + TITLE))
        self.assertEqual(r.returncode, DONE, r.stderr)
        self.assert_escaped(r.stdout)

    def test_other_scripts_stay_readable(self):
        r = run("check", "--checkpoint", self.path("nö-漢"))
        self.assertEqual(r.returncode, BAD_INPUT)
        self.assertIn("nö-漢", r.stderr)


class GeneratedText(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.train("run", "--tokenizer", "bytes", steps=1)
        self.prompt = write(self.path("prompt"), "a%s\tb\nc" % TITLE)

    def args(self, *more):
        return [COMMAND, "generate", "--model", self.path("run"), "--prompt-file", self.prompt,
                "--tokens", "4", *more]

    def test_a_pipe_gets_the_bytes(self):
        r = subprocess.run(self.args("--quiet"), stdout=subprocess.PIPE, timeout=TIMEOUT_S,
                           stdin=subprocess.DEVNULL, check=True)
        self.assertTrue(r.stdout.startswith(ek_cli.read(self.prompt)), r.stdout)

    def test_a_terminal_gets_controls_escaped(self):
        try:
            master, slave = pty.openpty()
        except OSError as e:
            self.skipTest("no pseudo-terminal: %s" % e)
        with subprocess.Popen(self.args("--quiet"), stdout=slave, stdin=subprocess.DEVNULL) as p:
            os.close(slave)
            text = b"".join(ek_cli.terminal_output(master))
        os.close(master)
        self.assertEqual(p.returncode, DONE, text)
        self.assertTrue(text.startswith(b"a" + SHOWN.encode() + b"\tb\r\nc"), text)
        self.assertNotIn(b"\x1b", text)

    def test_speed_is_of_new_tokens_and_the_prompt_apart(self):
        r = subprocess.run(self.args(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, errors="replace", check=True)
        n = len(ek_cli.read(self.prompt))
        self.assertRegex(r.stderr, r"^[2-4] tokens, [\d.]+ tokens/s; prompt: %d tokens, [\d.]+ "
                                   r"tokens/s\n$" % n)

    def test_a_text_beyond_the_model_names_prompt_and_tokens(self):
        r = run(*self.args("--tokens", "60")[1:])
        self.assertEqual(r.returncode, USAGE, r.stderr)
        n = len(ek_cli.read(self.prompt))
        self.assertIn("the prompt has %d tokens, and 60 are to be added (--tokens)" % n, r.stderr)


class Help(ek_cli.Case):
    def test_h_is_help(self):
        for command in ((), *((c,) for c in COMMANDS)):
            with self.subTest(command):
                r = run(*command, "-h")
                self.assertEqual((r.returncode, r.stderr), (DONE, ""))
                self.assertEqual(r.stdout, run(*command, "--help").stdout)


class Quiet(ek_cli.Case):
    def test_warnings_are_not_hidden(self):
        self.train("run", "--save-every", 2)
        file = os.path.join(ek_cli.newest(self.path("run")), "model.safetensors")
        data = bytearray(ek_cli.read(file))
        data[-1] ^= 1
        write(file, bytes(data))
        r = self.train("run", "--resume")
        self.assertRegex(r.stderr, r"\Awarning: .*step-00000006.*\n\Z")
        self.assertEqual(r.stdout, "")

    def test_that_the_model_is_changed_is_not_hidden(self):
        r = self.train("run", "--reroute", "swipe")
        self.assertRegex(r.stderr, r"\Awarning: .*--reroute swipe.*\n\Z")


if __name__ == "__main__":
    ek_cli.main()
