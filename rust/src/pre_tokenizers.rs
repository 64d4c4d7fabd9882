//! How text is cut into words, by the names of tokenizer.ggml.pre. Names and rules are llama.cpp's
//! (src/llama-vocab.cpp).

use crate::error::{Code, Error, Result};
use crate::vocabulary::unimplemented;
use tokenizers::pattern::Pattern;
use tokenizers::utils::SysRegex;

struct Family {
    names: &'static [&'static str],
    /// Each cuts the pieces that the one before it left.
    rules: &'static [&'static str],
    /// A word that is a token is not merged.
    whole_words: bool,
}

macro_rules! english_suffixes {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}
macro_rules! spaces_and_lines {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
const GPT2_WORDS: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3_WORDS: &str = concat!(
    english_suffixes!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    spaces_and_lines!()
);
const QWEN2_WORDS: &str = concat!(
    english_suffixes!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    spaces_and_lines!()
);
const QWEN35_WORDS: &str = concat!(
    english_suffixes!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    spaces_and_lines!()
);
// Letters that are not a to z count as capitals, and letters that are not A to Z as small ones.
const GPT4O_WORDS: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
    english_suffixes!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
    english_suffixes!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    spaces_and_lines!()
);
const TEKKEN_WORDS: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    spaces_and_lines!()
);

const FAMILIES: &[Family] = &[
    Family {
        names: &["default", ""],
        rules: &[
            r"[\p{P}\$\+<=>\^~\|]+",
            GPT2_WORDS,
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        ],
        whole_words: false,
    },
    Family {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        rules: &[GPT2_WORDS],
        whole_words: false,
    },
    // Each digit is a word of its own.
    Family {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        rules: &[r"\p{N}", GPT2_WORDS],
        whole_words: false,
    },
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        rules: &[LLAMA3_WORDS],
        whole_words: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        rules: &[LLAMA3_WORDS],
        whole_words: false,
    },
    Family {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        rules: &[QWEN2_WORDS],
        whole_words: false,
    },
    Family {
        names: &["qwen35"],
        rules: &[QWEN35_WORDS],
        whole_words: false,
    },
    // muse-glimmer has the vocabulary of llama4.
    Family {
        names: &["llama4", "gpt-4o", "kanana2", "minimax-m2"],
        rules: &[GPT4O_WORDS],
        whole_words: false,
    },
    Family {
        names: &["tekken"],
        rules: &[TEKKEN_WORDS],
        whole_words: true,
    },
];

pub struct PreTokenizer {
    rules: Vec<SysRegex>,
    pub whole_words: bool,
}

impl PreTokenizer {
    pub fn new(name: &str) -> Result<Self> {
        let Some(family) = FAMILIES.iter().find(|f| f.names.contains(&name)) else {
            let known = FAMILIES.iter().flat_map(|f| f.names).copied();
            let known: Vec<&str> = known.filter(|name| !name.is_empty()).collect();
            let message = format!("expected one of {}, found {name:?}", known.join(", "));
            return Err(unimplemented("tokenizer.pre", message));
        };
        let rules = family.rules.iter().map(|rule| SysRegex::new(rule));
        let rules = rules.collect::<std::result::Result<_, _>>();
        Ok(PreTokenizer {
            rules: rules.map_err(|e| internal("tokenizer.pre", e))?,
            whole_words: family.whole_words,
        })
    }

    /// The words of the text: ranges that follow each other and cover it.
    pub fn cut(&self, text: &str) -> Result<Vec<(usize, usize)>> {
        let mut words = vec![(0, text.len())];
        for rule in &self.rules {
            let mut next = Vec::with_capacity(words.len());
            for (from, to) in words {
                let found = rule.find_matches(&text[from..to]);
                let found = found.map_err(|e| internal("prompt", e))?;
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

fn internal(field: &str, error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, field, error.to_string())
}
