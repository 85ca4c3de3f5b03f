#!/bin/sh
# Replacement for ssh, called by mpiexec as `cluster_launch.sh [-x] NODE WORD...`: runs the words in a
# shell on a node of tools/cluster.  EVENKEEL_CLUSTER selects the cluster.
set -eu
while [ "${1#-}" != "${1:-}" ]; do
    shift # options of ssh and rsh
done
exec "${0%/*}/cluster" launch "$@"
