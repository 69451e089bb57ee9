"""The table at the end of a run: the model beside popularity, in both rankings, with errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedrecgel.simulation.central.text import reference_table
from fedrecgel.simulation.sanity import LEAKY

__all__ = ["table"]

_SHOWN = ("hr@5", "ndcg@5", "hr@10", "ndcg@10", "hr@20", "ndcg@20")
_SHOWN_OF_SEVERAL = ("recall@10", "precision@10", "ndcg@10", "map@10")
_WIDTHS = (18, 18, 20, 10)


def table(result: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """Return the text of a result (`assemble`, or `build_report` alone), about 80 columns wide.

    ``names`` are the metrics to show, all of them in the result.
    """
    shown = _SHOWN if names is None else names
    if "popularity" not in result:
        return "\n".join(_sums_only(result))
    lines = [*_head(result), *_loud(result), ""]
    for ranking, title in _titles(result).items():
        columns = ("model", "popularity", "difference", "chance")
        header = "".join(f"{c:>{w}}" for c, w in zip(columns, _WIDTHS, strict=True))
        lines += [title, f"{'':<10}{header}"]
        lines += [_row(result, ranking, name) for name in shown]
        lines.append("")
    lines += ["± is the standard error over users; differences are paired, user by user", ""]
    lines += _groups(result)
    if "several" in result:
        lines += _several(result["several"], names or _SHOWN_OF_SEVERAL)
    if "references" in result:
        lines += ["REFERENCES on the same test items", *_references(result["references"]), ""]
    lines += _foot(result)
    return "\n".join(lines)


def _sums_only(result: Mapping[str, Any]) -> list[str]:
    """The text where only the nodes know the data: what their sums say."""
    chosen, users = result["round"], result["users"]
    lines = [
        f"{result['algorithm']}, test items, {users['all']:,} users, {users['trained']:,} trained",
        f"round {chosen['chosen']} of {chosen['trained']}: {chosen['by']}",
    ]
    lines += _loud(result)
    for ranking, cells in result["test"].items():
        lines += ["", ranking.upper()]
        lines += [f"  {name:<8}{_with_error(cells[name]):>18}" for name in _SHOWN]
    return lines


def _loud(result: Mapping[str, Any]) -> list[str]:
    """What must not be overlooked stands above the numbers as well."""
    return ["", LEAKY] if LEAKY in result.get("warnings", []) else []


def _titles(result: Mapping[str, Any]) -> dict[str, str]:
    fewest, most = result["candidates"]["fewest"], result["candidates"]["most"]
    rivals = f"{most}" if fewest == most else f"{fewest} to {most}"
    return {
        "sampled": f"SAMPLED: among {rivals} items never interacted with",
        "full": f"FULL: among all {result['items']['all']:,} items not interacted with before",
    }


def _head(result: Mapping[str, Any]) -> list[str]:
    data, users, split = result["data"], result["users"], result["split"]
    name = f"{result['algorithm']} on {data['name']}" if "algorithm" in result else data["name"]
    lines = [f"{name}, protocol {data['protocol']}, {split} items"]
    if "round" in result:
        chosen = result["round"]
        lines.append(f"round {chosen['chosen']} of {chosen['trained']}: {chosen['by']}")
    lines.append(
        f"users evaluated / eligible: {users['evaluated']:,} / {users['eligible']:,}; "
        f"never trained: {users['never_trained']:,} of {users['all']:,}"
    )
    if "model" in result:
        lines.append(f"model: {result['model']}")
    return lines


def _row(result: Mapping[str, Any], ranking: str, name: str) -> str:
    model = result[result["split"]][ranking][name]
    popular, delta = result["popularity"][ranking][name], result["difference"][ranking][name]
    chance = result["chance"][ranking][name]["value"]
    cells = (
        _with_error(model),
        _with_error(popular),
        _with_error(delta, sign="+"),
        "-" if chance is None else f"{chance:.4f}",
    )
    padded = "".join(f"{c:>{w}}" for c, w in zip(cells, _WIDTHS, strict=True))
    return f"  {name:<8}{padded}" if len(name) < 9 else f"  {name}\n{'':<10}{padded}"


def _with_error(cell: Mapping[str, Any], sign: str = "") -> str:
    if cell["value"] is None:
        return "-"
    error = "" if cell["se"] is None else f" ± {cell['se']:.4f}"
    return f"{cell['value']:{sign}.4f}{error}"


def _foot(result: Mapping[str, Any]) -> list[str]:
    items, overlap = result["items"], result["overlap"]
    lines = [f"items never trained: {items['never_trained']:,} of {items['all']:,}"]
    if items["positives_never_trained"]:
        count, share = items["positives_never_trained"], items["positives_never_trained_share"]
        lines.append(f"  held out for {count:,} users ({share:.1%}); metrics without these users:")
        lines += _without(items["trained_positives_only"])
    trained = result["users"]["trained_only"]
    if 0 < trained["evaluated"] < result["users"]["evaluated"]:
        lines.append(f"users that were trained only ({trained['evaluated']:,}):")
        lines += _without(trained)
    if overlap["between_users"] is not None:
        lines += [
            f"of ten recommended items two users share {overlap['between_users']:.1f};",
            f"  {overlap['with_popularity_list']:.1f} are what popularity gives the same user,",
            f"  {overlap['with_ten_most_popular']:.1f} are among the ten most popular",
            *_lists(result["lists"]),
        ]
    if "best_by_test" in result:
        best = result["best_by_test"]
        cells = best["test"]["sampled"]
        shown = ", ".join(f"{name} {_with_error(cells[name])}" for name in ("hr@10", "ndcg@10"))
        lines.append(f"best by TEST, as the paper reports (optimistic): round {best['round']}")
        lines.append(f"  sampled {shown}")
    if "server_saw" in result:
        lines.append(f"the server saw {result['server_saw']}")
    if "item_rate" in result:
        rate = f"{result['item_rate']:g} on the mean loss of a minibatch"
        lines.append(f"learning rate of item rows: {rate} (item-lr * batch-size)")
    if "scored_with" in result:
        lines.append(f"users are scored with: {result['scored_with']}")
    return lines + [f"warning: {line}" for line in result["warnings"]]


def _without(part: Mapping[str, Any]) -> list[str]:
    names = ("hr@10", "ndcg@10")
    return [
        f"  {ranking:<8} "
        + ", ".join(f"{name} {_with_error(part[ranking][name])}" for name in names)
        for ranking in ("sampled", "full")
    ]


_TITLES = {
    "item_popularity": "by popularity of the held-out item",
    "user_activity": "by activity of the user",
}


def _groups(result: Mapping[str, Any]) -> list[str]:
    """One line for each group of users: full hr@10 of model and popularity."""
    lines = []
    for kind, groups in result["groups"].items():
        header = f"{'users':>9}{'model':>18}{'popularity':>20}"
        lines.append(f"{'FULL hr@10 ' + _TITLES[kind]:<46}{header}")
        for name, part in groups.items():
            cells = [
                _with_error(part[who]["full"]["hr@10"]) if who in part else "-"
                for who in ("model", "popularity")
            ]
            about = f"  {name}{_bounds(part)}"
            lines.append(f"{about:<46}{part['evaluated']:>9,}{cells[0]:>18}{cells[1]:>20}")
        lines.append("")
    return lines


def _bounds(part: Mapping[str, Any]) -> str:
    if "items" in part:
        return f" ({part['items']:,} items)"
    if "from" not in part:
        return f" (fewer than {part['below']:,} interactions)"
    if "below" not in part:
        return f" (at least {part['from']:,} interactions)"
    return f" ({part['from']:,} to {part['below'] - 1:,} interactions)"


def _lists(lists: Mapping[str, Any]) -> list[str]:
    """Coverage, novelty and concentration of the lists of ten, beside popularity's."""
    model, popular = lists["model"], lists["popularity"]
    return [
        f"lists of ten hold {model['coverage']:.1%} of all items (popularity "
        f"{popular['coverage']:.1%}); novelty {model['novelty']:.1f} bits "
        f"({popular['novelty']:.1f}); Gini {model['gini']:.3f} ({popular['gini']:.3f})"
    ]


def _several(several: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    lines = [
        f"ALL HELD-OUT ITEMS of {several['evaluated']:,} users"
        + (f", {several['mean_positives']:.1f} each" if several["evaluated"] else ""),
        f"{'':<20}{'model':>20}{'popularity':>20}",
    ]
    for ranking in ("sampled", "full"):
        for name in names:
            cells = [_with_error(several[who][ranking][name]) for who in ("model", "popularity")]
            lines.append(f"  {f'{ranking} {name}':<20}{cells[0]:>20}{cells[1]:>20}")
    return [*lines, ""]


def _references(report: Mapping[str, Any]) -> list[str]:
    lines = reference_table(report).splitlines()
    for name, entry in report["methods"].items():
        delta = entry["difference"]["full"]["ndcg@10"]
        lines.append(f"  model minus {name}, full ndcg@10: {_with_error(delta, sign='+')}")
    return lines
