//! The process that asks over RDMA: a question a line on its standard input, an answer a line on its standard output.

use std::{
    io::{self, BufRead, Write},
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
use fabricbios_verbs::managed::{NoAnswer, exchange};

/// Asks for connections, one for each line of standard input: address and port, host id as 32 hexadecimal
/// digits, NQN of the subsystem, NQN of the host. Says a line for each, in their order: `status` and the status of Connect,
/// `nobody`, where nobody listens, `absent`, where this machine has no such address, or `silence` and why. Ends
/// with its input.
///
/// What can wait for ever in the kernel must not be the daemon's.
#[must_use]
pub fn ask_rdma_main() -> ExitCode {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match parse(&line) {
            Some((address, question)) => ask(address, &question),
            None => Answer::Silence("ADDRESS:PORT HOST_ID SUBSYSTEM_NQN HOST_NQN".to_owned()),
        };
        // Whoever asked is gone: nobody needs the answer.
        if writeln!(io::stdout(), "{}", answer_line(&answer)).is_err() {
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

/// `None`: it cannot be asked so.
pub(super) fn question_line(address: SocketAddr, question: &Question) -> Option<String> {
    let id = u128::from_be_bytes(question.host_id.0);
    let (subsystem, host) = (&question.subsystem, &question.host);
    let line = format!("{address} {id:032x} {subsystem} {host}");
    (parse(&line)?.1 == *question && connect_data(question).is_some()).then_some(line)
}

fn parse(line: &str) -> Option<(SocketAddr, Question)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [address, id, subsystem, host] = words[..] else {
        return None;
    };
    let question = Question {
        host_id: HostId(u128::from_str_radix(id, 16).ok()?.to_be_bytes()),
        subsystem: subsystem.to_owned(),
        host: host.to_owned(),
    };
    let is_one_line = !line.contains('\n');
    is_one_line.then_some((address.parse().ok()?, question))
}

fn answer_line(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => format!("status {:04x}", status.0),
        Answer::NobodyListens => "nobody".to_owned(),
        Answer::NoSuchAddress => "absent".to_owned(),
        Answer::Silence(why) => format!("silence {why}"),
    }
}

/// `Err`: why it is no answer.
pub(super) fn read_answer(line: &str) -> Result<Answer, String> {
    let status = |digits| u16::from_str_radix(digits, 16).ok();
    match line.split_once(' ').unwrap_or((line, "")) {
        ("status", digits) if status(digits).is_some() => {
            Ok(Answer::Status(Status(status(digits).unwrap_or(0))))
        }
        ("nobody", "") => Ok(Answer::NobodyListens),
        ("absent", "") => Ok(Answer::NoSuchAddress),
        ("silence", why) => Err(why.to_owned()),
        _ => Err(format!("{line:?} is no answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(subsystem: &str) -> Question {
        Question {
            host_id: HostId([0xF0; 16]),
            subsystem: subsystem.to_owned(),
            host: "nqn.h".to_owned(),
        }
    }

    #[test]
    fn questions_pass_through_a_line() {
        let address = "[fd00::1]:4420".parse().unwrap();
        let line = question_line(address, &question("nqn.s")).unwrap();
        assert_eq!(parse(&line), Some((address, question("nqn.s"))));
        for name in ["a b", "a\nb", &"n".repeat(256)] {
            assert_eq!(question_line(address, &question(name)), None, "{name:?}");
        }
        for nonsense in [
            "",
            "4420",
            "10.0.0.1:4420 00 nqn.s",
            "10.0.0.1 00 nqn.s nqn.h",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn answers_pass_through_a_line() {
        for answer in [
            Answer::Status(Status(0x4182)),
            Answer::Status(Status(0)),
            Answer::NobodyListens,
            Answer::NoSuchAddress,
        ] {
            assert_eq!(read_answer(&answer_line(&answer)), Ok(answer));
        }
        let silence = Answer::Silence("rdma_connect: timed out".to_owned());
        let read = read_answer(&answer_line(&silence));
        assert_eq!(read, Err("rdma_connect: timed out".to_owned()));
        for nonsense in ["", "status", "status x", "4182", "Status 4182", "nobody 1"] {
            assert!(read_answer(nonsense).is_err(), "{nonsense}");
        }
    }
}
