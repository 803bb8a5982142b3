//! What a node reads of a certificate whose chain was verified already: its own parser is the last
//! that stands between a subject and a tenant's rights.
#![no_main]

use fabricbios_control::Peer;
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::CertificateDer;

fuzz_target!(|der: &[u8]| {
    if let Ok(peer) = Peer::from_certificate(&CertificateDer::from(der)) {
        assert!(fabricbios_wire::is_tenant_name(&peer.principal.tenant));
    }
});
