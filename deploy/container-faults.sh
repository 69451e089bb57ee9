# Sourced by try-containers.sh --faults: containers are killed while a run goes on.
#
# A crash (every process of a container is killed from inside) is mended by the container's restart
# policy; `docker kill` counts as stopped by hand, so somebody has to start a replacement. In each
# case the private state of the last accepted round must stay as it was, to the byte.

begin() { # begin NAME ROUNDS [SETTING...]: a run in the background in which all users train
    said=$scratch/$1
    "${compose[@]}" run --rm -T run "out=/runs/$1" "rounds=$2" evaluate-every=5 fraction=1.0 \
        "${@:3}" </dev/null >"$said" 2>&1 &
    running=$!
}

await() { # await WHAT COMMAND...: until the command succeeds on what the run has said
    local left=600 # half seconds
    until "${@:2}"; do
        kill -0 "$running" 2>/dev/null || fail "the run ended before $1: $(tail -3 "$said")"
        [ $((left -= 1)) -gt 0 ] || fail "not in time: $1: $(tail -3 "$said")"
        sleep 0.5
    done
}
has_said() { grep -qE "$1" "$said"; }
all_trained_after() { # all_trained_after N: in a round after the N-th, whose number is `full`
    full=$(sed -nE 's/^round ([0-9]+)\/.* users 200( .*|$)/\1/p' "$said" | tail -1)
    [ "${full:-0}" -gt "$1" ]
}
everybody() { await "all users trained in a round after round $1" all_trained_after "$1"; }

told() { grep -E '^(round|error|site-|[0-9,]+ (users|nodes)|the run)|waiting' "$said" || true; }

completed() { # the run's end, well; its last round had all users
    wait "$running" || fail "the run failed: $(tail -3 "$said")"
    told
    grep -E '^round' "$said" | tail -1 | grep -q ' users 200' || fail "a site is missing at the end"
}

states() { # states SITE ROUND: a hash of what the site's store holds of the latest run's round
    "${compose[@]}" exec -T "$1-app" python - "$2" <<'PYTHON'
import hashlib, sqlite3, sys
store = sqlite3.connect("file:/state/private/private.sqlite?mode=ro", uri=True)
rows = store.execute(
    "SELECT user, state FROM states WHERE experiment = (SELECT max(number) FROM experiments) "
    "AND round = ? ORDER BY user", (sys.argv[1],)).fetchall()
print(len(rows), hashlib.sha256(repr(rows).encode()).hexdigest())
PYTHON
}

same() { # same WHAT BEFORE AFTER
    [ "${2%% *}" != 0 ] || fail "$1: nothing was stored before"
    [ "$2" = "$3" ] || fail "$1: private state differs: $2, then $3"
    echo "$1: private state of ${2%% *} users is what it was, to the byte"
}

# Init is not killed by it, ends with the process that it started, and the policy takes over.
crash() { "${compose[@]}" exec -T "$1" bash -c 'kill -9 -1' 2>/dev/null || true; }
killed() { docker kill "$("${compose[@]}" ps --quiet "$1")" >/dev/null; }
replace() { "${compose[@]}" up --detach --no-deps "$1" 2>/dev/null; }
well() { # well SERVICE: until its health check says so
    local container left=300
    container=$("${compose[@]}" ps --quiet "$1")
    until [ "$(docker inspect "$container" --format '{{.State.Health.Status}}')" = healthy ]; do
        [ $((left -= 1)) -gt 0 ] || fail "$1 does not get well"
        sleep 0.5
    done
}

goes_and_returns() { # goes_and_returns SITE ROUND COMMAND: its SuperNode, by a command that takes SITE
    local before
    before=$(states "$1" "$2")
    "$3" "$1"
    await "$1 was said to be away" has_said "$1 is away"
    same "$1 away" "$before" "$(states "$1" "$2")"
    await "$1 was said to be back" has_said "$1 is back"
    last=$(grep -cE '^round' "$said")
}
replaced() { killed "$1"; replace "$1"; }

step "faults: a SuperNode crashes, and its restart policy brings a replacement"
begin crashed 30
everybody 0
goes_and_returns site-1 "$full" crash

step "faults: docker kill of another, and a replacement started by hand"
everybody "$last"
goes_and_returns site-2 "$full" replaced

step "faults: docker kill of the executor of a site's app, and a replacement"
everybody "$last"
before=$(states site-1 "$full")
replaced site-1-app
same "site-1-app replaced" "$before" "$(states site-1 "$full")" # before later rounds push it out
well site-1-app

step "faults: the SuperLink is restarted"
everybody $((full + 1)) # a round or two after it
"${compose[@]}" restart superlink 2>/dev/null
well superlink
if wait "$running"; then
    completed
else # on a slow machine it was away for more than Flower's minute
    told
    echo "the run has failed; resumed:"
    begin crashed 30 resume=true
    completed
fi

step "faults: docker kill of the server app's executor, and the run resumed"
begin resumed 4 evaluate-every=1
await "the second round" has_said '^round 2/'
before=$(states site-1 2)
killed server-app
! wait "$running" || fail "the run was not told to have failed"
told
same "server-app gone" "$before" "$(states site-1 2)"
replace server-app
well server-app
begin resumed 4 evaluate-every=1 resume=true
completed
