"""Long runs: memory does not grow with the number of steps, whatever is recorded, and resuming
costs the same after a million steps."""

import json
import os

import ek_cli
import t_check
from ek_cli import metrics, read, write

MILLION = 10**6


class Memory(ek_cli.Case):
    STEPS, GROWTH_MB = 2500, 1.5

    def growth(self, name, *more, steps=STEPS):
        """Growth of the peak, in MB, after the first fifth of a run."""
        config = ek_cli.write_config(self.path("config.json"), num_hidden_layers=4,
                                     num_local_experts=128, hidden_size=4, intermediate_size=1,
                                     num_attention_heads=1, num_key_value_heads=1, head_dim=4)
        self.train(name, "--model", config, "--batch", 1, "--seq", 4, "--threads", 1, *more,
                   steps=steps)
        peaks = [max(m["peak_rss_mb"]) for m in metrics(self.path(name))]
        return peaks[-1] - peaks[steps // 5]

    def test_plain(self):
        self.assertLess(self.growth("run"), self.GROWTH_MB)

    def test_routing(self):
        self.assertLess(self.growth("run", "--record-routing"), self.GROWTH_MB)
        size = 4 * 128 * 4 * self.STEPS  # layers, experts, bytes
        self.assertEqual(os.path.getsize(self.path("run", "routing.npy")), 128 + size)
        self.assertEqual(sorted(os.listdir(self.path("run"))),
                         ["checkpoint", "metrics.jsonl", "routing.npy", "run.json"])

    def test_timeline(self):
        self.assertLess(self.growth("run", "--timeline"), self.GROWTH_MB)
        self.assertLess(os.path.getsize(self.path("run", "timeline.json")), 10e6)

    def test_plans_of_ranks(self):
        if ek_cli.mpiexec() is None:
            self.skipTest("no mpiexec")
        grown = self.growth("run", "--ranks", 2, "--ep", 2, "--balance", "exact", "--record-plans",
                            "--record-routing", "--timeline", steps=800)
        self.assertLess(grown, 2 * self.GROWTH_MB)


def make_old(out, steps):
    """Makes a run that has just ended one that has taken so many steps; with short lines."""
    old = ek_cli.newest(out)
    folder = os.path.join(os.path.dirname(old), "step-%08d" % steps)
    if folder != old:
        os.rename(old, folder)
    for name, key in (("state.json", "steps_done"), ("manifest.json", "step")):
        path = os.path.join(folder, name)
        write(path, json.dumps({**json.loads(read(path)), key: steps}))
    t_check.seal(folder)
    with open(os.path.join(out, "metrics.jsonl"), "w") as f:
        for begin in range(0, steps, 10000):
            f.write("".join('{"step": %d, "tokens": 64, "loss": 5.5, "lr": 0.001}\n' % i
                            for i in range(begin, min(begin + 10000, steps))))


def bytes_read():
    """Bytes read by this process and its ended children, from files and pipes."""
    with open("/proc/self/io") as f:
        return int(f.read().split()[1])


class Resume(ek_cli.Case):
    def resume(self, steps):
        """Bytes read to resume for two steps after this number of steps."""
        out = "run%d" % steps
        self.train(out, steps=3)
        make_old(self.path(out), steps)
        before = bytes_read()
        self.train(out, "--resume", steps=steps + 2)
        got = bytes_read() - before
        self.assertEqual(ek_cli.lines_of(self.path(out, "metrics.jsonl")), steps + 2)
        self.assertTrue(os.path.basename(ek_cli.newest(self.path(out))).endswith(str(steps + 2)))
        return got

    def test_a_million_steps(self):
        few, many = self.resume(10), self.resume(MILLION)
        self.assertLess(many - few, 1e6)  # the metrics have 57 MB


if __name__ == "__main__":
    ek_cli.main()
