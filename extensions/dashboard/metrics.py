"""The server's figures in Prometheus' text format: sites, contact seconds, answers, refusals; nothing of a patient."""

from collections.abc import Iterator, Mapping

from fedsmall.extensions.dashboard.desk import Desk
from fedsmall.sim.consortium import members

KIND = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COUNTS = {  # by what a run's log counts of a site
    "answers": ("answers", "answers of a site in a run"),
    "came": ("bytes", "bytes of arrays in a site's answers"),
    "refused": ("refusals", "orders that a site refused or that failed there"),
    "silent": ("silences", "orders that a site did not answer before the deadline"),
}
STATES = ("prepared", "under way", "stopped", "failed", "finished")


def text(desk: Desk) -> str:
    """All figures, one a line, as Prometheus reads them."""
    return "".join(f"{line}\n" for line in _lines(desk))


def _lines(desk: Desk) -> Iterator[str]:
    yield from _head("fedsmall_server_up", "gauge", "whether the server answers")
    yield _line("fedsmall_server_up", {}, desk.server == "runs")
    yield from _head("fedsmall_site_connected", "gauge", "whether a member is connected now")
    for name, _, status in desk.sites():
        yield _line("fedsmall_site_connected", {"site": name}, status == "online")
    yield from _head("fedsmall_certificate_days", "gauge", "days until a certificate expires")
    for label, days in members.certificates(desk.folder).items():
        yield _line("fedsmall_certificate_days", {"certificate": label}, days)
    yield from _of_runs(desk)


def _of_runs(desk: Desk) -> Iterator[str]:
    shown = sorted(desk.runs(), key=lambda run: run.name)
    yield from _head("fedsmall_run_state", "gauge", "1 for the state that a run is in")
    for run in shown:
        yield from (_line("fedsmall_run_state", {"run": run.name, "state": s}, run.state == s) for s in STATES)
    yield from _head("fedsmall_contact_seconds", "histogram", "seconds from a contact's first order to its last answer")
    for run in shown:
        yield from _histogram("fedsmall_contact_seconds", {"run": run.name}, list(run.log.seconds().values()))
    for counted, (name, words) in COUNTS.items():
        yield from _head(f"fedsmall_site_{name}_total", "counter", words)
        for run in shown:
            for site, told in sorted(run.log.run.sites.items()):
                yield _line(f"fedsmall_site_{name}_total", {"run": run.name, "site": site}, told[counted])


def _histogram(name: str, labels: Mapping[str, str], values: list[float]) -> Iterator[str]:
    for bound in BUCKETS_S:
        yield _line(f"{name}_bucket", {**labels, "le": f"{bound:g}"}, sum(value <= bound for value in values))
    yield _line(f"{name}_bucket", {**labels, "le": "+Inf"}, len(values))
    yield _line(f"{name}_sum", labels, sum(values))
    yield _line(f"{name}_count", labels, len(values))


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_quoted(word)}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {float(value):.17g}" if inside else f"{name} {float(value):.17g}"


def _quoted(word: str) -> str:
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
