#!/bin/sh
# NVIDIA's AIPerf (PyPI, in an environment of its own) against both image routes of a running server, and against long
# and short calls at one time.
#   BASE=http://127.0.0.1:8080 KEY=sk-dr-... AIPERF=path/to/aiperf sh benchmarks/aiperf.sh FOLDER
# It writes a folder for each run, with profile_export_aiperf.json, and prints one line for each. AIPerf's builtin
# tokenizer is fetched at its first use: without a network, TOKENIZER=weights/starter-chat. A run has 3 calls for each
# one at a time, and 8 at least.
set -eu
out=$1
model=${MODEL:-alpha-image-2-count}
mkdir -p "$out"
for colour in red blue green yellow; do
    for thing in boat house tree sun; do echo "{\"text\": \"a $colour $thing\"}"; done
done > "$out/prompts.jsonl"

profile() { # NAME ROUTE CONCURRENCY, and options of aiperf
    run=$out/$1 route=$2 concurrency=$3
    shift 3
    requests=${REQUESTS:-$((concurrency < 3 ? 8 : 3 * concurrency))}
    "${AIPERF:-aiperf}" profile --url "$BASE" --api-key "$KEY" --model "$model" \
        --tokenizer "${TOKENIZER:-builtin}" --endpoint-type "$route" --extra-inputs "size:${SIZE:-512x512}" \
        --extra-inputs response_format:b64_json --concurrency "$concurrency" --request-count "$requests" \
        --warmup-request-count 1 --random-seed 7 --ui-type none --output-artifact-dir "$run" "$@" \
        > "$run.log" 2>&1 || echo "failed: $run.log"
    python3 - "$run" <<'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
found = folder / "profile_export_aiperf.json"
if found.exists():
    told = json.loads(found.read_text())
    latency, errors = told["request_latency"], told.get("error_request_count", {}).get("avg", 0)
    figures = " ".join(f"{name} {latency[name] / 1000:.2f} s" for name in ("p50", "p90", "p99"))
    print(folder.name, figures, f"{told['request_throughput']['avg']:.2f} requests/s", f"{errors:.0f} errors")
PYTHON
}

draw() {
    name=$1 many=$2
    shift 2
    profile "$name" image_generation "$many" --input-file "$out/prompts.jsonl" --custom-dataset-type single_turn "$@"
}

for concurrency in ${CONCURRENCY:-1 4 8}; do
    draw "text-$concurrency" "$concurrency" --extra-inputs quality:low
    profile "edit-$concurrency" image_edit "$concurrency" --extra-inputs quality:low --image-width-mean 512 \
        --image-height-mean 512 --image-format png --synthetic-input-tokens-mean 8
done
draw mixed-long 2 --extra-inputs num_inference_steps:80 &
draw mixed-short 4 --extra-inputs num_inference_steps:2
wait
