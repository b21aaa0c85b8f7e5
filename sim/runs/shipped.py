"""The scenarios that come along with the program."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "scenarios"


def scenarios() -> dict[str, Path]:
    """Their files by name, "papers/fig4" for one in a folder below."""
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in sorted(FOLDER.rglob("*.toml"))}


def find(asked: Path) -> Path:
    """The file that is asked for: a path, or the name of a scenario that comes along."""
    if asked.suffix != ".toml" and not asked.exists():
        return scenarios().get(asked.as_posix(), asked)
    return asked
