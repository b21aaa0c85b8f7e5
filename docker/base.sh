#!/bin/sh
# Makes a base image where none can be pulled: a small Debian with Python and nginx, from Debian's own packages.
# Needs root and debootstrap. Usage: docker/base.sh [NAME]; then BASE=NAME docker/demo.sh
set -eu
name=${1:-debian-python:bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"  # mktemp makes it its owner's alone, and so would the image's root be
debootstrap --variant=minbase --include=python3,python3-venv,nginx-light,ca-certificates bookworm "$root"
tar -C "$root" -c . | docker import - "$name"
echo "BASE=$name docker/demo.sh"
