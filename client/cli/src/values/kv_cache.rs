//! The intent of a KV cache on the command line.

use fabricbios_wire::KvCacheIntent;

use super::{BadValue, size};

/// `TIER[,block=SIZE]`.
pub(crate) fn kv_cache(text: &str) -> Result<KvCacheIntent, BadValue> {
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
        Some(Err(other)) => return Err(format!("{other:?} is not block=SIZE").into()),
    };
    Ok(KvCacheIntent {
        tier: tier.map_err(|e| format!("{e}"))?,
        block_bytes,
    })
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::KvCacheTier;

    use super::*;

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
