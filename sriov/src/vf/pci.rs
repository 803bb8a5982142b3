//! PCI functions, through sysfs.

use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use fabricbios_cgroup::records;
use fabricbios_kernfs::{Error, Tree};
use fabricbios_lease::StepError;
use fabricbios_wire::PciFunction;

/// Offset of the command register in the configuration space (PCI Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;

/// Bit of the command register: the function may read and write the machine's memory.
const BUS_MASTER: u16 = 1 << 2;

/// The tree `/sys`.
#[derive(Clone, Debug)]
pub(super) struct Pci(Tree);

/// The path of a function's file in sysfs.
pub(super) fn file_of(function: PciFunction, file: &str) -> String {
    format!("bus/pci/devices/{function}/{file}")
}

impl Pci {
    pub(super) fn new(sysfs: &Path) -> Self {
        Self(Tree::new(sysfs))
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.0
    }

    pub(super) fn sysfs(&self) -> &Path {
        self.0.root()
    }

    /// The driver; `None`: no driver is bound.
    pub(super) fn driver(&self, function: PciFunction) -> Result<Option<String>, StepError> {
        if_present(self.0.link_name(file_of(function, "driver"))).map_err(looked)
    }

    /// The interfaces of the function in the network namespace of this sysfs.
    pub(super) fn interfaces(&self, function: PciFunction) -> Result<Vec<String>, StepError> {
        let names = if_present(self.0.list(file_of(function, "net"))).map_err(looked)?;
        Ok(names.unwrap_or_default())
    }

    /// The IOMMU group; `None` if no IOMMU is in use.
    pub(super) fn group(&self, function: PciFunction) -> Result<Option<u32>, StepError> {
        let name = if_present(self.0.link_name(file_of(function, "iommu_group")));
        Ok(name.map_err(looked)?.and_then(|name| name.parse().ok()))
    }

    /// The addresses of all devices of a group.
    pub(super) fn members(&self, group: u32) -> Result<Vec<String>, StepError> {
        let members = format!("kernel/iommu_groups/{group}/devices");
        self.0.list(members).map_err(looked)
    }

    /// The virtual functions of a card, each with its number.
    pub(super) fn functions_of(
        &self,
        card: PciFunction,
    ) -> Result<Vec<(u32, PciFunction)>, StepError> {
        let names = self.0.list(file_of(card, "")).map_err(looked)?;
        let numbers = names.iter().filter_map(|it| it.strip_prefix("virtfn"));
        let numbers = numbers.filter_map(|it| it.parse().ok());
        let mut functions: Vec<(u32, PciFunction)> = numbers
            .map(|number| {
                let link = file_of(card, &format!("virtfn{number}"));
                let name = self.0.link_name(&link).map_err(looked)?;
                let function = PciFunction::parse(&name);
                let function = function.ok_or_else(|| {
                    let why = format!("{link} leads to {name}, which is no address of PCI");
                    StepError::new("look at function", why)
                })?;
                Ok((number, function))
            })
            .collect::<Result<_, StepError>>()?;
        functions.sort_unstable_by_key(|(number, _)| *number);
        Ok(functions)
    }

    pub(super) fn has(&self, path: &str) -> Result<bool, StepError> {
        self.0.exists(path).map_err(looked)
    }

    pub(super) fn link_name(&self, path: &str) -> Result<Option<String>, StepError> {
        if_present(self.0.link_name(path)).map_err(looked)
    }

    /// Reads a number; `None` if the file does not exist or has no value now.
    pub(super) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.0.read_as(path).ok()
    }

    pub(super) fn write(&self, path: &str, value: &str) -> Result<(), StepError> {
        self.0
            .write(path, value)
            .map_err(|error| failed("write", &error))
    }

    /// Removes the restriction to one driver: any driver may be bound afterwards.
    pub(super) fn clear_override(&self, function: PciFunction) -> Result<(), StepError> {
        let written = self.0.write(file_of(function, "driver_override"), "\n");
        written.map_err(|error| failed("clear driver override", &error))
    }

    /// Whether the function no longer exists on its bus; then it reaches nothing.
    pub(super) fn is_gone(&self, function: PciFunction) -> Result<bool, StepError> {
        Ok(self.has("bus/pci/devices")? && !self.has(&file_of(function, ""))?)
    }

    /// Whether the function may reach the machine's memory.
    pub(super) fn is_bus_master(&self, function: PciFunction) -> Result<bool, StepError> {
        if self.is_gone(function)? {
            return Ok(false);
        }
        let path = self.config(function);
        let command = read_command(&path);
        let command =
            command.map_err(|error| records::failed("read command register", &path, &error))?;
        Ok(command & BUS_MASTER != 0)
    }

    /// Ends all access of the function to the machine's memory: it sends and receives no frame any more. Reads the
    /// command register back.
    pub(super) fn stop_bus_master(&self, function: PciFunction) -> Result<(), StepError> {
        if self.is_gone(function)? {
            return Ok(());
        }
        let path = self.config(function);
        let stopped = read_command(&path).and_then(|command| {
            let config = OpenOptions::new().write(true).open(&path)?;
            config.write_all_at(&(command & !BUS_MASTER).to_le_bytes(), COMMAND)
        });
        stopped.map_err(|error| records::failed("bus master off", &path, &error))?;
        if self.is_bus_master(function)? {
            let why = format!("{}: the bit is still set", path.display());
            return Err(StepError::new("bus master off", why));
        }
        Ok(())
    }

    /// Like [`Pci::stop_bus_master`], while a process or a driver may switch it on again. A failure is ignored: the
    /// next call tries again, and a check follows. A function in a reset answers with ones.
    pub(super) fn keep_off(&self, function: PciFunction) {
        let path = self.config(function);
        if let Ok(command) = read_command(&path)
            && command != u16::MAX
            && command & BUS_MASTER != 0
        {
            self.stop_bus_master(function).ok();
        }
    }

    fn config(&self, function: PciFunction) -> PathBuf {
        self.0.root().join(file_of(function, "config"))
    }
}

fn read_command(config: &Path) -> io::Result<u16> {
    let mut command = [0; 2];
    let config = OpenOptions::new().read(true).open(config)?;
    config.read_exact_at(&mut command, COMMAND)?;
    Ok(u16::from_le_bytes(command))
}

fn if_present<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

fn looked(error: Error) -> StepError {
    failed("look at function", &error)
}

fn failed(step: &'static str, error: &Error) -> StepError {
    StepError::new(step, error).with_errno(error.errno())
}
