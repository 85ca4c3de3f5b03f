#!/bin/sh
# Fails when a name or phrase that has been replaced comes back.  tools/words.txt holds the list.
set -eu
cd "$(dirname "$0")/.."
bad=0
files=$(find src include docs tests examples bench -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \
    -o -name '*.py' -o -name '*.md' \) ! -path 'tests/golden/*' ! -path 'bench/results/*' ! -path docs/formats.md \
    ! -path tests/cli/t_old_files.py) # which list old names
files="$files README.md CONTRIBUTING.md CMakeLists.txt tools/chaos"

while read -r line; do
    case $line in '' | '#'*) continue ;; esac
    pattern=${line% => *}
    # shellcheck disable=SC2086 # lists of files without spaces
    if found=$(grep -nwE -e "$pattern" $files); then
        echo "$found"
        echo "^ now: ${line#* => }"
        bad=1
    fi
done <tools/words.txt
exit "$bad"
