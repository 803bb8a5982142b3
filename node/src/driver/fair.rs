//! The queue in which the tenants of the node take turns.

use std::sync::Arc;

/// The owner of an item: a tenant, or `None` for the node itself.
pub type Owner = Option<Arc<str>>;

/// See [`fabricbios_control::FairQueue`].
pub type FairQueue<T> = fabricbios_control::FairQueue<Owner, T>;
