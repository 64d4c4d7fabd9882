//! Tokens that are found in a text before it is cut into words: user-defined ones always, control
//! and unknown ones where the caller asks for it.
//!
//! The rule is llama.cpp's (llama_vocab::impl::tokenizer_st_partition): the longest tokens first,
//! each from left to right in what the longer ones left over.

use crate::error::Result;
use crate::vocabulary::data_loss;
use aho_corasick::{AhoCorasick, MatchKind};
use std::collections::BTreeMap;
use std::ops::Range;

/// The tokens of one length in bytes.
struct LengthClass {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

pub struct AddedTokens {
    /// Tells which lengths occur at all.
    all: AhoCorasick,
    /// Class of each pattern of `all`.
    class_of: Vec<usize>,
    /// Longest first.
    classes: Vec<LengthClass>,
}

/// A part of a text: plain, or one of the tokens.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Text(Range<usize>),
    Token(u32),
}

fn automaton<'a>(texts: impl Iterator<Item = &'a str>) -> Result<AhoCorasick> {
    AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .build(texts)
        .map_err(|e| data_loss("tokenizer.tokens", format!("added tokens: {e}")))
}

impl AddedTokens {
    /// None without ids. Requires: each text is there once, and none is empty.
    pub fn new(texts: &[&str], ids: &[u32]) -> Result<Option<Self>> {
        if ids.is_empty() {
            return Ok(None);
        }
        let mut by_length: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for id in ids {
            by_length
                .entry(texts[*id as usize].len())
                .or_default()
                .push(*id);
        }
        let text_of = |id: &u32| texts[*id as usize];
        let mut classes = Vec::new();
        let mut class_of = Vec::new();
        let mut ordered = Vec::new();
        for ids in by_length.into_values().rev() {
            class_of.resize(class_of.len() + ids.len(), classes.len());
            ordered.extend(ids.iter().map(text_of));
            let automaton = automaton(ids.iter().map(text_of))?;
            classes.push(LengthClass { automaton, ids });
        }
        let all = automaton(ordered.into_iter())?;
        Ok(Some(AddedTokens {
            all,
            class_of,
            classes,
        }))
    }

    /// The parts of the text, in order; no part of text is empty.
    pub fn split(&self, text: &[u8]) -> Vec<Part> {
        let mut occurs = vec![false; self.classes.len()];
        for found in self.all.find_overlapping_iter(text) {
            occurs[self.class_of[found.pattern().as_usize()]] = true;
        }
        let mut parts = vec![Part::Text(0..text.len())];
        for (class, occurs) in self.classes.iter().zip(occurs) {
            if !occurs {
                continue;
            }
            let mut next = Vec::with_capacity(parts.len());
            for part in parts {
                match part {
                    Part::Text(range) => class.split(text, range, &mut next),
                    token => next.push(token),
                }
            }
            parts = next;
        }
        parts.retain(|part| !matches!(part, Part::Text(range) if range.is_empty()));
        parts
    }
}

impl LengthClass {
    fn split(&self, text: &[u8], range: Range<usize>, parts: &mut Vec<Part>) {
        let mut start = range.start;
        for found in self.automaton.find_iter(&text[range.clone()]) {
            parts.push(Part::Text(start..range.start + found.start()));
            parts.push(Part::Token(self.ids[found.pattern().as_usize()]));
            start = range.start + found.end();
        }
        parts.push(Part::Text(start..range.end));
    }
}

/// The parts of a text where there may be no added tokens.
pub fn split(added: &Option<AddedTokens>, text: &[u8]) -> Vec<Part> {
    match added {
        Some(added) => added.split(text),
        None if text.is_empty() => Vec::new(),
        None => vec![Part::Text(0..text.len())],
    }
}
