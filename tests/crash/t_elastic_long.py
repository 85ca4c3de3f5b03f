"""More of t_elastic_killed.py: a hundred and more kills at random instants, under each MPI."""

import ranks
from elastic import Elastic, ek_cli


class Many(Elastic):
    def test_at_random(self):
        done = 0
        for seed in range(100, 130):  # the quicker the machine, the more a run gets done before
            if done > 100:
                break
            with self.subTest(seed=seed):
                done += self.kill_at_random_instants(seed, 4, 0.1 * (2 + (seed - 100) % 7))
        print("%d kills" % done)
        self.assertGreater(done, 100)


ranks.both(globals(), Many)
del Many

if __name__ == "__main__":
    ek_cli.main()
