//! JSON objects whose fields depend on the lease or the resource. Fields without a value are left out.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use zeroize::Zeroizing;

/// A value.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Json<'a> {
    #[serde(skip)]
    Absent,
    Null,
    Bool(bool),
    Number(u64),
    Text(Cow<'a, str>),
    Secret(Zeroizing<String>),
    List(Vec<Json<'a>>),
    Object(Object<'a>),
}

/// Fields in their order.
pub(crate) struct Object<'a>(Vec<(Cow<'static, str>, Json<'a>)>);

/// One field.
pub(crate) type Field<'a> = (&'static str, Json<'a>);

/// A field; absent if the value is `None`.
pub(crate) fn field<'a>(key: &'static str, value: impl Into<Json<'a>>) -> Field<'a> {
    (key, value.into())
}

/// A field that is there only if it is true.
pub(crate) fn flag(key: &'static str, value: bool) -> Field<'static> {
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
    pub(crate) fn with(self, more: impl IntoIterator<Item = Field<'a>>) -> Self {
        self.and(more.into_iter().collect())
    }

    /// The object with the fields of the other behind its own.
    pub(crate) fn and(mut self, other: Self) -> Self {
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
    Zeroizing<String>: it => Self::Secret(it);
    Object<'a>: it => Self::Object(it);
}
