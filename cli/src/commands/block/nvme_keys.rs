//! The keys that the kernel has for a connection: with others it cannot connect again.

use fabricbios_kernfs::Error;
use fabricbios_wire::{DhchapSecret, NvmeofBinding};

use super::nvme_host::{CONTROLLERS, NvmeHost, Target, is_gone};

impl NvmeHost {
    /// Gives the connections to a target these secrets, where they have others: the kernel proves itself anew
    /// at once, and with them whenever it connects again (`drivers/nvme/host/sysfs.c`). Whether there was
    /// something to give.
    pub(super) fn follow_keys(
        &self,
        target: &Target,
        binding: &NvmeofBinding,
    ) -> Result<bool, Error> {
        let mut given = false;
        for name in self.controllers(target)? {
            let place = format!("{CONTROLLERS}/{name}");
            given |= self.give(&format!("{place}/dhchap_secret"), &binding.dhchap_secret)?;
            if let Some(secret) = &binding.dhchap_ctrl_secret {
                given |= self.give(&format!("{place}/dhchap_ctrl_secret"), secret)?;
            }
        }
        Ok(given)
    }

    /// Whether it had another one. A controller that has just gone needs none.
    fn give(&self, path: &str, secret: &DhchapSecret) -> Result<bool, Error> {
        let given = match self.sys.holds_secret(path, secret.reveal()) {
            Ok(true) => return Ok(false),
            Ok(false) => self.sys.write_secret(path, secret.reveal()),
            Err(error) => Err(error),
        };
        match given {
            Err(error) if is_gone(&error) => Ok(false),
            given => given.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fabricbios_wire::HostId;

    use super::{
        super::nvme_host::tests::{CONTROLLER, machine, target},
        *,
    };

    fn binding(secret: &str, ctrl_secret: Option<&str>) -> NvmeofBinding {
        NvmeofBinding {
            addresses: Vec::new(),
            subsystem: target().subnqn.parse().unwrap(),
            nsid: 1,
            host_nqn: target().hostnqn.parse().unwrap(),
            host_id: HostId::new([7; 16]).unwrap(),
            dhchap_secret: DhchapSecret::new(secret).unwrap(),
            dhchap_ctrl_secret: ctrl_secret.and_then(DhchapSecret::new),
            ctrl_loss_secs: 5,
            block_bytes: 512,
        }
    }

    #[test]
    fn new_keys_are_given_once_and_never_told() {
        let (old, new, ctrl) = ("DHHC-1:00:AAEC:", "DHHC-1:00:BBED:", "DHHC-1:00:CCEE:");
        let keys = [
            ("class/nvme/nvme3/dhchap_secret", "DHHC-1:00:AAEC:\n"),
            ("class/nvme/nvme3/dhchap_ctrl_secret", "none\n"),
        ];
        let (dir, host) = machine(&[&CONTROLLER[..], &keys[..]].concat());
        let held = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(!host.follow_keys(&target(), &binding(old, None)).unwrap());
        assert!(
            host.follow_keys(&target(), &binding(new, Some(ctrl)))
                .unwrap()
        );
        assert_eq!([held(keys[0].0), held(keys[1].0)], [new, ctrl]);
        assert!(
            !host
                .follow_keys(&target(), &binding(new, Some(ctrl)))
                .unwrap()
        );
        fs::remove_file(dir.path().join(keys[0].0)).unwrap();
        fs::create_dir(dir.path().join(keys[0].0)).unwrap();
        let error = host.follow_keys(&target(), &binding(old, None));
        let told = error.unwrap_err().to_string();
        assert!(
            told.contains("nvme3/dhchap_secret") && !told.contains("DHHC"),
            "{told}"
        );
    }
}
