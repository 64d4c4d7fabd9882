//! Chat templates: jinja2 as Hugging Face's apply_chat_template sets it up, under limits.

use crate::error::{Code, Error, Result};
use crate::limits::{run_limited, Limits, Stopped};
use crate::python::{display, to_json, JsonStyle};
use minijinja::machinery::{tokenize, Token};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, Output, State};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "chat_template";

/// ChorusTextTemplateLimits; ChatTemplateLimits of src/text/chat_template.h says what they mean.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TemplateLimits {
    source_bytes: u64,
    tag_tokens: u64,
    time_ms: u64,
    steps: u64,
    steps_per_byte: u64,
    max_steps: u64,
    recursion: u64,
    live_bytes: u64,
    live_bytes_per_byte: u64,
    output_bytes: u64,
    output_bytes_per_byte: u64,
    stack_bytes: u64,
}

/// A constant and a multiple of the input.
fn grown(base: u64, per_byte: u64, input_bytes: usize) -> u64 {
    base.saturating_add(per_byte.saturating_mul(input_bytes as u64))
}

impl TemplateLimits {
    fn fuel(&self, input_bytes: usize) -> u64 {
        grown(self.steps, self.steps_per_byte, input_bytes).min(self.max_steps)
    }

    fn output(&self, input_bytes: usize) -> usize {
        let bytes = grown(self.output_bytes, self.output_bytes_per_byte, input_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn of_run(&self, input_bytes: usize) -> Limits {
        let live_bytes = grown(self.live_bytes, self.live_bytes_per_byte, input_bytes);
        Limits {
            live_bytes: i64::try_from(live_bytes).unwrap_or(i64::MAX),
            time: Duration::from_millis(self.time_ms),
            stack_bytes: self.stack_bytes as usize,
        }
    }

    /// The error of a run that ended without a result.
    fn exceeded(&self, why: Stopped) -> Error {
        let message = match why {
            Stopped::Memory => "rendering takes too much memory".into(),
            Stopped::Time => {
                let seconds = Duration::from_millis(self.time_ms).as_secs_f64();
                format!("rendering takes longer than {seconds} s")
            }
            Stopped::NoThread(why) => format!("no thread to render on: {why}"),
        };
        Error::new(Code::ResourceExhausted, NAME, message)
    }
}

#[derive(Clone)]
pub struct RenderOptions {
    pub add_generation_prompt: bool,
    pub bos_token: String,
    pub eos_token: String,
    /// Undefined in the template where empty.
    pub unk_token: String,
    pub pad_token: String,
    /// A JSON object with further variables (tools, documents, ...); empty for none.
    pub variables_json: String,
    /// Seconds since 1970 for strftime_now; None is the system's clock.
    pub now: Option<i64>,
}

pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    limits: TemplateLimits,
    /// Set when a run had to be stopped; no other is started (see limits.rs).
    is_stopped: AtomicBool,
}

/// Marks an error that the template itself raised, with its text.
#[derive(Debug)]
struct Raised(String);
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(
        minijinja::Error::new(ErrorKind::InvalidOperation, message.clone())
            .with_source(Raised(message)),
    )
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, message)
}

/// json.dumps with the keyword arguments of Hugging Face's filter.
fn to_json_filter(
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> std::result::Result<Value, minijinja::Error> {
    let indent = match indent.or(options.get("indent")?) {
        Some(value) if !value.is_none() => Some(
            value
                .as_usize()
                .filter(|n| *n <= 64)
                .ok_or_else(|| invalid("tojson: bad indent"))?,
        ),
        _ => None,
    };
    let mut style = JsonStyle::new(indent);
    style.ensure_ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| invalid("tojson: expected two separators"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    to_json(value, &style)
        .map(Value::from)
        .map_err(|e| invalid(format!("tojson: {e}")))
}

/// datetime.now().strftime(format), in the system's time zone.
fn format_time(format: &str, now: i64) -> Option<String> {
    if format.is_empty() {
        return Some(String::new());
    }
    let format = std::ffi::CString::new(format).ok()?;
    // SAFETY: a tm of zeros is valid, localtime_r fills it, and strftime writes at most its length.
    unsafe {
        let now = now as libc::time_t;
        let mut fields: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut fields).is_null() {
            return None;
        }
        let mut text = vec![0u8; 1024];
        let length = libc::strftime(text.as_mut_ptr().cast(), 1024, format.as_ptr(), &fields);
        text.truncate(length);
        String::from_utf8(text).ok().filter(|text| !text.is_empty())
    }
}

/// The marks of what an assistant said, {% generation %} and {% endgeneration %}, which print
/// nothing: as an `if` that always holds, which trims the lines around it in the same way.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let (before, tag) = rest.split_at(begin + 2);
        out.push_str(before);
        let (body, behind) = tag.split_at(tag.find("%}").unwrap_or(tag.len()));
        let name = body.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match name {
            "generation" => out.push_str(&body.replace(name, "if true")),
            "endgeneration" => out.push_str(&body.replace(name, "endif")),
            _ => out.push_str(body),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// An expression nests at most as deep as it has tokens; minijinja works on it recursively, and has a
/// limit of its own for brackets and statements alone.
fn check_tags(source: &str, limit: u64) -> std::result::Result<(), minijinja::Error> {
    let mut count = 0;
    let tokens = tokenize(source, false, Default::default(), Default::default());
    for (token, span) in tokens.map_while(std::result::Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => count = 0,
            Token::TemplateData(_) => {}
            _ => count += 1,
        }
        if count > limit {
            let line = span.start_line;
            return Err(minijinja::Error::new(
                ErrorKind::SyntaxError,
                format!("expected at most {limit} tokens in one tag, found more in line {line}"),
            ));
        }
    }
    Ok(()) // what is no token is the parser's to report
}

fn environment(
    source: String,
    limits: &TemplateLimits,
) -> std::result::Result<Environment<'static>, minijinja::Error> {
    check_tags(&source, limits.tag_tokens)?;
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(limits.recursion as usize);
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out: &mut Output, _: &State, value: &Value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&display(value))?,
        }
        Ok(())
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json_filter);
    environment.add_filter("string", |value: &Value| display(value));
    environment.add_function("strftime_now", |state: &State, format: &str| {
        let now = state
            .lookup("__now")
            .and_then(|now| now.as_i64())
            .unwrap_or(0);
        format_time(format, now).ok_or_else(|| invalid("strftime_now: bad format"))
    });
    environment.add_template_owned(NAME, without_generation_marks(&source))?;
    Ok(environment)
}

/// Passes at most `left` bytes on.
struct CappedOutput {
    text: Vec<u8>,
    left: usize,
}
impl Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.left {
            return Err(std::io::Error::other("output too long"));
        }
        self.left -= bytes.len();
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn render_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return Error::new(Code::InvalidArgument, "messages", message.clone());
        }
        cause = inner.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::new(
            Code::ResourceExhausted,
            NAME,
            "rendering takes too many steps",
        );
    }
    if error.kind() == ErrorKind::WriteFailure {
        return Error::new(
            Code::ResourceExhausted,
            NAME,
            "the rendered text is too long",
        );
    }
    Error::new(Code::InvalidArgument, NAME, error.to_string())
}

/// The JSON text as a value of the wanted kind.
fn parse(text: &str, field: &str, is_wanted: fn(&serde_json::Value) -> bool) -> Result<Value> {
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| Error::new(Code::InvalidArgument, field, format!("not JSON: {e}")))?;
    if !is_wanted(&json) {
        return Err(Error::new(
            Code::InvalidArgument,
            field,
            "JSON of the wrong kind",
        ));
    }
    Ok(Value::from_serialize(&json))
}

fn render(
    environment: &Environment,
    messages: &str,
    options: &RenderOptions,
    max_output: usize,
) -> Result<Vec<u8>> {
    // What Hugging Face passes where its caller gives none.
    let mut context: Vec<(String, Value)> = vec![
        ("tools".into(), Value::from(())),
        ("documents".into(), Value::from(())),
    ];
    if !options.variables_json.is_empty() {
        let variables = parse(
            &options.variables_json,
            "variables",
            serde_json::Value::is_object,
        )?;
        for name in variables.try_iter().into_iter().flatten() {
            let value = variables.get_item(&name).unwrap_or_default();
            context.push((name.to_string(), value));
        }
    }
    let system_now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |time| time.as_secs() as i64)
    };
    let messages = parse(messages, "messages", serde_json::Value::is_array)?;
    context.push(("messages".into(), messages));
    context.push((
        "add_generation_prompt".into(),
        options.add_generation_prompt.into(),
    ));
    context.push(("bos_token".into(), options.bos_token.as_str().into()));
    context.push(("eos_token".into(), options.eos_token.as_str().into()));
    for (name, token) in [
        ("unk_token", &options.unk_token),
        ("pad_token", &options.pad_token),
    ] {
        if !token.is_empty() {
            context.push((name.into(), token.as_str().into()));
        }
    }
    context.push((
        "__now".into(),
        options.now.unwrap_or_else(system_now).into(),
    ));
    let mut output = CappedOutput {
        text: Vec::new(),
        left: max_output,
    };
    let template = environment
        .get_template(NAME)
        .map_err(|e| render_error(&e))?;
    template
        .render_captured_to(Value::from_iter(context), &mut output)
        .map_err(|e| render_error(&e))?;
    Ok(output.text)
}

impl ChatTemplate {
    pub fn new(source: &[u8], limits: &TemplateLimits) -> Result<Self> {
        let bad = |message: String| Error::new(Code::DataLoss, NAME, message);
        if source.len() as u64 > limits.source_bytes {
            return Err(bad(format!("longer than {} bytes", limits.source_bytes)));
        }
        let source = String::from_utf8(source.to_vec());
        let source = source.map_err(|e| bad(e.utf8_error().to_string()))?;
        let limits = *limits;
        let parsed = run_limited(limits.of_run(source.len()), move || {
            environment(source, &limits)
        });
        let environment = parsed
            .map_err(|why| limits.exceeded(why))?
            .map_err(|e| bad(e.to_string()))?;
        Ok(ChatTemplate {
            environment: Arc::new(environment),
            limits,
            is_stopped: AtomicBool::new(false),
        })
    }

    /// `messages`: JSON text of an array.
    pub fn render(&self, messages: &str, options: &RenderOptions) -> Result<Vec<u8>> {
        if self.is_stopped.load(Ordering::Relaxed) {
            let message = "an earlier rendering exceeded its limits";
            return Err(Error::new(Code::ResourceExhausted, NAME, message));
        }
        let input_bytes = messages.len() + options.variables_json.len();
        let max_output = self.limits.output(input_bytes);
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(self.limits.fuel(input_bytes)));
        let (messages, options) = (messages.to_owned(), options.clone());
        let rendered = run_limited(self.limits.of_run(input_bytes), move || {
            render(&environment, &messages, &options, max_output)
        });
        rendered.unwrap_or_else(|why| {
            if !matches!(why, Stopped::NoThread(_)) {
                self.is_stopped.store(true, Ordering::Relaxed);
            }
            Err(self.limits.exceeded(why))
        })
    }
}
