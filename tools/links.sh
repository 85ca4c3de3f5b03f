#!/bin/sh
# Fails if a relative link of a page of documentation leads to a file or folder that does not exist,
# or to a heading that its target does not have.
#
# Anchors are those of GitHub: a heading in lower case, without markup and punctuation, with hyphens
# for spaces; the second heading of the same name has -1 at its end, the third -2.  Fenced and
# inline code is skipped; links by reference and anchors in HTML are not known.
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
files=$(
    ls
    find bench cmake docs examples include src tests tools
)
pages=$(echo "$files" | grep '\.md$')
# shellcheck disable=SC2086 # lists of files without spaces
echo "$files" | awk '
    # Heading LINE of PAGE becomes one of its anchors.
    function add_heading(page, line,    anchor) {
        anchor = tolower(line)
        sub(/^#+ +/, "", anchor)
        gsub(/\]\([^)]*\)/, "", anchor) # of a link only its text
        gsub(/[^a-z0-9 _\200-\377-]/, "", anchor)
        gsub(/ /, "-", anchor)
        if (seen[page, anchor]++)
            anchor = anchor "-" seen[page, anchor] - 1
        anchors[page, anchor] = 1
    }
    # The links of PARAGRAPH are kept for the end.
    function add_links(page, paragraph,    link) {
        gsub(/`[^`]*`/, "", paragraph)
        while (match(paragraph, /\]\([^)]*\)/)) {
            link = substr(paragraph, RSTART + 2, RLENGTH - 3)
            paragraph = substr(paragraph, RSTART + RLENGTH)
            sub(/ .*/, "", link) # a title
            if (link !~ /^[a-z]+:/) {
                n_links++
                from[n_links] = page
                links[n_links] = link
            }
        }
    }
    function end_paragraph() {
        add_links(page, paragraph)
        paragraph = ""
    }
    # The path from the top of the repository of PATH, which is relative to the folder of PAGE.
    function resolve(page, path) {
        if (sub(/[^\/]*$/, "", page))
            path = page path
        sub(/\/$/, "", path)
        while (sub(/^\.\//, "", path) || sub(/\/\.\//, "/", path) || sub(/[^.\/][^\/]*\/\.\.\//, "", path))
            continue
        return path
    }
    FILENAME == "-" {
        exists[$0] = 1
        next
    }
    FNR == 1 {
        end_paragraph()
        page = FILENAME
        fenced = 0
    }
    /^ *```/ { fenced = !fenced }
    fenced { next }
    /^#+ / {
        end_paragraph()
        add_heading(page, $0)
    }
    /^ *$/ { end_paragraph() }
    { paragraph = paragraph " " $0 }
    END {
        end_paragraph()
        for (i = 1; i <= n_links; i++) {
            path = anchor = links[i]
            sub(/#.*/, "", path)
            target = path == "" ? from[i] : resolve(from[i], path)
            if (!(target in exists)) {
                print from[i] ": " links[i] ": there is no " target
                bad = 1
            } else if (sub(/^[^#]*#/, "", anchor) && !((target, anchor) in anchors)) {
                print from[i] ": " links[i] ": " target " has no heading #" anchor
                bad = 1
            }
        }
        exit bad
    }' - $pages
