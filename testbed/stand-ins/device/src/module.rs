//! Modules: the entries of a PTX text and their parameters. The instructions are ignored.

use crate::{HostMemory, Status};

/// Longest module in bytes.
const LONGEST: usize = 64 << 20;

/// The first bytes of a stand-in's code object for HIP. A text as in PTX follows, then [`Module::CODE_OBJECT_END`].
const CODE_OBJECT: &[u8] = b"\x7fELF stand-in code object\n";

/// A kernel's parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Offset in the buffer of all parameters, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The only block size that the kernel accepts (`.reqntid`).
    pub block: Option<[u32; 3]>,
    /// Bytes of the variables (`.local`) of each thread.
    pub local_bytes: usize,
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its kernels.
    pub entries: Vec<Entry>,
}

impl Module {
    /// The line that ends a stand-in's code object.
    pub const CODE_OBJECT_END: &'static str = "\n.end\n";

    /// A code object for the stand-in of HIP: text as in PTX, of which only the entries count.
    #[must_use]
    pub fn code_object(text: &str) -> Vec<u8> {
        [
            CODE_OBJECT,
            text.as_bytes(),
            Self::CODE_OBJECT_END.as_bytes(),
        ]
        .concat()
    }

    /// Reads PTX that ends with a zero.
    ///
    /// # Errors
    /// The bytes are no text, or no PTX with an entry.
    pub fn from_ptx(image: HostMemory) -> Result<Self, Status> {
        let mut text = Vec::new();
        loop {
            match image.byte(text.len())? {
                0 => break,
                byte @ (b'\t' | b'\n' | b'\r' | b' '..=b'~') => text.push(byte),
                // Comments may be in any language.
                byte @ 0x80.. if !text.is_empty() => text.push(byte),
                _ => return Err(Status::INVALID_IMAGE),
            }
            if text.len() > LONGEST {
                return Err(Status::INVALID_IMAGE);
            }
        }
        if text.is_empty() {
            return Err(Status::INVALID_IMAGE);
        }
        Self::parse(&String::from_utf8_lossy(&text)).ok_or(Status::INVALID_PTX)
    }

    /// Reads a code object of [`Module::code_object`].
    ///
    /// # Errors
    /// The bytes are no such code object, or it has no entry.
    pub fn from_code_object(image: HostMemory) -> Result<Self, Status> {
        for (at, expected) in CODE_OBJECT.iter().enumerate() {
            if image.byte(at)? != *expected {
                return Err(Status::INVALID_IMAGE);
            }
        }
        let mut text = Vec::new();
        while !text.ends_with(Self::CODE_OBJECT_END.as_bytes()) {
            let byte = image.byte(CODE_OBJECT.len() + text.len())?;
            if byte == 0 || text.len() > LONGEST {
                return Err(Status::INVALID_IMAGE);
            }
            text.push(byte);
        }
        Self::entries(&tokens(&String::from_utf8_lossy(&text))).ok_or(Status::INVALID_IMAGE)
    }

    /// Reads a PTX text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let tokens = tokens(text);
        let count = |wanted: &str| tokens.iter().filter(|it| *it == wanted).count();
        let version = tokens.get(1)?.split('.').map(str::parse::<u32>);
        let is_ptx = tokens.first()? == ".version"
            && version.clone().count() == 2
            && version.clone().all(|it| it.is_ok())
            && count(".target") == 1
            && count("{") == count("}");
        if is_ptx { Self::entries(&tokens) } else { None }
    }

    fn entries(tokens: &[String]) -> Option<Self> {
        let at = tokens.iter().enumerate().filter(|(_, it)| *it == ".entry");
        let entries = at.map(|(at, _)| entry(&tokens[at + 1..]));
        let entries: Vec<Entry> = entries.collect::<Option<_>>()?;
        (!entries.is_empty()).then_some(Self { entries })
    }
}

/// The words and signs of a text, without its comments.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_of_word = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.' | '$' | '%');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if is_of_word(first) {
            let end = rest.find(|it| !is_of_word(it)).unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// An entry from its name on: `NAME ( .param .u64 a, .param .align 8 .b8 b[16] ) .reqntid 16, 16, 1 {`.
fn entry(tokens: &[String]) -> Option<Entry> {
    let (name, mut rest) = tokens.split_first()?;
    let mut parameters = Vec::new();
    let mut end = 0;
    if rest.first()? == "(" {
        let close = rest.iter().position(|it| it == ")")?;
        for tokens in rest[1..close]
            .split(|it| it == ",")
            .filter(|it| !it.is_empty())
        {
            let (size, align) = parameter(tokens)?;
            let offset = usize::next_multiple_of(end, align);
            parameters.push(Parameter { offset, size });
            end = offset.checked_add(size)?;
        }
        rest = &rest[close + 1..];
    }
    let body = rest.iter().position(|it| it == "{")?;
    let block = rest[..body].iter().position(|it| it == ".reqntid");
    let block = block.map(|at| {
        let mut sizes = rest[at + 1..body].split(|it| it == ",");
        let mut next = || sizes.next()?.first()?.parse().ok();
        [
            next().unwrap_or(1),
            next().unwrap_or(1),
            next().unwrap_or(1),
        ]
    });
    Some(Entry {
        name: name.clone(),
        parameters,
        block,
        local_bytes: local_bytes(&rest[body..]),
    })
}

/// Bytes of the variables of a body: `.local .align 8 .b8 NAME[4096];`.
fn local_bytes(tokens: &[String]) -> usize {
    let end = tokens.iter().position(|it| it == ".entry");
    let statements = tokens[..end.unwrap_or(tokens.len())].split(|it| matches!(&**it, ";" | "{"));
    let locals = statements.filter(|it| it.first().is_some_and(|first| first == ".local"));
    let bytes = |statement: &[String]| {
        let at = statement.iter().position(|it| it == "[")?;
        statement.get(at + 1)?.parse::<usize>().ok()
    };
    locals.filter_map(bytes).sum()
}

/// Size and alignment of a parameter, in bytes.
fn parameter(tokens: &[String]) -> Option<(usize, usize)> {
    let mut tokens = tokens.iter().map(String::as_str).peekable();
    (tokens.next()? == ".param").then_some(())?;
    let (mut unit, mut align, mut is_pointer) = (0_usize, None, false);
    while let Some(token) = tokens.peek().filter(|it| it.starts_with('.')) {
        match *token {
            ".align" => {
                tokens.next();
                let wanted = tokens.peek()?.parse().ok()?;
                // After `.ptr` the value is the alignment of the target of the pointer.
                if !is_pointer {
                    align = Some(wanted);
                }
            }
            ".ptr" => is_pointer = true,
            ".b8" | ".u8" | ".s8" => unit = 1,
            ".b16" | ".u16" | ".s16" | ".f16" => unit = 2,
            ".b32" | ".u32" | ".s32" | ".f32" => unit = 4,
            ".b64" | ".u64" | ".s64" | ".f64" => unit = 8,
            ".global" | ".const" | ".local" | ".shared" => {}
            _ => return None,
        }
        tokens.next();
    }
    let _name = tokens.next()?;
    let elements: usize = match tokens.next() {
        None => 1,
        Some("[") => tokens.next()?.parse().ok()?,
        Some(_) => return None,
    };
    let align: usize = align.unwrap_or(unit);
    let size = unit.checked_mul(elements)?;
    let is_usual = size > 0 && size <= 4096 && align.is_power_of_two() && align <= 256;
    is_usual.then_some((size, align))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "// .entry none()\n.version 7.0 .target sm_70 .address_size 64\n/* .entry none2() {} */\n\
         .visible .entry one(.param .u64 a, .param .u32 b,\n .param .u64 .ptr .global .align 4 c,\n\
         .param .align 16 .b8 d[20])\n.reqntid 16, 16, 1\n{ ret; }\n.entry two { .local .align 8 .b8 x[4096]; ret; }\n.entry three() { ret; }";

    #[test]
    fn entries_have_their_parameters() {
        let module = Module::parse(PTX).unwrap();
        let names: Vec<_> = module.entries.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["one", "two", "three"]);
        let one = &module.entries[0];
        let parameters: Vec<_> = one
            .parameters
            .iter()
            .map(|it| (it.offset, it.size))
            .collect();
        assert_eq!(parameters, [(0, 8), (8, 4), (16, 8), (32, 20)]);
        assert_eq!(one.block, Some([16, 16, 1]));
        assert_eq!(module.entries[1].parameters, []);
        assert_eq!(module.entries[1].block, None);
        let local: Vec<_> = module.entries.iter().map(|it| it.local_bytes).collect();
        assert_eq!(local, [0, 4096, 0]);
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        let refused = [
            "",
            "hello",
            ".version 7.0\n.target sm_70\n",
            ".target sm_70 .entry a { }",
            ".version seven .target sm_70 .entry a { }",
            ".version 7.0 .entry a { }",
            ".version 7.0 .target sm_70 .entry a {",
            ".version 7.0 .target sm_70 .entry a( { }",
            ".version 7.0 .target sm_70 .entry a(.param .u65 b) { }",
            ".version 7.0 .target sm_70 .entry a(.param .b8 b[99999999]) { }",
            ".version 7.0 .target sm_70 .entry a(.param .align 3 .b8 b[4]) { }",
            ".version 7.0 .target sm_70 .entry",
        ];
        for text in refused {
            assert_eq!(Module::parse(text), None, "{text}");
        }
    }

    fn memory(bytes: &mut [u8]) -> HostMemory {
        HostMemory::at(bytes.as_mut_ptr().cast())
    }

    #[test]
    fn images_are_read_to_their_end() {
        let mut ptx = format!("{PTX}\0 no part of it").into_bytes();
        assert_eq!(
            Module::from_ptx(memory(&mut ptx)),
            Ok(Module::parse(PTX).unwrap())
        );
        let mut object = Module::code_object(".entry fill(.param .u64 p) { }");
        let module = Module::from_code_object(memory(&mut object)).unwrap();
        assert_eq!(module.entries[0].name, "fill");
        // Neither form is accepted as the other.
        assert_eq!(
            Module::from_ptx(memory(&mut object)),
            Err(Status::INVALID_IMAGE)
        );
        assert_eq!(
            Module::from_code_object(memory(&mut ptx)),
            Err(Status::INVALID_IMAGE)
        );
        let mut text = *b"no ptx\0";
        assert_eq!(
            Module::from_ptx(memory(&mut text)),
            Err(Status::INVALID_PTX)
        );
        let mut binary = *b".version\x01\0";
        assert_eq!(
            Module::from_ptx(memory(&mut binary)),
            Err(Status::INVALID_IMAGE)
        );
        let nothing = HostMemory::at(std::ptr::null_mut());
        assert_eq!(Module::from_ptx(nothing), Err(Status::INVALID_VALUE));
    }
}
