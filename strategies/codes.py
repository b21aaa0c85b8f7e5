"""Models in replies that do not come in full: codes of their numbers, or the changes alone."""

import math

from flwr.app import ArrayRecord, RecordDict

from fedsmall.codec.codes import CodecError
from fedsmall.codec.differences import BITS, GAPS, VALUES
from fedsmall.codec.parcels import PACKED, read_part
from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.strategies.checks import Signature, check_headers, check_record, read_array, signature, signature_of
from fedsmall.strategies.records import array_records, to_record
from fedsmall.wire import MODEL, Arrays

Records = dict[str, ArrayRecord]


def decode_content(plan: Plan, content: RecordDict, coded: Arrays, model: Arrays) -> Records:
    """Put the numbers in place of the codes in what a site has answered; gives its records as they came.

    ``coded`` is a model in codes, ``model`` the one that the site was sent. Raises ReplyError where what came is none.
    """
    kept = {key: record for key, record in array_records(content).items() if key in PACKED}
    for key, record in kept.items():
        check_headers(record)
        if key == MODEL and plan.method.top_share is not None:
            _check_difference(record, signature_of(model))
        elif key == MODEL:
            check_record(record, signature_of(coded))
        arrays = {name: read_array(name, array) for name, array in record.items()}
        try:
            content[key] = to_record(read_part(plan, key, arrays, model, model))
        except CodecError as error:
            raise ReplyError(str(error)) from None
    return kept


def _check_difference(record: ArrayRecord, own: Signature) -> None:
    """Raise ReplyError where arrays are larger than a difference from a model like this can have."""
    came, most = signature(record), sum(math.prod(shape) for shape, _ in own.values())
    for name, (shape, _) in came.items():
        part = name in (VALUES, GAPS, BITS) and len(shape) == 1 and shape[0] <= 2 * most
        if not part and came[name] != own.get(name):
            raise ReplyError(f"array {name[:80]!r}: is not of a model of this run, nor of a difference from one")
