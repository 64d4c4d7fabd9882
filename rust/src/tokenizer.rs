//! Byte-level BPE ("gpt2" in GGUF terms) over the Hugging Face model, from a vocabulary in memory.

use crate::error::{Code, Error, Result};
use ahash::AHashSet;
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pattern::Pattern;
use tokenizers::utils::SysRegex;
use tokenizers::Model;

/// The kinds of GGUF's tokenizer.ggml.token_type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
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
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
    fn is_special(self) -> bool {
        matches!(self, TokenType::Unknown | TokenType::Control)
    }
}

/// What `Tokenizer::new` needs. Slices are read only while it runs.
pub struct Vocabulary<'a> {
    pub model: &'a [u8],
    pub pre_tokenizer: &'a [u8],
    pub tokens: Vec<&'a [u8]>,
    pub merges: Vec<&'a [u8]>,
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

#[derive(Clone, Copy)]
pub struct EncodeOptions {
    pub parse_special: bool,
    pub add_special: bool,
    pub refuse_lossy: bool,
}

pub struct Tokenizer {
    bpe: BPE,
    /// Each one cuts the pieces that the one before it left.
    splits: Vec<SysRegex>,
    /// The character that stands for a byte; None where the vocabulary has no such token.
    symbols: [Option<char>; 256],
    /// Tokens found in the text before it is cut: always, and with `parse_special`.
    user_defined: Option<Added>,
    special: Option<Added>,
    prefix: Option<u32>,
    suffix: Option<u32>,
    /// The bytes of all tokens, one after the other; piece i is pieces[ends[i] .. ends[i + 1]].
    pub pieces: Vec<u8>,
    pub ends: Vec<u64>,
}

/// Added tokens: the automaton and the ids of its patterns.
struct Added {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

// The rules that cut text into words. "\p{N}" gives each digit a word of its own.
const GPT2_WORDS: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn split_rules(pre_tokenizer: &str) -> Option<&'static [&'static str]> {
    match pre_tokenizer {
        "gpt-2" => Some(&[GPT2_WORDS]),
        "smollm" => Some(&[r"\p{N}", GPT2_WORDS]),
        _ => None,
    }
}

/// GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 onwards.
fn byte_symbols() -> [char; 256] {
    let mut next = 0x100u32;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            return char::from_u32(byte).unwrap_or('\0');
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or('\0')
    })
}

fn data_loss(field: impl Into<String>, message: impl Into<String>) -> Error {
    Error::new(Code::DataLoss, field, message)
}

fn utf8<'a>(text: &'a [u8], field: impl Fn() -> String) -> Result<&'a str> {
    std::str::from_utf8(text).map_err(|e| {
        data_loss(
            field(),
            format!("invalid UTF-8 after {} bytes", e.valid_up_to()),
        )
    })
}

fn token_ids<'a>(tokens: &[&'a [u8]]) -> Result<(Vec<&'a str>, Vocab)> {
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
    let mut ids = Vocab::with_capacity(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        let field = || format!("tokenizer.tokens[{index}]");
        let text = utf8(token, field)?;
        if text.is_empty() {
            return Err(data_loss(field(), "an empty token"));
        }
        if let Some(first) = ids.insert(text.to_owned(), index as u32) {
            return Err(data_loss(
                field(),
                format!("the same text as token {first}"),
            ));
        }
        texts.push(text);
    }
    Ok((texts, ids))
}

/// Left and right of a merge, None where it is malformed.
fn merge_pair(merge: &str) -> Option<(&str, &str)> {
    merge
        .split_once(' ')
        .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
}

fn merge_pairs(merges: &[&[u8]]) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::with_capacity(merges.len());
    let mut seen = AHashSet::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let field = || format!("tokenizer.merges[{index}]");
        let text = utf8(merge, field)?;
        let Some((left, right)) = merge_pair(text) else {
            return Err(data_loss(
                field(),
                "expected two tokens with one space between",
            ));
        };
        // Of two equal merges the first counts, since it has the better rank.
        if seen.insert(text) {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(pairs)
}

/// The error of the first merge that names a token which the vocabulary does not have.
fn unknown_merge(merges: &[&[u8]], tokens: &[&str]) -> Option<Error> {
    let known: AHashSet<&str> = tokens.iter().copied().collect();
    merges.iter().enumerate().find_map(|(index, merge)| {
        let (left, right) = merge_pair(std::str::from_utf8(merge).ok()?)?;
        let joined = format!("{left}{right}");
        let unknown = [left, right, &joined]
            .into_iter()
            .find(|token| !known.contains(token))?;
        let message = format!("{unknown:?} is no token of the vocabulary");
        Some(data_loss(format!("tokenizer.merges[{index}]"), message))
    })
}

fn token_types(numbers: &[i32], num_tokens: usize) -> Result<Vec<TokenType>> {
    if numbers.is_empty() {
        return Ok(vec![TokenType::Normal; num_tokens]);
    }
    if numbers.len() != num_tokens {
        let message = format!(
            "expected {num_tokens}, one per token, found {}",
            numbers.len()
        );
        return Err(data_loss("tokenizer.token_type", message));
    }
    let known = |(index, number): (usize, &i32)| {
        TokenType::from_gguf(*number).ok_or_else(|| {
            let field = format!("tokenizer.token_type[{index}]");
            data_loss(field, format!("expected 1 to 6, found {number}"))
        })
    };
    numbers.iter().enumerate().map(known).collect()
}

/// An id of the vocabulary, None for -1.
fn special_id(id: i32, num_tokens: usize, name: &str) -> Result<Option<u32>> {
    match id {
        -1 => Ok(None),
        id if id >= 0 && (id as usize) < num_tokens => Ok(Some(id as u32)),
        id => Err(data_loss(
            format!("tokenizer.{name}_token_id"),
            format!("expected an id below {num_tokens}, found {id}"),
        )),
    }
}

/// The byte that each symbol stands for, by code point.
struct SymbolBytes([Option<u8>; 0x200]);

impl SymbolBytes {
    fn new(symbols: &[char; 256]) -> Self {
        let mut bytes = [None; 0x200];
        for (byte, symbol) in (0u8..=255).zip(symbols) {
            bytes[*symbol as usize] = Some(byte);
        }
        SymbolBytes(bytes)
    }
    fn byte(&self, symbol: char) -> Option<u8> {
        self.0.get(symbol as usize).copied().flatten()
    }
}

/// Appends the bytes that a token stands for; false if it is malformed.
fn append_piece(text: &str, kind: TokenType, bytes: &SymbolBytes, pieces: &mut Vec<u8>) -> bool {
    match kind {
        TokenType::Normal | TokenType::Unused => {
            let start = pieces.len();
            for symbol in text.chars() {
                let Some(byte) = bytes.byte(symbol) else {
                    // A token with a character that stands for no byte is taken as it is written.
                    pieces.truncate(start);
                    pieces.extend_from_slice(text.as_bytes());
                    return true;
                };
                pieces.push(byte);
            }
        }
        TokenType::Byte => {
            let hex = text
                .strip_prefix("<0x")
                .and_then(|rest| rest.strip_suffix('>'));
            let hex =
                hex.filter(|hex| hex.len() == 2 && hex.bytes().all(|d| d.is_ascii_hexdigit()));
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => pieces.push(byte),
                None => return false,
            }
        }
        _ => pieces.extend_from_slice(text.as_bytes()),
    }
    true
}

fn added(texts: &[&str], ids: Vec<u32>) -> Result<Option<Added>> {
    if ids.is_empty() {
        return Ok(None);
    }
    // Leftmost, then longest: what Hugging Face tokenizers do with added tokens.
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(ids.iter().map(|id| texts[*id as usize]))
        .map_err(|e| data_loss("tokenizer.tokens", format!("added tokens: {e}")))?;
    Ok(Some(Added { automaton, ids }))
}

impl Tokenizer {
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let model = utf8(vocabulary.model, || "tokenizer.model".into())?;
        if model != "gpt2" {
            let message = format!("expected gpt2 (byte-level BPE), found {model:?}");
            return Err(Error::new(Code::Unimplemented, "tokenizer.model", message));
        }
        let pre = utf8(vocabulary.pre_tokenizer, || "tokenizer.pre".into())?;
        let Some(rules) = split_rules(pre) else {
            let message = format!("expected gpt-2 or smollm, found {pre:?}");
            return Err(Error::new(Code::Unimplemented, "tokenizer.pre", message));
        };
        if vocabulary.add_space_prefix {
            let message = "a space before the text is not offered for gpt2";
            return Err(Error::new(
                Code::Unimplemented,
                "tokenizer.add_space_prefix",
                message,
            ));
        }
        let splits = rules
            .iter()
            .map(|rule| SysRegex::new(rule))
            .collect::<std::result::Result<_, _>>();
        let splits =
            splits.map_err(|e| Error::new(Code::Internal, "tokenizer.pre", e.to_string()))?;

        let (texts, ids) = token_ids(&vocabulary.tokens)?;
        let types = token_types(vocabulary.types, texts.len())?;
        let pairs = merge_pairs(&vocabulary.merges)?;
        let bos = special_id(vocabulary.bos, texts.len(), "bos")?;
        let eos = special_id(vocabulary.eos, texts.len(), "eos")?;
        special_id(vocabulary.unknown, texts.len(), "unknown")?;
        special_id(vocabulary.padding, texts.len(), "padding")?;
        let needed = |wanted: bool, id: Option<u32>, name: &str| match (wanted, id) {
            (true, None) => Err(data_loss(
                format!("tokenizer.{name}_token_id"),
                format!("missing, and tokenizer.add_{name}_token wants it"),
            )),
            (wanted, id) => Ok(id.filter(|_| wanted)),
        };

        let all_symbols = byte_symbols();
        let bytes = SymbolBytes::new(&all_symbols);
        let symbols = all_symbols.map(|symbol| {
            Some(symbol).filter(|s| ids.contains_key(s.encode_utf8(&mut [0; 4]) as &str))
        });
        let mut pieces = Vec::new();
        let mut ends = vec![0u64];
        for (index, text) in texts.iter().enumerate() {
            if !append_piece(text, types[index], &bytes, &mut pieces) {
                let field = format!("tokenizer.tokens[{index}]");
                return Err(data_loss(field, "a byte token that is not written <0xHH>"));
            }
            ends.push(pieces.len() as u64);
        }
        let of_type = |wanted: &dyn Fn(TokenType) -> bool| -> Vec<u32> {
            (0..texts.len())
                .filter(|i| wanted(types[*i]))
                .map(|i| i as u32)
                .collect()
        };
        let is_user_defined = |kind: TokenType| kind == TokenType::UserDefined;
        let user_defined = added(&texts, of_type(&is_user_defined))?;
        let special = added(
            &texts,
            of_type(&|kind| kind.is_special() || is_user_defined(kind)),
        )?;

        let bpe = BPE::builder().vocab_and_merges(ids, pairs).build();
        let bpe = bpe.map_err(|e| {
            let unknown = unknown_merge(&vocabulary.merges, &texts);
            unknown.unwrap_or_else(|| data_loss("tokenizer.merges", e.to_string()))
        })?;
        Ok(Tokenizer {
            bpe,
            splits,
            symbols,
            user_defined,
            special,
            prefix: needed(vocabulary.add_bos, bos, "bos")?,
            suffix: needed(vocabulary.add_eos, eos, "eos")?,
            pieces,
            ends,
        })
    }

    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special {
            out.extend(self.prefix);
        }
        let added = if options.parse_special {
            &self.special
        } else {
            &self.user_defined
        };
        let mut start = 0;
        if let Some(added) = added {
            for found in added.automaton.find_iter(text) {
                self.encode_segment(text, start..found.start(), options, &mut out)?;
                out.push(added.ids[found.pattern().as_usize()]);
                start = found.end();
            }
        }
        self.encode_segment(text, start..text.len(), options, &mut out)?;
        if options.add_special {
            out.extend(self.suffix);
        }
        Ok(out)
    }

    /// Encodes text between added tokens.
    fn encode_segment(
        &self,
        text: &[u8],
        range: std::ops::Range<usize>,
        options: EncodeOptions,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let segment = &text[range.clone()];
        let (readable, replaced) = make_readable(segment);
        let mut bytes = segment.iter().enumerate();
        let mut replaced = replaced.iter().peekable();
        let mut word = String::new();
        for (from, to) in self.cut(&readable)? {
            word.clear();
            for (offset, c) in readable[from..to].char_indices() {
                let is_replaced = replaced.next_if(|at| **at == from + offset).is_some();
                let num_bytes = if is_replaced { 1 } else { c.len_utf8() };
                for (at, byte) in bytes.by_ref().take(num_bytes) {
                    match self.symbols[*byte as usize] {
                        Some(symbol) => word.push(symbol),
                        None if options.refuse_lossy => {
                            return Err(Error::new(
                                Code::InvalidArgument,
                                "prompt",
                                format!(
                                    "byte 0x{byte:02x} at {} has no token in this vocabulary",
                                    range.start + at
                                ),
                            ));
                        }
                        // The byte gets no token, and nothing is merged across its place.
                        None => self.encode_word(&mut word, out)?,
                    }
                }
            }
            self.encode_word(&mut word, out)?;
        }
        Ok(())
    }

    /// Appends the tokens of a word that is written in symbols, and empties it.
    fn encode_word(&self, word: &mut String, out: &mut Vec<u32>) -> Result<()> {
        let tokens = self.bpe.tokenize(word);
        let tokens = tokens.map_err(|e| Error::new(Code::Internal, "tokenizer", e.to_string()))?;
        out.extend(tokens.iter().map(|token| token.id));
        word.clear();
        Ok(())
    }

    /// The words of the text: ranges that follow each other and cover it.
    fn cut(&self, text: &str) -> Result<Vec<(usize, usize)>> {
        let mut words = vec![(0, text.len())];
        for rule in &self.splits {
            let mut next = Vec::with_capacity(words.len());
            for (from, to) in words {
                let found = rule.find_matches(&text[from..to]);
                let found =
                    found.map_err(|e| Error::new(Code::Internal, "prompt", e.to_string()))?;
                next.extend(
                    found
                        .iter()
                        .map(|((start, end), _)| (from + start, from + end)),
                );
            }
            words = next;
        }
        Ok(words)
    }
}

/// The text with each byte that is no part of valid UTF-8 replaced by U+FFFD, and where those are in
/// the result. For the rules that cut words; the bytes themselves are encoded as they are.
fn make_readable(text: &[u8]) -> (Cow<'_, str>, Vec<usize>) {
    if let Ok(valid) = std::str::from_utf8(text) {
        return (Cow::Borrowed(valid), Vec::new());
    }
    let mut readable = String::with_capacity(text.len() + 16);
    let mut replaced = Vec::new();
    for chunk in text.utf8_chunks() {
        readable.push_str(chunk.valid());
        for _ in chunk.invalid() {
            replaced.push(readable.len());
            readable.push('\u{fffd}');
        }
    }
    (Cow::Owned(readable), replaced)
}
