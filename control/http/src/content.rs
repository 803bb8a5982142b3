//! What an answer consists of.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// The body of an answer: a whole, or a stream of parts.
#[derive(Debug)]
pub struct Content(Kind);

#[derive(Debug)]
enum Kind {
    /// Taken once.
    Whole(Option<Bytes>),
    Stream(Stream),
}

type Part = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

struct Stream {
    /// Begins to make the next part.
    next: Box<dyn FnMut() -> Part + Send>,
    begun: Option<Part>,
}

impl Content {
    /// A whole.
    #[must_use]
    pub fn whole(text: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Some(text.into())))
    }

    /// A stream of the parts that `next` makes, until it makes none. A part is made once the client has taken the one
    /// before, so nothing piles up for who reads slowly. A connection with a stream lasts one minute at most.
    pub fn stream<F>(mut next: impl FnMut() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<Bytes>> + Send + 'static,
    {
        Self(Kind::Stream(Stream {
            next: Box::new(move || Box::pin(next())),
            begun: None,
        }))
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.0, Kind::Stream(_))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = match &mut self.0 {
            Kind::Whole(whole) => whole.take(),
            Kind::Stream(Stream { next, begun }) => {
                let part = ready!(begun.get_or_insert_with(next).as_mut().poll(context));
                *begun = None;
                part
            }
        };
        Poll::Ready(part.map(|it| Ok(Frame::data(it))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Kind::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => {
                SizeHint::with_exact(whole.as_ref().map_or(0, |it| it.len() as u64))
            }
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}
