//! Streams, modules and launches.

use std::sync::Arc;

use super::{CURRENT, Driver, Loaded};
use crate::{
    Entry, Grid, HostMemory, Module, Status, Vendor, Words, context::open_late, launch, lock,
};

impl Driver {
    /// Makes a stream; returns its number.
    ///
    /// # Errors
    /// Its thread cannot be started.
    pub fn create_stream(&self) -> Result<usize, Status> {
        let context = self.current()?;
        let id = lock(&self.objects).number();
        context.add_stream(id)?;
        lock(&self.objects).streams.insert(id, CURRENT.get());
        Ok(id)
    }

    /// Ends a stream when its work is done.
    ///
    /// # Errors
    /// There is no stream with this number.
    pub fn destroy_stream(&self, id: usize) -> Result<(), Status> {
        self.ready()?;
        let mut objects = lock(&self.objects);
        let of = objects.streams.remove(&id).ok_or(Status::INVALID_HANDLE)?;
        let context = objects.contexts.get(&of).cloned();
        drop(objects);
        context.ok_or(Status::INVALID_CONTEXT)?.remove_stream(id)
    }

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// There is no stream with this number, or a kernel failed.
    pub fn synchronize_stream(&self, id: usize) -> Result<(), Status> {
        let context = self.current()?;
        let mark = context.mark(id)?;
        context.wait(&mark)
    }

    /// Loads a module; returns its number.
    ///
    /// # Errors
    /// The bytes are no module.
    pub fn load_module(&self, image: HostMemory) -> Result<usize, Status> {
        let context = self.current()?;
        open_late()?;
        let module = match self.vendor {
            Vendor::Nvidia => Module::from_ptx(image),
            Vendor::Amd => Module::from_code_object(image),
        }?;
        let memory = context.allocate_module()?;
        let mut objects = lock(&self.objects);
        let id = objects.number();
        let loaded = Loaded {
            context: CURRENT.get(),
            module: Arc::new(module),
            memory,
        };
        objects.modules.insert(id, loaded);
        Ok(id)
    }

    /// Unloads a module.
    ///
    /// # Errors
    /// There is no module with this number.
    pub fn unload_module(&self, id: usize) -> Result<(), Status> {
        let context = self.current()?;
        let mut objects = lock(&self.objects);
        let removed = objects.modules.remove(&id);
        let memory = removed.ok_or(Status::INVALID_HANDLE)?.memory;
        objects.functions.retain(|_, (of, _)| *of != id);
        drop(objects);
        context.free(memory)
    }

    /// Finds a kernel of a module; returns its number.
    ///
    /// # Errors
    /// There is no such module or kernel.
    pub fn function(&self, module: usize, name: &str) -> Result<usize, Status> {
        self.current()?;
        let mut objects = lock(&self.objects);
        let loaded = objects.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        let entry = loaded.module.entries.iter().find(|it| it.name == name);
        let entry = Arc::new(entry.ok_or(Status::NOT_FOUND)?.clone());
        let id = objects.number();
        objects.functions.insert(id, (module, entry));
        Ok(id)
    }

    /// The kernel with this number.
    ///
    /// # Errors
    /// There is no kernel with this number.
    pub fn entry(&self, function: usize) -> Result<Arc<Entry>, Status> {
        self.ready()?;
        let objects = lock(&self.objects);
        let found = objects.functions.get(&function);
        let (_, entry) = found.ok_or(Status::INVALID_HANDLE)?;
        Ok(Arc::clone(entry))
    }

    /// Adds a kernel to a stream.
    ///
    /// # Errors
    /// There is no such kernel or stream, or the kernel does not accept this grid or these arguments.
    pub fn launch(
        &self,
        function: usize,
        grid: Grid,
        stream: usize,
        parameters: &Words,
    ) -> Result<(), Status> {
        let context = self.current()?;
        let kernel = launch::kernel(&*self.entry(function)?, grid, parameters)?;
        context.submit(stream, move |context| kernel.run(context))?;
        Ok(())
    }
}
