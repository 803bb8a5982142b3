//! The journal of earlier runs. It is opened first, because the start of everything else depends on it.

use std::path::Path;

use anyhow::Context;
use fabricbios_fabric::Fabric;
use fabricbios_helper::Program;

use crate::{
    driver::{
        Input,
        mailbox::{Mailbox, Sender},
    },
    journal::{self, Journal, Recovered},
    process::clock,
    settings::Settings,
};

/// The journal, its recovered contents, and the driver's mailbox, which gets the outcome of commits.
#[derive(Debug)]
pub struct Past {
    pub(crate) mailbox: Mailbox<Input>,
    pub(crate) driver: Sender<Input>,
    pub(crate) journal: Journal,
    pub(crate) recovered: Recovered,
}

impl Past {
    /// Opens the journal in the state directory of `settings`, which the caller has locked, and counts this start.
    /// `program` is `fabricbiosd`.
    ///
    /// # Errors
    /// The journal does not open, see [`Journal::open`], or it belongs to a node whose identity is gone.
    pub fn open(program: &Program, settings: &Settings) -> anyhow::Result<Self> {
        let (mailbox, driver) = Mailbox::new().context("create the driver's mailbox")?;
        let path = settings.state_dir().join(journal::FILE);
        let told = driver.clone();
        let on_commit = Box::new(move |outcome| {
            told.notify(Input::Durable(outcome));
        });
        let (journal, recovered) = Journal::open(program, &path, &clock::boot_id(), on_commit)?;
        refuse_lost_node(settings.state_dir(), &recovered)?;
        Ok(Self {
            mailbox,
            driver,
            journal,
            recovered,
        })
    }
}

/// Refuses records of another node: a node with a new identity would not find its leases.
pub(crate) fn refuse_lost_node(state_dir: &Path, recovered: &Recovered) -> anyhow::Result<()> {
    if recovered.records.is_empty() {
        return Ok(());
    }
    Ok(Fabric::refuse_lost_node(state_dir)?)
}
