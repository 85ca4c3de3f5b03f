"""kill -9 at 3 random instants of training with experts on disk; 50 are in
t_offload_killed_long.py."""

import offload


class Killed(offload.Offload):
    def test_bf16(self):
        self.kill_and_compare(3, 5, "bf16")


if __name__ == "__main__":
    offload.ek_cli.main()
