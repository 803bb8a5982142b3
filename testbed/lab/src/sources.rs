//! Debian's archives as this machine already knows them, for the lab's own apt configurations. Pure.
//!
//! The addresses and keys come from the system's own sources and from nowhere else: a machine
//! behind a mirror keeps using its mirror. Form: sources.list(5), both styles.

use std::fmt::Write as _;

/// One archive as one source entry describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Address of the archive; several when the entry named several.
    pub uris: Vec<String>,
    /// Suites, for example `bookworm` and `bookworm-updates`.
    pub suites: Vec<String>,
    /// Components, for example `main`.
    pub components: Vec<String>,
    /// Key ring that signs the archive, or the armoured key itself with its newlines.
    pub signed_by: Option<String>,
    /// Other fields and options, kept as they are, for example `("Trusted", "yes")`.
    pub options: Vec<(String, String)>,
}

/// Entries for binary packages in a `*.sources` file (deb822 style); disabled entries are skipped.
#[must_use]
pub fn parse_deb822(text: &str) -> Vec<Source> {
    let mut stanzas: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let stanza = stanzas.last_mut().expect("there is always a last stanza");
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((field, value)) = line.split_once(':') {
            stanza.push((field.trim().to_owned(), value.trim().to_owned()));
        }
    }
    stanzas.into_iter().filter_map(from_stanza).collect()
}

fn from_stanza(mut fields: Vec<(String, String)>) -> Option<Source> {
    let mut take = |name: &str| {
        let place = fields
            .iter()
            .position(|(field, _)| field.eq_ignore_ascii_case(name))?;
        Some(fields.remove(place).1)
    };
    let disabled = take("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
    let types = take("Types")?;
    if disabled || !types.split_whitespace().any(|kind| kind == "deb") {
        return None;
    }
    Some(Source {
        uris: words(&take("URIs")?),
        suites: words(&take("Suites")?),
        components: words(&take("Components").unwrap_or_default()),
        signed_by: take("Signed-By"),
        options: fields,
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Entries for binary packages in a `*.list` file (one-line style).
#[must_use]
pub fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines()
        .filter_map(|line| from_line(line.split('#').next().unwrap_or(line)))
        .collect()
}

fn from_line(line: &str) -> Option<Source> {
    let rest = line.trim().strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let (options, place) = match rest.trim_start().strip_prefix('[') {
        Some(bracket) => bracket.split_once(']')?,
        None => ("", rest),
    };
    let mut fields = place.split_whitespace().map(str::to_owned);
    let (uri, suite) = (fields.next()?, fields.next()?);
    let mut source = Source {
        uris: vec![uri],
        suites: vec![suite],
        components: fields.collect(),
        signed_by: None,
        options: Vec::new(),
    };
    for (name, value) in options
        .split_whitespace()
        .filter_map(|option| option.split_once('='))
    {
        source.set_option(name, value);
    }
    Some(source)
}

impl Source {
    /// One-line options in the names that deb822 has for them: `arch` is `Architectures` there.
    fn set_option(&mut self, name: &str, value: &str) {
        let field = match name {
            "signed-by" => {
                self.signed_by = Some(value.to_owned());
                return;
            }
            "arch" => "Architectures",
            "lang" => "Languages",
            "target" => "Targets",
            other => other,
        };
        self.options
            .push((field.to_owned(), value.replace(',', " ")));
    }

    fn names_suite(&self, wanted: &[&str]) -> bool {
        self.suites
            .iter()
            .any(|suite| wanted.contains(&suite.as_str()))
    }

    fn is_security(&self, codename: &str) -> bool {
        let security = |suite: &String| {
            ["-security", "/updates"].iter().any(|ending| {
                let release = suite.strip_suffix(ending);
                release.is_some_and(|name| [codename, "stable", "oldstable"].contains(&name))
            })
        };
        self.suites.iter().any(security)
    }

    fn to_deb822(&self) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\n",
            self.uris.join(" "),
            self.suites.join(" "),
            self.components.join(" ")
        );
        let signed_by = self.signed_by.iter().map(|key| ("Signed-By", key.as_str()));
        let others = self
            .options
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in signed_by.chain(others) {
            writeln!(text, "{name}: {value}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// The release's archive, its backports and its security archive, selected from this system's sources,
/// as the text of one deb822 file. `None` when no entry is the release's own archive.
#[must_use]
pub fn derive(system: &[Source], codename: &str) -> Option<String> {
    let release = [codename, "stable", "oldstable"];
    let is_release = |source: &&Source| {
        source.names_suite(&release) && source.components.iter().any(|name| name == "main")
    };
    let mut archive = system.iter().find(is_release)?.clone();
    archive.suites = vec![codename.to_owned(), format!("{codename}-backports")];
    archive.components = vec!["main".to_owned()];
    let security = system.iter().filter(|source| source.is_security(codename));
    let entries: Vec<String> = [&archive]
        .into_iter()
        .chain(security)
        .map(Source::to_deb822)
        .collect();
    Some(entries.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "# A comment\n\
        Types: deb deb-src\nURIs: http://mirror.example/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main contrib\n\
        Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\
        \n\
        Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n\
        Components: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n\
        \n\
        Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n\
        \n\
        Types: deb\nURIs: http://other.example/tool\nSuites: nodistro\nComponents: main\n";

    const ONE_LINE: &str = "# deb http://off.example/debian bookworm main\n\
        deb [arch=amd64,i386 signed-by=/etc/k.gpg] http://mirror.example/debian bookworm main # x\n\
        deb-src http://mirror.example/debian bookworm main\n\
        deb http://mirror.example/debian-security bookworm-security main contrib\n\
        deb http://flat.example/ ./\n\
        debug nonsense\n";

    #[test]
    fn deb822_gives_the_release_its_backports_and_its_security() {
        let derived = derive(&parse_deb822(DEB822), "bookworm").unwrap();
        assert_eq!(
            derived,
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-backports\n\
             Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\
             \n\
             Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n\
             Components: main\nSigned-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
        );
    }

    #[test]
    fn one_line_entries_keep_their_options() {
        let derived = derive(&parse_one_line(ONE_LINE), "bookworm").unwrap();
        assert_eq!(
            derived,
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-backports\n\
             Components: main\nSigned-By: /etc/k.gpg\nArchitectures: amd64 i386\n\
             \n\
             Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n\
             Components: main contrib\n"
        );
    }

    #[test]
    fn what_was_derived_reads_back_as_itself() {
        let derived = derive(&parse_deb822(DEB822), "bookworm").unwrap();
        let again = derive(&parse_deb822(&derived), "bookworm").unwrap();
        assert_eq!(derived, again);
    }

    #[test]
    fn a_disabled_or_foreign_entry_is_not_debian() {
        let foreign = parse_one_line("deb http://other.example/tool nodistro main\n");
        assert_eq!(derive(&foreign, "bookworm"), None);
        assert!(
            parse_deb822(DEB822)
                .iter()
                .all(|source| source.uris != ["http://off.example"])
        );
    }

    #[test]
    fn the_release_may_be_called_by_its_state() {
        let stable = parse_one_line("deb http://mirror.example/debian oldstable main\n");
        let derived = derive(&stable, "bookworm").unwrap();
        assert!(
            derived.contains("Suites: bookworm bookworm-backports"),
            "{derived}"
        );
    }
}
