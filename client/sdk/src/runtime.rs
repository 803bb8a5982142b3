//! The background thread for connections and renewals: callers need no runtime, and a lease outlives the runtime of
//! its caller.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinError,
};

use crate::Error;

static RUNTIME: OnceLock<Result<Runtime, Error>> = OnceLock::new();

/// The background runtime, started at first use.
pub(crate) fn background() -> Result<&'static Runtime, Error> {
    let start = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fabricbios")
            .enable_all()
            .build()
            .map_err(|error| Error::Local {
                what: "start a thread",
                why: error.to_string(),
            })
    };
    RUNTIME.get_or_init(start).as_ref().map_err(Error::clone)
}

/// Runs `future` in the background. The returned future can be awaited under any executor; dropping
/// it does not stop the work.
pub(crate) async fn run<T, F>(future: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    finished(background()?.spawn(future).await)
}

/// Runs blocking work in the background; see [`run`].
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Error> + Send + 'static,
{
    finished(background()?.spawn_blocking(work).await)
}

fn finished<T>(joined: Result<Result<T, Error>, JoinError>) -> Result<T, Error> {
    joined.unwrap_or_else(|error| {
        Err(Error::Local {
            what: "finish a background task",
            why: error.to_string(),
        })
    })
}

/// Waits on this thread. Unlike `Runtime::block_on` this is allowed inside a runtime, where it
/// blocks the thread that it is called on, as every blocking call does.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_works_outside_and_inside_of_a_runtime() {
        assert_eq!(wait(run(async { Ok(1) })).unwrap(), 1);
        let inside = Builder::new_current_thread().build().unwrap();
        assert_eq!(
            inside
                .block_on(async { wait(run(async { Ok(2) })) })
                .unwrap(),
            2
        );
    }
}
