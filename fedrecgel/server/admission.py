"""Who may take part: what the answers of nodes must agree on, at the start and later."""

from collections.abc import Collection, Mapping

from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.greeting import Hello


def check_together(hellos: Collection[Hello], catalogue: str) -> None:
    """Refuse a federation that cannot work.

    Parameters
    ----------
    catalogue
        Hash of the one that the server sent; empty = it sent none.

    Raises
    ------
    FederationError
        With what is wrong and what to do.
    """
    if sum(hello.users for hello in hellos) == 0:
        raise FederationError("no node hosts a user with training interactions; check their data")
    other = [hello.site for hello in hellos if hello.catalogue != catalogue]
    if catalogue and other:
        raise FederationError(
            f"site '{min(other)}' does not use the catalogue that the server sends; give the node "
            "a file of its own (interactions=FILE) in place of prepared data"
        )
    names: set[str] = set()
    for hello in hellos:
        if hello.site in names:
            raise FederationError(
                f"two nodes call themselves '{hello.site}'; give each site its own name"
            )
        names.add(hello.site)
    prints: dict[str, str] = {}
    for hello in sorted(hellos, key=lambda hello: hello.site):
        first = prints.setdefault(hello.fingerprint or hello.site, hello.site)
        if first != hello.site:
            raise FederationError(
                f"sites '{first}' and '{hello.site}' have the very same data: their users would "
                "count twice; give each its own file"
            )
    parts = sorted({hello.parts for hello in hellos})
    if len(parts) > 1:
        raise FederationError(
            f"nodes say num-partitions={parts[0]} and {parts[-1]}: some would host the same users; "
            "give all of them the same number"
        )
    catalogues = {(hello.catalogue, hello.num_items) for hello in hellos}
    if len(catalogues) > 1:
        raise FederationError(
            f"the nodes refer to {len(catalogues)} different catalogues; prepare all sites from one"
        )


def check_newcomer(hello: Hello, like: Hello, prints: Mapping[str, str]) -> None:
    """Refuse a site that comes later and does not fit.

    Parameters
    ----------
    like
        The answer of any site that takes part.
    prints
        Names of the other sites by their `Hello.fingerprint`.

    Raises
    ------
    ReplyError
        With the reason; the run goes on without the site.
    """
    if (hello.catalogue, hello.num_items) != (like.catalogue, like.num_items):
        raise ReplyError(f"site '{hello.site}' refers to another catalogue")
    if hello.parts != like.parts:
        raise ReplyError(f"site '{hello.site}' says num-partitions={hello.parts}, not {like.parts}")
    if hello.fingerprint and hello.fingerprint in prints:
        raise ReplyError(
            f"site '{hello.site}' has the very same data as '{prints[hello.fingerprint]}': their "
            "users would count twice"
        )


def check_return(hello: Hello, then: Hello) -> None:
    """Refuse a site that comes back as another one.

    Raises
    ------
    ReplyError
        With the reason; the run goes on without the site.
    """
    if hello.users != then.users:
        raise ReplyError(
            f"site '{hello.site}' came back with {hello.users} users, it had {then.users}; give it "
            "the data it had, or begin a new run"
        )
    if hello.fingerprint != then.fingerprint:
        raise ReplyError(
            f"site '{hello.site}' came back with other data than it had in this run; give it those "
            "again, or begin a new run"
        )
