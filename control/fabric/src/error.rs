//! Why an identity, or a file of the fabric, cannot be used.

use std::{io, path::PathBuf};

use fabricbios_wire::{NodeId, Refusal};

use crate::{BadLabel, FabricId};

/// Why there is no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A call of the file system failed.
    #[error("{action} {path}: {error}; check that the directory exists and who may use it")]
    Io {
        /// The step that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system; the text of this error contains it.
        error: io::Error,
    },
    /// The file exists and cannot be used.
    #[error("{path}: {what}; {remedy}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem; the text of this error contains it.
        what: FileProblem,
        /// What to do.
        remedy: &'static str,
    },
    /// Making keys or certificates failed.
    #[error("cannot make {path}: {why}")]
    Making {
        /// The file.
        path: PathBuf,
        /// The error of the library.
        why: String,
    },
    /// The text to accept is refused.
    #[error(
        "{what}; nothing has changed. Give what `fabricctl fabric sign --role node` has printed for this node"
    )]
    Answer {
        /// The problem; the text of this error contains it.
        what: FileProblem,
    },
    /// The text to sign is refused.
    #[error("{what}; give what `fabricbiosd node-request` has printed")]
    Request {
        /// The problem; the text of this error contains it.
        what: FileProblem,
    },
    /// The authority refused a request.
    #[error("{0}")]
    Refused(Refusal),
}

/// What is wrong with a file of the fabric.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of a variant says what it is")]
pub enum FileProblem {
    #[error("missing")]
    Missing,
    #[error("missing, although {0} is there")]
    MissingBeside(&'static str),
    #[error("missing, although a node was here before")]
    NodeMissing,
    #[error("a directory is in the place of the file")]
    Directory,
    /// `what`: the part of the file; `why`: the reason of the parser.
    #[error("the {what}: {why}")]
    Part { what: &'static str, why: String },
    #[error("the file has {0} certificates instead of 2")]
    Certificates(usize),
    #[error(transparent)]
    Certificate(#[from] BadCertificate),
    #[error("the certificate has expired")]
    Expired,
    #[error("TLS does not accept key and certificate: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the key and the certificate do not belong together")]
    OtherKey,
    #[error("the identity belongs to another fabric")]
    OtherFabric,
    #[error("the CA that has signed the identity is not that of ca.pem")]
    OtherSigner,
    #[error("the key is not the key of the CA that has signed node.identity")]
    NotTheSigner,
    #[error("the certificate is not that in ca-key.pem")]
    OtherCopy,
    #[error("the file is no identity of a node")]
    NotANode,
    #[error("the file is no identity of a scheduler")]
    NotAScheduler,
    #[error("the file is no operator's identity")]
    NotAnOperator,
    #[error(
        "the key is none of ECDSA with P-256, which statements to a whole link are signed with"
    )]
    NotP256,
    #[error("the node has joined fabric {0}, whose CA is elsewhere")]
    Joined(FabricId),
    #[error("the first line is not `home FINGERPRINT former N`")]
    FirstLine,
    #[error(
        "the file has {found} certificates, and its first line says {count} former fabrics, of two each"
    )]
    Former { count: usize, found: usize },
    #[error("the certificate is of node {certificate}, and this node is {node}")]
    OtherNode { certificate: NodeId, node: NodeId },
    #[error("the certificate is not accepted: {0}")]
    NotAccepted(String),
    /// What it lacks.
    #[error("the second certificate is not of a CA: it has no {0}")]
    NotACa(&'static str),
    /// What it lacks.
    #[error("the last certificate is not of a CA: it has no {0}")]
    LastNotACa(&'static str),
    #[error("it belongs to user {owner}, and this process runs as user {us}")]
    Owner { owner: u32, us: u32 },
    #[error("others can {what} it (mode {mode:04o})")]
    Exposed { what: &'static str, mode: u32 },
    #[error("this is the state directory of a node")]
    StateDirectory,
    #[error("this is the directory of a fabric of many nodes")]
    FabricDirectory,
    #[error("there are other files in it")]
    NotEmpty,
    #[error("there is a fabric already")]
    Exists,
    #[error("the file is there already")]
    FileExists,
    #[error("the file is no certificate signing request (PEM, PKCS #10): {0}")]
    NotARequest(String),
}

/// Why a certificate cannot be read, or names no principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of a variant says what it is")]
pub enum BadCertificate {
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the certificate has bytes after its end")]
    Trailing,
    /// The part of the subject that is missing, or comes twice.
    #[error("the certificate names no tenant: {0} is not there exactly once")]
    NotOnce(&'static str),
    #[error("the certificate names no tenant: CN {0:?} is not a tenant's name")]
    NotATenant(String),
    #[error("the certificate names no tenant: O {0:?} is no role")]
    NotARole(String),
    #[error(transparent)]
    Label(#[from] BadLabel),
    #[error("none of the node's CAs has signed the certificate")]
    Signer,
}
