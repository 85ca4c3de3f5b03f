#!/bin/sh
# Trains a small Mixture-of-Experts model on the sources and documents of this repository (or on
# DEMO_DATA, files or folders), then generates text.
set -eu
cd "$(dirname "$0")/.."
evenkeel=build/evenkeel
out=run-demo

if [ -n "${DEMO_DATA:-}" ]; then
    set -- # the folders that DEMO_DATA names, one or several words
    for path in $DEMO_DATA; do
        set -- "$@" "$path"
    done
else
    set --
    for path in README.md docs include src tests/unit; do
        [ ! -e "$path" ] || set -- "$@" "$path"
    done
fi

"$evenkeel" train --model tiny --lr 3e-3 --data "$@" --out "$out" --overwrite

echo
echo "Text generated from the prompt \"static ek_status \":"
echo
"$evenkeel" generate --model "$out/checkpoint" --prompt "static ek_status " --tokens 200
echo
echo "The checkpoint is in $out/checkpoint, metrics of every step are in $out/metrics.jsonl."
echo "Next:"
echo "  $evenkeel generate --model $out/checkpoint --prompt \"Your text\""
echo "  $evenkeel export --from $out/checkpoint --to DIR     for other tools (Hugging Face format)"
