#!/bin/sh
# Each public header compiles alone, as C17 and as C++17, with all warnings as errors.
set -eu
cd "$(dirname "$0")/.."
status=0
check() { # language standard compiler
    for header in include/evenkeel/*.h; do
        echo "#include \"${header#include/}\"" |
            "$3" -x "$1" "-std=$2" -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror \
                -Iinclude -fsyntax-only - || {
            echo "$header does not compile alone as $2"
            status=1
        }
    done
}
check c c17 "${CC:-cc}"
if command -v "${CXX:-c++}" >/dev/null; then
    check c++ c++17 "${CXX:-c++}"
elif [ "$status" = 0 ]; then
    echo "skipped: no C++ compiler"
    status=77
fi
exit "$status"
