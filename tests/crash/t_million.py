"""An --elastic run with a million steps recovers from a lost worker like one with few steps."""

import ranks
import t_long_runs
from elastic import Elastic


LEFT = 1000  # steps: the worker is killed long before the last one


class Million(Elastic):
    def recover(self, steps):
        """Transfer time of a recovery after this number of steps."""
        layout = (2, "--ep 2")
        self.out = self.path("run%d" % steps)
        self.run_job(layout, steps=3)
        t_long_runs.make_old(self.out, steps)
        j = self.elastic(layout, steps=steps + LEFT)
        j.wait_for_steps(steps + 4)
        self.kill_rank(j, 1)
        status, _, err = j.end()
        self.assertEqual(status, ranks.DONE, err)
        self.assertEqual(ranks.ek_cli.lines_of(self.out + "/metrics.jsonl"), steps + LEFT)
        self.clean()
        last = self.generations()[-1]
        self.assertGreater(last["first_step"], steps)
        return last["transfer_s"]

    def test_recovery(self):
        few, many = self.recover(10), self.recover(t_long_runs.MILLION)
        self.assertLess(many, few + 120)  # it was hours


ranks.both(globals(), Million, first=True)
del Million, Elastic

if __name__ == "__main__":
    ranks.ek_cli.main()
