"""Compile the kernel: ``python -m fedsmall.training.kernel.build``, with ``cc`` or what the variable CC names.

Standard library only: building a wheel runs this file by its path.
"""

import os
import platform
import shlex
import subprocess
import tempfile
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
OPTIONS = "-std=gnu11 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fPIC -DSET={0}"
AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx2 -mfma"
ON_X86 = {1: "-mavx2 -mfma", 2: f"{AVX512} -mprefer-vector-width=256", 3: AVX512}  # by the sets of vectors.h


def build(to: Path) -> None:
    """Compile kernel.c and images.c into the library ``to``, for every set of instructions that a processor may have.

    One thread does all without OpenMP. FileNotFoundError without a compiler, CalledProcessError where it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    sets = (ON_X86 if platform.machine().lower() in ("x86_64", "amd64") else {}) | {0: ""}
    with tempfile.TemporaryDirectory() as folder:
        objects, whole = [], f"{folder}/kernel.so"
        probe = [*compiler, "-fopenmp", "-shared", "-x", "c", os.devnull, "-o", whole]
        if not subprocess.run(probe, stderr=subprocess.DEVNULL).returncode:
            compiler.append("-fopenmp")
        for number, name in product(sets, ("kernel", "images")):
            objects.append(f"{folder}/{name}{number}.o")
            words = [*OPTIONS.format(number).split(), *sets[number].split(), "-c", str(HERE / f"{name}.c"), "-o"]
            subprocess.run([*compiler, *words, objects[-1]], check=True)
        subprocess.run([*compiler, "-shared", *objects, "-lm", "-o", whole], check=True)
        to.write_bytes(Path(whole).read_bytes())


if __name__ == "__main__":
    build(HERE / "kernel.so")
    print(f"Built: {HERE / 'kernel.so'}")
