#!/bin/bash
# Training that continues while nodes fail and return, in about a minute: an emulated cluster of four
# nodes (docs/cluster.md, needs root), with faults at set times (docs/resilience.md).
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/script" <<END
5 worker
12 node
24 freeze
36 cut
46 supervisor
END
cat <<END
Four nodes train the preset tiny.  Every expert is replicated on two of them.

  after  5 s  a process is killed
  after 12 s  a node dies and its memory is lost; it comes back empty 6 s later
  after 24 s  a process is frozen
  after 36 s  the network of a node goes down for 6 s
  after 46 s  the command itself is killed, and started again

END
tools/chaos --show --script "$folder/script" --down 6 --lossless -- --model tiny --data docs src \
    --steps "${STEPS:-250}" --threads 1 --ep 4 --balance replicate --replicas-min 2 --spare-slots 4 \
    "$@"
