#!/bin/sh
# All C sources are formatted with clang-format 14 (other versions differ in details).
# usage: tools/format.sh [--fix]
set -eu
cd "$(dirname "$0")/.."
for format in clang-format-14 clang-format none; do
    command -v "$format" >/dev/null && "$format" --version | grep -q 'version 14\.' && break
done
if [ "$format" = none ]; then
    echo "skipped: needs clang-format 14"
    exit 77
fi
files=$(for folder in src include tests bench; do
    [ ! -d "$folder" ] || find "$folder" -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp'
done)
# shellcheck disable=SC2086 # file names without spaces
if [ "${1:-}" = --fix ]; then
    exec "$format" -i $files
elif ! wrong=$("$format" --dry-run -Werror $files 2>&1); then
    echo "$wrong" | sed -nE 's/^([^ :]+):[0-9]+:.*error: .*/\1/p' | uniq -c
    echo "wrong format in these files (number of places): run tools/format.sh --fix"
    exit 1
fi
