//! Byte-level BPE ("gpt2" in GGUF terms) over the Hugging Face model.

use crate::error::{Code, Error, Result};
use crate::pre_tokenizers::PreTokenizer;
use crate::vocabulary::{
    byte_token, data_loss, lossy_byte, unimplemented, utf8, Pieces, TokenType, Vocabulary,
};
use ahash::{AHashMap, AHashSet};
use std::borrow::Cow;
use tokenizers::models::bpe::BPE;
use tokenizers::Model;

pub struct ByteLevel {
    bpe: BPE,
    pre_tokenizer: PreTokenizer,
    /// The character that stands for a byte; None where the vocabulary has no such token.
    symbols: [Option<char>; 256],
    /// Whether a token may stand for a whole word.
    is_word: Vec<bool>,
}

/// GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 onwards.
pub fn byte_symbols() -> [char; 256] {
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

/// The byte that each symbol stands for, by code point.
pub struct SymbolBytes([Option<u8>; 0x200]);

impl SymbolBytes {
    pub fn new() -> Self {
        let mut bytes = [None; 0x200];
        for (byte, symbol) in (0u8..=255).zip(byte_symbols()) {
            bytes[symbol as usize] = Some(byte);
        }
        SymbolBytes(bytes)
    }
    fn byte(&self, symbol: char) -> Option<u8> {
        self.0.get(symbol as usize).copied().flatten()
    }
    /// Appends the bytes of a token that is written in symbols. One with a character that stands for
    /// no byte is taken as it is written.
    pub fn append(&self, token: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for symbol in token.chars() {
            let Some(byte) = self.byte(symbol) else {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            };
            out.push(byte);
        }
    }
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
fn unknown_merge(merges: &[&[u8]], ids: &AHashMap<&str, u32>) -> Option<Error> {
    merges.iter().enumerate().find_map(|(index, merge)| {
        let (left, right) = merge_pair(std::str::from_utf8(merge).ok()?)?;
        let joined = format!("{left}{right}");
        let unknown = [left, right, &joined]
            .into_iter()
            .find(|token| !ids.contains_key(token))?;
        let message = format!("{unknown:?} is no token of the vocabulary");
        Some(data_loss(format!("tokenizer.merges[{index}]"), message))
    })
}

fn token_pieces(texts: &[&str], types: &[TokenType]) -> Result<Pieces> {
    let bytes = SymbolBytes::new();
    let mut pieces = Pieces::new();
    for (index, (text, kind)) in texts.iter().zip(types).enumerate() {
        match kind {
            TokenType::Normal | TokenType::Unused | TokenType::Undefined => {
                bytes.append(text, &mut pieces.bytes);
            }
            TokenType::Byte => {
                let field = format!("tokenizer.tokens[{index}]");
                let message = "a byte token that is not written <0xHH>";
                let byte = byte_token(text).ok_or_else(|| data_loss(field, message))?;
                pieces.bytes.push(byte);
            }
            _ => pieces.bytes.extend_from_slice(text.as_bytes()),
        }
        pieces.end_piece(kind.flags());
    }
    Ok(pieces)
}

impl ByteLevel {
    /// Also the bytes that each token stands for. `ids`: of the texts.
    pub fn new(
        vocabulary: &Vocabulary,
        texts: &[&str],
        ids: &AHashMap<&str, u32>,
        types: &[TokenType],
    ) -> Result<(Self, Pieces)> {
        let pre_tokenizer =
            PreTokenizer::new(utf8(vocabulary.pre_tokenizer, || "tokenizer.pre".into())?)?;
        if vocabulary.add_space_prefix {
            let message = "a space before the text is not offered for gpt2";
            return Err(unimplemented("tokenizer.add_space_prefix", message));
        }
        let pairs = merge_pairs(&vocabulary.merges)?;
        let pieces = token_pieces(texts, types)?;
        let symbols = byte_symbols().map(|symbol| {
            Some(symbol).filter(|s| ids.contains_key(s.encode_utf8(&mut [0; 4]) as &str))
        });
        let owned: AHashMap<String, u32> = ids
            .iter()
            .map(|(text, id)| (text.to_string(), *id))
            .collect();
        let bpe = BPE::builder().vocab_and_merges(owned, pairs).build();
        let bpe = bpe.map_err(|e| {
            let unknown = unknown_merge(&vocabulary.merges, ids);
            unknown.unwrap_or_else(|| data_loss("tokenizer.merges", e.to_string()))
        })?;
        let model = ByteLevel {
            bpe,
            pre_tokenizer,
            symbols,
            is_word: types.iter().map(|kind| !kind.is_special()).collect(),
        };
        Ok((model, pieces))
    }

    /// Encodes `text`, which lies at `offset` of the prompt.
    pub fn encode(
        &self,
        text: &[u8],
        offset: usize,
        refuse_lossy: bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let (readable, replaced) = make_readable(text);
        let mut bytes = text.iter().enumerate();
        let mut replaced = replaced.iter().peekable();
        let mut word = String::new();
        for (from, to) in self.pre_tokenizer.cut(&readable)? {
            word.clear();
            for (at, c) in readable[from..to].char_indices() {
                let is_replaced = replaced.next_if(|other| **other == from + at).is_some();
                let num_bytes = if is_replaced { 1 } else { c.len_utf8() };
                for (at, byte) in bytes.by_ref().take(num_bytes) {
                    match self.symbols[*byte as usize] {
                        Some(symbol) => word.push(symbol),
                        None if refuse_lossy => return Err(lossy_byte(*byte, offset + at)),
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
        if self.pre_tokenizer.whole_words {
            let whole = self.bpe.token_to_id(word);
            if let Some(id) = whole.filter(|id| self.is_word[*id as usize]) {
                out.push(id);
                word.clear();
                return Ok(());
            }
        }
        let tokens = self.bpe.tokenize(word);
        let tokens = tokens.map_err(|e| Error::new(Code::Internal, "tokenizer", e.to_string()))?;
        out.extend(tokens.iter().map(|token| token.id));
        word.clear();
        Ok(())
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
