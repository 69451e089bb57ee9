"""What happened in the rounds: one line for each evaluated round, failures by reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import MetricRecord

from fedrecgel.server.exchange import Failure


@dataclass
class Tally:
    """Replies to one set of messages.

    Attributes
    ----------
    site_of
        Name of the site of a node.
    on_failure
        Told of every failure with the site's name.
    replies, users
        Accepted replies, and users in them.
    reasons
        Failed and refused replies by reason.
    by_site
        The same, by site.
    """

    site_of: Callable[[int], str]
    on_failure: Callable[[str, Failure], None]
    replies: int = 0
    users: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    by_site: dict[str, dict[str, int]] = field(default_factory=dict)
    first: tuple[str, Failure] | None = None

    def add(self, failure: Failure) -> None:
        """Count one."""
        site = self.site_of(failure.node_id)
        _add(self.reasons, failure.reason, 1)
        _add(self.by_site.setdefault(site, {}), failure.reason, 1)
        if self.first is None:
            self.first = (site, failure)
        self.on_failure(site, failure)

    def first_line(self) -> str:
        """The first failure in one line; the last line of a traceback says what went wrong."""
        if self.first is None:
            return "no reply was refused"
        site, failure = self.first
        detail = failure.detail.strip().splitlines()[-1:] or [""]
        return f"first: {site}: {failure.reason}" + (f": {detail[0]}" if detail[0] else "")


@dataclass
class History:
    """Lines of the evaluated rounds, and failures over the whole run by reason, and by site."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    failures_by_site: dict[str, dict[str, int]] = field(default_factory=dict)
    _since: list[dict[str, Any]] = field(default_factory=list)

    def passed(self, line: dict[str, Any]) -> None:
        """Note a round, evaluated or not."""
        self._since.append(line)

    def append(self, line: dict[str, Any]) -> None:
        """Keep an evaluated round; its counts and seconds cover the rounds since the one before."""
        for name in ("replies", "failures", "seconds"):
            line[name] = sum(passed[name] for passed in self._since)
        self._since.clear()
        self.lines.append(line)

    def to_json(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {name: getattr(self, attribute) for name, attribute in _KEPT.items()}

    def from_json(self, values: dict[str, Any]) -> None:
        """Take over what `to_json` gave."""
        for name, attribute in _KEPT.items():
            setattr(self, attribute, values.get(name, getattr(self, attribute)))

    def count(self, tally: Tally) -> None:
        """Add a set of messages' failures."""
        for reason, number in tally.reasons.items():
            _add(self.failures, reason, number)
        for site, reasons in tally.by_site.items():
            for reason, number in reasons.items():
                _add(self.failures_by_site.setdefault(site, {}), reason, number)


_KEPT = {
    "lines": "lines",
    "failures": "failures",
    "failures_by_site": "failures_by_site",
    "since": "_since",
}
"""Names in a checkpoint, and where they are here."""


def _add(counts: dict[str, int], name: str, number: int) -> None:
    counts[name] = counts.get(name, 0) + number


def line_of(round: int, metrics: MetricRecord, tally: Tally, dropped: int) -> dict[str, Any]:
    """A round's line: means over accepted users, and how the replies went.

    ``dropped`` counts attempts at the round that had too few good replies.
    """
    values = dict(metrics)
    return {
        "round": round,
        "loss": values["loss"],
        "users": tally.users,
        "replies": tally.replies,
        "failures": sum(tally.reasons.values()),
        "reasons": tally.reasons,
        "dropped": dropped,
        "bytes_up_per_user": values["bytes-up-per-user"],
        "bytes_down_per_user": values["bytes-down-per-user"],
    }
