"""The report of a preparation as text for people."""

from collections.abc import Mapping

from fedrecgel.common.data.leakage import describe_leakage
from fedrecgel.common.data.manifest import Manifest

_COUNTS = (
    ("rows_read", "rows read"),
    ("repeated_headers", "repeated headers dropped"),
    ("below_threshold", "below the rating threshold"),
    ("duplicates_merged", "duplicates merged"),
    ("rows_below_minimum", "rows of users and items below the minimum"),
    ("rows_of_cold_users", "rows of users with nothing to train on"),
    ("rows_kept", "rows kept"),
    ("users_without_positives", "users without positives"),
    ("users_below_minimum", "users below the minimum"),
    ("items_below_minimum", "items below the minimum"),
    ("users_with_ties", "users whose held-out items a tie decided"),
    ("missing_times", "rows without time"),
)


def format_report(manifest: Manifest, path: object) -> str:
    """Return the report: how the source was read, counts, problems, statistics, rules, hash."""
    report = manifest.report
    title = f"{manifest.name} (protocol {manifest.protocol}, seed {manifest.seed})"
    lines = [title, "", *reading(report)]
    lines += [f"{label:<42}{number(report.get(key, 0)):>12}" for key, label in _COUNTS]
    lines += bad_rows(report)
    lines += ["", *_statistics(manifest.statistics), *_leakage(report)]
    lines += ["", *_rules(manifest.rules)]
    lines += [f"note: {note}" for note in notes(report)]
    documented = mapping(manifest.source.get("documented"))
    if documented and not (documented["same_file"] or documented["same_counts"]):
        lines.append(f"note: NOT the documented {manifest.name}; results cannot be compared")
    return "\n".join([*lines, "", f"hash {manifest.hash}", f"written to {path}"])


def reading(report: Mapping[str, object]) -> list[str]:
    """Say how the source was understood."""
    columns, first = mapping(report.get("columns")), mapping(report.get("first_row"))
    if not columns:
        return []
    used = ", ".join(f"{role} = {name} ({first.get(role)!r})" for role, name in columns.items())
    header = "with header" if report.get("header") else "no header"
    kinds = {"parquet": "Parquet", "json": f"JSON lines, {report['encoding']}"}
    text = f"separator {report.get('separator')!r}, {header}, {report['encoding']}"
    how = kinds.get(str(report.get("format")), text)
    parts = report.get("parts", 1)
    many = f", {number(parts)} parts" if parts != 1 else ""
    times = mapping(report.get("times"))
    lines = [f"read as: {how}{many}", f"columns (first row): {used}"]
    return [*lines, f"times: {times['evidence']}" if times else "times: none", ""]


def bad_rows(report: Mapping[str, object]) -> list[str]:
    """Count the bad rows by reason, and show the first ones."""
    bad = mapping(report.get("bad_rows"))
    lines = [f"{'bad rows dropped':<42}{number(bad.get('count', 0)):>12}"]
    for reason, count in mapping(bad.get("reasons")).items():
        lines.append(f"  {reason:<40}{number(count):>12}")
    for row in listed(bad.get("first")):
        entry = mapping(row)
        lines.append(f"  {entry['place']}: {entry['reason']}: {entry['text']!r}")
    return lines


def notes(report: Mapping[str, object]) -> list[str]:
    """Return what the reader should know."""
    found = [str(note) for note in listed(report.get("notes"))]
    for problem in listed(mapping(report.get("times")).get("problems")):
        entry = mapping(problem)
        found.append(
            f"{number(entry['count'])} {entry['what']}; first {entry['place']}: {entry['text']}"
        )
    low = report.get("not_positive_kept", 0)
    if low:
        found.append(
            f"{number(low)} rows with a rating of 0 or less count as interactions; --threshold sets"
            " from which rating on a row counts"
        )
    return found


def _statistics(statistics: Mapping[str, Mapping[str, object]]) -> list[str]:
    lines = [f"{'':<10}{'users':>12}{'items':>12}{'interactions':>14}{'density':>10}"]
    for kind in ("raw", "filtered"):
        row = statistics[kind]
        lines.append(
            f"{kind:<10}{number(row['users']):>12}{number(row['items']):>12}"
            f"{number(row['interactions']):>14}{float(str(row['density'])):>10.4%}"
        )
    split = statistics["split"]
    parts = ", ".join(f"{number(split[part])} {part}" for part in ("train", "validation", "test"))
    never, fewer = split["test_items_never_trained"], split["users_with_fewer_candidates"]
    share = int(str(never)) / max(int(str(split["test"])), 1)
    return [
        *lines,
        f"split: {parts}",
        f"users with a test item: {number(split.get('users_with_test', '-'))}; left out for having"
        f" nothing to train on: {number(split.get('cold_users', 0))}",
        f"test items that occur in no train set: {number(never)} ({share:.1%}); items that occur in"
        f" none: {number(split['items_never_trained'])}",
        f"users with fewer than {split['num_candidates']} candidates: {number(fewer)}",
    ]


def _leakage(report: Mapping[str, object]) -> list[str]:
    found = mapping(report.get("leakage"))
    return [describe_leakage(name, mapping(value)) for name, value in found.items() if value]


def _rules(rules: Mapping[str, object]) -> list[str]:
    return [f"{name.replace('_', ' '):<23}{rule}" for name, rule in rules.items()]


def number(value: object) -> str:
    """Write a number with its thousands apart."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def mapping(value: object) -> Mapping[str, object]:
    """Return a mapping of a report, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[object]:
    """Return a list of a report, or an empty one."""
    return value if isinstance(value, list) else []
