# SPDX-License-Identifier: Apache-2.0
"""What certificates are for, and why they are refused, in words. Pure."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

_VERIFICATION = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is not from a CA of --tls-ca",
    19: "its certificate is not from a CA of --tls-ca",
    20: "its certificate is not from a CA of --tls-ca",
    21: "its certificate is not from a CA of --tls-ca",
    26: "its certificate is not for this use (extendedKeyUsage)",
}
"""By X509_V_ERR_*; 62 and 64 say themselves which name does not match."""
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses this certificate, which is not from its CA",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it refuses this certificate, which has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it refuses this certificate, which is not for this use (extendedKeyUsage)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses this certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it refuses a connection without a certificate",
}
"""By OpenSSL's name."""


def addresses(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The IP addresses of a certificate's subjectAltName, as `ssl.SSLObject.getpeercert` gives it."""
    found = set()
    for kind, name in (certificate or {}).get("subjectAltName", ()):
        if kind == "IP Address":
            with suppress(ValueError):  # "<invalid>": of neither 4 nor 16 bytes
                found.add(str(ip_address(name.strip())))
    return frozenset(found)


def sentence(error: ssl.SSLError) -> str:
    """Why TLS has failed, of which the other side is "it"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFICATION.get(error.verify_code) or f"its certificate is refused: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason) or f"TLS failed: {reason.replace('_', ' ').lower() or 'no reason is known'}"
