"""The compose file of a consortium, and what it promises. In an engine: test_containers.py."""

import re
import shutil
import zipfile

import pytest
import yaml

from tests import ROOT
from tests.release.check import build, only

SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


NAMED = re.compile(r'"\$(?:consortium|keys)/([\w./-]+)"').findall


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_can_write_its_root_or_gain_rights(name):
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "ports" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_takes_all_memory_or_starts_any_number_of_processes(name):
    service = SERVICES[name]

    assert service["mem_limit"] in ("512m", "1g", "3g")
    assert service["memswap_limit"] == service["mem_limit"]  # no swap: patients' data are not written to the host
    assert service["pids_limit"] <= 512


def mounted(name):
    return {volume.split(":")[0] for volume in SERVICES[name]["volumes"]}


def test_the_gate_has_its_certificate_and_nothing_else_of_the_consortium():
    script = (ROOT / "docker" / "provision.sh").read_text()

    assert mounted("gate") == {"gate"}
    copied = {
        name for line in script.splitlines() if "/gate/" in line and line.startswith("cp") for name in NAMED(line)
    }
    assert copied == {"consortium.json", "ca/ca.crt", "server/server.crt", "server/server.key", "sites"}


def test_the_authoritys_key_is_where_no_container_that_runs_on_can_read_it():
    script = (ROOT / "docker" / "provision.sh").read_text()

    assert 'mv "$consortium/ca/ca.key" "$consortium/ca/private/"' in script
    assert "authority:/consortium/ca/private" in SERVICES["provision"]["volumes"]
    assert [name for name in SERVICES if "authority" in mounted(name)] == ["provision"]
    assert SERVICES["provision"].get("restart") is None


@pytest.mark.parametrize("site", ["essen", "bonn", "ulm"])
def test_the_sites_key_is_with_the_network_half_alone(site):
    script = (ROOT / "docker" / "provision.sh").read_text()

    assert f"{site}-keys" in mounted(site)
    assert f"{site}-keys" not in mounted(f"{site}-station")
    copied, moved = [line for line in script.splitlines() if '"$root/kits/$site/"' in line]
    assert set(NAMED(copied)) == {"site.json", "policy.toml", "site.key.pub"}
    assert moved.split()[0] == "mv"  # so that the half with a network has no identity to write envelopes in
    assert NAMED(moved) == ["identity.key"]
    assert [name for name in SERVICES if f"{site}-keys" in mounted(name)] == ["provision", site]


def test_a_volume_that_is_mounted_is_declared():
    declared = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["volumes"]

    assert set(declared) == set().union(*map(mounted, SERVICES))


def test_only_stations_get_a_gpu_and_are_otherwise_as_they_were():
    over = yaml.safe_load((ROOT / "docker" / "compose.gpu.yaml").read_text())["services"]

    assert set(over) == {f"{site}-station" for site in ("essen", "bonn", "ulm")}
    for name, service in over.items():
        assert set(service) == {"command", "deploy"}
        assert service["command"] == [*SERVICES[name]["command"], "--device", "cuda"]


@pytest.mark.parametrize("site", ["essen", "bonn", "ulm"])
def test_data_have_no_network_and_the_network_has_no_data(site):
    station, link = SERVICES[f"{site}-station"], SERVICES[site]

    assert station["network_mode"] == "none"
    assert any(volume.startswith(f"{site}-data:") and volume.endswith(":ro") for volume in station["volumes"])
    assert not any("-data" in volume for volume in link["volumes"])
    assert link["networks"] == [site]
    assert [name for name, other in SERVICES.items() if site in other.get("networks", ())] == ["gate", site]


def test_only_the_gate_and_the_coordinator_reach_the_superlink():
    inside = {name for name, service in SERVICES.items() if "inside" in service.get("networks", ())}

    assert inside == {"superlink", "gate", "coordinator"}


def test_what_the_image_copies_makes_the_wheel_of_the_checkout(tmp_path):
    copied = re.findall(r"^COPY (.+) /src/(\S*)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    for sources, to in copied:
        for source in sources.split():
            place = tmp_path / "src" / to
            if source.endswith("/"):
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    build(tmp_path / "src", tmp_path / "image", "wheel")
    build(ROOT, tmp_path / "checkout", "wheel")

    names = [zipfile.ZipFile(only(tmp_path / where, "*.whl")).namelist() for where in ("image", "checkout")]
    assert names[0] == names[1]
    assert "fedsmall/systemd/fedsmall-station.service" in names[0]
