#!/bin/sh
# Trains a model whose state is three times larger than the memory limit, and lets it write under a
# third of the memory that its weights take.  DEMO_STEPS, DEMO_DATA and DEMO_DIR (a folder on a local
# disk with 12 GB free) may be set.
set -eu
cd "$(dirname "$0")/.."
evenkeel=build/evenkeel
out=${DEMO_DIR:-.}/run-demo-big
train_limit=2700M
generate_limit=280M

free=$(df -Pk "${DEMO_DIR:-.}" | awk 'NR == 2 { print int($4 / 1000000) }')
if [ "$free" -lt 12 ]; then
    echo "demo-big: ${DEMO_DIR:-this folder} has $free GB free; 12 GB are needed (DEMO_DIR=DIR chooses another)" >&2
    exit 1
fi

echo "What the model needs, and which memory it gets:"
echo
"$evenkeel" fit --model examples/models/moe-400m.json --batch 8 --seq 512 --memory-limit $train_limit
echo
echo "Training with $train_limit of memory; experts' masters and moments are on disk:"
echo
# shellcheck disable=SC2086 # one or several paths
"$evenkeel" train --model examples/models/moe-400m.json --tokenizer bytes --data ${DEMO_DATA:-README.md docs include src} \
    --batch 8 --seq 512 --steps "${DEMO_STEPS:-20}" --lr 1e-3 --warmup 5 --offload experts \
    --memory-limit $train_limit --offload-dir "${DEMO_DIR:-.}" --out "$out" --overwrite

echo
echo "Generating with $generate_limit; experts are read from the checkpoint when they are needed:"
echo
"$evenkeel" generate --model "$out/checkpoint" --prompt "static ek_status " --tokens 100 \
    --memory-limit $generate_limit
echo
echo "The checkpoint (5 GB) is in $out; metrics of every step, and what the disk did, in $out/metrics.jsonl."
