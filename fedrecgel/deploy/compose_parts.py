"""The blocks of text of which `fedrecgel.deploy.compose` makes a compose file.

Words in capitals (NAME, DATA, ...) are replaced.
"""

HEAD = """\
# Made by `fedrecgel deploy compose`; docs/how-to/containers.md says how to use and change it.
#
#   docker compose up --detach --wait        start; the first time builds the image
#   docker compose run --rm run rounds=5     train
#   docker compose --profile serve up --detach --wait
#   docker compose exec site-1-serve fedrecgel ask site-1-serve:50051 USER --tls-ca /keys/ca.crt
#   docker compose down                      stop; with --volumes also forget everything
#
# FLWR            the Flower of all containers: 1.39 (gRPC, default) or 1.42 (HTTP)
# FEDRECGEL_USER  user and group that all containers run as; volumes keep their first owner
name: ${COMPOSE_PROJECT_NAME:-fedrecgel}

x-container: &container
  image: fedrecgel:flwr-${FLWR:-1.39}
  pull_policy: never
  user: ${FEDRECGEL_USER:-10001:10001}
  read_only: true
  tmpfs: ["/tmp:mode=1777,size=256m"]
  shm_size: 64m
  init: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  pids_limit: 128
  cpus: 1.0
  mem_limit: 512m
  restart: unless-stopped
  logging: {driver: json-file, options: {max-size: 5m, max-file: "3"}}

# An API is asked over TLS whether it is well (30 ms of a core). Whether a container has its
# connection stands in /proc/net: remote port in hexadecimal, 01 is established (8000 is 1F40, 9092
# 2384, 9094 2386).
x-health: &health
  interval: 3s
  timeout: 3s
  retries: 3
  start_period: 300s

services:"""

BUILD = """\
    pull_policy: missing
    build:
      context: CONTEXT
      dockerfile: deploy/Dockerfile
      args:
        FLWR: ${FLWR:-1.39}.*
"""

SUPERLINK = """\
  superlink:
    <<: *container
    command: [deploy, start, superlink, --keys, /keys, --database, /state/superlink.db,
              --api-bind, superlink-api]
    depends_on:
      set-up: {condition: service_completed_successfully}
    healthcheck:
      <<: *health
      test: [CMD, python, -IS, /app/fedrecgel/deploy/health.py, "superlink-api:8000", /keys/ca.crt]
    stop_grace_period: 15s
    networks:
      server: {aliases: [superlink-api]}
    LINKS
    volumes: ["superlink-keys:/keys:ro", "superlink-state:/state"]
"""

REGISTER = """\
  register:
    <<: *container
    restart: "no"
    command: [deploy, register, --superlink, "superlink-api:8000", --keys, /keys, SITES]
    depends_on:
      superlink: {condition: service_healthy}
    networks: [server]
    volumes: ["public-keys:/keys:ro"]
"""

SERVER_APP = """\
  server-app:
    <<: *container
    mem_limit: 1g
    command: [deploy, start, superexec, --address, "superlink-api:8000", --keys, /keys,
              --writable, /runs, --readable, /data/catalogue.json]
    depends_on:
      superlink: {condition: service_healthy}
    healthcheck:
      <<: *health
      test: [CMD, grep, -Eqs, ":1F40 01 ", /proc/net/tcp, /proc/net/tcp6]
    networks: [server]
    volumes: ["server-app-keys:/keys:ro", "CATALOGUE:ro", "runs:/runs"]
"""

COMMAND_LINE = """\
  # docker compose run --rm run rounds=5 seed=1
  run:
    <<: *container
    profiles: [tools]
    restart: "no"
    command: []
    entrypoint: [fedrecgel, deploy, run, --superlink, "superlink-api:8000", --keys, /keys,
                 --app, /app, "catalogue=/data/catalogue.json", "out=/runs/{time}",
                 min-nodes=COUNT, wait=120, round-timeout=300]
    networks: [server]
    volumes: ["public-keys:/keys:ro", "runs:/runs:ro"]
"""

SITE = """\
  NAME:
    <<: *container
    command: [deploy, start, supernode, --superlink, superlink, --keys, /keys, --site, NAME,
              --interactions, /data/interactions.csv, --state, /state/private]
    depends_on:
      register: {condition: service_completed_successfully}
    healthcheck:
      <<: *health
      test: [CMD, bash, -c, "python -IS /app/fedrecgel/deploy/health.py 127.0.0.1:9094 /keys/ca.crt
              && grep -Eqs ':(1F40|2384) 01 ' /proc/net/tcp /proc/net/tcp6"]
    networks: [NAME-link, NAME]
    volumes: ["NAME-keys:/keys:ro"]
  NAME-app:
    <<: *container
    mem_limit: 1g
    command: [deploy, start, superexec, --warm, --address, "NAME:9094", --keys, /keys,
              --writable, /state/private, --readable, /data/interactions.csv]
    depends_on:
      NAME: {condition: service_healthy}
    healthcheck:
      <<: *health
      test: [CMD, grep, -Eqs, ":2386 01 ", /proc/net/tcp, /proc/net/tcp6]
    networks: [NAME]
    volumes: ["NAME-app-keys:/keys:ro", "DATA:/data:ro", "NAME-state:/state"]
  NAME-serve:
    <<: *container
    profiles: [serve]
    command: [serve, --state, /state/private, --interactions, /data/interactions.csv,
              --address, "0.0.0.0:50051", --tls-cert, /keys/tls.crt, --tls-key, /keys/tls.key]
    healthcheck:
      <<: *health
      test: [CMD, python, -IS, /app/fedrecgel/deploy/health.py, "127.0.0.1:50051", /keys/ca.crt,
             fedrecgel.v1.Recommender]
    networks: [NAME]
    # The state is only read, but SQLite's readers note in private.sqlite-shm what they read.
    volumes: ["NAME-serve-keys:/keys:ro", "DATA:/data:ro", "NAME-state:/state"]
"""
