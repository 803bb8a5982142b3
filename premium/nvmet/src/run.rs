//! Runs the steps of a plan, and undoes them.

use fabricbios_lease::StepError;

use super::{
    names::port_link_path,
    objects::{ObjectError, Objects},
    plan::{Action, Inverse, Step, Value},
    steps,
};

/// A plan in progress, with the objects that this run has made. Objects that existed before are not among them.
#[derive(Debug)]
pub(super) struct Run<'a, O> {
    objects: &'a O,
    made: Vec<(&'static str, Inverse)>,
}

/// A step that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) step: &'static str,
    pub(super) error: ObjectError,
}

impl From<Failed> for StepError {
    fn from(failed: Failed) -> Self {
        super::objects::failed(failed.step, failed.error)
    }
}

impl<'a, O: Objects> Run<'a, O> {
    pub(super) fn new(objects: &'a O) -> Self {
        let made = Vec::new();
        Self { objects, made }
    }

    pub(super) fn take_all(&mut self, steps: &[Step]) -> Result<(), Failed> {
        steps.iter().try_for_each(|step| self.take(step))
    }

    /// Runs a step. Does nothing if the wanted state exists already.
    pub(super) fn take(&mut self, step: &Step) -> Result<(), Failed> {
        let is_new = take(self.objects, &step.action).map_err(|error| Failed {
            step: step.name,
            error,
        })?;
        let inverse = step.inverse().filter(|_| is_new);
        self.made
            .extend(inverse.map(|inverse| (step.name, inverse)));
        steps::passed(step.name);
        Ok(())
    }

    /// Undoes all steps, newest first. Continues after a failure; returns the first failure.
    pub(super) fn undo(self) -> Result<(), StepError> {
        let mut result = Ok(());
        for (name, inverse) in self.made.iter().rev() {
            if let Err(error) = undo(self.objects, inverse) {
                let error = StepError::new(*name, format_args!("not undone: {error}"))
                    .with_errno(error.errno);
                tracing::warn!(%error, "something is left behind");
                result = result.and(Err(error));
            }
        }
        result
    }
}

/// Runs an action. Returns whether it made an object that an undo must remove.
fn take(objects: &impl Objects, action: &Action) -> Result<bool, ObjectError> {
    match action {
        Action::Object(path) | Action::Namespace(path) => {
            let missing = !objects.exists(path)?;
            missing.then(|| objects.mkdir(path)).transpose()?;
            Ok(missing)
        }
        Action::Link { target, at } => {
            let missing = !objects.exists(at)?;
            missing.then(|| objects.symlink(target, at)).transpose()?;
            Ok(missing)
        }
        Action::Attribute(path, value) => set(objects, path, value).map(|()| false),
        Action::Readable { volume, enabled } => {
            let in_use = objects.exists(enabled)? && objects.read(enabled)? == "1";
            let unread = (!in_use).then(|| objects.read_once(volume));
            unread.transpose().map(|_| false)
        }
    }
}

/// Sets an attribute and reads it back: some attributes accept a value and keep another one.
fn set(objects: &impl Objects, path: &str, value: &Value) -> Result<(), ObjectError> {
    if matches!(value, Value::Secret(_)) {
        // Linux 6.12 makes the files of keys with mode 0644.
        objects.make_private(path)?;
    }
    if holds(objects, path, value)? {
        return Ok(());
    }
    match value {
        Value::Plain(text) => objects.write(path, text)?,
        Value::Secret(secret) => objects.write_secret(path, secret.reveal())?,
    }
    if holds(objects, path, value)? {
        return Ok(());
    }
    let what = match value {
        Value::Plain(text) => format!("`{text}`"),
        Value::Secret(_) => "a secret".to_owned(),
    };
    Err(ObjectError::new(format_args!(
        "wrote {what} to {path}: accepted, but something else reads back"
    )))
}

fn holds(objects: &impl Objects, path: &str, value: &Value) -> Result<bool, ObjectError> {
    match value {
        Value::Plain(text) => Ok(objects.read(path)? == *text),
        Value::Secret(secret) => objects.holds_secret(path, secret.reveal()),
    }
}

fn undo(objects: &impl Objects, inverse: &Inverse) -> Result<(), ObjectError> {
    match inverse {
        Inverse::RemoveObject(path) => remove_swept(objects, path),
        Inverse::RemoveNamespace(path) => objects.remove_namespace(path),
        Inverse::Unlink(path) => match objects.unlink(path) {
            // A cut has removed the link already.
            Err(error) if error.errno == Some(libc::ENOENT) => Ok(()),
            unlinked => unlinked,
        },
    }
}

/// Removes an object. The sweep of a cut links a subsystem to a port again for an instant, and meanwhile the kernel
/// refuses to remove the subsystem with `EBUSY`. Then this ends the sweep of every port, as the sweep itself does, and
/// tries again; at most once for each port, since a sweep links to each port once.
pub(super) fn remove_swept(objects: &impl Objects, path: &str) -> Result<(), ObjectError> {
    let Some(subsystem) = path.strip_prefix("subsystems/") else {
        return objects.rmdir(path);
    };
    let names = objects.tree().list("ports")?;
    let ports: Vec<u16> = names.iter().filter_map(|name| name.parse().ok()).collect();
    for _port in &ports {
        match objects.rmdir(path) {
            Err(error) if error.errno == Some(libc::EBUSY) => {}
            removed => return removed,
        }
        for port in &ports {
            undo(objects, &Inverse::Unlink(port_link_path(*port, subsystem)))?;
        }
    }
    objects.rmdir(path)
}

#[cfg(test)]
mod tests;
