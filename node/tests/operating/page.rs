//! The page of a running node for people: real requests over TCP, and a real browser where one is installed.

use std::{env, fs, os::unix::fs::MetadataExt, path::Path};

use fabricbios_testbed::browser::Browser;
use fabricbios_wire::{LeaseAllocRequest, LeaseId, Request, ResourceType, Transport};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{daemon::*, monitor::watched};

const HERE: &str = "127.0.0.1";

/// Sends a request with this host and cookie.
async fn send(daemon: &Daemon, path: &str, host: &str, cookie: &str) -> TcpStream {
    let at = daemon.metrics.as_deref().expect("it serves pages");
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Status, header and body. Every answer must say what the browser may load.
async fn get(daemon: &Daemon, path: &str, host: &str, cookie: &str) -> (u16, String, String) {
    let mut told = String::new();
    let mut stream = send(daemon, path, host, cookie).await;
    stream.read_to_string(&mut told).await.unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    for header in [
        "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; ",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{path}: {header}: {head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// The path to log in at, of the file that only the daemon's user can read.
fn log_in_path(place: &Place, daemon: &Daemon) -> String {
    let file = place.at("state/page.url");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let url = fs::read_to_string(file).unwrap();
    let at = format!("http://{}", daemon.metrics.as_deref().unwrap());
    url.trim()
        .strip_prefix(&at)
        .expect("of this node")
        .to_owned()
}

/// The cookie of who has logged in.
async fn log_in(place: &Place, daemon: &Daemon) -> String {
    let (status, head, _) = get(daemon, &log_in_path(place, daemon), HERE, "").await;
    assert_eq!(status, 303, "{head}");
    assert!(head.contains("location: /\r\n"), "{head}");
    let (_, set) = head.split_once("set-cookie: ").expect("a cookie");
    let (cookie, rest) = set.split_once(';').unwrap();
    assert!(
        rest.starts_with(" Path=/; HttpOnly; SameSite=Strict\r\n"),
        "{rest}"
    );
    cookie.to_owned()
}

/// The page at `/` once it says this. An answer serves all who ask within half a second.
async fn page_with(daemon: &Daemon, cookie: &str, says: &str) -> String {
    loop {
        let (status, _, page) = get(daemon, "/", HERE, cookie).await;
        assert_eq!(status, 200, "{page}");
        if page.contains(says) {
            return page;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_sees_totals_and_who_has_the_token_sees_leases_and_proofs() {
    let place = Place::new();
    let daemon = watched(&place);
    let client = daemon.client(&place.admin()).await;
    let lease = alloc(&client, ResourceType::Mem).await;
    let id = lease.lease_id.to_string();
    let page = page_with(&daemon, "", "<b>1</b> active").await;
    for part in ["mem0", "fabricctl page", &daemon.node] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains(&id), "{page}");
    let of_lease = format!("/lease/{id}");
    let mut wrong = log_in_path(&place, &daemon);
    wrong.pop();
    for path in [&of_lease, "/leases", &wrong, "/?token="] {
        let (status, head, page) = get(&daemon, path, HERE, "").await;
        assert_eq!(status, 403, "{page}");
        assert!(
            !head.contains("set-cookie") && !page.contains(&id),
            "{page}"
        );
    }

    let cookie = log_in(&place, &daemon).await;
    let page = page_with(&daemon, &cookie, &of_lease).await;
    assert!(page.contains("Nothing is fenced"), "{page}");
    let (status, _, page) = get(&daemon, &of_lease, HERE, &cookie).await;
    assert_eq!(status, 200, "{page}");
    assert!(
        page.contains("Ends in") && page.contains("active"),
        "{page}"
    );
    for unknown in [
        LeaseId(7).to_string(),
        "%3Cscript%3E".to_owned(),
        "7".to_owned(),
    ] {
        let (status, _, page) = get(&daemon, &format!("/lease/{unknown}"), HERE, &cookie).await;
        assert_eq!(status, 404, "{page}");
        assert!(
            page.contains("No such lease") && !page.contains(&unknown),
            "{page}"
        );
    }
    let (status, _, _) = get(&daemon, "/leases?after=x", HERE, &cookie).await;
    assert_eq!(status, 400);

    client
        .lease_async(Request::LeaseFree(lease.lease_id))
        .await
        .unwrap();
    let page = page_with(&daemon, &cookie, "freed").await;
    assert!(
        page.contains("Proof of the cut") && page.contains(" µs)"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_a_bounded_number_of_leases_and_a_link_to_the_next() {
    let place = Place::new();
    let daemon = watched(&place);
    let client = daemon.client(&place.admin()).await;
    let mut ids = Vec::new();
    for _ in 0..140 {
        ids.push(alloc(&client, ResourceType::Mem).await.lease_id);
    }
    ids.sort();
    let cookie = log_in(&place, &daemon).await;
    let next = format!("/leases?after={}", ids[127]);
    let page = page_with(&daemon, &cookie, &next).await;
    assert!(page.len() < 100 << 10, "{} bytes", page.len());
    let count = |page: &str| page.matches("href=\"/lease/").count();
    assert_eq!(count(&page), 128);
    let (status, _, page) = get(&daemon, &next, HERE, &cookie).await;
    assert_eq!((status, count(&page)), (200, 12), "{page}");
    assert!(page.contains(&ids[139].to_string()), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_may_be_anybodys_is_refused() {
    let place = Place::new();
    let daemon = watched(&place);
    let cookie = log_in(&place, &daemon).await;
    for path in ["/", "/leases", "/events", &log_in_path(&place, &daemon)] {
        let (status, head, page) = get(&daemon, path, "evil.example:5780", &cookie).await;
        assert_eq!(status, 421, "{page}");
        assert!(
            !head.contains("set-cookie") && page.contains("by its address"),
            "{page}"
        );
    }
}

/// Reads on until the stream has told this.
async fn read_until(stream: &mut TcpStream, told: &mut String, wanted: &str) {
    while !told.contains(wanted) {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).await.unwrap();
        assert!(read > 0, "it ended: {told}");
        told.push_str(&String::from_utf8_lossy(&part[..read]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_told_are_bounded_in_number_and_end_with_the_node() {
    let place = Place::new();
    let daemon = watched(&place);
    let client = daemon.client(&place.admin()).await;
    let mut watching = Vec::new();
    for _ in 0..8 {
        let mut stream = send(&daemon, "/events", HERE, "").await;
        let mut told = String::new();
        read_until(&mut stream, &mut told, "\r\n\r\n").await;
        assert!(told.contains("content-type: text/event-stream"), "{told}");
        watching.push((stream, told));
    }
    let (status, _, page) = get(&daemon, "/events", HERE, "").await;
    assert_eq!(status, 503, "{page}");
    assert!(page.contains("Too many watch"), "{page}");
    let lease = alloc(&client, ResourceType::Mem).await;
    for (stream, told) in &mut watching {
        read_until(stream, told, "<b>1</b> active").await;
        assert!(
            told.contains("data: ") && !told.contains(&lease.lease_id.to_string()),
            "{told}"
        );
    }
    // Who goes makes place.
    watching.pop();
    let (mut stream, mut told) = loop {
        let mut stream = send(&daemon, "/events", HERE, "").await;
        let mut told = String::new();
        read_until(&mut stream, &mut told, "\r\n\r\n").await;
        if told.starts_with("HTTP/1.1 200") {
            break (stream, told);
        }
        tokio::task::yield_now().await;
    };
    assert!(daemon.end(Signal::SIGTERM).success());
    // It ends, or is reset.
    stream.read_to_string(&mut told).await.ok();
}

/// A browser must log in, accept the page under its policy, run its script, and show what the node tells it later.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_shows_the_page_and_what_the_node_tells() {
    let place = Place::new();
    let daemon = watched(&place);
    let at = daemon.metrics.as_deref().unwrap();
    let url = format!("http://{at}{}", log_in_path(&place, &daemon));
    let client = daemon.client(&place.admin()).await;
    let large = LeaseAllocRequest::new(ResourceType::Mem, 640 << 10, 600);
    let large = LeaseAllocRequest {
        transport: Transport::Udp,
        ..large
    };
    let lease = client.alloc_async(large).await.expect("granted");
    let load = tokio::spawn(async move {
        loop {
            let brief = alloc(&client, ResourceType::Mem).await;
            let freed = Request::LeaseFree(brief.lease_id);
            client.lease_async(freed).await.expect("it is freed");
        }
    });
    let browser = Browser {
        url: &url,
        profiles: &place.at(""),
    };
    let dom = browser.document("dumps");
    assert!(dom.contains(&lease.lease_id.to_string()), "{dom}");
    // The script sets the title to what the node told after the page.
    let window = browser.open("watches");
    window.wait_for_title("well, grants leases");
    // For the documentation.
    if let Ok(directory) = env::var("PICTURES") {
        browser.draw(&Path::new(&directory).join("page"), (1100, 1000));
    }
    assert!(!load.is_finished(), "the node went on granting leases");
    load.abort();
}
