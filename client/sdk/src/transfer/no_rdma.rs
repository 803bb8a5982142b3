//! Without the feature `rdma`: there is no such transport.

use super::{Failed, Job};
use crate::{Error, shared::Shared};

/// Never made.
#[derive(Debug)]
pub(crate) enum Connection {}

impl Connection {
    pub(super) fn open(_shared: &Shared) -> Result<Self, Error> {
        Err(Error::Local {
            what: "use RDMA",
            why: "this program was built without it".to_owned(),
        })
    }

    pub(super) fn is_ours(&self, _shared: &Shared) -> bool {
        match *self {}
    }

    pub(super) fn carry_out(
        &mut self,
        _shared: &Shared,
        _job: &mut Job<'_>,
        _progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failed> {
        match *self {}
    }
}
