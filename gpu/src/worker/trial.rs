//! Tests the isolation of workers when the node starts.

use fabricbios_helper::{Call, Caller, Failure};
use serde::{Deserialize, Serialize};

use super::{files::Files, sandbox};
use crate::{Libraries, sessions::FIRST_UID};

/// Isolates its process like a worker, without a device. The answer: the parts of the isolation that this machine does
/// not allow. The call fails if no worker could serve here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// The vendors' libraries.
    pub libraries: Libraries,
}

impl Call for Trial {
    const NAME: &'static str = "gpu-worker";
    type Answer = Vec<String>;

    fn make(self, _caller: &Caller) -> Result<Vec<String>, Failure> {
        let mut lacks = sandbox::separate();
        Files::of(&self.libraries, &[]).shut_in()?;
        lacks.extend(sandbox::become_user(FIRST_UID, &[])?);
        sandbox::close()?;
        Ok(lacks)
    }
}
