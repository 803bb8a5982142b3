//! SIGHUP: reads the configuration file and the node's certificates again, and takes over what can change while leases
//! live.
//!
//! A thread of its own reads, one time after the other and not more often than `PAUSE`, so that neither a slow disk nor
//! many signals delay the driver.

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::Context;
use fabricbios_control::Membership;
use fabricbios_local::LocalServer;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    kinds::{Reread, local_socket},
    monitor,
    process::{
        membership::{self, Turn},
        service::Service,
        service_manager,
    },
    settings::{ConfigError, Difference, Given, OnStop, Settings},
};

/// Shortest time between two readings. Signals that come meanwhile are one.
const PAUSE: Duration = Duration::from_millis(200);
/// A reading that takes longer has a line in the log.
const SLOW: Duration = Duration::from_secs(10);
/// How long a stop waits for a reading.
const FINISH: Duration = Duration::from_secs(1);

/// Changes the level of the log; `None`: to that of the environment.
pub type SetLogLevel = Box<dyn Fn(Option<&str>) + Send>;

/// What a reload needs of the program.
pub struct Source {
    /// Reads the settings as the start did.
    pub read: Arc<dyn Fn() -> Result<Settings, ConfigError> + Send + Sync>,
    /// Changes the level of the log.
    pub set_log_level: SetLogLevel,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// The signal. Once this exists, SIGHUP does not end the process any more.
pub(crate) struct Hangups(Signal);

impl Hangups {
    /// Must be called within a tokio runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let hangups = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        Ok(Self(hangups))
    }
}

/// See the module.
pub(crate) struct Reloads {
    hangups: Hangups,
    source: Source,
    /// The settings of the start.
    started: Arc<Settings>,
    membership: Membership,
    pub(crate) turn: Turn,
    pub(crate) local_socket: Option<LocalServer>,
    /// What each kind takes over.
    pub(crate) kinds: Vec<Box<Reread>>,
    /// The certificates of the pages.
    pub(crate) pages: Option<Arc<monitor::Reread>>,
    /// What of the settings holds now.
    given: Given,
    on_stop: OnStop,
    not_before: Instant,
    /// The reading that is under way.
    reading: Option<JoinHandle<Read>>,
}

/// What was read: the settings, and whether the node and its pages have other certificates now.
type Read = (Result<Settings, ConfigError>, [anyhow::Result<bool>; 2]);
/// `Err`: the thread that read has panicked.
type Outcome = Result<Read, JoinError>;

impl Reloads {
    pub(crate) fn new(
        hangups: Hangups,
        source: Source,
        settings: &Settings,
        membership: &Membership,
    ) -> Self {
        Self {
            hangups,
            source,
            started: Arc::new(settings.clone()),
            membership: membership.clone(),
            turn: Turn::default(),
            local_socket: None,
            kinds: Vec::new(),
            pages: None,
            given: settings.given.clone(),
            on_stop: settings.on_stop.unwrap_or_default(),
            not_before: Instant::now(),
            reading: None,
        }
    }

    /// What a stop does with leases, as last read.
    pub(crate) fn on_stop(&self) -> OnStop {
        self.on_stop
    }

    /// The stop keeps leases, whatever the settings say.
    pub(crate) fn keep_leases(&mut self) {
        self.on_stop = OnStop::Keep;
    }

    /// Waits for the signal, and reads. If this is given up, the next call goes on with the same reading.
    pub(crate) async fn next(&mut self) -> Outcome {
        if self.reading.is_none() {
            sleep_until(self.not_before).await;
            self.hangups.0.recv().await;
            self.begin();
        }
        let Some(reading) = &mut self.reading else {
            return pending().await;
        };
        let outcome = match timeout(SLOW, &mut *reading).await {
            Ok(outcome) => outcome,
            Err(_slow) => {
                tracing::warn!(
                    "SIGHUP: the configuration file or the state directory does not answer; until then nothing changes"
                );
                reading.await
            }
        };
        self.reading = None;
        self.not_before = Instant::now() + PAUSE;
        outcome
    }

    /// Takes over what a signal before a stop has asked for, if it can be read in a moment.
    pub(crate) async fn finish(&mut self, service: &Service) {
        let is_asked = timeout(Duration::ZERO, self.hangups.0.recv()).await.is_ok();
        if is_asked && self.reading.is_none() {
            self.begin();
        }
        if self.reading.is_some()
            && let Ok(read) = timeout(FINISH, self.next()).await
        {
            self.take_over(read, service);
        }
    }

    fn begin(&mut self) {
        service_manager::reloading();
        let (read, started) = (self.source.read.clone(), self.started.clone());
        let (membership, turn) = (self.membership.clone(), self.turn.clone());
        let pages = self.pages.clone();
        self.reading = Some(spawn_blocking(move || {
            let settings = read();
            // Only then: one broken file changes nothing at all.
            let certificates = match &settings {
                Ok(_) => {
                    let _turn = membership::take(&turn);
                    let of_node = membership::reopen(&started, &membership);
                    [of_node, pages.map_or(Ok(false), |read| read())]
                }
                Err(_) => [Ok(false), Ok(false)],
            };
            (settings, certificates)
        }));
    }

    /// Takes over what was read, as far as it can change now, and says so in the log. What is refused is told to the
    /// service manager too, whose own reload succeeds.
    pub(crate) fn take_over(&mut self, read: Outcome, service: &Service) {
        let mut refused: Vec<String> = Vec::new();
        let outcome = match read {
            Ok((Ok(settings), certificates)) => {
                let change = self.change(&settings, service);
                let none = change.is_err().then_some("no setting has changed");
                refused.extend(change.err().map(|error| format!("{error:#}")));
                for (read, of) in certificates.into_iter().zip(["node", "port of the pages"]) {
                    match read {
                        Ok(true) => {
                            tracing::info!(
                                "SIGHUP: new connections get the other certificates of the {of}"
                            );
                        }
                        Ok(false) => {}
                        Err(error) => {
                            refused.push(format!("{error:#}; the {of} keeps its certificates"));
                        }
                    }
                }
                none
            }
            Ok((Err(error), _)) => {
                refused.extend(error.each().iter().map(ToString::to_string));
                Some("nothing has changed; repeat it when `fabricbiosd check` accepts the settings")
            }
            Err(error) => {
                refused.push(format!("a fault of this program: {error}"));
                Some("nothing has changed")
            }
        };
        for why in &refused {
            tracing::error!("refused: {why}");
        }
        if let Some(outcome) = outcome {
            tracing::error!("SIGHUP: {outcome}");
        }
        service_manager::ready(service.local_addr(), refused.first().map(String::as_str));
    }

    /// `Err`: no setting has changed.
    fn change(&mut self, settings: &Settings, service: &Service) -> anyhow::Result<()> {
        if let Some(server) = &self.local_socket {
            local_socket::change_tenants(server, &settings.kinds.shared)?;
        }
        service.change_limits(settings);
        self.kinds.iter().for_each(|it| it(&settings.kinds));
        (self.source.set_log_level)(settings.log_level.as_deref());
        self.on_stop = settings.on_stop.unwrap_or_default();
        let Difference { now, later } = self.given.take_over(&settings.given);
        match now.is_empty() {
            true => tracing::info!("SIGHUP: no setting that can change now is different"),
            false => tracing::info!("SIGHUP: new values hold of {}", now.join(", ")),
        }
        for name in later {
            tracing::warn!("{name}: changes at the next start");
        }
        Ok(())
    }
}
