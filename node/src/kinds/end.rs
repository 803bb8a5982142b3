//! The ends of leases by name, in the watchdog's process.

use std::{
    ffi::OsStr,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::Context;
use fabricbios_contract::EndByName;
use fabricbios_helper::Supervisor;

use crate::{
    kinds::KINDS,
    process::helpers,
    watchdog::{Arguments, KindEnd},
};

/// What an end by name may need of the process.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The file in which calls that may hang take their locks.
    pub calls: Option<&'a Path>,
    /// Becomes true when the daemon is gone.
    pub is_orphan: &'a Arc<AtomicBool>,
}

impl Ending<'_> {
    /// Makes calls that may hang, without the daemon.
    ///
    /// # Errors
    /// The process has no file for the locks of such calls, or cannot open it.
    pub(super) fn supervisor(&self) -> anyhow::Result<Supervisor> {
        let calls = self.calls;
        helpers::for_watchdog(calls.context("no file for the locks of calls that may hang")?)
    }
}

/// Makes the end of a kind, from the argument of [`crate::watchdog::Watchdog::ends`].
pub type MakeEnd = fn(&OsStr, &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>>;

/// The ends by name that the arguments ask for, one for each kind.
///
/// # Errors
/// A kind is not ended by name, or its end cannot be made.
pub(crate) fn ends(
    arguments: &Arguments,
    is_orphan: &Arc<AtomicBool>,
) -> anyhow::Result<Vec<KindEnd>> {
    let ending = Ending {
        calls: arguments.calls.as_deref(),
        is_orphan,
    };
    let ends = arguments.ends().map(|(name, argument)| {
        let kind = { KINDS.iter() }.find(|it| name == &*it.resource_type.to_string());
        let end = kind.and_then(|it| Some((it.resource_type, it.end?)));
        let (kind, end) =
            end.with_context(|| format!("leases of {name:?} are not ended by name"))?;
        Ok((kind, end(argument, &ending)?))
    });
    ends.collect()
}
