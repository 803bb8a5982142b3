//! Messages to the service manager, systemd or another one: sd_notify(3). Without NOTIFY_SOCKET nobody is told.

use std::{
    env, fmt, io,
    net::SocketAddr,
    os::{linux::net::SocketAddrExt, unix::net},
    process,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval},
};

use crate::driver::{Input, mailbox::Sender};

/// How long one step of the start may take: large memory is cleared, and pools of many disks are opened.
const STEP: Duration = Duration::from_secs(600);

/// How long a message may wait for a service manager that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A step of the start begins: the start may take [`STEP`] from now on.
pub(crate) fn starts(step: impl fmt::Display) {
    let micros = STEP.as_micros();
    notify(&format!(
        "STATUS=starting: {step}\nEXTEND_TIMEOUT_USEC={micros}"
    ));
}

/// Most characters of a reason in a status: systemd drops a message of more than 4096 bytes.
const WHY_CHARS_MAX: usize = 500;

/// Clients are served. `refused`: why the last reading of the configuration was refused.
pub(crate) fn ready(listen: SocketAddr, refused: Option<&str>) {
    let refused = refused.map_or_else(String::new, |why| {
        let lines = why.chars().take(WHY_CHARS_MAX);
        let why: String = lines.map(|it| if it == '\n' { ' ' } else { it }).collect();
        format!("; the last reload was refused: {why}")
    });
    notify(&format!(
        "READY=1\nSTATUS=serves clients on {listen}{refused}"
    ));
}

/// The daemon stops.
pub(crate) fn stopping() {
    notify("STOPPING=1");
}

/// The daemon reads its configuration again. Type=notify-reload needs the time, and [`ready`] afterwards.
pub(crate) fn reloading() {
    // Every kernel has CLOCK_MONOTONIC, and the call cannot fail otherwise.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    let micros = now.as_micros();
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Tells a service manager that asks for it (WatchdogSec= of systemd) that the daemon lives, as long as the driver
/// answers: without the driver no lease is granted, renewed or cut by the daemon.
pub(crate) async fn tell_life(driver: Sender<Input>) {
    let [micros, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(|name| env::var(name).ok());
    if let Some(patience) = patience(micros.as_deref(), pid.as_deref(), process::id()) {
        let mut ticks = interval(patience / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while tell_answer(&driver, || notify("WATCHDOG=1")).await {
            ticks.tick().await;
        }
    }
}

/// How long the service manager waits for the next message. `None`: it does not expect any of this process.
fn patience(micros: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own_pid));
    let micros = micros?
        .parse()
        .ok()
        .filter(|micros| *micros > 0 && is_meant);
    micros.map(Duration::from_micros)
}

/// Asks the driver, and calls `tell` when it answers. `false`: it has stopped.
async fn tell_answer(driver: &Sender<Input>, tell: impl FnOnce()) -> bool {
    let (reply, answer) = oneshot::channel();
    driver.notify(Input::Alive(reply));
    let is_alive = answer.await.is_ok();
    if is_alive {
        tell();
    }
    is_alive
}

fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(path.as_encoded_bytes(), state) {
        tracing::warn!(%error, ?path, "cannot notify the service manager");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let socket = net::UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    let address = match path.strip_prefix(b"@") {
        Some(name) => net::SocketAddr::from_abstract_name(name)?,
        None => net::SocketAddr::from_pathname(String::from_utf8_lossy(path).as_ref())?,
    };
    socket
        .send_to_addr(state.as_bytes(), &address)
        .map(|_bytes| ())
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::driver::mailbox::Mailbox;

    #[test]
    fn only_the_process_that_is_watched_tells_that_it_lives() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(patience(Some("1000000"), None, 7), second);
        assert_eq!(patience(Some("1000000"), Some("7"), 7), second);
        for (micros, pid) in [
            (None, Some("7")),
            (Some("1000000"), Some("8")),
            (Some("1000000"), Some("")),
            (Some("0"), Some("7")),
            (Some("-1"), Some("7")),
            (Some("soon"), Some("7")),
        ] {
            assert_eq!(patience(micros, pid, 7), None, "{micros:?} {pid:?}");
        }
    }

    #[tokio::test]
    async fn a_driver_that_hangs_is_not_told_to_live_until_it_goes_on() {
        let (mailbox, sender) = Mailbox::woken_by(|| ());
        let told = Cell::new(0);
        let mut context = Context::from_waker(Waker::noop());
        let mut telling = pin!(tell_answer(&sender, || told.set(told.get() + 1)));
        assert_eq!(telling.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(told.get(), 0);
        let Some(Input::Alive(reply)) = mailbox.take_notice() else {
            panic!("the driver is not asked");
        };
        // It has taken the question, and is stuck.
        assert_eq!(telling.as_mut().poll(&mut context), Poll::Pending);
        assert!(told.get() == 0 && mailbox.is_empty());
        reply.send(()).unwrap();
        assert_eq!(telling.as_mut().poll(&mut context), Poll::Ready(true));
        assert_eq!(told.get(), 1);
        drop(mailbox);
        let stopped = tell_answer(&sender, || panic!("it has stopped"));
        assert!(!stopped.await);
    }
}
