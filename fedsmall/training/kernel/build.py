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
OPTIONS = "-std=gnu11 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fPIC -DW={0}"
ON_X86 = {16: "-mavx512f -mavx512dq -mavx512vl -mavx2 -mfma", 8: "-mavx2 -mfma"}  # beside plain vectors of four


def build(to: Path) -> None:
    """Compile kernel.c and images.c into the library ``to``, for every set of instructions that a processor may have.

    Raises FileNotFoundError where there is no compiler, and CalledProcessError where it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    sets = (ON_X86 if platform.machine().lower() in ("x86_64", "amd64") else {}) | {4: ""}
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for lanes, name in product(sets, ("kernel", "images")):
            objects.append(f"{folder}/{name}{lanes}.o")
            words = [*OPTIONS.format(lanes).split(), *sets[lanes].split(), "-c", str(HERE / f"{name}.c"), "-o"]
            subprocess.run([*compiler, *words, objects[-1]], check=True)
        whole = f"{folder}/kernel.so"
        subprocess.run([*compiler, "-shared", *objects, "-lm", "-o", whole], check=True)
        to.write_bytes(Path(whole).read_bytes())


if __name__ == "__main__":
    build(HERE / "kernel.so")
    print(f"Built: {HERE / 'kernel.so'}")
