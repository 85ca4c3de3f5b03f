"""--elastic runs that end, are interrupted, refused or started anew, and files of other users."""

import os
import re
import shutil
import signal
import subprocess

import ranks
from elastic import AGAIN, LAYOUTS, Elastic
from ranks import DONE, FAILED, INTERRUPTED, USAGE, ek_cli


class Ends(Elastic):
    def test_no_failure(self):
        j = self.elastic(LAYOUTS[0])
        self.assert_done(j, 0)

    def test_alone(self):
        self.steps, self.lr = 1000, 2e-4
        j = self.elastic((1, ""))
        j.wait_for_steps(4)
        self.kill_rank(j, 0)
        self.assert_done(j, 1)

    def test_interrupted(self):
        j = self.elastic(LAYOUTS[0], steps=100000)
        j.wait_for_steps(4)
        j.process.send_signal(signal.SIGINT)
        status, _, err = j.end()
        self.assertEqual(status, INTERRUPTED, err)
        self.assert_no_segments()
        self.assertGreater(self.assert_whole(), 3)

    def test_a_mistake_is_not_tried_again(self):
        j = self.job((2, "--ep 2 --offload experts"), "--elastic")
        self.assert_said(j.end(), USAGE, r"--offload experts: .* does not go with --elastic")
        j = self.elastic(LAYOUTS[0], data=self.path("none.txt"))
        status, _, err = j.end()
        self.assertNotEqual(status, DONE)
        self.assertNotIn(AGAIN, err)

    def test_other_settings(self):
        j = self.elastic(LAYOUTS[0], steps=100000)
        j.wait_for_steps(4)
        r = ek_cli.run("clean", "--out", self.out)
        self.assertEqual(r.returncode, FAILED, r.stdout)
        self.assertIn("still using its memory", r.stderr)
        self.assertRegex(r.stdout, r"--out %s: rank 0 of 2, generation 0, \S+ \S*B, ready, \d+ steps "
                         r"completed, in use\n" % re.escape(os.path.realpath(self.out)))
        self.kill_launcher(j)
        args = self.args(LAYOUTS[0], "--elastic")
        args[args.index("--batch") + 1] = 8
        again = ranks.Job(self.command, args, self.out)
        status, _, err = again.end()
        self.assertEqual(status, USAGE, err)
        self.assertRegex(err, r"evenkeel clean --out")
        listed = ek_cli.run("clean")
        self.assertRegex(listed.stdout, r"--out %s: rank 1 of 2, generation 0, \S+ \S*B, ready, "
                         r"\d+ steps completed\n" % re.escape(os.path.realpath(self.out)))
        r = self.clean()
        self.assertRegex(r.stdout, r"\n2 segments removed")
        self.assert_no_segments()

    def test_done_but_not_saved(self):
        """All steps are completed and in memory; only the last checkpoint is missing."""
        j = self.elastic(LAYOUTS[0], steps=100000)
        j.wait_for_steps(4)
        self.kill_launcher(j)
        j = self.elastic(LAYOUTS[0], steps=self.told().count(b"\n"))
        status, _, err = j.end()
        self.assertEqual(status, DONE, err)
        self.assertEqual(self.assert_whole(), self.told().count(b"\n"))
        self.assert_no_segments()

    def test_the_line_of_a_step_is_not_lost(self):
        """Two kills in a row: the second one before the line of the last step could be written."""
        self.steps, self.lr = 200, 2e-4
        j = self.elastic(LAYOUTS[0])
        for n in range(6):
            j.wait_for_steps(10 + 15 * n)
            for _ in range(2):
                j.wait_for_members(2)
                try:
                    self.kill_rank(j, n % 2)
                except (AssertionError, ProcessLookupError):
                    pass
        self.assert_done(j)

    def test_beside_a_run(self):
        """A second start, with or without --elastic, does not disturb a run."""
        self.steps, self.lr = 1200, 2e-4
        j = self.elastic(LAYOUTS[0])
        j.wait_for_steps(5)
        status, _, err = self.job(LAYOUTS[0]).end()
        self.assertEqual(status, FAILED, err)
        self.assertIn("is in use", err)
        self.assertEqual(len(self.segments()), 2)
        self.kill_rank(j, 0)
        self.assert_done(j, 1)

    def test_started_anew(self):
        """A run without --elastic neither leaves state in memory nor uses it."""
        j = self.elastic(LAYOUTS[0], steps=100000)
        j.wait_for_steps(4)
        self.kill_launcher(j)
        self.assertEqual(len(self.segments()), 2)
        self.run_job(LAYOUTS[0])
        self.assert_same_losses()
        self.assert_no_segments()


class OtherUsers(Elastic):
    """Other users of this host, who can create any files in /dev/shm."""

    steps = 600
    lr = 2e-4

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("files of another user need root")

    def as_nobody(self, script, *words):
        r = subprocess.run(["/bin/sh", "-c", script, "sh", *words], check=False, text=True,
                           capture_output=True, user="nobody", group="nogroup", extra_groups=[])
        return r.returncode, r.stderr

    def take_names(self, run, generations):
        """Creates every name of a run's state that can be guessed: as a file, as a folder like the
        run's, and as a link to one of this user.  Returns the names."""
        names = ["/dev/shm/evenkeel-%s-%d-%d%s" % (run, g, r, end) for g in generations
                 for r in range(2) for end in ("", "-" + "0" * 32, "-" + "1" * 32)]
        own = self.path("own")
        if not os.path.isdir(own):
            os.mkdir(own, 0o700)
            ek_cli.write(os.path.join(own, "front"), "kept")
        self.assertEqual(self.as_nobody('own=$1; shift\n'
                                        'for i; do case $i in\n'
                                        '*00000000) mkdir -m 700 $i ;;\n'
                                        '*11111111) ln -s "$own" $i ;;\n'
                                        '*) touch $i ;;\n'
                                        'esac || exit 1; done', own, *names), (0, ""))
        for name in names:
            self.addCleanup(os.rmdir if name.endswith("0" * 32) else os.unlink, name)
        return names + [os.path.join(own, "front")]

    def test_names_that_others_have_taken(self):
        """Their files stop neither a recovery nor a start; messages name the owner."""
        j = self.elastic(LAYOUTS[0])
        j.wait_for_steps(5)
        folders = self.segments()
        self.assertEqual(len(folders), 2)
        run = folders[0].split("-")[1]
        for folder in folders:
            self.assertRegex(folder, r"^/dev/shm/evenkeel-[0-9a-f]{16}-0-[01]-[0-9a-f]{32}$")
            self.assertNotEqual(self.as_nobody("touch %s/77" % folder)[0], 0)
            self.assertNotEqual(self.as_nobody("ls %s" % folder)[0], 0)
        names = self.take_names(run, (1, 2))
        self.kill_rank(j, 1)
        said = r"warning: /dev/shm/evenkeel-%s-1-0\S* belongs to user nobody, and is ignored" \
            % run
        self.assertRegex(self.assert_done(j, 1), said)
        names += self.take_names(run, (0,))
        shutil.rmtree(self.out)
        self.assertRegex(self.assert_done(self.elastic(LAYOUTS[0])), said.replace("-1-", "-0-"))
        self.run_job(LAYOUTS[0], "--overwrite")
        self.assertTrue(all(map(os.path.exists, names)))  # clean does not touch them, either


ranks.in_turn(globals(), Ends)
# The other MPI takes its time to end a job.
ranks.both(globals(), OtherUsers, first=True)
del Ends, OtherUsers, Elastic

if __name__ == "__main__":
    ek_cli.main()
