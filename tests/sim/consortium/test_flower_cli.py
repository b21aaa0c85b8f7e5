"""What Flower's commands answer can be read, whatever the environment asks for."""

import os
import subprocess
import sys

from fedsmall.sim.consortium.flower_cli import environment


def test_an_answer_has_no_colours_though_a_notebooks_kernel_asks_for_them(tmp_path):
    wanted = {**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    command = [sys.executable, "-c", "import rich; rich.print_json('{\"success\": true}')"]  # as Flower prints answers

    def said(variables):
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout

    assert "\x1b" in said(wanted)
    assert "\x1b" not in said({**wanted, **environment(tmp_path)})
