//! A kernel for tests: cgroup files in a directory, with the rules of cpusets that leases rely on.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    process::{Child, Command},
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, Sender, channel},
    },
};

use fabricbios_contract::testing::{Calls, Fails};
use fabricbios_cpu::{Cgroupfs, list};
use fabricbios_kernfs::{Error, Tree, parse_list};
use tempfile::TempDir;

use crate::ROOT;

/// Two cores of two CPUs on node 0, two cores of one CPU on node 1.
pub(crate) const CORES: &[(&[u32], u32)] = &[(&[0, 1], 0), (&[2, 3], 0), (&[4], 1), (&[5], 1)];

#[derive(Debug)]
pub(crate) struct Kernel {
    directory: TempDir,
    files: Tree,
    model: Mutex<Model>,
    /// The calls that change something: a file's path, or `programs`.
    pub(crate) calls: Calls,
    /// Calls take turns, as in the kernel.
    call: Mutex<()>,
}

#[derive(Debug, Default)]
struct Model {
    /// Processes that a kill does not end.
    immortal: Vec<i32>,
    /// Processes that a write to `cgroup.procs` does not move, although it succeeds.
    exiting: Vec<i32>,
    has_exclusive: bool,
    /// The programs attached to each cgroup; each refuses something.
    programs: BTreeMap<String, Vec<&'static str>>,
}

/// The files of controllers that leases do not need on every machine.
const LIMITS: [(&str, &str); 4] = [
    ("memory", "memory.max"),
    ("memory", "memory.high"),
    ("memory", "memory.swap.max"),
    ("pids", "pids.max"),
];

impl Kernel {
    pub(crate) fn new(controllers: &str, has_exclusive: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().join("cgroup");
        fs::create_dir_all(&mount).unwrap();
        let kernel = Self {
            files: Tree::new(&mount),
            model: Mutex::new(Model {
                has_exclusive,
                ..Model::default()
            }),
            directory,
            calls: Calls::default(),
            call: Mutex::default(),
        };
        for (name, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.subtree_control", ""),
            ("cpuset.cpus.effective", "0-5"),
        ] {
            fs::write(mount.join(name), text).unwrap();
        }
        kernel.put("sys/devices/system/cpu/online", "0-5");
        for (cpus, _) in CORES {
            for cpu in *cpus {
                let at = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
                kernel.put(&at, &list(cpus));
            }
        }
        for node in [0, 1] {
            let on_it = CORES.iter().filter(|(_, on)| *on == node);
            let cpus: Vec<u32> = on_it.flat_map(|(cpus, _)| cpus.to_vec()).collect();
            kernel.put(
                &format!("sys/devices/system/node/node{node}/cpulist"),
                &list(&cpus),
            );
        }
        fs::create_dir_all(kernel.directory.path().join("proc")).unwrap();
        kernel
    }

    /// Replaces the file at once: a concurrent reader sees the old text or the new text.
    pub(crate) fn put(&self, path: &str, text: &str) {
        let at = self.directory.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        let new = self.directory.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, at).unwrap();
    }

    pub(crate) fn tree(&self, name: &str) -> Tree {
        Tree::new(self.directory.path().join(name))
    }

    pub(crate) fn text(&self, path: &str) -> String {
        self.files.read(path).unwrap()
    }

    /// Starts a process outside of every lease.
    pub(crate) fn spawn(&self) -> Process {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let status = format!("Name:\tworker\nState:\tS (sleeping)\nTgid:\t{pid}\n");
        self.put(&format!("proc/{pid}/status"), &status);
        self.put(&format!("proc/{pid}/cgroup"), "0::/\n");
        self.put_flags(pid, 0);
        Process { child, pid }
    }

    /// Makes a thread of `tracer` trace the process.
    pub(crate) fn trace(&self, process: &Process, tracer: &Process, (user, of_tracer): (u32, u32)) {
        let (pid, thread) = (process.pid, "999999999");
        let status = format!(
            "Name:\tworker\nState:\tt (tracing stop)\nTracerPid:\t{thread}\nUid:\t{user}\t{user}\n"
        );
        self.put(&format!("proc/{pid}/task/{pid}/status"), &status);
        let pid = tracer.pid;
        let status = format!("Name:\tgdb\nTgid:\t{pid}\nUid:\t{of_tracer}\t{of_tracer}\n");
        self.put(&format!("proc/{thread}/status"), &status);
        self.put(&format!("proc/{pid}/status"), &status);
    }

    pub(crate) fn make_immortal(&self, pid: i32) {
        self.model().immortal.push(pid);
    }

    /// Makes the process exit for ever: a kill does not end it, and no write moves it.
    pub(crate) fn make_exiting(&self, pid: i32) {
        self.make_immortal(pid);
        self.model().exiting.push(pid);
        self.put_flags(pid, 4);
    }

    fn put_flags(&self, pid: i32, flags: u32) {
        let stat = format!("{pid} (a) b) S 1 1 1 0 -1 {flags} 0 0\n");
        self.put(&format!("proc/{pid}/task/{pid}/stat"), &stat);
    }

    /// Lets the processes die that could not be killed.
    pub(crate) fn let_die(&self) {
        self.model().immortal.clear();
        for at in self.groups() {
            let is_killed = self.files.read(format!("{at}/cgroup.kill")).unwrap() == "1";
            if is_killed || at.contains("stuck-") {
                self.set_members(&at, &[]);
            }
        }
    }

    /// Makes writes to files whose names end so fail.
    pub(crate) fn refuse_writes(&self, end: Option<&'static str>) {
        self.calls.fail(match end {
            Some(end) => Fails::If(Box::new(move |call| call.ends_with(end))),
            None => Fails::Never,
        });
    }

    /// Makes the next write to a file with this suffix wait, as in a busy kernel. The receiver reports its arrival; the
    /// write continues when the sender is dropped.
    pub(crate) fn hold(&self, end: &str) -> (Receiver<()>, Sender<()>) {
        let ((arrives, arrived), (goes_on, go_on)) = (channel(), channel::<()>());
        let end = end.to_owned();
        let waits = move || {
            arrives.send(()).ok();
            go_on.recv().ok();
        };
        self.calls
            .before_next(move |call| call.ends_with(&end), waits);
        (arrived, goes_on)
    }

    /// Begins a call. The error of a call that the test refuses is one of the kernel.
    fn begin(&self, call: &str) -> Result<(), Error> {
        match self.calls.begin(call) {
            Ok(()) => Ok(()),
            Err(_) => self.files.write(format!("{call}/refused"), ""),
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// All cgroups below the mount.
    pub(crate) fn groups(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![String::new()];
        while let Some(at) = open.pop() {
            for name in self.files.list(&at).unwrap() {
                let child = if at.is_empty() {
                    name
                } else {
                    format!("{at}/{name}")
                };
                if self.mount().join(&child).is_dir() {
                    found.push(child.clone());
                    open.push(child);
                }
            }
        }
        found.sort();
        found
    }

    fn members(&self, at: &str) -> Vec<i32> {
        let text = self.files.read(format!("{at}/cgroup.procs")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn set_members(&self, at: &str, members: &[i32]) {
        let lines: String = members.iter().map(|pid| format!("{pid}\n")).collect();
        self.set(at, "cgroup.procs", &lines);
        for above in Path::new(at).ancestors() {
            let (Some(above), false) = (above.to_str(), above == Path::new("")) else {
                continue;
            };
            let mut groups = self.within(above).into_iter();
            let populated = u8::from(groups.any(|it| !self.members(&it).is_empty()));
            let events = format!("populated {populated}\nfrozen 0\n");
            self.set(above, "cgroup.events", &events);
        }
    }

    /// The cgroup and the cgroups in it.
    fn within(&self, at: &str) -> Vec<String> {
        let mut groups = self.groups();
        groups.retain(|it| Path::new(it).starts_with(at));
        groups
    }

    /// Makes a cgroup beside the leases that names these CPUs, or changes its CPUs.
    pub(crate) fn name_cpus(&self, cpus: &str) {
        let fs: &dyn Cgroupfs = self;
        let other = format!("{ROOT}/other");
        if !fs.exists(&other).unwrap() {
            fs.mkdir(&other).unwrap();
        }
        fs.write(&format!("{other}/cpuset.cpus"), cpus).unwrap();
    }

    /// Makes a cgroup outside of the node's with these limits, to which a test moves processes.
    pub(crate) fn limited(&self, at: &str, limits: &[(&str, &str)], programs: &[&'static str]) {
        let fs: &dyn Cgroupfs = self;
        let (parent, _) = at.rsplit_once('/').unwrap_or(("", at));
        for controller in ["memory", "pids"] {
            let file = format!("{parent}/cgroup.subtree_control");
            fs.write(file.trim_start_matches('/'), &format!("+{controller}"))
                .unwrap();
        }
        fs.mkdir(at).unwrap();
        for (file, value) in limits {
            fs.write(&format!("{at}/{file}"), value).unwrap();
        }
        self.model().programs.insert(at.to_owned(), programs.into());
    }

    /// The programs that refuse something to the processes of a cgroup.
    pub(crate) fn programs(&self, at: &str) -> Vec<&'static str> {
        let model = self.model();
        let of = |at: &Path| model.programs.get(at.to_str().unwrap()).cloned();
        let mut found: Vec<_> = Path::new(at).ancestors().filter_map(of).flatten().collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Writes a file of a cgroup as the kernel itself.
    fn set(&self, at: &str, file: &str, text: &str) {
        fs::write(self.mount().join(at).join(file), text).unwrap();
    }

    /// The state of a partition; empty if the cgroup has no cpuset.
    fn partition_of(&self, at: &str) -> String {
        let read = self.files.read(format!("{at}/cpuset.cpus.partition"));
        read.unwrap_or_default()
    }

    fn cpus(&self, at: &str, file: &str) -> Vec<u32> {
        let text = self.files.read(format!("{at}/{file}")).unwrap_or_default();
        parse_list(&text).unwrap()
    }

    fn move_in(&self, at: &str, pid: i32) {
        if self.model().exiting.contains(&pid) {
            return;
        }
        for other in self.groups() {
            let mut members = self.members(&other);
            members.retain(|it| *it != pid);
            self.set_members(&other, &members);
        }
        if !at.is_empty() {
            let mut members = self.members(at);
            members.push(pid);
            self.set_members(at, &members);
        }
        self.put(&format!("proc/{pid}/cgroup"), &format!("0::/{at}\n"));
    }

    fn kill(&self, at: &str) {
        let immortal = self.model().immortal.clone();
        for at in self.within(at) {
            self.set(&at, "cgroup.kill", "1");
            let mut left = self.members(&at);
            left.retain(|pid| immortal.contains(pid));
            self.set_members(&at, &left);
        }
    }

    /// Adds the files that a cgroup gets from the controllers of the cgroup above.
    fn add_files(&self, at: &str, controllers: &str) {
        let has = |name: &str| controllers.split_whitespace().any(|it| it == name);
        let mut files = Vec::new();
        if has("cpuset") {
            files.extend([
                ("cpuset.cpus", ""),
                ("cpuset.mems", ""),
                ("cpuset.cpus.partition", "member"),
            ]);
            if self.model().has_exclusive {
                files.push(("cpuset.cpus.exclusive", ""));
            }
        }
        if has("cpu") {
            files.push(("cpu.max", "max 100000"));
        }
        let of_limits = LIMITS.iter().filter(|(controller, _)| has(controller));
        files.extend(of_limits.map(|(_, file)| (*file, "max")));
        self.set(at, "cgroup.controllers", controllers);
        for (name, text) in files {
            if !self.mount().join(at).join(name).exists() {
                self.set(at, name, text);
            }
        }
    }

    /// Whether the kernel refuses the write: a cgroup with processes enables no controllers for its children, and a
    /// cgroup that enables some takes no process.
    fn is_refused(&self, at: &str, file: &str, value: &str) -> bool {
        let enabled = self
            .files
            .read(Path::new(at).join("cgroup.subtree_control"));
        let available = self.files.read(Path::new(at).join("cgroup.controllers"));
        match file {
            _ if at.is_empty() => false,
            "cgroup.procs" => !enabled.unwrap().is_empty(),
            "cgroup.subtree_control" => {
                let wanted = value.trim_start_matches('+');
                let has = available.unwrap().split(' ').any(|it| it == wanted);
                !has || !self.members(at).is_empty()
            }
            _ => false,
        }
    }

    /// The resulting partition state: valid only with CPUs that the cgroup above has exclusively and that no cgroup
    /// beside it names.
    fn partition(&self, at: &str, wanted: &str) -> String {
        let (parent, _) = at.rsplit_once('/').unwrap();
        let own = self.cpus(at, "cpuset.cpus.exclusive");
        let above = self.cpus(parent, "cpuset.cpus.exclusive");
        let beside = self.groups().into_iter().filter(|it| {
            it != at
                && it
                    .rsplit_once('/')
                    .is_some_and(|(above, _)| above == parent)
        });
        let is_named = |it: String| {
            self.cpus(&it, "cpuset.cpus")
                .iter()
                .any(|cpu| own.contains(cpu))
        };
        match (
            own.iter().all(|cpu| above.contains(cpu)),
            beside.into_iter().any(is_named),
        ) {
            _ if wanted == "member" => wanted.to_owned(),
            (true, false) => wanted.to_owned(),
            (false, _) => format!("{wanted} invalid (Invalid cpu list in cpuset.cpus.exclusive)"),
            (_, true) => format!("{wanted} invalid (Cpu list in cpuset.cpus not exclusive)"),
        }
    }

    /// Makes partitions beside `changed` invalid if they overlap with its new `cpuset.cpus`.
    fn invalidate(&self, changed: &str) {
        let cpus = self.cpus(changed, "cpuset.cpus");
        let (parent, _) = changed.rsplit_once('/').unwrap_or(("", changed));
        for at in self.groups() {
            let beside = at != changed && at.rsplit_once('/').is_some_and(|(it, _)| it == parent);
            let text = self.partition_of(&at);
            let is_valid = text == "root" || text == "isolated";
            let overlaps = self
                .cpus(&at, "cpuset.cpus")
                .iter()
                .any(|cpu| cpus.contains(cpu));
            if beside && is_valid && overlaps {
                self.set(&at, "cpuset.cpus.partition", &format!("{text} invalid"));
            }
        }
    }

    fn settle(&self) {
        let groups = self.groups();
        let is_partition = |at: &String| self.partition_of(at).starts_with(['r', 'i']);
        let (partitions, plain): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_partition);
        let taken: Vec<u32> = partitions
            .iter()
            .flat_map(|at| self.cpus(at, "cpuset.cpus"))
            .collect();
        let online = self
            .tree("sys")
            .read_list("devices/system/cpu/online")
            .unwrap();
        let left: Vec<u32> = online
            .iter()
            .copied()
            .filter(|cpu| !taken.contains(cpu))
            .collect();
        let write = |at: &str, cpus: &[u32]| self.set(at, "cpuset.cpus.effective", &list(cpus));
        write("", &left);
        for at in &partitions {
            let mut cpus = self.cpus(at, "cpuset.cpus");
            cpus.retain(|cpu| online.contains(cpu));
            write(at, &cpus);
        }
        for at in &plain {
            let mut cpus = self.cpus(at, "cpuset.cpus");
            cpus.retain(|cpu| left.contains(cpu));
            write(at, if cpus.is_empty() { &left } else { &cpus });
        }
    }
}

impl Cgroupfs for Kernel {
    fn mount(&self) -> &Path {
        self.files.root()
    }

    fn read(&self, path: &str) -> Result<String, Error> {
        let _call = self.call.lock().unwrap();
        self.files.read(path)
    }

    fn exists(&self, path: &str) -> Result<bool, Error> {
        let _call = self.call.lock().unwrap();
        self.files.exists(path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Error> {
        let _call = self.call.lock().unwrap();
        self.files.list(path)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Error> {
        self.begin(path)?;
        let _call = self.call.lock().unwrap();
        let (at, file) = path.rsplit_once('/').unwrap_or(("", path));
        if self.is_refused(at, file, value) {
            return self.files.write(format!("{path}/busy"), value);
        }
        let has_members =
            |it: &String| it.starts_with(&format!("{at}/")) && !self.members(it).is_empty();
        if file == "cpuset.cpus" && value == "\n" && self.groups().iter().any(has_members) {
            // Fails with ENOSPC, as the kernel does.
            return Tree::new("/dev").write("full", value);
        }
        match file {
            "cgroup.procs" => self.move_in(at, value.parse().unwrap()),
            "cgroup.subtree_control" => {
                let enabled = self.files.read(path)?;
                let more = value.trim_start_matches('+');
                if !enabled.split(' ').any(|it| it == more) {
                    let enabled = format!("{enabled} {more}");
                    self.files.write(path, enabled.trim())?;
                    let is_child =
                        |it: &String| it.rsplit_once('/').map_or("", |(above, _)| above) == at;
                    for child in self.groups().iter().filter(|it| is_child(it)) {
                        self.add_files(child, enabled.trim());
                    }
                }
            }
            "cpuset.cpus.partition" => self.files.write(path, &self.partition(at, value))?,
            _ => self.files.write(path, value)?,
        }
        match file {
            "cgroup.kill" => self.kill(at),
            "cpuset.cpus" => self.invalidate(at),
            _ => {}
        }
        self.settle();
        Ok(())
    }

    fn mkdir(&self, path: &str) -> Result<(), Error> {
        self.begin(path)?;
        let _call = self.call.lock().unwrap();
        self.files.mkdir(path)?;
        let (parent, _) = path.rsplit_once('/').unwrap_or(("", path));
        let handed_on = self
            .files
            .read(Path::new(parent).join("cgroup.subtree_control"))?;
        for (name, text) in [
            ("cgroup.subtree_control", ""),
            ("cgroup.procs", ""),
            ("cgroup.events", "populated 0\nfrozen 0\n"),
            ("cgroup.freeze", "0"),
            ("cgroup.kill", ""),
            ("cpuset.cpus.effective", ""),
        ] {
            self.set(path, name, text);
        }
        self.add_files(path, &handed_on);
        self.settle();
        Ok(())
    }

    fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.begin(path)?;
        let _call = self.call.lock().unwrap();
        let at = self.mount().join(path);
        let names = self.files.list(path)?;
        let is_busy = names.iter().any(|name| at.join(name).is_dir());
        if !is_busy && self.members(path).is_empty() {
            names
                .iter()
                .for_each(|name| fs::remove_file(at.join(name)).unwrap());
        }
        self.files.rmdir(path)?;
        self.settle();
        Ok(())
    }

    fn carry_over(&self, from: &str, to: &str) -> io::Result<()> {
        self.calls.begin("programs").map_err(io::Error::other)?;
        let _call = self.call.lock().unwrap();
        let (wanted, has) = (self.programs(from), self.programs(to));
        let missing = wanted.into_iter().filter(|it| !has.contains(it));
        let mut model = self.model();
        model
            .programs
            .entry(to.to_owned())
            .or_default()
            .extend(missing);
        Ok(())
    }
}

/// A real process of this machine, because a test needs its pidfd.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: i32,
}

impl Process {
    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
