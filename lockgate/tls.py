"""The start of every TLS client of ours: the other side proves its name, with TLS 1.2 or 1.3."""

from __future__ import annotations

import ssl


def new_context() -> ssl.SSLContext:
    """A context that requires a certificate, and checks the name in it; it trusts no issuer yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _TidySocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _TidySocket(ssl.SSLSocket):
    """Closes itself if the handshake fails; client libraries would leave that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise
