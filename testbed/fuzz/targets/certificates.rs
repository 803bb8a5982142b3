//! The parser of a certificate's subject, after the chain was verified: this parser alone decides which tenant's
//! rights a subject gets.
#![no_main]

use fabricbios_fabric::Subject;
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::CertificateDer;

fuzz_target!(|der: &[u8]| {
    if let Ok(subject) = Subject::from_certificate(&CertificateDer::from(der)) {
        assert!(fabricbios_wire::is_tenant_name(&subject.name));
    }
});
