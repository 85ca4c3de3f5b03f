#!/bin/sh
# Fails if a source file includes a header of a layer that its own layer may not use, or a third-party
# header outside the folders allowed for it; or if folders, or units of files, include each other in a
# circle.  A unit is x.c (or x.cu), x.h and x_priv.h.  The rules are in tools/layers.txt.
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
            if (part[1] == "<circles>") {
                excepted = part[2]
            } else if (part[1] ~ /^</) {
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
    function add_edge(from, to) {
        if (from == to || (from, to) in edge)
            return
        edge[from, to] = 1
        nodes[from] = nodes[from] " " to
    }
    # Searches depth first from a folder or unit; reports each circle that it closes.
    function visit(node,    n, i, to) {
        state[node] = "open"
        path[++depth] = node
        n = split(nodes[node], to, " ")
        for (i = 1; i <= n; i++) {
            if (state[to[i]] == "open")
                report_circle(to[i])
            else if (state[to[i]] == "")
                visit(to[i])
        }
        depth--
        state[node] = "done"
    }
    # The path from start to its end includes start.
    function report_circle(start,    i, text, allowed_all) {
        text = start
        allowed_all = 1
        for (i = depth; ; i--) {
            text = path[i] " -> " text
            allowed_all = allowed_all && within(path[i], excepted)
            if (path[i] == start)
                break
        }
        if (allowed_all) {
            sub(/\/.*/, "", start)
            used[start] = 1
        } else {
            print "circle: " text
            bad = 1
        }
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
        if (to in known) {
            unit = substr(file, 5)
            sub(/(_priv)?\.(c|cu|h)$/, "", unit)
            other = line
            sub(/(_priv)?\.(c|cu|h)$/, "", other)
            add_edge(unit, other)
            other = line
            sub(/\/[^\/]*$/, "", other)
            add_edge(folder, other)
        }
        for (start in border)
            if (index(line, start) == 1 && !within(folder, border[start])) {
                print file ":" number ": <" line "> belongs in" border[start] " only"
                bad = 1
            }
    }
    END {
        for (node in nodes)
            if (state[node] == "")
                visit(node)
        n = split(excepted, word, " ")
        for (i = 1; i <= n; i++)
            if (!(word[i] in used)) {
                print rules ": remove " word[i] " from <circles>: it has none"
                bad = 1
            }
        exit bad
    }'
