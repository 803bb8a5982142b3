//! Calls made by threads. `node/tests/helpers.rs` tests calls made by processes.

mod pidfds;

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::CHANNEL;
use crate::{Call, CallError, Caller, Failure, Handler, ReadFirst, Supervisor};

const PATIENCE: Duration = Duration::from_secs(60);
const BRIEF: Duration = Duration::from_millis(100);

/// Reports each word as progress, and returns the number of words.
#[derive(Debug, Serialize, Deserialize)]
struct Count(Vec<String>);

impl Call for Count {
    const NAME: &'static str = "count";
    type Answer = usize;

    fn make(self, caller: &Caller) -> Result<usize, Failure> {
        self.0.iter().try_for_each(|word| caller.progress(word))?;
        Ok(self.0.len())
    }
}

/// Never returns by itself.
#[derive(Debug, Serialize, Deserialize)]
struct Hang;

impl Call for Hang {
    const NAME: &'static str = "hang";
    type Answer = ();

    fn make(self, _caller: &Caller) -> Result<(), Failure> {
        panic!("only where a test says how")
    }
}

/// A supervisor with threads, in which [`Hang`] hangs until the sender is dropped.
fn supervisor() -> (Supervisor, Sender<()>) {
    let (release, held): (_, Receiver<()>) = channel();
    let held = Arc::new(Mutex::new(held));
    let hang = move |Hang, caller: &Caller| {
        caller.progress("begun")?;
        // Returns when the sender is dropped.
        held.lock().unwrap().recv().ok();
        Ok(())
    };
    let handlers = vec![
        Handler::of::<Count>(),
        Handler::of::<ReadFirst>(),
        Handler::by(hang),
    ];
    (Supervisor::of_threads(handlers), release)
}

fn count(words: &[&str]) -> Count {
    Count(words.iter().map(ToString::to_string).collect())
}

#[test]
fn an_answer_comes_after_what_is_said_on_the_way() {
    let (supervisor, _release) = supervisor();
    let heard = RefCell::new(Vec::new());
    let note = |what: &str| heard.borrow_mut().push(what.to_owned());
    let mut session = supervisor.session().unwrap();
    for words in [&["one", "two"][..], &[], &["three"]] {
        let counted = session.ask(&count(words), PATIENCE, &note).unwrap();
        assert_eq!(counted, words.len());
    }
    assert_eq!(heard.into_inner(), ["one", "two", "three"]);
}

#[test]
fn a_call_that_hangs_is_given_up_and_holds_up_no_other() {
    let (supervisor, release) = supervisor();
    let error = supervisor.call(&Hang, BRIEF, &|_| ()).unwrap_err();
    assert!(error.is_stuck(), "{error}");
    assert!(
        error.to_string().starts_with("no progress for 100 ms"),
        "{error}"
    );
    assert_eq!(
        supervisor
            .call(&count(&["one"]), PATIENCE, &|_| ())
            .unwrap(),
        1
    );
    drop(release);
}

#[test]
fn a_call_counts_as_in_flight_until_it_is_answered_or_given_up() {
    let (supervisor, release) = supervisor();
    let of_hang = || {
        let calls = supervisor.in_flight();
        let mut all = calls.now();
        all.find(|(name, _)| *name == Hang::NAME).unwrap().1
    };
    let heard = RefCell::new(Vec::new());
    let note = |_: &str| heard.borrow_mut().push(of_hang());
    supervisor.call(&Hang, BRIEF, &note).unwrap_err();
    assert_eq!(heard.into_inner(), [1]);
    assert_eq!(of_hang(), 0);
    drop(release);
}

#[test]
fn a_failure_has_the_number_that_the_system_gave() {
    let (supervisor, _release) = supervisor();
    let read = ReadFirst::of("/nonexistent".as_ref());
    let CallError::Failed(failure) = supervisor.call(&read, PATIENCE, &|_| ()).unwrap_err() else {
        panic!("it has failed");
    };
    assert_eq!(failure.errno, Some(nix::libc::ENOENT));
    assert!(failure.detail.contains("read /nonexistent"), "{failure}");
}

#[test]
fn a_process_that_dies_over_a_call_and_one_that_cannot_make_it_are_told() {
    let dies = Supervisor::of_threads(vec![Handler::of::<Hang>()]);
    let error = dies.call(&Hang, PATIENCE, &|_| ()).unwrap_err().to_string();
    assert!(error.ends_with("ended without an answer"), "{error}");
    let error = dies
        .call(&count(&[]), PATIENCE, &|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"count\""), "{error}");
}

#[test]
fn a_message_that_is_too_long_is_refused_on_either_side() {
    let (supervisor, _release) = supervisor();
    let long = "x".repeat(CHANNEL.frame_bytes_max);
    let error = supervisor
        .call(&count(&[&long]), PATIENCE, &|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("65536 are allowed"), "{error}");
}
