"""``fedsmall bench``: how fast the engines are, against each other and against other ways to do the same."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedsmall.research.bench.contenders import CPU_ALONE, RAY
from fedsmall.research.bench.images import IMAGES, ImageRow, image_rows
from fedsmall.research.bench.measure import feddc_over_fedavg, measure
from fedsmall.research.bench.privacy import privacy_over_plain
from fedsmall.research.bench.timing import Measured
from fedsmall.research.bench.workloads import WORKLOADS, Workload
from fedsmall.sim.cli.options import DATA_ROOT
from fedsmall.training.device import check_device, keep_freed_memory


def bench(
    workloads: Annotated[str, typer.Option(help="which of the workloads A, B, C, D and E to run")] = "ABCDE",
    repeats: Annotated[int, typer.Option(help="how often each contender runs, in turn with the others", min=1)] = 3,
    ray: Annotated[
        bool, typer.Option(help="also measure Flower's own simulation runtime, which takes a minute")
    ] = True,
    scaling: Annotated[
        bool, typer.Option(help="also measure how cost grows with sites, samples and parameters")
    ] = True,
    images: Annotated[
        bool | None,
        typer.Option(
            help="also measure CNN and ResNet-18 at 64 images a site, batched and one by one; else on a GPU alone",
            show_default=False,
        ),
    ] = None,
    image_sites: Annotated[str, typer.Option(help="at how many sites --images measures")] = "50,500,5000",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1")] = "cpu",
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    out: Annotated[Path | None, typer.Option(help="a folder for bench.json and bench.png", show_default=False)] = None,
) -> None:
    """Measure client updates a second at equal losses: each contender in turn, several times over, in one process."""
    if device != "cpu" and not device.startswith("cuda"):
        raise typer.BadParameter(f"--device is cpu, cuda or cuda:1 here; got {device!r}")
    check_device(device)
    counts = _counts(image_sites)
    chosen = [WORKLOADS[key] for key in _keys(workloads)]
    torch.set_num_threads(1)
    console = Console()
    keep_freed_memory()  # all contenders profit alike
    results = []
    left_out = _left_out(ray, device)
    if device != "cpu":
        console.print(f"Left out, for they train on the CPU alone here: {', '.join(CPU_ALONE)}")
    for work in chosen:
        results += measure(work, repeats, device, without=left_out)
        _show(console, work, [m for m in results if m.workload == work.key])
    growth = _grown(console, device) if scaling else []
    pictured = _pictured(console, device, data_root, counts) if images or (images is None and device != "cpu") else []
    dearer = feddc_over_fedavg(max(repeats, 5), device) if scaling else None
    private = None
    if dearer is not None:
        console.print(f"A FedDC round costs {dearer:.2f} times a FedAvg round (workload A, median of runs in turn)")
        clip, noise = private = privacy_over_plain(max(repeats, 5), device)
        console.print(
            f"Patient-level privacy: clipping costs {clip:.2f} times a plain step, with lots and noise {noise:.2f} "
            "times (17,226 parameters, batches of 64, processor time)"
        )
    if out is not None:
        _write(out, results, growth, device, dearer, private, pictured)
        console.print(f"Written: {out / 'bench.json'} and {out / 'bench.png'}")


def _keys(text: str) -> list[str]:
    keys = [key for key in text.upper() if key not in ", "]
    unknown = [key for key in keys if key not in WORKLOADS]
    if unknown or not keys:
        raise typer.BadParameter(f"--workloads takes letters of {''.join(WORKLOADS)}; got {text!r}")
    return keys


def _counts(text: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"--image-sites takes numbers of sites, as in 50,500; got {text!r}")
    return [int(word) for word in words]


def _left_out(ray: bool, device: str) -> Sequence[str]:
    if device != "cpu":
        return CPU_ALONE
    return [] if ray else [RAY]


def _show(console: Console, work: Workload, measured: Sequence[Measured]) -> None:
    table = Table(title=f"{work.key}: {work.title}", title_justify="left")
    headings = ("", "updates a second", "cohort is faster by", "by processor time", "asked for", "loss")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    cohort = measured[0]
    for m in measured:
        if m.missing:
            table.add_row(m.contender, "not installed")
            continue
        asked = work.targets.get(m.contender)
        ratio = f"{cohort.rate / m.rate:,.2f}"
        # others' processes work
        processor = "" if m.contender == RAY else f"{cohort.processor_rate / m.processor_rate:,.2f}"
        table.add_row(m.contender, f"{m.rate:,.0f}", ratio, processor, f"{asked:g}" if asked else "", f"{m.loss:.5f}")
    console.print(table)
    for m in measured:
        if m.missing:
            console.print(f"{m.contender}: {m.missing} (docs/speed.md says how to install it)", markup=False)


def _grown(console: Console, device: str) -> list[dict[str, Any]]:
    from fedsmall.research.bench.growth import growth

    table = Table(title="How the cost grows (cohort engine, MLP, FedDC d = 1)", title_justify="left")
    for heading in ("sites", "samples", "parameters", "updates a second", "ms a round", "peak memory"):
        table.add_column(heading, justify="right")
    rows = []
    for row in growth(device):
        rows.append(asdict(row))
        table.add_row(
            f"{row.sites:,}",
            f"{row.samples:,}",
            f"{row.parameters:,}",
            f"{row.rate:,.0f}",
            f"{1000 * row.sites / row.rate:,.2f}",
            f"{row.peak_bytes / 2**20:,.0f} MiB",
        )
    console.print(table)
    return rows


def _pictured(console: Console, device: str, root: Path | None, sites: Sequence[int]) -> list[ImageRow]:
    console.print(f"Convolutional networks, {IMAGES} images a site, FedDC d = 1, on {device}")
    rows = []
    for row in image_rows(device, root, sites=sites):
        rows.append(row)
        numbers = f"not measured: {row.missing}" if row.missing else _numbers(row)
        console.print(f"{row.model}, {row.sites:,} sites, {row.path}: {numbers}", markup=False, highlight=False)
    if any(row.images == "generated" for row in rows):
        console.print(
            "The images are generated: there is no cifar10.npz in the data folder (--data-root, FEDSMALL_DATA)."
        )
    return rows


def _numbers(row: ImageRow) -> str:
    return f"{row.rate:,.1f} updates a second, {row.peak_bytes / 2**20:,.0f} MiB at most, loss {row.loss:.5f}"


def _write(
    out: Path,
    results: Sequence[Measured],
    growth: Sequence[dict[str, Any]],
    device: str,
    dearer: float | None,
    private: Sequence[float] | None,
    pictured: Sequence[ImageRow] = (),
) -> None:
    from fedsmall.research.bench.figure import figure

    out.mkdir(parents=True, exist_ok=True)
    about = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
    }
    results = [m for m in results if m.rates]
    measured = [asdict(m) | {"rate": m.rate} for m in results]
    table = {
        "about": about,
        "measured": measured,
        "growth": list(growth),
        "images": [{key: known for key, known in asdict(row).items() if known == known} for row in pictured],
        "feddc_over_fedavg": dearer,
        "private_over_plain": private,
    }
    (out / "bench.json").write_text(json.dumps(table, indent=2) + "\n")
    figure(results, growth).savefig(out / "bench.png", dpi=150)
