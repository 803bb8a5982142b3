//! A headless Chromium that looks at the page of a program, for tests. All of it waits in the thread that calls.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long something may take that takes a moment.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between two looks at the browser.
const LOOK: Duration = Duration::from_millis(50);

/// What looks at an address. Each look has a profile of its own, so it logs in anew.
#[derive(Debug)]
pub struct Browser<'a> {
    /// The address.
    pub url: &'a str,
    /// A directory for profiles.
    pub profiles: &'a Path,
}

impl Browser<'_> {
    fn command(&self, profile: &str) -> (Command, PathBuf) {
        let profile = self.profiles.join(profile);
        let mut browser = Command::new("chromium");
        browser.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        browser.arg(format!("--user-data-dir={}", profile.display()));
        (browser, profile)
    }

    /// The document as the browser has it once it has loaded.
    ///
    /// # Panics
    /// There is no `chromium`.
    #[must_use]
    pub fn document(&self, profile: &str) -> String {
        let (mut browser, _) = self.command(profile);
        let output = browser.arg("--dump-dom").arg(self.url).output();
        let output = output.expect("chromium").stdout;
        String::from_utf8_lossy(&output).into_owned()
    }

    /// Draws the page into `STEM-dark.png` and `STEM-light.png`, once its charts have 45 samples, which a window that stays
    /// makes within two minutes. Width and height are in pixels.
    ///
    /// # Panics
    /// There is no `chromium`, or it fails.
    pub fn draw(&self, stem: &Path, (width, height): (u32, u32)) {
        let samples = |document: &str| {
            let points = document.split_once("<polyline points=\"")?.1;
            Some(points.split_once('"')?.0.split(' ').count())
        };
        while samples(&self.document("samples")) < Some(45) {
            thread::sleep(Duration::from_secs(1));
        }
        for (scheme, number) in [("dark", 0), ("light", 1)] {
            let (mut browser, _) = self.command(scheme);
            browser.arg(format!("--window-size={width},{height}"));
            browser.arg(format!("--blink-settings=preferredColorScheme={number}"));
            let file = format!("{}-{scheme}.png", stem.display());
            browser.arg(format!("--screenshot={file}"));
            browser.args(["--hide-scrollbars", self.url]);
            assert!(browser.status().expect("chromium").success(), "{file}");
        }
    }

    /// Opens the address in a window that stays.
    ///
    /// # Panics
    /// There is no `chromium`, or it does not start.
    #[must_use]
    pub fn open(&self, profile: &str) -> Window {
        let (mut browser, profile) = self.command(profile);
        browser.arg("--remote-debugging-port=0").arg(self.url);
        browser.stdout(Stdio::null()).stderr(Stdio::null());
        let mut window = Window {
            browser: browser.spawn().expect("chromium"),
            port: 0,
        };
        window.port = wait_for("a port of the browser", || {
            let text = fs::read_to_string(profile.join("DevToolsActivePort"));
            text.unwrap_or_default().lines().next()?.parse().ok()
        });
        window
    }
}

/// A window. Dropping it closes it.
#[derive(Debug)]
pub struct Window {
    browser: Child,
    /// Of the browser, for developers.
    port: u16,
}

impl Window {
    /// Waits until its title has this text.
    ///
    /// # Panics
    /// It has not within two minutes.
    pub fn wait_for_title(&self, text: &str) {
        wait_for(text, || self.list().contains(text).then_some(()));
    }

    /// What the browser says of its windows, title and address.
    fn list(&self) -> String {
        let mut told = String::new();
        let mut ask = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.write_all(b"GET /json/list HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
            while !told.contains(']') {
                let mut part = [0; 4096];
                match stream.read(&mut part)? {
                    0 => break,
                    read => told.push_str(&String::from_utf8_lossy(&part[..read])),
                }
            }
            std::io::Result::Ok(())
        };
        // Whoever asks in vain asks again.
        ask().ok();
        told
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // It may have ended already.
        self.browser.kill().ok();
        self.browser.wait().expect("gone");
    }
}

fn wait_for<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = it() {
            return found;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        thread::sleep(LOOK);
    }
}
