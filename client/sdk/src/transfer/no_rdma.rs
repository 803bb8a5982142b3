//! Without the feature `rdma`: there is no such transport.

use super::{Failed, Job};
use crate::{Error, shared::SharedLease};

/// Never made.
#[derive(Debug)]
pub(crate) enum RdmaConnection {}

impl RdmaConnection {
    pub(super) fn open(_shared: &SharedLease) -> Result<Self, Error> {
        Err(Error::Local {
            what: "use RDMA",
            why: "this program was built without RDMA".to_owned(),
        })
    }

    pub(super) fn is_ours(&self, _shared: &SharedLease) -> bool {
        match *self {}
    }

    pub(super) fn carry_out(
        &mut self,
        _shared: &SharedLease,
        _job: &mut Job<'_>,
        _progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failed> {
        match *self {}
    }
}
