//! Several arenas on one node: each is its own resource, with its own bytes.

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt, path::Path, time::Duration};

use fabricbios_node::settings::Settings;
use fabricbios_wire::*;

use crate::world::*;

/// Length of the first page of a file, which says whose file it is.
const PAGE: u64 = 4096;

/// Two arenas in files, `here` and `there`, and `loose` without a file. Each has room for two leases.
fn three(directory: &Path) -> Settings {
    let bytes = 2 * LEASE_BYTES;
    let in_file = |name| {
        let file = directory.join(name);
        format!("{name}={bytes},file={}", file.display())
    };
    let all = [in_file("here"), in_file("there"), format!("loose={bytes}")];
    let mut settings = settings(directory);
    settings.kinds.shared.auto_detect = true;
    let memory = &mut settings.kinds.memory;
    memory.mem_bytes = None;
    memory.mem_arena = all.iter().map(|it| it.parse().expect("an arena")).collect();
    settings
}

/// The resources of the arenas by their names.
async fn ids(world: &World) -> BTreeMap<String, ResourceId> {
    let inventory = world.inventory().await;
    let is_memory = |id| inventory.mem_arenas.iter().any(|it| it.resource_id == id);
    let name = |extension: &InventoryExtension| match extension {
        InventoryExtension::Name(id, name) if is_memory(*id) => Some((name.clone(), *id)),
        _ => None,
    };
    inventory.extensions.iter().filter_map(name).collect()
}

async fn alloc_of(world: &World, resource_id: ResourceId) -> LeaseInfo {
    alloc_bytes(world, resource_id, LEASE_BYTES).await
}

/// Requests a lease, and waits while the bytes are being scrubbed.
async fn alloc_bytes(world: &World, resource_id: ResourceId, capacity: u64) -> LeaseInfo {
    let request = LeaseAllocRequest {
        resource_id: Some(resource_id),
        capacity,
        ..request(60)
    };
    loop {
        let error = match world.operator.alloc_async(request.clone()).await {
            Ok(info) => {
                assert_eq!(info.resource_id, resource_id);
                return info;
            }
            Err(error) => error,
        };
        let wait_ms = error.refusal().and_then(|it| it.retry_after_ms);
        let wait_ms = wait_ms.unwrap_or_else(|| panic!("{error}"));
        tokio::time::sleep(Duration::from_millis(wait_ms.into())).await;
    }
}

/// Writes into the file of an arena, after its first page.
fn plant(file: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(file);
    let planted = file.expect("the arena").write_all_at(bytes, PAGE + offset);
    planted.expect("written");
}

/// The first bytes after the first page of an arena's file.
fn stored(file: &Path) -> [u8; 5] {
    let mut bytes = [0; 5];
    let file = fs::File::open(file).expect("the arena");
    file.read_exact_at(&mut bytes, PAGE).expect("read");
    bytes
}

#[tokio::test]
async fn every_arena_is_listed_and_counted_by_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(three(directory.path())).await;
    let ids = ids(&world).await;
    assert_eq!(ids.keys().collect::<Vec<_>>(), ["here", "loose", "there"]);
    alloc_of(&world, ids["there"]).await;
    let told = world.inventory().await;
    // The machine's memory contains these arenas, so the inventory does not list it too.
    assert_eq!(told.mem_arenas.len(), 3);
    for arena in &told.mem_arenas {
        assert_eq!((arena.len, arena.health), (2 * LEASE_BYTES, health::OK));
    }
    let flat = world.flat_inventory().await;
    let memory = { flat.iter() }.filter(|it| it.resource_type == ResourceType::Mem);
    let listed: BTreeMap<_, _> = memory.map(|it| (it.resource_id, it.available)).collect();
    assert_eq!(listed.len(), 3);
    for (name, id) in &ids {
        let held = if name == "there" { LEASE_BYTES } else { 0 };
        let free = 2 * LEASE_BYTES - held;
        assert_eq!(listed[id], free, "{name}");
        let told = InventoryExtension::Available(*id, free);
        assert!(world.inventory().await.extensions.contains(&told), "{name}");
    }
    world.stop().await;
}

#[tokio::test]
async fn equal_offsets_of_two_arenas_have_different_bytes_and_each_is_cleaned_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(three(directory.path())).await;
    let ids = ids(&world).await;
    let file = directory.path().join("here");
    // The lease has the whole arena, so the next lease has the same bytes.
    let all_of = async |name: &str| alloc_bytes(&world, ids[name], 2 * LEASE_BYTES).await;
    let (here, loose) = (all_of("here").await, all_of("loose").await);
    write(&here, 0, b"here!").await.expect("written");
    write(&loose, 0, b"loose").await.expect("written");
    assert_eq!(stored(&file), *b"here!");
    assert_eq!(first(&here).await.expect("read"), *b"here!");
    assert_eq!(first(&loose).await.expect("read"), *b"loose");

    world.lease(Request::LeaseFree(loose.lease_id)).await;
    let loose = all_of("loose").await;
    assert_eq!(first(&loose).await.expect("read"), [0; 5]);
    assert_eq!(first(&here).await.expect("read"), *b"here!");
    write(&loose, 0, b"again").await.expect("written");

    world.lease(Request::LeaseFree(here.lease_id)).await;
    let here = all_of("here").await;
    assert_eq!(
        (first(&here).await.expect("read"), stored(&file)),
        ([0; 5], [0; 5])
    );
    assert_eq!(first(&loose).await.expect("read"), *b"again");
    world.stop().await;
}

#[tokio::test]
async fn a_request_without_a_resource_goes_where_room_is_and_a_quota_counts_all_arenas() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut settings = three(directory.path());
    settings.kinds.memory.mem_per_tenant_max = Some(Size(5 * LEASE_BYTES));
    let world = World::start(settings).await;
    let blue = world.tenant("blue").await;
    let mut taken = BTreeMap::<_, u32>::new();
    for _ in 0..5 {
        let info = blue.alloc_async(request(60)).await.expect("granted");
        write(&info, 0, b"mine!").await.expect("written");
        *taken.entry(info.resource_id).or_default() += 1;
    }
    assert_eq!(taken.values().sum::<u32>(), 5);
    assert_eq!(taken.len(), 3, "two fit in each: {taken:?}");
    let refusal = refusal(blue.alloc_async(request(60)).await);
    let holds = format!("holds {}", 5 * LEASE_BYTES);
    assert!(refusal.message.contains(&holds), "{refusal}");
    world.alloc(60).await;
    world.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_what_is_in_a_file_and_cleans_each_arena_around_its_own_leases() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = three(directory.path());
    let world = World::start(settings.clone()).await;
    let ids = ids(&world).await;
    let here = alloc_of(&world, ids["here"]).await;
    let loose = alloc_of(&world, ids["loose"]).await;
    write(&here, 0, b"stays").await.expect("written");
    world.crash().await;
    // At an offset at which only the other arena has a lease.
    plant(&directory.path().join("there"), 0, b"left!");
    plant(&directory.path().join("here"), LEASE_BYTES, b"left!");

    let world = World::start(settings).await;
    let kept = world.until(here.lease_id, LeasePhase::Active).await;
    assert_eq!(first(&kept).await.expect("read"), *b"stays");
    assert_eq!(world.query(loose.lease_id).await.phase, LeasePhase::Revoked);
    for name in ["here", "there", "loose"] {
        let fresh = alloc_of(&world, ids[name]).await;
        assert_eq!(first(&fresh).await.expect("read"), [0; 5], "{name}");
    }
    world.stop().await;
}

#[tokio::test]
async fn an_older_journal_is_found_out_by_the_file_of_every_arena() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = three(directory.path());
    let journal = settings.state_dir().join("journal.redb");
    let copy = settings.state_dir().join("copy");
    let world = World::start(settings.clone()).await;
    let ids = ids(&world).await;
    let hers = [
        alloc_of(&world, ids["here"]).await,
        alloc_of(&world, ids["there"]).await,
    ];
    world.crash().await;
    fs::copy(&journal, &copy).expect("copied");

    let world = World::start(settings.clone()).await;
    for lease in &hers {
        world.until(lease.lease_id, LeasePhase::Active).await;
        world.lease(Request::LeaseFree(lease.lease_id)).await;
        let his = alloc_of(&world, lease.resource_id).await;
        write(&his, 0, b"his!!").await.expect("written");
    }
    world.crash().await;
    fs::rename(&copy, &journal).expect("put back");

    let world = World::start(settings).await;
    for lease in &hers {
        assert_eq!(world.query(lease.lease_id).await.phase, LeasePhase::Revoked);
        let fresh = alloc_of(&world, lease.resource_id).await;
        assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    }
    world.stop().await;
}

/// As with `--mem-bytes`: leases of an arena that is no longer on offer are over, and its bytes are overwritten when it
/// is offered again.
#[tokio::test]
async fn leases_of_an_arena_that_a_start_does_not_offer_are_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = three(directory.path());
    let world = World::start(settings.clone()).await;
    let ids = ids(&world).await;
    let [here, there] = [
        alloc_of(&world, ids["here"]).await,
        alloc_of(&world, ids["there"]).await,
    ];
    write(&here, 0, b"here!").await.expect("written");
    write(&there, 0, b"there").await.expect("written");
    world.crash().await;

    let mut fewer = settings.clone();
    fewer.kinds.memory.mem_arena.retain(|it| it.name != "there");
    let world = World::start(fewer).await;
    world.until(here.lease_id, LeasePhase::Active).await;
    assert_eq!(world.query(there.lease_id).await.phase, LeasePhase::Revoked);
    world.crash().await;

    let world = World::start(settings).await;
    let kept = world.until(here.lease_id, LeasePhase::Active).await;
    assert_eq!(first(&kept).await.expect("read"), *b"here!");
    assert_eq!(world.query(there.lease_id).await.phase, LeasePhase::Revoked);
    let fresh = alloc_of(&world, ids["there"]).await;
    assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    world.stop().await;
}

#[tokio::test]
async fn files_that_change_places_give_nobody_the_bytes_of_the_other_arena() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = three(directory.path());
    let world = World::start(settings.clone()).await;
    let ids = ids(&world).await;
    let here = alloc_of(&world, ids["here"]).await;
    let there = alloc_of(&world, ids["there"]).await;
    write(&here, 0, b"here!").await.expect("written");
    write(&there, 0, b"there").await.expect("written");
    world.crash().await;
    let at = |name: &str| directory.path().join(name);
    for (from, to) in [("here", "aside"), ("there", "here"), ("aside", "there")] {
        fs::rename(at(from), at(to)).expect("moved");
    }

    let world = World::start(settings).await;
    for lease in [here, there] {
        assert_eq!(world.query(lease.lease_id).await.phase, LeasePhase::Revoked);
        let fresh = alloc_of(&world, lease.resource_id).await;
        assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    }
    world.stop().await;
}
