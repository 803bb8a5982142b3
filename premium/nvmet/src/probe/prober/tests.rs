use std::sync::atomic::{AtomicBool, Ordering};

use fabricbios_helper::{Failure, Handler};
use fabricbios_wire::HostId;

use super::{super::super::fabrics::Status, *};

/// Longer than any wait for an answer.
const LONG: Duration = Duration::from_secs(600);

fn question(number: u8) -> Question {
    Question {
        host_id: HostId([number; 16]),
        subsystem: format!("nqn.s{number}"),
        host: "nqn.h".to_owned(),
    }
}

fn port() -> Port {
    (7, "10.0.0.1:4420".parse().unwrap())
}

type Reply = Result<Answer, Failure>;
type Says = fn() -> Reply;

/// A prober whose ports give this reply.
fn says(reply: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Arc<Prober> {
    let handler = Handler::by(move |call: AskRdma, _| reply(&call.question));
    Prober::new(Some(Supervisor::of_threads(vec![handler])))
}

fn status(number: u16) -> Reply {
    Ok(Answer::Status(Status(number)))
}

fn silence(why: &str) -> Reply {
    Ok(Answer::Silence(why.to_owned()))
}

fn ask(prober: &Arc<Prober>, count: u8) -> Result<Vec<Answer>, CannotAsk> {
    let questions: Vec<_> = (1..=count).map(question).collect();
    prober.ask(port(), &question(0), &questions)
}

/// A prober whose port passes the test and then gives this reply.
fn able(reply: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Arc<Prober> {
    let prober = says(move |question| match &*question.subsystem {
        "nqn.s0" => status(0x4184),
        _ => reply(question),
    });
    prober.test_port(port(), &question(0)).unwrap();
    prober
}

#[test]
fn answers_come_in_the_order_of_the_questions() {
    let prober = able(|question| match &*question.subsystem {
        "nqn.s1" => status(0x4182),
        "nqn.s2" => Ok(Answer::NobodyListens),
        _ => Ok(Answer::NoSuchAddress),
    });
    let expected = [
        Answer::Status(Status(0x4182)),
        Answer::NobodyListens,
        Answer::NoSuchAddress,
    ];
    assert_eq!(ask(&prober, 3).unwrap(), expected);
}

#[test]
fn one_process_has_all_questions() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let prober = able(move |_| {
        seen.lock().unwrap().push(thread::current().id());
        status(0x4182)
    });
    ask(&prober, 3).unwrap();
    ask(&prober, 2).unwrap();
    let threads = threads.lock().unwrap();
    assert_eq!(threads.len(), 5);
    assert!(threads.iter().all(|it| *it == threads[0]), "{threads:?}");
}

#[test]
fn who_does_not_greet_cannot_be_asked() {
    let late = || {
        thread::park_timeout(LONG);
        silence("late")
    };
    let replies: [(Says, &str); 5] = [
        (|| silence("librdmacm is missing"), "librdmacm is missing"),
        (|| panic!("it dies"), "ended without an answer"),
        (|| Ok(Answer::NobodyListens), "nobody listens"),
        // Another program answers: it does not have the anchor of the node.
        (|| status(0x4182), "0x4182"),
        (late, "600 ms"),
    ];
    for (reply, words) in replies {
        let prober = says(move |_| reply());
        let why = prober.test_port(port(), &question(0)).unwrap_err();
        let why = why.to_string();
        assert!(why.contains(words), "{why}");
    }
    let nobody = Prober::new(None);
    assert!(nobody.test_port(port(), &question(0)).is_err());
}

#[test]
fn a_port_that_could_not_be_asked_is_tried_again_aside() {
    let prober = says(|_| status(0x4184));
    assert_eq!(ask(&prober, 1), Err(CannotAsk::NotYet));
    while ask(&prober, 1).is_err() {
        thread::yield_now();
    }
    assert_eq!(ask(&prober, 1).unwrap(), [Answer::Status(Status(0x4184))]);
}

#[test]
fn a_lost_answer_is_asked_for_by_another_process() {
    let lost = AtomicBool::new(false);
    let prober = able(move |_| {
        assert!(lost.swap(true, Ordering::SeqCst), "the first one dies");
        status(0x4182)
    });
    let told = Answer::Status(Status(0x4182));
    assert_eq!(ask(&prober, 2).unwrap(), [told.clone(), told]);
}

#[test]
fn a_port_that_has_answered_once_must_answer() {
    let prober = able(|question| {
        assert_ne!(question.subsystem, "nqn.s2", "it dies of this one");
        status(0x4182)
    });
    let answers = ask(&prober, 3).unwrap();
    assert_eq!(answers[0], Answer::Status(Status(0x4182)));
    let lost = |answer: &Answer| matches!(answer, Answer::Silence(_));
    assert!(answers[1..].iter().all(lost), "{answers:?}");
}
