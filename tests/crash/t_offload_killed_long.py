"""kill -9 at 50 random instants of training with experts on disk, with gradients there and in
memory."""

import offload


class Killed(offload.Offload):
    def test_fp32(self):
        self.kill_and_compare(25, 7, "fp32")

    def test_gradients_on_disk(self):
        self.GRADIENTS = "disk"
        self.kill_and_compare(25, 8, "bf16")


if __name__ == "__main__":
    offload.ek_cli.main()
