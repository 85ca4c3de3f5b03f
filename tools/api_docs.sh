#!/bin/sh
# The comments of the public headers make an API reference without a warning of Doxygen (cmake/Doxyfile.in):
# every function, parameter, result and member is documented.  Each function says whether it is
# collective, unless the head of its header says that none is.
set -eu
cd "$(dirname "$0")/.."
status=0
for header in include/evenkeel/*.h; do
    awk '
        after { head = /^ \*  No/; after = 0 }
        /@par Collective/ { after = 1 }
        /^\/\*\*/ { comment = "" }
        { comment = comment $0 "\n" }
        /^(EK_CHECKED )?EK_API / && !head && comment !~ /[Cc]ollective/ {
            print FILENAME ":" FNR ": says not whether it is collective: " $0
            bad = 1
        }
        END { exit bad }' "$header" || status=1
done
if ! command -v doxygen >/dev/null; then
    if [ "$status" = 0 ]; then
        echo "skipped: no doxygen"
        status=77
    fi
    exit "$status"
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
sed -e "s|@EK_DOCS_SOURCE@|$PWD|g; s|@EK_DOCS_OUTPUT@|$out|; s|@PROJECT_VERSION@|0|" \
    cmake/Doxyfile.in >"$out/Doxyfile"
doxygen "$out/Doxyfile" || status=1
for header in include/evenkeel/*.h; do
    name=$(basename "$header" .h | sed 's/_/__/g') # as Doxygen writes it
    if [ ! -e "$out/html/${name}_8h.html" ]; then
        echo "there is no page of $header: its head needs @file"
        status=1
    fi
done
exit "$status"
