//! What a bundle must not have.

use serde_json::Value;

pub(super) const LEFT_OUT: &str = "(left out)";

/// Parts of names of fields and settings whose values are secret.
const NAMES: [&str; 6] = [
    "key",
    "secret",
    "token",
    "password",
    "attach_code",
    "dhchap",
];

pub(super) fn is_name_of_secret(name: &str) -> bool {
    NAMES.iter().any(|it| name.contains(it))
}

/// Replaces the values of secret fields of a JSON text. `Err`: it is no JSON.
pub(super) fn strip(json: &[u8]) -> Result<Vec<u8>, String> {
    let mut value: Value =
        serde_json::from_slice(json).map_err(|error| format!("it is no JSON: {error}"))?;
    strip_value(&mut value);
    serde_json::to_vec_pretty(&value).map_err(|error| error.to_string())
}

fn strip_value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match is_name_of_secret(name) && !value.is_null() {
                    true => *value = LEFT_OUT.into(),
                    false => strip_value(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(strip_value),
        _ => {}
    }
}

/// Refuses a part that has a key in PEM: nothing that is collected should.
pub(super) fn refuse(part: Vec<u8>) -> Result<Vec<u8>, String> {
    let mark = b"PRIVATE KEY";
    match part.windows(mark.len()).any(|it| it == mark) {
        true => Err("it has a private key".to_owned()),
        false => Ok(part),
    }
}
