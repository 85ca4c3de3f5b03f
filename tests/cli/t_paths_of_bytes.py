"""Paths that are not UTF-8: every command accepts them, and no JSON loses a key or a setting."""

import json
import os
import shutil

import ek_cli
from ek_cli import DONE, run

BAD = os.fsdecode(b"p\xff-\xc3(")
SHOWN = r"p\xff-\xc3("


class Paths(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.folder, BAD)
        try:
            os.mkdir(self.folder)
        except OSError as e:
            self.skipTest("the file system has no such names: %s" % e)
        self.config = ek_cli.write_config(self.path("config.json"))
        self.data = shutil.copy(self.data, self.path("data.bin"))

    def ok(self, *args, **kw):
        r = run(*args, **kw)
        self.assertEqual(r.returncode, DONE, r.stderr)
        return r

    def assert_shown(self, path, *parts):
        self.assertEqual(path.split(SHOWN)[1:], ["".join(parts)], path)
        self.assertEqual(path.count("\\x"), 2)

    def test_train_check_and_resume(self):
        r = self.ok(*self.train_args("run", "--json", "--record-routing", "--timeline"))
        summary = json.loads(r.stdout)
        self.assert_shown(summary["checkpoint"], "/run/checkpoint/step-00000006")
        settings = json.loads(ek_cli.read(self.path("run", "run.json")))
        self.assert_shown(settings["settings"]["model"], "/config.json")
        self.assert_shown(settings["settings"]["data"][0], "/data.bin")
        self.assertEqual(len([w for w in settings["command"] if SHOWN in w]), 3)
        c = json.loads(self.ok("check", "--checkpoint", self.path("run"), "--json").stdout)
        self.assert_shown(c["checkpoint"], "/run/checkpoint/step-00000006")
        self.ok("train", "--resume", "--out", self.path("run"), "--steps", 8, "--quiet",
                "--override")
        self.assertEqual(len(ek_cli.metrics(self.path("run"))), 8)
        self.ok("export", "--from", self.path("run"), "--to", self.path("hf"))
        self.evaluate(self.path("hf"), self.data)
        self.ok("generate", "--model", self.path("run"), "--prompt", "a", "--tokens", 2,
                "--tokenizer", "bytes", "--quiet")

    def test_dry_run(self):
        plan = json.loads(self.ok(*self.train_args("run", "--dry-run", "--json")).stdout)
        self.assert_shown(plan["out"], "/run")

    def test_the_working_folder(self):
        r = self.ok(*self.train_args("run", "--quiet"), "--out", "here", cwd=self.folder)
        self.assertEqual(r.stderr, "")
        about = json.loads(ek_cli.read(self.path("here", "run.json")))
        self.assert_shown(about["directory"])
        self.ok("train", "--resume", "--out", "here", "--quiet", cwd=self.folder)

    def test_a_change_is_told(self):
        self.ok(*self.train_args("run", "--quiet"))
        other = shutil.copy(self.data, self.path("other.bin"))
        r = self.ok("train", "--resume", "--out", self.path("run"), "--steps", 8, "--data", other,
                    "--override")
        self.assertIn(SHOWN + "/other.bin", r.stderr.replace("\\\\", "\\"))

    def test_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec")
        r = self.ok(*self.train_args("run", "--json", "--ranks", 2, "--threads", 1))
        self.assert_shown(json.loads(r.stdout)["checkpoint"], "/run/checkpoint/step-00000006")
        self.ok("train", "--resume", "--out", self.path("run"), "--steps", 8, "--quiet",
                "--override")

    def test_bench(self):
        r = self.ok("bench", "generate", "--model", self.config, "--json", "--threads", 1,
                    "--repeats", 1, "--prompt", 4, "--tokens", 4, "--seconds", 0.01)
        self.assert_shown(json.loads(r.stdout)["model"], "/config.json")


if __name__ == "__main__":
    ek_cli.main()
