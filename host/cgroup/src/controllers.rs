//! Controllers (cpuset, memory and the like) of the cgroups of leases.

use fabricbios_lease::StepError;
use nix::errno::Errno;

use crate::root::{Root, failed, join};

impl Root {
    /// Makes the root cgroup unless it exists, and enables these controllers for it, in every cgroup from the top of
    /// the mount down. [`Root::enable`] enables controllers for the cgroups inside the root.
    ///
    /// # Errors
    /// A cgroup cannot be made, or a controller is missing or cannot be enabled.
    pub fn make(&self, controllers: &[&str]) -> Result<(), StepError> {
        let own = self.name("");
        let mut at = String::new();
        for part in own.split('/') {
            self.enable_at(&at, controllers)?;
            at = join(&at, part);
            self.make_at("make root", &at)?;
        }
        Ok(())
    }

    /// Makes a cgroup unless it exists. This is a step of the kind.
    ///
    /// # Errors
    /// The cgroup cannot be made.
    pub fn make_below(&self, step: &'static str, below: &str) -> Result<(), StepError> {
        self.make_at(step, &self.name(below))
    }

    fn make_at(&self, step: &'static str, at: &str) -> Result<(), StepError> {
        let fs = self.fs();
        if !fs.exists(at).map_err(|error| failed(step, &error))? {
            fs.mkdir(at).map_err(|error| failed(step, &error))?;
            self.passed(step);
        }
        Ok(())
    }

    /// Enables these controllers for the cgroups in `below`. This is a step of the kind.
    ///
    /// # Errors
    /// A controller is missing or cannot be enabled.
    pub fn enable(&self, below: &str, controllers: &[&str]) -> Result<(), StepError> {
        self.enable_at(&self.name(below), controllers)
    }

    /// systemd cannot disable these controllers in the cgroups above: the kernel refuses to disable a controller that a
    /// cgroup below enables for its own children.
    fn enable_at(&self, at: &str, controllers: &[&str]) -> Result<(), StepError> {
        const STEP: &str = "enable controllers";
        let fs = self.fs();
        let read = |name: &str| {
            fs.read(&join(at, name))
                .map_err(|error| failed(STEP, &error))
        };
        let has = |list: &str, name: &str| list.split_whitespace().any(|it| it == name);
        let available = read("cgroup.controllers")?;
        let enabled = read("cgroup.subtree_control")?;
        for name in controllers.iter().filter(|name| !has(&enabled, name)) {
            let place = fs.mount().join(at);
            if !has(&available, name) {
                let why = format_args!(
                    "{}: it has no controller `{name}` (it has: {available}): the kernel was built or started without it, \
                     cgroup v1 has it, or the cgroup above does not hand it on",
                    place.display()
                );
                return Err(StepError::new(STEP, why));
            }
            fs.write(&join(at, "cgroup.subtree_control"), &format!("+{name}"))
                .map_err(|error| {
                    let hint = match error.errno().map(Errno::from_raw) {
                        Some(Errno::EBUSY) => {
                            "; a cgroup with processes of its own hands no controller on"
                        }
                        Some(Errno::EACCES | Errno::EPERM | Errno::EROFS) => "; this needs root",
                        _ => "",
                    };
                    StepError::new(STEP, format_args!("{error}{hint}")).with_errno(error.errno())
                })?;
            self.passed(STEP);
        }
        Ok(())
    }
}
