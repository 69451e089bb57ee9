"""JSON lines, packed files, standard input, and blocks smaller than a record."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedrecgel.common.data import read_interactions, text_file
from fedrecgel.common.data.read import Interactions
from fedrecgel.common.errors import DataError

TEXT = "user,item,time\n" + "".join(f"u{k % 3},i{k},{k}\n" for k in range(30))


def pairs(found: Interactions) -> list[tuple[str, str]]:
    users, items = found.user_ids[found.events.user], found.item_ids[found.events.item]
    return list(zip(users.tolist(), items.tolist(), strict=True))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


EXPECTED = [(f"u{k % 3}", f"i{k}") for k in range(30)]


def test_packed_files_and_a_folder_of_them(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.gz", gzip.compress(TEXT.encode()))
    write(tmp_path / "b.csv.zst", pa.compress(TEXT.encode(), "zstd", asbytes=True))
    for name in ("a.csv.gz", "b.csv.zst"):
        assert pairs(read_interactions(tmp_path / name)) == EXPECTED
    assert pairs(read_interactions(tmp_path)) == EXPECTED * 2


def test_a_packed_file_cut_short(tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(99_999))
    for content in (packed[: len(packed) // 2], b"\x28\xb5\x2f\xfdjunk"):
        with pytest.raises(DataError, match=r"x\.csv"):
            read_interactions(write(tmp_path / "x.csv", content))


def test_a_workbook_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zip archive or an Excel workbook"):
        read_interactions(write(tmp_path / "x.csv", b"PK\x03\x04rest"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bz2.compress(TEXT.encode()), "is packed by bzip2; unpack it"),
        (lzma.compress(TEXT.encode()), "is packed by xz; unpack it"),
        (b"SQLite format 3\0rest", "is an SQLite database; save the table as CSV"),
        (b"\x89HDF\r\n\x1a\nrest", "is an HDF5 file"),
        (TEXT.encode("utf-16-le"), "looks like UTF-16 without a byte-order mark"),
        (TEXT.encode("utf-16-be"), "looks like UTF-16 without a byte-order mark"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}/x\.csv {said}"):
        read_interactions(write(tmp_path / "x.csv", content))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    content = TEXT.encode()
    if kind == "jsonl":
        content = "".join(f'{{"user":"u{k % 3}","item":"i{k}"}}\n' for k in range(30)).encode()
    if kind == "parquet":
        users, items = zip(*EXPECTED, strict=True)
        pq.write_table(pa.table({"user": users, "item": items}), tmp_path / "x")
        content = (tmp_path / "x").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert pairs(read_interactions("-")) == EXPECTED


def test_places_in_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"user,item\na,b\n,c\n")))
    with pytest.raises(DataError, match=r"^standard input line 3: user id is empty"):
        read_interactions("-", strict=True)


def test_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(TEXT,))
    writer.start()
    assert pairs(read_interactions(tmp_path / "pipe")) == EXPECTED
    writer.join()


def test_json_lines_of_mixed_types(tmp_path: Path) -> None:
    lines = [
        '{"user": 1, "item": "x", "time": 5, "note": {"a": [1]}}',
        "",
        '{"item": "007", "user": "2", "time": 6.5}',
        '{"user": 3.0, "item": true, "time": null}',
        '{"user": [1], "item": "x"}',
        "not json",
        '{"user": null, "item": "x"}',
    ]
    found = read_interactions(write(tmp_path / "x.jsonl", "\n".join(lines)))
    assert pairs(found) == [("1", "x"), ("2", "007"), ("3", "true")]
    bad = found.report["bad_rows"]
    assert isinstance(bad, dict)
    assert [(row["place"].rsplit(" ", 1)[1], row["reason"]) for row in bad["first"]] == [
        ("5", "a value is a list or an object"),
        ("6", "not a JSON object"),
        ("7", "user id is empty"),
    ]
    assert found.report["rows_read"] == 6


def test_a_json_array_is_pointed_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a JSON array: write one object a line"):
        read_interactions(write(tmp_path / "x.json", '[{"user": 1}]'))


@pytest.mark.parametrize("block", [1, 7, 64, 1_000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_size_of_a_block_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, end: str
) -> None:
    lines = ["\ufeffuser,item,note", "a,é,x", "", "b,q,2,z", "user,item,note", ',w,"', "é,s,3"]
    file = write(tmp_path / "x.csv", end.join(lines).encode())
    whole = read_interactions(file)
    monkeypatch.setattr(text_file, "BLOCK", block)
    parted = read_interactions(file)
    assert pairs(parted) == pairs(whole) == [("a", "é"), ("é", "s")]
    assert parted.report == whole.report
    assert whole.report["repeated_headers"] == 1


@pytest.mark.parametrize("block", [1, 20, 64])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_comment_over_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, encoding: str
) -> None:
    text = 'user,item,note\na,p,"one\ntwo\n\nthree, four"\nb,q,five\n,r,"six\nseven"\n'
    file = write(tmp_path / "x.csv", text.encode(encoding))
    monkeypatch.setattr(text_file, "BLOCK", block)
    found = read_interactions(file)
    assert pairs(found) == [("a", "p"), ("b", "q")]
    bad = found.report["bad_rows"]
    assert isinstance(bad, dict)
    assert bad["first"][0]["place"].endswith("line 7")


@pytest.mark.parametrize("block", [3, 1_000])
def test_latin_1_found_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(text_file, "BLOCK", block)
    text = "user,item\n" + "a,b\n" * 50 + "Beyoncé,c\n"
    found = read_interactions(write(tmp_path / "x.csv", text.encode("latin-1")))
    assert "Beyoncé" in found.user_ids
    notes = found.report["notes"]
    assert isinstance(notes, list)
    assert "line 52" in notes[0]
