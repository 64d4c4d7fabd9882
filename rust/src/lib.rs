//! The C interface of the text layer; contracts in src/text/chorus_text.h, which mirrors this file.
//!
//! No panic leaves these functions: each body runs in `guard`, which turns one into an error value.

mod added_tokens;
mod byte_level;
mod chat_template;
mod error;
mod hugging_face;
mod limits;
mod pre_tokenizers;
mod python;
mod scored;
mod tokenizer;
mod vocabulary;

use chat_template::{ChatTemplate, RenderOptions, TemplateLimits};
use error::{Code, Error, Result};
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use tokenizer::{EncodeOptions, Tokenizer};
use vocabulary::Vocabulary;

#[global_allocator]
static ALLOCATOR: limits::WatchedAllocator = limits::WatchedAllocator;

/// Borrowed bytes of the caller; `data` may be null when `num_bytes` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    num_bytes: usize,
}

impl Bytes {
    /// SAFETY: the caller keeps the bytes alive and unchanged during the call.
    unsafe fn get<'a>(self) -> &'a [u8] {
        slice(self.data, self.num_bytes)
    }
}

unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, count)
}

/// Where a result goes: called once, during the call, with data that is valid until it returns.
#[repr(C)]
pub struct Sink {
    context: *mut c_void,
    write: extern "C" fn(context: *mut c_void, data: *const c_void, count: usize),
}

#[repr(C)]
pub struct ErrorSink {
    context: *mut c_void,
    write: extern "C" fn(context: *mut c_void, field: Bytes, message: Bytes),
}

#[repr(C)]
pub struct VocabularyView {
    model: Bytes,
    definition: Bytes,
    num_ids: usize,
    pre_tokenizer: Bytes,
    tokens: *const Bytes,
    num_tokens: usize,
    merges: *const Bytes,
    num_merges: usize,
    scores: *const f32,
    num_scores: usize,
    token_types: *const i32,
    num_token_types: usize,
    bos_id: i32,
    eos_id: i32,
    unknown_id: i32,
    padding_id: i32,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

#[repr(C)]
pub struct PiecesView {
    bytes: *const u8,
    ends: *const u64,
    flags: *const u8,
    count: usize,
    space_rule: i32,
}

#[repr(C)]
pub struct RenderView {
    add_generation_prompt: bool,
    has_now: bool,
    now: i64,
    bos_token: Bytes,
    eos_token: Bytes,
    unk_token: Bytes,
    pad_token: Bytes,
    variables_json: Bytes,
}

fn report(sink: &ErrorSink, error: &Error) -> i32 {
    let bytes = |text: &str| Bytes {
        data: text.as_ptr(),
        num_bytes: text.len(),
    };
    (sink.write)(sink.context, bytes(&error.field), bytes(&error.message));
    error.code as i32
}

/// Runs `body`; 0 on success, else the code after the error has been reported.
fn guard(sink: &ErrorSink, body: impl FnOnce() -> Result<()>) -> i32 {
    // A panic is reported as a value, so the library's own hook, which prints it, stays silent.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => report(sink, &error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "no message".into());
            report(
                sink,
                &Error::new(Code::Internal, "text", format!("panic: {text}")),
            )
        }
    }
}

fn text(bytes: Bytes, field: &str) -> Result<String> {
    // SAFETY: see Bytes::get.
    let text = std::str::from_utf8(unsafe { bytes.get() });
    text.map(str::to_owned)
        .map_err(|_| Error::new(Code::InvalidArgument, field, "invalid UTF-8"))
}

/// # Safety
/// All pointers are valid as chorus_text.h says; so for the other functions.
#[no_mangle]
pub unsafe extern "C" fn chorus_text_tokenizer_create(
    view: &VocabularyView,
    out: &mut *mut Tokenizer,
    error: &ErrorSink,
) -> i32 {
    guard(error, || {
        let texts = |data, count| {
            slice::<Bytes>(data, count)
                .iter()
                .map(|b| b.get())
                .collect()
        };
        let vocabulary = Vocabulary {
            model: view.model.get(),
            definition: view.definition.get(),
            num_ids: view.num_ids,
            pre_tokenizer: view.pre_tokenizer.get(),
            tokens: texts(view.tokens, view.num_tokens),
            merges: texts(view.merges, view.num_merges),
            scores: slice(view.scores, view.num_scores),
            types: slice(view.token_types, view.num_token_types),
            bos: view.bos_id,
            eos: view.eos_id,
            unknown: view.unknown_id,
            padding: view.padding_id,
            add_bos: view.add_bos,
            add_eos: view.add_eos,
            add_space_prefix: view.add_space_prefix,
        };
        *out = Box::into_raw(Box::new(Tokenizer::new(&vocabulary)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_tokenizer_destroy(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_tokenizer_pieces(tokenizer: &Tokenizer, out: &mut PiecesView) {
    let pieces = &tokenizer.pieces;
    *out = PiecesView {
        bytes: pieces.bytes.as_ptr(),
        ends: pieces.ends.as_ptr(),
        flags: pieces.flags.as_ptr(),
        count: pieces.flags.len(),
        space_rule: tokenizer.space_rule as i32,
    };
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_tokenizer_encode(
    tokenizer: &Tokenizer,
    text: Bytes,
    parse_special: bool,
    add_special: bool,
    refuse_lossy: bool,
    ids: &Sink,
    error: &ErrorSink,
) -> i32 {
    guard(error, || {
        let options = EncodeOptions {
            parse_special,
            add_special,
            refuse_lossy,
        };
        let encoded = tokenizer.encode(text.get(), options)?;
        (ids.write)(ids.context, encoded.as_ptr().cast(), encoded.len());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_template_create(
    source: Bytes,
    limits: &TemplateLimits,
    out: &mut *mut ChatTemplate,
    error: &ErrorSink,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new(ChatTemplate::new(source.get(), limits)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_template_destroy(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn chorus_text_template_render(
    template: &ChatTemplate,
    messages_json: Bytes,
    view: &RenderView,
    output: &Sink,
    error: &ErrorSink,
) -> i32 {
    guard(error, || {
        let options = RenderOptions {
            add_generation_prompt: view.add_generation_prompt,
            bos_token: text(view.bos_token, "bos_token")?,
            eos_token: text(view.eos_token, "eos_token")?,
            unk_token: text(view.unk_token, "unk_token")?,
            pad_token: text(view.pad_token, "pad_token")?,
            variables_json: text(view.variables_json, "variables")?,
            now: view.has_now.then_some(view.now),
        };
        let rendered = template.render(&text(messages_json, "messages")?, &options)?;
        (output.write)(output.context, rendered.as_ptr().cast(), rendered.len());
        Ok(())
    })
}

/// Panics inside the border, so that a test can see it become an error value.
#[no_mangle]
pub extern "C" fn chorus_text_provoke_panic(error: &ErrorSink) -> i32 {
    guard(error, || panic!("provoked"))
}
