//! `gpu run`: one kernel, from files to files.

use std::{
    fs::{self, File},
    io::{self, Seek, Write},
    path::Path,
    time::Instant,
};

use fabricbios_client::{Node, Submission};
use fabricbios_wire::{LeaseError, Size};

use super::UsedSession;
use crate::{
    args::GpuRun,
    failure::Failure,
    json::{Object, field},
    output::{Output, one_line},
    values::KernelArgument,
};

/// A written output.
struct Written {
    path: String,
    bytes: u64,
}

pub(super) fn run(node: Option<&Node>, what: GpuRun, output: Output) -> Result<(), Failure> {
    let GpuRun {
        place,
        ptx,
        kernel,
        grid,
        block,
        shared_bytes,
        arguments,
    } = what;
    if let Some(flag) = place.of_new_lease() {
        return Err(Failure::usage(format!(
            "{flag} is for a new lease, with --vram; leave {flag} out with --lease"
        )));
    }
    // Unusable files are found before anything is requested.
    let module = read(&ptx)?;
    let inputs: Vec<Vec<u8>> = arguments.iter().map(input).collect::<Result<_, _>>()?;
    let files: Vec<OutputFile<'_>> = { arguments.iter() }
        .filter_map(output_path)
        .map(OutputFile::open)
        .collect::<Result<_, Failure>>()?;
    let mut submission = Submission::new(&module, &kernel)
        .grid(grid)
        .block(block)
        .shared_bytes(shared_bytes);
    for (argument, contents) in arguments.iter().zip(&inputs) {
        submission = match argument {
            KernelArgument::U32(number) => submission.value(*number),
            KernelArgument::U64(number) => submission.value(*number),
            KernelArgument::I32(number) => submission.value(*number),
            KernelArgument::F32(number) => submission.value(*number),
            KernelArgument::F64(number) => submission.value(*number),
            KernelArgument::Input(_) => submission.input(contents),
            KernelArgument::Output(bytes, _) => submission.output(*bytes),
            KernelArgument::InOut(..) => submission.in_out(contents),
            KernelArgument::Zero(bytes) => submission.zeroed(*bytes),
        };
    }
    let used = UsedSession::open(node, place)?;
    let (lease_id, info) = (used.lease_id, used.session.info().clone());
    let vendor = used.vendor;
    let ((outputs, took), left) = used.finish(|session| {
        let begun = Instant::now();
        let outputs = submission.run(session);
        let outputs = outputs.map_err(|error| {
            let is_invalid =
                { error.refusal() }.is_some_and(|it| it.error == LeaseError::InvalidArgs);
            let at = format!("--ptx {} --kernel {kernel}", ptx.display());
            let failure = Failure::from(error).at(&at);
            match vendor.filter(|_| is_invalid) {
                Some(vendor) => failure.and_message(&format!("the leased GPU is one of {vendor}")),
                None => failure,
            }
        })?;
        let took = begun.elapsed();
        let mut written = Vec::new();
        for (file, contents) in files.into_iter().zip(&outputs) {
            written.push(file.write(contents)?);
        }
        Ok((written, took))
    })?;
    // From loading the module to the last output.
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let written =
        |it: &Written| Object::from([field("path", it.path.clone()), field("bytes", it.bytes)]);
    let written: Vec<Object<'_>> = outputs.iter().map(written).collect();
    let json = Object::from([
        field("lease_id", lease_id.to_string()),
        // As text: many JSON readers have numbers with fewer bits.
        field("session", info.session.to_string()),
        field("device", &*info.device),
        field("uuid", &*info.uuid),
        field("kernel", &*kernel),
        field("took_us", took_us),
        field("outputs", written),
    ]);
    output.print(&json.with(left.json()), || {
        let mut lines = vec![format!(
            "{} ran on {} ({}), session {} of lease {lease_id}, in {:.1} ms with its copies",
            one_line(&kernel),
            one_line(&info.device),
            one_line(&info.uuid),
            info.session,
            took_us as f64 / 1e3
        )];
        let output = |it: &Written| format!("{} is in {}", Size(it.bytes), it.path);
        lines.extend(outputs.iter().map(output));
        lines.push(left.line(lease_id));
        lines.join("\n")
    })
}

/// The initial contents of an argument's memory; empty if the argument has none.
fn input(argument: &KernelArgument) -> Result<Vec<u8>, Failure> {
    let (KernelArgument::Input(path) | KernelArgument::InOut(path, _)) = argument else {
        return Ok(Vec::new());
    };
    read(path)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Err(Failure::usage(format!(
            "{}: the file is empty",
            path.display()
        ))),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(unusable(path, "read", &error)),
    }
}

fn output_path(argument: &KernelArgument) -> Option<&Path> {
    match argument {
        KernelArgument::Output(_, path) | KernelArgument::InOut(_, path) => Some(path),
        _ => None,
    }
}

/// An open output file. Its old contents stay until the kernel has run. A file that this command created is removed if
/// the output is not written.
struct OutputFile<'a> {
    path: &'a Path,
    file: File,
    /// Whether to remove the file.
    is_of_no_use: bool,
}

impl<'a> OutputFile<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let made = File::create_new(path);
        let is_of_no_use = made.is_ok();
        let opened = made.or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => File::options().write(true).open(path),
            _ => Err(error),
        });
        Ok(Self {
            path,
            file: opened.map_err(|error| unusable(path, "write", &error))?,
            is_of_no_use,
        })
    }

    fn write(mut self, contents: &[u8]) -> Result<Written, Failure> {
        self.is_of_no_use = false;
        let written = { self.file.set_len(0) }
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(contents));
        let path = self.path.display().to_string();
        written.map_err(|error| Failure::local(&format!("write {path}"), &error))?;
        let bytes = contents.len() as u64;
        Ok(Written { path, bytes })
    }
}

impl Drop for OutputFile<'_> {
    fn drop(&mut self) {
        if self.is_of_no_use {
            fs::remove_file(self.path).ok();
        }
    }
}

fn unusable(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::usage(format!(
        "{}: cannot {what} the file: {error}",
        path.display()
    ))
}
