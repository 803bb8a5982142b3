//! Who may read what: everybody the totals, and who has the token of this run all the rest.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::header::{COOKIE, HOST, HeaderMap};

/// The file with the address to log in at.
const FILE: &str = "page.url";
/// The same before it is complete.
const FILE_NEW: &str = "page.url.new";

/// The token of this run. Whoever has it reads leases and tenants, and can change nothing.
pub(super) struct Access {
    /// Hexadecimal digits.
    token: Zeroizing<String>,
    /// Browsers send a cookie to every port of a host, so programs on one host need different names.
    cookie: String,
    /// The port speaks HTTPS.
    is_tls: bool,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// `id`: of the program.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn new(id: &str, is_tls: bool) -> io::Result<Self> {
        let mut random = Zeroizing::new([0; 16]);
        getrandom::fill(&mut *random).map_err(|it| io::Error::other(it.to_string()))?;
        let number = Zeroizing::new(u128::from_be_bytes(*random));
        let mut cookie = format!("fabricbios_{id}");
        cookie.truncate(27);
        Ok(Self {
            token: Zeroizing::new(format!("{:032x}", *number)),
            cookie,
            is_tls,
        })
    }

    /// Writes the address to log in at where only the daemon's user can read it. `listen`: with the real port.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, directory: &Path, listen: SocketAddr) -> io::Result<()> {
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let at = SocketAddr::new(ip, listen.port());
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = Zeroizing::new(format!("{scheme}://{at}/?token={}\n", *self.token));
        let (path, new) = (directory.join(FILE), directory.join(FILE_NEW));
        for old in [&path, &new] {
            match fs::remove_file(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // A full disk leaves no file that looks like an address.
        let mut open = OpenOptions::new();
        let file = open.write(true).create_new(true).mode(0o600).open(&new);
        { file.and_then(|mut it| it.write_all(url.as_bytes())) }
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Whether it is the token.
    pub(super) fn is_token(&self, text: &str) -> bool {
        self.token.as_bytes().ct_eq(text.as_bytes()).into()
    }

    /// Whether the request has the cookie.
    pub(super) fn is_operator(&self, headers: &HeaderMap) -> bool {
        let all = headers.get_all(COOKIE).iter();
        let cookies = all
            .filter_map(|it| it.to_str().ok())
            .flat_map(|it| it.split(';'));
        let mut ours = cookies.filter_map(|it| it.trim().split_once('='));
        ours.any(|(name, value)| name == self.cookie && self.is_token(value))
    }

    /// The value of Set-Cookie that logs in until the browser or the program ends.
    pub(super) fn set_cookie(&self) -> String {
        let (name, token) = (&self.cookie, &*self.token);
        let secure = if self.is_tls { "; Secure" } else { "" };
        format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}")
    }

    /// Whether the request is meant for this program. Over TLS the browser has verified the name.
    pub(super) fn is_host_ours(&self, headers: &HeaderMap) -> bool {
        self.is_tls || is_host_ours(headers)
    }
}

/// Whether the request names this machine by an address or as localhost. Otherwise a page of somebody else may have had
/// its name resolved to this machine, and would read it with the browser of whoever visits that page.
fn is_host_ours(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let v6 = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || v6.is_some_and(|it| it.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::HeaderValue;

    #[test]
    fn a_host_is_an_address_or_localhost() {
        for (host, is_ours) in [
            ("127.0.0.1:5780", true),
            ("10.0.0.7", true),
            ("[::1]:5780", true),
            ("[fd00::7]", true),
            ("LocalHost:80", true),
            ("localhost.example.com", false),
            ("node7.example.com:5780", false),
            ("127.0.0.1.example.com", false),
            ("127.0.0.1:5780:9", false),
            ("[::1", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(HOST, HeaderValue::from_static(host));
            assert_eq!(is_host_ours(&headers), is_ours, "{host}");
            headers.append(HOST, HeaderValue::from_static("127.0.0.1"));
            assert!(!is_host_ours(&headers), "two hosts");
        }
        assert!(!is_host_ours(&HeaderMap::new()));
    }

    #[test]
    fn an_address_that_cannot_be_written_whole_leaves_no_file() {
        let place = tempfile::tempdir().unwrap();
        let access = Access::new(&"07".repeat(32), false).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 5780));
        access.write(place.path(), listen).unwrap();
        let text = fs::read_to_string(place.path().join(FILE)).unwrap();
        assert!(text.starts_with("http://127.0.0.1:5780/?token="), "{text}");
        // Nothing can be made under this name, as on a full disk.
        fs::create_dir(place.path().join(FILE_NEW)).unwrap();
        access.write(place.path(), listen).unwrap_err();
        assert!(!place.path().join(FILE).exists());
    }

    #[test]
    fn only_the_cookie_of_this_run_and_program_counts() {
        let access = Access::new(&"07".repeat(32), false).unwrap();
        let has = |cookie: String| {
            let mut headers = HeaderMap::new();
            headers.append(COOKIE, HeaderValue::try_from(cookie).unwrap());
            access.is_operator(&headers)
        };
        let set = access.set_cookie();
        let (ours, _) = set.split_once(';').unwrap();
        assert!(has(ours.to_owned()) && has(format!("a=b; {ours}; c")));
        assert!(!has(format!("x{ours}")) && !has(format!("{ours}0")) && !has(String::new()));
        let later = Access::new(&"07".repeat(32), false).unwrap();
        let set = later.set_cookie();
        assert!(!has(set.split_once(';').unwrap().0.to_owned()));
        let over_tls = Access::new(&"07".repeat(32), true).unwrap();
        assert!(over_tls.set_cookie().ends_with("; Secure") && !set.contains("Secure"));
    }
}
