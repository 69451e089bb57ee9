"""Whether a site can work with a SuperLink: reached, trusted, and of the same kind of Flower."""

import contextlib
from pathlib import Path

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.flower import SuperLink, flower_version, speaks_grpc
from fedrecgel.deploy.probe import Answer, flower_of, offers_fleet, probe


def check_superlink(address: str, ca: Path) -> str:
    """One line of what was found.

    Parameters
    ----------
    address
        What the site's SuperNode is to dial, ``HOST:PORT``: the Fleet API on Flower 1.39, else the
        SuperLink's one port.

    Raises
    ------
    DeployError
        In one line, when the site's SuperNode would try again for ever.
    """
    own = flower_version()
    answer, grpc, theirs = _flower_at(address, ca)
    if not theirs and not grpc:
        raise DeployError(f"{address} answers over TLS but is no SuperLink; is the port right?")
    if theirs and speaks_grpc(own) and not speaks_grpc(theirs):
        raise DeployError(
            f"versions differ: the SuperLink at {address} runs Flower {theirs}, which sites reach "
            f"over HTTP, here is Flower {own}, which speaks gRPC; install flwr=={theirs} here"
        )
    if theirs and speaks_grpc(own):
        raise DeployError(
            f"{address} is the API of a SuperLink with Flower {theirs}; sites dial its Fleet API, "
            "port 9092 unless told otherwise"
        )
    if theirs and speaks_grpc(theirs):
        raise DeployError(
            f"versions differ: the SuperLink at {address} runs Flower {theirs}, which sites reach "
            f"over gRPC, here is Flower {own}, which speaks HTTP; install flwr=={theirs} here"
        )
    if grpc and not speaks_grpc(own):
        raise DeployError(
            f"versions differ: {address} speaks gRPC, so the SuperLink runs Flower 1.39, here is "
            f"Flower {own}; install flwr==1.39.0 here"
        )
    transport = "gRPC" if grpc else "HTTP"
    version = f"Flower {theirs}" if theirs else "Flower 1.39"
    return f"{address}: {transport} over {answer.tls}, {version}, certificate trusted; here {own}"


def _flower_at(address: str, ca: Path) -> tuple[Answer, bool, str]:
    """What answers, whether it is a Fleet API over gRPC, and else the version that it tells.

    The API tells its version; the gRPC Fleet port of 1.39 has none to ask.
    """
    answer = probe(address, ca)
    grpc = answer.protocol == "h2" and offers_fleet(address, ca)
    return answer, grpc, "" if grpc else flower_of(address, ca)


def check_link(link: SuperLink, ca: Path) -> str:
    """As `check_superlink`, and whether another kind of Flower is there instead.

    Raises
    ------
    DeployError
        As `check_superlink`; where nothing answers at the port of this Flower but something does at
        that of the other kind, it says that versions differ.
    """
    own = flower_version()
    other = link.api if speaks_grpc(own) else f"{link.host}:{link.fleet_port}"
    try:
        return check_superlink(link.fleet(own), ca)
    except DeployError as error:
        theirs = ""
        with contextlib.suppress(DeployError):
            _, grpc, theirs = _flower_at(other, ca)
            theirs = "1.39" if grpc else theirs
        if not theirs or speaks_grpc(theirs) == speaks_grpc(own):
            raise
        raise DeployError(
            f"versions differ: the SuperLink at {other} runs Flower {theirs}, here is Flower "
            f"{own}; a site needs the SuperLink's kind, 1.39 (gRPC) or 1.40 to 1.42 (HTTP) "
            f"({error})"
        ) from None
