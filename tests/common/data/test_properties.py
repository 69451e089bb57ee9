"""Random dirty files: prepared with counts that add up, or refused in one line naming the place."""

import csv
import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.cli import main
from fedrecgel.common.data import Dataset, prepare, read_interactions
from fedrecgel.common.errors import DataError

IDS = st.one_of(
    st.integers(-3, 12).map(str),
    st.sampled_from(
        ["", " ", "NA", "null", "12.0", "1e5", "é", '"a,b"', '"', 'x"y', "\x00", "a b"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=4),
)
TIMES = st.one_of(
    st.integers(0, 20).map(str),
    st.sampled_from(["", "nan", "soon", "2020-01-01", "1e400", "9223372036854775808", "-1"]),
)
LINES = st.one_of(
    st.tuples(IDS, IDS, TIMES).map(",".join),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)).map(
        lambda row: ",".join(map(str, row))
    ),
    st.tuples(IDS, IDS).map(",".join),
    st.sampled_from(["", "user,item,time", ",,", ",,,", "   "]),
)
# Letters around the text: such ids are no numbers and have no blanks at their ends.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x00"), max_size=6).map(
    lambda text: f"x{text}y"
)
FILES = st.tuples(
    st.sampled_from(["user,item,time\n", ""]),
    st.lists(LINES, max_size=40),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]),
)


OPTIONS = st.one_of(
    st.fixed_dictionaries({"min_interactions": st.integers(0, 6)}),
    st.fixed_dictionaries(
        {
            "min_interactions": st.integers(0, 3),
            "min_item_interactions": st.integers(0, 3),
            "split": st.just("share"),
            "share": st.floats(0.01, 0.49),
        }
    ),
    st.fixed_dictionaries(
        {
            "k_core": st.integers(1, 3),
            "split": st.just("time"),
            "cut": st.one_of(st.floats(0.5, 0.99), st.integers(2, 20)),
        }
    ),
)


def outcome(file: Path, options: dict[str, Any]) -> Dataset | str:
    """Return the data set or the error's line."""
    try:
        return prepare(file, file.parent / "data", **options)
    except DataError as error:
        return str(error)


def check(data: Dataset | str) -> None:
    """Check all that must hold of a prepared data set, or of a refusal."""
    if isinstance(data, str):
        assert "dirty" in data
        assert "\n" not in data
        return
    report, split = data.manifest.report, data.manifest.statistics["split"]
    bad = report["bad_rows"]
    assert isinstance(bad, dict)
    assert sum(bad["reasons"].values()) == bad["count"]
    keys = ("repeated_headers", "below_threshold", "duplicates_merged", "rows_below_minimum")
    left = ("rows_of_cold_users", "rows_kept")
    total = bad["count"] + sum(int(str(report[key])) for key in (*keys, *left))
    assert total == report["rows_read"]
    parts = [int(str(split[part])) for part in ("train", "validation", "test")]
    assert sum(parts) == report["rows_kept"]
    assert parts[0] == data.num_train
    assert "" not in data.user_ids.tolist() + data.item_ids.tolist()
    assert len(set(data.user_ids.tolist())) == data.num_users
    assert (np.diff(data.train_offsets) >= 1).all()
    lists = [data.held_out(kind) for kind in ("validation", "test")]
    assert [len(items) for items, _ in lists] == parts[1:]
    for u in range(data.num_users):
        known = data.train_of(u).tolist()
        held_out = [i for items, offsets in lists for i in items[offsets[u] : offsets[u + 1]]]
        assert len({*known, *held_out}) == len(known) + len(held_out)
        firsts = {int(i) for i in (data.validation_items[u], data.test_items[u]) if i >= 0}
        assert firsts <= {int(i) for i in held_out}
        for candidates in (data.validation_candidates[u], data.test_candidates[u]):
            real = candidates[candidates >= 0].tolist()
            assert len(set(real)) == len(real)
            assert not {*known, *held_out} & set(real)


@given(FILES, OPTIONS)
@settings(max_examples=150, deadline=None)
def test_a_dirty_file_adds_up_or_is_refused(
    parts: tuple[str, list[str], str, str], options: dict[str, Any]
) -> None:
    header, lines, end, encoding = parts
    text = header.replace("\n", end) + end.join(lines)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dirty.csv"
        file.write_bytes(text.encode(encoding, errors="replace"))
        check(outcome(file, options))


VALUES = st.one_of(
    st.integers(), st.text(max_size=3), st.floats(), st.booleans(), st.none(), st.just([1])
)
OBJECTS = st.one_of(
    st.fixed_dictionaries({"user": VALUES, "item": VALUES}, optional={"time": VALUES}),
    st.fixed_dictionaries({"user": st.integers(1, 3), "item": st.integers(1, 9)}),
).map(json.dumps)


@given(st.lists(st.one_of(OBJECTS, st.sampled_from(["", "{", "[1]", "7"])), min_size=1))
@settings(max_examples=60, deadline=None)
def test_dirty_json_lines(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dirty.jsonl"
        file.write_text("\n".join(lines))
        check(outcome(file, {"min_interactions": 0}))


@given(st.lists(LINES, max_size=20), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_command_ends_with_0_or_with_2_and_one_line(lines: list[str], strict: bool) -> None:
    errors = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dirty.csv"
        file.write_bytes("\n".join(lines).encode(errors="replace"))
        options = ["--out", f"{folder}/data", *(["--strict"] if strict else [])]
        for command in (["prepare", str(file), *options], ["data", "inspect", str(file)]):
            errors.truncate(errors.seek(0))
            with redirect_stdout(io.StringIO()), redirect_stderr(errors):
                code = main(command)
            assert code in (0, 2)
            if code:
                assert errors.getvalue().count("\n") == 1
                assert "dirty" in errors.getvalue()


@given(st.binary(max_size=300))
@settings(max_examples=80, deadline=None)
def test_any_bytes_at_all(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dirty.csv"
        file.write_bytes(content)
        check(outcome(file, {"min_interactions": 0}))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 3)), min_size=1),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None)
def test_the_order_of_the_rows_changes_nothing(
    rows: list[tuple[int, int, int]], random: "np.random.RandomState"
) -> None:
    hashes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            file = Path(folder) / f"{name}.csv"
            file.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
            hashes.append(prepare(file, Path(folder) / name, min_interactions=0).hash)
            random.shuffle(rows)
    assert hashes[0] == hashes[1]


@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from([",", ";", "\t", "|"]),
)
@settings(max_examples=80, deadline=None)
def test_what_a_csv_writer_writes_is_read_back(
    rows: list[tuple[str, str]], quoting: Literal[0, 1, 2], separator: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=separator, quoting=quoting)
            writer.writerows([("user", "item"), *rows])
        data = read_interactions(path)
    users, items = data.user_ids[data.events.user], data.item_ids[data.events.item]
    assert list(zip(users.tolist(), items.tolist(), strict=True)) == rows
    assert data.report["rows_read"] == len(rows)
