"""Host lists that change, and those with which a run cannot continue, with one MPI;
t_hosts_long.py has the others."""

import hosts
import ranks
from ranks import ek_cli

ranks.both(globals(), hosts.Lists, hosts.CannotGoOn, first=True)

if __name__ == "__main__":
    ek_cli.main()
