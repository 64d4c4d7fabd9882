//! How Python writes values, for templates that were written against Python's jinja2.

use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 200;

/// How `write_json` lays a value out: json.dumps of Python with its defaults when `indent` is None.
pub struct JsonStyle {
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

impl JsonStyle {
    pub fn new(indent: Option<usize>) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        JsonStyle {
            indent,
            item_separator: item.into(),
            key_separator: ": ".into(),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// The text of json.dumps, or what cannot be written.
pub fn to_json(value: &Value, style: &JsonStyle) -> Result<String, String> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn new_line(out: &mut String, style: &JsonStyle, depth: usize) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn write_json(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("a value nested deeper than {MAX_DEPTH}"));
    }
    match value.kind() {
        ValueKind::Undefined => return Err("Undefined is not JSON serializable".into()),
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ("NaN", "Infinity"))),
        ValueKind::String => json_string(out, value.as_str().unwrap_or(""), style.ensure_ascii),
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.collect();
            if style.sort_keys {
                keys.sort();
            }
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                if index > 0 {
                    out.push_str(&style.item_separator);
                }
                new_line(out, style, depth + 1);
                json_string(out, &display(key), style.ensure_ascii);
                out.push_str(&style.key_separator);
                let item = value.get_item(key).map_err(|e| e.to_string())?;
                write_json(out, &item, style, depth + 1)?;
            }
            if !keys.is_empty() {
                new_line(out, style, depth);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut is_empty = true;
            for item in value.try_iter().map_err(|e| e.to_string())? {
                if !is_empty {
                    out.push_str(&style.item_separator);
                }
                is_empty = false;
                new_line(out, style, depth + 1);
                write_json(out, &item, style, depth + 1)?;
            }
            if !is_empty {
                new_line(out, style, depth);
            }
            out.push(']');
        }
        kind => return Err(format!("{kind} is not JSON serializable")),
    }
    Ok(())
}

fn json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && c as u32 > 0x7e) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python's repr writes it; `names` are those of NaN and infinity.
fn number(value: &Value, names: (&str, &str)) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if number.is_nan() {
        return names.0.into();
    }
    if number.is_infinite() {
        return format!("{}{}", if number < 0.0 { "-" } else { "" }, names.1);
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        // Rust writes 1e-7 and 1e16, Python 1e-07 and 1e+16.
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{number:?}")
}

/// str(value) of Python.
pub fn display(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or("").to_owned(),
        ValueKind::Undefined => String::new(),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0);
            out
        }
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ("nan", "inf"))),
        ValueKind::String => repr_string(out, value.as_str().unwrap_or("")),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1);
            }
            out.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}
