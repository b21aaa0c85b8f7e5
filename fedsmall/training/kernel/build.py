"""Compile the kernel: ``python -m fedsmall.training.kernel.build``, with ``cc`` or what the variable CC names.

Standard library only: building a wheel runs this file by its path.
"""

import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OPTIONS = "-std=gnu11 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fPIC -DW={0} -DWALK=walk_{0}"
ON_X86 = {16: "-mavx512f -mavx512dq -mavx512vl -mavx2 -mfma", 8: "-mavx2 -mfma"}  # beside plain vectors of four


def build(to: Path) -> None:
    """Compile kernel.c into the library ``to``, once for every set of instructions that a processor here may have.

    Raises FileNotFoundError where there is no compiler, and CalledProcessError where it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    sets = (ON_X86 if platform.machine().lower() in ("x86_64", "amd64") else {}) | {4: ""}
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{lanes}.o" for lanes in sets]
        for (lanes, flags), made in zip(sets.items(), objects, strict=True):
            words = [*OPTIONS.format(lanes).split(), *flags.split(), "-c", str(HERE / "kernel.c"), "-o", made]
            subprocess.run([*compiler, *words], check=True)
        whole = f"{folder}/kernel.so"
        subprocess.run([*compiler, "-shared", *objects, "-lm", "-o", whole], check=True)
        to.write_bytes(Path(whole).read_bytes())


if __name__ == "__main__":
    build(HERE / "kernel.so")
    print(f"Built: {HERE / 'kernel.so'}")
