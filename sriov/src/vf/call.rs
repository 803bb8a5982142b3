//! Calls that may wait in the kernel: the kernel does not unbind a driver from a function that a process holds through
//! vfio, and a reset waits behind the unbinding.

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

/// Longest silence of one call. Some cards take seconds to make their functions.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20);

/// An action on one function, which a helper process does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    sysfs: String,
    /// The function.
    pub function: PciFunction,
    /// The action.
    pub act: Act,
}

/// An action on a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// The card `function` makes this many virtual functions.
    Create(u32),
    /// Binds the driver to the function, so that no other driver may take it. Loads the driver's module if it is
    /// missing.
    Bind(String),
    /// Unbinds the function's driver, if it has one. The function's interface goes, in whichever namespace it is.
    Unbind,
    /// Does a function-level reset.
    Reset,
    /// Opens and closes the device of a vfio group. Only one process may have it open.
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

    /// First waits for an earlier process that works on the same function, also one of an earlier run of the node.
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
                // Before the override is set: a module at its load takes functions whose override names its driver.
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

/// Makes calls for functions, through helper processes.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) pci: Pci,
    pub(super) supervisor: Supervisor,
}

impl Operator {
    /// Makes a call. After an error the call may still take effect; the error then says what the process waits for.
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

    /// Binds this driver. An error if another driver is bound.
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

    /// Unbinds the driver, if there is one. Afterwards any driver may be bound.
    pub(super) fn unbind(&self, function: PciFunction) -> Result<(), StepError> {
        match self.pci.driver(function)? {
            Some(_) => self.finish_unbinding(function),
            None => self.pci.clear_override(function),
        }
    }

    /// Like [`Operator::unbind`], but makes the call even if no driver is linked. The kernel removes the link before
    /// the driver lets go, so an earlier process may still wait for the driver.
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

    /// Checks that no process has the group open. The error contains that of open(2).
    pub(super) fn check_free(&self, function: PciFunction, group: &Path) -> Result<(), StepError> {
        let group = group.to_string_lossy().into_owned();
        self.call("open vfio group", function, Act::Open(group))
    }
}
