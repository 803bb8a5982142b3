//! The queue pair of a client on the command line.

use fabricbios_wire::RdmaPeer;

use super::BadValue;
use crate::gid;

const U24_MAX: u32 = (1 << 24) - 1;
const MTUS: [u16; 5] = [256, 512, 1_024, 2_048, 4_096];

/// `qpn=N,gid=G,psn=N[,mtu=N]`, in any order.
pub(crate) fn rdma_peer(text: &str) -> Result<RdmaPeer, BadValue> {
    let (mut qpn, mut gid, mut psn, mut mtu) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| bad_part(part))?;
        match key.trim() {
            "qpn" => once(&mut qpn, key, u24(value)?)?,
            "gid" => once(&mut gid, key, gid::parse(value)?)?,
            "psn" => once(&mut psn, key, u24(value)?)?,
            "mtu" => once(&mut mtu, key, path_mtu(value)?)?,
            _ => return Err(bad_part(part)),
        }
    }
    Ok(RdmaPeer {
        qpn: qpn
            .filter(|qpn| *qpn != 0)
            .ok_or("qpn is missing or zero; write qpn=N")?,
        gid: gid.ok_or("gid is missing; write gid=G, such as gid=::ffff:10.0.0.2")?,
        psn: psn.ok_or("psn is missing; write psn=N")?,
        path_mtu: mtu.unwrap_or(0),
    })
}

fn bad_part(part: &str) -> BadValue {
    format!("{part:?} is not one of qpn=N, gid=G, psn=N, mtu=N").into()
}

fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), BadValue> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is given twice").into()),
    }
}

/// Decimal or 0x, at most 24 bits.
fn u24(text: &str) -> Result<u32, BadValue> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().filter(|n| *n <= U24_MAX).ok_or_else(|| {
        format!("{text:?} is no number of 24 bits; write a decimal or 0x one, at most {U24_MAX}")
            .into()
    })
}

/// A path MTU in bytes.
pub(crate) fn path_mtu(text: &str) -> Result<u16, BadValue> {
    let known = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
    known.ok_or_else(|| format!("mtu {text:?} is not one of 256, 512, 1024, 2048, 4096").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_in_every_spelling() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[255, 255, 10, 0, 0, 2]);
        let peer = RdmaPeer {
            qpn: 17,
            gid,
            psn: 255,
            path_mtu: 0,
        };
        let same = [
            "qpn=17,gid=::ffff:10.0.0.2,psn=255",
            "psn=0xff,qpn=0x11,gid=10.0.0.2",
            "gid=0000:0000:0000:0000:0000:ffff:0a00:0002,qpn=17,psn=255",
            "gid=00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02,qpn=17,psn=255",
        ];
        for text in same {
            assert_eq!(rdma_peer(text), Ok(peer), "{text}");
        }
        let wide = RdmaPeer {
            path_mtu: 4_096,
            ..peer
        };
        assert_eq!(rdma_peer("qpn=17,gid=10.0.0.2,psn=255,mtu=4096"), Ok(wide));
    }

    #[test]
    fn peers_that_are_wrong_say_how() {
        let cases = [
            ("", "qpn=N"),
            ("qpn=1,gid=::1", "psn is missing"),
            ("gid=::1,psn=1", "qpn is missing"),
            ("qpn=0,gid=::1,psn=1", "qpn is missing or zero"),
            ("qpn=1,psn=1", "gid is missing"),
            ("qpn=16777216,gid=::1,psn=1", "24 bits"),
            ("qpn=1,qpn=2,gid=::1,psn=1", "twice"),
            ("qpn=x,gid=::1,psn=1", "decimal"),
            ("qpn=1,gid=::1,psn=99999999999", "at most 16777215"),
            ("qpn=1,gid=zz,psn=1", "gid"),
            ("qpn=1,gid=::1,psn=1,mtu=1500", "1024"),
            ("qpn=1,gid=::1,psn=1,rkey=3", "rkey"),
        ];
        for (text, hint) in cases {
            let error = rdma_peer(text).unwrap_err();
            assert!(error.0.contains(hint), "{text}: {error}");
        }
    }
}
