//! What the fleet does to its etcd.

use std::{fs, path::Path, process::Command};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::Instant;

use crate::fleet::{Fleet, PATIENCE};

/// A copy of what etcd had.
const COPY: &str = "older-etcd";

impl Fleet {
    /// Sends a signal to all servers of etcd.
    pub fn signal_etcd(&self, signal: Signal) {
        (0..self.etcd.pids().len()).for_each(|at| self.signal_server(at, signal));
    }

    /// Sends a signal to one of them.
    pub(crate) fn signal_server(&self, at: usize, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.etcd.pids()[at]) {
            kill(Pid::from_raw(pid), signal).ok();
        }
    }

    /// Starts etcd anew without data, and waits until it answers: one that is killed while it makes its first files may have no
    /// leader ever after.
    pub(crate) fn start_empty_etcd(&mut self) -> anyhow::Result<()> {
        fs::remove_dir_all(self.etcd.data())?;
        self.etcd.restart()?;
        self.wait_for_etcd()
    }

    /// Keeps a copy of what etcd has now.
    pub(crate) fn copy_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd.kill();
        copy(&self.etcd.data(), &self.place.path().join(COPY))?;
        self.etcd.restart()
    }

    /// Starts etcd anew on the copy.
    pub(crate) fn start_older_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd.kill();
        copy(&self.place.path().join(COPY), &self.etcd.data())?;
        self.etcd.restart()
    }

    pub(crate) fn wait_for_etcd(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.etcdctl(&["endpoint", "health"])?.is_none() {
            anyhow::ensure!(begin.elapsed() < PATIENCE, "etcd is not healthy");
        }
        Ok(())
    }

    /// How many nodes etcd has as members. None while it does not answer.
    pub(crate) fn members_in_etcd(&self) -> anyhow::Result<usize> {
        let words = ["get", "--prefix", "--keys-only", "/fabricbios/"];
        let keys = self.etcdctl(&words)?.unwrap_or_default();
        Ok(keys.lines().filter(|it| it.contains("/nodes/")).count())
    }

    /// What etcdctl prints. `None`: it fails.
    fn etcdctl(&self, words: &[&str]) -> anyhow::Result<Option<String>> {
        let mut asks = self.etcd.etcdctl(&self.etcd.urls().join(","));
        asks.args(words);
        let output = asks.output().context("start etcdctl")?;
        let told = String::from_utf8(output.stdout)?;
        Ok(output.status.success().then_some(told))
    }
}

/// Makes `to` a copy of the directory `from`.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("-a").args([from, to]).status()?;
    anyhow::ensure!(copied.success(), "cp of {} failed", from.display());
    Ok(())
}
