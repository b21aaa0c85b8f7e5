"""What envelopes and secure sums cost, without a network: seconds at a site, a decryptor and the server, and bytes.

Every row is one hop and one average among so many sites, for models of so many float32 numbers. Each site's work is the
product's own; sites work at the same time in a real run, so what is shown is one site's, one decryptor's and the
server's.

    python -m examples.measure_sealing [SITES ...]
"""

import os
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from safetensors.numpy import load, save

from fedsmall.aggregation.sums import SCALE
from fedsmall.sealing.envelopes import OVERHEAD, SEED, Mailbox, announce
from fedsmall.sealing.masks import BYTES, committee_size, masked, pair_signs, seed_from, share, threshold, unmasked

NUMBERS = {"17 thousand": 17_226, "11 million": 11_200_000}
REPEATS = 5
SUMS = 1000  # of a run


def main(counts: list[int]) -> None:
    """Print a row for each number of sites and each model."""
    heads = (
        "sites, model, seal a hop, open it, bytes more a hop, mask, a decryptor, the server, decryptors (must answer)"
    )
    heads += ", bytes of a summand's envelopes, bytes a decryptor tells, more an average"
    print("| " + heads.replace(", ", " | ") + " |")
    print("|---" * 12 + "|")
    for sites in counts:
        for name, numbers in NUMBERS.items():
            print(f"| {sites} | {name} | " + " | ".join(row(sites, numbers)) + " |", flush=True)


def row(sites: int, numbers: int) -> list[str]:
    """The cells of a row: times in ms, and bytes beyond those of the same exchange in the clear."""
    repeats = REPEATS if sites * numbers < 10**8 else 1
    model = {"w": np.random.default_rng(0).standard_normal(numbers).astype(np.float32)}
    one, other = posts()
    envelope = b""

    def seal() -> None:
        nonlocal envelope
        envelope = one.write("traveller", 1, "b", "", save(model))

    times = [timed(seal, repeats), timed(lambda: load(other.open("traveller", 1, "a", "", envelope)), repeats)]
    decryptors = committee_size(sites, SUMS)
    summand, names = fixed(model["w"]), [f"{k:03d}" for k in range(sites)]
    seeds = {name: seed_from(bytes(32), name) for name in names}
    pairs = pair_signs(names[0], {name: seeds[name] for name in names[1:]})
    content = share(list(seeds.values()), decryptors, bytes(32))

    def mask() -> None:
        masked(summand, seeds[names[0]], pairs)
        share(list(seeds.values()), decryptors, bytes(32))
        for envelope in content:
            one.write("seed", 1, "b", "", envelope)

    key = one.write("seed", 1, "b", "", content[0])
    shares = dict(enumerate(content[: threshold(decryptors)], 1))  # of as many seeds: one for each site
    times.append(timed(mask, repeats))
    times.append(timed(lambda: [other.open("seed", 1, "a", "", key) for _ in names], repeats))
    times.append(timed(lambda: unmasked(dict.fromkeys(names, summand), [], shares), repeats))
    envelopes, told = decryptors * len(key), decryptors * sites * BYTES
    average = sites * (4 * numbers + 2 * envelopes) + told  # envelopes come and go on
    hop, more = OVERHEAD, 100 * average / (2 * 4 * numbers * sites)
    cells = [f"{1000 * seconds:.3g} ms" for seconds in times]
    sizes = [
        f"{decryptors} ({threshold(decryptors)})",
        f"{envelopes:,}",
        f"{sites * BYTES:,}",
        f"{more:.0f}% of the communication round's",
    ]
    return [*cells[:2], f"{hop:,}", *cells[2:], *sizes]


def posts() -> tuple[Mailbox, Mailbox]:
    """Two sites that know each other's keys."""
    secrets = {name: (os.urandom(32), os.urandom(SEED)) for name in "ab"}
    others = {name: announce(name, "r", *keys, "n") for name, keys in secrets.items()}
    return Mailbox("a", "r", *secrets["a"], others), Mailbox("b", "r", *secrets["b"], others)


def fixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers in fixed point, as a summand has them."""
    return np.rint(numbers.astype(np.float64) * SCALE).astype(np.int64).view(np.uint64)


def timed(work: Callable[[], object], repeats: int) -> float:
    """The median time of a call, in seconds of processor time."""
    took = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return median(took)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [3, 15, 150])
