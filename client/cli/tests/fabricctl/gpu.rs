//! Leases of GPUs, and the work in their sessions.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
    sync::Arc,
};

use fabricbios_local::{LocalServer, Tenants};
use fabricbios_wire::{
    Answer, FlatEntry, GPU_CUDA, GPU_MIG, GpuExclusivityClass, GpuInfo, GpuRequest, GpuTerms,
    InventoryExtension, InventoryForm, LeaseAllocRequest, NodeId, Reply, Request, ResourceId,
    ResourceInventory, ResourceType, health,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    LEASE_TEXT, RESOURCE_TEXT,
    common::{
        FakeNode, RESOURCE,
        gpu::{Act, PTX, UUID, invalid},
        granted,
    },
    fails, failure, granting, json_of, line_of, text_of,
};

/// A node with one lease of a GPU, and files.
pub(crate) struct World {
    pub(crate) node: FakeNode,
    directory: TempDir,
}

pub(crate) fn gpu_lease(request: &Request) -> Answer {
    let of = |alloc: &LeaseAllocRequest| Ok(Reply::Lease(granted(alloc)));
    match request {
        Request::LeaseAlloc(alloc) => of(alloc),
        _ => of(&LeaseAllocRequest::new(ResourceType::Gpu, 1 << 30, 60)),
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.path().join("kernels.ptx"), PTX).unwrap();
        Self {
            node: FakeNode::start(gpu_lease),
            directory,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The line with `DIR` replaced by the directory of the files.
    pub(crate) fn line(&self, line: &str) -> String {
        line.replace("DIR", self.directory.path().to_str().unwrap())
    }

    pub(crate) fn write(&self, name: &str, numbers: &[f32]) {
        fs::write(self.path(name), bytes(numbers)).unwrap();
    }

    fn json(&self, line: &str) -> Value {
        json_of(&self.node, &self.line(line))
    }

    fn kinds(&self) -> Vec<&'static str> {
        let kind = |request: Request| match request {
            Request::LeaseAlloc(_) => "alloc",
            Request::LeaseFree(_) => "free",
            _ => "other",
        };
        self.node.asked().into_iter().map(kind).collect()
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
}

#[test]
fn the_json_of_a_gpu_is_the_contract() {
    let node = FakeNode::start(granting());
    let line = "lease alloc gpu --vram 8GiB --secs 60";
    let json = json_of(
        &node,
        &format!("{line} --exclusivity session --execution-mode session --compute-slices 7"),
    );
    let binding = json!({ "gpu": {
        "uuid": UUID,
        "vendor": "nvidia",
        "vram_bytes": 8_589_934_592_u64,
        "session_endpoint": "10.0.0.1:5701",
        "cdi_device": "fabricbios.dev/gpu=lease-1",
        "compute_slices": 7,
        "queue_slots": 4,
    } });
    assert_eq!(json["binding"], binding);
    let effective = json!({
        "gpu_exclusivity": "session",
        "gpu_execution_mode": "session",
        "gpu_compute_slices": 7,
        "rotate_on_renew": false,
    });
    assert_eq!(json["effective"], effective);
    let shared = json_of(
        &node,
        &format!("{line} --exclusivity Shared --compute-slices 3"),
    );
    assert!(shared["binding"]["gpu"].get("cdi_device").is_none());
}

#[test]
fn the_text_of_a_gpu_says_how_to_use_it() {
    let node = FakeNode::start(granting());
    let line = "lease alloc gpu --vram 8GiB --secs 60 --exclusivity";
    let alone = text_of(&node, &format!("{line} device"));
    for part in [
        "\nenforced    gpu exclusivity device\n",
        &format!("\ngpu         {UUID}, nvidia\n"),
        "8 GiB of memory, 7 compute slices, 4 queues in a session\n",
        "\nsessions    at 10.0.0.1:5701\n",
        &format!("`fabricctl gpu run --lease {LEASE_TEXT} --ptx FILE --kernel NAME …`; or, on"),
        &format!("`fabricctl run --lease {LEASE_TEXT} -- COMMAND`"),
    ] {
        assert!(alone.contains(part), "{part} in\n{alone}");
    }
    let shared = text_of(&node, &format!("{line} shared --compute-slices 2"));
    assert!(shared.contains("2 gpu compute slices"), "{shared}");
    assert!(!shared.contains("fabricctl run"), "{shared}");
}

fn inventory(request: &Request) -> Answer {
    let gpu = FlatEntry {
        resource_id: RESOURCE,
        resource_type: ResourceType::Gpu,
        flags: 0b10,
        capacity: 80 << 30,
        available: 40 << 30,
    };
    let unknown = FlatEntry {
        resource_id: ResourceId(1),
        flags: 0,
        available: 0,
        ..gpu
    };
    if *request == Request::GetInventory(InventoryForm::Flat) {
        return Ok(Reply::FlatInventory(vec![gpu, unknown]));
    }
    let info = |resource_id, compute_units, health| GpuInfo {
        resource_id,
        vram_bytes: u64::from(compute_units) << 30,
        compute_units,
        flags: GPU_CUDA | GPU_MIG,
        health,
    };
    Ok(Reply::Inventory(ResourceInventory {
        node_id: NodeId([0xee; 32]),
        epoch: fabricbios_wire::Epoch(3),
        health: 0,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![
            info(RESOURCE, 80, health::DEGRADED),
            info(ResourceId(1), 0, health::OK),
        ],
        extensions: vec![
            InventoryExtension::Name(RESOURCE, "H200".into()),
            InventoryExtension::Classes {
                resource_id: RESOURCE,
                default: 0,
                supported: vec![0, 1, 2],
            },
            InventoryExtension::ClassAvailable(RESOURCE, vec![(0, 40 << 30), (1, 0), (2, 0)]),
            InventoryExtension::GpuSlots {
                resource_id: RESOURCE,
                compute_slices: 7,
                compute_slices_free: 3,
                session_slots: 8,
                session_slots_free: 6,
                queue_slots: 16,
            },
        ],
    }))
}

#[test]
fn an_inventory_tells_classes_slots_and_health_of_a_gpu() {
    let node = FakeNode::start(inventory);
    let resources = json_of(&node, "inventory")["resources"].clone();
    let expected = json!({
        "resource_id": RESOURCE_TEXT,
        "resource_type": "gpu",
        "name": "H200",
        "health": "degraded",
        "flags": ["degraded", "cuda", "mig"],
        "capacity": 85_899_345_920_u64,
        "available": 42_949_672_960_u64,
        "classes": {
            "default": "shared",
            "supported": ["shared", "session", "device"],
            "available": { "shared": 42_949_672_960_u64, "session": 0, "device": 0 },
        },
        "gpu": {
            "vram_bytes": 85_899_345_920_u64,
            "compute_units": 80,
            "compute_slices": 7,
            "compute_slices_free": 3,
            "session_slots": 8,
            "session_slots_free": 6,
            "queue_slots": 16,
        },
    });
    assert_eq!(resources[0], expected);
    assert_eq!(resources[1]["gpu"], json!({}));
    let text = text_of(&node, "inventory");
    for part in [
        "gpu  H200  degraded\n",
        "\n  capacity    80 GiB, 80 compute units\n",
        "\n  slots       3 of 7 compute slices free\n",
        "\n              6 of 8 sessions free, 16 queues in each\n",
        "\n  flags       cuda, mig\n",
        "40 GiB  shared   default\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

pub(crate) const RUN: &str = "--ptx DIR/kernels.ptx --kernel add --grid 2 --block 1,1,1 --arg in:DIR/a \
    --arg inout:DIR/b:DIR/b2 --arg out:8:DIR/sum --arg u32:2";

#[test]
fn a_kernel_runs_from_files_to_files_in_a_lease_of_its_own() {
    let world = World::new();
    world.write("a", &[1.0, 2.0]);
    world.write("b", &[10.0, 20.0]);
    world.write("sum", &[0.0; 9]);
    let line = format!("gpu run --vram 1MiB --exclusivity shared --compute-slices 2 {RUN}");
    let json = world.json(&line);
    assert_eq!(fs::read(world.path("sum")).unwrap(), bytes(&[11.0, 22.0]));
    assert_eq!(fs::read(world.path("b2")).unwrap(), bytes(&[10.0, 20.0]));
    let mut expected = json!({
        "lease_id": LEASE_TEXT,
        "session": "7",
        "device": "a GPU of memory",
        "uuid": UUID,
        "kernel": "add",
        "outputs": [
            { "path": world.line("DIR/b2"), "bytes": 8 },
            { "path": world.line("DIR/sum"), "bytes": 8 },
        ],
        "freed": true,
        "wiped": { "bytes": 24, "free_bytes": 1_073_741_824 },
    });
    expected["took_us"] = json["took_us"].clone();
    assert_eq!(json, expected);
    assert!(json["took_us"].as_u64().unwrap() > 0);
    let asked = world.node.asked();
    let Request::LeaseAlloc(alloc) = &asked[0] else {
        panic!("{asked:?}")
    };
    let terms = GpuTerms {
        exclusivity: Some(GpuExclusivityClass::Shared),
        execution_mode: None,
        compute_slices: Some(2),
    };
    assert_eq!((alloc.capacity, alloc.lease_secs), (1 << 20, 60));
    assert_eq!(alloc.terms, terms.into());
    assert_eq!(world.kinds().last(), Some(&"free"));
    assert!(!world.node.gpu().is_running());
}

#[test]
fn a_kernel_in_a_lease_that_is_there_leaves_its_session_and_nothing_in_it() {
    let world = World::new();
    world.write("a", &[1.0, 2.0]);
    world.write("b", &[10.0, 20.0]);
    let text = text_of(
        &world.node,
        &world.line(&format!("gpu run --lease {LEASE_TEXT} {RUN}")),
    );
    for part in [
        &format!("add ran on a GPU of memory ({UUID}), session 7 of lease {LEASE_TEXT}, in "),
        &world.line("8 B is in DIR/sum\n"),
        &format!("`fabricctl gpu close {LEASE_TEXT}` ends it\n"),
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(world.kinds(), ["other"]);
    let gpu = world.node.gpu();
    assert!(gpu.is_running());
    assert_eq!(gpu.memories(), 0);
    let json = world.json(&format!("gpu close --lease {LEASE_TEXT}"));
    let expected = json!({
        "lease_id": LEASE_TEXT,
        "wiped": { "bytes": 24, "free_bytes": 1_073_741_824 },
    });
    assert_eq!(json, expected);
    assert!(!gpu.is_running());
    let text = text_of(&world.node, &format!("gpu close {LEASE_TEXT}"));
    assert!(text.contains("no buffer of the session was left"), "{text}");
}

#[test]
fn a_kernel_that_fails_gives_its_lease_back_and_leaves_the_outputs_as_they_were() {
    let world = World::new();
    world.write("sum", &[7.0]);
    let line = "gpu run --vram 1MiB --ptx DIR/kernels.ptx --kernel missing --arg out:8:DIR/sum --arg out:8:DIR/new";
    let (status, object) = fails(&world.node, &world.line(line));
    assert_eq!(
        (status, &object["reason"]["code"]),
        (3, &"InvalidArgs".into())
    );
    let message = object["message"].as_str().unwrap();
    for part in [
        LEASE_TEXT,
        "no kernel \"missing\" in this module",
        "the leased GPU is one of nvidia",
        "was given back",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert_eq!(world.kinds().last(), Some(&"free"));
    assert_eq!(fs::read(world.path("sum")).unwrap(), bytes(&[7.0]));
    assert!(!world.path("new").exists(), "nothing is in it");
}

#[test]
fn a_session_that_ends_in_the_middle_has_its_own_failure() {
    let world = World::new();
    world.node.gpu().script(|request| match request {
        GpuRequest::Sync { .. } => Act::Die,
        _ => Act::Do,
    });
    let line = format!(
        "gpu run --lease {LEASE_TEXT} --ptx DIR/kernels.ptx --kernel nothing --arg zero:4KiB"
    );
    let (status, object) = fails(&world.node, &world.line(&line));
    let code = &object["reason"]["code"];
    assert_eq!((status, code), (4, &"SessionEnded".into()), "{object}");
    assert!(object["message"].as_str().unwrap().contains(LEASE_TEXT));
}

/// No node and no identity is needed.
#[test]
fn at_the_local_socket_a_lease_is_all_that_is_needed() {
    let world = World::new();
    let path = world.path("local.sock");
    let tenants = Tenants::from([(nix::unistd::geteuid().as_raw(), Vec::new())]);
    let gpu = world.node.gpu();
    let _server = LocalServer::open(&path, tenants, vec![Arc::new(gpu.clone())], None).unwrap();
    let local = |line: &str| {
        let line = format!("--json {line} --local-socket DIR/local.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
        command
            .env_clear()
            .args(world.line(&line).split_whitespace());
        command.output().unwrap()
    };
    let done = |line: &str| -> Value {
        let output = local(line);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    fs::write(world.path("in"), vec![7; 33 << 20]).unwrap();
    done(&format!(
        "gpu run --lease {LEASE_TEXT} --ptx DIR/kernels.ptx --kernel nothing --arg inout:DIR/in:DIR/out"
    ));
    assert!(fs::read(world.path("in")).unwrap() == fs::read(world.path("out")).unwrap());
    let shared = |it: &GpuRequest| matches!(it, GpuRequest::MemWriteShared(_));
    assert!(gpu.log().iter().any(shared));
    done(&format!("gpu close --lease {LEASE_TEXT}"));
    assert!(!gpu.is_running());
    assert!(world.node.asked().is_empty());
    let unknown = "1".repeat(32);
    let output = local(&format!("gpu close --lease {unknown}"));
    let (status, object) = failure(&output);
    assert_eq!((status, &object["reason"]["code"]), (4, &"NotFound".into()));
    gpu.script(|_| Act::Refuse(invalid("no")));
    let (status, _) = failure(&local(&format!("gpu close --lease {LEASE_TEXT}")));
    assert_eq!(status, 3);
    // A lease for this command only needs the node as well.
    let (status, line) = line_of(
        &world.node,
        &world.line(
            "gpu run --vram 1MiB --ptx DIR/kernels.ptx --kernel nothing --local-socket DIR/none.sock",
        ),
    );
    assert!(
        status == 6 && line.contains("DIR/none.sock") || line.contains("none.sock"),
        "{line}"
    );
    assert!(line.contains("was given back"), "{line}");
}
