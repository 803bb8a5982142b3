#!/usr/bin/python3
"""Identities that a node must refuse: expired, of another fabric, and none at all."""
import pathlib
import re
import subprocess

PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----\n?", re.DOTALL)

# The configuration of `openssl ca` for chosen dates.
OPENSSL_CA = """
[ca]
default_ca = fabric
[fabric]
database = {work}/index
new_certs_dir = {work}
rand_serial = yes
default_md = sha256
policy = names
x509_extensions = client
[names]
commonName = supplied
organizationName = supplied
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
"""


def blocks(path):
    """The PEM blocks of an identity file: certificate, key, CA certificate."""
    return [match.group(0) for match in PEM_BLOCK.finditer(pathlib.Path(path).read_text(encoding="ascii"))]


def stranger(own, foreign, path):
    """The certificate and key of `foreign` with the CA of `own`: its holder trusts the node, but the node does not know
    the CA of the certificate."""
    path.write_text("".join([*blocks(foreign)[:2], blocks(own)[2]]), encoding="ascii")
    return path


def expired(state_dir, work, path):
    """A tenant's identity with a certificate that the fabric's CA signed and that expired years ago. None without
    openssl. The CA's key is in the node's state directory, which only root can read."""
    config, key, request, certificate = (work / name for name in ("ca.cnf", "key.pem", "request.pem", "certificate.pem"))
    config.write_text(OPENSSL_CA.format(work=work), encoding="ascii")
    (work / "index").touch()
    authority = state_dir / "ca-key.pem"
    make = [["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", "/dev/null",
             "-keyout", key, "-subj", "/O=fabricbios-tenant/CN=late", "-out", request],
            ["openssl", "ca", "-batch", "-config", config, "-cert", authority, "-keyfile", authority, "-in", request, "-notext",
             "-startdate", "20200101000000Z", "-enddate", "20200102000000Z", "-out", certificate]]
    try:
        for command in make:
            subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        return None
    path.write_text(certificate.read_text() + key.read_text() + (state_dir / "ca.pem").read_text(), encoding="ascii")
    return path
