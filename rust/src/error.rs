//! The one error of the crate. It becomes a chorus::Status on the other side of the border.

/// Numbers of the C interface (chorus_text.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    InvalidArgument = 1,
    Unimplemented = 2,
    DataLoss = 3,
    ResourceExhausted = 4,
    Internal = 5,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    /// What is at fault, as its user writes it.
    pub field: String,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, field: impl Into<String>, message: impl Into<String>) -> Self {
        Error {
            code,
            field: field.into(),
            message: message.into(),
        }
    }
}
