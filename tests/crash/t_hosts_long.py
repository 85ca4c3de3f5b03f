"""What t_hosts.py does, under every MPI there is."""

import hosts
import ranks
from ranks import ek_cli

ranks.both(globals(), hosts.GoAndCome, hosts.Hangs, hosts.CannotGoOn, hosts.Patience)

if __name__ == "__main__":
    ek_cli.main()
