"""Why an address cannot be listened on, in words; gRPC only says that it cannot."""

import errno
import os
import socket
import stat
from pathlib import Path

from fedrecgel.common.address import split_address

_WORDS = {
    errno.EADDRINUSE: "it is in use",
    errno.EADDRNOTAVAIL: "it is not an address of this machine",
    errno.EACCES: "this user may not; take a port from 1024 on",
}


def why_not(address: str) -> str:
    """The reason, as far as it can be found out."""
    if address.startswith("unix:"):
        return _why_not_unix(Path(address.removeprefix("unix:")))
    host, port = split_address(address, lowest=0)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except OSError as error:
        return _WORDS.get(error.errno or 0, error.strerror or str(error))
    return "it was in use until just now; try again"


def _why_not_unix(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        return f"{path} is there and is no socket"
    if not os.access(path.parent, os.W_OK):
        return f"this user may not write in {path.parent}"
    return "its path is too long" if len(os.fsencode(path)) > 107 else "it is in use"
