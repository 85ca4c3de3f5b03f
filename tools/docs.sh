#!/bin/sh
# Fails if a page of the documentation names a file or folder in backticks that does not exist.
#
# Names may leave out leading folders (`router.c`).  *, NAME and <name> stand for any text.
set -eu
cd "$(dirname "$0")/.."
# shellcheck disable=SC2016 # nothing to expand
grep -oE '`[A-Za-z][^` ]*(/[^` ]*|\.(c|h|cu|py|sh|cmake))`' CONTRIBUTING.md docs/architecture.md docs/expert-lifecycle.md |
    tr -d '`' | LC_ALL=C sort -u | {
    ls
    find bench cmake docs examples include src tests tools
    echo
    cat
} | awk '
    /^$/ {
        names = 1
        next
    }
    !names {
        path = $0
        do
            exists[path] = 1
        while (sub(/^[^\/]*\//, "", path))
        next
    }
    {
        page = name = $0
        sub(/:.*/, "", page)
        sub(/^[^:]*:/, "", name)
        pattern = name
        sub(/\/$/, "", pattern)
        found = pattern in exists
        if (gsub(/\*|NAME|<[a-z]+>/, "[^/]*", pattern))
            for (path in exists)
                found = found || path ~ ("^" pattern "$")
        if (!found) {
            print page ": there is no `" name "`"
            bad = 1
        }
    }
    END { exit bad }'
