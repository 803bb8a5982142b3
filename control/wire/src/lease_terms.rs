//! The terms of a request that only one kind of resource has: one variant for each kind.

use alloc::vec::Vec;

use crate::{kinds::Terms, tlv::TlvArea, write::Writer, *};

/// Records number the variants in this order: kinds after the fifth came after `Other`.
macro_rules! declare {
    ($cpu:tt $mem:tt $block:tt $net:tt $gpu:tt $($later:tt)*) => {
        declare! { [$mem $block $cpu $net $gpu] [$($later)*] }
    };
    (
        [$({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*]
        [$({ $c:literal $later:ident $w:literal $later_name:literal, ($m:ident: $later_terms:ty), $b:tt })*]
    ) => {
        /// The parameters of a lease that only its kind has. The variant is the kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
        pub enum LeaseTerms {
            $(#[doc = concat!("Those for ", $name, ".")] $variant($terms),)*
            /// A kind that is advertised and never leased; never a kind with a variant.
            Other(ResourceType),
            $(#[doc = concat!("Those for ", $later_name, ".")] $later($later_terms),)*
        }
    };
}

macro_rules! implement {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*) => {
        impl LeaseTerms {
            /// The terms of that kind, with nothing stated.
            #[must_use]
            pub fn plain(kind: ResourceType) -> Self {
                match kind {
                    $(ResourceType::$variant => Self::$variant(<$terms>::default()),)*
                    other => Self::Other(other),
                }
            }

            /// The kind.
            #[must_use]
            pub fn resource_type(&self) -> ResourceType {
                match self {
                    $(Self::$variant(_) => ResourceType::$variant,)*
                    Self::Other(other) => *other,
                }
            }

            $(
                #[doc = concat!("The terms, if they are for ", $name, ".")]
                #[must_use]
                pub fn $module(&self) -> Option<&$terms> {
                    match self {
                        Self::$variant(terms) => Some(terms),
                        _ => None,
                    }
                }
            )*

            /// The terms of every kind that a params blob can state.
            pub(crate) fn find_all(params: &TlvArea<'_>) -> Result<Vec<Self>, DecodeError> {
                Ok(alloc::vec![$(<$terms>::find(params)?.into()),*])
            }

            /// Writes the terms. The caller puts the TLVs of all kinds in order.
            pub(crate) fn write(&self, w: &mut Writer) {
                match self {
                    $(Self::$variant(terms) => terms.write(w),)*
                    Self::Other(_) => {}
                }
            }
        }

        impl Effective {
            /// Reads the fields that belong to one kind each.
            pub(crate) fn find_of_kinds(&mut self, area: &TlvArea<'_>) -> Result<(), DecodeError> {
                $(<$terms>::find_effective(area, self)?;)*
                Ok(())
            }

            /// Writes the fields that belong to one kind each. The caller puts the TLVs in order.
            pub(crate) fn write_of_kinds(&self, w: &mut Writer) {
                $(<$terms>::write_effective(self, w);)*
            }
        }

        $(
            impl From<$terms> for LeaseTerms {
                fn from(terms: $terms) -> Self {
                    Self::$variant(terms)
                }
            }
        )*
    };
}

kinds!(declare);
kinds!(implement);

impl LeaseTerms {
    /// Whether nothing is stated.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::plain(self.resource_type())
    }

    /// The client's queue pairs; none where the kind takes none.
    #[must_use]
    pub fn rdma_peers(&self) -> &[RdmaPeer] {
        self.mem().map_or(&[], |terms| &terms.rdma_peers)
    }

    /// The same terms with these queue pairs of the client, if the kind takes any.
    #[must_use]
    pub fn with_rdma_peers(mut self, peers: &[RdmaPeer]) -> Self {
        if let Self::Mem(terms) = &mut self {
            terms.rdma_peers = peers.to_vec();
        }
        self
    }
}

impl LeaseAllocRequest {
    /// The same request with these terms. Terms of another kind go to [`LeaseAllocRequest::foreign`].
    #[must_use]
    pub fn with_terms(mut self, terms: impl Into<LeaseTerms>) -> Self {
        let terms = terms.into();
        let kind = terms.resource_type();
        if kind == self.resource_type() {
            self.terms = terms;
            return self;
        }
        self.foreign.retain(|other| other.resource_type() != kind);
        if !terms.is_plain() {
            self.foreign.push(terms);
            self.foreign.sort_by_key(LeaseTerms::resource_type);
        }
        self
    }
}
