//! `fabric …`: the directory of a fabric of many nodes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fabricbios_fabric::Label;

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum Fabric {
    /// Make a fabric: the key of its CA, and the identities of its first operator and its scheduler.
    ///
    /// Whoever has the directory signs the nodes of the fabric and its identities: keep it on the machine of an
    /// operator, with a backup. No node needs it.
    Init {
        /// The new directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Sign the request of a node (`fabricbiosd node-request`) or scheduler, and print the answer for `fabricbiosd
    /// node-accept`
    Sign(Sign),
    /// Make the identity of a further scheduler. Each scheduler of a fabric has one of its own.
    AddScheduler {
        /// The new file: certificate, key and the CA's certificate, of mode 0600
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The directory of the fabric
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Sign {
    /// The request, PKCS #10 as PEM; - reads it from standard input
    #[arg(value_name = "REQUEST")]
    pub(crate) request: PathBuf,
    /// What the certificate is for
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: MemberRole,
    /// A label of the node, KEY=VALUE such as rack=r7, which the node cannot change [repeatable: at most 8]
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<Label>,
    /// Validity in days; as long as the CA's if not given
    #[arg(long, value_name = "N", value_parser = values::number::<1, 36_500>)]
    pub(crate) days: Option<u32>,
    /// The directory of the fabric
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// The members that `fabric sign` certifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemberRole {
    Node,
    Scheduler,
}
