"""t_hosts.py and t_hosts_lists.py with every installed MPI."""

import hosts
import ranks
from ranks import ek_cli

ranks.both(globals(), hosts.GoAndCome, hosts.Hangs, hosts.Lists, hosts.CannotGoOn, hosts.Patience)

if __name__ == "__main__":
    ek_cli.main()
