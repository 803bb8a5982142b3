//! Wiping the free memory of a device.

use fabricbios_helper::{Call, Caller, Failure};
use serde::{Deserialize, Serialize};

use crate::{Context, Device, Libraries, Wiped, wipe_free};

/// Overwrites all free memory of a device or partition with zeroes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// The device or partition.
    pub device: Device,
    /// The vendors' libraries.
    pub libraries: Libraries,
}

impl Call for Scrub {
    const NAME: &'static str = "gpu-scrub";
    type Answer = Wiped;

    fn make(self, caller: &Caller) -> Result<Wiped, Failure> {
        let device = &self.device;
        let failed = |error| Failure::from(format!("{}: {error}", device.uuid));
        caller.progress("opening a context")?;
        let context = Context::open(
            &self.libraries,
            device.vendor,
            &device.visible,
            &device.uuid,
        );
        let context = context.map_err(failed)?;
        caller.progress("the context is open")?;
        let mut heard = Ok(());
        let wiped = wipe_free(&context, &mut |wiped, free| {
            if heard.is_ok() {
                heard = caller.progress(format!("{wiped} of {free} bytes are wiped"));
            }
        });
        let wiped = wiped.map_err(failed)?;
        heard?;
        context.release().map_err(failed)?;
        Ok(wiped)
    }
}
