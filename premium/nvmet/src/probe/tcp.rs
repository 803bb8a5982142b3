//! Asks over TCP.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    super::{
        fabrics::{Question, Status},
        nvme_tcp::{self, INIT_BYTES, RESPONSE_BYTES},
    },
    Answer,
};

/// Time limit of one try with all its steps. The kernel answers in well under 1 ms.
const TRY: Duration = Duration::from_millis(300);

/// Number of tries for a question without an answer: a loaded machine may be late. After this many silences in a row,
/// for any questions, the port is not asked any more.
const TRIES: u32 = 3;

/// Asks the port at `address` all questions; the answers have the same order. Each question has its own connection: the
/// kernel has one command for Connect and drops a connection that uses the command twice (`nvmet_tcp_put_cmd` in
/// drivers/nvme/target/tcp.c).
pub(in super::super) fn ask(address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
    let nothing = Answer::Silence("not asked".to_owned());
    let mut answers = vec![nothing; questions.len()];
    let mut waiting: VecDeque<(usize, u32)> = (0..questions.len()).map(|at| (at, 1)).collect();
    let mut silent = 0;
    while let Some((at, tries)) = waiting.pop_front() {
        answers[at] = ask_once(address, &questions[at]);
        if !matches!(answers[at], Answer::Silence(_)) {
            silent = 0;
            continue;
        }
        silent += 1;
        if silent == TRIES {
            let rest = waiting.iter().map(|(rest, _)| *rest);
            rest.for_each(|rest| answers[rest] = answers[at].clone());
            break;
        }
        // Tried again after all other questions, so that a silence delays them as little as possible.
        if tries < TRIES {
            waiting.push_back((at, tries + 1));
        }
    }
    answers
}

fn ask_once(address: SocketAddr, question: &Question) -> Answer {
    match try_once(address, question) {
        Ok(status) => Answer::Status(status),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Answer::NobodyListens,
        Err(error) => Answer::Silence(error.to_string()),
    }
}

fn try_once(address: SocketAddr, question: &Question) -> io::Result<Status> {
    let until = Instant::now() + TRY;
    let mut stream = TcpStream::connect_timeout(&address, TRY)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(TRY))?;
    stream.write_all(&nvme_tcp::initialize())?;
    let agreed: [u8; INIT_BYTES] = read_by(&mut stream, until)?;
    nvme_tcp::check_initialized(&agreed).map_err(io::Error::other)?;
    let request = nvme_tcp::connect(question);
    stream.write_all(&request.ok_or(io::ErrorKind::InvalidInput)?)?;
    let response: [u8; RESPONSE_BYTES] = read_by(&mut stream, until)?;
    nvme_tcp::status(&response).map_err(io::Error::other)
}

/// Reads exactly `N` bytes, in any number of pieces.
fn read_by<const N: usize>(stream: &mut TcpStream, until: Instant) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let left = until.checked_duration_since(Instant::now());
        let left = left.filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut bytes[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use fabricbios_wire::HostId;

    use super::*;

    fn ask_for_one(address: SocketAddr) -> Answer {
        let question = Question {
            host_id: HostId([1; 16]),
            subsystem: "nqn.s".to_owned(),
            host: "nqn.h".to_owned(),
        };
        ask(address, &[question]).remove(0)
    }

    fn serve(answers: Vec<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; INIT_BYTES];
                if stream.read_exact(&mut request).is_ok() {
                    answers
                        .iter()
                        .for_each(|answer| stream.write_all(answer).unwrap());
                    // Waits until the other end has closed.
                    stream.read_to_end(&mut Vec::new()).ok();
                }
            }
        });
        address
    }

    fn initialized() -> Vec<u8> {
        let mut pdu = nvme_tcp::initialize();
        pdu[0] = 1;
        pdu.to_vec()
    }

    fn refusal() -> Vec<u8> {
        let mut pdu = vec![5, 0, 24, 0, 24, 0, 0, 0];
        pdu.resize(RESPONSE_BYTES, 0);
        pdu[22..].copy_from_slice(&(0x4182_u16 << 1).to_le_bytes());
        pdu
    }

    #[test]
    fn a_port_is_asked_and_its_answer_is_understood() {
        let address = serve(vec![initialized(), refusal()]);
        let answer = ask_for_one(address);
        assert_eq!(answer, Answer::Status(Status(0x4182)));
    }

    #[test]
    fn nonsense_silence_and_an_absent_port_are_no_status() {
        for answers in [
            vec![vec![9; 300]],
            vec![initialized()],
            vec![initialized(), vec![9; 24]],
        ] {
            let answer = ask_for_one(serve(answers));
            assert!(matches!(answer, Answer::Silence(_)), "{answer:?}");
        }
        let gone = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(ask_for_one(gone), Answer::NobodyListens);
    }
}
