"""All pages that no file of docs/ holds."""

from pathlib import Path

from docs.manual import api, commands, keys, methods, notebooks, root_pages, tasks

ROOT = Path(__file__).parents[2]


def pages() -> dict[str, str]:
    """The pages that are made as the site is built, as markdown by their place in the site."""
    return {
        "reference/scenario.md": keys.page(),
        "reference/commands.md": commands.page(),
        "reference/methods.md": methods.page(),
        "reference/tasks.md": tasks.page(),
        **api.pages(),
        **notebooks.pages(),
        **root_pages.pages(ROOT),
    }
