"""kill -9 at 5 random instants of a run."""

import crash


class Quick(crash.Kill):
    def test_kill(self):
        self.kill_often(5, 1, "fp32")


if __name__ == "__main__":
    crash.ek_cli.main()
