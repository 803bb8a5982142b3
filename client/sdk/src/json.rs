//! JSON objects whose fields depend on the lease or the resource. Fields without a value are left out.

use std::{borrow::Cow, fmt};

use serde::{Serialize, Serializer};
use zeroize::Zeroizing;

/// A value.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Json<'a> {
    /// No value: the field is left out.
    #[serde(skip)]
    Absent,
    /// null.
    Null,
    /// true or false.
    Bool(bool),
    /// A number.
    Number(u64),
    /// A text.
    Text(Cow<'a, str>),
    /// A text that is a secret.
    Secret(Secret),
    /// A list.
    List(Vec<Json<'a>>),
    /// An object.
    Object(Object<'a>),
}

/// A text that is wiped, and that [`fmt::Debug`] does not show.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The text.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Fields in their order.
#[derive(Debug)]
pub struct Object<'a>(Vec<(Cow<'static, str>, Json<'a>)>);

/// One field.
pub type Field<'a> = (&'static str, Json<'a>);

/// A field; absent if the value is `None`.
pub fn field<'a>(key: &'static str, value: impl Into<Json<'a>>) -> Field<'a> {
    (key, value.into())
}

/// A field that is there only if it is true.
pub fn flag(key: &'static str, value: bool) -> Field<'static> {
    field(key, value.then_some(true))
}

impl<'a, K: Into<Cow<'static, str>>> FromIterator<(K, Json<'a>)> for Object<'a> {
    fn from_iter<I: IntoIterator<Item = (K, Json<'a>)>>(fields: I) -> Self {
        let fields = fields.into_iter();
        let there = fields.filter(|(_, value)| !matches!(value, Json::Absent));
        Self(there.map(|(key, value)| (key.into(), value)).collect())
    }
}

impl<'a, const N: usize> From<[Field<'a>; N]> for Object<'a> {
    fn from(fields: [Field<'a>; N]) -> Self {
        fields.into_iter().collect()
    }
}

impl<'a> Object<'a> {
    /// The object with these fields behind its own.
    #[must_use]
    pub fn with(self, more: impl IntoIterator<Item = Field<'a>>) -> Self {
        self.and(more.into_iter().collect())
    }

    /// The fields in their order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// The object with the fields of the other behind its own.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'a, T: Into<Json<'a>>> From<Option<T>> for Json<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, T::into)
    }
}

impl<'a, T: Into<Json<'a>>> From<Vec<T>> for Json<'a> {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(T::into).collect())
    }
}

macro_rules! from {
    ($($type:ty: $value:ident => $json:expr;)*) => {$(
        impl<'a> From<$type> for Json<'a> {
            fn from($value: $type) -> Self {
                $json
            }
        }
    )*};
}

from! {
    bool: it => Self::Bool(it);
    u8: it => Self::Number(it.into());
    u16: it => Self::Number(it.into());
    u32: it => Self::Number(it.into());
    u64: it => Self::Number(it);
    &'a str: it => Self::Text(it.into());
    String: it => Self::Text(it.into());
    Zeroizing<String>: it => Self::Secret(Secret(it));
    Object<'a>: it => Self::Object(it);
}
