"""TLS for servers and clients: versions and ciphers of today, certificates that can be changed while it runs.

A server speaks TLS 1.2 and 1.3, with forward secrecy and authenticated ciphers only. `Certificates` reads its
files again when it is asked to: later connections get the new certificate, and are checked against the new
authorities. A file that isn't right leaves everything as it was.

When one side speaks TLS and the other doesn't, both get bytes that make no sense to them. `tls_hint` recognises
that by the first bytes, `explain` by the error of the TLS library.

>>> tls_hint(bytes.fromhex("1603010200")), tls_hint(b"\\x15\\x03\\x03\\x00\\x02"), tls_hint(b"add 6ba7")
('speaks TLS, and this side does not', 'expects TLS, and this side does not speak it', '')
"""

from __future__ import annotations

import ssl
from typing import Any

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2 that are allowed. All those of TLS 1.3 are."""
_PLAIN = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
)
_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server wants a certificate of the client",
    "UNSUPPORTED_PROTOCOL": "it speaks a version of TLS that is too old",
    "VERSION_TOO_LOW": "it speaks a version of TLS that is too old",
    "NO_SHARED_CIPHER": "it knows none of the ciphers that are taken",
}


class Certificates:
    """A server's certificate and key, and the authorities whose certificates clients must have, if any.

    ssl.SSLError or OSError if a file isn't right, at first and when it is reloaded.
    """

    def __init__(self, certificate: str, key: str | None = None, *, client_authorities: str | None = None) -> None:
        self._files = (certificate, key, client_authorities)
        self._current = _server_context(*self._files)
        self.context = _server_context(*self._files)
        """For everything that takes a context. It stays the same when certificates are reloaded."""
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again, for connections from now on. If one isn't right nothing changes."""
        self._current = _server_context(*self._files)

    def _choose(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Called for each client, before it gets a certificate."""
        connection.context = self._current


def _server_context(certificate: str, key: str | None, client_authorities: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if client_authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authorities)
        if not context.cert_store_stats()["x509_ca"]:
            raise ssl.SSLError(f"{client_authorities} has no certificate of an authority")
    # Never asks for a passphrase: a server that starts unattended would wait for ever.
    context.load_cert_chain(certificate, key, password=lambda: b"")
    return context


def client_context(
    authorities: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """A client's side: whom it trusts, by default whom the system trusts, and its own certificate, if any."""
    context = ssl.create_default_context(cafile=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    return context


def tls_hint(first: bytes | bytearray) -> str:
    """What is wrong if the first bytes of a connection without TLS are TLS; else an empty text."""
    if len(first) >= 2 and first[1] == 3:
        if first[0] == 0x16:  # a handshake
            return "speaks TLS, and this side does not"
        if first[0] == 0x15:  # an alert
            return "expects TLS, and this side does not speak it"
    return ""


def explain(error: ssl.SSLError) -> str:
    """A TLS library's error in words that help."""
    reason = getattr(error, "reason", None)
    if reason in _PLAIN:
        return "the other side does not speak TLS"
    if reason in _WORDS:
        return _WORDS[reason]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the other side closed the connection in the middle of the TLS handshake: does it speak TLS?"
    return reason.replace("_", " ").lower() if reason else error.strerror or str(error)


def peer_name(connection: ssl.SSLSocket | ssl.SSLObject | None) -> str | None:
    """The name in the certificate that a client has shown: its subject's common name, else its first DNS name.

    None without a certificate that was checked, or if there is no name in it, or several common names.
    """
    certificate: Any = None if connection is None else connection.getpeercert()
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for key, value in certificate.get("subjectAltName", ()) if key in ("DNS", "email", "URI")]
    found = names if names else others[:1]
    return str(found[0]) if len(found) == 1 and found[0] else None
