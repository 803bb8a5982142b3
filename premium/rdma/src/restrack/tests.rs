use super::*;

#[test]
fn a_queue_pair_whose_maker_has_just_ended_may_be_of_any_process() {
    let made_by = |maker: nix::unistd::Pid| Tracked {
        maker: u32::try_from(maker.as_raw()).ok(),
        ..Tracked::default()
    };
    let ended = std::thread::spawn(nix::unistd::gettid).join().unwrap();
    // The kernel frees the thread's number a moment after join returns.
    while Path::new(&format!("/proc/self/task/{ended}")).exists() {
        std::thread::yield_now();
    }
    let us = std::process::id();
    assert!(made_by(ended).may_be_of(us));
    assert!(made_by(nix::unistd::gettid()).may_be_of(us));
    assert!(!made_by(nix::unistd::gettid()).may_be_of(1));
}

fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message.extend(payload);
    message
}

fn error(errno: Errno) -> Vec<u8> {
    message(NLMSG_ERROR, &(-(errno as i32)).to_ne_bytes())
}

#[test]
fn only_enoent_means_gone() {
    assert_eq!(parse(&error(Errno::ENOENT)), Ok(None));
    assert_eq!(parse(&error(Errno::EAGAIN)), Ok(Some(Tracked::default())));
    assert_eq!(parse(&error(Errno::EINVAL)), Err(Errno::EINVAL));
    assert_eq!(parse(&error(Errno::EPERM)), Err(Errno::EPERM));
}

#[test]
fn an_answer_names_maker_peer_and_state() {
    let mut payload = Vec::new();
    payload.extend([9u16, 2].map(u16::to_ne_bytes).concat());
    payload.extend(b"rxe0\0\0\0\0");
    for (attribute, value) in [(ATTR_RES_RQPN, 17u32), (ATTR_RES_PID, 4711)] {
        payload.extend([8, attribute].map(u16::to_ne_bytes).concat());
        payload.extend(value.to_ne_bytes());
    }
    for (state, is_in_error) in [(3, false), (STATE_ERR, true)] {
        let mut payload = payload.clone();
        payload.extend([5, ATTR_RES_STATE].map(u16::to_ne_bytes).concat());
        payload.extend([state, 0, 0, 0]);
        let tracked = Tracked {
            maker: Some(4711),
            peer: Some(17),
            is_in_error,
        };
        let answer = message(GET_QUEUE_PAIR, &payload);
        assert_eq!(parse(&answer), Ok(Some(tracked)));
    }
}

#[test]
fn a_device_is_found_by_its_whole_name() {
    let mut payload = Vec::new();
    payload.extend([8, ATTR_DEV_INDEX].map(u16::to_ne_bytes).concat());
    payload.extend(3u32.to_ne_bytes());
    payload.extend([9, ATTR_DEV_NAME].map(u16::to_ne_bytes).concat());
    payload.extend(b"rxe0\0\0\0\0");
    let mut answer = message(GET_DEVICES, &payload);
    let length = u32::try_from(answer.len()).unwrap();
    answer[..4].copy_from_slice(&length.to_ne_bytes());
    let twice = [answer.clone(), answer.clone()].concat();
    assert_eq!(messages(&twice).count(), 2);
    assert_eq!(index_of(&answer, "rxe0"), Ok(Some(3)));
    assert_eq!(index_of(&answer, "rxe"), Ok(None));
    assert_eq!(
        index_of(&message(NLMSG_DONE, &[0; 4]), "rxe0"),
        Err(Errno::ENODEV)
    );
}

#[test]
fn cut_off_answers_are_errors_or_say_less_and_never_gone() {
    for length in 0..HEADER_BYTES + 4 {
        let answer = &error(Errno::ENOENT)[..length];
        assert_ne!(parse(answer), Ok(None), "{length} bytes");
    }
}
