#!/bin/sh
# The shared library exports the functions of the public headers, with their version
# (cmake/ek_layers.cmake), and each MPI module one name that begins with ek_.  Only the modules are
# linked with MPI.  tests/library/t_null.c calls every function of the library.
# usage: tools/symbols.sh [build/libevenkeel.so [MODULE...]]
set -eu
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    set -- build/libevenkeel.so
fi
library=$1
if readelf -d "$library" | grep -E 'NEEDED.*libmpi'; then
    echo "$library is linked with MPI, which replaces signal handlers: src/comm/flavour.h"
    exit 1
fi
for file in "$@"; do
    if [ ! -e "$file" ]; then
        echo "$file does not exist: build it first"
        exit 1
    fi
    exported=$(nm -D --defined-only "$file" | awk '$2 != "A" { sub("@.*", "", $NF); print $NF }')
    if [ -z "$exported" ]; then
        echo "$file exports nothing"
        exit 1
    fi
    if echo "$exported" | grep -vE '^ek_'; then
        echo "$file exports these names, which do not begin with ek_"
        exit 1
    fi
done
bad=0
for name in $(nm -D --defined-only "$library" | awk '$2 == "T" { sub("@.*", "", $NF); print $NF }'); do
    if ! grep -q "$name(" tests/library/t_null.c; then
        echo "$name is not in tests/library/t_null.c: test it there with NULL arguments"
        bad=1
    fi
done
exit "$bad"
