#!/usr/bin/env bash
# Build, start, train, recommend, restart, train again, stop: the whole deployment in containers.
#
#   deploy/try-containers.sh                           gRPC, Flower 1.39
#   FLWR=1.42 deploy/try-containers.sh                 HTTP, Flower 1.42
#   FEDRECGEL_USER=1234:1234 deploy/try-containers.sh  as another user
#   DELAY=30 deploy/try-containers.sh                  the SuperLink starts 30 s late
#   ROUNDS=20 KEEP=1 deploy/try-containers.sh          leave the containers running
#   deploy/try-containers.sh --faults                  then kill containers while runs go on
#
# Needs docker with compose v2. Ends with code 0 if all of it worked; says seconds a round, the
# image's size and the containers' memory.
set -euo pipefail
cd "$(dirname "$0")/.."
export FLWR=${FLWR:-1.39} COMPOSE_ANSI=never COMPOSE_PROGRESS=quiet
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-fedrecgel-try}
rounds=${ROUNDS:-5}
scratch=$(mktemp -d)
worked="" # until the last step has
compose=(docker compose --file docker-compose.yml)

if [ -n "${DELAY:-}" ]; then
    cat >"$scratch/delay.yml" <<YAML
services:
  superlink:
    entrypoint: [bash, -c, 'sleep $DELAY; exec python -m fedrecgel "\$\$@"', late]
YAML
    compose+=(--file "$scratch/delay.yml")
fi

step() { printf '\n=== %s (after %s s)\n' "$*" "$SECONDS"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
    local code=$?
    # A signal that ends the script may come with the code of whatever worked last.
    [ -n "$worked" ] || [ "$code" != 0 ] || code=1
    if [ "$code" != 0 ]; then
        "${compose[@]}" ps --all || true
        "${compose[@]}" logs --tail 15 || true
    fi
    if [ -z "${KEEP:-}" ]; then
        step "stop, and remove everything but the image"
        "${compose[@]}" --profile tools --profile serve down --volumes 2>/dev/null || code=1
    fi
    rm -rf "$scratch"
    [ "$code" != 0 ] || printf '\nall of it worked: Flower %s, %s s\n' "$FLWR" "$SECONDS"
    exit "$code"
}
trap finish EXIT

train() { # train NAME ROUNDS: a run to its end; what it says goes to $scratch/NAME as well
    "${compose[@]}" run --rm -T run "out=/runs/$1" "rounds=$2" evaluate-every=1 </dev/null 2>&1 |
        tee "$scratch/$1" | grep -E '^(round|error|[0-9,]+ (users|nodes))' ||
        fail "run $1: $(tail -1 "$scratch/$1")"
    grep -q '^3 nodes' "$scratch/$1" || fail "run $1 has not all nodes"
    "${compose[@]}" exec -T server-app python - "/runs/$1/metrics.jsonl" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for what in ("round_seconds", "evaluation_seconds"):
    found = sorted(line[what] for line in lines)
    print(f"{what}: median {found[len(found) // 2]:.1f}, from {found[0]:.1f} to {found[-1]:.1f}")
PYTHON
}

watch_memory() { # the most that each container had at any look; ends with the file $scratch/seen
    while [ -f "$scratch/seen" ]; do
        docker stats --no-stream --format '{{.Name}} {{.MemUsage}}' >>"$scratch/seen" || true
        sleep 1
    done
}

step "build the image, Flower $FLWR"
"${compose[@]}" build --quiet
docker image inspect "fedrecgel:flwr-$FLWR" --format '{{.Size}}' |
    awk '{printf "image: %.0f MB, the base image included\n", $1 / 1e6}'

step "start, and wait until everything is healthy"
"${compose[@]}" up --detach --wait --wait-timeout 400 2>/dev/null
"${compose[@]}" ps --all --format '{{.Service}}\t{{.Status}}'

step "what is on the wire"
others=$(docker inspect "$("${compose[@]}" ps --quiet site-2)" \
    --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}:9094 {{end}}')
# shellcheck disable=SC2086  # several addresses
"${compose[@]}" exec -T site-1 python - $others <deploy/wire.py ||
    fail "the link is not as it should be"

step "train $rounds rounds"
touch "$scratch/seen"
watch_memory &
watcher=$!
train first "$rounds"

step "memory, the most in MiB"
cp "$scratch/seen" "$scratch/memory"
rm "$scratch/seen"
wait "$watcher"
sed "s/^$COMPOSE_PROJECT_NAME-//; s/GiB.*/ 1024/; s/MiB.*/ 1/" "$scratch/memory" |
    awk '{m = $2 * $3; if (m > most[$1]) most[$1] = m}
         END {delete most["--"]; for (name in most) printf "%6.0f  %s\n", most[name], name}' | sort -k2

step "no process without TLS"
for container in $("${compose[@]}" ps --quiet); do docker top "$container" -eo pid,args; done >"$scratch/top"
! grep -e --insecure "$scratch/top" || fail "a process runs with --insecure"
echo "$(grep -cE "flower-|warm[.]py" "$scratch/top") processes of Flower, none with --insecure"

step "recommendations where the data are"
"${compose[@]}" --profile serve up --detach --wait site-1-serve 2>/dev/null
user=$("${compose[@]}" exec -T site-1-app python -c "print(open('/data/interactions.csv').readlines()[1].split(',')[0])")
"${compose[@]}" exec -T site-1-serve fedrecgel ask site-1-serve:50051 "$user" --k 5 --tls-ca /keys/ca.crt

step "restart a site's SuperNode, train again: all sites must take part"
"${compose[@]}" restart site-1 2>/dev/null
"${compose[@]}" up --detach --wait --no-deps site-1 2>/dev/null
train second 2

step "restart the SuperLink, train again without touching the sites"
"${compose[@]}" restart superlink 2>/dev/null
"${compose[@]}" up --detach --wait --no-deps superlink 2>/dev/null
train third 2

if [ "${1:-}" = --faults ]; then
    # shellcheck source=deploy/container-faults.sh
    . deploy/container-faults.sh
fi

worked=yes
