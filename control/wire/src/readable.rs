//! Serde forms of values that have a word or a text of their own. Formats for people, such as JSON, use the text.
//! Compact formats, such as a record of the node's journal, use a number or bytes.

/// `$of` makes the compact form of a reference, and `$from` reads it; `None`: the value does not exist.
macro_rules! readable {
    ($type:ty, $compact:ty, $of:expr, $from:expr) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    return to.collect_str(self);
                }
                let of: fn(&Self) -> $compact = $of;
                serde::Serialize::serialize(&of(self), to)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                use serde::de::Error;
                if from.is_human_readable() {
                    let text = <alloc::string::String as serde::Deserialize>::deserialize(from)?;
                    return text.parse().map_err(D::Error::custom);
                }
                let read: fn($compact) -> Option<Self> = $from;
                let compact = <$compact as serde::Deserialize>::deserialize(from)?;
                read(compact).ok_or_else(|| D::Error::custom("an unknown value"))
            }
        }
    };
}

pub(crate) use readable;
