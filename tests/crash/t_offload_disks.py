"""Training with experts on real disks that are full, cut short, or have no room left behind what
they promise: file systems on loop devices, which only root can mount."""

import contextlib
import os
import re
import shutil
import subprocess
import time

import offload
from offload import ek_cli

MIB = 1 << 20


def call(*command):
    """What a tool prints; None if it fails or is missing."""
    if not shutil.which(command[0]):
        return None
    r = subprocess.run(command, capture_output=True, text=True, check=False)
    return r.stdout.strip() if r.returncode == 0 else None


class Disks(offload.Offload):
    STEPS = 60

    @contextlib.contextmanager
    def disk(self, file, size):
        """A new file system of this many bytes in a file that takes no room yet."""
        folder = self.path("disk")
        os.mkdir(folder)
        with open(file, "wb") as f:
            f.truncate(size)
        if call("mkfs.ext4", "-q", "-F", "-O", "^has_journal", file) is None:
            self.skipTest("needs mkfs.ext4")
        device = call("losetup", "--find", "--show", file) if os.geteuid() == 0 else None
        if device is None:
            self.skipTest("needs a loop device, and the right to use one")
        try:
            if call("mount", "-t", "ext4", device, folder) is None:
                self.skipTest("needs the right to mount ext4")
            try:
                yield folder
            finally:
                call("umount", "-l", folder)
        finally:
            call("losetup", "-d", device)

    def assert_sentence(self, status, err, *patterns):
        self.assertEqual(status, ek_cli.FAILED, err)
        self.assertEqual(len(ek_cli.without_waits(err).splitlines()), 1, err)
        for p in patterns:
            self.assertRegex(err, p)

    def test_full(self):
        """Before the first step."""
        with self.disk(self.path("image"), 64 * MIB) as folder:
            room = os.statvfs(folder)
            ek_cli.write(os.path.join(folder, "stone"),
                         bytes(room.f_bavail * room.f_bsize - 10 * MIB))
            r = ek_cli.run(*self.arguments("cut", "fp32", "--offload-dir", folder))
            self.assert_sentence(r.returncode, r.stderr, r"No space left|full|no room",
                                 re.escape(folder))
            self.assertEqual(sorted(os.listdir(folder)), ["lost+found", "stone"])
            self.assertFalse(os.path.exists(self.path("cut", "checkpoint")))
            os.remove(os.path.join(folder, "stone"))
            r = ek_cli.run(*self.arguments("cut", "fp32", "--offload-dir", folder, "--steps", 1))
            self.assertEqual((r.returncode, r.stderr), (ek_cli.DONE, ""))

    def fail_after_a_save(self, folder, fail, *patterns):
        """The disk fails once there is a checkpoint; the run ends, and goes on from there on
        another disk."""
        with ek_cli.start(*self.arguments("cut", "fp32", "--offload-dir", folder)) as p:
            while not os.path.exists(self.path("cut", "checkpoint", "step-00000006")):
                self.assertIsNone(p.poll(), "ended before it was to")
                time.sleep(0.01)
            while p.poll() is None:
                fail()
                time.sleep(0.01)
            _, err = p.communicate()
        self.assert_sentence(p.returncode, err, *patterns)
        for out, more in (("cut", ["--resume"]), ("whole", [])):
            r = ek_cli.run(*self.arguments(out, "fp32", *more))
            self.assertEqual((r.returncode, r.stderr), (ek_cli.DONE, ""))
        self.same_as_whole()

    def test_cut_short(self):
        """Reads of what is no longer there fail, and so do those of what a later write has filled
        with zeros."""
        image = self.path("image")
        self.set_limit("fp32")
        with self.disk(image, 64 * MIB) as folder:
            self.fail_after_a_save(folder, lambda: os.truncate(image, 0),
                                   r"Input/output error|other bytes than were written",
                                   re.escape(folder))

    def test_no_room_behind_it(self):
        """A file system that has promised room which its own disk does not have (thin
        provisioning): writes fail."""
        small = self.path("small")
        os.mkdir(small)
        if os.geteuid() != 0 or call("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small) is None:
            self.skipTest("needs the right to mount a tmpfs")
        try:
            with self.disk(os.path.join(small, "image"), 64 * MIB) as folder:
                r = ek_cli.run(*self.arguments("cut", "fp32", "--offload-dir", folder))
                self.assert_sentence(r.returncode, r.stderr, r"Input/output error|No space left",
                                     re.escape(folder))
        finally:
            call("umount", "-l", small)


if __name__ == "__main__":
    ek_cli.main()
