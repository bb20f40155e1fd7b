#!/usr/bin/env bash
# Train on a GPU what docs/results.md lists as not measured in full, the most valuable first, for at most SECONDS:
#
#     benchmarks/measure_missing.sh SECONDS DATA RUNS
#
# An interrupted measurement is saved, and the same call resumes it. To keep a finished one, run its line below in a
# checkout, with --keep and with all nets and seeds that its directory in RUNS holds. RUNS/records.tgz has the records
# that --keep reads, without weights.
set -uo pipefail
end=$((SECONDS + $1)) data=$2 runs=$3
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$runs"

measure() { # ITEM OPTIONS...
    local left=$((end - SECONDS))
    [ "$left" -ge 60 ] || return
    PYTHONPATH=$root/src timeout -k 20 $((left - 20)) "${PYTHON:-python3}" -m equalbits \
        reproduce "$1" --data "$data" --out "$runs/$1" "${@:2}" >>"$runs/$1.log" 2>&1
    echo "status $? after $SECONDS s: $*"
}

measure best --set nets=ResNet-18 --seeds 1-2
measure best --set nets=VGG-small --seeds 0-2
measure best --set nets=ResNet-20 --seeds 0-2 --stack 3
measure best --set "nets=CIFAR-100 ResNet-18" --seeds 0-2
measure entropy --set nets=conv4 --set "forms=batch norm" --set "model.weight_quantizer=sign,bihalf:p_pos=0.45"
measure fig7 --set "nets=ResNet-18 1/1,ResNet-18 1/32" --seeds 0-1
measure fig5 --set data=CIFAR-100 --seeds 0-4
measure fig5 --set data=CIFAR-10 --seeds 3-4
measure tab2-tuned --set model.weight_quantizer=sign,irnet-stable
measure fig7 --set "nets=VGG16 1/32,ShuffleNet 1/32,ResNet-34 1/1" --seeds 0-1
measure fig8 --set nets=Conv2,Conv4 --set sparsity=0,0.5,0.9 --seeds 1-2
measure flip-rate --set speed=recorded
measure tab3-tiny

cd "$runs" && find . -name '*.json' -o -name '*.jsonl' -o -name recipe.toml -o -name '*.log' -o -name '*.md' | tar czf records.tgz -T -
