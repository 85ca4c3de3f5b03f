"""kill -9 of ranks, mpiexec and launchers at 100 random instants, and many short jobs in a row."""

import ranks


class Many(ranks.Disaster):
    def test_kills(self):
        self.kill_at_random(11, 50)

    def test_ends(self):
        for i in range(30):
            self.run_job(ranks.LAYOUTS[i % len(ranks.LAYOUTS)], steps=2)


ranks.both(globals(), Many)
del Many

if __name__ == "__main__":
    ranks.ek_cli.main()
