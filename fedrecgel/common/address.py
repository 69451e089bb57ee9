"""Addresses as people write them."""

from fedrecgel.common.errors import ConfigError


def split_address(address: str, lowest: int = 1) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; ports from ``lowest`` on.

    Raises
    ------
    ConfigError
        When it is something else.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not _is_port(port, lowest):
        raise ConfigError(
            f"'{address}' is no address; give HOST:PORT with a port from {lowest} to 65535, "
            "e.g. localhost:8000"
        )
    try:
        host.encode("idna")  # as sockets do
    except UnicodeError:
        raise ConfigError(
            f"{host!r} is no name of a machine: its parts between dots have 1 to 63 characters"
        ) from None
    return host, int(port)


def _is_port(text: str, lowest: int) -> bool:
    return text.isdecimal() and len(text) <= 5 and lowest <= int(text) <= 65535
