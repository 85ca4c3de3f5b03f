#!/bin/sh
# All shell scripts pass shellcheck.
set -eu
cd "$(dirname "$0")/.."
if ! command -v shellcheck >/dev/null; then
    echo "skipped: no shellcheck"
    exit 77
fi
find tools tests bench .ci -type f \( -name '*.sh' -o -path tools/cluster -o -path '.ci/run' \) -print0 2>/dev/null |
    xargs -0 shellcheck
