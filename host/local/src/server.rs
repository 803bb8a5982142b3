//! The node's end of the socket. It has its own threads, so that it cannot delay the node: one thread accepts, and each
//! caller has one thread for one request.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use fabricbios_channel::{Line, Message};
use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass};
use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        Backlog, MsgFlags, Shutdown, SockFlag, UnixAddr, accept4, bind, connect, listen, shutdown,
    },
};

use crate::{
    Reply, Request,
    directory::{check_absolute, check_directory, check_passable, is_shared, make_passable},
    namespace,
    peer::Peer,
    seqpacket,
};

/// How long a caller may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Largest number of callers of one user at a time. Users are those of the tenants, and root.
const OF_ONE_MAX: usize = 8;

const MAY_JOIN: &str = "root of the node may, and the user as which the daemon runs";

/// Pause after the system had no descriptor or thread left.
const AGAIN: Duration = Duration::from_millis(100);

/// The tenants of each user, by uid.
pub type Tenants = BTreeMap<u32, Vec<String>>;

/// Joins the fabric whose CA has signed these certificates, PEM, and returns what has happened, for people. May block.
pub type Join = Arc<dyn Fn(&str) -> Result<String, Refusal> + Send + Sync>;

/// A user (uid), and whether it is root of this node: uid 0 of a container must not take a place of root.
type User = (u32, bool);

/// The open socket. A drop closes it and removes its name; callers in progress still receive their answers.
#[derive(Debug)]
pub struct LocalServer {
    path: PathBuf,
    tenants: Arc<Mutex<Tenants>>,
    listener: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
}

/// The state that all callers share.
struct Shared {
    tenants: Arc<Mutex<Tenants>>,
    kinds: Vec<Arc<dyn LocalAccess>>,
    join: Option<Join>,
    callers: Mutex<BTreeMap<User, usize>>,
}

impl LocalServer {
    /// Opens the socket at `path`. Every user of the machine may connect; a user who is neither root nor in `tenants`
    /// is refused at once. Each of `kinds` is asked in turn for the lease that a caller names. Root and the
    /// user of this process may have the node `join` a fabric. The directory of `path`,
    /// but none above it, is made if it is missing. Only root and the user of this process may be able to write to the
    /// directory: any other user could replace the socket. If there are tenants, other users must be able to pass the
    /// directory; `/run/fabricbios` is opened to them.
    ///
    /// # Errors
    /// The directory fails these checks, another file has the path, or a system call fails.
    pub fn open(
        path: &Path,
        tenants: Tenants,
        kinds: Vec<Arc<dyn LocalAccess>>,
        join: Option<Join>,
    ) -> io::Result<Self> {
        // Only `/`, which is no socket, and an empty path have no directory above.
        let directory = path.parent().unwrap_or(path);
        make_directory(directory)?;
        open_to(&tenants, directory)?;
        let address = UnixAddr::new(path)?;
        remove_stale(path, &address)?;
        let listener = seqpacket()?;
        bind(listener.as_raw_fd(), &address)?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listen(&listener, Backlog::new(64)?)?;
        let tenants = Arc::new(Mutex::new(tenants));
        let shared = Arc::new(Shared {
            tenants: tenants.clone(),
            kinds,
            join,
            callers: Mutex::default(),
        });
        let listener = Arc::new(listener);
        let its = Arc::clone(&listener);
        let thread = thread::Builder::new().name("local socket".into());
        let accepting = thread.spawn(move || accept_all(&its, &shared))?;
        Ok(Self {
            path: path.to_owned(),
            tenants,
            listener,
            accepting: Some(accepting),
        })
    }

    /// Has other users use the socket from now on. Programs that are in a lease already stay.
    ///
    /// # Errors
    /// They cannot pass the directory of the socket; nothing has changed then.
    pub fn change_tenants(&self, tenants: Tenants) -> io::Result<()> {
        open_to(&tenants, self.path.parent().unwrap_or(&self.path))?;
        *now(&self.tenants) = tenants;
        Ok(())
    }
}

fn now(tenants: &Mutex<Tenants>) -> MutexGuard<'_, Tenants> {
    // They are replaced as a whole.
    tenants.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // Ends the waiting accept(2).
        shutdown(self.listener.as_raw_fd(), Shutdown::Both).ok();
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the name of the local socket cannot be removed");
        }
        self.accepting.take().map(JoinHandle::join);
    }
}

/// Makes the directory of the socket if it is missing, and checks it.
fn make_directory(directory: &Path) -> io::Result<()> {
    check_absolute(directory)?;
    make_passable(directory)?;
    check_directory(
        directory,
        "put a socket of their own in the place of the node's: choose a place where only root writes, such as /run/fabricbios",
    )
}

/// Lets these users pass the directory, and checks that they can.
fn open_to(tenants: &Tenants, directory: &Path) -> io::Result<()> {
    if tenants.is_empty() {
        return Ok(());
    }
    mend_shared(directory)?;
    check_passable(directory)
}

/// Opens the shared directory to other users, if another program made it with access for itself alone.
fn mend_shared(directory: &Path) -> io::Result<()> {
    match check_passable(directory) {
        Err(why) if is_shared(directory) => {
            tracing::warn!(%why, "its mode is set to 0755");
            fs::set_permissions(directory, Permissions::from_mode(0o755))
        }
        _ => Ok(()),
    }
}

/// Removes the socket that a killed node left behind.
fn remove_stale(path: &Path, address: &UnixAddr) -> io::Result<()> {
    let in_use = |why: &str| {
        let why = format!("{}: {why}", path.display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, why))
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => return in_use("this is no socket"),
        Ok(_) => {}
    }
    match connect(seqpacket()?.as_raw_fd(), address) {
        Ok(()) => in_use("another process serves this socket"),
        Err(Errno::ECONNREFUSED) => fs::remove_file(path),
        Err(errno) => in_use(&format!("another process may serve this socket: {errno}")),
    }
}

fn accept_all(listener: &OwnedFd, shared: &Arc<Shared>) {
    loop {
        let accepted = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC);
        match accepted {
            Ok(raw) => {
                // SAFETY: accept4(2) has just made the descriptor for this process; no other code has it.
                let socket = unsafe { OwnedFd::from_raw_fd(raw) };
                begin(socket, shared);
            }
            // The socket was shut down.
            Err(Errno::EINVAL) => return,
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            Err(errno) => {
                tracing::warn!(%errno, "the local socket accepts nobody; trying again");
                thread::sleep(AGAIN);
            }
        }
    }
}

/// Serves a caller on a thread, unless there are too many.
fn begin(socket: OwnedFd, shared: &Arc<Shared>) {
    let line = Line::from(socket);
    let admitted = Peer::of(&line).map_err(|error| {
        of_call(
            LeaseError::Internal,
            "the process that has connected: ",
            &error,
        )
    });
    let admitted = admitted.and_then(|peer| Admitted::new(peer, shared));
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return answer(&line, &Reply::from(refusal), None),
    };
    let serve = move || {
        let served = admitted.serve(&line);
        let (reply, descriptor) = served.unwrap_or_else(|refusal| (refusal.into(), None));
        answer(&line, &reply, descriptor);
        // Last of all: a caller whose connection has ended is no longer counted.
        drop((admitted, line));
    };
    // If no thread can be started, the caller sees its connection closed.
    if let Err(error) = thread::Builder::new()
        .name("local caller".into())
        .spawn(serve)
    {
        tracing::warn!(%error, "cannot answer a caller of the local socket");
        thread::sleep(AGAIN);
    }
}

/// Sends the answer. Never waits: the socket has room for one message. The caller may no longer be there.
fn answer(line: &Line, reply: &Reply, descriptor: Option<OwnedFd>) {
    let descriptor = descriptor.as_ref().map(AsFd::as_fd);
    line.send(&reply.encode(), descriptor, MsgFlags::MSG_DONTWAIT)
        .ok();
}

/// An admitted caller, counted among those of its user. A drop ends the count.
struct Admitted {
    peer: Peer,
    shared: Arc<Shared>,
}

impl Admitted {
    fn new(peer: Peer, shared: &Arc<Shared>) -> Result<Self, Refusal> {
        let uid = peer.uid;
        if !peer.runs_the_node && !now(&shared.tenants).contains_key(&uid) {
            let who = match uid {
                0 => {
                    "uid 0 in another user, PID or mount namespace is not root of this node, and uid 0"
                }
                _ => &format!("uid {uid}"),
            };
            return Err(Refusal::new(
                LeaseError::NotPermitted,
                RefusalClass::Policy,
                format!(
                    "{who} belongs to no tenant of this node: run this as a user of the lease's tenant (having the node join a \
                     fabric: {MAY_JOIN}); the operator lets a user enter a tenant's leases with --tenant-uid TENANT=UID"
                ),
            ));
        }
        let user = (uid, peer.is_root);
        let mut callers = shared.callers();
        let of_one = callers.get(&user).copied().unwrap_or_default();
        if of_one >= OF_ONE_MAX {
            return Err(Refusal::new(
                LeaseError::Unavailable,
                RefusalClass::Transient,
                format!(
                    "{of_one} callers of uid {uid} are at the local socket; at most {OF_ONE_MAX} of a user are answered \
                     at a time"
                ),
            ));
        }
        callers.insert(user, of_one + 1);
        let shared = Arc::clone(shared);
        Ok(Self { peer, shared })
    }

    /// Serves the request. Returns the answer and the descriptor for it.
    fn serve(&self, line: &Line) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let malformed =
            |why: String| Refusal::new(LeaseError::Malformed, RefusalClass::Permanent, why);
        let failed = |error: io::Error| of_call(LeaseError::Malformed, "", &error);
        if !line.is_ready_within(PATIENCE).map_err(failed)? {
            return Err(malformed(format!("no request within {PATIENCE:?}")));
        }
        let message = line.receive().map_err(failed)?;
        let Some(message) = message else {
            return Err(malformed("the caller closed its end".into()));
        };
        let Message { bytes, descriptor } = message;
        let request = Request::decode(&bytes).map_err(malformed)?;
        let (lease_id, wanted) = match request {
            Request::Ping {} => return Ok((Reply::Pong {}, None)),
            Request::GpuSession { lease_id, session } => {
                // Closed first: starting a worker may take long.
                drop(descriptor);
                return self.session(lease_id, session);
            }
            Request::Term { lease_id } => {
                drop(descriptor);
                let left = self.shared.remaining(lease_id, &self.caller());
                let left = left.map_err(|why| of_local(&why))?;
                let remaining_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                return Ok((Reply::Term { remaining_ms }, None));
            }
            Request::Join { answer } => {
                drop(descriptor);
                return Ok((self.join(&answer)?, None));
            }
            Request::Run { lease_id } => (lease_id, Wanted::Process),
            Request::Enter { lease_id } => (lease_id, Wanted::NetworkNamespace),
        };
        let invalid =
            |why: String| Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, why);
        let descriptor =
            descriptor.ok_or_else(|| invalid("no descriptor came with the request".into()))?;
        let given = match wanted {
            Wanted::Process => {
                let itself = self.peer.check_itself(descriptor.as_fd());
                Given::Process(itself.map_err(|why| of_call(LeaseError::NotPermitted, "", &why))?)
            }
            Wanted::NetworkNamespace => {
                let checked = namespace::check(descriptor.as_fd(), &self.peer);
                checked.map_err(|why| of_call(LeaseError::InvalidArgs, "", &why))?;
                Given::NetworkNamespace(descriptor)
            }
        };
        self.enter(lease_id, given).map(|reply| (reply, None))
    }

    fn caller(&self) -> Caller {
        let Peer {
            uid, pid, is_root, ..
        } = self.peer;
        Caller {
            uid,
            pid,
            tenants: now(&self.shared.tenants)
                .get(&uid)
                .cloned()
                .unwrap_or_default(),
            is_root,
        }
    }

    fn session(
        &self,
        lease_id: LeaseId,
        session: u64,
    ) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let Peer { uid, pid, .. } = self.peer;
        match self.shared.session(lease_id, &self.caller(), session) {
            Ok(worker) => {
                tracing::debug!(%lease_id, session, uid, pid, "a user of this machine is connected to a session");
                Ok((Reply::Session {}, Some(worker)))
            }
            Err(why) => {
                tracing::debug!(%lease_id, session, uid, pid, %why, "a user of this machine was refused a session");
                Err(of_local(&why))
            }
        }
    }

    fn join(&self, answer: &str) -> Result<Reply, Refusal> {
        let Peer {
            uid, runs_the_node, ..
        } = self.peer;
        if !runs_the_node {
            return Err(Refusal::new(
                LeaseError::NotPermitted,
                RefusalClass::Policy,
                format!("uid {uid} may not have this node join a fabric: {MAY_JOIN}"),
            ));
        }
        let join = self.shared.join.as_ref().ok_or_else(|| {
            let why = "this node joins no fabric";
            Refusal::new(LeaseError::Unsupported, RefusalClass::Permanent, why)
        })?;
        Ok(Reply::Joined {
            told: join(answer)?,
        })
    }

    fn enter(&self, lease_id: LeaseId, given: Given) -> Result<Reply, Refusal> {
        let Peer { uid, pid, .. } = self.peer;
        match self.shared.enter(lease_id, &self.caller(), &given) {
            Ok(Entered { place, environment }) => {
                tracing::debug!(%lease_id, uid, pid, %place, "a user of this machine entered a lease");
                Ok(Reply::Entered { place, environment })
            }
            Err(why) => {
                // Debug level: any user can cause any number of these lines.
                tracing::debug!(%lease_id, uid, pid, %why, "a user of this machine was refused a lease");
                Err(of_local(&why))
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let user: User = (self.peer.uid, self.peer.is_root);
        let mut callers = self.shared.callers();
        if let Some(count) = callers.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                callers.remove(&user);
            }
        }
    }
}

impl Shared {
    fn callers(&self) -> MutexGuard<'_, BTreeMap<User, usize>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks each kind for the lease, and enters it.
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: &Given,
    ) -> Result<Entered, LocalRefusal> {
        for kind in &self.kinds {
            let copy = given.try_clone().map_err(|error| {
                let errno = error.raw_os_error();
                let failed = StepError::new("duplicate the descriptor", error).with_errno(errno);
                LocalRefusal::Failed(failed)
            })?;
            match kind.enter(lease, caller, copy) {
                Err(LocalRefusal::NotFound) => {}
                outcome => return outcome,
            }
        }
        Err(LocalRefusal::NotFound)
    }

    /// Asks each kind for the lease, and returns its remaining time.
    fn remaining(&self, lease: LeaseId, caller: &Caller) -> Result<Duration, LocalRefusal> {
        let mut asked = self.kinds.iter().map(|kind| kind.remaining(lease, caller));
        let known = asked.find(|told| *told != Err(LocalRefusal::NotFound));
        known.unwrap_or(Err(LocalRefusal::NotFound))
    }

    /// Asks each kind for the lease, and connects to its session. A kind without sessions does not know whether it has
    /// the lease.
    fn session(
        &self,
        lease: LeaseId,
        caller: &Caller,
        session: u64,
    ) -> Result<OwnedFd, LocalRefusal> {
        let mut refusal = None;
        for kind in &self.kinds {
            match kind.session(lease, caller, session) {
                Err(LocalRefusal::NotFound) => refusal = Some(LocalRefusal::NotFound),
                Err(without @ LocalRefusal::Unsupported(_)) => {
                    refusal = refusal.or(Some(without));
                }
                outcome => return outcome,
            }
        }
        Err(refusal.unwrap_or(LocalRefusal::NotFound))
    }
}

/// The kind of descriptor that a request needs.
enum Wanted {
    Process,
    NetworkNamespace,
}

fn of_local(why: &LocalRefusal) -> Refusal {
    let (error, class) = match why {
        LocalRefusal::Session { error, class, .. } => (
            error.parse().unwrap_or(LeaseError::Internal),
            class.parse().unwrap_or(RefusalClass::Permanent),
        ),
        LocalRefusal::NotFound => (LeaseError::NotFound, RefusalClass::Permanent),
        LocalRefusal::NotYours { .. } => (LeaseError::NotPermitted, RefusalClass::Policy),
        LocalRefusal::Unsupported(_) => (LeaseError::Unsupported, RefusalClass::Permanent),
        LocalRefusal::NotActive(_) => (LeaseError::Expired, RefusalClass::Permanent),
        LocalRefusal::Failed(error) if is_lack(error.errno) => return lacks_descriptors(error),
        LocalRefusal::Failed(_) => (LeaseError::Internal, RefusalClass::Permanent),
    };
    Refusal::new(error, class, why.to_string())
}

/// Refuses for this reason, with these words before it, unless the node lacks descriptors.
fn of_call(error: LeaseError, words: &str, why: &io::Error) -> Refusal {
    match is_lack(why.raw_os_error()) {
        true => lacks_descriptors(why),
        false => Refusal::new(error, RefusalClass::Permanent, format!("{words}{why}")),
    }
}

fn is_lack(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EMFILE | libc::ENFILE))
}

fn lacks_descriptors(why: &impl fmt::Display) -> Refusal {
    Refusal::new(
        LeaseError::Unavailable,
        RefusalClass::Transient,
        format!(
            "the node lacks file descriptors: try again, or have the operator start it with a higher hard limit \
             (LimitNOFILE= of systemd, ulimit -Hn of a shell): {why}"
        ),
    )
}
