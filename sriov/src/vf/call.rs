//! Calls that the kernel may hold up: a driver is not unbound from a function that a process holds through vfio, and a
//! reset waits behind that.

use std::{fs, path::Path, time::Duration};

use fabricbios_helper::{Call, Caller, Failure, Handler, Supervisor};
use fabricbios_kernfs::{Error, Tree, load_module};
use fabricbios_lease::StepError;
use fabricbios_wire::PciFunction;
use serde::{Deserialize, Serialize};

use super::{
    holders::EndHolders,
    pci::{Pci, file_of},
};

/// Longest wait for one call. Some cards take seconds to make their functions.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Something to do with one function, in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    sysfs: String,
    /// The function.
    pub function: PciFunction,
    /// What is done.
    pub act: Act,
}

/// See [`FunctionCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// The function, a card, makes so many virtual functions.
    Create(u32),
    /// The driver takes the function, and no other may; its module is loaded if it is missing.
    Bind(String),
    /// The driver gives the function up, if it has one. Its interface goes, in whichever namespace it is.
    Unbind,
    /// A function-level reset.
    Reset,
    /// Opens the device of a vfio group, which only one process may have open, and closes it.
    Open(String),
}

/// The calls that a supervisor must be able to make.
#[must_use]
pub fn calls() -> Vec<Handler> {
    vec![Handler::of::<FunctionCall>(), Handler::of::<EndHolders>()]
}

impl Call for FunctionCall {
    const NAME: &'static str = "vf";
    type Answer = ();

    /// First waits for an earlier process that is busy with the same function, also one of an earlier run of the node.
    fn make(self, caller: &Caller) -> Result<(), Failure> {
        let Self {
            sysfs,
            function,
            act,
        } = self;
        caller.lock(&format!("function {function}"), |pid| {
            caller.progress(format!(
                "process {pid}, started by an earlier try, is busy with {function}"
            ))
        })?;
        let tree = Tree::new(sysfs);
        let failed = |error: Error| Failure {
            errno: error.errno(),
            detail: error.to_string(),
        };
        let write = |path: String, value: &str| tree.write(path, value).map_err(failed);
        match act {
            Act::Create(count) => write(file_of(function, "sriov_numvfs"), &count.to_string()),
            Act::Bind(driver) => {
                let place = format!("bus/pci/drivers/{driver}");
                // A module that is loaded takes the functions that only its driver may have.
                if !tree.exists(&place).unwrap_or(false) {
                    load_module(&driver)?;
                }
                write(file_of(function, "driver_override"), &driver)?;
                write(format!("{place}/bind"), &function.to_string())
            }
            Act::Unbind => {
                let file = file_of(function, "driver/unbind");
                match tree.write(file, &function.to_string()) {
                    Err(error) if error.is_absent() => Ok(()),
                    unbound => unbound.map_err(failed),
                }
            }
            Act::Reset => write(file_of(function, "reset"), "1"),
            Act::Open(device) => {
                let opened = fs::OpenOptions::new().read(true).write(true).open(&device);
                opened.map(drop).map_err(|error| Failure {
                    errno: error.raw_os_error(),
                    detail: format!("open {device}: {error}"),
                })
            }
        }
    }
}

/// Makes calls for functions.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) pci: Pci,
    pub(super) supervisor: Supervisor,
}

impl Operator {
    /// An error says what the process waits for; the call may still take effect then.
    pub(super) fn call(
        &self,
        step: &'static str,
        function: PciFunction,
        act: Act,
    ) -> Result<(), StepError> {
        let call = FunctionCall {
            sysfs: self.pci.sysfs().to_string_lossy().into_owned(),
            function,
            act,
        };
        let note = |what: &str| tracing::warn!(%function, "{step}: {what}");
        let made = self.supervisor.call(&call, SILENCE_MAX, &note);
        made.map_err(|error| StepError::new(step, format_args!("function {function}: {error}")))
    }

    /// Binds this driver and no other.
    pub(super) fn bind(&self, function: PciFunction, driver: &str) -> Result<(), StepError> {
        match self.pci.driver(function)? {
            Some(bound) if bound == driver => Ok(()),
            Some(bound) => {
                let why = format!("function {function}: it is bound to {bound}, not to {driver}");
                Err(StepError::new("bind driver", why))
            }
            None => self.call("bind driver", function, Act::Bind(driver.to_owned())),
        }
    }

    /// Afterwards no driver is bound, and any may be.
    pub(super) fn unbind(&self, function: PciFunction) -> Result<(), StepError> {
        match self.pci.driver(function)? {
            Some(_) => self.finish_unbinding(function),
            None => self.pci.clear_override(function),
        }
    }

    /// The same. The kernel removes the link to a driver before the driver lets go: an earlier process may still wait for that.
    pub(super) fn finish_unbinding(&self, function: PciFunction) -> Result<(), StepError> {
        self.call("unbind driver", function, Act::Unbind)?;
        if let Some(bound) = self.pci.driver(function)? {
            let why = format!("function {function}: {bound} is bound to it");
            return Err(StepError::new("unbind driver", why));
        }
        self.pci.clear_override(function)
    }

    pub(super) fn reset(&self, function: PciFunction) -> Result<(), StepError> {
        self.call("reset function", function, Act::Reset)
    }

    /// Fails with the system's words if any process has the group open.
    pub(super) fn check_free(&self, function: PciFunction, group: &Path) -> Result<(), StepError> {
        let group = group.to_string_lossy().into_owned();
        self.call("open vfio group", function, Act::Open(group))
    }
}
