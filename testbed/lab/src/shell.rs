//! Quoting for the shell scripts that the lab hands to its guests. Pure.

/// One word that a POSIX shell reads back as exactly `word`.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command line that a POSIX shell reads back as exactly these words.
#[must_use]
pub fn quote_all<W: AsRef<str>>(words: &[W]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(
            quote_all(&["ip", "link", "set", "lo", "up"]),
            "ip link set lo up"
        );
    }

    #[test]
    fn a_shell_reads_back_the_same_words() {
        let words = [
            "it's",
            "",
            "a b",
            "$HOME",
            "`id`",
            "new\nline",
            "\"",
            "\\",
            "*",
            "~",
        ];
        let script = format!("printf '%s\\0' {}", quote_all(&words));
        let shell = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let read: Vec<&[u8]> = shell.stdout.split(|byte| *byte == 0).collect();
        let expected: Vec<&[u8]> = words
            .iter()
            .map(|word| word.as_bytes())
            .chain([&b""[..]])
            .collect();
        assert_eq!(read, expected);
    }
}
