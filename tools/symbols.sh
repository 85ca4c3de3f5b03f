#!/bin/sh
# Everything that the shared library exports begins with ek_ (the locks that GCC makes of named
# OpenMP critical sections are global by nature; their names begin so, too).
# usage: tools/symbols.sh [build/libevenkeel.so]
set -eu
cd "$(dirname "$0")/.."
library=${1:-build/libevenkeel.so}
if [ ! -e "$library" ]; then
    echo "$library is not there: build it first"
    exit 1
fi
exported=$(nm -D --defined-only "$library" | awk '{ print $NF }')
if [ -z "$exported" ]; then
    echo "$library exports nothing"
    exit 1
fi
if echo "$exported" | grep -vE '^(\.gomp_critical_user_)?ek_'; then
    echo "$library exports these names, which do not begin with ek_"
    exit 1
fi
