//! `discover:IFACE` without the feature `discover`.

use crate::{
    DISCOVER, Error, Identity,
    dial::{Connected, DialError, Dialler},
};

/// There is none.
#[derive(Debug)]
pub(crate) enum Search {}

impl Search {
    pub(crate) fn of(node: &str, _: &Identity) -> Result<Option<Self>, Error> {
        match node.starts_with(DISCOVER) {
            false => Ok(None),
            true => Err(Error::Usage(format!(
                "{node:?}: this program looks for no schedulers; build it with the feature `discover` of the SDK, or write \
                 an address"
            ))),
        }
    }

    #[allow(clippy::unused_async, reason = "as the real one")]
    pub(crate) async fn dial(&self, _: &Dialler) -> Result<Connected, DialError> {
        match *self {}
    }
}
