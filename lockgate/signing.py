"""Sign what travels inside of other text, so that text which quotes an event cannot forge it.

A worker's error reaches the driver inside of Spark's message, and Spark quotes events: in the error of a cast, for one.
An event may hold anything, also what looks like an error of ours, with a fix that an operator would carry out. So what
we put into such text has an HMAC behind it, under a key that no event can know:

    made       by the driver's process, at random; never written anywhere
    workers    get it as part of the functions that they run, as they get the secret of the driver's door
    the JVM    gets it inside of a function, whose arguments plans and event logs show, and whose content they do not
               (sources/marking.py)

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
        """A payload in base64, with what it is and who signed it."""
        return f"{kind}{payload}.{self._sign(kind + payload)}"

    def payloads(self, kind: str, message: str) -> Iterator[str]:
        """The payloads of the marks of a kind in a message that carry our signature."""
        for found in re.finditer(rf"{re.escape(kind)}({_MARK})\.([0-9a-f]{{{HASH_HEX}}})", message):
            if hmac.compare_digest(found[2], self._sign(kind + found[1])):
                yield found[1]

    def padded(self, pad: int) -> bytes:
        """The key as the inner or the outer hash of an HMAC begins with it."""
        return bytes(byte ^ pad for byte in self.key.ljust(BLOCK_BYTES, b"\0"))

    def _sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


_own = Signer(secrets.token_bytes(32))


def driver_signer() -> Signer:
    """That of this process, which is a driver. What runs in workers is given its driver's, and never asks here."""
    return _own
