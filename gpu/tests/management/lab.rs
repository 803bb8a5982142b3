//! A supervisor of helper processes that use the emulated devices of one state directory.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_gpu::{
    Device, Libraries,
    management::{Account, Accounted, Probed, discover},
};
use fabricbios_helper::{Call, CallError, Program, Supervisor};
use fabricbios_wire::GpuVendor;
use stand_in_device::{Device as Emulated, Directory, Identity, VARIABLE, Vendor};

/// A helper process that is silent for this time counts as hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MIB: u64 = 1 << 20;
/// Memory of each device, bytes.
pub(crate) const MEMORY: u64 = 64 * MIB;

/// Held while the environment changes: tests are threads of one process, and the supervisor copies its environment.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

pub(crate) struct Lab {
    pub(crate) directory: Directory,
    pub(crate) supervisor: Supervisor,
    pub(crate) libraries: Libraries,
    pub(crate) place: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// A lab with additional variables in the environment of the helper processes.
    pub(crate) fn with(variables: &[(&str, &str)]) -> Self {
        let _guard = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        let place = tempfile::tempdir().unwrap();
        // Workers run as other users, which need this access.
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let directory = Directory::at(place.path().join("devices")).unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        let path = env::var_os("PATH").unwrap_or_default();
        let bin = [place.path().join("bin")];
        let all = bin.into_iter().chain(env::split_paths(&path));
        let all = env::join_paths(all).unwrap();
        let mut set: Vec<(&str, &OsStr)> = vec![
            (VARIABLE, directory.path().as_os_str()),
            ("PATH", all.as_os_str()),
        ];
        set.extend(
            variables
                .iter()
                .map(|(name, value)| (*name, OsStr::new(*value))),
        );
        for (name, value) in &set {
            // SAFETY: the tests change and read the environment under the lock only.
            unsafe { env::set_var(name, value) };
        }
        let program = Program::copy_of(Path::new(env!("CARGO_BIN_EXE_fabricbios-gpu-calls")));
        let lock = tempfile::tempfile().unwrap();
        let supervisor = Supervisor::start(&program.unwrap(), "supervisor", lock).unwrap();
        for (name, _) in variables {
            // SAFETY: as above.
            unsafe { env::remove_var(name) };
        }
        // SAFETY: as above.
        unsafe { env::set_var("PATH", path) };
        Self {
            directory,
            supervisor,
            libraries: stand_ins(),
            place,
        }
    }

    pub(crate) fn call<C: Call>(&self, call: &C) -> Result<C::Answer, CallError> {
        self.supervisor.call(call, PATIENCE, &|_| ())
    }

    /// Waits until all memory of a device is free: a helper process answers before it ends.
    pub(crate) fn wait_until_free(&self, vendor: Vendor) {
        let device = Emulated::open_in(self.directory.clone(), vendor).unwrap();
        let identity = Identity::whole(vendor);
        while device.usage(&identity).unwrap().free < MEMORY {
            thread::yield_now();
        }
    }

    pub(crate) fn discover(&self) -> Probed {
        discover(&self.supervisor, &self.libraries, PATIENCE)
    }

    /// The whole device of a vendor.
    pub(crate) fn device(&self, vendor: Vendor) -> Device {
        let uuid = Identity::whole(vendor).uuid();
        let mut devices = self.discover().devices.into_iter();
        devices.find(|it| it.uuid == uuid).unwrap()
    }

    pub(crate) fn account(&self, device: &Device) -> Accounted {
        let account = Account {
            device: device.clone(),
            libraries: self.libraries.clone(),
        };
        self.call(&account).unwrap()
    }

    /// Puts a shell script into the PATH of the helper processes.
    pub(crate) fn script(&self, name: &str, text: &str) {
        let file = self.place.path().join("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The stand-ins, in the directory of this program.
pub(crate) fn stand_ins() -> Libraries {
    let programs = env::current_exe().unwrap();
    let library = |name: &str| -> Vec<PathBuf> {
        vec![programs.with_file_name(format!("libstand_in_{name}.so"))]
    };
    Libraries {
        nvml: library("nvml"),
        cuda: library("cuda"),
        hip: library("hip"),
    }
}

pub(crate) const VENDORS: [(Vendor, GpuVendor); 2] = [
    (Vendor::Nvidia, GpuVendor::Nvidia),
    (Vendor::Amd, GpuVendor::Amd),
];

/// The text of a call's failure.
pub(crate) fn failure<A: std::fmt::Debug>(result: Result<A, CallError>) -> String {
    match result.unwrap_err() {
        CallError::Failed(failure) => failure.detail,
        other => panic!("{other}"),
    }
}
