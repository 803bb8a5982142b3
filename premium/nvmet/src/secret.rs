//! Makes DH-HMAC-CHAP secrets and host names.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use fabricbios_lease::StepError;
use fabricbios_wire::{DhchapSecret, HostId, Nqn, UUID_PREFIX};
use uuid::Builder;
use zeroize::Zeroizing;

/// Bytes of a secret. `01` in its text means that the secret is transformed with HMAC-SHA-256 and the host's name.
const SECRET_BYTES: usize = 32;

/// The checksum in a secret's text: CRC-32 of the secret, as in Ethernet and zlib.
const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

/// Makes a random secret in its text form, like `nvme gen-dhchap-key --hmac=1`: `DHHC-1:01:`, base64 of the secret and
/// its CRC with the low byte first, `:` (NVM Express base specification 2.0, section 8.13.5.8).
pub(super) fn mint_secret() -> Result<DhchapSecret, StepError> {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    fill(secret.as_mut())?;
    encode(&secret).ok_or_else(|| StepError::new("mint secret", "it has not the form of one"))
}

fn encode(secret: &[u8; SECRET_BYTES]) -> Option<DhchapSecret> {
    let mut summed = Zeroizing::new([0; SECRET_BYTES + 4]);
    let (head, tail) = summed.split_at_mut(SECRET_BYTES);
    head.copy_from_slice(secret);
    tail.copy_from_slice(&CRC.checksum(secret).to_le_bytes());
    let mut digits = Zeroizing::new([0; (SECRET_BYTES + 4) / 3 * 4]);
    STANDARD.encode_slice(*summed, digits.as_mut()).ok()?;
    let mut text = Zeroizing::new(String::with_capacity(64));
    text.push_str("DHHC-1:01:");
    text.push_str(std::str::from_utf8(digits.as_ref()).ok()?);
    text.push(':');
    DhchapSecret::new(&text)
}

/// A random UUID (RFC 9562, version 4).
pub(super) fn mint_host_id() -> Result<HostId, StepError> {
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    let id = Builder::from_random_bytes(bytes).into_uuid();
    Ok(HostId(id.into_bytes()))
}

/// The NQN of a host whose id is a UUID.
pub(super) fn name_of(host_id: HostId) -> Result<Nqn, StepError> {
    let text = format!("{UUID_PREFIX}{host_id}");
    text.parse()
        .map_err(|error| StepError::new("mint host name", format_args!("{text}: {error}")))
}

fn fill(bytes: &mut [u8]) -> Result<(), StepError> {
    getrandom::fill(bytes).map_err(|error| StepError::new("random bytes", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_written_as_the_specification_says() {
        // The form of `nvme gen-dhchap-key --hmac=1` of nvme-cli 2.3. The bytes are 0 to 31, whose CRC-32 is
        // 0x91267E8A.
        let secret: [u8; SECRET_BYTES] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        assert_eq!(
            encode(&secret).unwrap().reveal(),
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
        );
    }

    #[test]
    fn no_two_are_alike_and_ids_are_random_uuids() {
        let [one, other] = [mint_secret().unwrap(), mint_secret().unwrap()];
        assert_ne!(one, other);
        let id = mint_host_id().unwrap();
        assert_ne!(id, mint_host_id().unwrap());
        assert_eq!(id.to_string().as_bytes()[14], b'4');
        assert_eq!(name_of(id).unwrap().uuid(), Some(id));
    }
}
