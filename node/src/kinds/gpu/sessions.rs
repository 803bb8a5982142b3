//! Connects clients to sessions.

use std::{fmt, os::unix::net::UnixStream, sync::Arc};

use fabricbios_control::{NoSessions, SessionConnector, SessionOpen};
use fabricbios_fabric::Principal;
use fabricbios_gpu::GpuPath;
use fabricbios_wire::Refusal;

use super::FoundGpus;
use crate::process::descriptors;

/// The parts of the GPU kind that the node needs besides the offer.
#[derive(Clone)]
pub struct GpuParts {
    /// All that were found, on offer or not.
    pub found: FoundGpus,
    /// Connects clients to sessions.
    pub sessions: Arc<dyn SessionConnector>,
}

impl Default for GpuParts {
    fn default() -> Self {
        Self {
            found: FoundGpus::default(),
            sessions: Arc::new(NoSessions),
        }
    }
}

impl fmt::Debug for GpuParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuParts")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Connects clients of the control plane to sessions.
pub(super) struct Sessions(pub(super) Arc<GpuPath>);

impl SessionConnector for Sessions {
    fn connect(&self, principal: &Principal, open: SessionOpen) -> Result<UnixStream, Refusal> {
        let _connecting = descriptors::for_a_stream()?;
        self.0
            .connect(open.lease_id, &principal.tenant, open.session)
    }
}
