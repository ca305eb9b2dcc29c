"""Find the lines that match a regular expression.

``mr run grep access.log -o errors -p pattern='" 5[0-9][0-9] '``

A map-only stage: nothing is shuffled, and each part holds the matches of one piece of the input, so the
parts read in name order give the lines in input order.  The pattern is RE2's syntax and matches anywhere in
the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa


def matching(pattern: str, invert: bool) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a map that keeps the lines where ``pattern`` occurs, or those where it does not."""

    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        # As text, though unchecked: in bytes [é] would match half of another letter.
        found = pc.match_substring_regex(batch.column("line").view(pa.string()), pattern)
        return batch.filter(pc.invert(found) if invert else found)

    return keep


@job
def grep(text: Dataset, *, pattern: str, invert: bool = False, ignore_case: bool = False) -> Dataset:
    """The lines that match a regular expression, in input order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pattern = f"(?i){pattern}" if ignore_case else pattern
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise BadJob(f"job 'grep': pattern {pattern!r} is no regular expression: {error}") from None
    schema = pa.schema([("line", pa.binary())])
    return Stage(name="grep", map_batch=matching(pattern, invert), schema=schema)(text.lines())
