//! Every golden vector: its bytes and what they mean, or which refusal they deserve.

use std::fmt::Write as _;

use fabricbios_wire::*;

use crate::{
    describe::{self, Lines},
    samples,
};

/// What the bytes of a case are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    /// A reply to this header.
    Answer(Header),
    /// The params of a LEASE_ALLOC.
    Tlv,
    Flat,
    Structured,
}

pub(crate) struct Case {
    name: String,
    kind: Kind,
    about: String,
    bytes: Vec<u8>,
    expect: Expect,
}

enum Expect {
    /// These bytes are the only ones that an encoder makes of the value.
    Canonical(Lines),
    /// A decoder takes them; an encoder would write something else.
    Accepted(Lines),
    Refused(LeaseError),
}

impl Case {
    pub(crate) fn file_name(&self) -> String {
        format!("{}.hex", self.name)
    }

    /// The whole text of its file.
    pub(crate) fn file(&self) -> String {
        let mut out = format!("# name: {}\n# kind: {}\n", self.name, self.kind.word());
        let mut line = |key: &str, value: &str| out.push_str(&format!("# {key}: {value}\n"));
        if let Kind::Answer(asked) = self.kind {
            line("asked", &describe::header(&asked).join(", "));
        }
        line("about", &self.about);
        match &self.expect {
            Expect::Canonical(_) => line("expect", "ok"),
            Expect::Accepted(_) => line("expect", "ok, not canonical"),
            Expect::Refused(error) => line("expect", &format!("refused {error}")),
        }
        if let Expect::Canonical(lines) | Expect::Accepted(lines) = &self.expect {
            lines.iter().for_each(|value| line("value", value));
        }
        out + &hex_lines(&self.bytes)
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Answer(_) => "answer",
            Self::Tlv => "tlv",
            Self::Flat => "flat",
            Self::Structured => "structured",
        }
    }
}

fn hex_lines(bytes: &[u8]) -> String {
    let mut out = String::new();
    for row in bytes.chunks(16) {
        row.iter()
            .for_each(|byte| write!(out, "{byte:02x}").unwrap_or_default());
        out.push('\n');
    }
    out
}

/// All of them; the order does not matter.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![];
    requests(&mut cases);
    bad_headers(&mut cases);
    bad_requests(&mut cases);
    answers(&mut cases);
    refusals(&mut cases);
    bad_answers(&mut cases);
    tlvs(&mut cases);
    bad_classes(&mut cases);
    bad_tlvs(&mut cases);
    inventories(&mut cases);
    bad_inventories(&mut cases);
    cases
}

const REQUEST_ID: u32 = 0x0102_0304;
const NONCE: u64 = 0x1112_1314_1516_1718;

fn asked(message: MessageType) -> Header {
    let msg_type = message as u16;
    Header {
        flags: 0,
        msg_type,
        request_id: REQUEST_ID,
        nonce: NONCE,
        payload_len: 0,
    }
}

fn good(cases: &mut Vec<Case>, name: &str, kind: Kind, about: &str, bytes: Vec<u8>, lines: Lines) {
    let (name, about) = (name.to_owned(), about.to_owned());
    cases.push(Case {
        name,
        kind,
        about,
        bytes,
        expect: Expect::Canonical(lines),
    });
}

fn bad(
    cases: &mut Vec<Case>,
    name: &str,
    kind: Kind,
    about: &str,
    bytes: Vec<u8>,
    error: LeaseError,
) {
    let (name, about) = (name.to_owned(), about.to_owned());
    cases.push(Case {
        name,
        kind,
        about,
        bytes,
        expect: Expect::Refused(error),
    });
}

fn request(cases: &mut Vec<Case>, name: &str, about: &str, request: Request) {
    let header = asked(request.message_type());
    let lines = [describe::header(&header), describe::request(&request)].concat();
    let bytes = encode_request(REQUEST_ID, NONCE, &request);
    good(
        cases,
        &format!("request_{name}"),
        Kind::Request,
        about,
        bytes,
        lines,
    );
}

fn requests(c: &mut Vec<Case>) {
    let lease_id = samples::LEASE;
    request(c, "ping", "PING", Request::Ping(0xa1a2_a3a4_a5a6_a7a8));
    request(c, "get_identity", "GET_IDENTITY", Request::GetIdentity);
    for form in InventoryForm::ALL {
        let name = format!("get_inventory_{form}");
        request(c, &name, "GET_INVENTORY", Request::GetInventory(*form));
    }
    for code in [1, 2, 3, 4, 5, 0x10, 0xFF, 0x1234] {
        let alloc = samples::alloc(ResourceType::from_code(code));
        let name = format!("lease_alloc_type_{code:04x}");
        request(
            c,
            &name,
            "LEASE_ALLOC of one resource type, no params",
            Request::LeaseAlloc(alloc),
        );
    }
    let about = "LEASE_ALLOC with every parameter";
    request(
        c,
        "lease_alloc_full",
        about,
        Request::LeaseAlloc(samples::full_alloc()),
    );
    let about = "LEASE_RENEW";
    request(
        c,
        "lease_renew",
        about,
        Request::LeaseRenew {
            lease_id,
            lease_secs: 120,
        },
    );
    let about = "LEASE_RENEW that repeats the last term";
    request(
        c,
        "lease_renew_same_term",
        about,
        Request::LeaseRenew {
            lease_id,
            lease_secs: 0,
        },
    );
    request(
        c,
        "lease_query",
        "LEASE_QUERY",
        Request::LeaseQuery(lease_id),
    );
    request(c, "lease_free", "LEASE_FREE", Request::LeaseFree(lease_id));
    let start = Request::LeaseList {
        after: LeaseId(0),
        ended: false,
    };
    request(c, "lease_list_first", "LEASE_LIST from the start", start);
    let rest = Request::LeaseList {
        after: lease_id,
        ended: true,
    };
    request(
        c,
        "lease_list_next",
        "LEASE_LIST, next page, ended leases too",
        rest,
    );
    let bind = Request::LeaseBind {
        lease_id,
        peer: samples::peer(),
    };
    request(c, "lease_bind", "LEASE_BIND", bind);
    let rotate = Request::LeaseRotate {
        lease_id,
        overlap_ms: 60_000,
    };
    request(
        c,
        "lease_rotate",
        "LEASE_ROTATE with the longest overlap",
        rotate,
    );
    request(
        c,
        "lease_revoke",
        "LEASE_REVOKE",
        Request::LeaseRevoke(lease_id),
    );
    request(c, "fence_list", "FENCE_LIST", Request::FenceList);
    request(
        c,
        "fence_clear",
        "FENCE_CLEAR",
        Request::FenceClear(samples::ARENA),
    );
    for role in Role::ALL {
        let issue = IssueRequest {
            tenant: "team-a_1.x".to_owned(),
            role: *role,
            valid_secs: 86_400,
            csr_der: vec![0x30, 0x03, 0x02, 0x01, 0x05],
        };
        let name = format!("identity_issue_{role}");
        request(c, &name, "IDENTITY_ISSUE", Request::IdentityIssue(issue));
    }
}

/// A header and a payload, with a true length.
fn frame(flags: u8, msg_type: u16, payload: &[u8]) -> Vec<u8> {
    let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let header = Header {
        flags,
        msg_type,
        request_id: REQUEST_ID,
        nonce: NONCE,
        payload_len,
    };
    [&header.to_bytes()[..], payload].concat()
}

fn bad_headers(c: &mut Vec<Case>) {
    use LeaseError::{Malformed, Unsupported};
    let ping = frame(0, 1, &[9; 8]);
    let changed = |at: usize, byte: u8| {
        let mut frame = ping.clone();
        frame[at] = byte;
        frame
    };
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(
            c,
            &format!("bad_header_{name}"),
            Kind::Request,
            about,
            bytes,
            error,
        );
    };
    add("empty", "no bytes at all", vec![], Malformed);
    add("cut", "19 of the 20 bytes", ping[..19].to_vec(), Malformed);
    add(
        "version_01",
        "an unknown version",
        changed(0, 1),
        Unsupported,
    );
    add(
        "version_ff",
        "an unknown version",
        changed(0, 0xFF),
        Unsupported,
    );
    for bit in 0..7 {
        let flags = 1 << bit;
        let name = format!("flag_{flags:02x}");
        add(&name, "an unknown flag", changed(1, flags), Unsupported);
    }
    add(
        "flag_reply",
        "a reply where a request belongs",
        changed(1, REPLY),
        Unsupported,
    );
    for code in [0x0000, 0x0207, 0x0601, 0xFFFF] {
        let name = format!("type_{code:04x}");
        add(
            &name,
            "an unknown message type",
            frame(0, code, &[]),
            Unsupported,
        );
    }
    add(
        "length_short",
        "payload_len is less than what follows",
        changed(19, 7),
        Malformed,
    );
    add(
        "length_long",
        "payload_len is more than what follows",
        changed(19, 9),
        Malformed,
    );
    add(
        "length_absurd",
        "payload_len is 0xff000008",
        changed(16, 0xFF),
        Malformed,
    );
    let mut limit = changed(17, 1);
    limit[19] = 1;
    add(
        "length_65537",
        "payload_len is one above the limit",
        limit,
        Malformed,
    );
}

fn bad_requests(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let id = samples::LEASE.0.to_be_bytes();
    let mut add = |name: &str, about: &str, msg_type: u16, payload: &[u8], error| {
        let bytes = frame(0, msg_type, payload);
        bad(
            c,
            &format!("bad_request_{name}"),
            Kind::Request,
            about,
            bytes,
            error,
        );
    };
    add("ping_cut", "PING with 7 bytes", 0x0001, &[1; 7], Malformed);
    add("ping_long", "PING with 9 bytes", 0x0001, &[1; 9], Malformed);
    add(
        "identity_long",
        "GET_IDENTITY with a payload",
        0x0002,
        &[0],
        Malformed,
    );
    add(
        "inventory_form",
        "GET_INVENTORY form 2",
        0x0100,
        &[2],
        InvalidArgs,
    );
    let alloc = |capacity: u64, secs: u32, length: u32, params: &[u8]| {
        let (kind, grace) = (2_u16.to_be_bytes(), 0_u32.to_be_bytes());
        let (capacity, secs) = (capacity.to_be_bytes(), secs.to_be_bytes());
        let length = length.to_be_bytes();
        [
            &kind[..],
            &[0; 16],
            &capacity,
            &secs,
            &grace,
            &length,
            params,
        ]
        .concat()
    };
    add(
        "alloc_capacity_0",
        "LEASE_ALLOC of nothing",
        0x0200,
        &alloc(0, 1, 0, &[]),
        InvalidArgs,
    );
    add(
        "alloc_secs_0",
        "LEASE_ALLOC for no time",
        0x0200,
        &alloc(1, 0, 0, &[]),
        InvalidArgs,
    );
    let payload = alloc(1, 1, 6, &[9, 2, 0, 1, 1]);
    add(
        "alloc_params_long",
        "params_len is more than what follows",
        0x0200,
        &payload,
        Malformed,
    );
    let payload = alloc(1, 1, 4, &[9, 2, 0, 1, 1]);
    let about = "params_len cuts the last TLV: a known tag whose length runs out";
    add("alloc_params_short", about, 0x0200, &payload, InvalidIntent);
    let payload = alloc(1, 1, u32::MAX, &[]);
    add(
        "alloc_params_absurd",
        "params_len is 0xffffffff",
        0x0200,
        &payload,
        Malformed,
    );
    let payload = alloc(1, 1, 5, &[9, 2, 0, 1, 0xFF]);
    add(
        "alloc_reserved_class",
        "a reserved class byte",
        0x0200,
        &payload,
        InvalidIntent,
    );
    for code in [0x0202, 0x0203, 0x020A, 0x0301] {
        let name = format!("zero_id_{code:04x}");
        add(&name, "an id of zero", code, &[0; 16], InvalidArgs);
        let name = format!("cut_id_{code:04x}");
        add(&name, "15 bytes of an id", code, &id[..15], Malformed);
    }
    let list = [&id[..], &[2]].concat();
    add(
        "list_ended",
        "LEASE_LIST with 2 for yes",
        0x0204,
        &list,
        InvalidArgs,
    );
    let bind = [&id[..], &[0; 4]].concat();
    add(
        "bind_without_peer",
        "LEASE_BIND without 0x0210",
        0x0205,
        &bind,
        InvalidIntent,
    );
    let rotate = [&id[..], &60_001_u32.to_be_bytes()].concat();
    add(
        "rotate_overlap",
        "an overlap above 60,000 ms",
        0x0206,
        &rotate,
        InvalidArgs,
    );
    add(
        "fence_list_long",
        "FENCE_LIST with a payload",
        0x0300,
        &[0],
        Malformed,
    );
    let issue = |role: u8, tenant: &[u8], csr: &[u8]| {
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
        [
            &[role, 0, 0, 0, 0],
            &length(tenant)[..],
            tenant,
            &length(csr),
            csr,
        ]
        .concat()
    };
    add(
        "issue_role",
        "role 2",
        0x0400,
        &issue(2, b"a", b"x"),
        InvalidArgs,
    );
    add(
        "issue_tenant",
        "a tenant with a slash",
        0x0400,
        &issue(0, b"a/b", b"x"),
        InvalidArgs,
    );
    add(
        "issue_tenant_empty",
        "no tenant",
        0x0400,
        &issue(0, b"", b"x"),
        InvalidArgs,
    );
    add(
        "issue_tenant_long",
        "65 bytes",
        0x0400,
        &issue(0, &[b'a'; 65], b"x"),
        Malformed,
    );
    add(
        "issue_csr_empty",
        "no request to sign",
        0x0400,
        &issue(0, b"a", b""),
        InvalidArgs,
    );
    add(
        "issue_csr_long",
        "4,097 bytes",
        0x0400,
        &issue(0, b"a", &[0; 4_097]),
        Malformed,
    );
}

fn answer(c: &mut Vec<Case>, name: &str, about: &str, message: MessageType, reply: Reply) {
    add_answer(c, &format!("answer_{name}"), about, message, &Ok(reply));
}

fn add_answer(c: &mut Vec<Case>, name: &str, about: &str, message: MessageType, answer: &Answer) {
    let asked = asked(message);
    let bytes = encode_answer(&asked, answer);
    good(
        c,
        name,
        Kind::Answer(asked),
        about,
        bytes,
        describe::answer(answer),
    );
}

fn answers(c: &mut Vec<Case>) {
    use MessageType as M;
    answer(
        c,
        "ping",
        "PING's number",
        M::Ping,
        Reply::Pong(0xa1a2_a3a4_a5a6_a7a8),
    );
    let identity = NodeIdentity {
        node_id: samples::NODE,
        epoch: Epoch(42),
        endpoint: Endpoint {
            addr: samples::gid(7),
            port: 5701,
        },
        tenant: "team-a".to_owned(),
        role: Role::Tenant,
        version: "0.1.0".to_owned(),
    };
    answer(
        c,
        "identity",
        "GET_IDENTITY, IPv4",
        M::GetIdentity,
        Reply::Identity(identity.clone()),
    );
    let addr = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let v6 = NodeIdentity {
        endpoint: Endpoint { addr, port: 5701 },
        ..identity
    };
    answer(
        c,
        "identity_v6",
        "GET_IDENTITY, IPv6",
        M::GetIdentity,
        Reply::Identity(v6),
    );
    let entries = vec![samples::entry(ResourceType::Mem, 0)];
    let about = "GET_INVENTORY in the flat form";
    answer(
        c,
        "inventory_flat",
        about,
        M::GetInventory,
        Reply::FlatInventory(entries),
    );
    let about = "GET_INVENTORY in the structured form";
    let inventory = Reply::Inventory(samples::inventory());
    answer(c, "inventory_structured", about, M::GetInventory, inventory);
    for message in [
        M::LeaseAlloc,
        M::LeaseRenew,
        M::LeaseQuery,
        M::LeaseBind,
        M::LeaseRotate,
    ] {
        let name = message.name().to_lowercase();
        let about = "a lease of memory over RDMA";
        answer(
            c,
            &name,
            about,
            message,
            Reply::Lease(samples::rdma_lease()),
        );
    }
    let freed = LeaseInfo {
        status: LeaseStatus::Expired,
        phase: LeasePhase::Freed,
        remaining_ms: 0,
        ..samples::lease(Binding::default())
    };
    let about = "LEASE_FREE answers with the ended lease";
    answer(
        c,
        "lease_free",
        about,
        M::LeaseFree,
        Reply::Lease(freed.clone()),
    );
    let about = "a lease with every part";
    answer(
        c,
        "lease_full",
        about,
        M::LeaseQuery,
        Reply::Lease(samples::full_lease()),
    );
    let mut waiting = samples::rdma_lease();
    waiting.binding.rdma = Some(RdmaBinding {
        rkey: None,
        ..samples::rdma()
    });
    let about = "a lease whose client has not yet named its queue pair: no rkey";
    answer(
        c,
        "lease_without_rkey",
        about,
        M::LeaseAlloc,
        Reply::Lease(waiting),
    );
    lease_lives(c);
    let leases = vec![samples::lease(Binding::default()), freed];
    let page = LeasePage {
        leases,
        next: Some(samples::LEASE),
    };
    answer(
        c,
        "lease_list",
        "LEASE_LIST, more to come",
        M::LeaseList,
        Reply::Leases(page),
    );
    let none = Reply::Leases(LeasePage::default());
    answer(
        c,
        "lease_list_empty",
        "LEASE_LIST, no leases",
        M::LeaseList,
        none,
    );
    for outcome in RevokeOutcome::ALL {
        let name = format!("revoke_{outcome}");
        answer(
            c,
            &name,
            "LEASE_REVOKE",
            M::LeaseRevoke,
            Reply::Revoked(*outcome),
        );
    }
    let fence = Fence {
        resource_id: samples::ARENA,
        resource_type: ResourceType::Mem,
        lease_id: samples::LEASE,
        since_unix_ms: 1_800_000_060_009,
        reason: "dealloc_mw: EBUSY on rxe0".to_owned(),
    };
    answer(
        c,
        "fence_list",
        "FENCE_LIST",
        M::FenceList,
        Reply::Fences(vec![fence]),
    );
    answer(
        c,
        "fence_clear",
        "FENCE_CLEAR",
        M::FenceClear,
        Reply::FenceCleared,
    );
    let issued = Reply::Issued {
        certificate_pem: "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n".into(),
        ca_pem: "-----BEGIN CERTIFICATE-----\nMQ==\n-----END CERTIFICATE-----\n".into(),
    };
    answer(
        c,
        "identity_issue",
        "IDENTITY_ISSUE",
        M::IdentityIssue,
        issued,
    );
}

/// Every phase, with the status that goes with it.
fn lease_lives(c: &mut Vec<Case>) {
    for phase in LeasePhase::ALL {
        let status = match phase {
            LeasePhase::Binding | LeasePhase::Active => LeaseStatus::Active,
            LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed => LeaseStatus::Expired,
            LeasePhase::Revoked | LeasePhase::Fenced => LeaseStatus::Revoked,
        };
        let lease = LeaseInfo {
            status,
            phase: *phase,
            ..samples::lease(Binding::default())
        };
        let name = format!("lease_phase_{phase}");
        answer(
            c,
            &name,
            "LEASE_QUERY",
            MessageType::LeaseQuery,
            Reply::Lease(lease),
        );
    }
}

fn refusals(c: &mut Vec<Case>) {
    for (n, error) in LeaseError::ALL.iter().enumerate() {
        let class = RefusalClass::ALL[n % RefusalClass::ALL.len()];
        let mut refusal = Refusal::new(*error, class, format!("{error}: what to do next, é"));
        refusal.renewable_at_unix_ms =
            (*error == LeaseError::RenewTooEarly).then_some(1_800_000_048_003);
        let name = format!(
            "refusal_{:02}_{}",
            *error as u16,
            error.name().to_lowercase()
        );
        let about = "a refusal; every message can have it";
        add_answer(c, &name, about, MessageType::LeaseRenew, &Err(refusal));
    }
}

fn tlv(tag: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    [&tag.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// The TLVs of a good lease answer, one of them replaced or left out.
fn damaged_lease(tag: u16, instead: &[u8]) -> Vec<u8> {
    let whole = encode_answer(
        &asked(MessageType::LeaseQuery),
        &Ok(Reply::Lease(samples::full_lease())),
    );
    let area_at = HEADER_LEN + 2 + 88 + 4;
    let (fixed, area) = (&whole[HEADER_LEN..area_at - 4], &whole[area_at..]);
    let Ok(walk) = tlv::TlvArea::parse(area, 0) else {
        return vec![];
    };
    let one = |it: tlv::Tlv<'_>| {
        if it.tag == tag {
            instead.to_vec()
        } else {
            tlv(it.tag, it.value)
        }
    };
    let area: Vec<u8> = walk.iter().flat_map(one).collect();
    let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
    frame(
        REPLY,
        MessageType::LeaseQuery as u16,
        &[fixed, &length, &area].concat(),
    )
}

fn bad_answers(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_answer_{name}"), kind, about, bytes, error);
    };
    let whole = encode_answer(
        &asked(MessageType::LeaseQuery),
        &Ok(Reply::Lease(samples::full_lease())),
    );
    let changed = |at: usize, byte: u8| {
        let mut frame = whole.clone();
        frame[at] = byte;
        frame
    };
    add(
        "not_a_reply",
        "the flag is missing",
        changed(1, 0),
        Malformed,
    );
    add(
        "other_type",
        "a reply to another message",
        changed(3, 3),
        Malformed,
    );
    add(
        "other_request",
        "a reply to another request",
        changed(7, 0),
        Malformed,
    );
    add(
        "other_nonce",
        "a reply with another nonce",
        changed(15, 0),
        Malformed,
    );
    add(
        "status_15",
        "an unknown status",
        changed(21, 15),
        InvalidArgs,
    );
    add(
        "lease_status_3",
        "an unknown lease status",
        changed(56, 3),
        InvalidArgs,
    );
    add(
        "lease_phase_7",
        "an unknown phase",
        changed(57, 7),
        InvalidArgs,
    );
    add(
        "lease_cut",
        "only the fixed part",
        frame(REPLY, 0x0202, &whole[20..110]),
        Malformed,
    );
    let longer = frame(REPLY, 0x0202, &[&whole[20..], &[0]].concat());
    add(
        "lease_trailing",
        "a byte after the lease",
        longer,
        Malformed,
    );
    let mut tag = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        add(name, about, damaged_lease(tag, instead), InvalidIntent);
    };
    tag("lease_id_missing", "no 0x0101", 0x0101, &[]);
    tag(
        "lease_id_other",
        "0x0101 is another id",
        0x0101,
        &tlv(0x0101, &[1; 16]),
    );
    tag(
        "dp_key_31",
        "a key of 31 bytes",
        0x0102,
        &tlv(0x0102, &[1; 31]),
    );
    tag(
        "endpoint_wildcard",
        "[::]:5702",
        0x0103,
        &tlv(0x0103, &[&[0; 16][..], &[22, 70]].concat()),
    );
    let v4 = [&[0; 10][..], &[0xFF; 2], &[0; 4], &[22, 70]].concat();
    tag(
        "endpoint_wildcard_v4",
        "0.0.0.0:5702 as v4-mapped",
        0x0103,
        &tlv(0x0103, &v4),
    );
    tag(
        "limits_overflow",
        "the end is above 64 bits",
        0x0104,
        &tlv(0x0104, &[0xFF; 16]),
    );
    for missing in [
        0x0202, 0x0203, 0x0204, 0x0205, 0x0206, 0x0207, 0x0208, 0x020A, 0x020B,
    ] {
        tag(
            &format!("rdma_without_{missing:04x}"),
            "an RDMA tag is missing",
            missing,
            &[],
        );
    }
    tag(
        "qp_num_25_bits",
        "a queue pair number",
        0x0203,
        &tlv(0x0203, &[1, 0, 0, 0]),
    );
    tag(
        "psn_25_bits",
        "a starting PSN",
        0x0206,
        &tlv(0x0206, &[1, 0, 0, 0]),
    );
    tag(
        "path_mtu_1500",
        "not an InfiniBand MTU",
        0x0207,
        &tlv(0x0207, &[5, 0xDC]),
    );
    tag(
        "strategy_2",
        "an unknown strategy",
        0x0208,
        &tlv(0x0208, &[2]),
    );
    tag("atomics_2", "2 for yes", 0x020B, &tlv(0x020B, &[2]));
    tag(
        "rkey_twice",
        "two rkeys",
        0x0201,
        &tlv(0x0201, &[1; 4]).repeat(2),
    );
    let refusal = |area: &[u8]| {
        let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
        frame(REPLY, 0x0202, &[&[0, 5][..], &length, area].concat())
    };
    let (class, text) = (tlv(0x0A01, &[1]), tlv(0x0A02, b"why"));
    add(
        "refusal_without_class",
        "no 0x0A01",
        refusal(&text),
        InvalidIntent,
    );
    add(
        "refusal_without_text",
        "no 0x0A02",
        refusal(&class),
        InvalidIntent,
    );
    let odd = refusal(&[tlv(0x0A01, &[3]), text].concat());
    add("refusal_class_3", "an unknown class", odd, InvalidIntent);
    let odd = refusal(&[&class[..], &tlv(0x0A02, &[0xC3])].concat());
    add(
        "refusal_text_not_utf8",
        "half a character",
        odd,
        InvalidIntent,
    );
    let odd = refusal(&[&class[..], &tlv(0x0A02, &[b'x'; 1_025])].concat());
    add("refusal_text_long", "1,025 bytes", odd, InvalidIntent);
    bad_lists(c);
}

fn bad_lists(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, Malformed};
    let list = Kind::Answer(asked(MessageType::LeaseList));
    let mut add = |name: &str, about: &str, payload: &[u8], error| {
        let bytes = frame(REPLY, 0x0204, &[&[0, 0], payload].concat());
        bad(
            c,
            &format!("bad_answer_list_{name}"),
            list,
            about,
            bytes,
            error,
        );
    };
    add(
        "count_129",
        "more leases than a page has",
        &[0, 0, 129],
        Malformed,
    );
    add(
        "count_128",
        "leases that are not there",
        &[0, 0, 128],
        Malformed,
    );
    add("presence_2", "2 for a next id", &[2, 0, 0], InvalidArgs);
    let revoke = Kind::Answer(asked(MessageType::LeaseRevoke));
    let bytes = frame(REPLY, 0x020A, &[0, 0, 3]);
    bad(
        c,
        "bad_answer_revoke_3",
        revoke,
        "an unknown outcome",
        bytes,
        InvalidArgs,
    );
}

fn params(c: &mut Vec<Case>, name: &str, about: &str, alloc: &LeaseAllocRequest) {
    let frame = encode_request(0, 0, &Request::LeaseAlloc(alloc.clone()));
    // 20 of the header, 38 of the fixed part.
    let bytes = frame[HEADER_LEN + 38..].to_vec();
    good(
        c,
        &format!("tlv_{name}"),
        Kind::Tlv,
        about,
        bytes,
        describe::params(alloc),
    );
}

fn tlvs(c: &mut Vec<Case>) {
    let plain = samples::alloc(ResourceType::Mem);
    params(c, "none", "no TLVs: every default", &plain);
    params(
        c,
        "all",
        "every tag, in ascending order",
        &samples::full_alloc(),
    );
    for class in CpuIsolationClass::ALL {
        let alloc = LeaseAllocRequest {
            cpu_isolation: Some(*class),
            ..plain.clone()
        };
        params(c, &format!("cpu_isolation_{class}"), "002 §2.1", &alloc);
    }
    for class in GpuExclusivityClass::ALL {
        let alloc = LeaseAllocRequest {
            gpu_exclusivity: Some(*class),
            ..plain.clone()
        };
        params(c, &format!("gpu_exclusivity_{class}"), "003 §2.1", &alloc);
    }
    for tier in KvCacheTier::ALL {
        let intent = KvCacheIntent {
            tier: *tier,
            block_bytes: 0x0001_0203,
        };
        let alloc = LeaseAllocRequest {
            kv_cache_intent: Some(intent),
            ..plain.clone()
        };
        params(c, &format!("kv_cache_{tier}"), "KV cache intent", &alloc);
    }
    for transport in Transport::ALL.iter().filter(|it| **it != Transport::Auto) {
        let alloc = LeaseAllocRequest {
            transport: *transport,
            ..plain.clone()
        };
        params(c, &format!("transport_{transport}"), "transport", &alloc);
    }
    let alloc = LeaseAllocRequest {
        affinities: samples::affinities(),
        ..plain.clone()
    };
    params(
        c,
        "affinities",
        "every category, strength and target type, in order",
        &alloc,
    );
    let alloc = LeaseAllocRequest {
        rdma_peer: Some(samples::peer()),
        ..plain.clone()
    };
    params(c, "rdma_peer", "a client's queue pair", &alloc);
    let alloc = LeaseAllocRequest {
        rotate_on_renew: true,
        ..plain.clone()
    };
    params(
        c,
        "rotate_on_renew_01",
        "the client follows key changes",
        &alloc,
    );
    accepted(c, &plain);
}

/// What a decoder takes and an encoder does not write.
fn accepted(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, alloc: &LeaseAllocRequest| {
        let (name, about) = (format!("tlv_{name}"), about.to_owned());
        let expect = Expect::Accepted(describe::params(alloc));
        c.push(Case {
            name,
            kind: Kind::Tlv,
            about,
            bytes,
            expect,
        });
    };
    add(
        "rotate_on_renew_00",
        "0 says the same as no TLV",
        tlv(0x0905, &[0]),
        plain,
    );
    add(
        "transport_auto",
        "0 says the same as no TLV",
        tlv(0x0904, &[0]),
        plain,
    );
    let unknown = [
        tlv(0x0999, b"later"),
        tlv(0x7777, &[]),
        tlv(0x0999, b"again"),
    ]
    .concat();
    add(
        "unknown_skipped",
        "unknown tags are skipped, also when they repeat",
        unknown,
        plain,
    );
    let cpu_isolation = Some(CpuIsolationClass::WholeCore);
    let gpu_exclusivity = Some(GpuExclusivityClass::Shared);
    let both = LeaseAllocRequest {
        cpu_isolation,
        gpu_exclusivity,
        ..plain.clone()
    };
    let mixed = [
        tlv(0x0903, &[0]),
        tlv(0x0999, b"between"),
        tlv(0x0902, &[1]),
    ]
    .concat();
    add(
        "any_order",
        "descending tags, an unknown one between",
        mixed,
        &both,
    );
}

fn bad_classes(c: &mut Vec<Case>) {
    for (word, tag, bytes) in [
        (
            "cpu_isolation",
            0x0902,
            [0x03, 0x04, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        (
            "gpu_exclusivity",
            0x0903,
            [0x04, 0x05, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        ("transport", 0x0904, [0x06, 0x07, 0x7F, 0x80, 0xFE, 0xFF]),
        (
            "rotate_on_renew",
            0x0905,
            [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF],
        ),
    ] {
        for byte in bytes {
            let name = format!("{word}_{byte:02x}");
            bad_tlv(c, &name, "a reserved byte fails closed", tlv(tag, &[byte]));
        }
        bad_tlv(c, &format!("{word}_length_0"), "length 0", tlv(tag, &[]));
        bad_tlv(
            c,
            &format!("{word}_length_2"),
            "length 2",
            tlv(tag, &[0, 0]),
        );
        bad_tlv(
            c,
            &format!("{word}_truncated"),
            "no value",
            tlv(tag, &[0])[..4].to_vec(),
        );
        bad_tlv(
            c,
            &format!("{word}_twice"),
            "the tag again",
            tlv(tag, &[0]).repeat(2),
        );
    }
}

fn bad_tlv(c: &mut Vec<Case>, name: &str, about: &str, bytes: Vec<u8>) {
    let name = format!("bad_tlv_{name}");
    bad(c, &name, Kind::Tlv, about, bytes, LeaseError::InvalidIntent);
}

fn bad_tlvs(c: &mut Vec<Case>) {
    let malformed = LeaseError::Malformed;
    for (name, bytes) in [
        ("header_1", &[9][..]),
        ("header_3", &[9, 0x99, 0]),
        ("unknown_cut", &[9, 0x99, 0, 1]),
    ] {
        let name = format!("bad_tlv_{name}");
        bad(
            c,
            &name,
            Kind::Tlv,
            "runs out of the params",
            bytes.to_vec(),
            malformed,
        );
    }
    let kv = |value: &[u8]| tlv(0x0901, value);
    bad_tlv(
        c,
        "kv_cache_version_0",
        "version 0",
        kv(&[0, 0, 0, 0, 0, 0, 0, 1]),
    );
    bad_tlv(
        c,
        "kv_cache_version_2",
        "version 2",
        kv(&[2, 0, 0, 0, 0, 0, 0, 1]),
    );
    bad_tlv(
        c,
        "kv_cache_tier_3",
        "tier 3",
        kv(&[1, 3, 0, 0, 0, 0, 0, 1]),
    );
    bad_tlv(
        c,
        "kv_cache_reserved",
        "reserved 1",
        kv(&[1, 0, 0, 1, 0, 0, 0, 1]),
    );
    bad_tlv(
        c,
        "kv_cache_length_7",
        "length 7",
        kv(&[1, 0, 0, 0, 0, 0, 0]),
    );
    bad_tlv(
        c,
        "kv_cache_length_9",
        "length 9",
        kv(&[1, 0, 0, 0, 0, 0, 0, 1, 0]),
    );
    bad_tlv(
        c,
        "kv_cache_twice",
        "the tag again",
        kv(&[1, 0, 0, 0, 0, 0, 0, 1]).repeat(2),
    );
    let near = |value: &[u8]| tlv(0x0910, value);
    bad_tlv(
        c,
        "affinity_category_0",
        "category 0",
        near(&[0, 1, 4, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_category_6",
        "category 6",
        near(&[6, 1, 4, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_strength_0",
        "strength 0",
        near(&[1, 0, 4, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_strength_4",
        "strength 4",
        near(&[1, 4, 4, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_target_type_0",
        "type 0",
        near(&[1, 1, 0, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_target_type_5",
        "type 5",
        near(&[1, 1, 5, 0, 1, b'x']),
    );
    bad_tlv(
        c,
        "affinity_target_len",
        "target_len is wrong",
        near(&[1, 1, 4, 0, 2, b'x']),
    );
    bad_tlv(c, "affinity_cut", "4 bytes", near(&[1, 1, 4, 0]));
    bad_tlv(
        c,
        "affinity_label_empty",
        "an empty label",
        near(&[1, 1, 4, 0, 0]),
    );
    bad_tlv(
        c,
        "affinity_label_not_utf8",
        "0xff",
        near(&[1, 1, 4, 0, 1, 0xFF]),
    );
    let long = [&[1, 1, 4, 1, 0][..], &[b'x'; 256]].concat();
    bad_tlv(c, "affinity_label_long", "256 bytes", near(&long));
    bad_tlv(
        c,
        "affinity_id_zero",
        "a resource id of zero",
        near(&[&[1, 1, 1, 0, 16][..], &[0; 16]].concat()),
    );
    bad_tlv(
        c,
        "affinity_17",
        "one more than 16",
        near(&[1, 1, 4, 0, 1, b'x']).repeat(17),
    );
    let peer = |qpn: u32, psn: u32, mtu: u16, reserved: u8| {
        let (qpn, psn, mtu) = (qpn.to_be_bytes(), psn.to_be_bytes(), mtu.to_be_bytes());
        tlv(
            0x0210,
            &[&qpn[..], &psn, &samples::gid(9), &mtu, &[0, reserved]].concat(),
        )
    };
    bad_tlv(c, "rdma_peer_qpn_0", "queue pair 0", peer(0, 1, 1024, 0));
    bad_tlv(
        c,
        "rdma_peer_qpn_25_bits",
        "0x1000000",
        peer(0x0100_0000, 1, 1024, 0),
    );
    bad_tlv(
        c,
        "rdma_peer_psn_25_bits",
        "0x1000000",
        peer(1, 0x0100_0000, 1024, 0),
    );
    bad_tlv(
        c,
        "rdma_peer_mtu_1500",
        "not an InfiniBand MTU",
        peer(1, 1, 1500, 0),
    );
    bad_tlv(c, "rdma_peer_reserved", "reserved 1", peer(1, 1, 1024, 1));
    bad_tlv(
        c,
        "rdma_peer_length_27",
        "27 bytes",
        tlv(0x0210, &peer(1, 1, 1024, 0)[4..31]),
    );
    bad_tlv(
        c,
        "rdma_peer_twice",
        "the tag again",
        peer(1, 1, 1024, 0).repeat(2),
    );
}

fn inventories(c: &mut Vec<Case>) {
    let codes = [1, 2, 3, 4, 5, 0x10, 0xFF, 0x1234];
    let entries: Vec<_> = codes
        .iter()
        .map(|code| samples::entry(ResourceType::from_code(*code), 0))
        .collect();
    let mut flat = |name: &str, about: &str, entries: &[FlatEntry]| {
        let bytes = encode_flat(entries).unwrap_or_default();
        good(
            c,
            &format!("flat_{name}"),
            Kind::Flat,
            about,
            bytes,
            describe::flat(entries),
        );
    };
    flat("empty", "a node with nothing", &[]);
    flat(
        "types",
        "every type, a vendor's and an unknown one",
        &entries,
    );
    let fenced = samples::entry(ResourceType::Mem, resource_flags::FENCED);
    let degraded = samples::entry(ResourceType::Gpu, resource_flags::DEGRADED);
    flat("flags", "one fenced, one degraded", &[fenced, degraded]);
    let mut structured = |name: &str, about: &str, it: &ResourceInventory| {
        let (bytes, lines) = (
            encode_structured(it).unwrap_or_default(),
            describe::structured(it),
        );
        good(
            c,
            &format!("structured_{name}"),
            Kind::Structured,
            about,
            bytes,
            lines,
        );
    };
    structured(
        "full",
        "every list and every extension",
        &samples::inventory(),
    );
    structured("empty", "a node with nothing", &empty_node());
    let bytes = with_extensions(
        &[
            tlv(0x0BFF, b"later"),
            tlv(0x0B02, &with_id(&[0, 0, 0, 0, 0, 0, 0, 9])),
        ]
        .concat(),
    );
    let extensions = vec![InventoryExtension::Available(samples::ARENA, 9)];
    let expect = Expect::Accepted(describe::structured(&ResourceInventory {
        extensions,
        ..empty_node()
    }));
    let (name, about) = (
        "structured_unknown_tag".to_owned(),
        "unknown tags are skipped".to_owned(),
    );
    c.push(Case {
        name,
        kind: Kind::Structured,
        about,
        bytes,
        expect,
    });
}

fn empty_node() -> ResourceInventory {
    ResourceInventory {
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
        ..samples::inventory()
    }
}

fn with_id(rest: &[u8]) -> Vec<u8> {
    [&samples::ARENA.0.to_be_bytes(), rest].concat()
}

/// An empty node with these extensions.
fn with_extensions(area: &[u8]) -> Vec<u8> {
    let whole = encode_structured(&empty_node()).unwrap_or_default();
    let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&whole[..whole.len() - 4], &length, area].concat()
}

fn bad_inventories(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let flat = encode_flat(&[samples::entry(ResourceType::Mem, 0)]).unwrap_or_default();
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(
            c,
            &format!("bad_flat_{name}"),
            Kind::Flat,
            about,
            bytes,
            error,
        );
    };
    add(
        "cut",
        "35 of 36 bytes",
        flat[..flat.len() - 1].to_vec(),
        Malformed,
    );
    add(
        "count_2",
        "an entry that is not there",
        [&[0, 2], &flat[2..]].concat(),
        Malformed,
    );
    add(
        "count_absurd",
        "65,535 entries",
        [&[0xFF, 0xFF], &flat[2..]].concat(),
        Malformed,
    );
    add(
        "trailing",
        "a byte after the entry",
        [&flat[..], &[0]].concat(),
        Malformed,
    );
    add(
        "zero_id",
        "a resource id of zero",
        [&flat[..2], &[0; 16], &flat[18..]].concat(),
        InvalidArgs,
    );
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(
            c,
            &format!("bad_structured_{name}"),
            Kind::Structured,
            about,
            bytes,
            error,
        );
    };
    let full = encode_structured(&samples::inventory()).unwrap_or_default();
    add(
        "cut",
        "the last byte is missing",
        full[..full.len() - 1].to_vec(),
        Malformed,
    );
    add(
        "trailing",
        "a byte after the extensions",
        [&full[..], &[0]].concat(),
        Malformed,
    );
    let many = [&full[..44], &[1, 1], &full[46..]].concat();
    add("count_257", "more arenas than a list has", many, Malformed);
    let mut ext = |name: &str, about: &str, tag: u16, value: &[u8]| {
        add(
            name,
            about,
            with_extensions(&tlv(tag, value)),
            InvalidIntent,
        );
    };
    ext("name_long", "256 bytes", 0x0B01, &with_id(&[b'n'; 256]));
    ext("name_not_utf8", "0xff", 0x0B01, &with_id(&[0xFF]));
    ext("name_zero_id", "a resource id of zero", 0x0B01, &[0; 17]);
    ext("available_length", "7 bytes", 0x0B02, &with_id(&[0; 7]));
    ext("classes_empty", "no default", 0x0B03, &with_id(&[]));
    ext(
        "classes_17",
        "17 supported classes",
        0x0B03,
        &with_id(&[0; 18]),
    );
    ext(
        "transport_6",
        "an unknown transport",
        0x0B04,
        &with_id(&[6]),
    );
    ext("transports_9", "nine of them", 0x0B04, &with_id(&[1; 9]));
}
