//! A change of the keys of a connection while it is under way: the keeper goes on meanwhile, and a device does not
//! go before it is over, since a connection that is being made is not listed yet.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use fabricbios_wire::LeaseInfo;

use super::{device::Device, log::log};
use crate::failure::Failure;

/// At most one at a time.
#[derive(Default)]
pub(super) struct KeyChange {
    under_way: Option<Receiver<Result<(), Failure>>>,
    /// Said once, as long as it stays the same.
    trouble: String,
}

impl KeyChange {
    /// Begins one where the lease has other keys than the device.
    pub(super) fn follow(&mut self, device: &Device, info: &LeaseInfo) {
        if self.is_under_way() {
            return;
        }
        match device.change_keys(info) {
            Ok(None) => {}
            Ok(begun) => {
                log("the lease has new keys; connecting once more, with them");
                self.under_way = begun;
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// Whether one is not over yet; what came of one that is, is in the log.
    pub(super) fn is_under_way(&mut self) -> bool {
        self.settle(Duration::ZERO)
    }

    /// Waits for its end; whether it is not over even then.
    pub(super) fn settle(&mut self, within: Duration) -> bool {
        let Some(told) = &self.under_way else {
            return false;
        };
        match told.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => {}
            Ok(Ok(())) => {
                log("connected with the new keys, and the connection before is ended");
                self.trouble.clear();
            }
            Ok(Err(failure)) => self.failed(&failure),
        }
        self.under_way = None;
        false
    }

    fn failed(&mut self, failure: &Failure) {
        if self.trouble != failure.message() {
            failure.message().clone_into(&mut self.trouble);
            let why = &self.trouble;
            log(&format!(
                "not connected with the lease's new keys, without which a connection that is lost does not come back: {why}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{super::device::local, *};

    #[test]
    fn it_is_under_way_until_its_end_is_told() {
        let mut change = KeyChange::default();
        assert!(!change.is_under_way());
        for end in [Ok(()), Err(local("refused".to_owned()))] {
            let (tell, told) = mpsc::channel();
            change.under_way = Some(told);
            assert!(change.is_under_way() && change.settle(Duration::from_millis(1)));
            let failed = end.is_err();
            tell.send(end).unwrap();
            assert!(!change.settle(Duration::from_secs(60)) && !change.is_under_way());
            assert_eq!(change.trouble.as_str(), if failed { "refused" } else { "" });
        }
    }

    #[test]
    fn a_thread_that_is_gone_is_waited_for_no_longer() {
        let mut change = KeyChange {
            under_way: Some(mpsc::channel().1),
            ..KeyChange::default()
        };
        assert!(!change.settle(Duration::from_secs(60)));
    }
}
