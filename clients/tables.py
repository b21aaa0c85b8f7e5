"""A site's table as a whole."""

from fedsmall.data.raw_site import RawSite
from fedsmall.sealing.tables import Rows, rows_of


def table_of(raw: RawSite) -> Rows:
    """All samples of a site as the rows of one table, however they are split."""
    parts = [part for part in (raw.train, raw.held_out, raw.kept_back) if part is not None]
    return rows_of((part.x, part.y) for part in parts)
