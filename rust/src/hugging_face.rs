//! Tokenizers defined by a tokenizer.json, run by the library that defines the format.

use crate::byte_level::SymbolBytes;
use crate::error::{Code, Error, Result};
use crate::vocabulary::{
    byte_token, data_loss, special_id, unimplemented, utf8, Pieces, SpaceRule, Vocabulary,
    IS_ADDED, IS_SPECIAL,
};
use ahash::AHashSet;
use serde_json::{json, Value};
use std::sync::OnceLock;
use tokenizers::{Model, ModelWrapper, Tokenizer};

pub const NAME: &str = "huggingface";
const FIELD: &str = "tokenizer.json";

pub struct HuggingFace {
    /// Finds special tokens in the text.
    asked: Tokenizer,
    /// Reads them as text.
    plain: OnceLock<Tokenizer>,
    /// Reads them as text where their model would build them, too.
    strict: OnceLock<Tokenizer>,
    /// What `strict` is made of.
    definition: Box<str>,
    /// Ids that the model of the checkpoint knows.
    num_ids: usize,
    /// Of ids below num_ids.
    is_control: Vec<bool>,
}

pub struct Loaded {
    pub model: HuggingFace,
    pub pieces: Pieces,
    pub space_rule: SpaceRule,
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, FIELD, error.to_string())
}

// ---- Decoders -------------------------------------------------------------------------------------

/// What a decoder does to each token.
enum Step {
    ByteLevel(Box<SymbolBytes>),
    Replace(String, String),
    ByteFallback,
    SpaceBefore,
}

struct Decoder {
    steps: Vec<Step>,
    space_rule: SpaceRule,
    is_fused: bool,
}

fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("")
}

impl Decoder {
    fn new(json: &Value) -> Result<Self> {
        let mut decoder = Decoder {
            steps: Vec::new(),
            space_rule: SpaceRule::None,
            is_fused: false,
        };
        if json.is_null() {
            // Tokens with a space between them.
            decoder.steps.push(Step::SpaceBefore);
            decoder.space_rule = SpaceRule::One;
        } else {
            decoder.add(json)?;
        }
        Ok(decoder)
    }

    fn add(&mut self, json: &Value) -> Result<()> {
        let kind = text_of(json, "type");
        match kind {
            "Sequence" => {
                for inner in json["decoders"].as_array().into_iter().flatten() {
                    self.add(inner)?;
                }
            }
            "ByteLevel" => self
                .steps
                .push(Step::ByteLevel(Box::new(SymbolBytes::new()))),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => self.is_fused = true,
            "Replace" if !self.is_fused && json["pattern"]["String"].is_string() => {
                let from = text_of(&json["pattern"], "String").to_owned();
                self.steps
                    .push(Step::Replace(from, text_of(json, "content").to_owned()));
            }
            "Metaspace" if !self.is_fused => {
                let from = text_of(json, "replacement").to_owned();
                self.steps.push(Step::Replace(from, " ".into()));
                if text_of(json, "prepend_scheme") != "never" {
                    self.space_rule = SpaceRule::FirstToken;
                }
            }
            "Strip"
                if self.is_fused && json["content"] == json!(" ") && json["stop"] == json!(0) =>
            {
                match json["start"].as_u64() {
                    Some(0) => {}
                    Some(1) => self.space_rule = SpaceRule::One,
                    _ => return Err(unknown_decoder(json)),
                }
            }
            _ => return Err(unknown_decoder(json)),
        }
        Ok(())
    }

    fn append(&self, token: &str, out: &mut Vec<u8>) {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteLevel(symbols) => return symbols.append(&text, out),
                Step::Replace(from, _) if from.is_empty() => {}
                Step::Replace(from, to) => text = text.replace(from, to),
                Step::SpaceBefore => text.insert(0, ' '),
                Step::ByteFallback => {
                    if let Some(byte) = byte_token(&text) {
                        return out.push(byte);
                    }
                }
            }
        }
        out.extend_from_slice(text.as_bytes());
    }
}

fn unknown_decoder(json: &Value) -> Error {
    let mut shown = json.to_string();
    shown.truncate(shown.floor_char_boundary(200));
    unimplemented(
        "tokenizer.json.decoder",
        format!("expected ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace as llama and gpt2 use them, found {shown}"),
    )
}

// ---- Models ---------------------------------------------------------------------------------------

/// A merge is a pair of tokens, in older files one text with a space between them.
fn merge_parts(merge: &Value) -> (&str, &str) {
    match merge.as_str() {
        Some(text) => text.split_once(' ').unwrap_or((text, "")),
        None => (
            merge[0].as_str().unwrap_or(""),
            merge[1].as_str().unwrap_or(""),
        ),
    }
}

/// The model without ways to build the texts of special tokens. Ids stay.
fn without_special(definition: &str, special: &AHashSet<String>) -> Result<ModelWrapper> {
    let mut json: Value = serde_json::from_str(definition).map_err(internal)?;
    let mut json = json["model"].take();
    let hidden = |id: &Value| format!("\u{fdd0}{id}\u{fdd1}");
    match &mut json["vocab"] {
        Value::Object(vocab) => {
            let texts = special.iter().filter_map(|text| vocab.remove_entry(text));
            let texts: Vec<_> = texts.collect();
            for (_, id) in texts {
                vocab.insert(hidden(&id), id);
            }
        }
        Value::Array(vocab) => {
            for (index, entry) in vocab.iter_mut().enumerate() {
                if entry[0].as_str().is_some_and(|text| special.contains(text)) {
                    *entry = json!([hidden(&json!(index)), -1e9]);
                }
            }
        }
        _ => {}
    }
    if let Some(merges) = json["merges"].as_array_mut() {
        merges.retain(|merge| {
            let (left, right) = merge_parts(merge);
            let joined = format!("{left}{right}");
            ![left, right, &joined]
                .iter()
                .any(|text| special.contains(*text))
        });
    }
    serde_json::from_value(json).map_err(internal)
}

/// The text that the model writes for what it does not know.
fn unknown_text(model: &ModelWrapper) -> Option<String> {
    match model {
        ModelWrapper::BPE(bpe) => bpe.get_unk_token().clone(),
        ModelWrapper::WordPiece(model) => Some(model.unk_token.clone()),
        ModelWrapper::WordLevel(model) => Some(model.unk_token.clone()),
        ModelWrapper::Unigram(unigram) => {
            let id = serde_json::to_value(unigram).ok()?["unk_id"].as_u64()?;
            unigram.id_to_token(u32::try_from(id).ok()?)
        }
    }
}

fn encode_ids(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode_fast(text, add_special);
    let encoding =
        encoding.map_err(|e| Error::new(Code::InvalidArgument, "prompt", e.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// What the post-processor puts around a text.
fn affixes(tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>)> {
    for probe in ["a", "1", " ", ""] {
        let plain = encode_ids(tokenizer, probe, false)?;
        let whole = encode_ids(tokenizer, probe, true)?;
        if plain.is_empty() {
            continue;
        }
        let at = whole.windows(plain.len()).position(|ids| ids == plain);
        let Some(at) = at else { break };
        return Ok((whole[..at].to_vec(), whole[at + plain.len()..].to_vec()));
    }
    Ok((Vec::new(), Vec::new()))
}

/// Puts the id at the given end, or takes it away.
fn set_end(ids: &mut Vec<u32>, at_front: bool, id: Option<u32>, wanted: bool) {
    let Some(id) = id else { return };
    let found = if at_front { ids.first() } else { ids.last() };
    match (found == Some(&id), wanted) {
        (false, true) if at_front => ids.insert(0, id),
        (false, true) => ids.push(id),
        (true, false) if at_front => drop(ids.remove(0)),
        (true, false) => drop(ids.pop()),
        _ => {}
    }
}

impl HuggingFace {
    pub fn load(vocabulary: &Vocabulary) -> Result<Loaded> {
        let num_ids = vocabulary.num_ids;
        let definition = utf8(vocabulary.definition, || FIELD.into())?;
        let mut asked = Tokenizer::from_bytes(definition.as_bytes())
            .map_err(|e| data_loss(FIELD, e.to_string()))?;
        asked.with_padding(None);
        asked.with_truncation(None).map_err(internal)?;
        let decoder = serde_json::to_value(asked.get_decoder()).map_err(internal)?;
        let decoder = Decoder::new(&decoder)?;
        let unknown = unknown_text(asked.get_model());
        let added = asked.get_added_tokens_decoder();
        let mut pieces = Pieces::new();
        let mut is_control = vec![false; num_ids];
        for id in 0..num_ids as u32 {
            let text = asked.id_to_token(id);
            let mut flags = 0;
            if let Some(token) = added.get(&id) {
                flags |= IS_ADDED;
                if token.special {
                    flags |= IS_SPECIAL;
                    is_control[id as usize] = text != unknown;
                }
            }
            if let Some(text) = text {
                decoder.append(&text, &mut pieces.bytes);
            }
            pieces.end_piece(flags);
        }
        let (mut prefix, mut suffix) = affixes(&asked)?;
        let bos = special_id(vocabulary.bos, num_ids, "bos")?;
        let eos = special_id(vocabulary.eos, num_ids, "eos")?;
        set_end(&mut prefix, true, bos, vocabulary.add_bos);
        set_end(&mut suffix, false, eos, vocabulary.add_eos);
        let model = HuggingFace {
            asked,
            plain: OnceLock::new(),
            strict: OnceLock::new(),
            definition: definition.into(),
            num_ids,
            is_control,
        };
        Ok(Loaded {
            model,
            pieces,
            space_rule: decoder.space_rule,
            prefix,
            suffix,
        })
    }

    /// The ids of a text without what is put around it. Invalid UTF-8 is read as U+FFFD.
    pub fn encode(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>> {
        let text = String::from_utf8_lossy(text);
        let ids = if parse_special {
            encode_ids(&self.asked, &text, false)?
        } else {
            self.encode_plain(&text)?
        };
        match ids.iter().find(|id| **id as usize >= self.num_ids) {
            Some(id) => Err(Error::new(
                Code::InvalidArgument,
                "prompt",
                format!(
                    "the text needs token {id}, and the model has {} tokens",
                    self.num_ids
                ),
            )),
            None => Ok(ids),
        }
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let plain = self.plain.get_or_init(|| {
            let mut plain = self.asked.clone();
            plain.set_encode_special_tokens(true);
            plain
        });
        let ids = encode_ids(plain, text, false)?;
        let is_control = |id: &u32| self.is_control.get(*id as usize) == Some(&true);
        if !ids.iter().any(is_control) {
            return Ok(ids);
        }
        // The model has the texts of special tokens in its own vocabulary.
        if self.strict.get().is_none() {
            let mut strict = plain.clone();
            strict.with_model(without_special(&self.definition, &self.control_texts())?);
            let _ = self.strict.set(strict);
        }
        match self.strict.get() {
            Some(strict) => encode_ids(strict, text, false),
            None => Err(internal("no tokenizer without special tokens")),
        }
    }

    fn control_texts(&self) -> AHashSet<String> {
        let ids = (0..self.num_ids as u32).filter(|id| self.is_control[*id as usize]);
        ids.filter_map(|id| self.asked.id_to_token(id)).collect()
    }
}
