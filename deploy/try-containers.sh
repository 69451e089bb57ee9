#!/usr/bin/env bash
# Build, start, train, recommend, restart, train again, stop: the whole deployment in containers.
#
#   deploy/try-containers.sh                       gRPC, Flower 1.39
#   FLWR=1.42 deploy/try-containers.sh             HTTP, Flower 1.42
#   FEDRECGEL_USER=1234:1234 deploy/try-containers.sh
#   ROUNDS=20 KEEP=1 deploy/try-containers.sh      leave the containers running
#
# Needs docker with compose v2. Ends with code 0 if all of it worked; says seconds a round, the
# image's size and the containers' memory.
set -euo pipefail
cd "$(dirname "$0")/.."
export FLWR=${FLWR:-1.39}
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-fedrecgel-try} COMPOSE_ANSI=never
rounds=${ROUNDS:-5}
scratch=$(mktemp -d)

step() { printf '\n=== %s (%s s)\n' "$*" "$SECONDS"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
    local code=$?
    if [ "$code" != 0 ]; then
        docker compose ps --all || true
        docker compose logs --tail 15 || true
    fi
    if [ -z "${KEEP:-}" ]; then
        step "stop and remove everything but the image"
        docker compose --profile tools --profile serve down --volumes --timeout 10 >/dev/null 2>&1 || code=1
    fi
    rm -rf "$scratch"
    [ "$code" = 0 ] && printf '\nall of it worked: Flower %s, %s s\n' "$FLWR" "$SECONDS"
    exit "$code"
}
trap finish EXIT

train() { # train NAME: a run to its end; its output is in $scratch/NAME
    docker compose run --rm -T run "out=/runs/$1" "rounds=$rounds" evaluate-every=1 |
        tee "$scratch/$1" | grep -E 'round|error|users|node' || true
    [ "${PIPESTATUS[0]}" = 0 ] || fail "run $1; see above"
    docker compose exec -T server-app python -c "
import json
lines = [json.loads(line) for line in open('/runs/$1/metrics.jsonl')]
for what in ('round_seconds', 'evaluation_seconds'):
    found = sorted(line[what] for line in lines)
    print(f'{what}: median {found[len(found) // 2]:.1f}, from {found[0]:.1f} to {found[-1]:.1f}')
"
}

step "build the image, Flower $FLWR"
docker compose build --quiet
docker image inspect "fedrecgel:flwr-$FLWR" --format '{{.Size}}' |
    awk '{printf "image: %.0f MB, the base image included\n", $1 / 1e6}'
docker compose run --rm -T --no-deps --entrypoint flower-superlink run --version

step "start, and wait until everything is healthy"
docker compose up --detach --wait --wait-timeout 300 >/dev/null
docker compose ps --all --format '{{.Service}}\t{{.Status}}'

step "what is on the wire"
docker compose exec -T site-1 python - <deploy/wire.py

step "no process without TLS"
for container in $(docker compose ps --quiet); do docker top "$container" -eo args; done >"$scratch/top"
! grep -e --insecure "$scratch/top" || fail "a process runs with --insecure"
echo "$(grep -c flower- "$scratch/top") processes of Flower, none with --insecure"

step "train $rounds rounds"
train first

step "memory"
docker stats --no-stream --format '{{.Name}}\t{{.MemUsage}}' | sed "s/^$COMPOSE_PROJECT_NAME-//"

step "restart a site's SuperNode, train again: all sites must take part"
docker compose restart site-1
train second
grep -q '3 nodes' "$scratch/second" || fail "the second run has not all nodes"
