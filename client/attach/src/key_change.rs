//! A pending change of the keys of a connection. The block daemon goes on meanwhile. A device is not detached before the
//! change is over, since a connection that is being made is not listed by the kernel yet.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use fabricbios_wire::LeaseInfo;

use crate::{device::AttachedDevice, error::AttachError, log::log};

/// At most one change of keys at a time.
#[derive(Debug, Default)]
pub(crate) struct KeyChange {
    pending: Option<Receiver<Result<(), AttachError>>>,
    /// The last failure, so that the log has it only once.
    last_failure: String,
}

impl KeyChange {
    /// Begins a change if the keys of the lease and of the device differ.
    pub(crate) fn follow(&mut self, device: &AttachedDevice, info: &LeaseInfo) {
        if self.is_pending() {
            return;
        }
        match device.change_keys(info) {
            Ok(None) => {}
            Ok(begun) => {
                log("the lease has new keys: making another connection, with the new keys");
                self.pending = begun;
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Whether a change is pending. The result of a finished one is in the log.
    pub(crate) fn is_pending(&mut self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for the end of a pending change; returns whether it is still pending.
    pub(crate) fn wait(&mut self, within: Duration) -> bool {
        let Some(result) = &self.pending else {
            return false;
        };
        match result.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => {}
            Ok(Ok(())) => {
                log("connected with the new keys, and ended the old connection");
                self.last_failure.clear();
            }
            Ok(Err(error)) => self.failed(&error),
        }
        self.pending = None;
        false
    }

    fn failed(&mut self, error: &AttachError) {
        let why = error.to_string();
        if self.last_failure != why {
            log(&format!(
                "not connected with the lease's new keys: once the connection is lost, it does not come back: {why}"
            ));
            self.last_failure = why;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_change_is_pending_until_its_result_comes() {
        let mut change = KeyChange::default();
        assert!(!change.is_pending());
        for end in [Ok(()), Err(AttachError::NotConnected("refused".into()))] {
            let (sender, result) = mpsc::channel();
            change.pending = Some(result);
            assert!(change.is_pending() && change.wait(Duration::from_millis(1)));
            let failed = end.is_err();
            sender.send(end).unwrap();
            assert!(!change.wait(Duration::from_secs(60)) && !change.is_pending());
            assert_eq!(
                change.last_failure.as_str(),
                if failed { "refused" } else { "" }
            );
        }
    }

    #[test]
    fn a_thread_that_is_gone_is_waited_for_no_longer() {
        let mut change = KeyChange {
            pending: Some(mpsc::channel().1),
            ..KeyChange::default()
        };
        assert!(!change.wait(Duration::from_secs(60)));
    }
}
