use super::*;
use std::cell::RefCell;

const PATIENCE: Duration = Duration::from_secs(60);
const BRIEF: Duration = Duration::from_millis(100);

fn shell(script: &str) -> Sacrifice {
    Sacrifice::new(["/bin/sh", "-c", script])
}

fn lines_of(script: &str) -> (Vec<String>, Result<(), Sacrificed>) {
    let lines = RefCell::new(Vec::new());
    let result = shell(script).run(PATIENCE, &|line| lines.borrow_mut().push(line.to_owned()));
    (lines.into_inner(), result)
}

fn failure(script: &str) -> String {
    lines_of(script).1.unwrap_err().to_string()
}

#[test]
fn each_line_is_progress_and_the_last_words_are_heard() {
    let (lines, result) = lines_of("echo one; echo two; echo three");
    result.unwrap();
    assert_eq!(lines, ["one", "two", "three"]);
}

#[test]
fn a_failure_says_what_the_program_said() {
    assert_eq!(failure("exit 3"), "exit status: 3");
    let said = failure("echo /dev/x: no space >&2; exit 1");
    assert_eq!(said, "/dev/x: no space (exit status: 1)");
    let killed = failure("kill -9 $$");
    assert!(killed.contains("signal: 9"), "{killed}");
}

#[test]
fn endless_complaints_are_bounded_and_do_not_stop_it() {
    let said = failure("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1");
    assert!(said.len() < TEXT_BYTES_MAX + 100, "{}", said.len());
    let (lines, result) = lines_of("head -c 1000000 /dev/zero; echo; echo end");
    result.unwrap();
    assert_eq!(lines.last().unwrap(), "end");
}

#[test]
fn a_program_that_is_not_there_is_told() {
    for command in [vec![], vec!["/nosuch/program"]] {
        let error = Sacrifice::new(command).run(PATIENCE, &|_| ()).unwrap_err();
        assert!(matches!(error, Sacrificed::NotStarted(_)), "{error}");
    }
}

#[test]
fn a_silent_one_is_given_up_and_killed_and_leaves_no_zombie() {
    let error = shell("echo begun; exec sleep 1000")
        .run(BRIEF, &|_| ())
        .unwrap_err();
    let Sacrificed::Stuck { pid, silent, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(silent, BRIEF);
    let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
    while !gone() {
        thread::yield_now();
    }
}

#[test]
fn silence_counts_from_the_last_line() {
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done";
    let (long, slow) = (Duration::from_secs(2), shell(script));
    slow.run(long, &|_| ()).unwrap();
}

#[test]
fn closing_its_output_does_not_end_it() {
    let (_, result) = lines_of("exec >&- 2>&-; sleep 0.1; exit 4");
    assert_eq!(result.unwrap_err().to_string(), "exit status: 4");
}

#[test]
fn what_it_leaves_behind_is_not_waited_for() {
    let (lines, result) = lines_of("sleep 1000 & echo $!");
    result.unwrap();
    let orphan = Pid::from_raw(lines[0].parse().unwrap()).unwrap();
    rustix::process::kill_process(orphan, Signal::KILL).unwrap();
}

#[test]
fn half_a_line_is_no_progress() {
    let error = shell("printf half; exec sleep 1000")
        .run(BRIEF, &|_| panic!("a line"))
        .unwrap_err();
    assert!(matches!(error, Sacrificed::Stuck { .. }), "{error}");
}
