//! Waits for the kernel: for a device that it makes or removes, for descriptors, for a call that may hang.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
    },
};

/// The messages of the kernel itself, not those that udev sends on (linux/netlink.h, `lib/kobject_uevent.c`).
const KERNEL_GROUP: u32 = 1;
/// Pause between two looks without a message: containers get no messages, and a full socket loses some.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Calls `look` now and at each message of the kernel, until it finds something or `within` is over.
pub(crate) fn wait_for<T, E>(
    within: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // Before the first look, so that no later message is missed.
    let messages = listen().ok();
    let until = Instant::now() + within;
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        wait(messages.as_ref(), left.min(LOOK_AGAIN));
    }
}

/// The result of `work` on another thread, which may hang; `None`: there is no result in time.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (result, received) = mpsc::channel();
    thread::spawn(move || result.send(work()));
    received.recv_timeout(limit).ok()
}

/// Waits until one of the descriptors is readable, or a signal came.
pub(crate) fn poll_for(sources: &[BorrowedFd<'_>], at_most: Duration) {
    let mut sources: Vec<_> = sources
        .iter()
        .map(|source| PollFd::new(*source, PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    poll(&mut sources, timeout).ok();
}

fn listen() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let messages = socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        flags,
        SockProtocol::NetlinkKObjectUEvent,
    )?;
    bind(messages.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
    Ok(messages)
}

/// Waits for any message; the caller then looks itself.
fn wait(messages: Option<&OwnedFd>, at_most: Duration) {
    let sources: Vec<_> = messages.iter().map(|fd| fd.as_fd()).collect();
    poll_for(&sources, at_most);
    let mut message = [0; 8_192];
    while let Some(fd) = messages {
        if recv(fd.as_raw_fd(), &mut message, MsgFlags::empty()).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_and_what_never_comes_is_not_waited_for_longer_than_said() {
        let found: Result<_, ()> = wait_for(Duration::ZERO, || Ok(Some(7)));
        assert_eq!(found, Ok(Some(7)));
        let never: Result<Option<u8>, ()> = wait_for(Duration::from_millis(1), || Ok(None));
        assert_eq!(never, Ok(None));
        let mut looks = 0;
        let second = wait_for(Duration::from_secs(60), || {
            looks += 1;
            Ok::<_, ()>((looks == 2).then_some(looks))
        });
        assert_eq!(second, Ok(Some(2)));
        assert_eq!(
            wait_for(Duration::ZERO, || Err::<Option<u8>, _>("why")),
            Err("why")
        );
    }
}
