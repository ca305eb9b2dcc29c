"""Lines: the same records wherever the cuts fall, compared with ``bytes.split``."""

from __future__ import annotations

import functools
import io
import operator
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.errors import BadEncoding, BadInput
from mapreduce.text import (
    BOM,
    decode_lines,
    lines_batch,
    lines_bytes,
    overlaps_itself,
    read_lines,
)


def read_all(
    data: bytes, *, delimiter: bytes = b"\n", start: int = 0, stop: int | None = None, block_bytes: int = 64
) -> list[bytes]:
    """Read a range, and hold the three forms of the records against the bytes at their offsets."""
    found: list[bytes] = []
    for lines in read_lines(
        io.BytesIO(data), url="u", start=start, stop=stop, delimiter=delimiter, block_bytes=block_bytes
    ):
        records = lines_bytes(lines)
        assert lines_batch(lines).column("line").to_pylist() == records
        for offset, record in zip(lines.file_offsets(), records, strict=True):
            assert data[offset : offset + len(record)] == record
        if data.isascii():
            assert decode_lines(lines, url="u") == [record.decode() for record in records]
        found += records
    return found


def model(data: bytes, delimiter: bytes = b"\n") -> list[bytes]:
    records = data.removeprefix(BOM).split(delimiter)
    if records[-1] == b"":
        records.pop()
    if delimiter == b"\n":
        records = [record.removesuffix(b"\r") for record in records]
    return records


def ranges(size: int, split: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(0, size, split), size]))


@pytest.mark.parametrize("delimiter", [b"\n", b"+", b"|+", b"+-", b"\n+", b"+\n", b"abc"])
def test_two_splits_give_the_records_of_the_whole_at_every_cut_and_block_size(delimiter: bytes) -> None:
    rng = random.Random(delimiter)
    alphabet = [bytes([byte]) for byte in sorted({*delimiter, *b"x\r\n"})] + [delimiter]
    for _ in range(12):
        data = b"".join(rng.choice(alphabet) for _ in range(rng.randrange(2, 24)))
        expected = model(data, delimiter)
        for block_bytes in (1, 2, 3, 5, 64):
            for cut in range(1, len(data)):
                first = read_all(data, delimiter=delimiter, stop=cut, block_bytes=block_bytes)
                second = read_all(
                    data, delimiter=delimiter, start=cut, stop=len(data), block_bytes=block_bytes
                )
                assert first + second == expected, (data, cut, block_bytes)


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", "é😀".encode(), b"\xff", b"\0"])).map(
        b"".join
    ),
    split=st.integers(1, 40),
    block_bytes=st.integers(1, 50),
)
def test_any_number_of_splits_gives_each_line_once(data: bytes, split: int, block_bytes: int) -> None:
    found = [
        read_all(data, start=start, stop=stop, block_bytes=block_bytes)
        for start, stop in ranges(len(data), split)
    ]
    assert functools.reduce(operator.iadd, found, []) == model(data)


@pytest.mark.parametrize("delimiter", [b"||", b"|+|", b"aba"])
def test_a_delimiter_that_overlaps_itself_is_found_from_left_to_right(delimiter: bytes) -> None:
    assert overlaps_itself(delimiter)
    rng = random.Random(delimiter)
    alphabet = [bytes([byte]) for byte in sorted({*delimiter, *b"x"})]
    for _ in range(40):
        data = b"".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 24)))
        for block_bytes in (1, 2, 3, 64):
            assert read_all(data, delimiter=delimiter, block_bytes=block_bytes) == model(data, delimiter), (
                data
            )


def test_three_bars_are_a_delimiter_and_a_bar() -> None:
    assert read_all(b"1|2||3|||4||5|", delimiter=b"||") == [b"1|2", b"3", b"|4", b"5|"]


def test_one_carriage_return_at_the_end_of_a_line_is_dropped_and_any_other_is_data() -> None:
    assert read_all(b"apple\r\npear\nfig\r\r\nfoo\rbar\n\r\nlast\r") == [
        b"apple", b"pear", b"fig\r", b"foo\rbar", b"", b"last",
    ]  # fmt: skip


def test_a_file_without_a_final_newline_ends_in_a_record_and_blank_lines_are_records() -> None:
    assert read_all(b"a\n\n  \nb") == [b"a", b"", b"  ", b"b"]
    assert read_all(b"") == []
    assert read_all(b"\n") == [b""]


def test_a_byte_order_mark_is_no_data() -> None:
    assert read_all(BOM + b"a\nb\n", block_bytes=2) == [b"a", b"b"]
    assert read_all(BOM) == []
    assert read_all(b"a\n" + BOM + b"b\n") == [b"a", BOM + b"b"]


class CountedFile(io.BytesIO):
    bytes_read = 0

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        got = super().readinto(buffer)
        self.bytes_read += got
        return got


@pytest.mark.parametrize("split", [1 << 16, 1 << 20])
def test_a_line_longer_than_many_splits_is_read_by_its_owner_alone(split: int) -> None:
    data = b"first\n" + b"x" * (3 << 20) + b"\nlast"
    found, bytes_read = [], 0
    for start, stop in ranges(len(data), split):
        file = CountedFile(data)
        for lines in read_lines(file, url="u", start=start, stop=stop, block_bytes=1 << 14):
            found += lines_bytes(lines)
        bytes_read += file.bytes_read
    assert [len(line) for line in found] == [5, 3 << 20, 4]
    # The owner reads past the end of its range; the others stop at theirs.
    assert bytes_read < 2 * len(data) + len(data) // split * (1 << 15)


def test_a_line_over_the_limit_is_refused_with_its_offset_and_never_cut() -> None:
    data = b"ok\n" + b"x" * 100 + b"\nok\n"
    for block_bytes in (8, 1000):
        with pytest.raises(BadInput, match=r"big\.txt: the record at byte 3 is longer than 99 bytes"):
            for _ in read_lines(
                io.BytesIO(data),
                url="big.txt",
                start=0,
                stop=None,
                block_bytes=block_bytes,
                max_line_bytes=99,
            ):
                pass
    whole = read_lines(io.BytesIO(data), url="u", start=0, stop=None, block_bytes=8, max_line_bytes=100)
    assert sum(len(lines.ends) for lines in whole) == 3


BAD = b"caf\xe9\t1\r\nok\t2\n\xff\xfe\t3\n\xed\xa0\x80\t4\n"


def decoded(data: bytes, errors: str, delimiter: bytes = b"\n") -> list[str]:
    return [
        text
        for lines in read_lines(io.BytesIO(data), url="b.txt", start=0, stop=None, delimiter=delimiter)
        for text in decode_lines(lines, url="b.txt", errors=errors)
    ]


@pytest.mark.parametrize("errors", ["replace", "surrogateescape", "ignore"])
def test_bytes_that_are_no_utf8_follow_the_errors_option(errors: str) -> None:
    assert decoded(BAD, errors) == [line.decode("utf-8", errors) for line in model(BAD)]


def test_a_strict_decoding_error_names_file_and_byte_offset() -> None:
    with pytest.raises(BadEncoding, match=r"b\.txt: byte 0xe9 at offset 3"):
        decoded(BAD, "strict")
    with pytest.raises(BadEncoding, match=r"offset 14"):
        decoded(b"a" * 10 + b"\r\nok\xff\n", "strict")
    with pytest.raises(BadEncoding, match=r"offset 3 "):
        decoded(b"a||\xff||", "strict", b"||")


def test_ignored_bytes_make_no_new_delimiter() -> None:
    assert decoded(b"a|\xff|b||c", "ignore", b"||") == ["a||b", "c"]


def test_unicode_line_separators_end_no_line() -> None:
    text = "a\u2028b\n c\u2029d\ne\u0085f\x0bg\x0c\n"
    assert decoded(text.encode(), "strict") == text.split("\n")[:-1]


def test_multibyte_characters_survive_every_split_size() -> None:
    words = ["naïve", "日本語", "😀😃", "ß", "ﬁ", "Ω≈ç"]
    expected = [f"{words[i % 6]}{i}\t{words[(i * 5) % 6] * (i % 4)}" for i in range(50)]
    data = ("\n".join(expected) + "\n").encode()
    for split in range(1, 65):
        found: list[str] = []
        for start, stop in ranges(len(data), split):
            for lines in read_lines(io.BytesIO(data), url="u", start=start, stop=stop):
                found += decode_lines(lines, url="u")
        assert found == expected


@pytest.mark.parametrize(
    "records",
    [
        [b"aa", b"bb", b"cc"],
        [b"aa", b"b", b"ccc"],
        [b"aa", b"b", b"c"],
        [b"a", b"b"],
        [b"", b"", b""],
        [b"aa"],
    ],
)
@pytest.mark.parametrize("delimiter", [b"\n", b"|+"])
def test_lines_of_one_length_and_lines_that_add_up_to_as_much_are_told_apart(
    records: list[bytes], delimiter: bytes
) -> None:
    data = delimiter.join(records)
    for end in (b"", delimiter):
        assert read_all(data + end, delimiter=delimiter) == (records if end or records[-1] else records[:-1])
