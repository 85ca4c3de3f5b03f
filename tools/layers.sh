#!/bin/sh
# Fails if a source file includes a header of a layer that its own layer may not use, or a third-party
# header outside the folders allowed for it.  The rules are in tools/layers.txt.
set -eu
cd "$(dirname "$0")/.."
find src -name '*.[ch]' -o -name '*.cu' | LC_ALL=C sort |
    xargs grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null |
    awk -v rules=tools/layers.txt '
    BEGIN {
        while ((getline line < rules) > 0) {
            if (line ~ /^#/ || split(line, part, ":") < 2)
                continue
            n = split(part[2], word, " ")
            if (part[1] ~ /^</) {
                border[substr(part[1], 2, length(part[1]) - 2)] = part[2]
            } else {
                known[part[1]] = allowed[part[1], part[1]] = 1
                for (i = 1; i <= n; i++)
                    allowed[part[1], word[i]] = 1
            }
        }
    }
    # Whether folder (such as tensor/cpu/sub) lies in one of the folders of list.
    function within(folder, list,    n, i, word, tail) {
        n = split(list, word, " ")
        for (i = 1; i <= n; i++) {
            if (index(folder "/", word[i] "/") == 1)
                return 1
            tail = substr(word[i], 2)
            if (substr(word[i], 1, 1) == "*" && index(folder "/", tail "/") > 0)
                return 1
        }
        return 0
    }
    {
        file = line = $0
        sub(/:.*/, "", file)
        number = substr($0, length(file) + 2)
        sub(/:.*/, "", number)
        folder = substr(file, 5)
        sub(/\/[^\/]*$/, "", folder)
        from = folder
        sub(/\/.*/, "", from)
        sub(/^[^"<]*["<]/, "", line)
        sub(/[">].*/, "", line)
        to = line
        sub(/\/.*/, "", to)
        if (!(from in known)) {
            print file ": layer " from " is not in " rules
            bad = 1
        } else if ((to in known) && !((from, to) in allowed)) {
            print file ":" number ": " from " may not include " line
            bad = 1
        }
        for (start in border)
            if (index(line, start) == 1 && !within(folder, border[start])) {
                print file ":" number ": <" line "> belongs in" border[start] " only"
                bad = 1
            }
    }
    END { exit bad }'
