//! The command that connects a lease's namespace with a stock `nvme`.

use std::net::SocketAddr;

use fabricbios_wire::{NvmeofAddress, NvmeofBinding};
use zeroize::Zeroizing;

/// Seconds between two attempts of the kernel to connect again, where the lease leaves so many.
const RECONNECT_DELAY_SECS: u32 = 2;
/// Seconds of silence after which the kernel looks whether the node is still there.
const KEEP_ALIVE_SECS: u32 = 5;

/// The `nvme connect` line for the first address of a lease (`nvme` of nvme-cli 2.3 or later), ready for
/// a shell. It carries the host's secret: whoever shows it shows that. `None`: there is no address.
///
/// The kernel gives up after `ctrl_loss_secs`, so a namespace whose lease is over does not hang for the
/// ten minutes that are usual.
#[must_use]
pub fn connect_line(binding: &NvmeofBinding) -> Option<Zeroizing<String>> {
    let address = binding.addresses.first()?;
    let mut line = Line(Zeroizing::new("nvme connect".to_owned()));
    line.place(address);
    line.option("nqn", binding.subsystem.as_str());
    line.option("hostnqn", binding.host_nqn.as_str());
    line.option("hostid", &binding.host_id.to_string());
    line.option("dhchap-secret", binding.dhchap_secret.reveal());
    if let Some(secret) = &binding.dhchap_ctrl_secret {
        line.option("dhchap-ctrl-secret", secret.reveal());
    }
    let loss = binding.ctrl_loss_secs;
    line.option("ctrl-loss-tmo", &loss.to_string());
    line.option("reconnect-delay", &reconnect_delay(loss).to_string());
    line.option("keep-alive-tmo", &KEEP_ALIVE_SECS.to_string());
    Some(line.0)
}

/// The kernel takes no 0, and one that is as long as the whole patience would leave one attempt.
fn reconnect_delay(ctrl_loss_secs: u32) -> u32 {
    ctrl_loss_secs
        .saturating_sub(1)
        .clamp(1, RECONNECT_DELAY_SECS)
}

struct Line(Zeroizing<String>);

impl Line {
    fn place(&mut self, address: &NvmeofAddress) {
        let at = SocketAddr::from(address.endpoint);
        self.option("transport", address.transport.name());
        self.option("traddr", &at.ip().to_string());
        self.option("trsvcid", &at.port().to_string());
    }

    /// Names, keys and addresses are single words of a shell by their types: nothing has to be quoted.
    fn option(&mut self, name: &str, value: &str) {
        // Room at once, so that no shorter copy with a secret in it is left behind.
        let mut longer = String::with_capacity(self.0.len() + name.len() + value.len() + 4);
        for part in [self.0.as_str(), " --", name, " ", value] {
            longer.push_str(part);
        }
        self.0 = Zeroizing::new(longer);
    }
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
