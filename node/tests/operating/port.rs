//! The port of the pages beside leases: floods, an address that is taken, and files that are no files.

use std::{fs, net::TcpListener};

use fabricbios_wire::{Request, ResourceType};
use nix::{
    sys::{resource, signal, stat::Mode},
    unistd::mkfifo,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{daemon::*, monitor::watched, service_manager::Manager};

/// Enough for what is open at once.
fn many_descriptors() {
    let (_, most) = resource::getrlimit(resource::Resource::RLIMIT_NOFILE).unwrap();
    resource::setrlimit(resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Waits until the log says this.
fn logs(place: &Place, text: &str) {
    wait_for(text, || place.log().contains(text).then_some(()));
}

async fn ask(at: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn next_event(stream: &mut TcpStream) {
    let mut told = String::new();
    while !told.contains("\ndata: ") && !told.starts_with("data: ") {
        told.push(stream.read_u8().await.expect("the stream goes on").into());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_on_the_port_ends_no_stream_and_no_grant_and_no_cut() {
    many_descriptors();
    let place = Place::new();
    let daemon = watched(&place);
    let at = daemon.metrics.as_deref().unwrap();
    let client = daemon.client(&place.admin()).await;
    let mut watches = ask(at, "/events").await;
    next_event(&mut watches).await;
    let mut held = Vec::new();
    for round in 0..500 {
        held.push(ask(at, "/metrics").await);
        held.push(TcpStream::connect(at).await.unwrap());
        if round % 100 == 0 {
            let lease = alloc(&client, ResourceType::Mem).await.lease_id;
            client.lease_async(Request::LeaseFree(lease)).await.unwrap();
            settled(&client, lease).await;
        }
    }
    next_event(&mut watches).await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_port_is_taken_serves_leases_says_so_and_opens_it_once_it_is_free() {
    let place = Place::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap().to_string();
    let listen = format!("--metrics-listen={at}");
    let daemon = place.start(&[place.memory(), vec![listen]].concat());
    assert_eq!(daemon.metrics, None);
    let client = daemon.client(&place.admin()).await;
    alloc(&client, ResourceType::Mem).await;
    // What the node finds of itself is a second old at most.
    let told = format!("--metrics-listen {at} cannot be opened");
    loop {
        let inventory = client.inventory_async().await.unwrap();
        if inventory.health_reason.is_some_and(|it| it.contains(&told)) {
            break;
        }
    }
    logs(&place, &told);
    drop(other);
    wait_for("the port", || std::net::TcpStream::connect(&at).ok());
}

#[test]
fn a_page_url_that_cannot_be_written_keeps_no_node_from_starting() {
    let place = Place::new();
    let daemon = watched(&place);
    assert!(daemon.end(signal::Signal::SIGTERM).success());
    let file = place.at("state/page.url");
    fs::remove_file(&file).unwrap();
    // Nothing can be written in the place of a directory.
    fs::create_dir(&file).unwrap();
    let daemon = watched(&place);
    assert!(daemon.metrics.is_some());
    logs(&place, "page.url cannot be written");
    fs::remove_dir(&file).unwrap();
    wait_for("page.url", || fs::read(&file).ok());
}

#[test]
fn a_fifo_in_the_place_of_a_certificate_is_said_and_the_next_reload_goes_on() {
    let place = Place::new();
    let manager = Manager::of(&place);
    let daemon = manager.start(&place, &place.memory());
    let file = place.at("state/node.identity");
    let kept = place.at("kept");
    fs::rename(&file, &kept).unwrap();
    mkfifo(&file, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    signal::kill(daemon.pid(), signal::Signal::SIGHUP).unwrap();
    manager.hears_reload();
    fs::rename(&kept, &file).unwrap();
    signal::kill(daemon.pid(), signal::Signal::SIGHUP).unwrap();
    manager.hears_reload();
    logs(&place, "it is no regular file");
}

#[test]
fn a_node_with_a_broken_identity_of_its_pages_starts_without_them_and_says_why() {
    let place = Place::new();
    let file = place.at("pages.identity");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let identity = format!("--metrics-identity={}", file.display());
    let words = [identity, "--metrics-listen=127.0.0.1:0".into()];
    let daemon = place.start(&[&place.memory()[..], &words].concat());
    assert_eq!(daemon.metrics, None);
    logs(&place, "--metrics-identity: ");
    logs(&place, "others can read it");
}
