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
    if not host or not port.isdecimal() or not lowest <= int(port) <= 65535:
        raise ConfigError(
            f"'{address}' is no address; give HOST:PORT with a port from {lowest} to 65535, "
            "e.g. localhost:8000"
        )
    return host.strip("[]"), int(port)
