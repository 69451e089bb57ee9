"""The table at the end of a run: the model beside popularity, in both rankings, with errors."""

from collections.abc import Mapping
from typing import Any

__all__ = ["table"]

_SHOWN = ("hr@5", "ndcg@5", "hr@10", "ndcg@10", "hr@20", "ndcg@20")
_WIDTHS = (18, 18, 20, 10)


def table(result: Mapping[str, Any]) -> str:
    """Return the text of a result (`assemble`, or `build_report` alone), about 80 columns wide."""
    lines = [*_head(result), ""]
    for ranking, title in _titles(result).items():
        columns = ("model", "popularity", "difference", "chance")
        header = "".join(f"{c:>{w}}" for c, w in zip(columns, _WIDTHS, strict=True))
        lines += [title, f"{'':<10}{header}"]
        lines += [_row(result, ranking, name) for name in _SHOWN]
        lines.append("")
    lines += ["± is the standard error over users; differences are paired, user by user", ""]
    lines += _foot(result)
    return "\n".join(lines)


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
    return f"  {name:<8}{padded}"


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
    if overlap["between_users"] is not None:
        lines += [
            f"of ten recommended items two users share {overlap['between_users']:.1f};",
            f"  {overlap['with_popularity_list']:.1f} are what popularity gives the same user,",
            f"  {overlap['with_ten_most_popular']:.1f} are among the ten most popular",
        ]
    if "best_by_test" in result:
        best = result["best_by_test"]
        cells = best["test"]["sampled"]
        shown = ", ".join(f"{name} {_with_error(cells[name])}" for name in ("hr@10", "ndcg@10"))
        lines.append(f"best by TEST, as the paper reports (optimistic): round {best['round']}")
        lines.append(f"  sampled {shown}")
    return lines + [f"warning: {line}" for line in result["warnings"]]


def _without(part: Mapping[str, Any]) -> list[str]:
    names = ("hr@10", "ndcg@10")
    return [
        f"  {ranking:<8} "
        + ", ".join(f"{name} {_with_error(part[ranking][name])}" for name in names)
        for ranking in ("sampled", "full")
    ]
