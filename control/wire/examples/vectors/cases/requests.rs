//! Every request.

use fabricbios_wire::*;

use super::*;
use crate::samples;

#[rustfmt::skip] // One case a line.
pub(super) fn request(cases: &mut Vec<Case>, name: &str, about: &str, request: Request) {
    let header = asked(request.message_type());
    let bytes = encode_request(REQUEST_ID, NONCE, &request);
    let value = framed(header, &bytes, &request);
    good(cases, &format!("request_{name}"), Kind::Request, about, bytes, value);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn requests(c: &mut Vec<Case>) {
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
    request(c, "lease_alloc_full", about, Request::LeaseAlloc(samples::full_alloc()));
    let about = "LEASE_ALLOC of block storage with everything that can be asked of it";
    let block = LeaseAllocRequest {
        transport: Transport::NvmeTcp,
        rotate_on_renew: true,
        terms: kinds::block::block_terms().into(),
        ..samples::alloc(ResourceType::Block)
    };
    request(c, "lease_alloc_block", about, Request::LeaseAlloc(block));
    let about = "LEASE_ALLOC of CPU cores with everything that can be asked of them";
    let cpu = LeaseAllocRequest::new(ResourceType::Cpu, 0x0104, 60).with_terms(kinds::cpu::cpu_terms());
    request(c, "lease_alloc_cpu", about, Request::LeaseAlloc(cpu));
    let about = "LEASE_ALLOC of a network function with everything that can be asked of it";
    let net = LeaseAllocRequest::new(ResourceType::Net, 25_000_000_000, 60);
    let net = net.with_terms(kinds::net::net_terms());
    request(c, "lease_alloc_net", about, Request::LeaseAlloc(net));
    let about = "LEASE_RENEW";
    request(c, "lease_renew", about, Request::LeaseRenew { lease_id, lease_secs: 120, });
    let about = "LEASE_RENEW that repeats the last term";
    request(c, "lease_renew_same_term", about, Request::LeaseRenew { lease_id, lease_secs: 0, });
    request(c, "lease_query", "LEASE_QUERY", Request::LeaseQuery(lease_id));
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
    request(c, "lease_list_next", "LEASE_LIST, next page, ended leases too", rest);
    let bind = Request::LeaseBind {
        lease_id,
        peers: vec![kinds::mem::peer()],
    };
    request(c, "lease_bind", "LEASE_BIND", bind);
    let bind = Request::LeaseBind {
        lease_id,
        peers: kinds::mem::peers(3),
    };
    request(c, "lease_bind_3", "LEASE_BIND of three queue pairs", bind);
    let mut change = |name, about, change| {
        request(c, name, about, Request::LeasePeers { lease_id, change });
    };
    let joining = PeerChange::Add(kinds::mem::peers(RDMA_PEERS_MAX));
    change("lease_bind_beside", "LEASE_BIND of eight queue pairs beside a live binding", joining);
    let leaving = PeerChange::Remove(vec![0x0011_1213, U24_MAX]);
    change("lease_bind_leave", "LEASE_BIND: two queue pairs of the node leave", leaving);
    let about = "LEASE_BIND that asks for an attach code";
    request(c, "lease_bind_attach", about, Request::LeaseAttach(lease_id));
    let rotate = Request::LeaseRotate {
        lease_id,
        overlap_ms: 60_000,
    };
    request(c, "lease_rotate", "LEASE_ROTATE with the longest overlap", rotate);
    request(c, "lease_revoke", "LEASE_REVOKE", Request::LeaseRevoke(lease_id));
    request(c, "fence_list", "FENCE_LIST", Request::FenceList);
    request(c, "fence_clear", "FENCE_CLEAR", Request::FenceClear(samples::ARENA));
    for role in [Role::Tenant, Role::Operator] {
        let issue = IssueRequest {
            tenant: "team-a_1.x".to_owned(),
            role,
            valid_secs: 86_400,
            csr_der: vec![0x30, 0x03, 0x02, 0x01, 0x05],
        };
        let name = format!("identity_issue_{role}");
        request(c, &name, "IDENTITY_ISSUE", Request::IdentityIssue(issue));
    }
}
