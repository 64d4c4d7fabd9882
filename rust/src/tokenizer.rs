//! Text to token ids, for every kind of vocabulary.

use crate::added_tokens::{split, AddedTokens, Part};
use crate::byte_level::ByteLevel;
use crate::error::Result;
use crate::hugging_face::{self, HuggingFace};
use crate::scored::Scored;
use crate::vocabulary::{
    added_ends, token_ids, token_types, unimplemented, utf8, Pieces, SpaceRule, TokenType,
    Vocabulary,
};
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct EncodeOptions {
    pub parse_special: bool,
    pub add_special: bool,
    pub refuse_lossy: bool,
}

enum Model {
    ByteLevel(ByteLevel),
    Scored(Scored),
    HuggingFace(HuggingFace),
}

pub struct Tokenizer {
    model: Model,
    /// Tokens found in the text before it is cut: always, and with `parse_special`. (Hugging Face's
    /// finds its own.)
    user_defined: Option<AddedTokens>,
    special: Option<AddedTokens>,
    space_prefix: bool,
    /// What is put around a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    pub pieces: Pieces,
    pub space_rule: SpaceRule,
}

fn ids_of(types: &[TokenType], texts: &[&str], wanted: fn(TokenType) -> bool) -> Vec<u32> {
    (0..types.len())
        .filter(|i| wanted(types[*i]) && !texts[*i].is_empty())
        .map(|i| i as u32)
        .collect()
}

impl Tokenizer {
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let name = utf8(vocabulary.model, || "tokenizer.model".into())?;
        match name {
            "gpt2" | "llama" => Self::from_tokens(vocabulary, name),
            hugging_face::NAME => Self::from_definition(vocabulary),
            _ => {
                let message = format!(
                    "expected gpt2 (byte-level BPE), llama (SentencePiece with scores) or {}, found {name:?}",
                    hugging_face::NAME
                );
                Err(unimplemented("tokenizer.model", message))
            }
        }
    }

    fn from_definition(vocabulary: &Vocabulary) -> Result<Self> {
        let loaded = HuggingFace::load(vocabulary)?;
        Ok(Tokenizer {
            model: Model::HuggingFace(loaded.model),
            user_defined: None,
            special: None,
            space_prefix: false,
            prefix: loaded.prefix,
            suffix: loaded.suffix,
            bos: u32::try_from(vocabulary.bos).ok(),
            pieces: loaded.pieces,
            space_rule: loaded.space_rule,
        })
    }

    fn from_tokens(vocabulary: &Vocabulary, name: &str) -> Result<Self> {
        let (texts, ids) = token_ids(&vocabulary.tokens)?;
        let types = token_types(vocabulary.types, texts.len())?;
        let (prefix, suffix) = added_ends(vocabulary, texts.len())?;
        let is_user_defined = |kind: TokenType| kind == TokenType::UserDefined;
        let is_added = |kind: TokenType| kind == TokenType::UserDefined || kind.is_special();
        let user_defined = AddedTokens::new(&texts, &ids_of(&types, &texts, is_user_defined))?;
        let special = AddedTokens::new(&texts, &ids_of(&types, &texts, is_added))?;
        let (model, pieces) = if name == "gpt2" {
            let (model, pieces) = ByteLevel::new(vocabulary, &texts, &ids, &types)?;
            (Model::ByteLevel(model), pieces)
        } else {
            let (model, pieces) = Scored::new(vocabulary, &texts, &types)?;
            (Model::Scored(model), pieces)
        };
        let space_rule = match vocabulary.add_space_prefix {
            true => SpaceRule::AfterAdded,
            false => SpaceRule::None,
        };
        Ok(Tokenizer {
            model,
            user_defined,
            special,
            space_prefix: vocabulary.add_space_prefix,
            prefix: prefix.into_iter().collect(),
            suffix: suffix.into_iter().collect(),
            bos: u32::try_from(vocabulary.bos).ok(),
            pieces,
            space_rule,
        })
    }

    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Result<Vec<u32>> {
        let ids = self.encode_alone(text, options)?;
        if !options.add_special {
            return Ok(ids);
        }
        let mut out = self.prefix.clone();
        // A text that begins with BOS gets no second one.
        let has_bos =
            options.parse_special && self.bos.is_some() && ids.first() == self.bos.as_ref();
        if has_bos && out.first() == self.bos.as_ref() {
            out.remove(0);
        }
        out.extend(ids);
        out.extend(&self.suffix);
        Ok(out)
    }

    /// Without what is put around a text.
    fn encode_alone(&self, text: &[u8], options: EncodeOptions) -> Result<Vec<u32>> {
        if let Model::HuggingFace(model) = &self.model {
            return model.encode(text, options.parse_special);
        }
        let added = match options.parse_special {
            true => &self.special,
            false => &self.user_defined,
        };
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        let mut after_token = true;
        for part in split(added, text) {
            match part {
                Part::Token(id) => {
                    out.push(id);
                    after_token = true;
                }
                Part::Text(range) => {
                    self.encode_part(text, range, after_token, options.refuse_lossy, &mut out)?;
                    after_token = false;
                }
            }
        }
        Ok(out)
    }

    /// Encodes text between added tokens.
    fn encode_part(
        &self,
        text: &[u8],
        range: Range<usize>,
        after_token: bool,
        refuse_lossy: bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let (text, offset) = (&text[range.clone()], range.start);
        match &self.model {
            Model::ByteLevel(model) => model.encode(text, offset, refuse_lossy, out),
            Model::Scored(model) => {
                let prefix = self.space_prefix && after_token;
                model.encode(text, offset, prefix, refuse_lossy, out)
            }
            Model::HuggingFace(_) => Ok(()),
        }
    }
}
