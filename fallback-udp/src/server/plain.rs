//! The same sockets and threads without the service: the baseline of the benches.

use std::{net::SocketAddr, num::NonZeroUsize};

use fabricbios_lease::StepError;

use super::{
    batch::Exchange,
    socket,
    worker::{Handler, Workers},
};
use crate::ReplyBuffer;

const NAME: &str = "plain";

/// Threads that answer each datagram by a function.
#[derive(Debug)]
pub struct Plain {
    address: SocketAddr,
    _threads: Workers,
}

struct Function<H>(H);

impl Plain {
    /// `handler` makes one function for each thread. The function fills the reply and returns its length, 0 for no
    /// reply.
    ///
    /// # Errors
    /// The port is taken, or the system refuses a socket or a thread.
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

    /// Address of the sockets.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl<H> Handler for Function<H>
where
    H: FnMut(&[u8], &mut ReplyBuffer) -> usize + Send + 'static,
{
    fn handle(&mut self, exchanges: &mut [Exchange]) {
        for exchange in exchanges {
            let (datagram, reply) = exchange.open();
            let length = (self.0)(datagram, reply);
            exchange.answer(length);
        }
    }
}
