//! Counts connections.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
};

/// Bytes of the kernel's table of sockets that are looked at, some 50,000 lines.
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// How many connections the kernel has that ended up at one of these addresses. `None`: it did not say.
pub(in super::super) fn connections(addresses: &[SocketAddr]) -> Option<usize> {
    let local: Vec<String> = addresses.iter().copied().map(table_text).collect();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
    tables
        .filter_map(|table| File::open(table).ok())
        .map(|file| count(file, &local))
        .sum()
}

fn count(table: impl Read, local: &[String]) -> Option<usize> {
    let mut found = 0;
    for line in BufReader::new(table.take(TABLE_BYTES_MAX)).lines() {
        found += usize::from(is_established(&line.ok()?, local));
    }
    Some(found)
}

/// Columns: number, local address, remote address, state; 01 is `TCP_ESTABLISHED`.
fn is_established(line: &str, local: &[String]) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (here, _there, state) = (words.next(), words.next(), words.next());
    state == Some("01") && local.iter().any(|address| here == Some(address))
}

/// An address as these tables have it: 32-bit words in the machine's own order (`tcp4_seq_show` in
/// net/ipv4/tcp_ipv4.c).
fn table_text(address: SocketAddr) -> String {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let hex = |bytes: &[u8]| -> String {
        let words = bytes.chunks(4).map(word);
        words.map(|word| format!("{word:08X}")).collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(v4) => hex(&v4.octets()),
        IpAddr::V6(v6) => hex(&v6.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn live_connections_of_an_address_are_counted_and_no_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(
            connections(&[address]),
            Some(0),
            "listening is not connected"
        );
        let clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        assert_eq!(connections(&[address]), Some(2));
        drop(clients);
    }

    #[test]
    fn an_ipv6_address_is_written_as_the_kernel_does() {
        let text = table_text("[fd00::1]:4420".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(text, "000000FD000000000000000001000000:1144");
        }
    }
}
