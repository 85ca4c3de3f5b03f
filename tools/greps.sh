#!/bin/sh
# Coding rules that can be checked with patterns.  Prints violations; fails if there are any.
set -eu
cd "$(dirname "$0")/.."
bad=0

# forbid WHY PATTERN FILE...: extended regular expression, matched on code and comments.
forbid() {
    why=$1
    pattern=$2
    shift 2
    if grep -nE -e "$pattern" "$@" /dev/null; then
        echo "^ $why"
        bad=1
    fi
}

library=$(find src \( -name '*.[ch]' -o -name '*.cu' \) ! -path 'src/cli/*' ! -path 'src/bench/*' \
    ! -path 'src/supervisor/*' ! -path 'src/base/command*' \
    ! -path 'src/base/live_line*') # what prints, exits, reads the environment
sources=$(find src include tests examples tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp')
scripts=$(find tools tests bench examples cmake -name '*.sh' -o -name '*.py' -o -name '*.cmake' \
    -o -path tools/cluster -o -path tools/chaos)
build="CMakeLists.txt CMakePresets.json Makefile $(find cmake -type f)"
docs=$(find docs ./*.md -type f -name '*.md' 2>/dev/null || true)
start='(^|[^A-Za-z0-9_.>"`-])'

# shellcheck disable=SC2086 # lists of files without spaces
{
    others=$(echo "$library" | grep -v '^src/train/settings/options\.c$') # whose help texts name stdout
    forbid "the library does not print: return a failure or log it" \
        "${start}(printf|vprintf|puts|putchar|perror|psignal)[[:space:]]*\(|[^a-z](stdout|stderr)[^a-z]" $others
    forbid "the library does not end the program" \
        "${start}(exit|_exit|_Exit|quick_exit|abort|assert)[[:space:]]*\(" $library
    others=$(echo "$library" | grep -v '^src/comm/mpi/end\.c$') # mpiexec names its connection there
    forbid "the library does not read the environment" "${start}(secure_)?(getenv|environ)([^a-z]|\$)" $others
    forbid "random numbers come from base/random.h" "${start}s?rand(om)?(_r)?[[:space:]]*\(" $library
    forbid "the library leaves the locale of the process alone: base/c_locale.h" \
        "${start}setlocale[[:space:]]*\(" $library
    others=$(echo "$library" | grep -v '^src/base/threads\.c$')
    forbid "threads are started by ek_thread_start (base/threads.h), with enough stack" \
        "${start}pthread_create[[:space:]]*\(" $others
    forbid "a banner is one line" '^/\* --- .*-$' $sources
    forbid "no unfinished or switched-off code" 'TODO|FIXME|^[[:space:]]*#[[:space:]]*if 0' $sources
    forbid "arithmetic keeps NaN and order: no fast-math" '-f(fast-math|finite-math-only|associative-math)|-Ofast' \
        $build
    forbid "no path of one machine" '(^|[^a-z0-9])/(work|root|home)/[a-z]' \
        $sources $scripts $build $docs
    # Numbers are written and read with a point (base/c_locale.h): in public functions that can
    # fail, and in threads, which begin with the locale of the process.
    public=$(sed -nE 's/^EK_CHECKED EK_API ek_status (ek_[a-z0-9_]+)\(.*/\1/p' include/evenkeel/*.h)
    for name in $public; do
        file=$(grep -lE "^ek_status $name\(" $library src/supervisor/program.c || true)
        if [ -z "$file" ] || ! grep -A8 -E "^ek_status $name\(" $file | grep -q EK_C_LOCALE; then
            echo "$name: begin with EK_C_LOCALE (base/c_locale.h)"
            bad=1
        fi
    done
    for file in $(grep -lE '(strto[dfl]+|scanf|printf|json_[a-z]+)[[:space:]]*\(' $library |
        xargs grep -lE 'ek_thread_start[[:space:]]*\(&|omp parallel'); do
        if ! grep -q EK_C_LOCALE "$file"; then
            echo "$file: its threads begin with EK_C_LOCALE (base/c_locale.h)"
            bad=1
        fi
    done
    calculating=$(grep -lE 'awk -v' $scripts)
    for file in $calculating; do
        if ! grep -q 'LC_ALL=C' "$file"; then
            echo "$file: numbers of awk have the user's decimal sign: LC_ALL=C awk"
            bad=1
        fi
    done
    for file in $sources $scripts; do
        lines=$(wc -l <"$file")
        if [ "$lines" -gt 800 ]; then
            echo "$file: $lines lines, more than 800: split it"
            bad=1
        fi
    done
    lines=$(cat src/cli/*.[ch] | wc -l)
    if [ "$lines" -ge 2500 ]; then
        echo "src/cli: $lines lines, 2,500 and more: move what is not command line to its layer"
        bad=1
    fi
}
# Marks that a merge has left; -I: in text files.
if git rev-parse --git-dir >/dev/null 2>&1 && git grep -nIE '^(<{7}|>{7}|={7}$)'; then
    echo "^ a merge is not finished: choose between the two sides"
    bad=1
fi
exit "$bad"
