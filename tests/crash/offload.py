"""Training with experts on disk that is killed at random instants; shared by t_offload_killed.py,
t_offload_killed_long.py and t_offload_disks.py."""

import json

import crash
from crash import ek_cli

# 19 MB of experts' masters and moments, in 8 buckets
MODEL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "head_dim": 32,
         "num_local_experts": 8}


class Offload(crash.Kill):
    STEPS = 24
    GRADIENTS = "memory"
    limit = None

    def setUp(self):
        super().setUp()
        self.config = ek_cli.write_config(self.path("config.json"), **MODEL)

    def arguments(self, out, dtype, *more):
        limit = ["--memory-limit", self.limit] if self.limit else []
        return super().arguments(out, dtype, "--offload", "experts", "--offload-dir", self.folder,
                                 "--offload-gradients", self.GRADIENTS, *limit, *more)

    def set_limit(self, dtype):
        """The least memory that is let to train, about, so that buckets give way to others."""
        def needs(limit):
            r = ek_cli.run(*self.arguments("none", dtype, "--dry-run", "--json", "--memory-limit",
                                           limit))
            return json.loads(r.stdout)["memory"] if r.returncode == ek_cli.DONE else None

        low, high = 1, int(needs("8G")["most_mb"] * 1e6)
        while high - low > 1 << 20:
            middle = (low + high) // 2
            low, high = (low, middle) if needs(middle) else (middle, high)
        self.limit = high + (1 << 20)  # what a process holds differs a little from start to start

    def check_transfers(self, out):
        """Steps read and wrote: more than half of the uses of experts did not find them in memory,
        and the updates of all were written."""
        for m in ek_cli.metrics(self.path(out))[1:]:
            self.assertLess(m["disk"]["hits"][0], m["disk"]["uses"][0] / 2)
            self.assertGreater(m["disk"]["read_mb"][0], 10)
            self.assertGreater(m["disk"]["written_mb"][0], 10)

    def kill_and_compare(self, kills, seed, dtype):
        self.set_limit(dtype)
        self.kill_often(kills, seed, dtype)
        self.check_transfers("whole")
