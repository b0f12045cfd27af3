"""Certificates for tests of TLS."""

from __future__ import annotations

from pathlib import Path

import grpc
import trustme


class Certificates:
    """A server's and a client's, of one authority; and a client's that no authority signed."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(self.authority)
        self.server = _written(authority.issue_cert("localhost", "127.0.0.1"), folder / "server")
        self.client = _written(authority.issue_cert("client@example.org"), folder / "client")
        stranger = trustme.CA().issue_cert("stranger@example.org")
        self.stranger = _written(stranger, folder / "stranger")

    def trusting(self, ours: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
        """What a client trusts the server by, and shows of `ours`: certificate and key."""
        chain, key = (None, None) if ours is None else (path.read_bytes() for path in ours)
        return grpc.ssl_channel_credentials(self.authority.read_bytes(), key, chain)


def _written(certificate: trustme.LeafCert, stem: Path) -> tuple[Path, Path]:
    chain, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    return chain, key
