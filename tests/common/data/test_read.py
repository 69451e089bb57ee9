"""Files as people have them: separators, headers, quotes, encodings, broken lines."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedrecgel.common.data import Interactions, read_interactions
from fedrecgel.common.errors import ConfigError, DataError

ROWS = [(f"{u}", f"{i}", 4, 1_000_000_000 + u * 10 + i) for u in range(1, 6) for i in range(1, 5)]
TABLE = "1,1,4,1000000011\n1,2,4,1000000012\n"


def write(folder: Path, text: str | bytes, name: str = "file.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def pairs(data: Interactions) -> list[tuple[str, str]]:
    events = data.events
    users, items = data.user_ids[events.user], data.item_ids[events.item]
    return list(zip(users.tolist(), items.tolist(), strict=True))


def bad_rows(data: Interactions) -> dict[str, object]:
    found = data.report["bad_rows"]
    assert isinstance(found, dict)
    return found


def places(data: Interactions) -> list[tuple[str, str]]:
    first = bad_rows(data)["first"]
    assert isinstance(first, list)
    return [(row["place"].split("/")[-1], row["reason"]) for row in first]


@pytest.mark.parametrize("separator", [",", "\t", ";", "::", " ", "  ", "|"])
@pytest.mark.parametrize(
    "header",
    [None, "userId item_id rating timestamp", "user_id movieId rating time", "uid iid r t"],
)
def test_separator_and_header_are_found(tmp_path: Path, separator: str, header: str | None) -> None:
    lines = [separator.join(map(str, row)) for row in ROWS]
    if header is not None:
        lines.insert(0, separator.join(header.split()))
    data = read_interactions(write(tmp_path, "\n".join(lines)))
    assert pairs(data) == [(user, item) for user, item, _, _ in ROWS]
    assert data.report["rows_read"] == len(ROWS)
    assert bool(data.report["header"]) == (header is not None)
    if header is None or "time" in header:
        assert data.events.time.tolist() == [row[3] for row in ROWS]


def test_the_report_says_how_the_file_was_read(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, "UserID;x;ItemID\nann;1;apple\nbob;2;pear\n"))
    assert data.report["separator"] == ";"
    assert data.report["columns"] == {"user": "UserID", "item": "ItemID"}
    assert data.report["first_row"] == {"user": "ann", "item": "apple"}


def test_columns_by_name_by_position_and_absent(tmp_path: Path) -> None:
    path = write(tmp_path, "when,who,what,user,date\n9,ann,apple,x,yesterday\n8,bob,pear,y,today\n")
    named = read_interactions(path, user_column="who", item_column=3, time_column="when")
    assert pairs(named) == [("ann", "apple"), ("bob", "pear")]
    assert named.events.time.tolist() == [9, 8]
    without = read_interactions(path, user_column="who", item_column="what", time_column="none")
    assert not without.events.timed.any()


def test_positions_are_not_taken_for_names(tmp_path: Path) -> None:
    path = write(tmp_path, "1,2,none\n3,1,x\n")
    data = read_interactions(path, user_column="2", item_column="1", time_column="none")
    assert pairs(data) == [("2", "1"), ("1", "3")]


def test_a_time_of_another_name_is_pointed_out(tmp_path: Path) -> None:
    path = write(tmp_path, "user,item,moment\n1,2,2020-01-01\n1,3,2020-01-02\n")
    data = read_interactions(path)
    assert not data.events.timed.any()
    assert data.report["notes"] == ["'moment' looks like a time: --time-column 'moment' uses it"]
    assert read_interactions(path, time_column="moment").report["notes"] == []
    assert read_interactions(path, time_column="none").report["notes"] == []


def test_an_unknown_column_lists_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "user,item\n1,2\n")
    with pytest.raises(DataError, match="no column 'usr'; the columns are user, item"):
        read_interactions(path, user_column="usr")


def test_a_header_without_known_names_asks_for_the_column(tmp_path: Path) -> None:
    path = write(tmp_path, "foo,bar,baz\n1,2,3\n4,5,6\n")
    with pytest.raises(DataError, match="foo, bar, baz; set --user-column"):
        read_interactions(path)
    assert len(read_interactions(path, header=False).events) == 3
    assert len(read_interactions(path, user_column="foo", item_column="bar").events) == 2


def test_decimal_commas_do_not_hide_the_semicolons(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, "1;2;3,5\n1;3;4,5\n2;2;1,0\n"))
    assert data.report["separator"] == ";"


def test_one_column_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1 is 'justone'; set --separator"):
        read_interactions(write(tmp_path, "justone\nmore\n"))


def test_a_wrong_separator_names_a_line_and_the_flag(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    with pytest.raises(DataError, match="only one column with separator ';', line 1 is '1,1,4"):
        read_interactions(path, separator="semicolon")


@pytest.mark.parametrize("text", ["user,item\n1,2\n1,3\n", "1,2\n1,3\n"])
def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path: Path, text: str) -> None:
    data = read_interactions(write(tmp_path, text.encode("utf-8-sig")))
    assert pairs(data) == [("1", "2"), ("1", "3")]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_accents_survive(tmp_path: Path, encoding: str) -> None:
    text = "user,item\nann,Beyoncé\nbob,Björk\n"
    data = read_interactions(write(tmp_path, text.encode(encoding)))
    assert set(data.item_ids.tolist()) == {"Beyoncé", "Björk"}
    notes = data.report["notes"]
    assert isinstance(notes, list)
    assert bool(notes) == (encoding == "latin-1")
    if notes:
        assert "not UTF-8 (line 2): read as Latin-1" in notes[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(tmp_path: Path, end: str) -> None:
    data = read_interactions(write(tmp_path, f"user,item{end}a,x{end}b,y{end}{end}"))
    assert pairs(data) == [("a", "x"), ("b", "y")]


def test_quoted_commas_and_quotes(tmp_path: Path) -> None:
    text = 'user,item\n1,"Lock, Stock"\n2,"the ""best"" one"\n3, "x"\n"4","y"\n5,mid"quote\n'
    data = read_interactions(write(tmp_path, text))
    assert [item for _, item in pairs(data)] == [
        "Lock, Stock",
        'the "best" one',
        "x",
        "y",
        'mid"quote',
    ]


def test_a_comment_over_several_lines_is_one_row(tmp_path: Path) -> None:
    text = 'user,item,text\n1,a,"good,\nvery ""good""\n\nindeed"\n2,b,"bad"\n3,c,fine\n'
    data = read_interactions(write(tmp_path, text))
    assert pairs(data) == [("1", "a"), ("2", "b"), ("3", "c")]
    assert bad_rows(data)["count"] == 0
    assert data.report["rows_read"] == 3


def test_an_unclosed_quote_spoils_only_its_line(tmp_path: Path) -> None:
    text = 'user,item\n1,a\n2,"b\n3,c\n4,"d"\n5,e\n'
    data = read_interactions(write(tmp_path, text))
    assert pairs(data) == [("1", "a"), ("3", "c"), ("4", "d"), ("5", "e")]
    assert places(data) == [("file.csv line 3", "quote not closed or misplaced")]


def test_bad_lines_are_counted_with_their_numbers(tmp_path: Path) -> None:
    text = "user,item\n1,a\n2,b,c,d,e\n3\n\n,f\n4,\n5\x00,g\n6,h\n7,i\n8,j\n9,k\n10,l\n"
    data = read_interactions(write(tmp_path, text))
    assert places(data) == [
        ("file.csv line 3", "5 fields instead of 2"),
        ("file.csv line 4", "1 fields instead of 2"),
        ("file.csv line 6", "user id is empty"),
        ("file.csv line 7", "item id is empty"),
        ("file.csv line 8", "NUL byte"),
    ]
    assert bad_rows(data)["count"] == 5
    assert data.report["rows_read"] == 11
    assert data.report["blank_lines"] == 1
    assert len(data.events) == 6


def test_strict_stops_at_the_first_bad_line(tmp_path: Path) -> None:
    path = write(tmp_path, "user,item\n1,a\n2,b,c\n3,d\n")
    with pytest.raises(DataError, match="line 3: 3 fields instead of 2: '2,b,c'"):
        read_interactions(path, strict=True)


def test_mostly_bad_rows_are_an_error_that_names_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, "user,item,date\n1,a,yesterday\n2,b,today\n3,c,2020-01-01\n")
    with pytest.raises(DataError, match="line 2: time is neither a number nor a date"):
        read_interactions(path)


def test_a_repeated_header_is_dropped_and_counted(tmp_path: Path) -> None:
    text = "user,item\n1.0,2\nuser,item\n1,3\n"
    data = read_interactions(write(tmp_path, text))
    assert pairs(data) == [("1", "2"), ("1", "3")]
    assert data.report["repeated_headers"] == 1
    assert data.report["rows_read"] == 3


def test_only_an_empty_id_is_missing(tmp_path: Path) -> None:
    names = ["NA", "null", "None", "N/A", "true", "1e5", "nan", "NULL"]
    text = "user,item\n" + "".join(f"nan,{name}\n" for name in names)
    data = read_interactions(write(tmp_path, text))
    assert set(data.item_ids.tolist()) == set(names)
    assert data.user_ids.tolist() == ["nan"]


def test_whole_numbers_with_and_without_fraction_are_one_id(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, "user,item\n12.0,7\n12,8.00\n,8\n13,9\n"))
    assert pairs(data) == [("12", "7"), ("12", "8"), ("13", "9")]
    assert data.user_ids.tolist() == ["12", "13"]


def test_ids_are_opaque_unless_all_are_numbers(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, "user,item\n12.0,007\n12,7\nx,7\n"))
    assert data.user_ids.tolist() == ["12", "12.0", "x"]
    assert data.item_ids.tolist() == ["007", "7"]


def test_large_and_negative_ids_stay_apart(tmp_path: Path) -> None:
    items = ["5", "1000000000", "9007199254740993", "9007199254740992"]
    text = "user,item\n" + "".join(f"-1,{item}\n" for item in items)
    data = read_interactions(write(tmp_path, text))
    assert data.item_ids.tolist() == sorted(items, key=int)
    assert data.user_ids.tolist() == ["-1"]


def test_an_endless_id_is_a_bad_row(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, f"user,item\n1,a\n2,{'x' * 300}\n3,c\n"))
    assert places(data) == [("file.csv line 3", "item id is too long or holds a NUL byte")]


def test_times_as_seconds_fractions_dates_and_missing(tmp_path: Path) -> None:
    for times, order in (
        (["3", "1", "2"], [1, 2, 0]),
        (["3.5", "1e0", "2"], [1, 2, 0]),
        (["2020-01-03", "2020-01-01T10:00:00Z", "2020-01-02 05:00:00"], [1, 2, 0]),
        (["1238536800000000001", "1238536799999999999", "1238536800000000000"], [1, 2, 0]),
    ):
        text = "user,item,time\n" + "".join(f"1,{k},{t}\n" for k, t in enumerate(times))
        data = read_interactions(write(tmp_path, text + "1,9,\n"))
        assert data.events.timed.tolist() == [True, True, True, False]
        assert np.argsort(data.events.time[:3]).tolist() == order
        assert data.report["missing_times"] == 1


def test_a_time_of_another_kind_is_a_bad_row(tmp_path: Path) -> None:
    data = read_interactions(write(tmp_path, "user,item,time\n1,a,5\n1,b,soon\n1,c,nan\n1,d,7\n"))
    assert bad_rows(data)["reasons"] == {"time is neither a number nor a date": 2}


def test_threshold(tmp_path: Path) -> None:
    text = "user,item,rating\n1,a,5\n1,b,1\n1,c,0\n1,d,-1\n2,a,1\n3,a,bad\n4,b,4.0\n"
    path = write(tmp_path, text)
    assert len(read_interactions(path).events) == 7
    data = read_interactions(path, threshold=4)
    assert pairs(data) == [("1", "a"), ("4", "b")]
    assert data.report["below_threshold"] == 4
    assert data.report["users_without_positives"] == 1
    assert bad_rows(data)["reasons"] == {"rating is not a number": 1}
    with pytest.raises(DataError, match="no usable row with a rating of at least 6"):
        read_interactions(path, threshold=6)
    with pytest.raises(ConfigError, match="threshold is nan"):
        read_interactions(path, threshold=float("nan"))
    with pytest.raises(DataError, match="a threshold needs ratings"):
        read_interactions(write(tmp_path, "user,item\n1,2\n", "two.csv"), threshold=1)


def test_dates_where_users_should_be_ask_for_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "2020-01-01,ann,apple\n2020-01-02,bob,pear\n")
    with pytest.raises(DataError, match="column 1 holds dates"):
        read_interactions(path)
    assert pairs(read_interactions(path, user_column=2, item_column=3))[0] == ("ann", "apple")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="is empty"):
        read_interactions(write(tmp_path, content))


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no usable row"):
        read_interactions(write(tmp_path, "user,item\n"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_interactions(tmp_path / "nothing.csv")


class TestParquet:
    def test_integers_with_missing_values(self, tmp_path: Path) -> None:
        path = tmp_path / "x.parquet"
        users = pd.array([1, None, 3, 1], dtype="Int64")
        items = pd.array([9007199254740993, 2, None, 4], dtype="Int64")
        pd.DataFrame({"user": users, "item": items}).to_parquet(path)
        data = read_interactions(path)
        assert pairs(data) == [("1", "9007199254740993"), ("1", "4")]
        assert places(data) == [
            ("x.parquet row 2", "user id is empty"),
            ("x.parquet row 3", "item id is empty"),
        ]

    def test_floats_of_whole_numbers_are_integers(self, tmp_path: Path) -> None:
        path = tmp_path / "x.parquet"
        pd.DataFrame({"user": [1.0, 2.0, None], "item": ["a", "NA", "b"]}).to_parquet(path)
        assert pairs(read_interactions(path)) == [("1", "a"), ("2", "NA")]

    def test_timestamps_categories_and_strings(self, tmp_path: Path) -> None:
        path = tmp_path / "x.parquet"
        frame = pd.DataFrame(
            {
                "user": pd.Series(["a", "b", "a"], dtype="category"),
                "item": ["x", "y", "z"],
                "date": pd.to_datetime(["2020-01-02", "NaT", "2020-01-01"]),
            }
        )
        frame.to_parquet(path)
        data = read_interactions(path)
        assert data.events.timed.tolist() == [True, False, True]
        assert data.events.time[0] > data.events.time[2]

    def test_a_column_that_is_no_id_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.parquet"
        pd.DataFrame({"user": [[1], [2]], "item": [1, 2]}).to_parquet(path)
        with pytest.raises(DataError, match="holds neither ids nor numbers"):
            read_interactions(path)

    def test_a_file_that_only_says_so(self, tmp_path: Path) -> None:
        path = write(tmp_path, "user,item\n", "x.parquet")
        with pytest.raises(DataError, match="not a readable Parquet file"):
            read_interactions(path)

    def test_parts_with_integers_and_strings_agree(self, tmp_path: Path) -> None:
        folder = tmp_path / "parts"
        folder.mkdir()
        pd.DataFrame({"user": [1, 2], "item": [5, 6]}).to_parquet(folder / "a.parquet")
        pd.DataFrame({"user": ["1", ""], "item": ["6", "7"]}).to_parquet(folder / "b.parquet")
        write(folder, "user,item\n2.0,5\n", "c.csv")
        data = read_interactions(folder)
        assert pairs(data) == [("1", "5"), ("2", "6"), ("1", "6"), ("2", "5")]
        assert data.user_ids.tolist() == ["1", "2"]
        assert places(data) == [("b.parquet row 2", "user id is empty")]
        assert data.report["parts"] == 3

    def test_parts_with_other_columns_are_refused(self, tmp_path: Path) -> None:
        folder = tmp_path / "parts"
        folder.mkdir()
        write(folder, "user,item\n1,2\n", "a.csv")
        write(folder, "user,item,time\n1,2,3\n", "b.csv")
        with pytest.raises(DataError, match="the parts differ"):
            read_interactions(folder)

    def test_a_folder_without_parts_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no files ending in"):
            read_interactions(tmp_path)
