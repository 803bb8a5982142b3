//! One answer for all who ask within a moment.

use std::{future::Future, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

/// How old an answer may be. The owner of the data is not asked more often, however many ask here.
const FRESH: Duration = Duration::from_millis(500);

/// The last answer of the owner of the data.
#[derive(Debug)]
pub struct Latest<T> {
    /// Somebody waits for a new answer.
    wanted: Notify,
    tell: watch::Sender<Option<(Instant, T)>>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self {
            wanted: Notify::new(),
            tell: watch::Sender::new(None),
        }
    }
}

impl<T: Clone + Send + Sync> Latest<T> {
    /// Asks the owner while somebody wants an answer, also when who wanted it has gone. `ask` returns `None` when the
    /// owner has stopped, which ends this.
    pub async fn refresh<A: Future<Output = Option<T>>>(&self, ask: impl Fn() -> A) {
        loop {
            self.wanted.notified().await;
            let Some(answer) = ask().await else {
                return;
            };
            self.tell.send_replace(Some((Instant::now(), answer)));
            sleep(FRESH).await;
        }
    }

    /// A fresh answer. `None`: there is none within `patience`, because the owner is busy, hangs or has stopped.
    pub async fn get(&self, patience: Duration) -> Option<T> {
        // Judged by one moment: an answer that came after it is never too old.
        let asked = Instant::now();
        let is_fresh = |last: &Option<(Instant, T)>| {
            let at = last.as_ref().map(|(at, _)| *at);
            at.is_some_and(|at| asked.saturating_duration_since(at) < FRESH)
        };
        let mut last = self.tell.subscribe();
        if !is_fresh(&last.borrow()) {
            self.wanted.notify_one();
        }
        let fresh = timeout(patience, last.wait_for(is_fresh))
            .await
            .ok()?
            .ok()?;
        fresh.as_ref().map(|(_, answer)| answer.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn all_who_ask_at_once_get_one_answer_and_none_comes_from_an_owner_that_hangs() {
        let (latest, asked) = (Latest::default(), AtomicU32::new(0));
        let owner = async || match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Some(7),
            _ => std::future::pending().await,
        };
        let patience = Duration::from_secs(120);
        let all = async {
            let three = tokio::join!(
                latest.get(patience),
                latest.get(patience),
                latest.get(patience)
            );
            assert_eq!(three, (Some(7), Some(7), Some(7)));
            assert_eq!(asked.load(Ordering::Relaxed), 1);
            sleep(FRESH).await;
            assert_eq!(latest.get(FRESH).await, None);
        };
        tokio::select! {
            () = latest.refresh(owner) => panic!("it ended"),
            () = all => {}
        }
    }
}
