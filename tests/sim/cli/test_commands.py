import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from docs.manual.commands import walk
from fedsmall.planning.theory import advise
from fedsmall.sim.cli.app import COMMANDS, LazyCommand, main
from tests import ROOT
from tests.sim.runs.scenarios import SMALL, write

METHOD = '[[method]]\nname = "FedDC"\n'
FAST = SMALL.replace("seeds = [0, 1]", "seeds = [0]").replace("rounds = 6", "rounds = 3")


def table(folder: Path, rows: str, header: str = "a,b,y") -> Path:
    (folder / "mine.csv").write_text(f"{header}\n{rows}")
    return write(folder, FAST.replace('"breast_cancer"', '{csv = "mine.csv", label = "y"}'))


GOOD_ROWS = "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60))


@pytest.mark.thorough
def test_a_run_prints_its_table_and_writes_its_report(fedsmall, tmp_path):
    code, said, complained = fedsmall("run", write(tmp_path, FAST), "--engine", "inprocess", "--out", "out")

    assert code == 0
    assert complained == ""
    assert "FedAvg, b = 3" in said
    assert "Models trained at a single site reach accuracy" in said
    assert "Report: out/report.html" in said
    assert (tmp_path / "out" / "report.html").is_file()
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())) == 5


@pytest.mark.thorough
def test_a_run_without_out_gets_a_folder_of_its_own_each_time(fedsmall, tmp_path):
    path = write(tmp_path, FAST)

    fedsmall("run", path, "--set", "rounds=1", "--engine", "inprocess")
    fedsmall("run", path, "--set", "rounds=1", "--engine", "inprocess")

    assert sorted(folder.name for folder in (tmp_path / "runs").iterdir()) == ["small", "small-2"]


def commands_on(page: Path) -> list[list[str]]:
    """The commands that a page shows, as words."""
    shown = re.findall(r"<(code|pre)>(.*?)</\1>", page.read_text(), re.DOTALL)
    lines = [line for _, text in shown for line in html.unescape(text).splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("fedsmall ")]


@pytest.mark.thorough
def test_every_command_that_a_report_shows_can_be_run(fedsmall, tmp_path):
    path = write(tmp_path, table(tmp_path, GOOD_ROWS).read_text().partition("[[method]]")[0] + METHOD)
    for name in ("NEW.csv", "new-patients.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    assert fedsmall("run", path, "--set", "rounds=1", "--engine", "inprocess", "--out", "my studies/first")[0] == 0
    assert fedsmall("compare", "my studies/first", "--out", "both")[0] == 0

    found = commands_on(tmp_path / "my studies/first/report.html")
    ends = [fedsmall(*words[1:])[0] for words in found]

    assert ([words[1] for words in found], ends) == (["predict", "predict", "run"], [0, 0, 0])
    assert commands_on(tmp_path / "both/report.html") == found[-1:]
    again = commands_on(tmp_path / "runs/small/report.html")
    assert [words[2] for words in again] == [words[2].replace("my studies/first", "runs/small") for words in found]
    assert "load(&#34;my studies/first/packages/" in (tmp_path / "my studies/first/report.html").read_text()


@pytest.mark.thorough
def test_a_report_is_made_again_and_runs_are_compared(fedsmall, small_run, tmp_path):
    code, said, _ = fedsmall("compare", small_run.folder, "--out", "both")

    assert code == 0
    assert "FedDC cannot be told apart from" in said
    assert "small" in (tmp_path / "both" / "report.html").read_text()


@pytest.mark.thorough
def test_ones_own_csv_runs(fedsmall, tmp_path):
    code, said, _ = fedsmall("run", table(tmp_path, GOOD_ROWS), "--engine", "inprocess")

    assert code == 0
    assert "FedDC" in said


@pytest.mark.thorough
def test_a_model_of_ones_own_is_found_beside_the_scenario(fedsmall, tmp_path):
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n\ndef tiny(task):\n    return nn.Linear(task.input_shape[0], task.outputs)\n"
    )
    path = write(tmp_path, FAST.replace('model = "linear"', 'model = "my_models:tiny"'))

    code, said, _ = fedsmall("run", path, "--engine", "inprocess")

    assert code == 0
    assert "FedDC" in said


@pytest.mark.thorough
def test_one_class_only_at_a_site_is_a_note_and_no_error(fedsmall, tmp_path):
    path = write(tmp_path, FAST.replace("samples_per_site = 4", "samples_per_site = 1"))

    code, said, _ = fedsmall("run", path, "--engine", "inprocess")

    assert code == 0
    assert "samples of one class only" in said


def table_of(said: str, label: str) -> list[str]:
    """The rows of what was printed that hold numbers of a method; progress holds seconds, which differ."""
    return [line for line in said.splitlines() if label in line and " s left" not in line]


def test_an_option_of_another_engine_is_refused(fedsmall, tmp_path):
    code, _, complained = fedsmall("run", write(tmp_path, FAST), "--engine", "inprocess", "--address", "auto")

    assert (code, complained.count("\n")) == (2, 1)
    assert "address is not for the engine 'inprocess'; it is for: ray." in complained


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_one_line(fedsmall, tmp_path):
    code, _, complained = fedsmall("run", write(tmp_path, FAST), "--engine", "ray", "--address", "auto")

    assert (code, complained.count("\n")) == (2, 1)
    assert "No Ray cluster answers at 'auto'" in complained


@pytest.mark.parametrize(
    "command", [("run",), ("run", "--engine", "inprocess"), ("run", "--set", "device=cuda:9"), ("tune",)]
)
def test_a_device_that_is_not_here_is_one_line_before_anything_trains(fedsmall, tmp_path, command):
    name, *more = command
    asked = more if "--set" in more else [*more, "--device", "cuda:9"]

    code, said, complained = fedsmall(name, write(tmp_path, FAST), *asked)

    assert (code, complained.count("\n")) == (2, 1)
    assert 'device = "cuda:9": not here; this machine has cpu' in complained
    assert said == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_a_run_on_a_device_names_it_in_its_record(fedsmall, tmp_path):
    code, _, complained = fedsmall("run", write(tmp_path, FAST), "--device", "auto", "--out", "out")

    assert (code, complained) == (0, "")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["device"] == "cpu"  # a small model is not worth more
    assert {row["device"] for row in json.loads((tmp_path / "out" / "summary.json").read_text())} == {"cpu"}


def test_the_study_and_the_benchmark_refuse_a_device_that_they_cannot_use(fedsmall):
    for command, line in ((("reproduce", "study"), "train on the CPU"), (("bench",), "is cpu, cuda or cuda:1 here")):
        code, _, complained = fedsmall(*command, "--device", "mps")
        assert (code, complained.count("\n")) == (2, 1)
        assert line in complained


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_the_benchmark_says_in_one_line_that_there_is_no_gpu_before_anything_is_measured(fedsmall, tmp_path):
    code, said, complained = fedsmall("bench", "--device", "cuda", "--out", "out")

    assert (code, said, complained.count("\n")) == (2, "", 1)
    built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
    assert f'device = "cuda": not here; this machine has cpu{built}\n' in complained
    assert not (tmp_path / "out").exists()


def test_the_benchmark_wants_numbers_of_sites(fedsmall):
    code, _, complained = fedsmall("bench", "--images", "--image-sites", "50,many")

    assert (code, complained.count("\n")) == (2, 1)
    assert "--image-sites takes numbers of sites, as in 50,500; got '50,many'" in complained


def case(change: str, becomes: str) -> str:
    assert change in FAST
    return FAST.replace(change, becomes)


MISTAKES = {
    "unknown key": (case("rounds = 3", "roundz = 3"), "unknown key 'roundz'. Did you mean 'rounds'?"),
    "unknown method": (case('"FedDC"', '"FedDD"'), "There is no method 'FedDD'. Did you mean 'FedDC'?"),
    "unknown task": (case('"breast_cancer"', '"brest_cancer"'), "'brest_cancer'. Did you mean 'breast_cancer'?"),
    "unknown model": (case('"linear"', '"linaer"'), "There is no model 'linaer'. Did you mean 'linear'?"),
    "too many samples": (case("sites = 5", "sites = 500"), "and there are 427"),
    "too few for radon": (case('name = "FedDC"', 'name = "RadonMachine"'), "sites"),
    "period of zero": (case("aggregate_every = 3\nrecipe", "aggregate_every = 0\nrecipe"), "aggregate_every"),
    "unknown engine": (case("rounds = 3", 'rounds = 3\nengine = "rey"'), "no engine 'rey'. Did you mean 'ray'?"),
    "unknown device": (case("rounds = 3", 'rounds = 3\ndevice = "gpu"'), 'device: a device is "auto", "cpu", "cuda"'),
    "not toml": ("name = ", "is not TOML"),
    "unknown partition": (case("sites = 5", 'sites = 5\npartition = {classes = 2}'), "classes"),
    "no such csv": (case('"breast_cancer"', '{csv = "absent.csv", label = "y"}'), "absent.csv"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_code_2_and_nothing_is_written(fedsmall, tmp_path, mistake):
    text, words = MISTAKES[mistake]
    path = write(tmp_path, text)

    code, said, complained = fedsmall("run", path, "--out", "out")

    assert code == 2
    assert words in complained
    assert complained.startswith("fedsmall: ")
    assert complained.count("\n") == 1
    assert "Traceback" not in complained + said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["small.toml"]


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        (GOOD_ROWS + "old,3,1\n", "a,b,y", "'a'"),
        (GOOD_ROWS, "a,b,outcome", "'y'"),
        (GOOD_ROWS + "1,3,\n", "a,b,y", "y"),
        ("".join(f"{i},3,1\n" for i in range(60)), "a,b,y", "one label"),
    ],
    ids=["a text cell", "no such label column", "a row without a label", "one class everywhere"],
)
def test_data_that_cannot_be_used_are_named_by_column_never_by_value(fedsmall, tmp_path, rows, header, words):
    path = table(tmp_path, rows, header)

    code, _, complained = fedsmall("run", path, "--out", "out", "--engine", "inprocess")

    assert code == 2
    assert words in complained
    assert "old" not in complained
    assert complained.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_nan_in_an_npz_is_refused(fedsmall, tmp_path):
    x = np.ones((40, 3))
    x[5, 1] = np.nan
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 2)
    path = write(tmp_path, FAST.replace('"breast_cancer"', '{npz = "mine.npz"}'))

    code, _, complained = fedsmall("run", path, "--out", "out")

    assert code == 2
    assert "1 of 40 samples hold NaN" in complained
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_folder_with_another_run_is_left_as_it_was(fedsmall, small_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in small_run.folder.rglob("*")}

    code, _, complained = fedsmall("run", write(tmp_path, FAST), "--out", small_run.folder)

    assert code == 2
    assert "holds another run; choose another with --out" in complained
    assert {path: path.stat().st_mtime_ns for path in small_run.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], "There is no command 'rum'. Did you mean 'run'?"),
        (["run"], "Missing argument"),
        (["run", "absent.toml"], "There is no scenario absent.toml"),
        (["run", "."], "is a folder; a scenario is a .toml file"),
        (["run", "demo_digits", "--egnine", "x"], "No such option"),
        (["run", "demo_digits", "--set", "rounds"], "--set takes key=value"),
        (["report", "."], "holds no run"),
        (["compare"], "Missing argument"),
        (["plan", "--sites", "0", "--samples", "2"], "0 is not in the range"),
        (["plan", "--sites", "5", "--samples", "2"], "the sites hold 10 (5 x 2)"),
        (
            ["plan", "--sites", "9", "--samples", "50", "--parameters", "2", "--height", "2"],
            "4**2 = 16 for 2 parameters",
        ),
        (["plan", "--sites", "9", "--samples", "50", "--parameters", "2", "--failure", "0.25"], "below 1/r = 1/4"),
        (["plan", "--sites", "9", "--samples", "50", "--height", "2"], "--height takes --parameters"),
        (["plan", "--sites", "9", "--samples", "50", "--patients", "0"], "--patients is an epsilon above 0"),
        (["list", "metods"], "metods"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_named(fedsmall, tmp_path, arguments, words):
    code, _, complained = fedsmall(*arguments)

    assert code == 2
    assert words in complained
    assert "Traceback" not in complained
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def broken(*_):
        return np.zeros(3).reshape(2, 2)  # a ValueError, but not one that a user can mend

    monkeypatch.setattr("fedsmall.planning.theory.advise", broken)
    monkeypatch.setattr("fedsmall.sim.cli.plan.advise", broken)

    with pytest.raises(ValueError, match="reshape"):
        main(["plan", "--sites", "5", "--samples", "9"])


def test_plan_prints_the_bound_of_the_paper_and_recommends_the_simulation(fedsmall):
    code, said, _ = fedsmall("plan", "--sites", "441", "--samples", "2")

    assert code == 0
    assert "24.778" in said
    assert f"aggregate_every = {advise(441, 2).all_models}" in said
    assert "only that not all 441 models fall short together, but for a chance of 10%" in said
    assert "Radon" not in said


@pytest.mark.parametrize(
    ("asked", "said_of_privacy"),
    [
        (("--sites", "40", "--samples", "4"), "epsilon 3 takes about 20 patients a site, and 4 are too few"),
        (("--sites", "20", "--samples", "20"), "20 are enough"),
        (("--sites", "20", "--samples", "20", "--patients", "1"), "takes about 60 patients a site, and 20 are too few"),
        (("--sites", "20", "--samples", "20", "--patients", "1"), 'take Ridge with level = "patient"'),
        (("--sites", "20", "--samples", "80", "--patients", "1"), 'take Ridge with level = "patient"'),
    ],
)
def test_plan_says_from_how_many_patients_privacy_is_worth_it(fedsmall, asked, said_of_privacy):
    code, said, _ = fedsmall("plan", *asked)

    assert code == 0
    assert said_of_privacy in said


@pytest.mark.parametrize(
    ("asked", "said_of_hidden"),
    [
        (("--sites", "2"), "Secure sums take three sites at least"),
        (
            ("--sites", "3"),
            "8 bytes a number instead of 4, and 3.89 kB in encrypted messages to 3 decryptors, of whom 2 must answer",
        ),
        (
            ("--sites", "4"),
            "encrypted messages to 4 decryptors, of whom 3 must answer; one for each evaluation, and three before",
        ),
        (("--sites", "40"), "and 54.6 kB in encrypted messages to 22 decryptors, of whom 18 must answer"),
        (("--sites", "40", "--parameters", "20"), "160 B a site instead of 80 B, and 54.6 kB in encrypted messages"),
        (("--sites", "2"), "about 1,200 bytes each and no exchange"),
    ],
)
def test_plan_says_what_it_costs_to_keep_models_from_the_server(fedsmall, asked, said_of_hidden):
    code, said, _ = fedsmall("plan", "--samples", "20", "--error", "0.2", *asked)

    assert code == 0
    assert said_of_hidden in " ".join(said.split())


def test_plan_foretells_the_noise_of_an_exposure(fedsmall):
    """2,114 numbers 40 times over 4 patients of 30 features are 26.5 updates; an average is over 40 sites."""
    asked = ["--sites=40", "--samples=4", "--parameters=2114", "--features=30", "--contacts=40"]

    _, said, _ = fedsmall("plan", *asked)
    shown = " ".join(said.split())

    stretch = int(shown.split("aggregate_every = ")[1].split(",")[0])
    assert f"about {(2114 * 40 / 120 * stretch / 40) ** 0.5:.2g} times as large as an update" in shown


def test_plan_says_how_often_a_secure_sum_takes_an_exchange_more(fedsmall):
    advice = advise(40, 4, permute_every=2)

    code, said, _ = fedsmall("plan", "--sites", "40", "--samples", "4", "--permute-every", "2")

    assert code == 0
    assert f"each average, one for {advice.aggregate_every // 2} communication rounds" in " ".join(said.split())


@pytest.mark.parametrize("sites", ["1", "2", "3"])
def test_plan_speaks_of_the_smallest_federations(fedsmall, sites):
    code, said, _ = fedsmall("plan", "--sites", sites, "--samples", "50")

    assert code == 0
    assert "aggregate_every = 1," in said


def test_plan_says_what_radon_points_make_of_the_models(fedsmall):
    code, said, _ = fedsmall("plan", "--sites", "441", "--samples", "2", "--parameters", "19")

    assert code == 0
    assert "21**2 = 441 of 441 models" in said
    assert "0.00194" in said  # (21 * .01)**4
    assert "61; 2 are too few" in said  # ln(21) / .05


@pytest.mark.parametrize(("what", "words"), [("methods", "FedDC"), ("tasks", "digits"), ("scenarios", "demo_digits")])
def test_list_names_what_comes_along(fedsmall, what, words):
    code, said, _ = fedsmall("list", what)

    assert code == 0
    assert words in said


def test_the_version_is_said_alone(fedsmall):
    from fedsmall import __version__

    assert fedsmall("--version") == (0, f"fedsmall {__version__}\n", "")


def test_help_is_there_at_once_without_the_heavy_libraries():
    code = (
        "import sys; sys.argv = ['fedsmall', '--help']\nfrom fedsmall.sim.cli.app import main\n"
        + "try:\n    main()\nfinally:\n"
        + (
            "    heavy = {'torch', 'flwr', 'ray', 'sklearn', 'scipy', 'matplotlib', 'pandas'} & set(sys.modules)\n"
            "    assert not heavy, heavy"
        )
    )
    root = ROOT

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)

    assert "demo" in done.stdout


@pytest.mark.thorough
def test_help_says_once_what_every_argument_and_option_of_every_command_is(fedsmall, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")  # nothing is broken into lines
    every = [found for name, entry in COMMANDS.items() for found in walk(name, LazyCommand(name, entry).real())]

    for path, command in every:
        code, said, _ = fedsmall(*path.split(), "--help")

        assert code == 0
        assert "\\" not in said, path
        assert "completion" not in said, path
        assert said.count("rguments") == any(isinstance(each, click.Argument) for each in command.params), path
        assert all(each.help for each in command.params), path
        told = "\n\n".join([command.help, *(each.help for each in command.params)]).split("\n\n")
        assert [part for part in told if " ".join(part.split()) not in " ".join(said.split())] == [], path


def test_the_shell_completes_commands_and_options(fedsmall, monkeypatch):
    code, said, _ = fedsmall("--help")
    assert (code, "--install-completion" in said) == (0, True)

    for words, found in (
        ("fedsmall re", "report"),
        ("fedsmall site key", "keygen"),
        ("fedsmall run --hosp", "--hospitals"),
    ):
        monkeypatch.setenv("_FEDSMALL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert found in fedsmall()[1].split()
    monkeypatch.setenv("COMP_WORDS", "fedsmall no-such-command --x")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert fedsmall() == (0, "\n", "")


def test_every_command_of_the_table_can_be_asked_for_help(fedsmall):
    from fedsmall.sim.cli.app import Commands, app

    for name in Commands(commands={}, name="x").list_commands(None):
        code, said, complained = fedsmall(name, "--help")
        assert code == 0, complained
        assert "Usage: fedsmall" in said
    assert set(COMMANDS) >= {"demo", "run", "compare", "plan", "list", "report"}
    assert app.registered_callback is not None


@pytest.mark.thorough
def test_ctrl_c_leaves_a_readable_partial_run(tmp_path):
    path = write(tmp_path, FAST.replace("rounds = 3", "rounds = 4000"))
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "fedsmall.sim.cli.app", "run", str(path), "--engine", "inprocess", "--out", "out"]
    program = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    began = time.monotonic()
    while not (tmp_path / "out" / "run.json").exists() and time.monotonic() < began + 300:
        time.sleep(0.1)
    time.sleep(1)

    program.send_signal(signal.SIGINT)
    said, complained = program.communicate(timeout=300)

    assert program.returncode == 130
    assert "This run is partial" in said
    assert "Traceback" not in complained
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    assert about["interrupted"]
    assert len(about["not_run"]) > 0
    assert "This run is partial" in (tmp_path / "out" / "report.html").read_text()
