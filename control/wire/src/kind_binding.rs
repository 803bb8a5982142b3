//! The coordinates that only one kind of resource has: one variant for each kind.

use alloc::boxed::Box;
use core::borrow::Borrow;

use crate::{kinds::Coordinates, read::Decoded, tlv::TlvArea, write::Writer, *};

macro_rules! kind_binding {
    ($({ $code:literal $variant:ident $word:literal $name:literal, $terms:tt, ($accessor:ident: $coordinates:ty as $holder:ty) })*) => {
        /// The coordinates that only one kind of resource has. The variant is the kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
        pub enum KindBinding {
            $(#[doc = concat!("Those for ", $name, ".")] $variant(Option<$holder>),)*
            /// A kind that is never leased; never a kind with a variant.
            Other(ResourceType),
        }

        impl KindBinding {
            /// The kind.
            #[must_use]
            pub fn resource_type(&self) -> ResourceType {
                match self {
                    $(Self::$variant(_) => ResourceType::$variant,)*
                    Self::Other(other) => *other,
                }
            }

            pub(crate) fn plain(kind: ResourceType) -> Self {
                match kind {
                    $(ResourceType::$variant => Self::$variant(None),)*
                    other => Self::Other(other),
                }
            }

            /// Merges two of one kind; where both have coordinates, those of `self` stay.
            pub(crate) fn or(self, other: Self) -> Self {
                match (self, other) {
                    $((Self::$variant(one), Self::$variant(two)) => Self::$variant(one.or(two)),)*
                    (one, _) => one,
                }
            }

            /// Reads the coordinates of `kind`. Tags of another kind are checked, then left out like unknown tags.
            pub(crate) fn read(area: &TlvArea<'_>, kind: ResourceType) -> Decoded<Self> {
                let mut own = Self::plain(kind);
                $(
                    let found = <$coordinates>::find(area)?;
                    if let Self::$variant(coordinates) = &mut own {
                        *coordinates = found.map(Into::into);
                    }
                )*
                Ok(own)
            }

            pub(crate) fn write(&self, w: &mut Writer) {
                match self {
                    $(Self::$variant(held) => held.iter().for_each(|it| <$coordinates>::write(it.borrow(), w)),)*
                    Self::Other(_) => {}
                }
            }
        }

        impl Binding {
            $(
                #[doc = concat!("The coordinates of a lease of ", $name, ", if it has any.")]
                #[must_use]
                pub fn $accessor(&self) -> Option<&$coordinates> {
                    match &self.kind {
                        KindBinding::$variant(held) => held.as_ref().map(Borrow::borrow),
                        _ => None,
                    }
                }
            )*
        }
    };
}

kinds!(kind_binding);
