"""kill -9 at 20 random instants of a run, in bf16 and fp32."""

import crash


class Many(crash.Kill):
    def test_fp32(self):
        self.kill_often(20, 2, "fp32")

    def test_bf16(self):
        self.kill_often(20, 3, "bf16")


if __name__ == "__main__":
    crash.ek_cli.main()
