"""The inspection of a file as text for people."""

from collections.abc import Mapping

from fedrecgel.common.data.leakage import describe_leakage
from fedrecgel.common.data.text_report import listed, mapping, number, reading

_SPREAD = ("least", "p10", "p25", "p50", "p75", "p90", "p99", "most")


def format_inspection(report: Mapping[str, object]) -> str:
    """Return how the file was read, what it holds, and what is odd about it."""
    read, source = mapping(report["reading"]), mapping(report["source"])
    bad = mapping(read.get("bad_rows"))
    lines = [str(source.get("file") or source.get("kind")), "", *reading(read)]
    header = listed(read.get("header"))
    if header:
        lines.insert(-1, f"header: {', '.join(map(str, header))}")
    lines += [
        f"{number(read.get('rows_read', report['rows']))} rows read, {number(bad.get('count', 0))}"
        f" cannot be used, {number(read.get('below_threshold', 0))} below the threshold,"
        f" {number(report['rows'])} usable",
        *_holdings(report),
        "",
        *_spread(report),
        "",
        *_ratings(read),
        *_leakage(report),
    ]
    return "\n".join([*lines, *_problems(report)])


def _holdings(report: Mapping[str, object]) -> list[str]:
    pairs, duplicates = mapping(report["pairs"]), mapping(report["duplicates"])
    lines = [
        f"{number(pairs['users'])} users x {number(pairs['items'])} items,"
        f" {number(pairs['interactions'])} different pairs, density"
        f" {float(str(pairs['density'])):.4%}; {number(duplicates['rows'])} rows repeat a pair"
        f" ({number(duplicates['users'])} users)"
    ]
    for role, facts in mapping(report["ids"]).items():
        entry = mapping(facts)
        lines.append(f"{role} ids: {entry['kind']}, {entry['first']!r} to {entry['last']!r}")
    return lines


def _spread(report: Mapping[str, object]) -> list[str]:
    head = "".join(f"{name:>9}" for name in _SPREAD)
    lines = [f"{'':<16}{head}{'mean':>9}{'Gini':>7}{'top 1 %':>9}"]
    for key, label in (("activity", "items of a user"), ("popularity", "users of an item")):
        row = mapping(report[key])
        values = "".join(f"{number(row[name]):>9}" for name in _SPREAD)
        mean, gini, top = (float(str(row[name])) for name in ("mean", "gini", "top"))
        lines.append(f"{label:<16}{values}{mean:>9.1f}{gini:>7.2f}{top:>9.1%}")
    return lines


def _ratings(read: Mapping[str, object]) -> list[str]:
    found = mapping(read.get("ratings"))
    if not found:
        return []
    return ["ratings (rows): " + ", ".join(f"{k} ({number(v)})" for k, v in found.items())]


def _leakage(report: Mapping[str, object]) -> list[str]:
    found = mapping(report.get("leakage"))
    return [describe_leakage(name, mapping(value)) for name, value in found.items() if value]


def _problems(report: Mapping[str, object]) -> list[str]:
    problems = [mapping(entry) for entry in listed(report["problems"])]
    lines = ["", "nothing odd" if not problems else "odd (count, what, flag that changes it)"]
    for entry in problems:
        lines.append(f"{number(entry['count']):>12}  {entry['what']}  [{entry['flag']}]")
        lines += [f"{'':>14}{place}" for place in listed(entry["places"])]
    return lines
