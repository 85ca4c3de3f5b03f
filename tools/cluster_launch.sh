#!/bin/sh
# What mpiexec calls in place of ssh, as `cluster_launch.sh [-x] NODE WORD...`: runs the words in
# a shell inside the node of tools/cluster.  The cluster is the one that EVENKEEL_CLUSTER names.
set -eu
while [ "${1#-}" != "${1:-}" ]; do
    shift # options of ssh and rsh
done
exec "${0%/*}/cluster" launch "$@"
