"""The report of a preparation as text for people."""

from collections.abc import Mapping

from fedrecgel.common.data.manifest import Manifest

_COUNTS = (
    ("rows_read", "rows read"),
    ("repeated_headers", "repeated headers dropped"),
    ("below_threshold", "below the rating threshold"),
    ("duplicates_merged", "duplicates merged"),
    ("rows_below_minimum", "rows of users below the minimum"),
    ("rows_kept", "rows kept"),
    ("users_without_positives", "users without positives"),
    ("users_below_minimum", "users below the minimum"),
    ("users_with_ties", "users whose held-out items a tie decided"),
    ("missing_times", "rows without time"),
)


def format_report(manifest: Manifest, path: object) -> str:
    """Return the report: how the source was read, counts, problems, statistics, rules, hash."""
    report = manifest.report
    title = f"{manifest.name} (protocol {manifest.protocol}, seed {manifest.seed})"
    lines = [title, "", *_reading(report)]
    lines += [f"{label:<42}{_number(report.get(key, 0)):>12}" for key, label in _COUNTS]
    lines += _bad_rows(report)
    lines += ["", *_statistics(manifest.statistics), "", *_rules(manifest.rules)]
    lines += [f"note: {note}" for note in _list(report.get("notes"))]
    documented = _mapping(manifest.source.get("documented"))
    if documented and not (documented["same_file"] or documented["same_counts"]):
        lines.append(f"note: NOT the documented {manifest.name}; results cannot be compared")
    return "\n".join([*lines, "", f"hash {manifest.hash}", f"written to {path}"])


def _reading(report: Mapping[str, object]) -> list[str]:
    columns, first = _mapping(report.get("columns")), _mapping(report.get("first_row"))
    if not columns:
        return []
    used = ", ".join(f"{role} = {name} ({first.get(role)!r})" for role, name in columns.items())
    header = "with header" if report.get("header") else "no header"
    separator = report.get("separator")
    how = f"separator {separator!r}, {header}, {report['encoding']}" if separator else "Parquet"
    return [f"read as: {how}", f"columns (first row): {used}", ""]


def _bad_rows(report: Mapping[str, object]) -> list[str]:
    bad = _mapping(report.get("bad_rows"))
    lines = [f"{'bad rows dropped':<42}{_number(bad.get('count', 0)):>12}"]
    for reason, count in _mapping(bad.get("reasons")).items():
        lines.append(f"  {reason:<40}{_number(count):>12}")
    for row in _list(bad.get("first")):
        entry = _mapping(row)
        lines.append(f"  {entry['place']}: {entry['reason']}: {entry['text']!r}")
    return lines


def _statistics(statistics: Mapping[str, Mapping[str, object]]) -> list[str]:
    lines = [f"{'':<10}{'users':>12}{'items':>12}{'interactions':>14}{'density':>10}"]
    for kind in ("raw", "filtered"):
        row = statistics[kind]
        lines.append(
            f"{kind:<10}{_number(row['users']):>12}{_number(row['items']):>12}"
            f"{_number(row['interactions']):>14}{float(str(row['density'])):>10.4%}"
        )
    split = statistics["split"]
    parts = ", ".join(f"{_number(split[part])} {part}" for part in ("train", "validation", "test"))
    never, fewer = split["test_items_never_trained"], split["users_with_fewer_candidates"]
    share = int(str(never)) / max(int(str(split["test"])), 1)
    return [
        *lines,
        f"split: {parts}",
        f"test items that occur in no train set: {_number(never)} ({share:.1%})",
        f"users with fewer than {split['num_candidates']} candidates: {_number(fewer)}",
    ]


def _rules(rules: Mapping[str, object]) -> list[str]:
    return [f"{name.replace('_', ' '):<18}{rule}" for name, rule in rules.items()]


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
