"""The compose file of a consortium: what it promises, and, where there is an engine, that it comes up and finishes."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from tests import ROOT

SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


NAMED = re.compile(r'"\$(?:consortium|keys)/([\w./-]+)"').findall


def engine():
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


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
    assert service["pids_limit"] <= 512


def mounted(name):
    return {volume.split(":")[0] for volume in SERVICES[name]["volumes"]}


def test_the_gate_has_its_certificate_and_nothing_else_of_the_consortium():
    script = (ROOT / "docker" / "provision.sh").read_text()

    assert mounted("gate") == {"gate"}
    copied = {
        name for line in script.splitlines() if "/gate/" in line and line.startswith("cp") for name in NAMED(line)
    }
    assert copied == {"consortium.json", "ca/ca.crt", "server/server.crt", "server/server.key"}


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
    (line,) = [line for line in script.splitlines() if '"$root/kits/$site/"' in line]
    assert set(NAMED(line)) == {"site.json", "policy.toml", "site.key.pub"}
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


def needs_an_engine(test):
    asked = pytest.mark.skipif(
        not os.environ.get("FEDSMALL_DOCKER"), reason="set FEDSMALL_DOCKER=1 (and BASE) to build and run"
    )
    for mark in (pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(5400), asked):
        test = mark(test)
    return test


@needs_an_engine
def test_a_build_without_network_and_wheels_says_so_in_one_line(tmp_path):
    if not shutil.which("docker") or not engine():
        pytest.skip("there is no Docker engine here")
    kept_back = shutil.ignore_patterns(".*", "*.whl", "*.tar.gz", "tests", "runs")
    context = shutil.copytree(ROOT, tmp_path / "context", ignore=kept_back)
    (context / "docker" / "wheels").mkdir(exist_ok=True)
    base = f"BASE={os.environ.get('BASE', 'debian:bookworm-slim')}"
    command = ["docker", "build", "--network", "none", "-f", "docker/Dockerfile", "--build-arg", base, "."]

    done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "No package can be had: no index is reached" in done.stdout + done.stderr
    assert "Retrying" not in done.stdout + done.stderr


@needs_an_engine
def test_the_demonstration_comes_up_and_finishes():
    if not shutil.which("docker") or not engine():
        pytest.skip("there is no Docker engine here")

    done = subprocess.run([str(ROOT / "docker" / "demo.sh")], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "finished after" in done.stdout + done.stderr
