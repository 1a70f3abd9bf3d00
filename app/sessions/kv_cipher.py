"""Encryption of what is stored: AES-256-GCM, with the name that a value is stored under as associated data."""

import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16

SEAL_BYTES = _NONCE_BYTES + _TAG_BYTES
"""Bytes that encryption adds."""


class SealError(ValueError):
    """Not what was encrypted under this name with one of the keys."""


class Cipher:
    """Encrypts with the first key and decrypts with any, so that keys can be replaced.

    Nonces are random, so one key is good for some 2**32 values.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"One key at least is needed, each of {KEY_BYTES} bytes.")
        self._ciphers = [AESGCM(key) for key in keys]

    def seal(self, name: str, payload: bytes) -> bytes:
        """Nonce, encrypted payload and tag."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, payload, name.encode())

    def open(self, name: str, sealed: bytes | memoryview) -> bytes:
        """The payload. Raises SealError."""
        if len(sealed) < SEAL_BYTES:
            raise SealError("shorter than its seal")
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(bytes(sealed[:_NONCE_BYTES]), sealed[_NONCE_BYTES:], name.encode())
            except InvalidTag:
                continue
        raise SealError("not encrypted under this name with a key that is set")
