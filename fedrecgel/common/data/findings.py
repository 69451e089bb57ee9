"""What is odd about a file, most serious first, each with the flag that mends it."""

from collections.abc import Iterator, Mapping

_FLAGS = {
    "user id is empty": "--user-column, if another column holds the users",
    "item id is empty": "--item-column, if another column holds the items",
    "user id is too long or holds a NUL byte": "--separator or --user-column, if it is no id",
    "item id is too long or holds a NUL byte": "--separator or --item-column, if it is no id",
    "time is neither a number nor a date": "--time-column, to take another column or none",
    "rating is not a number": "--rating-column, if another column holds the ratings",
    "quote not closed or misplaced": "--strict, to stop there; close the quote in the file",
    "NUL byte": "--strict, to stop there",
}
_RAGGED = "--separator, if most rows have them; --strict, to stop at the first"
Report = Mapping[str, object]


def find_problems(report: Report) -> list[dict[str, object]]:
    """Return problems: ``what``, ``count`` of rows, users or items, ``places``, ``flag``."""
    reading = _mapping(report["reading"])
    return [
        *_undocumented(_mapping(report["source"])),
        *_bad_rows(reading),
        *_notes(reading),
        *_times(report, reading),
        *_ratings(report, reading),
        *_ids(report),
        *_counts(report, reading),
    ]


def _problem(
    what: str, count: object, flag: str, places: list[str] | None = None
) -> dict[str, object]:
    return {"what": what, "count": count, "places": places or [], "flag": flag}


def _undocumented(source: Report) -> Iterator[dict[str, object]]:
    compared = _mapping(source.get("documented"))
    if compared and not (compared["same_file"] or compared["same_counts"]):
        found = ", ".join(f"{number} {key}" for key, number in _mapping(compared["found"]).items())
        yield _problem(
            f"not the documented file: {found}", 1, f"none: get it from {source.get('page')}"
        )


def _bad_rows(reading: Report) -> Iterator[dict[str, object]]:
    bad = _mapping(reading.get("bad_rows"))
    first = [_mapping(row) for row in _list(bad.get("first"))]
    for reason, count in _mapping(bad.get("reasons")).items():
        places = [f"{row['place']}: {row['text']!r}" for row in first if row["reason"] == reason]
        yield _problem(f"rows dropped: {reason}", count, _FLAGS.get(reason, _RAGGED), places)
    if reading.get("repeated_headers"):
        yield _problem(
            "header lines repeated among the rows", reading["repeated_headers"], "none: dropped"
        )


def _notes(reading: Report) -> Iterator[dict[str, object]]:
    for note in _list(reading.get("notes")):
        flag = "--time-column" if "looks like a time" in str(note) else "none: save it as UTF-8"
        yield _problem(str(note), 1, flag)


def _times(report: Report, reading: Report) -> Iterator[dict[str, object]]:
    times = _mapping(reading.get("times"))
    if times and times.get("evidence") == "no times":
        yield _problem(
            "no times: the held-out items will be a random choice", report["rows"], "--time-column"
        )
        return
    for entry in map(_mapping, _list(times.get("problems"))):
        place = [f"{entry['place']}: {entry['text']}"]
        flag = "none: mend the file, or --time-column none"
        yield _problem(str(entry["what"]), entry["count"], flag, place)
    if reading.get("missing_times"):
        yield _problem(
            "rows without time: taken for older than all others",
            reading["missing_times"],
            "--time-column, if another column holds the times",
        )
    if report["users_with_ties"]:
        yield _problem(
            "users whose held-out items share their time with an older one: a hash decides",
            report["users_with_ties"],
            "--seed, to draw again",
        )


def _ratings(report: Report, reading: Report) -> Iterator[dict[str, object]]:
    if report["threshold"] is not None:
        if reading.get("users_without_positives"):
            yield _problem(
                "users no row of whom reaches the threshold: left out",
                reading["users_without_positives"],
                "--threshold",
            )
        return
    if reading.get("not_positive_kept"):
        yield _problem(
            "rows with a rating of 0 or less, counted as interactions",
            reading["not_positive_kept"],
            "--threshold, from which rating on a row counts",
        )


def _ids(report: Report) -> Iterator[dict[str, object]]:
    ids, rows = _mapping(report["ids"]), _number(report["rows"])
    for role in ("user", "item"):
        facts = _mapping(ids[role])
        if rows >= 20 and _number(facts["count"]) == rows:
            yield _problem(
                f"every {role} occurs in a single row: perhaps the column is another one",
                rows,
                f"--{role}-column",
            )
        if facts["differ_only_in_capitals"]:
            yield _problem(
                f"{role}s whose ids differ from another only in capitals: kept apart",
                facts["differ_only_in_capitals"],
                "none: mend the file",
            )


def _counts(report: Report, reading: Report) -> Iterator[dict[str, object]]:
    duplicates = _mapping(report["duplicates"])
    if duplicates["rows"]:
        yield _problem(
            "rows that repeat a user and an item: merged, the latest stays",
            duplicates["rows"],
            "none; --protocol paper keeps them",
        )
    if report["users_below_5"]:
        yield _problem(
            "users with fewer than 5 items: left out", report["users_below_5"], "--min-interactions"
        )
    if report["items_below_5"]:
        yield _problem(
            "items with fewer than 5 users: kept",
            report["items_below_5"],
            "--min-item-interactions",
        )
    if report["users_with_fewer_candidates"]:
        yield _problem(
            f"users with fewer than {report['num_candidates']} items they do not know: they get"
            " fewer candidates",
            report["users_with_fewer_candidates"],
            "--num-candidates",
        )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
