"""An authority of a test's own, which issues certificates for servers."""

import ssl
import subprocess
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """An issuer that nobody trusts before they are told to; it needs `openssl`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._make("ca", "/CN=an authority of a test")

    def server_context(self, name: str) -> ssl.SSLContext:
        """What a server of this name shows to its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name))
        return context

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for a name, and its key."""
        issued = ("-CA", str(self.certificate), "-CAkey", str(self._key))
        named = ("-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE")
        self._make(name, f"/CN={name}", *issued, *named)
        return self._directory / f"{name}.pem", self._directory / f"{name}.key"

    def _make(self, file: str, subject: str, *options: str) -> None:
        out = ("-keyout", f"{self._directory}/{file}.key", "-out", f"{self._directory}/{file}.pem")
        command = ["openssl", "req", "-x509", *_EC, *out, "-subj", subject, *options]
        subprocess.run(command, check=True, capture_output=True)
