//! SentencePiece-style BPE ("llama" in GGUF terms): of all neighbours that make a token together,
//! those with the best score are merged first, the leftmost of equals; a character without token is
//! written as the tokens of its bytes. The rules are llama.cpp's (llm_tokenizer_spm).

use crate::error::{Code, Error, Result};
use crate::vocabulary::{byte_token, check_count, data_loss, Pieces, TokenType, Vocabulary};
use ahash::AHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// U+2581, which stands for a space.
const SPACE_MARK: &str = "\u{2581}";
const NONE: u32 = u32::MAX;

struct Token {
    id: u32,
    /// Ascending with the score.
    rank: u32,
}

pub struct Scored {
    tokens: AHashMap<Box<[u8]>, Token>,
    longest: usize,
    /// The token of each byte, where there is one.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

/// A run of bytes of the text, merged so far; empty once it is part of the one before it.
struct Symbol {
    start: u32,
    length: u32,
    previous: u32,
    next: u32,
}

/// Two neighbours that make a token. Ordered by rank, then leftmost first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    rank: u32,
    left: Reverse<u32>,
    right: u32,
    length: u32,
}

/// Maps scores to integers of the same order. Requires: no NaN.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0 becomes 0
    if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    }
}

/// Bytes of the character that begins with this one, as its first bits say.
fn character_bytes(first: u8) -> usize {
    match first >> 4 {
        0xc | 0xd => 2,
        0xe => 3,
        0xf => 4,
        _ => 1,
    }
}

fn check_scores(scores: &[f32], num_tokens: usize) -> Result<()> {
    if scores.is_empty() {
        let message = "expected one per token, found none";
        return Err(data_loss("tokenizer.scores", message));
    }
    check_count("tokenizer.scores", scores.len(), num_tokens)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(index) => {
            let field = format!("tokenizer.scores[{index}]");
            Err(data_loss(field, "expected a number, found NaN"))
        }
        None => Ok(()),
    }
}

/// Appends the bytes that a token stands for; None where it is malformed.
fn append_piece(text: &str, kind: TokenType, out: &mut Vec<u8>) -> Option<()> {
    match kind {
        TokenType::Byte => out.push(byte_token(text)?),
        TokenType::Normal | TokenType::Unused | TokenType::Undefined => {
            let mut parts = text.split(SPACE_MARK);
            out.extend_from_slice(parts.next().unwrap_or("").as_bytes());
            for part in parts {
                out.push(b' ');
                out.extend_from_slice(part.as_bytes());
            }
        }
        _ => out.extend_from_slice(text.as_bytes()),
    }
    Some(())
}

impl Scored {
    /// Also the bytes that each token stands for.
    pub fn new(
        vocabulary: &Vocabulary,
        texts: &[&str],
        types: &[TokenType],
    ) -> Result<(Self, Pieces)> {
        check_scores(vocabulary.scores, texts.len())?;
        let mut pieces = Pieces::new();
        let mut model = Scored {
            tokens: AHashMap::with_capacity(texts.len()),
            longest: 0,
            bytes: [None; 256],
            unknown: u32::try_from(vocabulary.unknown).ok(),
        };
        for (index, (text, kind)) in texts.iter().zip(types).enumerate() {
            if append_piece(text, *kind, &mut pieces.bytes).is_none() {
                let field = format!("tokenizer.tokens[{index}]");
                return Err(data_loss(field, "a byte token that is not written <0xHH>"));
            }
            pieces.end_piece(kind.flags());
            let id = index as u32;
            // Control tokens are never made of text that a user wrote, nor are bytes of their names.
            match kind {
                TokenType::Byte => {
                    model.bytes[*pieces.bytes.last().unwrap_or(&0) as usize] = Some(id)
                }
                kind if kind.is_special() || text.is_empty() => {}
                _ => model.add_token(text, id, vocabulary.scores[index]),
            }
        }
        model.take_plain_bytes();
        Ok((model, pieces))
    }

    fn add_token(&mut self, text: &str, id: u32, score: f32) {
        self.longest = self.longest.max(text.len());
        let token = Token {
            id,
            rank: rank(score),
        };
        self.tokens.insert(text.as_bytes().into(), token);
    }

    /// A byte without token of its own is written by the token of that character.
    fn take_plain_bytes(&mut self) {
        for byte in 0..=127u8 {
            if self.bytes[byte as usize].is_none() {
                self.bytes[byte as usize] = self.tokens.get(&[byte][..]).map(|token| token.id);
            }
        }
    }

    /// Encodes `text`, which lies at `offset` of the prompt.
    pub fn encode(
        &self,
        text: &[u8],
        offset: usize,
        space_prefix: bool,
        refuse_lossy: bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if refuse_lossy {
            refuse_space_mark(text, offset)?;
        }
        let marked = mark_spaces(text, space_prefix);
        if marked.len() > i32::MAX as usize {
            let message = "expected less than 2 GiB of text";
            return Err(Error::new(Code::InvalidArgument, "prompt", message));
        }
        let mut symbols = characters(&marked);
        self.merge(&marked, &mut symbols);
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = &symbols[at as usize];
            self.append(&marked[symbol.range()], refuse_lossy, out)?;
            at = symbol.next;
        }
        Ok(())
    }

    fn merge(&self, text: &[u8], symbols: &mut [Symbol]) {
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() as u32 {
            self.push_pair(text, symbols, right - 1, right, &mut queue);
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (pair.left.0, pair.right);
            let [left_length, right_length] = [left, right].map(|at| symbols[at as usize].length);
            // Symbols only grow or vanish, so an equal sum means that neither has changed.
            let is_current = left_length > 0 && right_length > 0;
            if !is_current || left_length + right_length != pair.length {
                continue;
            }
            let after = symbols[right as usize].next;
            symbols[right as usize].length = 0;
            symbols[left as usize].length = pair.length;
            symbols[left as usize].next = after;
            if after != NONE {
                symbols[after as usize].previous = left;
            }
            let before = symbols[left as usize].previous;
            self.push_pair(text, symbols, before, left, &mut queue);
            self.push_pair(text, symbols, left, after, &mut queue);
        }
    }

    fn push_pair(
        &self,
        text: &[u8],
        symbols: &[Symbol],
        left: u32,
        right: u32,
        queue: &mut BinaryHeap<Pair>,
    ) {
        if left == NONE || right == NONE {
            return;
        }
        let first = &symbols[left as usize];
        let length = first.length + symbols[right as usize].length;
        if length as usize > self.longest {
            return;
        }
        let start = first.start as usize;
        if let Some(token) = self.tokens.get(&text[start..start + length as usize]) {
            queue.push(Pair {
                rank: token.rank,
                left: Reverse(left),
                right,
                length,
            });
        }
    }

    /// Appends the token of a symbol, or those of its bytes.
    fn append(&self, symbol: &[u8], refuse_lossy: bool, out: &mut Vec<u32>) -> Result<()> {
        if let Some(token) = self.tokens.get(symbol) {
            out.push(token.id);
            return Ok(());
        }
        let known = symbol.iter().filter_map(|byte| self.bytes[*byte as usize]);
        if known.clone().count() == symbol.len() {
            out.extend(known);
            return Ok(());
        }
        if refuse_lossy {
            let message = format!(
                "{:?} has no token in this vocabulary",
                String::from_utf8_lossy(symbol)
            );
            return Err(Error::new(Code::InvalidArgument, "prompt", message));
        }
        out.extend(self.unknown);
        Ok(())
    }
}

impl Symbol {
    fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.length) as usize
    }
}

fn characters(text: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    while start < text.len() {
        let length = character_bytes(text[start]).min(text.len() - start);
        let index = symbols.len() as u32;
        symbols.push(Symbol {
            start: start as u32,
            length: length as u32,
            previous: index.wrapping_sub(1), // NONE for the first
            next: index + 1,
        });
        start += length;
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    symbols
}

fn mark_spaces(text: &[u8], space_prefix: bool) -> Vec<u8> {
    let num_spaces = text.iter().filter(|byte| **byte == b' ').count();
    let mut marked = Vec::with_capacity(text.len() + 2 * num_spaces + SPACE_MARK.len());
    if space_prefix {
        marked.extend_from_slice(SPACE_MARK.as_bytes());
    }
    for byte in text {
        match byte {
            b' ' => marked.extend_from_slice(SPACE_MARK.as_bytes()),
            other => marked.push(*other),
        }
    }
    marked
}

/// The mark itself would be read as a space.
fn refuse_space_mark(text: &[u8], offset: usize) -> Result<()> {
    let mark = SPACE_MARK.as_bytes();
    match text.windows(mark.len()).position(|window| window == mark) {
        Some(at) => Err(Error::new(
            Code::InvalidArgument,
            "prompt",
            format!(
                "U+2581 at {} stands for a space in this vocabulary",
                offset + at
            ),
        )),
        None => Ok(()),
    }
}
