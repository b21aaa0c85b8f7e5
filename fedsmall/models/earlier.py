"""How records of earlier releases are read: models by the place of their code, and norms that were not named.

A plan or a package names how its model normalises images. Made here it has today's default where nothing else is asked
for; read from JSON that names nothing it is of an earlier release, where it was "batch".
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

RENAMED_MODELS = {
    "fedsmall.small_maps:resnet10": "resnet10_cropped",
    "fedsmall.small_maps:resnet18": "resnet18_cropped",
    "fedsmall.mixed:shared_part": "shared_part",
}
NORM, EARLIER_NORM = "group", "batch"  # batches of a few images have no statistics worth the name
NORMED = {"cnn", "resnet10", "resnet18", "resnet_small", "resnet10_cropped", "resnet18_cropped"}


def with_norm(model: str, options: Mapping[str, Any], norm: str) -> dict[str, Any]:
    """A model's options, where it normalises images with ``norm`` named if none is; of each site's, if they differ."""
    model = RENAMED_MODELS.get(model, model)
    if model in NORMED:
        return {"norm": norm, **options}
    if model == "shared_part" and isinstance(sites := options.get("sites"), list | tuple):
        return {**options, "sites": [_site_with_norm(entry, norm) for entry in sites]}
    return dict(options)


def _site_with_norm(entry: Any, norm: str) -> Any:
    named = {"name": entry} if isinstance(entry, str) else entry
    normed = isinstance(named, Mapping) and named.get("name") in NORMED
    return with_norm(named["name"], named, norm) if normed else entry


def _as_recorded(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    return with_norm(info.data.get("model", ""), options, EARLIER_NORM if info.mode == "json" else NORM)


Options = Annotated[dict[str, Any], AfterValidator(_as_recorded)]  # of a record's field "model", which stands before
