//! Who belongs to a fabric: one certificate authority, and the certificates that it signs for nodes, schedulers,
//! operators and tenants.
//!
//! A node that starts alone has an authority of its own ([`Fabric::open_or_create`]). A node that has joined a fabric of
//! many nodes has a certificate and no authority ([`Fabric::accept`]): the key of that authority stays in the directory
//! of the fabric ([`FabricDirectory`]).
//!
//! Never here: a connection, or a decision about a lease.
//!
//! Read first: `subject.rs`, what a certificate says.
#![forbid(unsafe_code)]

mod ca;
mod certified;
mod directory;
mod durable;
mod error;
mod file;
mod label;
mod node;
mod pem;
mod private;
mod statement;
mod subject;
mod tls;

pub use ca::{Ca, DEFAULT_VALIDITY, NODE_DNS_NAME};
pub use certified::{Certified, FabricId, is_tenant_key, tenant_key};
pub use directory::{FabricDirectory, Member, Signed};
pub use error::{BadCertificate, FileProblem, IdentityError};
pub use file::read_text;
pub use label::{BadLabel, Label};
pub use node::{Accepted, Fabric, NodeKey};
pub use private::read_key;
pub use statement::{Verified, Verifier};
pub use subject::{Peer, Principal, Subject};
pub use tls::PortTls;
