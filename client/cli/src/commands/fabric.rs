//! `fabric …`: makes a fabric of many nodes and signs its members. No node is asked.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::{Duration, SystemTime},
};

use fabricbios_fabric::{FabricDirectory, IdentityError, Label, Member};
use fabricbios_wire::RefusalClass;

use crate::{
    args::{Fabric, MemberRole, Sign},
    failure::{Exit, Failure},
    json::{Object, field},
    output::{Output, table},
    time_text,
};

const DAY: Duration = Duration::from_secs(86_400);
/// Most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 16 << 10;

pub(super) fn run(command: Fabric, output: Output) -> Result<(), Failure> {
    match command {
        Fabric::Init { directory } => init(&directory, output),
        Fabric::Sign(what) => sign(&what, output),
        Fabric::AddScheduler { file, dir } => add_scheduler(&file, &dir, output),
    }
}

/// The failure of a file, request or certificate: the message says what to do.
pub(super) fn refused(error: &IdentityError) -> Failure {
    Failure::new(
        Exit::Usage,
        RefusalClass::Permanent,
        "Identity",
        error.to_string(),
    )
}

fn init(directory: &Path, output: Output) -> Result<(), Failure> {
    let made = FabricDirectory::init(directory, SystemTime::now());
    let made = made.map_err(|error| refused(&error))?;
    let (fabric, directory) = (made.id().to_string(), directory.display().to_string());
    let (admin, scheduler) = (made.admin_identity(), made.scheduler_identity());
    let [admin, scheduler] = [admin, scheduler].map(|it| it.display().to_string());
    let json = Object::from([
        field("fabric", &*fabric),
        field("directory", &*directory),
        field("admin_identity", &*admin),
        field("scheduler_identity", &*scheduler),
    ]);
    output.print(&json, || {
        let rows = [
            ("fabric", &fabric),
            ("operator", &admin),
            ("scheduler", &scheduler),
        ];
        let rows = rows.map(|(what, value)| vec![what.to_owned(), value.clone()]);
        let next = format!(
            "a node on this machine: fabricbiosd control-server --fabric-dir {directory} …\n\
             elsewhere: fabricbiosd node-request > node.csr, here fabricctl fabric sign node.csr --role node --dir {directory} \
             > node.pem, there fabricbiosd node-accept node.pem"
        );
        format!("{}\n{next}", table(&rows))
    })
}

fn add_scheduler(file: &Path, directory: &Path, output: Output) -> Result<(), Failure> {
    let now = SystemTime::now();
    let fabric = FabricDirectory::open(directory, now).map_err(|error| refused(&error))?;
    let id = fabric.add_scheduler(file, now);
    let id = id.map_err(|error| refused(&error))?.to_string();
    let file = file.display().to_string();
    let json = Object::from([
        field("scheduler_id", &*id),
        field("fabric", fabric.id().to_string()),
        field("identity", &*file),
    ]);
    output.print(&json, || {
        table(&[
            vec!["scheduler".to_owned(), id.clone()],
            vec!["identity".to_owned(), file.clone()],
        ])
    })
}

fn sign(what: &Sign, output: Output) -> Result<(), Failure> {
    let member = member(what)?;
    let request = read(&what.request).map_err(|error| {
        Failure::usage(format!("cannot read {}: {error}", what.request.display()))
    })?;
    let now = SystemTime::now();
    let fabric = FabricDirectory::open(&what.dir, now).map_err(|error| refused(&error))?;
    let validity = what.days.map(|days| DAY.saturating_mul(days));
    let signed = fabric.sign(&request, &member, validity, now);
    let signed = signed.map_err(|error| refused(&error).at(&what.request.display().to_string()))?;
    let end = signed.not_after.duration_since(SystemTime::UNIX_EPOCH);
    let end_ms = u64::try_from(end.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
    let (id, fabric) = (signed.id.to_string(), fabric.id().to_string());
    let labels: Vec<String> = what.label.iter().map(ToString::to_string).collect();
    let json = Object::from([
        field("node_id", &*id),
        field("fabric", &*fabric),
        field("labels", labels.clone()),
        field("expires_at_unix_ms", end_ms),
        field("answer", &*signed.pem),
    ]);
    if !output.json {
        // Standard output has the answer alone.
        eprintln!(
            "fabricctl: signed {id} for fabric {fabric}, until {}",
            time_text::utc(end_ms)
        );
    }
    output.print(&json, || signed.pem.trim_end().to_owned())
}

fn member(what: &Sign) -> Result<Member, Failure> {
    let mut keys: Vec<&str> = what.label.iter().map(|it| &*it.key).collect();
    keys.sort_unstable();
    if let Some([twice, _]) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Failure::usage(format!(
            "--label {twice}: the key is there twice"
        )));
    }
    if what.label.len() > Label::MAX {
        let (found, most) = (what.label.len(), Label::MAX);
        return Err(Failure::usage(format!(
            "{found} labels; {most} are allowed"
        )));
    }
    match (what.role, &*what.label) {
        (MemberRole::Node, labels) => Ok(Member::Node(labels.to_vec())),
        (MemberRole::Scheduler, []) => Ok(Member::Scheduler),
        (MemberRole::Scheduler, _) => Err(Failure::usage(
            "--label is for nodes: leave it out, or give --role node",
        )),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path)?),
    };
    let mut text = String::new();
    source.take(REQUEST_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
