"""The scenarios that come along with the program."""

from pathlib import Path

HOME = Path(__file__).parents[1]


def folder() -> Path:
    """Where they are: inside the package once it is installed, beside it in a working copy."""
    inside = HOME / "scenarios"
    return inside if inside.is_dir() else HOME.parent / "scenarios"


def scenarios() -> dict[str, Path]:
    """Their files by name, "papers/fig4" for one in a folder below."""
    found = folder()
    return {path.relative_to(found).with_suffix("").as_posix(): path for path in sorted(found.rglob("*.toml"))}


def find(asked: Path) -> Path:
    """The file that is asked for: a path, or the name of a scenario that comes along."""
    if asked.suffix != ".toml" and not asked.exists():
        return scenarios().get(asked.as_posix(), asked)
    return asked
