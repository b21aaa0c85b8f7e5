"""Which of many slices or frames is meant: "middle", a number counted from 0, or a share of the way."""

MIDDLE, EACH = "middle", "each"
Place = int | float


def is_place(where: object) -> bool:
    """Whether ``where`` is a number counted from 0, or a share from 0 to 1."""
    return (type(where) is int and where >= 0) or (type(where) is float and 0 <= where <= 1)


def index_of(where: Place, count: int) -> int:
    """The number of the place among ``count``; it may be beyond them where it was said as a number."""
    return where if isinstance(where, int) else round(where * (count - 1))
