//! The operator's settings: flags, then the configuration file, then defaults.

mod at_sighup;
mod cli;
mod conflicts;
mod file;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum, parser::ValueSource};
use fabricbios_log::LogFormat;
use tracing_subscriber::EnvFilter;

use crate::kinds::settings::{
    Conflict, KindSettings,
    values::{self, BadValue},
};

pub(crate) use at_sighup::Difference;
pub use at_sighup::{AT_SIGHUP, Given};
pub use cli::{CdiHook, Cli, Command, NodeAccept, NodeRequest, RenewCa};
pub use file::{EntryFault, FileFault};

/// Flags, in the order of `--help`, each of which may also stand in the configuration file under the same name.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// TOML file with any of these settings; flags override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The settings of the kinds.
    #[command(flatten)]
    pub kinds: KindSettings,

    /// Directory of a fabric of many nodes on this machine, made by `fabricctl fabric init`: this start has the node
    /// certified by its CA. The node does not keep the CA's key [default: the node has a fabric of its own, or that which it
    /// has joined].
    #[arg(long, value_name = "DIR")]
    pub fabric_dir: Option<PathBuf>,

    /// A scheduler of the node's fabric, which the node tells what it has, as HOST:PORT or ADDR:PORT; may repeat [default: none].
    #[arg(long, value_name = "HOST:PORT", value_parser = scheduler)]
    pub scheduler: Vec<String>,

    /// An interface on whose link the node looks for schedulers of its fabric that announce themselves, in the place of
    /// `scheduler`; may repeat [default: none].
    #[arg(long, value_name = "IFACE", value_parser = interface)]
    pub discover: Vec<String>,

    /// An interface on whose link the node announces itself, the resources on offer and what is available, to its fabric, so that
    /// `fabricctl discover` finds it (UDP 5705, multicast); not encrypted: anybody on the link can read its certificate with
    /// the labels, the ids of resources, and what is available, some seconds late; may repeat [default: none].
    #[arg(long, value_name = "IFACE", value_parser = interface)]
    pub announce: Vec<String>,

    /// Where the node serves a page, /metrics, /healthz and /readyz over HTTP, as ADDR:PORT, to anybody who reaches it: they tell the
    /// names of resources and counts, no tenant and no lease [default: nowhere].
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::http_listen)]
    pub metrics_listen: Option<SocketAddr>,

    /// With it `metrics-listen` speaks HTTPS, and only with clients that have a certificate: one PEM file of mode 0600 with the
    /// port's certificate and its chain, its key, and last the certificate of the CA of the clients [default: no TLS].
    #[arg(long, value_name = "FILE")]
    pub metrics_identity: Option<PathBuf>,

    /// What endpoints say when the node listens on a wildcard [default: the address that the client
    /// reached].
    #[arg(long, value_name = "IP", value_parser = advertise)]
    pub advertise: Option<IpAddr>,

    /// Most connections to the control plane; from half of it on, and for an address from half of its own bound
    /// on, newcomers show first that their address is theirs (QUIC Retry). Operators have an eighth more, of this and
    /// of the next [default: 4096].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 4096))]
    pub connections_max: Option<u32>,

    /// Of those from one IPv4 address or one IPv6 /64; one tenant has at most half of them [default: 512].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 512))]
    pub connections_per_source_max: Option<u32>,

    /// Of those with certificates of one tenant [default: 1024].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 1024))]
    pub connections_per_tenant_max: Option<u32>,

    /// Longest term of a lease, seconds [default: 3600].
    #[arg(long, value_name = "SECS", value_parser = values::number(1..=u32::MAX, 3600))]
    pub lease_secs_max: Option<u32>,

    /// Longest grace time of a lease, seconds [default: 3600].
    #[arg(long, value_name = "SECS", value_parser = values::number(0..=u32::MAX, 3600))]
    pub grace_secs_max: Option<u32>,

    /// Most leases of one tenant; those that are over do not count [default: 16384].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 16_384))]
    pub leases_per_tenant_max: Option<u32>,

    /// Most queue pairs of the node in the leases of one tenant over RDMA; a lease has one at least [default: 16384].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 16_384))]
    pub queue_pairs_per_tenant_max: Option<u32>,

    /// Most requests of one tenant in a second; 0 for any number. Operators have no such bound [default: 20000].
    #[arg(long, value_name = "N", value_parser = values::number(0..=u32::MAX, 20_000))]
    pub requests_per_tenant_max: Option<u32>,

    /// A cut that is not proved within this time after it began fences the resource; of cuts over NVMe-oF, which
    /// wait for each other in the kernel, one where none has moved for so long. One that has not begun ten times
    /// as long after the lease ended fences too [default: 1000].
    #[arg(long, value_name = "MS", value_parser = values::number(10..=60_000, 1000))]
    pub cut_within_ms: Option<u32>,

    /// What SIGTERM and SIGINT do with leases. `end`: each is cut and over. `keep`: each that would outlive a crash of the
    /// daemon stays, and the next start adopts it [default: end].
    #[arg(long, value_enum)]
    pub on_stop: Option<OnStop>,

    /// How lines of the log are written. `text`: fields as name=value; `json`: one object a line [default: text].
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Which lines the log has: error, warn, info, debug or trace, and TARGET=LEVEL for parts, with commas between them
    /// [default: RUST_LOG, else info].
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    pub log_level: Option<String>,

    /// The settings that are given, as text.
    #[arg(skip)]
    pub given: Given,

    /// For each setting in the configuration file, by its name: the number of its line.
    #[arg(skip)]
    pub lines: BTreeMap<String, usize>,
}

/// What a stop of the daemon does with leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnStop {
    /// Each is cut and over.
    #[default]
    End,
    /// Each that would outlive a crash of the daemon stays.
    Keep,
}

/// Reads the level of the log. A word that is no level would be the name of a part.
fn log_level(text: &str) -> Result<String, BadValue> {
    let is_level = |word| ["off", "error", "warn", "info", "debug", "trace"].contains(&word);
    let mut parts = text.split(',');
    let are_levels = parts.all(|it| is_level(it.rsplit_once('=').map_or(it, |(_, level)| level)));
    match are_levels && EnvFilter::try_new(text).is_ok() {
        true => Ok(text.to_owned()),
        false => Err(BadValue::Form(
            "error, warn, info, debug, trace, or TARGET=LEVEL is expected",
            "info,fabricbios_node::journal=debug",
        )),
    }
}

/// Reads host and port of a scheduler.
fn scheduler(text: &str) -> Result<String, BadValue> {
    let bad = |why| Err(BadValue::Form(why, "192.0.2.10:5704"));
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<NonZeroU16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => bad("a host and a port are expected"),
    }
}

/// Reads the name of a network interface: the kernel takes 1 to 15 bytes.
fn interface(text: &str) -> Result<String, BadValue> {
    let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    match (1..=15).contains(&text.len()) && text.bytes().all(is_name) {
        true => Ok(text.to_owned()),
        false => Err(BadValue::Form(
            "the name of an interface is expected",
            "eth0",
        )),
    }
}

/// Reads an address that clients can reach.
fn advertise(text: &str) -> Result<IpAddr, BadValue> {
    let bad = |why| Err(BadValue::Form(why, "192.0.2.10"));
    match text.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => bad("nobody can dial a wildcard; give an address"),
        Ok(ip) => Ok(ip),
        Err(_no_address) => bad("an IP address is expected"),
    }
}

/// Settings are refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be used: each of its faults.
    #[error("configuration file {path}: {}", listed(faults))]
    File {
        /// Its path.
        path: PathBuf,
        /// The faults, in the order of the lines.
        faults: Vec<FileFault>,
    },
    /// The flags are no settings.
    #[error(transparent)]
    Flags(#[from] clap::Error),
    /// Settings of file and flags contradict each other.
    #[error("{}", listed(.0))]
    Conflicts(Vec<Conflict>),
}

fn listed(all: &[impl fmt::Display]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join("; ")
}

impl ConfigError {
    /// Splits the error into one error for each reason.
    pub(crate) fn each(self) -> Vec<Self> {
        match self {
            Self::File { path, faults } => {
                let alone = |fault| Self::File {
                    path: path.clone(),
                    faults: vec![fault],
                };
                faults.into_iter().map(alone).collect()
            }
            Self::Flags(_) => vec![self],
            Self::Conflicts(all) => {
                let alone = |one| Self::Conflicts(vec![one]);
                all.into_iter().map(alone).collect()
            }
        }
    }
}

impl Settings {
    /// The flags of a subcommand that takes settings, merged over the configuration file that the flags name.
    ///
    /// # Errors
    /// The file cannot be read or has bad lines, or settings contradict each other.
    pub fn read(flags: &ArgMatches) -> Result<Self, ConfigError> {
        let mut settings = Self::from_arg_matches(flags)?;
        settings.given = Given::of(flags);
        if let Some(path) = settings.config.take() {
            let file = file::read(&path)?;
            let is_listed = file.kinds.shared.auto_detect;
            settings = file;
            settings.given.overridden_by(Given::of(flags));
            settings.update_from_arg_matches(flags)?;
            // Without the flag its value is `false`, although the operator did not set it.
            settings.kinds.shared.auto_detect |= is_listed;
            for argument in Self::arguments().get_arguments() {
                let id = argument.get_id().as_str();
                if flags.value_source(id) == Some(ValueSource::CommandLine) {
                    argument.get_long().map(|it| settings.lines.remove(it));
                }
            }
        }
        match conflicts::of(&settings) {
            none if none.is_empty() => Ok(settings),
            conflicts => Err(ConfigError::Conflicts(conflicts)),
        }
    }

    /// All settings as arguments of a command line. Values of every source are parsed by these arguments.
    fn arguments() -> clap::Command {
        let command = clap::Command::new("settings").no_binary_name(true);
        Self::augment_args(command).disable_help_flag(true)
    }

    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.kinds.shared.state_dir()
    }

    /// The listen address of the control plane.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.kinds.shared.listen()
    }
}

#[cfg(test)]
mod tests;
