#!/bin/sh
# Builds the image, brings the consortium up, waits for the report, and clears up. Exit code: the scenario's.
# BASE, PIP_ARGS: see the Dockerfile. KEEP=1 leaves containers and volumes, which `demo.sh down` clears up later.
# COMPOSE names the compose command.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${COMPOSE:-}" ]; then
    if docker compose version >/dev/null 2>&1; then COMPOSE="docker compose"; else COMPOSE="docker-compose"; fi
fi
compose() { $COMPOSE -p fedsmall-demo -f docker/compose.yaml "$@"; }
[ "${1:-}" != down ] || { compose down -v --timeout 20; exit; }
BASE=${BASE:-debian:bookworm-slim}
docker build -f docker/Dockerfile -t fedsmall:local --build-arg BASE="$BASE" --build-arg PIP_ARGS="${PIP_ARGS:-}" . || {
    echo "The image was not built on $BASE. Without a network it needs a base from docker/base.sh and all wheels in" \
        "docker/wheels/, with PIP_ARGS=--no-index; docker/README.md says how." >&2
    exit 1
}
clear_up() { [ "${KEEP:-}" = 1 ] || compose down -v --timeout 20; }
trap clear_up EXIT
compose up -d
coordinator=$(compose ps -q coordinator)
docker logs -f "$coordinator" &
code=$(docker wait "$coordinator")
wait
exit "$code"
