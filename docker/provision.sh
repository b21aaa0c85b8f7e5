#!/bin/sh
# The first step of the demonstration on one host: makes the consortium and plays all three hospitals' part in it.
# In a real consortium every hospital runs `fedsmall site keygen` itself, and only the .pub file travels.
set -eu
[ -f /consortium/consortium.json ] && exit 0
fedsmall consortium init demo -f /consortium --host gate --port 8443 --inner-host superlink --inner-port 18443
for site in essen bonn ulm; do
    fedsmall consortium add-site "$site" -f /consortium
    cp /consortium/kits/"$site"/* /kits/"$site"/
    fedsmall site keygen --kit /kits/"$site"
    fedsmall consortium add-site "$site" --key /kits/"$site"/site.key.pub -f /consortium
done
python -m sim.consortium.sample_data /data/essen/hospital.csv /data/bonn/hospital.csv /data/ulm/hospital.csv
