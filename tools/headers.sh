#!/bin/sh
# Each public header and its initialisers compile on their own, as C17 and as C++11 to C++20, with all
# warnings as errors.
set -eu
cd "$(dirname "$0")/.."
status=0

program() { # of a header: includes it, and uses each NAME_INIT for a value of type name
    echo "#include \"${1#include/}\""
    sed -n 's/^#define \(EK_[A-Z_]*\)_INIT .*/\1/p' "$1" | while read -r name; do
        type=$(echo "$name" | tr '[:upper:]' '[:lower:]')
        echo "$type ${type}_value(void);"
        echo "$type ${type}_value(void) { $type x = ${name}_INIT; return x; }"
    done
}

check() { # language standard compiler
    for header in include/evenkeel/*.h; do
        program "$header" |
            "$3" -x "$1" "-std=$2" -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror \
                -Iinclude -fsyntax-only - || {
            echo "$header does not compile alone as $2"
            status=1
        }
    done
}
check c c17 "${CC:-cc}"
if command -v "${CXX:-c++}" >/dev/null; then
    for standard in c++11 c++14 c++17 c++20; do
        check c++ "$standard" "${CXX:-c++}"
    done
elif [ "$status" = 0 ]; then
    echo "skipped: no C++ compiler"
    status=77
fi
exit "$status"
