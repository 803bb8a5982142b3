//! Words for values: for people and for JSON, with the number on the wire.

use alloc::string::String;
use core::fmt;

/// The error of a text that is no known word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseNameError {
    /// The kind of value that was expected.
    pub kind: &'static str,
    /// The known words.
    pub expected: &'static [&'static str],
    /// The text.
    pub got: String,
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a {}: expected one of", self.got, self.kind)?;
        self.expected
            .iter()
            .try_for_each(|word| write!(f, " {word}"))
    }
}

impl core::error::Error for ParseNameError {}

/// Declares a type whose values have a number on the wire and a word. `$kind`: the type for people. `$from`: the name of
/// the function that reads a number.
///
/// Each line: variant, number, word, other accepted spellings.
macro_rules! words {
    (
        $(#[$about:meta])*
        pub enum $type:ident: $repr:ident, $kind:literal, $from:ident {
            $($(#[$about_value:meta])* $variant:ident = $number:literal, $word:literal $(| $alias:literal)*;)*
        }
    ) => {
        $(#[$about])*
        #[repr($repr)]
        pub enum $type {
            $($(#[$about_value])* $variant = $number,)*
        }

        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The value of a number; `None` if the number is unknown.
            #[must_use]
            pub fn $from(number: $repr) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The word of the value.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl core::str::FromStr for $type {
            type Err = crate::ParseNameError;

            fn from_str(text: &str) -> Result<Self, crate::ParseNameError> {
                match text {
                    $($word $(| $alias)* => Ok(Self::$variant),)*
                    _ => Err(crate::ParseNameError {
                        kind: $kind,
                        expected: &[$($word),*],
                        got: alloc::string::String::from(text),
                    }),
                }
            }
        }

        crate::readable::readable!($type, $repr, |it| *it as $repr, Self::$from);
    };
}

pub(crate) use words;
