//! The process that asks over RDMA: its arguments, its work, and what it prints.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
};

use fabricbios_wire::HostId;

use super::{
    super::{
        fabrics::{Question, Status, connect_data},
        nvme_rdma,
    },
    Answer,
};
use crate::rdma::verbs::managed::{NoAnswer, exchange};

/// Asks the port at the address that is the first argument, for each three that follow: host id, as 32
/// hexadecimal digits, NQN of a subsystem, NQN of a host. Says a line for each, in their order: `status` and the
/// status of Connect, `nobody`, where nobody listens, or `absent`, where this machine has no such address. One that has
/// no answer is the last one; why is said on standard error.
///
/// What can wait for ever in the kernel must not be the daemon's.
#[must_use]
pub fn ask_rdma_main(arguments: &[OsString]) -> ExitCode {
    let Some((address, questions)) = parse(arguments) else {
        eprintln!("ADDRESS:PORT, and for each question HOST_ID SUBSYSTEM_NQN HOST_NQN");
        return ExitCode::from(2);
    };
    for question in &questions {
        let answer = ask(address, question);
        let Some(line) = line(&answer) else {
            eprintln!("{answer}");
            return ExitCode::FAILURE;
        };
        // Whoever listened is gone: nobody needs the answer.
        if writeln!(io::stdout(), "{line}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn ask(address: SocketAddr, question: &Question) -> Answer {
    let Some(data) = connect_data(question) else {
        return Answer::Silence("a name is too long".to_owned());
    };
    match exchange(address, &nvme_rdma::request(), &data, nvme_rdma::connect) {
        Ok(response) => Answer::Status(nvme_rdma::status(response)),
        Err(NoAnswer::NobodyListens) => Answer::NobodyListens,
        Err(NoAnswer::NoSuchAddress) => Answer::NoSuchAddress,
        Err(why) => Answer::Silence(why.to_string()),
    }
}

pub(super) fn arguments(
    address: SocketAddr,
    questions: &[Question],
) -> impl Iterator<Item = OsString> {
    let each = questions.iter().flat_map(|question| {
        [
            format!("{:032x}", u128::from_be_bytes(question.host_id.0)),
            question.subsystem.clone(),
            question.host.clone(),
        ]
    });
    let all = std::iter::once(address.to_string()).chain(each);
    all.map(OsString::from)
}

fn parse(arguments: &[OsString]) -> Option<(SocketAddr, Vec<Question>)> {
    let words: Vec<&str> = arguments
        .iter()
        .map(|word| OsStr::to_str(word))
        .collect::<Option<_>>()?;
    let (address, rest) = words.split_first()?;
    let (each, rest) = rest.as_chunks();
    let questions = each.iter().map(|[id, subsystem, host]| {
        Some(Question {
            host_id: HostId(u128::from_str_radix(id, 16).ok()?.to_be_bytes()),
            subsystem: (*subsystem).to_owned(),
            host: (*host).to_owned(),
        })
    });
    rest.is_empty()
        .then_some((address.parse().ok()?, questions.collect::<Option<_>>()?))
}

fn line(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Status(status) => Some(format!("status {:04x}", status.0)),
        Answer::NobodyListens => Some("nobody".to_owned()),
        Answer::NoSuchAddress => Some("absent".to_owned()),
        Answer::Silence(_) => None,
    }
}

/// `None`: it is no answer.
pub(super) fn read(line: &str) -> Option<Answer> {
    match line.split_once(' ') {
        Some(("status", status)) => {
            let status = u16::from_str_radix(status, 16).ok()?;
            Some(Answer::Status(Status(status)))
        }
        None if line == "nobody" => Some(Answer::NobodyListens),
        None if line == "absent" => Some(Answer::NoSuchAddress),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_pass_through_the_arguments() {
        let question = |number| Question {
            host_id: HostId([number; 16]),
            subsystem: format!("nqn.s{number}"),
            host: "nqn.h".to_owned(),
        };
        let address = "[fd00::1]:4420".parse().unwrap();
        let questions = vec![question(0), question(255)];
        let words: Vec<OsString> = arguments(address, &questions).collect();
        assert_eq!(parse(&words), Some((address, questions)));
        assert_eq!(parse(&words[..3]), None, "not whole");
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["4420".into()]), None);
    }

    #[test]
    fn answers_pass_through_a_line() {
        for answer in [
            Answer::Status(Status(0x4182)),
            Answer::Status(Status(0)),
            Answer::NobodyListens,
            Answer::NoSuchAddress,
        ] {
            assert_eq!(read(&line(&answer).unwrap()), Some(answer));
        }
        assert_eq!(
            line(&Answer::Silence("rdma_connect: timed out".to_owned())),
            None
        );
        for nonsense in ["", "status", "status x", "4182", "Status 4182", "nobody 1"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
