"""Hosts that leave and return, and workers that hang, with one MPI; t_hosts_long.py has the
others."""

import hosts
import ranks
from ranks import ek_cli

ranks.both(globals(), hosts.GoAndCome, hosts.Hangs, first=True)

if __name__ == "__main__":
    ek_cli.main()
