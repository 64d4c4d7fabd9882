//! A vocabulary as GGUF files hold it, and the checks that every model shares.

use crate::error::{Code, Error, Result};
use ahash::AHashMap;

/// The kinds of GGUF's tokenizer.ggml.token_type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    Undefined,
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    pub fn from_gguf(number: i32) -> Option<Self> {
        Some(match number {
            0 => TokenType::Undefined,
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
    pub fn is_special(self) -> bool {
        matches!(self, TokenType::Unknown | TokenType::Control)
    }
    pub fn flags(self) -> u8 {
        match self {
            TokenType::Unknown => IS_SPECIAL,
            TokenType::Control => IS_SPECIAL | IS_ADDED,
            TokenType::UserDefined => IS_ADDED,
            _ => 0,
        }
    }
}

/// What `Tokenizer::new` needs. Slices are read only while it runs.
pub struct Vocabulary<'a> {
    pub model: &'a [u8],
    /// The tokenizer.json of model "huggingface", which uses neither tokens nor what they have.
    pub definition: &'a [u8],
    /// Ids of "huggingface"; those without token stand for nothing.
    pub num_ids: usize,
    pub pre_tokenizer: &'a [u8],
    pub tokens: Vec<&'a [u8]>,
    pub merges: Vec<&'a [u8]>,
    /// Empty: none.
    pub scores: &'a [f32],
    /// Empty: all normal.
    pub types: &'a [i32],
    pub bos: i32,
    pub eos: i32,
    pub unknown: i32,
    pub padding: i32,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
}

pub fn data_loss(field: impl Into<String>, message: impl Into<String>) -> Error {
    Error::new(Code::DataLoss, field, message)
}

pub fn unimplemented(field: &str, message: impl Into<String>) -> Error {
    Error::new(Code::Unimplemented, field, message)
}

pub fn utf8<'a>(text: &'a [u8], field: impl Fn() -> String) -> Result<&'a str> {
    std::str::from_utf8(text).map_err(|e| {
        data_loss(
            field(),
            format!("invalid UTF-8 after {} bytes", e.valid_up_to()),
        )
    })
}

/// The tokens and the id of each text. An empty token is no part of any text and has no entry.
pub fn token_ids<'a>(tokens: &[&'a [u8]]) -> Result<(Vec<&'a str>, AHashMap<&'a str, u32>)> {
    if tokens.is_empty() {
        return Err(data_loss(
            "tokenizer.tokens",
            "expected at least one token, found none",
        ));
    }
    if tokens.len() > i32::MAX as usize {
        return Err(data_loss("tokenizer.tokens", "more tokens than ids"));
    }
    let mut texts = Vec::with_capacity(tokens.len());
    let mut ids = AHashMap::with_capacity(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        let field = || format!("tokenizer.tokens[{index}]");
        let text = utf8(token, field)?;
        texts.push(text);
        if text.is_empty() {
            continue;
        }
        if let Some(first) = ids.insert(text, index as u32) {
            return Err(data_loss(
                field(),
                format!("the same text as token {first}"),
            ));
        }
    }
    Ok((texts, ids))
}

pub fn token_types(numbers: &[i32], num_tokens: usize) -> Result<Vec<TokenType>> {
    if numbers.is_empty() {
        return Ok(vec![TokenType::Normal; num_tokens]);
    }
    check_count("tokenizer.token_type", numbers.len(), num_tokens)?;
    let known = |(index, number): (usize, &i32)| {
        TokenType::from_gguf(*number).ok_or_else(|| {
            let field = format!("tokenizer.token_type[{index}]");
            data_loss(field, format!("expected 0 to 6, found {number}"))
        })
    };
    numbers.iter().enumerate().map(known).collect()
}

pub fn check_count(field: &str, found: usize, num_tokens: usize) -> Result<()> {
    if found == num_tokens {
        return Ok(());
    }
    let message = format!("expected {num_tokens}, one per token, found {found}");
    Err(data_loss(field, message))
}

/// An id of the vocabulary, None for -1.
pub fn special_id(id: i32, num_tokens: usize, name: &str) -> Result<Option<u32>> {
    match id {
        -1 => Ok(None),
        id if id >= 0 && (id as usize) < num_tokens => Ok(Some(id as u32)),
        id => Err(data_loss(
            format!("tokenizer.{name}_token_id"),
            format!("expected an id below {num_tokens}, found {id}"),
        )),
    }
}

/// BOS and EOS, where they are added to a text.
pub fn added_ends(
    vocabulary: &Vocabulary,
    num_tokens: usize,
) -> Result<(Option<u32>, Option<u32>)> {
    let bos = special_id(vocabulary.bos, num_tokens, "bos")?;
    let eos = special_id(vocabulary.eos, num_tokens, "eos")?;
    special_id(vocabulary.unknown, num_tokens, "unknown")?;
    special_id(vocabulary.padding, num_tokens, "padding")?;
    let needed = |wanted: bool, id: Option<u32>, name: &str| match (wanted, id) {
        (true, None) => Err(data_loss(
            format!("tokenizer.{name}_token_id"),
            format!("missing, and tokenizer.add_{name}_token wants it"),
        )),
        (wanted, id) => Ok(id.filter(|_| wanted)),
    };
    Ok((
        needed(vocabulary.add_bos, bos, "bos")?,
        needed(vocabulary.add_eos, eos, "eos")?,
    ))
}

/// The byte of a token that is written <0xHH>.
pub fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// What stands for a token.
pub struct Pieces {
    /// The bytes of all tokens, one after the other; piece i is bytes[ends[i] .. ends[i + 1]].
    pub bytes: Vec<u8>,
    pub ends: Vec<u64>,
    /// Of each token: IS_SPECIAL, IS_ADDED.
    pub flags: Vec<u8>,
}

/// A control or unknown token.
pub const IS_SPECIAL: u8 = 1;
/// A token that is found in the text before it is cut.
pub const IS_ADDED: u8 = 2;

impl Pieces {
    pub fn new() -> Self {
        Pieces {
            bytes: Vec::new(),
            ends: vec![0],
            flags: Vec::new(),
        }
    }
    /// Ends the piece that was written to `bytes`.
    pub fn end_piece(&mut self, flags: u8) {
        self.ends.push(self.bytes.len() as u64);
        self.flags.push(flags);
    }
}

/// Which spaces at the beginning of a text are not part of it.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum SpaceRule {
    None = 0,
    /// One, also after a token that was added.
    AfterAdded = 1,
    /// One at the beginning of the text.
    One = 2,
    /// All those of the first token.
    FirstToken = 3,
}

/// A byte that has no token, at `at` of the prompt.
pub fn lossy_byte(byte: u8, at: usize) -> Error {
    Error::new(
        Code::InvalidArgument,
        "prompt",
        format!("byte 0x{byte:02x} at {at} has no token in this vocabulary"),
    )
}
