"""The wheel of one platform: with FEDSMALL_KERNEL=1 the kernel is compiled into it; without, it is Python for any."""

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNEL = "fedsmall/training/kernel"


class Kernel(BuildHookInterface[Any]):
    """Compiles the kernel where it is asked for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and name the platform in the wheel's name; no Python's number, for it is called by ctypes."""
        if os.environ.get("FEDSMALL_KERNEL") != "1":
            return
        folder = Path(self.root, KERNEL)
        runpy.run_path(str(folder / "build.py"))["build"](folder / "kernel.so")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        build_data["artifacts"].append(f"{KERNEL}/kernel.so")
