//! Contexts of a process, and which of them is current.

use std::sync::Arc;

use super::{CURRENT, Driver, hang_at_exit};
use crate::{Status, context::Context, lock};

impl Driver {
    fn new_context(&self, number: i32) -> Result<usize, Status> {
        let identity = self.identity(number)?;
        let device = Arc::clone(&self.ready()?.device);
        hang_at_exit(&device);
        let context = Arc::new(Context::new(device, identity)?);
        let mut objects = lock(&self.objects);
        let id = objects.number();
        objects.contexts.insert(id, context);
        Ok(id)
    }

    /// Ends a context with all its objects.
    fn destroy_context(&self, id: usize) -> Result<(), Status> {
        self.ready()?;
        let mut objects = lock(&self.objects);
        let context = objects
            .contexts
            .remove(&id)
            .ok_or(Status::INVALID_CONTEXT)?;
        objects.streams.retain(|_, of| *of != id);
        let mut modules = std::mem::take(&mut objects.modules);
        modules.retain(|_, it| it.context != id);
        objects
            .functions
            .retain(|_, (of, _)| modules.contains_key(of));
        objects.modules = modules;
        objects.primary.retain(|_, (of, _)| *of != id);
        drop(objects);
        if CURRENT.get() == id {
            CURRENT.set(0);
        }
        context.end()
    }

    /// Adds a hold to the primary context of a device, which is made if there is none. Returns its number.
    ///
    /// # Errors
    /// As [`Driver::primary`].
    pub fn retain_primary(&self, number: i32) -> Result<usize, Status> {
        let id = self.primary(number)?;
        if let Some((_, held)) = lock(&self.objects).primary.get_mut(&number) {
            *held += 1;
        }
        Ok(id)
    }

    /// The number of a device's primary context, which is made if there is none.
    ///
    /// # Errors
    /// There is no device with this number, or the state directory cannot be used.
    pub fn primary(&self, number: i32) -> Result<usize, Status> {
        let _turn = lock(&self.making);
        self.ready()?;
        if let Some((id, _)) = lock(&self.objects).primary.get(&number) {
            return Ok(*id);
        }
        let id = self.new_context(number)?;
        lock(&self.objects).primary.insert(number, (id, 0));
        Ok(id)
    }

    /// Gives up a hold of the primary context, which ends with the last hold.
    ///
    /// # Errors
    /// There is no primary context, or the state directory cannot be used.
    pub fn release_primary(&self, number: i32) -> Result<(), Status> {
        self.identity(number)?;
        let mut objects = lock(&self.objects);
        let (id, held) = objects
            .primary
            .get_mut(&number)
            .ok_or(Status::INVALID_CONTEXT)?;
        *held -= 1;
        let last = (*held == 0).then_some(*id);
        drop(objects);
        last.map_or(Ok(()), |id| self.destroy_context(id))
    }

    /// Ends the primary context of a device, if there is one, whatever its holds.
    ///
    /// # Errors
    /// There is no device with this number, or the state directory cannot be used.
    pub fn reset_primary(&self, number: i32) -> Result<(), Status> {
        self.identity(number)?;
        let id = lock(&self.objects).primary.get(&number).map(|(id, _)| *id);
        id.map_or(Ok(()), |id| self.destroy_context(id))
    }

    /// Makes a context current for the thread; 0: no context.
    ///
    /// # Errors
    /// There is no context with this number.
    pub fn set_current(&self, id: usize) -> Result<(), Status> {
        self.ready()?;
        if id != 0 && !lock(&self.objects).contexts.contains_key(&id) {
            return Err(Status::INVALID_CONTEXT);
        }
        CURRENT.set(id);
        Ok(())
    }

    pub(super) fn current(&self) -> Result<Arc<Context>, Status> {
        self.ready()?;
        let objects = lock(&self.objects);
        let context = objects.contexts.get(&CURRENT.get());
        let context = context.cloned().ok_or(Status::INVALID_CONTEXT)?;
        context.check()?;
        Ok(context)
    }
}
