#!/bin/sh
# Fails if a page of the documentation names a file or folder in backticks that does not exist, or if
# README's table of files to read first, or the total above it, is not within 10 % of their lines.
#
# Names may leave out leading folders (`router.c`), in the table that of the file before it.  *, NAME
# and <name> stand for any text.
set -eu
cd "$(dirname "$0")/.."
bad=0

# is_near SAID TRUE: whether a number is within 10 % of the truth.
is_near() {
    [ $(($1 * 10)) -ge $(($2 * 9)) ] && [ $(($1 * 10)) -le $(($2 * 11)) ]
}

total=0
# shellcheck disable=SC2016 # nothing to expand
rows=$(sed -n 's/^| \([0-9][0-9]*\) | \(`.*`\) | .* |$/\1 \2/p' README.md | tr -d '`,')
while read -r said files; do
    lines=0
    for file in $files; do
        case $file in
        */*) folder=${file%/*} ;;
        *) file=$folder/$file ;;
        esac
        lines=$((lines + $(wc -l <"$file")))
    done
    total=$((total + lines))
    if ! is_near "$said" "$lines"; then
        echo "README.md: $said lines: $files: they have $lines"
        bad=1
    fi
done <<EOF
$rows
EOF
said=$(sed -n 's/^About \([0-9,]*\) lines, which can be read.*/\1/p' README.md | tr -d ,)
if ! is_near "${said:-0}" "$total"; then
    echo "README.md: \"About $said lines\" to read first: they have $total"
    bad=1
fi

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
    END { exit bad }' || bad=1
exit "$bad"
