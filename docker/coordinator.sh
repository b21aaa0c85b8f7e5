#!/bin/sh
# Starts the SuperExec that runs ServerApps, registers the sites, runs the scenario to its report, and ends.
set -eu
fedsmall server up --only superexec --detach -f /consortium
trap 'fedsmall server down --only superexec -f /consortium' EXIT
if [ -d /consortium/runs/trial ]; then
    fedsmall resume trial -f /consortium
else
    fedsmall start "$1" --name trial -f /consortium --start-deadline 600
fi
