//! What a service manager hears of the daemon, in the place of systemd.

use std::os::unix::net::UnixDatagram;

use nix::sys::signal::{Signal, kill};

use crate::daemon::*;

/// The socket of a service manager.
pub(crate) struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    pub(crate) fn of(place: &Place) -> Self {
        let socket = UnixDatagram::bind(place.at("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    /// A daemon that tells this manager.
    pub(crate) fn start(&self, place: &Place, words: &[String]) -> Daemon {
        let mut command = place.command(words);
        command.env("NOTIFY_SOCKET", place.at("notify"));
        let daemon = place.begin(command, place.new_log());
        self.hears("READY=1");
        daemon
    }

    pub(crate) fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next message with this line in it.
    pub(crate) fn hears(&self, line: &str) -> String {
        loop {
            let message = self.next();
            if message.lines().any(|it| it == line) {
                return message;
            }
        }
    }

    /// Waits until one reading of the configuration is over. Returns the address of the status, and what follows it.
    pub(crate) fn hears_reload(&self) -> String {
        let begins = self.hears("RELOADING=1");
        let (_, time) = begins.split_once("\nMONOTONIC_USEC=").expect("a time");
        assert!(time.parse::<u64>().unwrap() > 0);
        let ready = self.next();
        let status = ready.strip_prefix("READY=1\nSTATUS=serves clients on ");
        status.expect("a status").to_owned()
    }
}

#[test]
fn a_start_tells_its_steps_and_a_daemon_that_it_lives_until_it_stops() {
    let place = Place::new();
    let manager = Manager::of(&place);
    let mut command = place.command(&place.memory());
    command
        .env("NOTIFY_SOCKET", place.at("notify"))
        .env("WATCHDOG_USEC", "20000");
    let daemon = place.begin(command, place.new_log());
    let mut steps = Vec::new();
    let ready = loop {
        match manager.next() {
            ready if ready.starts_with("READY=1\n") => break ready,
            step => steps.push(step),
        }
    };
    for step in &steps {
        let extends = step.contains("\nEXTEND_TIMEOUT_USEC=");
        assert!(step.starts_with("STATUS=starting: ") && extends, "{step}");
    }
    let steps = steps.concat();
    for word in ["the journal", "opening mem", "opening cpu", "the last run"] {
        assert!(steps.contains(word), "{word}: {steps}");
    }
    assert!(ready.contains(&daemon.address), "{ready}");
    for _ in 0..5 {
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    kill(daemon.pid(), Signal::SIGTERM).unwrap();
    manager.hears("STOPPING=1");
}

#[test]
fn a_watchdog_of_another_process_hears_nothing() {
    let place = Place::new();
    let manager = Manager::of(&place);
    let mut command = place.command(&[]);
    command
        .env("NOTIFY_SOCKET", place.at("notify"))
        .envs([("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")]);
    let daemon = place.begin(command, place.new_log());
    manager.hears(&format!("STATUS=serves clients on {}", daemon.address));
    assert!(daemon.end(Signal::SIGTERM).success());
    assert_eq!(manager.next(), "STOPPING=1");
}
