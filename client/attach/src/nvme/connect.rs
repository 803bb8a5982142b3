//! Connects through `/dev/nvme-fabrics`, as nvme-cli does (`drivers/nvme/host/fabrics.c`): one line of
//! comma-separated options, one answer. No command line ever carries the secret.

use std::{
    borrow::Cow,
    fs::OpenOptions,
    io::{self, Read, Write},
    path::Path,
};

use fabricbios_client::connect_options;
use fabricbios_kernfs::load_module;
use fabricbios_wire::{NvmeofAddress, NvmeofBinding};
use nix::libc;
use zeroize::Zeroizing;

use super::host::NvmeHost;
use crate::error::AttachError;

/// Whether there may be other connections to the same subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherConnections {
    /// The kernel refuses a second connection.
    Refused,
    /// All connections are paths to one device.
    Allowed,
}

/// Connects to one address. Blocks until the controller is live or the kernel gives up.
///
/// # Errors
/// [`AttachError::NoDriver`] if this machine has no driver for the transport, else [`AttachError::NotConnected`].
fn connect(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    address: &NvmeofAddress,
    others: OtherConnections,
) -> Result<(), AttachError> {
    let path = host.dev.join("nvme-fabrics");
    // The kernel loads the module of a transport by itself only once the fabrics module is there.
    let module = format!("nvme-{}", address.transport);
    let loaded = load_module(&module);
    let lacks = |what: &Path, loaded| {
        let kind = format!("NVMe-oF host over {}", address.transport);
        let place = what.display().to_string();
        AttachError::no_driver(&kind, &place, &module, loaded, "use a lease over UDP")
    };
    if !path.exists() {
        return Err(lacks(&path, loaded));
    }
    submit(&path, &options(binding, address, others)).map_err(|error| match loaded {
        // The answer of the kernel to a transport without a driver.
        Err(why) if error.raw_os_error() == Some(libc::EINVAL) => lacks(
            &Path::new("/sys/module").join(module.replace('-', "_")),
            Err(why),
        ),
        _ => AttachError::NotConnected(format!(
            "{} at {} did not connect: {error}{}",
            address.transport,
            address.endpoint,
            hint(&error)
        )),
    })
}

/// Connects to the first address that works, the best first.
pub(crate) fn connect_to_one(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
    others: OtherConnections,
) -> Result<(), AttachError> {
    let (mut reasons, mut has_driver) = (Vec::new(), false);
    for address in addresses {
        match connect(host, binding, address, others) {
            Ok(()) => return Ok(()),
            Err(error) => {
                has_driver |= !matches!(error, AttachError::NoDriver(_));
                reasons.push(error.to_string());
            }
        }
    }
    let reasons = reasons.join("; ");
    match has_driver {
        true => Err(AttachError::NotConnected(reasons)),
        false => Err(AttachError::NoDriver(reasons)),
    }
}

fn submit(path: &Path, options: &str) -> io::Result<()> {
    let mut device = OpenOptions::new().read(true).write(true).open(path)?;
    // In one write: the driver takes each write as a complete request.
    device.write_all(options.as_bytes())?;
    let mut answer = String::new();
    device.read_to_string(&mut answer)?;
    match answer.contains("instance=") {
        true => Ok(()),
        false => Err(io::Error::other(format!("the kernel answered {answer:?}"))),
    }
}

/// The line for the driver; with `duplicate_connect` it connects a second time.
fn options(
    binding: &NvmeofBinding,
    address: &NvmeofAddress,
    others: OtherConnections,
) -> Zeroizing<String> {
    let mut parts: Vec<Cow<'_, str>> = match others {
        OtherConnections::Refused => Vec::new(),
        OtherConnections::Allowed => vec!["duplicate_connect".into()],
    };
    for (name, value) in connect_options(binding, address) {
        let separator = if parts.is_empty() { "" } else { "," };
        parts.extend([separator.into(), name.into(), "=".into(), value]);
    }
    // In one allocation, so that no shorter copy with a secret in it is left behind.
    Zeroizing::new(parts.concat())
}

/// A hint about an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "; run this as root",
        Some(libc::EKEYREJECTED) => {
            "; the node has another key by now: see `fabricctl lease query`"
        }
        Some(libc::ENOKEY | libc::EOPNOTSUPP) => "; the node and this kernel agree on no key",
        Some(libc::EALREADY) => "; this machine is connected to the lease already",
        Some(libc::EINVAL) => {
            "; the kernel's log says which option the kernel did not take: connecting needs DH-HMAC-CHAP \
             (CONFIG_NVME_HOST_AUTH), and one host identifier for each host NQN"
        }
        Some(libc::ECONNREFUSED | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "; is the node's port reachable from this machine?"
        }
        _ => "; see the kernel's log",
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use fabricbios_wire::{DhchapSecret, HostId, NvmeofTransport};

    use super::*;

    fn binding(ctrl_secret: Option<&str>) -> NvmeofBinding {
        let place: SocketAddr = "[2001:db8::7]:4420".parse().unwrap();
        NvmeofBinding {
            addresses: vec![NvmeofAddress {
                transport: NvmeofTransport::Tcp,
                endpoint: place.into(),
            }],
            subsystem: "nqn.2025-01.io.example:lease".parse().unwrap(),
            nsid: 1,
            host_nqn: "nqn.2025-01.io.example:host".parse().unwrap(),
            host_id: HostId::new([7; 16]).unwrap(),
            dhchap_secret: DhchapSecret::new("DHHC-1:00:AAEC=:").unwrap(),
            dhchap_ctrl_secret: ctrl_secret.and_then(DhchapSecret::new),
            ctrl_loss_secs: 5,
            block_bytes: 512,
        }
    }

    #[test]
    fn the_line_for_the_kernel_has_every_option() {
        let binding = binding(Some("DHHC-1:01:BBEC:"));
        let line = options(&binding, &binding.addresses[0], OtherConnections::Refused);
        let expected = "transport=tcp,traddr=2001:db8::7,trsvcid=4420,nqn=nqn.2025-01.io.example:lease,\
            hostnqn=nqn.2025-01.io.example:host,hostid=07070707-0707-0707-0707-070707070707,\
            dhchap_secret=DHHC-1:00:AAEC=:,dhchap_ctrl_secret=DHHC-1:01:BBEC:,ctrl_loss_tmo=5,\
            reconnect_delay=2,keep_alive_tmo=5";
        assert_eq!(*line, expected);
        let line = options(&binding, &binding.addresses[0], OtherConnections::Allowed);
        assert_eq!(*line, format!("duplicate_connect,{expected}"));
    }

    #[test]
    fn an_error_names_the_place_and_never_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let host = NvmeHost {
            sys: fabricbios_kernfs::Tree::new(dir.path()),
            dev: dir.path().to_owned(),
        };
        // Accepts everything and answers nothing, unlike any driver.
        std::fs::write(dir.path().join("nvme-fabrics"), "").unwrap();
        let binding = binding(None);
        let error = connect(
            &host,
            &binding,
            &binding.addresses[0],
            OtherConnections::Refused,
        )
        .unwrap_err();
        let AttachError::NotConnected(why) = error else {
            panic!("{error:?}")
        };
        assert!(why.contains("tcp at [2001:db8::7]:4420"), "{why}");
        assert!(!why.contains("DHHC"), "{why}");
    }
}
