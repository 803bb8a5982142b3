//! Takes the steps of a plan, and takes them back.

use fabricbios_lease::StepError;

use super::{
    faults,
    objects::{Objects, Trouble},
    plan::{Action, Inverse, Step, Value},
};

/// A plan under way: what it has made, and nothing that was there before.
#[derive(Debug)]
pub(super) struct Run<'a, O> {
    objects: &'a O,
    made: Vec<(&'static str, Inverse)>,
}

/// A step that was not taken.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) step: &'static str,
    pub(super) trouble: Trouble,
}

impl From<Failed> for StepError {
    fn from(failed: Failed) -> Self {
        super::objects::failed(failed.step, failed.trouble)
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

    /// Does nothing where what is wanted is there already.
    pub(super) fn take(&mut self, step: &Step) -> Result<(), Failed> {
        let is_new = take(self.objects, &step.action).map_err(|trouble| Failed {
            step: step.name,
            trouble,
        })?;
        let inverse = step.inverse().filter(|_| is_new);
        self.made
            .extend(inverse.map(|inverse| (step.name, inverse)));
        faults::passed(step.name);
        Ok(())
    }

    /// Takes back what was made, the newest first. Goes on behind a failure; the first one is told.
    pub(super) fn undo(self) -> Result<(), StepError> {
        let mut result = Ok(());
        for (name, inverse) in self.made.iter().rev() {
            if let Err(trouble) = undo(self.objects, inverse) {
                let error = StepError::new(*name, format_args!("not undone: {trouble}"))
                    .with_errno(trouble.errno);
                tracing::warn!(%error, "something is left behind");
                result = result.and(Err(error));
            }
        }
        result
    }
}

/// Whether there is something new to take back.
fn take(objects: &impl Objects, action: &Action) -> Result<bool, Trouble> {
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

/// Some attributes take a value and keep another, so it is read back.
fn set(objects: &impl Objects, path: &str, value: &Value) -> Result<(), Trouble> {
    if matches!(value, Value::Secret(_)) {
        // Linux 6.12 makes keys 0644, and 0644 are those that an earlier version of this program wrote.
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
    Err(Trouble::new(format_args!(
        "wrote {what} to {path}: accepted, but something else reads back"
    )))
}

fn holds(objects: &impl Objects, path: &str, value: &Value) -> Result<bool, Trouble> {
    match value {
        Value::Plain(text) => Ok(objects.read(path)? == *text),
        Value::Secret(secret) => objects.holds_secret(path, secret.reveal()),
    }
}

fn undo(objects: &impl Objects, inverse: &Inverse) -> Result<(), Trouble> {
    match inverse {
        Inverse::RemoveObject(path) => objects.rmdir(path),
        Inverse::RemoveNamespace(path) => objects.remove_namespace(path),
        Inverse::Unlink(path) => objects.unlink(path),
    }
}

#[cfg(test)]
mod tests;
