//! GIDs: 16 bytes, mostly written as an IP address.

use std::net::IpAddr;

pub(crate) use fabricbios_client::gid_text as text;

use crate::values::BadValue;

/// Parses IPv6, IPv4 (as v4-mapped, the form of RoCE v2), 16 bytes with colons, or 32 digits.
pub(crate) fn parse(text: &str) -> Result<[u8; 16], BadValue> {
    match text.parse() {
        Ok(IpAddr::V6(v6)) => Ok(v6.octets()),
        Ok(IpAddr::V4(v4)) => Ok(v4.to_ipv6_mapped().octets()),
        Err(_) => raw(text).ok_or_else(|| {
            format!("{text:?} is no gid; write an IPv6 or IPv4 address, or 16 bytes as hex").into()
        }),
    }
}

fn raw(text: &str) -> Option<[u8; 16]> {
    let is_pairs = text.split(':').all(|pair| pair.len() == 2);
    let digits = if is_pairs {
        &text.replace(':', "")
    } else {
        text
    };
    let mut gid = [0; 16];
    let whole = base16ct::mixed::decode(digits, &mut gid).ok()?.len() == gid.len();
    whole.then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_one_is_written() {
        let digits = "fe800000000000000202c9fffe000001";
        let colons = "fe:80:00:00:00:00:00:00:02:02:c9:ff:fe:00:00:01";
        let groups = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
        for form in [digits, colons, groups, "fe80::202:c9ff:fe00:1"] {
            assert_eq!(text(parse(form).unwrap()), groups);
        }
        for form in ["10.0.0.1", "::ffff:10.0.0.1"] {
            let text = text(parse(form).unwrap());
            assert_eq!(text, "0000:0000:0000:0000:0000:ffff:0a00:0001");
        }
        for bad in [
            "",
            "fe80",
            "1:2",
            "fe8000000000000000202c9fffe00000é",
            "10.0.0.256",
            "::1%eth0",
        ] {
            parse(bad).unwrap_err();
        }
    }
}
