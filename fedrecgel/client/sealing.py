"""How states and user ids stand in a store's file: plainly with a checksum, or encrypted.

Encryption is AES-256-GCM with a fresh random nonce for each state; experiment, user and round are
authenticated with it, so that a state in a wrong place does not open. Keys for each purpose, file
and experiment come from the key file by HKDF-SHA256. User ids become HMAC-SHA256 values: the file
alone does not tell who is in it.
"""

import hmac
import os
import zlib
from pathlib import Path
from typing import Protocol

from fedrecgel.common.errors import RunError

KEY_BYTES = 32
_NONCE_BYTES = 12
_CHECK_BYTES = 4


class Damaged(ValueError):
    """Bytes that do not open: not what was written, or not in their place."""


class Seal(Protocol):
    """Of one experiment in one file."""

    def user(self, user_id: str) -> str | bytes:
        """What stands for a user in the file."""

    def close(self, data: bytes | memoryview, user: str | bytes, round: int) -> bytes:
        """What stands for data in the file."""

    def open(self, data: bytes, user: str | bytes, round: int) -> memoryview:
        """The data again; `Damaged` if they are not."""


class Plain:
    """With a checksum, because SQLite has none."""

    def __init__(self, experiment: str) -> None:
        self._experiment = experiment

    def user(self, user_id: str) -> str | bytes:
        """See `Seal.user`."""
        return user_id

    def close(self, data: bytes | memoryview, user: str | bytes, round: int) -> bytes:
        """See `Seal.close`."""
        return self._check(data, user, round) + bytes(data)

    def open(self, data: bytes, user: str | bytes, round: int) -> memoryview:
        """See `Seal.open`."""
        found = memoryview(data)[_CHECK_BYTES:]
        if data[:_CHECK_BYTES] != self._check(found, user, round):
            raise Damaged
        return found

    def _check(self, data: bytes | memoryview, user: str | bytes, round: int) -> bytes:
        place = zlib.crc32(_place(self._experiment, user, round))
        return zlib.crc32(data, place).to_bytes(_CHECK_BYTES, "big")


class Encrypted:
    """With keys from `derive`."""

    def __init__(self, key: bytes, salt: bytes, experiment: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._experiment = experiment
        self._users = derive(key, salt, "users")
        self._cipher = AESGCM(derive(key, salt, f"states {experiment}"))

    def user(self, user_id: str) -> str | bytes:
        """See `Seal.user`."""
        return hmac.digest(self._users, user_id.encode(), "sha256")

    def close(self, data: bytes | memoryview, user: str | bytes, round: int) -> bytes:
        """See `Seal.close`."""
        nonce = os.urandom(_NONCE_BYTES)
        place = _place(self._experiment, user, round)
        return nonce + self._cipher.encrypt(nonce, bytes(data), place)

    def open(self, data: bytes, user: str | bytes, round: int) -> memoryview:
        """See `Seal.open`."""
        from cryptography.exceptions import InvalidTag

        view = memoryview(data)
        place = _place(self._experiment, user, round)
        try:
            found = self._cipher.decrypt(view[:_NONCE_BYTES], view[_NONCE_BYTES:], place)
        except (InvalidTag, ValueError):
            raise Damaged from None
        return memoryview(found)


def _place(experiment: str, user: str | bytes, round: int) -> bytes:
    name = user.encode() if isinstance(user, str) else user
    return round.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name + experiment.encode()


def derive(key: bytes, salt: bytes, purpose: str) -> bytes:
    """A key (`KEY_BYTES`) for one purpose in the file with this salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"fedrecgel private store: {purpose}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(key)


def make_key(path: Path) -> None:
    """Write a new random key to a new file (mode 0600): 64 hexadecimal digits."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError as error:
        if not path.exists():
            raise RunError(f"{path} cannot be written: {error.filename} is a file") from None
        raise RunError(
            f"{path} exists already; a key that is in use must not be replaced"
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(file, "w") as stream:
        stream.write(os.urandom(KEY_BYTES).hex() + "\n")


def read_key(path: Path) -> bytes:
    """The key in a file made by `make_key`."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except OSError as error:
        raise RunError(f"the key file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise RunError(f"{path} is not a key file; make one by: fedrecgel store make-key FILE")
    return key
