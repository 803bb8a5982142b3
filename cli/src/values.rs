//! Values as people write them. Every error says what was wrong and what would be right.

use fabricbios_client::Road;
use fabricbios_wire::{KvCacheIntent, RdmaPeer, Transport, is_tenant_name};

use crate::{args::RoadChoice, gid};

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
const U24_MAX: u32 = (1 << 24) - 1;
const MTUS: [u16; 5] = [256, 512, 1_024, 2_048, 4_096];
const HOW_SIZES: &str = "write a whole number of bytes, or one with B, KiB, MiB, GiB or TiB";

/// A size in bytes, not zero.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match offset(text)? {
        0 => Err("zero bytes; ask for at least one".into()),
        bytes => Ok(bytes),
    }
}

/// A place, as a number of bytes before it.
pub(crate) fn offset(text: &str) -> Result<u64, String> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (digits, shift) = match unit {
        Some((unit, shift)) => (text[..text.len() - unit.len()].trim_end(), *shift),
        None => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(HOW_SIZES.into());
    }
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "more than 16 EiB; ask for less".into())
}

/// `auto`, `rdma` or `udp`.
pub(crate) fn road(text: &str) -> Result<RoadChoice, String> {
    match text {
        "auto" => Ok(RoadChoice(None)),
        "rdma" => Ok(RoadChoice(Some(Road::Rdma))),
        "udp" => Ok(RoadChoice(Some(Road::Udp))),
        _ => Err("write auto, rdma or udp".into()),
    }
}

/// A road to block storage.
pub(crate) fn block_road(text: &str) -> Result<Transport, String> {
    let road = text.parse().ok().filter(|road| *road != Transport::Rdma);
    road.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma, udp or both".into())
}

/// A road to the blocks of one lease.
pub(crate) fn attach_road(text: &str) -> Result<Transport, String> {
    let road = block_road(text)
        .ok()
        .filter(|road| *road != Transport::Both);
    road.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma or udp".into())
}

/// A term in seconds, not zero.
pub(crate) fn secs(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("a term lasts at least 1 second".into()),
        Ok(secs) => Ok(secs),
        Err(_) => Err(format!("write whole seconds, at most {}", u32::MAX)),
    }
}

/// Megabits per second, as bits per second.
pub(crate) fn megabits(text: &str) -> Result<u64, String> {
    let megabits: u64 = whole(text, (1, u64::MAX / 1_000_000))?;
    Ok(megabits * 1_000_000)
}

/// A whole number of at least `MIN` and at most `MAX`.
pub(crate) fn number<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = whole(text, (MIN.into(), MAX.into()))?;
    u32::try_from(number).map_err(|e| format!("{e}; at most {MAX}"))
}

/// A number of things, not zero.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    whole(text, (1, u64::MAX))
}

fn whole(text: &str, (min, max): (u64, u64)) -> Result<u64, String> {
    let number = text.parse().ok();
    number
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("write a whole number from {min} to {max}"))
}

/// `qpn=N,gid=G,psn=N[,mtu=N]`, in any order.
pub(crate) fn rdma_peer(text: &str) -> Result<RdmaPeer, String> {
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

fn bad_part(part: &str) -> String {
    format!("{part:?} is not one of qpn=N, gid=G, psn=N, mtu=N")
}

fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is given twice")),
    }
}

/// Decimal or 0x, at most 24 bits.
fn u24(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().filter(|n| *n <= U24_MAX).ok_or_else(|| {
        format!("{text:?} is no number of 24 bits; write a decimal or 0x one, at most {U24_MAX}")
    })
}

fn path_mtu(text: &str) -> Result<u16, String> {
    let known = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
    known.ok_or_else(|| format!("mtu {text:?} is not one of 256, 512, 1024, 2048, 4096"))
}

/// `TIER[,block=SIZE]`.
pub(crate) fn kv_cache(text: &str) -> Result<KvCacheIntent, String> {
    let (tier, block) = match text.split_once(',') {
        Some((tier, block)) => (tier, Some(block)),
        None => (text, None),
    };
    let tier = tier.strip_prefix("tier=").unwrap_or(tier).parse();
    let block_bytes = match block.map(|block| block.strip_prefix("block=").ok_or(block)) {
        None => 0,
        Some(Ok(block)) => {
            let bytes = size(block)?;
            u32::try_from(bytes).map_err(|_too_large| {
                format!("block of {bytes} bytes; write one of less than 4 GiB")
            })?
        }
        Some(Err(other)) => return Err(format!("{other:?} is not block=SIZE")),
    };
    Ok(KvCacheIntent {
        tier: tier.map_err(|e| format!("{e}"))?,
        block_bytes,
    })
}

/// A tenant's name.
pub(crate) fn tenant(text: &str) -> Result<String, String> {
    if is_tenant_name(text) {
        return Ok(text.to_owned());
    }
    Err("a tenant's name is 1 to 64 of a-z 0-9 - _ .".into())
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::KvCacheTier;

    use super::*;

    #[test]
    fn sizes() {
        let good = [
            ("1", 1),
            ("4096B", 4_096),
            ("4KiB", 4_096),
            ("3 MiB", 3 << 20),
            ("2GiB", 2 << 30),
            ("16777215TiB", 16_777_215 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        let bad = [
            "",
            "0",
            "0GiB",
            "1.5GiB",
            "-1",
            "+1",
            "1KB",
            "1k",
            "GiB",
            "16777216TiB",
            "1e3",
            "99999999999999999999",
            "0x10",
        ];
        for text in bad {
            size(text).unwrap_err();
        }
    }

    #[test]
    fn numbers_that_are_none_are_told_what_would_be_one() {
        assert_eq!(number::<0, 60_000>("60000"), Ok(60_000));
        assert_eq!(megabits("100"), Ok(100_000_000));
        let wrong = ["x", "", "-1", "60001", "99999999999999999999", "1.5"];
        for text in wrong {
            let error = number::<0, 60_000>(text).unwrap_err();
            assert!(error.contains("from 0 to 60000"), "{text}: {error}");
        }
        for text in ["x", "0", "99999999999999999999"] {
            for error in [megabits(text).unwrap_err(), count(text).unwrap_err()] {
                assert!(error.contains("whole number from 1"), "{text}: {error}");
            }
        }
        let psn = rdma_peer("qpn=1,gid=::1,psn=99999999999").unwrap_err();
        assert!(psn.contains("at most 16777215"), "{psn}");
        assert!(
            secs("99999999999")
                .unwrap_err()
                .contains("at most 4294967295")
        );
    }

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
            ("qpn=1,gid=zz,psn=1", "gid"),
            ("qpn=1,gid=::1,psn=1,mtu=1500", "1024"),
            ("qpn=1,gid=::1,psn=1,rkey=3", "rkey"),
        ];
        for (text, hint) in cases {
            let error = rdma_peer(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn kv_cache_intents() {
        let hot = KvCacheIntent {
            tier: KvCacheTier::Hot,
            block_bytes: 0,
        };
        assert_eq!(kv_cache("hot"), Ok(hot));
        assert_eq!(kv_cache("tier=hot"), Ok(hot));
        let cold = KvCacheIntent {
            tier: KvCacheTier::Cold,
            block_bytes: 65_536,
        };
        assert_eq!(kv_cache("cold,block=64KiB"), Ok(cold));
        for text in ["", "boiling", "hot,64KiB", "hot,block=8GiB", "hot,block=0"] {
            kv_cache(text).unwrap_err();
        }
    }
}
