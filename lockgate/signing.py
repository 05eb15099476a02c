"""Sign what travels inside of other text, so that text which quotes an event cannot forge it.

A worker's error reaches the driver inside of Spark's message, and Spark quotes events, for example in the error of a
cast. An event may hold anything, also text that looks like an error of ours, with a fix that an operator would carry
out. So what we put into such text is followed by an HMAC, under a key that no event can know:

    made       by the driver's process, at random; never written anywhere
    workers    get it as part of the functions that they run, as they get the secret of the driver's servers
    the JVM    gets it inside of a function, whose arguments plans and event logs show, and whose content they do not
               (connectors/marking.py)

It is in no setting of Spark's, no environment, no command line and no log.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

HASH_HEX = 64
BLOCK_BYTES = 64
INNER, OUTER = 0x36, 0x5C
"""As RFC 2104 has them: the JVM has SHA-256 and no HMAC in SQL."""

_MARK = "[A-Za-z0-9+/=]+"


@dataclass(frozen=True)
class Signer:
    """Signs for one driver."""

    key: bytes = field(repr=False)

    def mark(self, kind: str, payload: str) -> str:
        """A payload in base64, with its kind and the signature."""
        return f"{kind}{payload}.{self._sign(kind + payload)}"

    def payloads(self, kind: str, message: str) -> Iterator[str]:
        """The payloads of the marks of a kind in a message that carry our signature."""
        for found in re.finditer(rf"{re.escape(kind)}({_MARK})\.([0-9a-f]{{{HASH_HEX}}})", message):
            if hmac.compare_digest(found[2], self._sign(kind + found[1])):
                yield found[1]

    def padded(self, pad: int) -> bytes:
        """The first block of the inner or the outer hash of an HMAC: the key."""
        return bytes(byte ^ pad for byte in self.key.ljust(BLOCK_BYTES, b"\0"))

    def _sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


_own = Signer(secrets.token_bytes(32))


def driver_signer() -> Signer:
    """The signer of this process, which is a driver. Workers receive that of their driver, and never ask here."""
    return _own
