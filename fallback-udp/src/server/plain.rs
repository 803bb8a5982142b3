//! The same sockets and threads with something else to do: what the service is measured against.

use std::{net::SocketAddr, num::NonZeroUsize};

use fabricbios_lease::StepError;

use super::{
    batch::Letter,
    socket,
    worker::{Clerk, Workers},
};
use crate::ReplyBuffer;

const NAME: &str = "plain";

/// Threads that answer each datagram with what a function makes of it.
#[derive(Debug)]
pub struct Plain {
    address: SocketAddr,
    _threads: Workers,
}

struct Function<H>(H);

impl Plain {
    /// `handler` makes one function for each thread; it fills the reply and says how long that is,
    /// 0 for none.
    pub fn open<H>(
        listen: SocketAddr,
        workers: NonZeroUsize,
        handler: impl Fn() -> H,
    ) -> Result<Self, StepError>
    where
        H: FnMut(&[u8], &mut ReplyBuffer) -> usize + Send + 'static,
    {
        let failed = |error| StepError::new("start threads", format_args!("{error}"));
        let sockets = socket::open(NAME, listen, workers.get())?;
        let address = sockets[0].local_addr().map_err(failed)?;
        let threads = Workers::start(NAME, sockets, || Ok(Function(handler()))).map_err(failed)?;
        Ok(Self {
            address,
            _threads: threads,
        })
    }

    /// Where they listen.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl<H> Clerk for Function<H>
where
    H: FnMut(&[u8], &mut ReplyBuffer) -> usize + Send + 'static,
{
    fn handle(&mut self, letters: &mut [Letter]) {
        for letter in letters {
            let (datagram, reply) = letter.open();
            let length = (self.0)(datagram, reply);
            letter.answer(length);
        }
    }
}
