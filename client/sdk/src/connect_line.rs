//! The options that connect a lease's namespace, and the command that does so with a stock `nvme`.

use std::{borrow::Cow, net::SocketAddr};

use fabricbios_wire::{NvmeofAddress, NvmeofBinding};
use zeroize::Zeroizing;

/// Seconds between two attempts of the kernel to connect again; fewer if `ctrl_loss_secs` is short.
const RECONNECT_DELAY_SECS: u32 = 2;
/// Seconds of silence after which the kernel sends a keep-alive.
const KEEP_ALIVE_SECS: u32 = 5;

/// The options of a connection to `address`, with the names of the kernel driver
/// (`drivers/nvme/host/fabrics.c`). Two of them are secrets.
///
/// The kernel gives up after `ctrl_loss_secs`, so a namespace does not hang for ten minutes, the default of the
/// kernel, after its lease has ended.
#[must_use]
pub fn connect_options<'a>(
    binding: &'a NvmeofBinding,
    address: &NvmeofAddress,
) -> Vec<(&'static str, Cow<'a, str>)> {
    let at = SocketAddr::from(address.endpoint);
    let loss = binding.ctrl_loss_secs;
    let mut options: Vec<(_, Cow<'a, str>)> = vec![
        ("transport", address.transport.name().into()),
        ("traddr", at.ip().to_string().into()),
        ("trsvcid", at.port().to_string().into()),
        ("nqn", binding.subsystem.as_str().into()),
        ("hostnqn", binding.host_nqn.as_str().into()),
        ("hostid", binding.host_id.to_string().into()),
        ("dhchap_secret", binding.dhchap_secret.reveal().into()),
    ];
    if let Some(secret) = &binding.dhchap_ctrl_secret {
        options.push(("dhchap_ctrl_secret", secret.reveal().into()));
    }
    options.extend([
        ("ctrl_loss_tmo", loss.to_string().into()),
        ("reconnect_delay", reconnect_delay(loss).to_string().into()),
        ("keep_alive_tmo", KEEP_ALIVE_SECS.to_string().into()),
    ]);
    options
}

/// The `nvme connect` line for the first address of a lease (`nvme` of nvme-cli 2.3 or later), ready for
/// a shell. It contains the secret of the host. `None`: the lease has no address.
#[must_use]
pub fn connect_line(binding: &NvmeofBinding) -> Option<Zeroizing<String>> {
    let mut parts: Vec<Cow<'_, str>> = vec!["nvme connect".into()];
    for (name, value) in connect_options(binding, binding.addresses.first()?) {
        // Names, keys and addresses are single words of a shell by their types: nothing has to be quoted.
        parts.extend([
            " --".into(),
            name.replace('_', "-").into(),
            " ".into(),
            value,
        ]);
    }
    // In one allocation, so that no shorter copy with a secret in it is left behind.
    Some(Zeroizing::new(parts.concat()))
}

/// At least 1, which the kernel requires, and shorter than `ctrl_loss_secs`, so that there is more than one attempt.
fn reconnect_delay(ctrl_loss_secs: u32) -> u32 {
    ctrl_loss_secs
        .saturating_sub(1)
        .clamp(1, RECONNECT_DELAY_SECS)
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{DhchapSecret, HostId, NvmeofTransport};

    use super::*;

    fn binding() -> NvmeofBinding {
        let at: SocketAddr = "192.0.2.7:4420".parse().unwrap();
        NvmeofBinding {
            addresses: vec![NvmeofAddress {
                transport: NvmeofTransport::Tcp,
                endpoint: at.into(),
            }],
            subsystem: "nqn.2024-01.org.fabricbios:lease-7".parse().unwrap(),
            nsid: 1,
            host_nqn: "nqn.2024-01.org.fabricbios:host-7".parse().unwrap(),
            host_id: HostId([7; 16]),
            dhchap_secret: DhchapSecret::new("DHHC-1:00:c2VjcmV0+/=:").unwrap(),
            dhchap_ctrl_secret: None,
            ctrl_loss_secs: 5,
            block_bytes: 4096,
        }
    }

    fn line(binding: &NvmeofBinding) -> String {
        connect_line(binding).unwrap().to_string()
    }

    #[test]
    fn the_whole_line() {
        assert_eq!(
            line(&binding()),
            "nvme connect --transport tcp --traddr 192.0.2.7 --trsvcid 4420 \
             --nqn nqn.2024-01.org.fabricbios:lease-7 --hostnqn nqn.2024-01.org.fabricbios:host-7 \
             --hostid 07070707-0707-0707-0707-070707070707 --dhchap-secret DHHC-1:00:c2VjcmV0+/=: \
             --ctrl-loss-tmo 5 --reconnect-delay 2 --keep-alive-tmo 5"
        );
    }

    #[test]
    fn what_only_some_leases_have() {
        let at: SocketAddr = "[2001:db8::7]:4421".parse().unwrap();
        let mut binding = binding();
        binding.addresses[0].transport = NvmeofTransport::Rdma;
        binding.addresses[0].endpoint = at.into();
        binding.dhchap_ctrl_secret = DhchapSecret::new("DHHC-1:00:bXV0dWFs:");
        let line = line(&binding);
        assert!(line.contains("--transport rdma --traddr 2001:db8::7 --trsvcid 4421 "));
        assert!(line.contains("--dhchap-ctrl-secret DHHC-1:00:bXV0dWFs: --ctrl-loss-tmo"));
        binding.addresses.clear();
        assert!(connect_line(&binding).is_none());
    }

    #[test]
    fn the_kernel_tries_again_before_it_gives_up() {
        for (loss, delay) in [(600, 2), (3, 2), (2, 1), (1, 1), (0, 1)] {
            assert_eq!(reconnect_delay(loss), delay);
        }
    }
}
