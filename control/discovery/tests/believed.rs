//! What a receiver believes: forged, replayed, dated and flooded datagrams change nothing.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_discovery::{
    Arrived, Found, HOP_LIMIT, Ignored, KNOWN_MAX, Listener, Moment, News, Speaker, Unanswered,
};
use fabricbios_fabric::{Fabric, FabricDirectory, Verifier};
use fabricbios_wire::{
    Announced, DISCOVERY_BYTES_MAX, Discovery, FlatEntry, ResourceId, ResourceType, Role, Solicit,
    decode_discovery,
};

const SCHEDULER: ResourceType = ResourceType::Scheduler;
/// After the end of every certificate.
const LATE: Duration = Duration::from_secs(20 * 366 * 86_400);

struct World {
    root: tempfile::TempDir,
    fabric: FabricDirectory,
    scheduler: Arc<Fabric>,
    begin: Moment,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let begin = Moment::now();
        let fabric = FabricDirectory::init(&root.path().join("fabric"), begin.wall).unwrap();
        let scheduler = Fabric::open_scheduler(&fabric.scheduler_identity(), begin.wall).unwrap();
        Self {
            root,
            fabric,
            scheduler: Arc::new(scheduler),
            begin,
        }
    }

    fn listener(&self) -> Listener {
        let verifier = Verifier::new(self.fabric.ca().certificate()).unwrap();
        Listener::new(verifier, SCHEDULER)
    }

    fn at(&self, after: Duration) -> Moment {
        Moment {
            monotonic: self.begin.monotonic + after,
            wall: self.begin.wall + after,
        }
    }

    fn secs(&self, secs: u64) -> Moment {
        self.at(Duration::from_secs(secs))
    }

    fn speaker(&self, at: Moment) -> Speaker {
        Speaker::new(Arc::clone(&self.scheduler), at)
    }

    /// A node with a CA of its own.
    fn node(&self) -> Arc<Fabric> {
        let state = self.root.path().join("node");
        Arc::new(Fabric::open_or_create(&state, self.begin.wall).unwrap())
    }

    /// Another scheduler of the same name and another CA.
    fn foreign(&self) -> Arc<Fabric> {
        let path = self.root.path().join("foreign");
        let foreign = FabricDirectory::init(&path, self.begin.wall).unwrap();
        let opened = Fabric::open_scheduler(&foreign.scheduler_identity(), self.begin.wall);
        Arc::new(opened.unwrap())
    }
}

fn entry(resource_type: ResourceType) -> FlatEntry {
    FlatEntry {
        resource_id: ResourceId(7),
        resource_type,
        flags: 0,
        capacity: 0,
        available: 1,
    }
}

fn offer_at(address: &str, resource_type: ResourceType) -> Announced {
    Announced {
        lifetime_secs: 30,
        endpoint: address.parse::<SocketAddr>().unwrap().into(),
        has_more: false,
        entries: vec![entry(resource_type)],
    }
}

fn offer() -> Announced {
    offer_at("192.0.2.1:5704", SCHEDULER)
}

fn arrived(bytes: &[u8]) -> Arrived {
    Arrived {
        bytes: bytes.to_vec(),
        hop_limit: HOP_LIMIT,
        interface: 3,
        from: None,
    }
}

fn addresses(found: &[Found]) -> Vec<String> {
    let all = found.iter().flat_map(|it| &it.addresses);
    all.map(ToString::to_string).collect()
}

#[test]
fn a_scheduler_is_found_until_its_announcement_is_over() {
    let world = World::new();
    let (mut listener, mut speaker) = (world.listener(), world.speaker(world.begin));
    let id = world.scheduler.node_id();
    let announce =
        |speaker: &mut Speaker, offer: &Announced, at| speaker.announce(offer, at).unwrap();
    let first = announce(&mut speaker, &offer(), world.secs(0));
    assert!(first.len() <= DISCOVERY_BYTES_MAX);
    let hear = |listener: &mut Listener, bytes: &[u8], at| listener.hear(&arrived(bytes), at);
    assert_eq!(
        hear(&mut listener, &first, world.secs(0)),
        Ok(News::Came(id))
    );
    let again = announce(&mut speaker, &offer(), world.secs(10));
    assert_eq!(
        hear(&mut listener, &again, world.secs(10)),
        Ok(News::GoesOn(id))
    );
    let on_link = offer_at("[fe80::1]:5704", SCHEDULER);
    let on_link = announce(&mut speaker, &on_link, world.secs(11));
    assert_eq!(
        hear(&mut listener, &on_link, world.secs(11)),
        Ok(News::Came(id))
    );
    let at = |secs| listener.found(world.secs(secs).monotonic);
    assert_eq!(addresses(&at(39)), ["192.0.2.1:5704", "[fe80::1%3]:5704"]);
    assert_eq!((at(39)[0].id, at(39)[0].http_port()), (id, None));
    assert_eq!(addresses(&at(40)), ["[fe80::1%3]:5704"]);
    assert_eq!(at(41), []);
}

#[test]
fn one_flipped_bit_and_nothing_is_believed() {
    let world = World::new();
    let whole = world
        .speaker(world.begin)
        .announce(&offer(), world.begin)
        .unwrap();
    for at in 0..whole.len() * 8 {
        let mut listener = world.listener();
        let mut bytes = whole.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        let heard = listener.hear(&arrived(&bytes), world.begin);
        assert!(heard.is_err(), "bit {at}: {heard:?}");
        assert_eq!(listener.found(world.begin.monotonic), []);
    }
}

#[test]
fn another_ca_another_role_and_an_ended_certificate_are_refused() {
    let world = World::new();
    let mut listener = world.listener();
    let mut hear = |bytes: &[u8], at: Moment| listener.hear(&arrived(bytes), at);
    let foreign = world.foreign();
    let mut speaker = Speaker::new(Arc::clone(&foreign), world.begin);
    let theirs = speaker.announce(&offer(), world.begin).unwrap();
    assert_eq!(hear(&theirs, world.begin), Err(Ignored::OtherFabric));
    // It says our fingerprint.
    let mut posing = theirs;
    posing[8..24].copy_from_slice(&world.fabric.id().0);
    let refused = hear(&posing, world.begin);
    assert!(
        matches!(refused, Err(Ignored::Certificate(_))),
        "{refused:?}"
    );
    let mut of_memory = offer();
    of_memory.entries.push(entry(ResourceType::Mem));
    let too_much = world.speaker(world.begin).announce(&of_memory, world.begin);
    let refused = hear(&too_much.unwrap(), world.begin);
    assert_eq!(refused, Err(Ignored::Role(Role::Scheduler)));
    let late = world.at(LATE);
    let mut speaker = world.speaker(late);
    let mut ended = || speaker.announce(&offer(), late).unwrap();
    let refused = hear(&ended(), late);
    assert!(
        matches!(refused, Err(Ignored::Certificate(_))),
        "{refused:?}"
    );
    assert_eq!(listener.found(late.monotonic), []);
    // Also that of a sender which was known while it was valid.
    let mut listener = world.listener();
    let valid = world.speaker(world.begin).announce(&offer(), world.begin);
    let valid = listener.hear(&arrived(&valid.unwrap()), world.begin);
    assert_eq!(valid, Ok(News::Came(world.scheduler.node_id())));
    let refused = listener.hear(&arrived(&ended()), late);
    let why = Err(Ignored::Certificate("it has expired".into()));
    assert_eq!(refused, why);
}

#[test]
fn a_node_announces_resources_and_is_no_scheduler() {
    let world = World::new();
    let node = world.node();
    let verifier = || Verifier::new(&node.present().unwrap().ca).unwrap();
    let mut speaker = Speaker::new(Arc::clone(&node), world.begin);
    let posing = speaker.announce(&offer(), world.begin).unwrap();
    let mut listener = Listener::new(verifier(), SCHEDULER);
    let refused = listener.hear(&arrived(&posing), world.begin);
    assert_eq!(refused, Err(Ignored::Role(Role::Node)));
    let memory = offer_at("192.0.2.1:5701", ResourceType::Mem);
    let memory = speaker.announce(&memory, world.begin).unwrap();
    let mut listener = Listener::new(verifier(), ResourceType::Mem);
    let heard = listener.hear(&arrived(&memory), world.begin);
    assert_eq!(heard, Ok(News::Came(node.node_id())));
    let refused = listener.hear(&arrived(&posing), world.begin);
    assert_eq!(refused, Err(Ignored::OtherType));
}

/// Who says that a scheduler is a node, or a node a scheduler, is believed in neither.
#[test]
fn the_role_of_the_certificate_must_suit_every_entry() {
    let world = World::new();
    let entries = [
        Vec::new(),
        vec![SCHEDULER],
        vec![ResourceType::Mem],
        vec![ResourceType::Mem, SCHEDULER],
    ];
    let node = world.node();
    for (fabric, role, suiting) in [
        (&world.scheduler, Role::Scheduler, &entries[1]),
        (&node, Role::Node, &entries[2]),
    ] {
        for types in &entries {
            for wanted in [SCHEDULER, Solicit::NODES, ResourceType::Mem] {
                let verifier = Verifier::new(&fabric.present().unwrap().ca).unwrap();
                let mut listener = Listener::new(verifier, wanted);
                let offer = Announced {
                    entries: types.iter().map(|it| entry(*it)).collect(),
                    ..offer()
                };
                let mut speaker = Speaker::new(Arc::clone(fabric), world.begin);
                let bytes = speaker.announce(&offer, world.begin).unwrap();
                let heard = listener.hear(&arrived(&bytes), world.begin);
                let suits = types == suiting || types.is_empty() && role == Role::Node;
                match heard {
                    Ok(News::Came(id)) => assert!(suits && id == fabric.node_id()),
                    Err(Ignored::OtherType) => {}
                    Err(Ignored::Role(of)) => assert!(!suits && of == role, "{types:?}"),
                    other => panic!("{other:?}"),
                }
                let is_taken = heard.is_ok();
                let is_looked_for = match wanted {
                    Solicit::NODES => !types.contains(&SCHEDULER),
                    wanted => types.contains(&wanted),
                };
                assert_eq!(
                    is_taken,
                    suits && is_looked_for,
                    "{role} {types:?} {wanted}"
                );
                assert_eq!(
                    listener.found(world.begin.monotonic).len(),
                    usize::from(is_taken)
                );
            }
        }
    }
}

#[test]
fn who_looks_for_nodes_learns_what_each_has_now() {
    let world = World::new();
    let node = world.node();
    let verifier = Verifier::new(&node.present().unwrap().ca).unwrap();
    let mut listener = Listener::new(verifier, Solicit::NODES);
    let mut speaker = Speaker::new(Arc::clone(&node), world.begin);
    let solicit = listener.solicit(1);
    for available in [7, 7, 3] {
        let mut memory = offer_at("192.0.2.1:5701", ResourceType::Mem);
        memory.entries[0].available = available;
        let bytes = speaker.announce(&memory, world.begin).unwrap();
        listener.hear(&arrived(&bytes), world.begin).unwrap();
        let [found] = &listener.found(world.begin.monotonic)[..] else {
            panic!("none is found");
        };
        assert_eq!(
            (found.id, &found.entries),
            (node.node_id(), &memory.entries)
        );
        assert_eq!((found.has_more, found.http_port()), (false, None));
    }
    // A node answers, whatever it has; and no scheduler does.
    let nothing = Announced {
        entries: Vec::new(),
        ..offer()
    };
    for (offer, answers) in [
        (offer_at("192.0.2.1:5701", ResourceType::Gpu), true),
        (nothing, true),
        (offer(), false),
    ] {
        let answer = speaker.answer(&solicit, HOP_LIMIT, &offer, world.begin);
        assert_eq!(answer.is_ok(), answers, "{answer:?}");
    }
    let schedulers = Listener::new(
        Verifier::new(&node.present().unwrap().ca).unwrap(),
        SCHEDULER,
    )
    .solicit(1);
    let answer = speaker.answer(
        &schedulers,
        HOP_LIMIT,
        &offer_at("192.0.2.1:5701", ResourceType::Mem),
        world.begin,
    );
    assert_eq!(answer, Err(Unanswered::OtherType));
}

#[test]
fn of_many_resources_one_of_each_type_is_announced() {
    let world = World::new();
    let mut speaker = Speaker::new(world.node(), world.begin);
    let types = [
        [ResourceType::Mem; 20],
        [ResourceType::Gpu; 20],
        [ResourceType::Net; 20],
    ];
    let entries: Vec<FlatEntry> = { types.concat().into_iter().zip(1..) }
        .map(|(it, id)| FlatEntry {
            resource_id: ResourceId(id),
            available: u64::from(id > 2),
            ..entry(it)
        })
        .collect();
    let bytes = speaker
        .announce(&Announced { entries, ..offer() }, world.begin)
        .unwrap();
    let Ok(Discovery::Signed(signed)) = decode_discovery(&bytes) else {
        panic!("{bytes:?}");
    };
    let told = signed.told.offer.unwrap();
    let ids: Vec<u128> = told.entries.iter().map(|it| it.resource_id.0).collect();
    // Of the first two nothing is available.
    assert_eq!(ids, [3, 4, 5, 6, 21, 22, 23, 24, 41, 42, 43, 44]);
    assert!(told.has_more);
}

#[test]
fn of_13_resources_12_are_announced_and_a_flag_says_that_there_are_more() {
    let world = World::new();
    let node = world.node();
    let verifier = Verifier::new(&node.present().unwrap().ca).unwrap();
    let mut listener = Listener::new(verifier, ResourceType::Mem);
    let mut speaker = Speaker::new(node, world.begin);
    for (resources, has_more) in [(12, false), (13, true)] {
        let entries = (1..=resources).map(|id| FlatEntry {
            resource_id: ResourceId(id),
            ..entry(ResourceType::Mem)
        });
        let offer = Announced {
            entries: entries.collect(),
            ..offer()
        };
        let bytes = speaker.announce(&offer, world.begin).unwrap();
        assert!(bytes.len() <= DISCOVERY_BYTES_MAX, "{}", bytes.len());
        let Ok(Discovery::Signed(signed)) = decode_discovery(&bytes) else {
            panic!("{bytes:?}");
        };
        let expected = Announced {
            has_more,
            entries: offer.entries[..12].to_vec(),
            ..offer
        };
        assert_eq!(signed.told.offer, Some(expected));
        listener.hear(&arrived(&bytes), world.begin).unwrap();
    }
}

#[test]
fn what_was_said_before_is_not_believed_again() {
    let world = World::new();
    let mut listener = world.listener();
    let mut speaker = world.speaker(world.begin);
    let first = speaker.announce(&offer(), world.begin).unwrap();
    let second = speaker.announce(&offer(), world.begin).unwrap();
    let mut hear = |bytes: &[u8], at| listener.hear(&arrived(bytes), at);
    hear(&second, world.begin).unwrap();
    for old in [&first, &second] {
        assert_eq!(hear(old, world.begin), Err(Ignored::Replayed));
    }
    // It starts anew at another place: what it said before is not believed, whatever its sequence.
    let mut anew = world.speaker(world.secs(5));
    let elsewhere = offer_at("192.0.2.9:5704", SCHEDULER);
    let elsewhere = anew.announce(&elsewhere, world.secs(5)).unwrap();
    hear(&elsewhere, world.secs(5)).unwrap();
    for _ in 0..9 {
        speaker.announce(&offer(), world.secs(6)).unwrap();
    }
    let old_epoch = speaker.announce(&offer(), world.secs(6)).unwrap();
    assert_eq!(hear(&old_epoch, world.secs(6)), Err(Ignored::Replayed));
    // It has withdrawn: what it said before does not bring it back.
    let withdrawn = anew.withdraw(world.secs(7)).unwrap();
    let id = world.scheduler.node_id();
    assert_eq!(hear(&withdrawn, world.secs(7)), Ok(News::Went(id)));
    for old in [&second, &elsewhere, &withdrawn] {
        assert_eq!(hear(old, world.secs(8)), Err(Ignored::Replayed));
    }
    assert_eq!(listener.found(world.secs(8).monotonic), []);
    // Who has heard nothing yet takes nothing that is older than an hour, or newer.
    for now in [world.secs(3_700), world.secs(0)] {
        let bytes = world.speaker(now).announce(&offer(), world.secs(3_650));
        let apart = world.listener().hear(&arrived(&bytes.unwrap()), now);
        let is_near = now.monotonic == world.secs(3_700).monotonic;
        assert_eq!(apart.is_ok(), is_near, "{apart:?}");
        assert!(is_near || apart == Err(Ignored::Dated));
    }
    let dated = world.listener().hear(&arrived(&first), world.secs(3_601));
    assert_eq!(dated, Err(Ignored::Dated));
}

#[test]
fn an_answer_counts_once_and_only_to_the_last_question() {
    let world = World::new();
    let mut listener = world.listener();
    let mut before = world.speaker(world.secs(1_000));
    let announce = before.announce(&offer(), world.secs(1_000)).unwrap();
    listener
        .hear(&arrived(&announce), world.secs(1_000))
        .unwrap();
    // The scheduler starts anew with a clock that was set back.
    let mut anew = world.speaker(world.secs(900));
    let mut answer = |nonce: u64, listener: &mut Listener| {
        let solicit = listener.solicit(nonce);
        let answer = anew.answer(&solicit, HOP_LIMIT, &offer(), world.secs(900));
        answer.unwrap()
    };
    let first = answer(5, &mut listener);
    let second = answer(6, &mut listener);
    let now = world.secs(1_010);
    let refused = listener.hear(&arrived(&first), now);
    assert_eq!(refused, Err(Ignored::Replayed));
    listener.hear(&arrived(&second), now).unwrap();
    let again = listener.hear(&arrived(&second), now);
    assert_eq!(again, Err(Ignored::Replayed));
    let late = before.announce(&offer(), now).unwrap();
    listener.hear(&arrived(&late), now).unwrap();
}

#[test]
fn who_only_asks_takes_answers_to_the_last_question_alone() {
    let world = World::new();
    let mut listener = world.listener().only_answers();
    let mut speaker = world.speaker(world.begin);
    let now = world.secs(1);
    let announce = speaker.announce(&offer(), now).unwrap();
    let mut answer = |nonce: u64, listener: &mut Listener| {
        let solicit = listener.solicit(nonce);
        speaker.answer(&solicit, HOP_LIMIT, &offer(), now).unwrap()
    };
    let earlier = answer(5, &mut listener);
    let last = answer(6, &mut listener);
    for other in [announce, earlier] {
        let refused = listener.hear(&arrived(&other), now);
        assert_eq!(refused, Err(Ignored::Replayed));
    }
    listener.hear(&arrived(&last), now).unwrap();
}

#[test]
fn a_withdraw_makes_its_own_sender_forgotten_and_nobody_else() {
    let world = World::new();
    let mut listener = world.listener();
    let other = another_scheduler(&world, 1);
    let mut speakers = [
        world.speaker(world.begin),
        Speaker::new(Arc::clone(&other), world.begin),
    ];
    for speaker in &mut speakers {
        let announce = speaker.announce(&offer(), world.begin).unwrap();
        listener.hear(&arrived(&announce), world.begin).unwrap();
    }
    let mut foreign = Speaker::new(world.foreign(), world.begin);
    let mut forged = foreign.withdraw(world.secs(1)).unwrap();
    forged[8..24].copy_from_slice(&world.fabric.id().0);
    let refused = listener.hear(&arrived(&forged), world.secs(1));
    assert_eq!(refused, Err(Ignored::Unknown));
    let withdraw = speakers[1].withdraw(world.secs(1)).unwrap();
    listener.hear(&arrived(&withdraw), world.secs(1)).unwrap();
    let left = listener.found(world.secs(1).monotonic);
    let left: Vec<_> = left.iter().map(|it| it.id).collect();
    assert_eq!(left, [world.scheduler.node_id()]);
}

#[test]
fn what_came_through_a_router_is_neither_believed_nor_answered() {
    let world = World::new();
    let mut speaker = world.speaker(world.begin);
    let bytes = speaker.announce(&offer(), world.begin).unwrap();
    let mut listener = world.listener();
    let solicit = listener.solicit(1);
    for hop_limit in [0, 1, 64, 254] {
        let far = Arrived {
            hop_limit,
            ..arrived(&bytes)
        };
        assert_eq!(listener.hear(&far, world.begin), Err(Ignored::Far));
        let answer = speaker.answer(&solicit, hop_limit, &offer(), world.begin);
        assert_eq!(answer, Err(Unanswered::Far));
    }
    listener.hear(&arrived(&bytes), world.begin).unwrap();
    speaker
        .answer(&solicit, HOP_LIMIT, &offer(), world.begin)
        .unwrap();
}

#[test]
fn nobody_gets_more_than_he_has_sent() {
    let world = World::new();
    let mut speaker = world.speaker(world.begin);
    let solicit = world.listener().solicit(1);
    let mut answer = |bytes: &[u8]| speaker.answer(bytes, HOP_LIMIT, &offer(), world.begin);
    let length = answer(&solicit).unwrap().len();
    // A signature takes 72 bytes at most, and mostly 70 or more: each leading byte that is zero is left out of its numbers.
    assert_eq!(answer(&solicit[..length - 16]), Err(Unanswered::Short));
    assert_eq!(answer(&solicit[..40]), Err(Unanswered::Short));
    answer(&solicit[..length + 16]).unwrap();
    for (other, why) in [
        (
            Solicit {
                fabric: [9; 16],
                ..asked(&solicit)
            },
            Unanswered::OtherFabric,
        ),
        (
            Solicit {
                resource_type: ResourceType::Mem,
                ..asked(&solicit)
            },
            Unanswered::OtherType,
        ),
    ] {
        assert_eq!(answer(&other.encode()), Err(why));
    }
    let own = speaker.announce(&offer(), world.begin).unwrap();
    let answer = speaker.answer(&own, HOP_LIMIT, &offer(), world.begin);
    assert_eq!(answer, Err(Unanswered::NoSolicit));
}

fn asked(datagram: &[u8]) -> Solicit {
    match decode_discovery(datagram) {
        Ok(Discovery::Solicit(it)) => it,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flood_of_questions_gets_a_bounded_number_of_answers() {
    let world = World::new();
    let mut speaker = world.speaker(world.begin);
    let solicit = world.listener().solicit(1);
    let mut in_flood = |at: Moment| {
        let answers = (0..1_000).map(|_| speaker.answer(&solicit, HOP_LIMIT, &offer(), at));
        answers.filter(Result::is_ok).count()
    };
    assert_eq!([in_flood(world.secs(0)), in_flood(world.secs(1))], [50, 50]);
}

#[test]
fn a_flood_of_forged_datagrams_costs_a_bounded_number_of_checks_and_hides_no_known_sender() {
    let world = World::new();
    let mut listener = world.listener();
    let mut speaker = world.speaker(world.begin);
    let announce = speaker.announce(&offer(), world.begin).unwrap();
    listener.hear(&arrived(&announce), world.begin).unwrap();
    let mut foreign = Speaker::new(world.foreign(), world.begin).announce(&offer(), world.begin);
    let forged = foreign.as_mut().unwrap();
    forged[8..24].copy_from_slice(&world.fabric.id().0);
    let mut checked = 0;
    for _ in 0..1_000 {
        match listener.hear(&arrived(forged), world.secs(1)) {
            Err(Ignored::TooMany) => {}
            Err(Ignored::Certificate(_)) => checked += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(checked, 20);
    let again = speaker.announce(&offer(), world.secs(1)).unwrap();
    listener.hear(&arrived(&again), world.secs(1)).unwrap();
    // With the certificate of the known sender, which everybody has seen, and a later sequence.
    let mut posing = speaker.announce(&offer(), world.secs(2)).unwrap();
    let last = posing.len() - 1;
    posing[last] ^= 1;
    let mut checked = 0;
    for _ in 0..1_000 {
        match listener.hear(&arrived(&posing), world.secs(2)) {
            Err(Ignored::TooMany) => {}
            Err(Ignored::Signature) => checked += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(checked, 4);
    assert_eq!(
        addresses(&listener.found(world.secs(2).monotonic)),
        ["192.0.2.1:5704"]
    );
}

/// A scheduler with a key of its own, which the CA of the fabric has signed.
fn another_scheduler(world: &World, number: usize) -> Arc<Fabric> {
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key);
    let request = request.unwrap().pem().unwrap();
    let scheduler = fabricbios_fabric::Member::Scheduler;
    let now = world.begin.wall;
    let signed = world.fabric.sign(&request, &scheduler, None, now).unwrap();
    let path = world.root.path().join(format!("scheduler-{number}"));
    write_private(&path, &format!("{}{}", key.serialize_pem(), signed.pem));
    Arc::new(Fabric::open_scheduler(&path, SystemTime::now()).unwrap())
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn the_memory_is_bounded_and_no_sender_that_is_there_makes_way() {
    let world = World::new();
    let mut listener = world.listener();
    let mut hear = |fabric: &Arc<Fabric>, at: Moment| {
        let mut speaker = Speaker::new(Arc::clone(fabric), at);
        listener.hear(&arrived(&speaker.announce(&offer(), at).unwrap()), at)
    };
    let step = Duration::from_millis(100);
    let at = |number: usize| world.at(step * u32::try_from(number).unwrap());
    let others: Vec<_> = { 0..=KNOWN_MAX }
        .map(|it| another_scheduler(&world, it))
        .collect();
    for (number, other) in others.iter().take(KNOWN_MAX).enumerate() {
        hear(other, at(number)).unwrap();
    }
    let one_more = &others[KNOWN_MAX];
    assert_eq!(hear(one_more, at(KNOWN_MAX)), Err(Ignored::Full));
    // The first one is over: it makes way.
    let first_is_over = world.secs(31);
    hear(one_more, first_is_over).unwrap();
    let found = listener.found(first_is_over.monotonic);
    assert!(found.len() <= KNOWN_MAX);
    assert!(found.iter().any(|it| it.id == one_more.node_id()));
}
