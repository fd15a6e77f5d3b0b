#!/usr/bin/env bash
# Builds the image and puts a whole deployment through its life, as a user would meet it: first start
# with an empty volume, a client of OpenAI's, the page map, the load test, a drain, a start from the
# volume within limits of processor and memory, and one from a read-only folder without a network.
# Ends with one line and exit code 0, or at the first thing that is wrong.
#
#   docker/smoke.sh                     Needs an engine, compose (v2 or 1.29), and python3 with venv.
#   BASE=... TORCH_INDEX=... docker/smoke.sh   As the Dockerfile's arguments.
#   BUILD_NETWORK=host docker/smoke.sh  Where only the host's own network reaches the package index.
set -euo pipefail
cd "$(dirname "$0")"

export COMPOSE_PROJECT_NAME=octavo-smoke OCTAVO_IMAGE=${OCTAVO_IMAGE:-octavo:smoke}
export OCTAVO_PORT=${OCTAVO_PORT:-18080} OCTAVO_API_KEY=smoke-key OCTAVO_MODEL=smollm2-135m
work=$(mktemp -d)
url=http://127.0.0.1:$OCTAVO_PORT
network=${BUILD_NETWORK:-default}
if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi

say() { printf '\n== %s\n' "$*"; }
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  "${compose[@]}" logs --tail 40 octavo >&2 || true
  exit 1
}
clean() {
  "${compose[@]}" --profile load down --volumes --timeout 5 >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean EXIT

container() { "${compose[@]}" ps -q octavo; }
wait_healthy() {
  local begun=$SECONDS state
  while [ $((SECONDS - begun)) -lt 600 ]; do
    state=$(docker inspect -f '{{.State.Health.Status}}' "$(container)")
    if [ "$state" = healthy ]; then # asked every 5 s; the server's own words are more exact
      echo "healthy after $((SECONDS - begun)) s; it says: $("${compose[@]}" logs --no-color octavo \
        2>&1 | grep -o 'ready after [0-9.]* s' | tail -1)"
      return
    fi
    [ "$(docker inspect -f '{{.State.Running}}' "$(container)")" = true ] || fail "it has ended"
    sleep 1
  done
  fail "not healthy after ten minutes"
}
expect() { [ "$2" = "$3" ] || fail "$1 is $2, expected $3"; }
of_server() { # PATH, and then a field of the JSON object that the server answers
  docker exec "$(container)" python -c 'import json, os, sys, urllib.request as web
request = web.Request("http://127.0.0.1:8000" + sys.argv[1])
request.add_header("Authorization", "Bearer " + os.environ["OCTAVO_API_KEY"])
print(json.load(web.urlopen(request))[sys.argv[2]])' "$@"
}

say "build"
docker build --network="$network" --build-arg "BASE=${BASE:-python:3.11-slim}" \
  ${TORCH_INDEX+--build-arg "TORCH_INDEX=$TORCH_INDEX"} --tag "$OCTAVO_IMAGE" .. >"$work/build.log" 2>&1 \
  || { tail -40 "$work/build.log" >&2; fail "the build"; }
size() { docker image inspect -f '{{.Size}}' "$1"; }
echo "$(size "$OCTAVO_IMAGE") $(size "${BASE:-python:3.11-slim}")" |
  awk '{printf "image of %.2f GB, of which the base is %.2f GB\n", $1 / 1e9, $2 / 1e9}'
docker run --rm --entrypoint sh "$OCTAVO_IMAGE" -c \
  'ls /opt/octavo/lib/python3*/site-packages/engine/native/*.so' || fail "no kernels were compiled"

say "first start, with an empty volume"
clean_volume=${COMPOSE_PROJECT_NAME}_cache
# The model is fetched by the image itself; apart from the server only because of BUILD_NETWORK.
docker run --rm --network="$network" --volume "$clean_volume:/cache" "$OCTAVO_IMAGE" fetch "$OCTAVO_MODEL"
"${compose[@]}" up --detach --no-build octavo 2>/dev/null
wait_healthy
expect "the user's id" "$(docker exec "$(container)" id -u)" 10001
expect "who computes the layers" "$(of_server /server_info layers)" "${EXPECT_LAYERS:-native}"

say "a client of OpenAI's"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet openai
"$work/venv/bin/python" - "$url" <<'PYTHON' || fail "the client"
import sys

from openai import AuthenticationError, OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="smoke-key", max_retries=0)
question = [{"role": "user", "content": "What is the capital of France?"}]
answer = client.chat.completions.create(model="smollm2-135m", messages=question, temperature=0)
print(answer.choices[0].message.content)
assert "Paris" in answer.choices[0].message.content
try:
    client.with_options(api_key="another").models.list()
except AuthenticationError:
    print("another key is refused")
else:
    raise SystemExit("a wrong key was let in")
PYTHON

say "the page map"
for file in "" /app.js /map.css; do
  curl --fail --silent --show-error --output /dev/null "$url/ui$file" || fail "/ui$file"
done

say "the load test"
BENCH_ARGS="--num-prompts 16 --max-concurrency 8 --input-len 32 --output-len 16" \
  "${compose[@]}" --profile load run --rm bench || fail "the load test"
reports=$(docker run --rm --volume "${COMPOSE_PROJECT_NAME}_reports:/reports" --entrypoint ls \
  "$OCTAVO_IMAGE" /reports | xargs)
expect "what is in the volume of reports" "$reports" "bench.csv bench.html bench.json"

echo "the server's memory: $(docker stats --no-stream --format '{{.MemUsage}}' "$(container)")"

say "a drain: the stop signal comes while an answer is streaming"
: >"$work/stream"
curl --silent --no-buffer --max-time 60 "$url/v1/completions" -H "Authorization: Bearer $OCTAVO_API_KEY" \
  -H 'Content-Type: application/json' --output "$work/stream" \
  --data '{"model": "smollm2-135m", "prompt": "Once", "max_tokens": 100, "ignore_eos": true, "stream": true}' &
streaming=$!
until [ "$(grep -c '^data:' "$work/stream" || true)" -gt 3 ]; do
  kill -0 $streaming 2>/dev/null || break
  sleep 0.1
done
id=$(container)
"${compose[@]}" stop octavo 2>/dev/null
wait $streaming || fail "the stream was cut"
expect "the stream's last line" "$(grep '^data:' "$work/stream" | tail -1)" "data: [DONE]"
expect "the exit code" "$(docker inspect -f '{{.State.ExitCode}}' "$id")" 0

say "a start from the volume, within one processor and 3 GB"
OCTAVO_OFFLINE=true OCTAVO_CPUS=1 OCTAVO_MEMORY=3g "${compose[@]}" up --detach --no-build octavo \
  2>/dev/null
wait_healthy
expect "the number of threads" "$(of_server /server_info threads)" 1
cache_bytes=$(of_server /server_info kv_cache_bytes)
[ "$cache_bytes" -lt $((3 * 2 ** 30 / 2)) ] || fail "a cache of $cache_bytes bytes in 3 GB"

say "a start from a folder mounted read-only, with a fresh cache and no network at all"
docker cp "$(container):/cache/models" "$work/models"
"${compose[@]}" down --volumes --timeout 45 >/dev/null 2>&1
folder=$(basename "$work"/models/*)
OCTAVO_OFFLINE=true OCTAVO_MODELS=$work/models OCTAVO_MODEL=/models/$folder \
  "${compose[@]}" up --no-start --no-build octavo 2>/dev/null
id=$("${compose[@]}" ps --all --quiet octavo 2>/dev/null || "${compose[@]}" ps --quiet octavo)
docker network disconnect "${COMPOSE_PROJECT_NAME}_default" "$id"
docker start "$id" >/dev/null
# Some engines connect it again.
docker network disconnect "${COMPOSE_PROJECT_NAME}_default" "$id" 2>/dev/null || true
expect "its networks" "$(docker exec "$id" ls /sys/class/net | xargs)" lo
wait_healthy

echo
echo "the image, its deployment and its end are as they should be"
