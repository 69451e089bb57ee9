"""The first words between server and node: what the server asks, and what the node says of itself.

A query names the run and may carry the catalogue; the answer counts users and says nothing else
about them.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedrecgel.common.array_codec import from_array, to_array
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.records import record_of, refuse_other_version, spoken

MOST_USERS = 100_000_000
"""Users that a node may claim to host: the server keeps numbers for each of them."""
LONGEST_NAME = 64


def is_name(site: str) -> bool:
    """Whether a site may be called so: names are shown and written in one line."""
    return 0 < len(site) <= LONGEST_NAME and site.isprintable()


@dataclass(frozen=True)
class Query:
    """The server's first question.

    Attributes
    ----------
    run
        `Experiment.id`.
    catalogue
        By which a site prepares a file of its own; None where nodes have prepared data.
    """

    run: str = ""
    catalogue: Catalogue | None = None

    def pack(self) -> RecordDict:
        """As Flower records; the items' ids are one array of bytes, with NUL between two."""
        values: dict[str, Any] = {"run": self.run, **spoken()}
        content = RecordDict({"query": ConfigRecord(values)})
        if self.catalogue is not None:
            rules = {k: v for k, v in self.catalogue.rules.items() if v is not None}
            head: Any = {**rules, "name": self.catalogue.name, "hash": self.catalogue.hash}
            ids = "\x00".join(self.catalogue.item_ids.tolist()).encode()
            content["catalogue"] = ConfigRecord(head)
            array = to_array(np.frombuffer(ids, dtype=np.uint8))
            content["items"] = ArrayRecord({"ids": array})
        return content

    @classmethod
    def unpack(cls, content: RecordDict) -> "Query":
        """From Flower records; nothing at all asks nothing in particular.

        Raises
        ------
        FederationError
            When the server runs another version, or the catalogue is not what its hash says.
        """
        if "query" not in content:
            return cls()
        record = dict(record_of(content, ConfigRecord, "query"))
        refuse_other_version(record, "the server", "this node")
        if "catalogue" not in content:
            return cls(str(record["run"]))
        head: dict[str, Any] = dict(record_of(content, ConfigRecord, "catalogue"))
        name, expected = head.pop("name", ""), head.pop("hash", "")
        try:
            ids = from_array(record_of(content, ArrayRecord, "items")["ids"]).tobytes()
            rules = {"threshold": None, **head}
            catalogue = Catalogue.from_rules(str(name), rules, ids.decode().split("\x00"))
        except (KeyError, ValueError):
            catalogue = None
        if catalogue is None or catalogue.hash != expected:
            raise FederationError(
                "the server's catalogue came damaged: its hash differs; start the run again"
            )
        return cls(str(record["run"]), catalogue)


@dataclass(frozen=True)
class Hello:
    """A node's answer.

    Attributes
    ----------
    site
        Name of the node; the server numbers users by (site, slot).
    users
        How many users it can train: those with at least one interaction.
    num_items, catalogue
        Size and hash of the catalogue its interactions refer to.
    validation_users, test_users
        How many of the users have a validation item, and a test item.
    parts
        Into how many sites the node's data set is divided.
    unknown
        Rows of its own file that it left out because the catalogue does not have their items.
    fingerprint
        Equal for equal data in the same run, else meaningless; empty where the name says enough,
        and for a single user.
    """

    site: str
    users: int
    num_items: int
    catalogue: str
    validation_users: int
    parts: int = 1
    test_users: int = 0
    unknown: int = 0
    fingerprint: str = ""

    def pack(self) -> RecordDict:
        """As Flower records."""
        values: dict[str, Any] = {**vars(self), **spoken()}
        return RecordDict({"hello": ConfigRecord(values)})

    @classmethod
    def unpack(cls, content: RecordDict) -> "Hello":
        """From Flower records.

        Raises
        ------
        FederationError
            When the node runs another version.
        """
        record = dict(record_of(content, ConfigRecord, "hello"))
        refuse_other_version(record, f"node '{record.get('site', '?')}'", "the server")
        expected = {field.name: field.type for field in fields(cls)}
        if {name: type(value) for name, value in record.items()} != expected:
            raise ReplyError("the node's answer to the first query has other fields than expected")
        hello = cls(**record)
        counts = (hello.users, hello.num_items, hello.validation_users, hello.unknown)
        if min(*counts, hello.test_users) < 0:
            raise ReplyError("the node's answer to the first query holds negative counts")
        if hello.users > MOST_USERS or max(hello.validation_users, hello.test_users) > hello.users:
            raise ReplyError("the node claims more users than a node may host")
        if not is_name(hello.site):
            raise ReplyError("the node's site has no name that can be shown in a line")
        return hello
